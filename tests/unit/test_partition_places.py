"""Where reads go on (places.pxd): many consumers of one log, each beside a reader that remembers nothing.

Consumers read on from where they were, jump, and take as much or as little as they like, by the owner and by
another worker's reader, while the log grows, rolls, loses its head, is cut and starts anew, with offsets
missing as compaction leaves them. Every answer is compared with one made from the segment files alone."""

import random
import shutil
from typing import NamedTuple

import pytest

from kafkad._native.log.partition import Partition
from kafkad._native.shared.watermarks import WatermarkTable
from kafkad.log.log import Log, whole_batches
from kafkad.log.reader import ReaderLog
from kafkad.protocol.records import build_batch, end_marker, read_batches
from tests.reference.slow_log import cut
from tests.unit.log_world import TOPIC_ID, LogWorld, batch, topic_config

OUT_OF_RANGE = 1
COMMITTED, END = 1, 2  # isolation levels


class Stored(NamedTuple):
    base: int
    last: int
    data: bytes


def stored_segments(world):
    """The batches of each segment, as its file has them."""
    segments = []
    for base, size, _ in world.log.native.segment_rows():
        data = world.path(base, ".log").read_bytes()[:size]
        batches = []
        while data:
            length = int.from_bytes(data[8:12], "big") + 12
            (header,) = read_batches(data[:length])
            batches.append(Stored(header.base_offset, header.last_offset, data[:length]))
            data = data[length:]
        segments.append((base, batches))
    return segments


def slow_read(world, offset, most, first, isolation):
    """(code, bytes): what a Fetch gives, without an index or a memory."""
    native = world.log.native
    bound = (native.high_watermark, native.last_stable_offset, native.end_offset)[isolation]
    if not native.log_start_offset <= offset <= native.end_offset:
        return OUT_OF_RANGE, b""
    segments = stored_segments(world)
    begin = max((base for base, _ in segments if base <= offset), default=0)
    for base, batches in segments:
        wanted = [each.data for each in batches if each.last >= offset and each.base < bound]
        if base < begin or not wanted or offset >= bound:
            continue
        if len(wanted[0]) > most:
            return 0, wanted[0] if first else b""
        return 0, cut(wanted, most)
    return 0, b""


class Shared:
    """A log, and the same log as another worker reads it."""

    def __init__(self, root, **config):
        self.root = root
        self.config = topic_config(**config)
        self.rows = WatermarkTable(16, shared=True)
        self.begin()

    def begin(self):
        self.world = LogWorld.__new__(LogWorld)
        LogWorld.__init__(self.world, self.root, self.config, log=False)
        self.slot = self.rows.allocate()
        self.world.open(row=self.slot)
        self.reader = Partition.reader(
            "t", 0, TOPIC_ID, str(self.world.directory), self.rows.row(self.slot.number), 1
        )
        ReaderLog(self.reader, str(self.world.directory))
        self.sequence = 0

    @property
    def log(self) -> Log:
        return self.world.log

    def again(self):
        """Deleted, and made again under the same name."""
        self.log.close(clean=False)
        self.world.scheduler.settle()
        shutil.rmtree(self.world.directory)
        self.begin()

    def compare(self, offset, most, first=True, isolation=0):
        expected = slow_read(self.world, offset, most, first, isolation)
        for name, partition in ("owner", self.log.native), ("reader", self.reader):
            code, _, _, _, data = partition.try_read(offset, most, first, isolation)
            assert (code, data) == expected, (name, offset, most, first, isolation)
        return expected[1]

    # -- what befalls a log ----------------------------------------------------------------------------------

    def grow(self, chance):
        for _ in range(chance.randrange(1, 6)):
            made = batch(chance.choice([1, 2, 7]), size=chance.choice([10, 500, 9_000, 30_000]))
            if chance.random() < 0.3:  # as a leader whose log was compacted sends it
                made[:8] = (self.log.end_offset + chance.randrange(1, 9)).to_bytes(8, "big")
                self.log.append(made, 0, origin="replica")
            else:
                self.log.append(made, 0)

    def begin_transaction(self, chance):
        if not self.log.native.producers.first_unstable() >= 0:
            self.log.append(
                batch(2, size=9_000, producer_id=7, producer_epoch=0, base_sequence=self.sequence,
                      transactional=True), 0,
            )  # fmt: skip
            self.sequence += 2

    def end_transaction(self, chance):
        if self.log.native.producers.first_unstable() >= 0:
            marker = [end_marker(chance.randrange(2), 0, timestamp=1_000)]
            self.log.append(
                build_batch(marker, producer_id=7, producer_epoch=0, transactional=True, control=True), 0
            )

    def roll(self, chance):
        if self.log.native.active_size:
            self.log.roll(0)

    def lose_the_head(self, chance):
        self.log.delete_records(chance.randrange(self.log.log_start_offset, self.log.high_watermark + 1))
        self.log.apply_retention(1_000)
        self.world.scheduler.run(self.config.file_delete_delay_ms)
        self.world.scheduler.settle()

    def cut(self, chance):
        if self.log.native.producers.first_unstable() < 0:
            end = self.log.end_offset
            self.log.truncate_to(chance.randrange(max(self.log.log_start_offset, end - 40), end + 1))
            self.log.native.settle_high_watermark()

    def start_anew(self, chance):
        if self.log.native.producers.first_unstable() < 0:
            self.log.truncate_fully_and_start_at(self.log.end_offset + chance.randrange(3))

    def idle(self, chance):
        for partition in self.log.native, self.reader:
            partition.release_idle()
            partition.release_idle()

    def restart(self, chance):
        if chance.random() < 0.5:
            self.again()


