"""Write kafkad/protocol/schemas/*.txt from the message definitions of two Kafka source trees.

    tools/import_schemas.py NEWER_KAFKA [OLDER_KAFKA]      source trees, for example of 4.3 and 3.9

Only facts are imported: names, types, versions, nullability, defaults, tags, ignorability.
kafkad/protocol/schema.py describes the notation. The newer tree decides. The older one adds versions that the
newer one has dropped, and messages that the newer one lists without any version. After the merge, every
version from the older tree is compared, field by field, with the older tree alone. So a field that was
renamed or moved in between stops the import.

Beware: versions that the older tree itself calls unstable (the early-access share group APIs) are not
imported.
"""

import argparse
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

SCHEMAS = Path(__file__).parent.parent / "kafkad" / "protocol" / "schemas"
OPEN = 32767  # the end of "3+"

# file, folders it is gathered from, message names (None: all that no earlier row has taken), heading
RECORD_FILES = (
    ("headers", ["clients"], ["RequestHeader", "ResponseHeader"], "The headers of requests and responses."),
    (
        "embedded",
        ["clients"],
        ["ConsumerProtocolSubscription", "ConsumerProtocolAssignment", "DefaultPrincipalData"],
        "Messages that travel as bytes inside others, each behind its version as an int16.",
    ),
    (
        "records_control",
        ["clients"],
        None,
        "Keys and values of control records, from transaction markers to KRaft's snapshot headers.",
    ),
    ("records_raft", ["raft"], None, "The content of the file quorum-state, which holds it as JSON."),
    (
        "records_metadata",
        ["metadata"],
        None,
        "Records of __cluster_metadata; `record` is the id that stands before each.",
    ),
    (
        "records_group",
        ["group-coordinator"],
        None,
        "Records of __consumer_offsets: `record` as an int16 and the key; a version, int16, and the value.",
    ),
    (
        "records_transaction",
        ["transaction-coordinator"],
        None,
        "Records of __transaction_state; keys and values as in __consumer_offsets.",
    ),
    (
        "records_share",
        ["share-coordinator"],
        None,
        "Records of __share_group_state; keys and values as in __consumer_offsets.",
    ),
    (
        "records_storage",
        ["storage"],
        None,
        "Records of __remote_log_metadata, and the producer snapshot file (after its int16 version).",
    ),
)


@dataclass(frozen=True)
class Range:
    low: int
    high: int

    @classmethod
    def parse(cls, text: str | None) -> "Range | None":
        if not text or text == "none":
            return None
        if text.endswith("+"):
            return cls(int(text[:-1]), OPEN)
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))

    def __and__(self, other: "Range") -> "Range | None":
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Range(low, high) if low <= high else None

    def text(self, whole: "Range") -> str:
        """Return the shortest notation, in a message that has the versions `whole`."""
        if self.high >= whole.high:
            return f"{self.low}+"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass
class Field:
    name: str
    type: str  # "int32", "{}" for a struct, "[]" for an array of structs, "[]int32"
    versions: Range
    nullable: Range | None
    tagged: Range | None
    tag: int | None
    default: str | None  # as written in the notation
    ignorable: bool
    never_flexible: bool
    fields: list["Field"]


@dataclass
class Message:
    name: str
    kind: str
    key: int | None
    versions: Range | None
    flexible: Range | None
    unstable: bool
    fields: list[Field] = field(default_factory=list)


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def read_definition(path: Path) -> Message:
    text = re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.MULTILINE)
    text = re.sub(r"(?<=[,\[\]{}\"])\s+//.*$", "", text, flags=re.MULTILINE)
    source = json.loads(text)
    versions = Range.parse(source["validVersions"])
    message = Message(
        source["name"],
        source["type"],
        source.get("apiKey"),
        versions,
        Range.parse(source.get("flexibleVersions")),
        source.get("latestVersionUnstable", False),
    )
    if versions is not None:
        structs = {struct["name"]: struct["fields"] for struct in source.get("commonStructs", ())}
        message.fields = read_fields(source["fields"], versions, structs)
    return message


