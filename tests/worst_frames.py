"""Requests that are as wide as they may be, valid or wrong at their very end, made from the schemas as bytes.

`tests/integration/test_worst_frames.py` sends them. The bytes are put together here, without the codec: it
refuses to write what it would refuse to read, and 100,000 elements have to be made in milliseconds.

    frame(row, version, Shape(wide=("topics", "partitions"), width=64_000, distinct=True, end="cut"))

One array of the request has `width` elements, the others have one. `distinct` elements have a number of their
own, the others are the same again and again. `end` says what is wrong at its end: see ENDS."""

import random
import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from kafkad.protocol import codec

Path = tuple[str, ...]

ENDS = (
    "valid",
    "cut",  # the last byte is missing
    "trailing",  # a megabyte too much
    "count",  # the wide array claims one element more than there are
    "huge count",  # it claims 2^31 - 1
    "utf-8",  # the last string is not UTF-8
    "null",  # the last string is null where it may not be
    "longest string",  # of 32,767 bytes, in each of fewer elements
    "tags",  # thousands of unknown tagged fields at the end
    "same tag",  # the same tag thousands of times
)
FLEXIBLE_ENDS = ("tags", "same tag")
TAGS = 30_000
LONGEST = 0x7FFF
FRAME_MAX = 15 << 20  # a request that is no Produce may have 16 MiB
NUMBER = b"#######7"  # replaced by a number, in names
INTEGER = 0x5EED5EE7  # replaced by a number, as an int32


class Shape(NamedTuple):
    wide: Path = ()
    width: int = 1
    distinct: bool = False
    end: str = "valid"


def arrays(spec: Any, version: int, path: Path = ()) -> Iterator[Path]:
    """The paths of all arrays of a message, the outer ones first."""
    for field in spec.fields:
        if has(field.versions, version) and not has(field.tagged, version):
            here = (*path, field.name)
            if field.type.startswith("[]"):
                yield here
            if field.struct is not None:
                yield from arrays(field.struct, version, here)


def has(versions: tuple[int, int], version: int) -> bool:
    return versions[0] <= version <= versions[1]


def frame(row: Any, version: int, shape: Shape, correlation_id: int = 7) -> bytes:
    """A request of the API `row`, without the size before it."""
    spec = codec.request_class(row.key).SPEC
    builder = Builder(spec, version, shape)
    header = struct.pack(">hhi", row.key, version, correlation_id) + struct.pack(">h", 5) + b"worst"
    if codec.request_header_version(row.key, version) == 2:
        header += b"\0"
    body = builder.struct(spec, (), last=True)
    if shape.end == "cut":
        body = body[:-1]
    elif shape.end == "trailing":
        body += bytes(1 << 20)
    elif shape.end in FLEXIBLE_ENDS and builder.flexible:
        tags = range(10_000, 10_000 + TAGS) if shape.end == "tags" else [10_000] * TAGS
        body = body[:-1] + uvarint(TAGS) + b"".join(uvarint(tag) + b"\x01x" for tag in tags)
    return header + body


