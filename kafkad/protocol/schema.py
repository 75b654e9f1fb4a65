"""The notation of kafkad/protocol/schemas/*.txt, and its reader.

An API is one file, `NN_name.txt`, with its request and its response; records share files by family.

    Fetch  key 1  versions 0-18  flexible 12+          unstable 18: that version is not for use yet
    request
      replica_id      int32 = -1      0-14             name, type and default, versions (all, or the parent's)
      replica_state   {}              15+   tag 1      a struct, its fields indented; tag 1 5+: tagged since 5
        replica_id    int32 = -1
      topics          []                               an array of structs;  []int32: of integers
        topic         string          0-12  ignorable  dropped in silence from versions that lack it
      error_message   string? = null                   may be null;  nullable 5+: may be null since version 5
    response
      ...
    TopicRecord  record 2  versions 0  flexible 0+     `record` is to a family what `key` is to the APIs

Types: bool int8 int16 uint16 int32 uint32 int64 float64 uuid string bytes records. Columns are two spaces or
more apart. A default that is not written is 0, false, "", no bytes, [] or a struct of defaults; of nullable
`records` it is null. `flexible` versions (KIP-482) have compact lengths and tagged fields; a field marked
`never compact` keeps its long length.
The result is `codec.Spec` trees; the C plans of single versions
are made from those when a version is first used."""

import json
import re
from typing import Any, NamedTuple

from kafkad._native.wire.codec import Field, Spec

Range = tuple[int, int]
NONE: Range = (0, -1)
NEVER_FLEXIBLE = 1 << 15  # above every version, so `version >= FLEXIBLE_VERSION` needs no second question

CELLS = re.compile(r"  +")
VERSIONS = re.compile(r"\d+(?:\+|-\d+)?")
DEFAULTS: dict[str, Any] = {
    "bool": False,
    "float64": 0.0,
    "uuid": bytes(16),
    "string": "",
    "bytes": b"",
    "records": b"",
    "{}": (),
}


class Schema(NamedTuple):
    """A message as its file has it. `key` is the API's, `record` the record's id in its family."""

    name: str
    key: int | None
    record: int | None
    versions: Range
    highest_stable: int
    flexible: Range
    spec: Spec


def parse(text: str) -> list[Schema]:
    """All messages of a file."""
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    schemas = []
    at = 0
    while at < len(lines):
        headline = lines[at]
        at += 1
        if at < len(lines) and lines[at] == "request":
            cut = lines.index("response", at)
            end = next_headline(lines, cut + 1)
            schemas.append(read_message(headline, "Request", lines[at + 1 : cut]))
            schemas.append(read_message(headline, "Response", lines[cut + 1 : end]))
        else:
            end = next_headline(lines, at)
            schemas.append(read_message(headline, "", lines[at:end]))
        at = end
    return schemas


def next_headline(lines: list[str], at: int) -> int:
    while at < len(lines) and lines[at][0] == " ":
        at += 1
    return at


def read_message(headline: str, suffix: str, lines: list[str]) -> Schema:
    name, *cells = CELLS.split(headline)
    said = dict(cell.split(" ") for cell in cells)
    name += suffix
    versions = read_range(said["versions"], NONE)
    flexible = NONE if said["flexible"] == "none" else read_range(said["flexible"], versions)
    return Schema(
        name,
        int(said["key"]) if "key" in said else None,
        int(said["record"]) if "record" in said else None,
        versions,
        int(said["unstable"]) - 1 if "unstable" in said else versions[1],
        flexible,
        Spec(name, read_fields(lines, name, versions, versions, flexible), versions, flexible),
    )


def read_fields(lines: list[str], path: str, parent: Range, whole: Range, flexible: Range) -> list[Field]:
    """The fields at the indentation of the first line; deeper ones belong to the field above them."""
    fields = []
    at = 0
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    while at < len(lines):
        name, kind, *cells = CELLS.split(lines[at].strip())
        at += 1
        end = at
        while end < len(lines) and lines[end][indent] == " ":
            end += 1
        versions, nullable, tagged, tag = parent, NONE, NONE, -1
        ignorable = never_compact = False
        if cells and VERSIONS.fullmatch(cells[0]):
            versions = read_range(cells.pop(0), whole)
        kind, _, default = kind.partition(" = ")
        if kind.endswith("?"):
            kind, nullable = kind[:-1], versions
        for cell in cells:
            word, *rest = cell.split(" ")
            if word == "tag":
                tag = int(rest[0])
                tagged = read_range(rest[1], whole) if len(rest) > 1 else versions
            elif word == "nullable":
                nullable = read_range(rest[0], whole)
            elif cell == "ignorable":
                ignorable = True
            elif cell == "never compact":
                never_compact = True
            else:
                raise ValueError(f"{path}.{name}: {cell!r} means nothing")
        struct = None
        if kind in ("{}", "[]"):
            inner = f"{path}.{camel_case(name)}"
            inner_fields = read_fields(lines[at:end], inner, versions, whole, flexible)
            struct = Spec(inner, inner_fields, versions, flexible)
        elif end > at:
            raise ValueError(f"{path}.{name}: a {kind} has no fields")
        value = read_default(kind, default, nullable)
        fields.append(
            Field(name, kind, value, struct, versions, nullable, tagged, tag, ignorable, never_compact)
        )
        at = end
    return fields


def read_range(text: str, whole: Range) -> Range:
    if text.endswith("+"):
        return int(text[:-1]), whole[1]
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def read_default(kind: str, text: str, nullable: Range) -> Any:
    if text == "null" or (kind == "records" and nullable != NONE):
        return None
    if kind.startswith("[]"):
        return []
    if not text:
        return DEFAULTS.get(kind, 0)
    if kind == "bool":
        return text == "true"
    if kind == "string":
        return json.loads(text)
    return float(text) if kind == "float64" else int(text)


def camel_case(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))
