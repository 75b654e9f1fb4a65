"""The state of a script of requests (tests/differential_requests.py), and random choices from it."""

import random
from collections.abc import Callable
from typing import Any

from kafkad.api.table import ROWS
from tests.differential import GROUPS, KAFKA_4_FROM, Symbol, edges

INT16, INT32, INT64 = 1 << 15, 1 << 31, 1 << 63
TOPICS = [f"t{number}" for number in range(5)]
STAMPED = "stamped"  # LogAppendTime
MARKED = ("t0", "t1")  # the brokers write markers, with the time of their own clocks
UNPACKED = "unpacked"  # compression.type=uncompressed
COMPACTED = "compacted"
SMALL = "small"  # max.message.bytes=2000
PRODUCERS = 3
TOPIC, BROKER = 2, 4
SERVED = {row.key: (max(row.low, KAFKA_4_FROM.get(row.key, 0)), row.high) for row in ROWS}


class Choices:
    """What the script has made so far: topics, offsets, producers, members, a fetch session."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.partitions = {STAMPED: 1, UNPACKED: 1, COMPACTED: 1, SMALL: 1}
        self.next_offset: dict[tuple[str, int], int] = {}
        self.sequences: dict[tuple[int, str, int], int] = {}
        self.members: dict[str, int] = {}  # a group's joins so far
        self.sessions = 0
        self.session_version = self.session_epoch = 0
        self.session_open = False

    def version(self, key: int) -> int:
        low, high = SERVED[key]
        return self.rng.randint(low, high)

    def topic(self) -> str:
        return edges(self.rng, *self.partitions, rare=("missing", "", "a b", "..", "x" * 250, "é"))

    def writable(self) -> str:
        return "__consumer_offsets" if self.rng.random() < 0.02 else self.topic()

    def existing(self) -> str:
        return self.rng.choice(list(self.partitions))

    def topic_id(self, name: str, zero: bool = True) -> Any:
        """`zero`: the id may be all zeros. Kafka gives a Fetch with such an id no answer, or fails all of
        it."""
        if self.rng.random() < 0.04:
            return self.rng.choice((bytes(16) if zero else b"\1" * 16, b"\xff" * 16))
        return Symbol("topic", name, b"\x11" * 16)

    def partition(self, topic: str) -> int:
        count = self.partitions.get(topic, 1)
        return edges(self.rng, *range(count), rare=(-1, count, 1000, INT32 - 1, -INT32))

    def offset(self, topic: str, partition: int) -> int:
        end = self.next_offset.get((topic, partition), 0)
        return edges(
            self.rng, 0, end, end // 2, max(end - 1, 0), rare=(-1, -2, end + 1, INT64 - 1, -INT64, 1 << 40)
        )

    def epoch(self) -> int:
        return edges(self.rng, -1, -1, 0, rare=(1, 1000, INT32 - 1))

    def group(self) -> str:
        return edges(self.rng, *GROUPS, rare=("", "nogroup", "g" * 300, "é"))

    def some(self, choose: Callable[[], Any], most: int = 3) -> list[Any]:
        return list(dict.fromkeys(choose() for _ in range(self.rng.choice((0, 1, 1, 1, 2, most)))))

    def text(self) -> str:
        return self.rng.choice(("", "a", "meta data", "é", "x" * 100))