EVENTS = (
    Shared.grow, Shared.grow, Shared.grow, Shared.grow, Shared.grow, Shared.grow,
    Shared.begin_transaction, Shared.end_transaction, Shared.end_transaction, Shared.roll,
    Shared.lose_the_head, Shared.cut, Shared.start_anew, Shared.idle, Shared.restart,
)  # fmt: skip


class Consumer:
    """Reads on from the end of the last whole batch that it got."""

    def __init__(self, chance):
        self.offset = 0
        self.most = chance.choice([1, 10_000, 40_000, 70_000, 1 << 20])
        self.isolation = chance.choice([0, 0, COMMITTED, END])
        self.first = chance.random() < 0.8

    def fetch(self, shared, chance):
        if chance.random() < 0.1:
            self.offset = chance.randrange(shared.log.log_start_offset, shared.log.end_offset + 2)
        if chance.random() < 0.1:
            self.most = chance.choice([0, 500, 10_000, 40_000, 70_000])
        data = shared.compare(self.offset, self.most, self.first, self.isolation)
        for header in read_batches(whole_batches(data)):
            self.offset = header.last_offset + 1
        if not data and not shared.log.log_start_offset <= self.offset <= shared.log.end_offset:
            self.offset = shared.log.log_start_offset


@pytest.mark.parametrize("seed", range(6))
def test_whoever_reads_on_gets_what_the_files_say(tmp_path, seed):
    chance = random.Random(seed)
    shared = Shared(
        tmp_path,
        segment_bytes=chance.choice([250_000, 400_000]),
        index_interval_bytes=chance.choice([0, 4096, 4096, 50_000]),
        retention_bytes=300_000,
    )
    consumers = [Consumer(chance) for _ in range(chance.choice([3, 30]))]
    for _ in range(120):
        chance.choice(EVENTS)(shared, chance)
        for consumer in chance.sample(consumers, 3):
            for _ in range(chance.randrange(6)):
                consumer.fetch(shared, chance)
    assert shared.log.native.generation > 0


@pytest.mark.parametrize("interval", [0, 4096, 1 << 20])
def test_a_batch_at_a_time_is_found_from_the_start_to_the_end(tmp_path, interval):
    """Also where offsets are missing, before and at the start of a segment."""
    shared = Shared(tmp_path, index_interval_bytes=interval)
    for number in range(30):
        made = batch(2, size=9_000)
        made[:8] = (number * 5).to_bytes(8, "big")
        if number in (10, 20):
            shared.log.roll(0, number * 5 - 2)
        shared.log.append(made, 0, origin="replica")
    for most in (1, 18_200, 20_000, 37_000):
        offset = reads = 0
        while offset < shared.log.end_offset:
            data = shared.compare(offset, most)
            assert shared.compare(offset, most, False) == (data if most > 1 else b"")
            offset = [header.last_offset + 1 for header in read_batches(whole_batches(data))][-1]
            reads += 1
        assert reads == (15 if most > 36_000 else 30), (most, reads)


def test_a_place_is_good_for_whoever_comes_later(tmp_path):
    """Twenty consumers in one another's steps, more than there are places."""
    shared = Shared(tmp_path)
    for _ in range(40):
        shared.log.append(batch(3, size=6_000), 0)
    for behind in range(20):
        for step in range(20):
            shared.compare(max(0, step * 3 - behind), 18_200)
    assert shared.reader.listings == 1


def test_a_cut_inside_of_what_was_read_is_seen_at_once(tmp_path):
    shared = Shared(tmp_path)
    for _ in range(4):
        shared.log.append(batch(2, size=9_000), 0)
    for offset in (0, 2, 4):
        shared.compare(offset, 18_200)
    shared.log.truncate_to(4)
    shared.log.append(batch(1, size=20), 0)
    for _ in range(3):
        shared.log.append(batch(2, size=12_000), 0)
    for offset in range(11):
        for most in (0, 100, 18_200, 24_300, 60_000):
            shared.compare(offset, most)
            shared.compare(offset, most, False)
