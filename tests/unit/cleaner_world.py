"""Random compacted logs for the tests of the cleaner."""

import os
import random
import struct

from kafkad.protocol.records import Batch, Record, build_batch
from tests.reference import slow_cleaner

NOW = 1_700_000_000_000
HORIZONS = (NOW - 1, NOW, NOW + 1)
CONTROL_KEYS = (b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\2")


class Log:
    """A log of random batches, and what its cleaner would be told of it. `plain`: only what Kafka's own
    recovery takes as it is, by the epochs and transactions in it."""

    def __init__(
        self, random: random.Random, plain: bool = False, horizons: tuple[int, ...] = HORIZONS, now: int = NOW
    ) -> None:
        self.random = random
        self.plain = plain
        self.horizons = horizons
        self.now = now
        self.data = bytearray()
        self.end = 0
        self.open: dict[int, tuple[int, int]] = {}  # producer id -> first offset, epoch
        self.aborted: list[slow_cleaner.Aborted] = []
        self.last: dict[int, tuple[int, int]] = {}
        self.codecs = random.choice([(0,), (0, 1, 2, 3, 4)])

    def add(self, batch: bytes) -> None:
        self.data += batch
        self.end = Batch(batch).last_offset + 1
        if self.random.random() < 0.1:
            self.end += self.random.randrange(1, 50)  # an earlier cleaning left a gap

    def step(self) -> None:
        chance = self.random.random()
        if self.open and chance < 0.25:
            self.mark(self.random.choice(list(self.open)), self.random.choice((0, 1)))
        elif chance < 0.28:
            self.mark(self.random.randrange(8), self.random.choice((0, 1) if self.plain else (0, 1, 2)))
        elif chance < 0.33 and not self.plain:
            self.empty()
        else:
            self.produce()

    def record(self, offset: int) -> Record:
        key: bytes | None = b"k%d" % self.random.randrange(30)
        if self.random.random() < 0.05:
            key = self.random.choice((None, b"", os.urandom(self.random.randrange(40))))
        value = None if self.random.random() < 0.2 else b"v" * self.random.choice((0, 3, 90, 300))
        headers = [("h", self.random.choice((None, b"x")))] * self.random.choice((0, 0, 0, 2))
        return Record(key, value, headers, self.now + self.random.randrange(-9999, 9999), offset)

    def produce(self) -> None:
        count = self.random.choice((1, 2, 5, 15, 16, 17, 40))
        offsets = sorted(self.random.sample(range(count * self.random.choice((1, 1, 2))), count))
        producer = self.random.choice((-1, *range(8)))
        transactional = producer >= 0 and (producer in self.open or self.random.random() < 0.5)
        batch = build_batch(
            [self.record(self.end + offset) for offset in offsets],
            base_offset=self.end,
            producer_id=producer,
            producer_epoch=3 if producer >= 0 else -1,
            base_sequence=self.end if producer >= 0 else -1,
            leader_epoch=0 if self.plain else self.random.randrange(9),
            compression=self.random.choice(self.codecs),
            transactional=transactional,
            timestamp_type=self.random.choice((0, 0, 1)),
        )
        if self.random.random() < 0.3:
            # An earlier cleaning gave it a delete horizon; only its base timestamp changes, and so all times.
            struct.pack_into(">h", batch, 21, struct.unpack_from(">h", batch, 21)[0] | 0x40)
            struct.pack_into(">q", batch, 27, self.random.choice(self.horizons))
            batch = bytearray(slow_cleaner.sealed(batch))
        if transactional and producer not in self.open:
            self.open[producer] = (self.end, 3)
        if producer >= 0:
            self.last[producer] = (Batch(batch).last_offset, 3)
        self.add(bytes(batch))

    def mark(self, producer: int, kind: int) -> None:
        record = Record(CONTROL_KEYS[kind], b"\0\0\0\0\0\1", timestamp=self.now, offset=self.end)
        batch = build_batch(
            [record],
            base_offset=self.end,
            producer_id=producer,
            producer_epoch=3,
            transactional=True,
            control=True,
        )
        if self.random.random() < 0.3:
            struct.pack_into(">h", batch, 21, struct.unpack_from(">h", batch, 21)[0] | 0x40)
            struct.pack_into(">q", batch, 27, self.random.choice(self.horizons))
            batch = bytearray(slow_cleaner.sealed(batch))
        first, _ = self.open.pop(producer, (None, 0)) if kind < 2 else (None, 0)
        if first is not None and kind == 0:
            stable = min((start for start, _ in self.open.values()), default=self.end + 1)
            self.aborted.append((producer, first, self.end, stable))
        self.last.setdefault(producer, (-1, 3 if self.plain else self.random.choice((3, 4))))
        self.add(bytes(batch))

    def empty(self) -> None:
        record = Record(b"k", b"v", timestamp=self.now, offset=self.end + self.random.randrange(9))
        batch = build_batch(
            [record],
            base_offset=self.end,
            producer_id=self.random.randrange(8),
            transactional=self.random.random() < 0.5,
            control=self.random.random() < 0.5,
        )
        self.add(slow_cleaner.empty(Batch(batch)))
