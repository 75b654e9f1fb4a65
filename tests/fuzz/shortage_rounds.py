"""Rounds of `test_shortages`, a script: one log, random operations, a model of what was acknowledged.

python -m tests.fuzz.shortage_rounds <control file> <directory> <first seed> <seconds>"""

import gc
import logging
import random
import shutil
import sys
import time
from pathlib import Path

from kafkad.log import flusher, shortages
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, KafkaError, Malformed
from kafkad.protocol.records import Batch
from tests.shortages import FILES, GROW, MAP, NAME, OPEN, WRITE, Shortages
from tests.unit.log_world import LogWorld, batch, idempotent, topic_config

KINDS = (FILES, FILES, FILES, OPEN, WRITE, NAME | WRITE | GROW, MAP | OPEN)


class Round:
    def __init__(self, switch: Shortages, root: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.switch = switch
        self.synced = self.chance.random() < 0.5
        shutil.rmtree(root / "t-0", ignore_errors=True)
        self.world = LogWorld(
            root,
            topic_config(
                segment_bytes=self.chance.choice((1_000, 1_500, 6_000)),
                index_interval_bytes=self.chance.choice((0, 150)),
                segment_index_bytes=self.chance.choice((240, 10 << 10)),
                retention_bytes=self.chance.choice((-1, 2_000)),
                retention_ms=-1,
                file_delete_delay_ms=0,
                flush_messages=1 if self.synced else (1 << 63) - 1,
            ),
        )
        self.acknowledged: dict[int, bytes] = {}  # base offset -> batch, as it was acknowledged
        self.waiting: dict[int, bytes] = {}  # in the log, and not acknowledged yet
        self.sequence = 0  # the next one, and where its last batch is
        self.newest = -1
        self.end = self.high = self.start = 0
        self.clock_ms = 1_000
        self.switch_is_on = False

    def begin(self) -> None:
        self.switch.begin(
            self.chance.choice((0.02, 0.2, 0.6)), self.chance.choice(KINDS), self.chance.getrandbits(32) or 1
        )

    # -- what is done --------------------------------------------------------------------------------------

    def append(self) -> None:
        self.clock_ms += self.chance.randrange(3)
        count = self.chance.randrange(1, 4)
        if self.chance.random() < 0.5:
            data = batch(count, timestamp=self.clock_ms, size=self.chance.randrange(200))
            number = None
        else:
            data = idempotent(self.sequence, count, timestamp=self.clock_ms)
            number = self.sequence + count
        log, end = self.world.log, self.world.log.end_offset
        try:
            result = log.append_client(data, self.clock_ms)
        except KafkaError:
            assert log.end_offset == end, "an append that was refused is in the log"
            raise
        assert (result.base_offset, result.end_offset) == (end, end + count), "an offset is used twice"
        if number is not None:
            self.sequence, self.newest = number, end
        self.waiting[end] = bytes(data)

    def duplicate(self) -> None:
        if self.sequence and self.newest >= self.world.log.log_start_offset:  # else it may be forgotten
            log, end = self.world.log, self.world.log.end_offset
            data = idempotent(self.sequence - 1, 1, timestamp=1)
            try:
                log.append_client(data, self.clock_ms)
            except KafkaError as refused:
                assert refused.code in (KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, 45, 46), refused
            assert log.end_offset == end, f"a retry of what is at {self.newest} was appended again: {log}"

    def settle(self) -> None:
        self.world.scheduler.run(self.chance.choice((0, 0, 100, 1_000, 10_000)))
        for _ in range(3):
            self.world.scheduler.work()
            self.world.scheduler.run()

    def verify(self) -> None:
        """All that was acknowledged is there, as it was."""
        log = self.world.log
        bounds = (log.log_start_offset, log.last_stable_offset, log.high_watermark, log.end_offset)
        assert list(bounds) == sorted(bounds), bounds
        assert log.end_offset >= self.end and log.high_watermark >= self.high, "LEO or HW went back"
        assert log.log_start_offset >= self.start, "log start went back"
        self.start, self.end, self.high = log.log_start_offset, log.end_offset, log.high_watermark
        for base in [base for base in self.waiting if base < log.high_watermark]:
            self.acknowledged[base] = self.waiting.pop(base)
        for base in [base for base in self.acknowledged if base < log.log_start_offset]:
            del self.acknowledged[base]

    def read_all(self) -> None:
        log = self.world.log
        found = {}
        expected = None
        for data in log.batches(log.log_start_offset, log.end_offset):
            each = Batch(data)
            assert each.is_intact()
            assert expected is None or each.base_offset == expected, "a hole"
            expected = each.last_offset + 1
            found[each.base_offset] = bytes(data)
        for base, data in self.acknowledged.items():
            assert found.get(base) == data, (
                f"the batch at {base} was acknowledged and is lost: {log} {log.segments}"
            )

    def seek(self) -> None:
        log = self.world.log
        base = self.chance.choice(sorted(self.acknowledged)) if self.acknowledged else None
        if base is not None and base >= log.log_start_offset:
            timestamp = Batch(self.acknowledged[base]).max_timestamp
            found = log.offset_for_timestamp(timestamp)
            assert found is not None and found.offset < base + 4, (
                f"{timestamp} is at {base}, a seek says {found}"
            )

    def reopen(self, *, clean: bool) -> None:
        """A start in the shortage may be refused; nothing is lost by it."""
        if clean:
            try:
                self.world.log.close()
            except KafkaError:
                clean = False
        point = self.world.log.recovery_point
        start = self.world.log.log_start_offset
        self.world.scheduler = type(self.world.scheduler)()
        gc.collect()
        for _ in range(2):
            try:
                self.world.open(clean=clean, recovery_point=point, log_start_offset=start)
                break
            except (OSError, KafkaError, Malformed) as refused:
                assert self.switch_is_on, f"a start without a shortage: {refused}"
                self.off()
        log = self.world.log
        assert log.end_offset == self.end, f"{self.end} was LEO, after a start {log.end_offset} is"
        log.native.advance_high_watermark(self.high)  # which its checkpoint would say

    def off(self) -> None:
        self.switch.end()
        self.switch_is_on = False

    def retention(self) -> None:
        self.world.log.apply_retention(self.clock_ms)

    def delete_records(self) -> None:
        log = self.world.log
        self.world.log.delete_records(self.chance.randrange(log.log_start_offset, log.high_watermark + 1))

    # -- a round -------------------------------------------------------------------------------------------

    def step(self) -> None:
        log = self.world.log
        steps = [
            *[self.append] * 8, self.duplicate, self.settle, self.settle, self.retention, self.seek,
            log.release_idle, log.flush, self.read_all,
        ]  # fmt: skip
        if self.chance.random() < 0.05:
            steps = [self.delete_records, lambda: self.reopen(clean=False), lambda: self.reopen(clean=True),
                     lambda: log.roll(self.clock_ms) if log.native.active_size else None]  # fmt: skip
        try:
            self.chance.choice(steps)()
        except KafkaError as refused:
            assert self.switch_is_on and refused.code == KAFKA_STORAGE_ERROR, refused
        except OSError as raw:
            raise AssertionError("not a KafkaError") from raw
        assert not self.world.log.closed, "a shortage took the log offline"
        self.verify()

    def run(self) -> None:
        for _ in range(self.chance.randrange(2, 5)):
            self.switch_is_on = True
            self.begin()
            for _ in range(self.chance.randrange(60)):
                self.step()
            self.off()
            for _ in range(self.chance.randrange(15)):
                self.step()
            self.recover()

    def recover(self) -> None:
        """The shortage is over: everything works again, by itself."""
        self.off()
        for _ in range(4):
            self.world.scheduler.run(flusher.RETRY_MS_MAX)
            self.world.scheduler.settle()
        log = self.world.log
        assert log.high_watermark == log.end_offset, "an ack never comes"
        self.append()
        self.world.scheduler.settle()
        self.verify()
        log.roll(self.clock_ms)
        self.append()
        self.world.scheduler.settle()
        self.retention()
        self.verify()
        self.read_all()
        self.seek()
        log.flush()
        assert log.recovery_point == log.end_offset
        self.reopen(clean=self.chance.random() < 0.5)
        self.read_all()
        self.verify()


def main() -> None:
    control, root, first, seconds = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    flusher.BLOCKING_TRIES_S = (0.0,)  # type: ignore[misc]
    shortages.INTERVAL_S = 1e9
    switch = Shortages(Path(control))
    seed, end = int(first), time.monotonic() + float(seconds)
    while time.monotonic() < end:
        try:
            Round(switch, Path(root), seed).run()
        except BaseException as trouble:
            switch.end()
            raise AssertionError(f"KAFKAD_FUZZ_SEED={seed}") from trouble
        seed += 1
    print(seed - int(first), switch.failed)


if __name__ == "__main__":
    main()
