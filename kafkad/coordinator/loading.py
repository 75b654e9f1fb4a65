"""Load a partition of `__consumer_offsets`: batches become groups and offsets.

    feed(bytes) ...            in any thread; keeps the last record of each key (_native/wire/latest_records)
    shard.load_steps()         on the loop, in slices; turns these records into the shard's offsets and groups

Offsets that were committed in a transaction (in a log that JVM Kafka wrote) wait for the transaction's
marker. Of a transactional and a plain record, the later one wins. Transactions without a marker stay open."""

from typing import Any

from kafkad._native.wire.latest_records import LatestRecords
from kafkad.coordinator import records
from kafkad.coordinator.records import OffsetRecord
from kafkad.protocol import compression as codecs
from kafkad.protocol.records import (
    COMMIT,
    DECOMPRESSED_MAX,
    HEADER_SIZE,
    Batch,
    control_kind,
    read_batches,
)

Pending = dict[bytes, tuple[bytes, int]]  # key -> value, offset of the record


class Replay:
    """What was read of a partition so far. One thread at a time."""

    def __init__(self) -> None:
        self.latest = LatestRecords()
        self.open: dict[int, Pending] = {}  # producer id -> its open transaction

    def feed(self, buffer: Any, start_offset: int = 0) -> int:
        """Takes whole batches, except those that end below `start_offset`; returns how many bytes that were.
        The rest is a batch that the buffer's end cuts. Raises Malformed."""
        view = memoryview(buffer).cast("B")
        position = 0
        while True:
            position = self.latest.feed(view, position, start_offset)
            batch = next(read_batches(view[position:]), None)
            if batch is None:
                return position
            self._take_special(batch)
            position += batch.size

    def _take_special(self, batch: Batch) -> None:
        if batch.is_control:
            for record in batch.records():
                self._end_transaction(batch.producer_id, commit=control_kind(record) == COMMIT)
            return
        if not batch.is_transactional:
            data = codecs.decompress(batch.compression, batch.bytes[HEADER_SIZE:], DECOMPRESSED_MAX)
            self.latest.feed_records(data, batch.base_offset, batch.records_count)
            return
        pending = self.open.setdefault(batch.producer_id, {})
        for record in batch.records():
            found = records.read(record.key, record.value)
            if isinstance(found, OffsetRecord) and record.value is not None:
                key = records.offset_key(found.group_id, found.topic, found.partition)
                pending[key] = record.value, record.offset
            elif found is not None and record.key is not None:
                self.latest.put(record.key, record.value, record.offset)

    def _end_transaction(self, producer_id: int, *, commit: bool) -> None:
        for key, (value, offset) in self.open.pop(producer_id, {}).items():
            last = self.latest.last(key)
            if commit and (last is None or offset > last[0]):
                self.latest.put(key, value, offset)

    def unfinished(self) -> list[tuple[int, bytes, bytes, int]]:
        """What open transactions committed: (producer id, key, value, record's offset). A later tombstone
        undoes a commit. To be asked before anything is taken from `latest`."""
        found = []
        for producer_id, pending in self.open.items():
            for key, (value, offset) in pending.items():
                last = self.latest.last(key)
                if last is None or not last[1] or offset > last[0]:
                    found.append((producer_id, key, value, offset))
        return found
