"""`<base offset>.index`, for people and tools: where batches are. The broker itself uses `_native/log/index`.

An entry has 8 bytes: relative offset i32, position i32. It means that the batch which ends with the offset
begins at the position. A file that was not closed ends in zeros (it is stretched to segment.index.bytes while
active)."""

import struct

_ENTRY = struct.Struct(">ii")


def read_offset_index(path: str, base_offset: int) -> list[tuple[int, int]]:
    """Return the entries as (offset, position), without the zeros at the end."""
    with open(path, "rb") as file:
        data = file.read()
    entries = list(_ENTRY.iter_unpack(data[: len(data) // 8 * 8]))
    while entries and entries[-1] == (0, 0):
        entries.pop()
    return [(base_offset + offset, position) for offset, position in entries]
