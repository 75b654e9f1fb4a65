"""Messages of magic 0 and 1 in the log cleaner: they are converted to batches of magic 2, which it can clean.

    run_of(data, position)   the messages there that become one batch, and the position after them
    as_batch(messages)       that batch; without the records that `keep` rejects

Kafka's cleaner writes magic 2, too: a wrapper message becomes a batch with its codec, offsets and timestamps
stay, and a message without timestamp gets CreateTime -1. Kafka makes a batch of each message that is not
wrapped. Here up to RUN neighbours share one, because a header of 61 bytes for each could make a segment
larger than an index can address.

Beware: a log is converted once, at its first cleaning. This is Python with objects, but only for one batch at
a time."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from kafkad._native.wire.records import Record
from kafkad.protocol.errors import Malformed
from kafkad.protocol.legacy_records import HEADER_SIZE, LOG_OVERHEAD, LegacyEntry
from kafkad.protocol.records import build_batch

MAGIC_AT: Final = 16
RUN: Final = 200  # messages
RUN_BYTES: Final = 64 << 10
DELTA_MAX: Final = (1 << 31) - 1  # the largest offset delta in a batch


def is_legacy(data: memoryview, position: int) -> bool:
    return len(data) - position > MAGIC_AT and data[position + MAGIC_AT] < 2


def run_of(data: memoryview, position: int) -> tuple[list[LegacyEntry], int]:
    """Return a wrapper, or messages that share a batch; none if the first is incomplete. Raises Malformed."""
    run: list[LegacyEntry] = []
    begun = position
    while len(run) < RUN and position - begun < RUN_BYTES and is_legacy(data, position):
        size = int.from_bytes(data[position + 8 : position + LOG_OVERHEAD], "big", signed=True)
        if size < HEADER_SIZE[0] - LOG_OVERHEAD:
            raise Malformed(f"a message has the size {size}")
        end = position + LOG_OVERHEAD + size
        if end > len(data):
            break
        message = LegacyEntry(data[position:end])
        if not message.is_intact():
            raise Malformed(f"the message at offset {message.offset} does not have the CRC of its bytes")
        if run and not _joins(run[-1], message):
            break
        run.append(message)
        position = end
        if message.compression:
            break
    return run, position


def _joins(last: LegacyEntry, message: LegacyEntry) -> bool:
    if message.compression or message.timestamp_type != last.timestamp_type:
        return False
    if message.timestamp_type and message.timestamp != last.timestamp:
        return False  # a batch has one LogAppendTime
    return 0 < message.offset - last.offset < DELTA_MAX // RUN


def as_batch(
    run: Sequence[LegacyEntry], *, packed: bool = True, keep: Callable[[Record], bool] = lambda record: True
) -> bytearray | None:
    """Return the batch. `packed`: with the wrapper's codec. None: no record is kept. Raises Malformed."""
    records = [record for message in run for record in message.records()]
    for one, other in pairwise(records):
        if not one.offset < other.offset:
            raise Malformed(f"offset {other.offset} follows {one.offset} in a wrapper")
    if records[0].offset < 0 or records[-1].offset - records[0].offset > DELTA_MAX:
        raise Malformed(f"a wrapper has the offsets {records[0].offset} to {records[-1].offset}")
    records = [record for record in records if keep(record)]
    if not records:
        return None
    return build_batch(
        records,
        base_offset=records[0].offset,
        compression=run[0].compression if packed else 0,
        timestamp_type=run[0].timestamp_type,
    )
