"""Random messages: any class, any version, from a seed.

Fields that the version has get values of every kind the schema allows: edges, nulls where they may be, empty
and filled arrays, now and then an unknown tag. Fields it lacks keep their default: it would not encode."""

import random
import struct
from typing import Any

from kafkad._native.wire.codec import Field, Message, Spec

EDGES = {
    "int8": (-128, 127),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}
LETTERS = "abcxyz019-_.é漢😀 \x00"


def random_message(
    cls: type[Message], version: int, rng: random.Random, *, tame: bool = False, unknown_tags: bool = True
) -> Message:
    """`tame`: error codes that exist, and times that a calendar has, for oracles that are choosy."""
    return Maker(rng, version, tame, unknown_tags).message(cls.SPEC)


class Maker:
    def __init__(self, rng: random.Random, version: int, tame: bool, unknown_tags: bool) -> None:
        self.rng = rng
        self.version = version
        self.tame = tame
        self.unknown_tags = unknown_tags

    def holds(self, versions: tuple[int, int]) -> bool:
        return versions[0] <= self.version <= versions[1]

    def message(self, spec: Spec) -> Message:
        values = {field.name: self.value(field) for field in spec.fields if self.holds(field.versions)}
        for field in spec.fields:
            if field.name in values and self.holds(field.tagged) and self.rng.random() < 0.4:
                del values[field.name]  # as it is by default
        message = spec.cls(**values)
        if self.unknown_tags and self.holds(spec.flexible) and self.rng.random() < 0.2:
            tags = self.rng.sample((77, 128, 1 << 20, (1 << 31) - 2), self.rng.randrange(1, 4))
            message.unknown_tags = {
                tag: self.rng.randbytes(self.rng.choice((0, 1, 200))) for tag in sorted(tags)
            }
        return message

    def value(self, field: Field) -> Any:
        if self.holds(field.nullable) and self.rng.random() < 0.25:
            return None
        if field.type == "{}":
            assert field.struct is not None
            return self.message(field.struct)
        if field.type.startswith("[]"):
            count = self.rng.choice((0, 1, 1, 2, 3, 130 if field.struct is None else 2))
            if field.struct is not None:
                return [self.message(field.struct) for _ in range(count)]
            return [self.scalar(field.type[2:], field.name) for _ in range(count)]
        return self.scalar(field.type, field.name)

    def scalar(self, kind: str, name: str) -> Any:
        rng = self.rng
        if kind == "bool":
            return rng.random() < 0.5
        if kind in EDGES:
            return self.integer(kind, name)
        if kind == "float64":
            return struct.unpack(">d", struct.pack(">d", rng.uniform(-1e300, 1e300)))[0]
        if kind == "uuid":
            return rng.choice((bytes(16), rng.randbytes(16)))
        if kind == "string":
            return "".join(rng.choices(LETTERS, k=rng.choice((0, 1, 7, 126, 127, 300))))
        return rng.randbytes(rng.choice((0, 1, 7, 126, 127, 16384)))

    def integer(self, kind: str, name: str) -> int:
        low, high = EDGES[kind]
        if self.tame and name.endswith("error_code"):
            return self.rng.randrange(0, 90)
        if self.tame and kind in ("int32", "int64") and ("time" in name or name.endswith("_ms")):
            return self.rng.randrange(0, 2_000_000_000)
        return self.rng.choice((low, high, 0, 1, -1 if low else 2, self.rng.randint(low, high)))
