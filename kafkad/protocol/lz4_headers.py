"""lz4 in messages of magic 0: the header checksum of the frame covers the wrong bytes (KAFKA-3160).

It also covers the frame's magic. Readers of magic 0 expect this checksum; the library expects the correct
one."""

from typing import Any, Final

from kafkad.protocol.errors import Malformed

PRIMES: Final = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
WORD: Final = 0xFFFFFFFF


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & WORD


def xxh32(data: bytes) -> int:
    """The xxHash of less than 16 bytes."""
    assert len(data) < 16
    one, two, three, four, five = PRIMES
    value = (five + len(data)) & WORD
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little")
        value = _rotated((value + word * three) & WORD, 17) * four & WORD
    for byte in data[whole:]:
        value = _rotated((value + byte * five) & WORD, 11) * one & WORD
    value = (value ^ value >> 15) * two & WORD
    value = (value ^ value >> 13) * three & WORD
    return value ^ value >> 16


def with_right_lz4_checksum(frame: Any) -> bytes:
    """The frame, with the header checksum that the library wants: over the descriptor alone."""
    return _with_checksum(frame, 4)


def with_broken_lz4_checksum(frame: Any) -> bytes:
    """The frame as clients of magic 0 want it: the checksum covers the frame's magic, too."""
    return _with_checksum(frame, 0)


def _with_checksum(frame: Any, begin: int) -> bytes:
    data = bytes(frame)
    at = 6 + (8 if len(data) > 4 and data[4] & 0x08 else 0)  # behind the content size, if there is one
    if len(data) <= at or at - begin > 15:
        raise Malformed("lz4: no frame")
    return data[:at] + bytes([xxh32(data[begin:at]) >> 8 & 0xFF]) + data[at + 1 :]
