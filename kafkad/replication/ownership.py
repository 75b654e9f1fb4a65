"""Which worker owns a partition: the only one that appends to it.

The rule needs no table: every worker computes the same answer from what all of them know, so it survives
restarts, and with another number of workers no data moves: a log belongs to the broker, only its writer is a
worker. The partitions of one topic go round the workers; where it begins differs from topic to topic."""

from kafkad._native.wire.crc32c import checksum


def owner_of(topic_id: bytes, index: int, workers: int) -> int:
    return (checksum(topic_id) + index) % workers if workers > 1 else 0