def read_fields(sources: list[dict], parent: Range, structs: dict[str, list[dict]]) -> list[Field]:
    """Return the fields that some version of `parent` has, with each range clipped to the possible
    versions."""
    fields = []
    for source in sources:
        tagged = Range.parse(source.get("taggedVersions"))
        declared = Range.parse(source.get("versions")) or tagged
        assert declared is not None
        versions = declared & parent
        if versions is None:
            continue
        kind, children = source["type"], source.get("fields")
        bare = kind.removeprefix("[]")
        if children is None and bare[0].isupper():
            children = structs[bare]
        if children is not None:
            kind = "[]" if kind.startswith("[]") else "{}"
        nullable = Range.parse(source.get("nullableVersions"))
        fields.append(
            Field(
                snake_case(source["name"]),
                kind,
                versions,
                nullable and nullable & versions,
                tagged and tagged & versions,
                source.get("tag"),
                read_default(kind, source.get("default")),
                source.get("ignorable", False),
                source.get("flexibleVersions") == "none",
                read_fields(children, versions, structs) if children is not None else [],
            )
        )
    return fields


def read_default(kind: str, default: object) -> str | None:
    """Parse a default. A JSON null is no default (a struct is then empty); the string "null" is null."""
    if default is None or default == "":
        return None
    text = str(default).lower() if isinstance(default, bool) else str(default)
    if text == "null":
        return text
    if kind == "string":
        assert " " not in text
        return json.dumps(text)
    if kind == "bool":
        return text.lower() if text.lower() != "false" else None
    if kind == "float64":
        return text
    return str(int(text, 0)) if int(text, 0) else None


# -- merging -----------------------------------------------------------------------------------------------


def merge(newer: Message, older: Message) -> Message:
    """Return `newer` with the versions that only `older` has."""
    if older.versions is None or older.unstable:
        return newer
    if newer.versions is None:
        return older
    if newer.versions.low <= older.versions.low:
        return newer
    dropped = Range(older.versions.low, newer.versions.low - 1)
    merged = replace(newer, versions=Range(dropped.low, newer.versions.high))
    merged.fields = merge_fields(newer.fields, older.fields, newer.versions.low, dropped)
    for version in range(dropped.low, dropped.high + 1):
        assert layout(merged.fields, version) == layout(older.fields, version), (newer.name, version)
    for version in range(newer.versions.low, newer.versions.high + 1):
        assert layout(merged.fields, version) == layout(newer.fields, version), (newer.name, version)
    return merged


def merge_fields(newer: list[Field], older: list[Field], first_new: int, dropped: Range) -> list[Field]:
    """Merge the fields of both, in one order. The newer definition of its lowest version is used down to the
    older one's lowest version; `layout` then checks this."""
    old_by_name = {each.name: each for each in older}
    merged = []
    for each in newer:
        old = old_by_name.get(each.name)
        if old is not None and old.versions.low < first_new == each.versions.low:
            assert old.type == each.type, each.name

            def extend(new: Range | None, was: Range | None) -> Range | None:
                if was is None or was & dropped is None:
                    return new
                if new is None:
                    return was & dropped
                return Range(was.low, new.high)

            each = replace(
                each,
                versions=Range(old.versions.low, each.versions.high),
                nullable=extend(each.nullable, old.nullable),
                tagged=extend(each.tagged, old.tagged),
                fields=merge_fields(each.fields, old.fields, first_new, dropped),
            )
        merged.append(each)
    names = [each.name for each in merged]
    previous = None
    for each in older:
        if each.name not in names and (versions := each.versions & dropped):
            at = names.index(previous) + 1 if previous else 0
            merged.insert(
                at, replace(each, versions=versions, nullable=each.nullable and each.nullable & versions)
            )
            names.insert(at, each.name)
        if each.name in names:
            previous = each.name
    return merged


def layout(fields: list[Field], version: int) -> list[tuple]:
    """Return the layout of one version on the wire, for comparison."""
    return [
        (
            each.name,
            each.type,
            bool(each.nullable and each.nullable.low <= version <= each.nullable.high),
            each.tag if each.tagged and each.tagged.low <= version <= each.tagged.high else None,
            each.default,
            layout(each.fields, version),
        )
        for each in fields
        if each.versions.low <= version <= each.versions.high
    ]


# -- writing -----------------------------------------------------------------------------------------------


