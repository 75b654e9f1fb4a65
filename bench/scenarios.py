"""The scenarios: one row each. Sizes are of record values in bytes; `limit` says whether the bare loop can
run it.
"""

from typing import NamedTuple


class Produce(NamedTuple):
    name: str
    partitions: int
    connections: int
    in_flight: int
    records: int
    value_size: int
    acks: int = 1
    rate_mb_per_s: float = 0  # 0: as fast as it goes
    keyed: bool = False
    quick: bool = True  # part of the default run


class Fetch(NamedTuple):
    name: str
    partitions: int
    connections: int
    max_bytes: int
    quick: bool = True


# fmt: off
PRODUCE = (
    Produce("produce 64 KB batches of 1 KB",     4,   4,  5, 64,   1000),
    Produce("produce 1 MB batches of 1 KB",      4,   4,  5, 1000, 1000),
    Produce("produce 16 KB batches of 100 B",    4,   4,  5, 150,  100),
    Produce("produce 1 record of 100 B a batch", 16, 16,  5, 1,    100),
    Produce("produce 2 KB batches, 50 conn.",    16, 50,  2, 2,    1000),
    Produce("produce 60 MB/s held, 50 conn.",    16, 50,  2, 16,   1000, rate_mb_per_s=60),
    Produce("produce 64 KB, acks=all",           4,   4,  5, 64,   1000, acks=-1, quick=False),
    Produce("produce 64 KB, keyed",              4,   4,  5, 64,   1000, keyed=True, quick=False),
    Produce("produce 64 KB, 100 partitions",     100, 10, 5, 64,   1000, quick=False),
)
FETCH = (
    Fetch("fetch 64 KB responses", 4, 4, 64 << 10),
    Fetch("fetch 1 MB responses",  4, 4, 1 << 20),
)
# fmt: on
