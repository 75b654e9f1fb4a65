"""Bytes that were read from a log, without the batch that the end of the read has cut."""

import struct
from typing import Final

_SIZE: Final = struct.Struct(">i")


def whole_batches(data: bytes) -> bytes:
    """Return `data` without an incomplete batch at its end."""
    at = 0
    while at + 12 <= len(data):
        size = _SIZE.unpack_from(data, at + 8)[0] + 12
        if size <= 12 or at + size > len(data):
            break
        at += size
    return data if at == len(data) else data[:at]