def field_rows(
    fields: list[Field], parent: Range, whole: Range, depth: int
) -> list[tuple[str, str, str, str]]:
    rows = []
    for each in fields:
        kind = each.type
        always_null = each.nullable == each.versions
        if always_null:
            kind += "?"
        if each.default is not None:
            kind += f" = {each.default}"
        notes = []
        if each.nullable and not always_null:
            notes.append(f"nullable {each.nullable.text(whole)}")
        if each.tagged:
            since = "" if each.tagged == each.versions else f" {each.tagged.text(whole)}"
            notes.append(f"tag {each.tag}{since}")
        if each.ignorable:
            notes.append("ignorable")
        if each.never_flexible:
            notes.append("never compact")
        versions = "" if each.versions == parent else each.versions.text(whole)
        rows.append(("  " * depth + each.name, kind, versions, "  ".join(notes)))
        rows += field_rows(each.fields, each.versions, whole, depth + 1)
    return rows


def write_fields(message: Message) -> list[str]:
    assert message.versions is not None
    rows = field_rows(message.fields, message.versions, message.versions, 1)
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip()
        for row in rows
    ]


def headline(name: str, message: Message, key: str) -> str:
    versions = message.versions
    assert versions is not None
    span = str(versions.low) if versions.low == versions.high else f"{versions.low}-{versions.high}"
    flexible = message.flexible and message.flexible & versions
    compact = flexible.text(versions) if flexible else "none"
    unstable = f"  unstable {versions.high}" if message.unstable else ""
    return f"{name}{key}  versions {span}  flexible {compact}{unstable}"


def write_api(request: Message, response: Message) -> str:
    assert (request.versions, request.flexible) == (response.versions, response.flexible), request.name
    name = request.name.removesuffix("Request")
    lines = [headline(name, request, f"  key {request.key}"), "request", *write_fields(request)]
    return "\n".join([*lines, "response", *write_fields(response), ""])


def write_records(heading: str, messages: list[Message]) -> str:
    parts = [f"# {heading}\n"]
    for message in messages:
        key = "" if message.key is None else f"  record {message.key}"
        parts.append("\n".join([headline(message.name, message, key), *write_fields(message), ""]))
    return "\n".join(parts)


def read_tree(tree: Path) -> dict[str, dict[str, Message]]:
    """Return the messages by module and name."""
    modules: dict[str, dict[str, Message]] = {}
    for path in sorted(tree.glob("*/src/main/resources/**/*.json")):
        module = path.relative_to(tree).parts[0]
        if path.parent.name in ("message", "metadata") and module not in ("streams", "generator"):
            message = read_definition(path)
            modules.setdefault(module, {})[message.name] = message
    for messages in modules.values():
        for name, message in messages.items():  # only requests say so
            if message.unstable and message.kind == "request":
                messages[name.removesuffix("Request") + "Response"].unstable = True
    return modules


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("newer", type=Path)
    parser.add_argument("older", type=Path, nargs="?")
    arguments = parser.parse_args()
    newer = read_tree(arguments.newer)
    older = read_tree(arguments.older) if arguments.older else {}
    clients = newer["clients"]
    for name, message in clients.items():
        if name in older.get("clients", {}):
            clients[name] = merge(message, older["clients"][name])
    files: dict[str, str] = {}
    for name, request in sorted(clients.items()):
        if request.kind == "request":
            api = name.removesuffix("Request")
            files[f"{request.key:02}_{snake_case(api)}"] = write_api(request, clients[f"{api}Response"])
    taken = {name for name, message in clients.items() if message.kind in ("request", "response")}
    for file, modules, wanted, heading in RECORD_FILES:
        found = {name: message for module in modules for name, message in newer.get(module, {}).items()}
        names = wanted or sorted(found.keys() - taken, key=lambda name: (found[name].key or 0, name))
        taken.update(names)
        files[file] = write_records(heading, [found[name] for name in names])
    SCHEMAS.mkdir(exist_ok=True)
    for stale in SCHEMAS.glob("*.txt"):
        if stale.stem not in files:
            stale.unlink()
    for file, text in files.items():
        (SCHEMAS / f"{file}.txt").write_text(text)
    print(f"{len(files)} files, {len(clients)} client messages")


if __name__ == "__main__":
    main()
