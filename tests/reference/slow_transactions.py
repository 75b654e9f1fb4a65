"""A log's transactions, found by a walk over all of its batches: the twin of _native/log/transactions.pyx."""

from collections.abc import Iterable

from kafkad.protocol.records import Batch

ABORT = 0


def _kind(batch: Batch) -> int:
    return int.from_bytes(batch.records()[0].key[2:4], "big")


def transactions(batches: Iterable[Batch]) -> list[list[int]]:
    """[producer id, first offset, offset of the marker or -1, its kind or -1, the first offset of the oldest
    that is open then, or what is behind the marker], by first offset."""
    running: dict[int, list[int]] = {}
    found = []
    for batch in batches:
        if batch.is_control:
            if (ended := running.pop(batch.producer_id, None)) is not None:
                others = [other[1] for other in running.values()]
                ended[2:] = batch.base_offset, _kind(batch), min(others, default=batch.base_offset + 1)
        elif batch.is_transactional and batch.producer_id not in running:
            running[batch.producer_id] = [batch.producer_id, batch.base_offset, -1, -1, -1]
            found.append(running[batch.producer_id])
    return found


def last_stable_offset(batches: Iterable[Batch], high_watermark: int, log_start: int) -> int:
    """Where the oldest transaction begins that is open, or whose marker is not below the high watermark."""
    for _, first, marker, *_ in transactions(batches):
        if not 0 <= marker < high_watermark:
            return min(max(first, log_start), high_watermark)
    return high_watermark


def aborted(batches: Iterable[Batch]) -> list[tuple[int, int, int, int]]:
    """(producer id, first offset, offset of the marker, last stable offset), as an index of them has it."""
    found = [(txn[0], txn[1], txn[2], txn[4]) for txn in transactions(batches) if txn[3] == ABORT]
    return sorted(found, key=lambda txn: txn[2])


def markers(batches: Iterable[Batch]) -> int:
    return sum(batch.is_control for batch in batches)
