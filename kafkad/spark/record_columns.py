"""RecordColumns with everything that Kafka's formats need: the codecs, and message sets of magic 0 and 1.

The decoder itself is native (`_native/values/record_columns`). That layer knows neither the libraries of the
codecs nor the old formats, so this module passes them in."""

from typing import Any

from kafkad._native.values import record_columns as native
from kafkad.protocol import compression
from kafkad.protocol.errors import Malformed
from kafkad.protocol.legacy_records import LegacyEntry

NO_TIMESTAMP_TYPE = -1  # magic 0 has no timestamps (TimestampType.NO_TIMESTAMP_TYPE)


class RecordColumns(native.RecordColumns):
    """`RecordColumns(topic, partition, start, end, headers=False, batch_bytes=1 << 20, batch_rows=16384,
    verify_crc=True, read_committed=False)`: feed batches, take Arrow record batches."""

    def __init__(self, topic: str, partition: int, start: int, end: int, **options: Any) -> None:
        super().__init__(
            topic,
            partition,
            start,
            end,
            decompress=compression.chunks,
            legacy=legacy_rows,
            **options,
        )


def legacy_rows(data: Any, verify_crc: bool) -> list[tuple[int, int, int, bytes | None, bytes | None]]:
    """(offset, timestamp, timestamp type, key, value) of each message of one entry. Raises Malformed."""
    entry = LegacyEntry(data)
    if verify_crc and not entry.is_intact():
        raise Malformed("the CRC does not match the bytes")
    kind = entry.timestamp_type if entry.magic else NO_TIMESTAMP_TYPE
    return [(r.offset, r.timestamp, kind, r.key, r.value) for r in entry.records()]
