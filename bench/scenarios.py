"""The scenarios of the native load generator: one row each, by family. Sizes are bytes of record values.

bounds.py, the tables and the plot refer to scenarios by these names. `bound` marks the rows that have a
bound: `--quick` runs only these. `bare` says whether the bare loop can run it.
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
    batches: int = 1  # of one request, each for another partition
    codec: str = ""  # of batches that a library compressed before the run
    bound: bool = False
    bare: bool = True


class Fetch(NamedTuple):
    name: str
    partitions: int
    connections: int
    max_bytes: int
    bound: bool = False


class Mixed(NamedTuple):
    """Producers and consumers at once. `shared`: the consumers are one group and divide the partitions; else
    each of them reads everything. `backlog_mb`: what is there before, and the run ends when it is read.
    """

    name: str
    partitions: int
    producers: int
    consumers: int
    records: int
    value_size: int
    rate_mb_per_s: float = 0
    shared: bool = True
    backlog_mb: int = 0
    in_flight: int = 5


# fmt: off
PRODUCE = (
    #       name                                partitions, connections, in flight, records, value size
    Produce("produce 64 KB batches of 1 KB",      4,   4,  5,   64, 1000, bound=True),
    Produce("produce 1 MB batches of 1 KB",       4,   4,  5, 1000, 1000, bound=True),
    Produce("produce 16 KB batches of 100 B",     4,   4,  5,  150,  100, bound=True),
    Produce("produce 1 record of 100 B a batch", 16,  16,  5,    1,  100, bound=True),
    Produce("produce 2 KB batches, 50 conn.",    16,  50,  2,    2, 1000, bound=True),
    Produce("produce 60 MB/s held, 50 conn.",    16,  50,  2,   16, 1000, rate_mb_per_s=60, bound=True),
)
PARTITIONS = (
    Produce("produce 64 KB, 1 partition",         1,   4,  5,   64, 1000),
    Produce("produce 64 KB, 10 partitions",      10,   4,  5,   64, 1000),
    Produce("produce 64 KB, 100 partitions",    100,   4,  5,   64, 1000),
)
PRODUCERS = (
    Produce("produce 16 KB, 1 producer",         16,   1,  5,   16, 1000),
    Produce("produce 16 KB, 4 producers",        16,   4,  5,   16, 1000),
    Produce("produce 16 KB, 50 producers",       16,  50,  5,   16, 1000),
    Produce("produce 16 KB, 200 producers",      16, 200,  5,   16, 1000),
)
# keys spread records over the partitions: a request of many small batches; without, one batch holds them all
KEYS = (
    Produce("produce 64 records, no keys",       16,   4,  5,   64,  250),
    Produce("produce 64 records, keyed",         16,   4,  5,    4,  250, keyed=True, batches=16),
)
ACKS = (
    Produce("produce 64 KB, acks=0",              4,   4,  5,   64, 1000, acks=0),
    Produce("produce 64 KB, acks=1",              4,   4,  5,   64, 1000, acks=1),
    Produce("produce 64 KB, acks=all",            4,   4,  5,   64, 1000, acks=-1),
)
CODECS = tuple(
    Produce(f"produce 64 records of 1 KB, {codec}", 4, 4, 5, 64, 1000, codec=codec, bare=codec == "none")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd")
)
DISK = (  # on disk, acks=all; with and without the fsync before the ack
    Produce("64 KB batches",                      4,   4,  5,   64, 1000, acks=-1),
    Produce("2 KB batches, 50 conn.",            16,  50,  2,    2, 1000, acks=-1),
)
SCALING = (PRODUCE[0], PRODUCE[2], PRODUCE[3], PRODUCE[4])

FETCH = (
    #     name                                  partitions, connections, bytes of an answer
    Fetch("fetch 64 KB responses",                4,   4, 64 << 10, bound=True),
    Fetch("fetch 1 MB responses",                 4,   4, 1 << 20, bound=True),
    Fetch("fetch 1 MB, 10 consumers of one topic", 4, 10, 1 << 20),
)
TLS_FETCH = tuple(row._replace(name=f"{row.name} over TLS") for row in FETCH if row.bound)
TLS_PRODUCE = tuple(row._replace(name=f"{row.name} over TLS", bare=False) for row in (PRODUCE[0], PRODUCE[3]))
# what others ask while somebody floods the broker; small, so that a wait shows
BESIDE_FLOODS = Produce("20 MB/s held over TLS",       4,   8,  2,    4, 1000, rate_mb_per_s=20, bare=False)
ACLS = Produce("produce 2 KB batches, 50 conn.",      16,  50,  2,    2, 1000, bare=False)
MIXED = (
    #     name                               partitions, producers, consumers, records, value size, MB/s
    Mixed("tail reads at 50 MB/s",                4,   4,  4,   16, 1000, 50),
    Mixed("tail reads at 20 MB/s, 10 consumers of one topic", 4, 4, 10, 16, 1000, 20, shared=False),
    Mixed("producers and consumers together",     4,   4,  4,   64, 1000),
    Mixed("backlog drain beside 60 MB/s",         4,   4,  4,   64, 1000, 60, backlog_mb=1000),
)
# in shape: one topic, batches as a linger of 1 ms makes them of the workload's rate
OPEN_MESSAGING = (
    Mixed("1-topic-16-partitions-1kb, 50,000/s",         16, 1, 1, 50, 1024, 51.2),
    Mixed("1-topic-16-partitions-1kb, max rate",         16, 1, 1, 50, 1024),
    Mixed("1-topic-100-partitions-1kb, 50,000/s",       100, 1, 1, 50, 1024, 51.2),
    Mixed("1-topic-100-partitions-1kb-4p-4c, 200,000/s", 100, 4, 4, 50, 1024, 204.8),
)
# fmt: on
