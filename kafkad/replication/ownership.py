"""The worker that owns a partition: only it appends to the log.

The rule needs no table. Every worker computes the same owner from the topic id and the number of workers,
also after a restart. If the number of workers changes, no data moves, because files belong to the broker. The
partitions of a topic are spread round-robin over the workers, starting at a worker that depends on the
topic."""

from kafkad._native.wire.crc32c import checksum


def owner_of(topic_id: bytes, index: int, workers: int) -> int:
    return (checksum(topic_id) + index) % workers if workers > 1 else 0