class Builder:
    """Writes one message of a version; `last` is handed down to the elements at the very end."""

    def __init__(self, spec: Any, version: int, shape: Shape) -> None:
        self.version = version
        self.shape = shape
        self.flexible = has(spec.flexible, version)

    def struct(self, spec: Any, path: Path, last: bool) -> bytes:
        fields = [f for f in spec.fields if has(f.versions, self.version) and not has(f.tagged, self.version)]
        strings = [f.name for f in fields if f.type == "string"]
        written = bytearray()
        for field in fields:
            here = (*path, field.name)
            at_end = last and (not strings or field.name == strings[-1] or field.type.startswith("[]"))
            if field.type.startswith("[]"):
                written += self.array(field, here, at_end)
            elif field.struct is not None:
                if has(field.nullable, self.version):
                    written += b"\x01"
                written += self.struct(field.struct, here, at_end)
            else:
                written += self.value(field, field.type, here, at_end)
        return bytes(written) + (b"\0" if self.flexible else b"")

    def array(self, field: Any, path: Path, last: bool) -> bytes:
        shape = self.shape
        width = shape.width if path == shape.wide else 1
        one = self.element(field, path, False)
        width = max(1, min(width, FRAME_MAX // len(one)))
        ending = self.element(field, path, last)
        elements = numbered(one, width - 1) if shape.distinct else one * (width - 1)
        claimed = width
        if path == shape.wide:
            claimed = {"count": width + 1, "huge count": 0x7FFFFFFF}.get(shape.end, width)
        return self.size(field, claimed, "i") + elements + ending

    def element(self, field: Any, path: Path, last: bool) -> bytes:
        if field.struct is not None:
            return self.struct(field.struct, path, last)
        return self.value(field, field.type[2:], path, last)

    def value(self, field: Any, kind: str, path: Path, last: bool) -> bytes:
        if kind == "string":
            text = b"t" if not self.shape.distinct else b"name-" + NUMBER
            if last and self.shape.end == "utf-8":
                text = b"\xc3\x28"
            if last and self.shape.end == "null" and not has(field.nullable, self.version):
                return self.size(field, -1, "h")
            if self.shape.end == "longest string":
                text = text.ljust(LONGEST, b"x")
            return self.size(field, len(text), "h") + text
        if kind in ("bytes", "records"):
            return self.size(field, 1, "i") + b"x"
        if kind == "uuid":
            return b"uuid" + struct.pack(">ii", INTEGER if self.shape.distinct else 0, 0) + b"uuid"
        if kind == "float64":
            return struct.pack(">d", 1.0)
        if kind in ("int32", "uint32"):
            numbered_field = self.shape.distinct and re.search("index|partition|^timestamp", field.name)
            return struct.pack(">i", INTEGER if numbered_field else 0)
        if kind == "int64":
            return struct.pack(">q", 0)
        if kind in ("int16", "uint16"):
            return struct.pack(">h", 1 if field.name == "acks" else 0)
        if kind == "bool":
            return bytes([field.name in ("validate_only", "include_synonyms", "include_documentation")])
        # 2 is a topic where a resource has a type, and the first kind of key of a coordinator is a group
        return b"\x02" if field.name == "resource_type" else b"\0"

    def size(self, field: Any, count: int, kind: str) -> bytes:
        if self.flexible and not field.never_compact:
            return uvarint(count + 1)
        return struct.pack(">" + kind, count)


def numbered(element: bytes, count: int) -> bytes:
    """`count` times the element, each with its own number where the first one has NUMBER or INTEGER."""
    integer = struct.pack(">i", INTEGER)
    parts = re.split(b"(" + re.escape(NUMBER) + b"|" + re.escape(integer) + b")", element)
    formats = b"".join(b"%b" if part in (NUMBER, integer) else part.replace(b"%", b"%%") for part in parts)
    kinds = [part == NUMBER for part in parts if part in (NUMBER, integer)]
    return b"".join(
        formats % tuple(b"%08d" % i if text else i.to_bytes(4, "big") for text in kinds) for i in range(count)
    )


def uvarint(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def shapes(row: Any, version: int, widths: tuple[int, ...]) -> Iterator[Shape]:
    """All that there is to try for a version of an API, the wide ones last."""
    spec = codec.request_class(row.key).SPEC
    flexible = has(spec.flexible, version)
    for width in widths:
        for path in arrays(spec, version):
            for end in ENDS:
                if end not in FLEXIBLE_ENDS or flexible:
                    yield from (Shape(path, width, distinct, end) for distinct in (False, True))
    for end in ENDS:
        if end not in FLEXIBLE_ENDS or flexible:
            yield Shape((), 1, False, end)


def some_shapes(row: Any, version: int, width: int, count: int, chance: random.Random) -> list[Shape]:
    """`count` of them, of different ends where possible."""
    known = list(shapes(row, version, (width,)))
    chance.shuffle(known)
    known.sort(key=lambda shape: shape.wide == ())  # what has no array to widen comes last
    return known[:count]
