"""`<base offset>.timeindex`, for people and tools: the age of offsets. The broker itself uses
`_native/log/index`.

An entry has 12 bytes: timestamp i64, relative offset i32. It means that no record up to the offset is younger
than the timestamp. A file that was not closed ends in zeros (it is stretched to segment.index.bytes while
active)."""

import struct

_ENTRY = struct.Struct(">qi")


def read_time_index(path: str, base_offset: int) -> list[tuple[int, int]]:
    """Return the entries as (timestamp, offset), without the zeros at the end."""
    with open(path, "rb") as file:
        data = file.read()
    entries = list(_ENTRY.iter_unpack(data[: len(data) // 12 * 12]))
    while entries and entries[-1] == (0, 0):
        entries.pop()
    return [(timestamp, base_offset + offset) for timestamp, offset in entries]
