"""What one cleaning makes of a compacted log, record by record: the twin of _native/log/cleaner.pyx."""

from collections.abc import Iterable

from kafkad._native.wire.crc32c import checksum
from kafkad.protocol import compression as codecs
from kafkad.protocol.records import Batch, Record, write_header

LOG_APPEND, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
Aborted = tuple[int, int, int, int]  # producer id, first offset, last offset, last stable offset


class Transactions:
    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self.coming = sorted(set(aborted), key=lambda each: each[1])
        self.aborted: dict[int, Aborted] = {}
        self.observed: set[int] = set()
        self.committed: set[int] = set()
        self.kept: list[Aborted] = []

    def can_discard(self, batch: Batch) -> bool:
        while self.coming and self.coming[0][1] <= batch.last_offset:
            entry = self.coming.pop(0)
            if entry[0] not in self.aborted:
                self.aborted[entry[0]] = entry
                self.observed.discard(entry[0])
        producer = batch.producer_id
        if not batch.is_control:
            if not batch.is_transactional:
                return False
            if producer in self.aborted:
                self.observed.add(producer)
                return True
            self.committed.add(producer)
            return False
        if batch.records_count == 0:
            return True
        key = batch.records()[0].key
        assert key is not None
        kind = int.from_bytes(key[2:4], "big")
        if kind == 0:
            ended = self.aborted.pop(producer, None)
            if ended is None or producer not in self.observed:
                return True
            self.kept.append(ended)
            return False
        if kind == 1:
            seen = producer in self.committed
            self.committed.discard(producer)
            return not seen
        return False


def keys(
    batches: Iterable[Batch], aborted: Iterable[Aborted], start: int, keys_max: int
) -> tuple[dict[bytes, int], int, bool]:
    """Last offset of each key from `start` on, up to which offset that is known, and whether room ran out."""
    transactions = Transactions(aborted)
    found: dict[bytes, int] = {}
    latest = -1
    for batch in batches:
        if not transactions.can_discard(batch) and not batch.is_control:
            for record in batch.records():
                if record.key is not None and record.offset >= start:
                    if len(found) >= keys_max:
                        return found, latest, True
                    found[record.key] = latest = record.offset
        if batch.last_offset >= start:
            latest = max(latest, batch.last_offset)
    return found, latest, False


def clean(
    batches: Iterable[Batch],
    transactions: Transactions,
    found: dict[bytes, int],
    latest: int,
    last_records: dict[int, tuple[int, int]],
    upper: int,
    now_ms: int,
    delete_retention_ms: int,
) -> list[bytes]:
    out = []
    for batch in batches:
        discardable = transactions.can_discard(batch)
        horizon = batch.base_timestamp if batch.attributes & DELETE_HORIZON else None
        discard = discardable and (not batch.is_control or (horizon is not None and horizon <= now_ms))
        stays = batch.last_offset + 1 == upper
        if batch.producer_id >= 0 and batch.producer_id in last_records:
            last_data, epoch = last_records[batch.producer_id]
            if last_data >= 0:
                stays |= batch.last_offset == last_data
            else:
                stays |= batch.is_control and batch.producer_epoch == epoch
        kept: list[Record] = []
        for record in [] if discard or not batch.records_count else batch.records():
            if batch.is_control or record.offset > latest:
                kept.append(record)
            elif record.key is not None and record.offset >= found.get(record.key, -1):
                kept += [record] if record.value is not None or horizon is None or now_ms < horizon else []
        if not kept:
            if stays:
                out.append(empty(batch))
            continue
        tombstones = not batch.is_control and any(record.value is None for record in kept)
        new_horizon = horizon is None and (tombstones or (batch.is_control and discardable))
        if len(kept) == batch.records_count and not new_horizon:
            out.append(bytes(batch.bytes))
        else:
            out.append(rewritten(batch, kept, now_ms + delete_retention_ms if new_horizon else horizon))
    return out


def empty(batch: Batch) -> bytes:
    buffer = bytearray(61)
    attributes = batch.attributes & (LOG_APPEND | TRANSACTIONAL | CONTROL)
    _header(buffer, batch, attributes, -1, batch.max_timestamp, 0)
    return bytes(buffer)


def rewritten(batch: Batch, kept: list[Record], horizon: int | None) -> bytes:
    log_append = batch.attributes & LOG_APPEND
    base = kept[0].timestamp if horizon is None else horizon
    plain = b"".join(
        _encoded(record, record.timestamp - base, record.offset - batch.base_offset) for record in kept
    )
    if batch.compression:
        plain = codecs.compress(batch.compression, plain)
    buffer = bytearray(61) + plain
    attributes = batch.attributes & ~DELETE_HORIZON | (DELETE_HORIZON if horizon is not None else 0)
    largest = batch.max_timestamp if log_append else max(-1, *(record.timestamp for record in kept))
    _header(buffer, batch, attributes, base, largest, len(kept))
    return bytes(buffer)


def sealed(batch: bytearray) -> bytes:
    """With the CRC that its bytes ask for."""
    return bytes(batch[:17]) + checksum(batch[21:]).to_bytes(4, "big") + bytes(batch[21:])


def _varint(value: int) -> bytes:
    left = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes(out) + bytes([left])


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _encoded(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    body = (
        b"\0" + _varint(timestamp_delta) + _varint(offset_delta) + _sized(record.key) + _sized(record.value)
    )
    body += _varint(len(record.headers))
    for name, value in record.headers:
        body += _sized(name.encode()) + _sized(value)
    return _varint(len(body)) + body


def _header(buffer: bytearray, batch: Batch, attributes: int, base: int, largest: int, count: int) -> None:
    write_header(
        buffer,
        base_offset=batch.base_offset,
        leader_epoch=batch.leader_epoch,
        attributes=attributes,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=base,
        max_timestamp=largest,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        records_count=count,
    )
