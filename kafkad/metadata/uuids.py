"""Kafka's uuids: 16 bytes, shown as 22 characters of base64url, made from random numbers that the caller
passes."""

import base64
from typing import Any

ZERO = bytes(16)


def uuid_text(value: bytes) -> str:
    assert len(value) == 16
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def uuid_bytes(text: str) -> bytes:
    """Parse a uuid. Raises ValueError."""
    value = base64.urlsafe_b64decode(text + "==")
    if len(value) != 16:
        raise ValueError(f"{text!r} is not a uuid")
    return value


def random_uuid(random: Any) -> bytes:
    """Return a version 4 uuid. As in Kafka, its text never begins with a dash, because tools would take it
    for an option."""
    while True:
        value = bytearray(random.randbytes(16))
        value[6] = value[6] & 0x0F | 0x40
        value[8] = value[8] & 0x3F | 0x80
        if value[0] >> 2 != 62:  # the sextet that is written as "-"
            return bytes(value)
