"""Which log is cleaned next and how far, who may clean, and what becomes of a cleaning that fails."""

import asyncio
import errno
import logging
import os
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from kafkad.log import cleaner, cleaning, truncation
from kafkad.log.cleaning import LogCleaner, Throttle
from kafkad.log.cleaning_choice import choice_of
from kafkad.log.cleaning_permits import Permits
from kafkad.log.filenames import CLEANED, SWAP
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.records import Record, build_batch, read_batches
from kafkad.server.scheduler import LoopScheduler
from tests.unit.log_world import LogWorld, topic_config

NOW = 1_700_000_000_000
HOUR = 3_600_000
SEGMENTS = 6


def compacted(tmp_path, **config):
    """A log of one segment for each hour, the last of them active, all of it on the disk."""
    config = {"cleanup_policy": ("compact",), "min_cleanable_dirty_ratio": 0.5, **config}
    world = LogWorld(tmp_path, topic_config(**config))
    fill(world)
    return world


def fill(world, segments=SEGMENTS, keys=4):
    for hour in range(segments):
        if hour:
            world.log.roll(world.now_ms)
        for number in range(10):
            record = Record(b"%d" % (number % keys), b"x" * 100, timestamp=NOW + hour * HOUR + number)
            world.log.append(build_batch([record]), world.now_ms)
    world.log.flush()


def test_all_segments_but_the_active_one_are_dirty_at_first(tmp_path):
    log = compacted(tmp_path).log
    choice = choice_of(log, NOW)
    assert [base for base, _ in choice.segments] == [0, 10, 20, 30, 40]
    assert (choice.first_dirty, choice.first_uncleanable, choice.dirty_ratio) == (0, 50, 1.0)
    log.update_config(topic_config(cleanup_policy=("delete",)))
    assert choice_of(log, NOW) is None


@pytest.mark.parametrize(("cleaned", "ratio"), [(0, 1.0), (10, 0.8), (20, 0.6), (30, None), (50, None)])
def test_a_log_is_cleaned_when_enough_of_it_is_dirty(tmp_path, cleaned, ratio):
    """Kafka wants more than min.cleanable.dirty.ratio."""
    log = compacted(tmp_path).log
    log.cleaned_below = cleaned
    choice = choice_of(log, NOW)
    assert (choice.dirty_ratio if choice else None) == (ratio and pytest.approx(ratio))
    log.update_config(topic_config(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.4))
    assert (choice_of(log, NOW) is not None) == (cleaned < 40 and cleaned != 30)


def test_a_checkpoint_outside_of_the_log_says_nothing(tmp_path):
    log = compacted(tmp_path).log
    log.cleaned_below = 1_000
    assert choice_of(log, NOW).first_dirty == 0
    log.set_log_start(7)
    log.cleaned_below = 3
    assert choice_of(log, NOW).first_dirty == 7


def test_young_records_wait_for_the_lag(tmp_path):
    log = compacted(tmp_path, min_compaction_lag_ms=2 * HOUR).log
    newest = NOW + 2 * HOUR + 9  # of the third segment
    assert choice_of(log, newest + 2 * HOUR).first_uncleanable == 30
    assert choice_of(log, newest + 2 * HOUR - 1).first_uncleanable == 20
    assert choice_of(log, NOW) is None


def test_records_without_timestamps_wait_for_the_lag_since_the_last_write(tmp_path):
    world = LogWorld(tmp_path, topic_config(cleanup_policy=("compact",), min_compaction_lag_ms=HOUR))
    for _ in range(2):
        world.append(build_batch([Record(b"k", b"v", timestamp=-1)]))
        world.log.roll(world.now_ms)
    world.scheduler.settle()
    written = [world.path(base, ".log").stat().st_mtime_ns // 1_000_000 for base in (0, 1)]
    assert choice_of(world.log, min(written) + HOUR - 1) is None
    assert choice_of(world.log, max(written) + HOUR).first_uncleanable == 2


def test_old_records_are_cleaned_whatever_the_ratio_says(tmp_path):
    log = compacted(tmp_path, max_compaction_lag_ms=10 * HOUR).log
    log.cleaned_below = 40
    assert choice_of(log, NOW + 14 * HOUR) is None
    assert choice_of(log, NOW + 14 * HOUR + 1).first_dirty == 40


def test_a_compacted_log_rolls_in_time_for_its_lag(tmp_path):
    """A record in an active segment cannot be cleaned."""
    world = LogWorld(tmp_path, topic_config(cleanup_policy=("compact",), max_compaction_lag_ms=1_000))
    for now in (1_000, 1_900, 2_100):
        world.log.append(build_batch([Record(b"k", b"v", timestamp=now)]), now)
    assert [base for base, _ in world.log.segments] == [0, 2]


def test_what_is_not_on_the_disk_is_not_cleaned(tmp_path):
    log = compacted(tmp_path).log
    log.native.set_flushed(34)
    assert choice_of(log, NOW).first_uncleanable == 30


def test_an_open_transaction_is_not_cleaned(tmp_path):
    world = compacted(tmp_path)
    batch = build_batch(
        [Record(b"k", b"v", timestamp=NOW)],
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    world.log.append(batch, world.now_ms)
    fill(world, 3)
    assert world.log.last_stable_offset == 60 and choice_of(world.log, NOW).first_uncleanable == 50


def test_permits_are_of_all_processes_and_go_with_them():
    permits = Permits()
    assert permits.take(2) == 0
    told, tell = os.pipe()
    go, gone = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"%r %r" % (permits.take(1), permits.take(2)))
        os.close(gone)
        os.read(go, 1)
        os._exit(0)
    try:
        assert os.read(told, 100) == b"None 1"
        assert permits.take(2) is None
        permits.give_back(0)
        assert permits.take(2) == 0
    finally:
        os.close(gone)
        os.close(go)
        os.waitpid(child, 0)
    assert permits.take(2) == 1


def test_a_thread_is_kept_to_its_rate_which_may_change():
    clock = SimpleNamespace(now=0.0, waited=[])

    def wait(seconds):
        clock.waited.append(seconds)
        clock.now += seconds

    rate = [1_000.0]
    throttle = Throttle(lambda: rate[0], lambda: clock.now, wait)
    for _ in range(10):
        throttle.take(500)
    assert clock.now == pytest.approx(5.0)
    rate[0] = 1e308
    throttle.take(1 << 40)
    assert clock.now == pytest.approx(5.0)


class Cleaners:
    """A cleaner of some logs, on a real loop."""

    def __init__(self, *logs, busy=lambda log: False):
        self.loop = asyncio.new_event_loop()
        self.kept = []
        self.fatal = []
        self.config = SimpleNamespace(
            log_cleaner_backoff_ms=10,
            log_cleaner_threads=1,
            log_cleaner_dedupe_buffer_size=4 << 20,
            log_cleaner_io_buffer_load_factor=0.9,
            log_cleaner_io_max_bytes_per_second=1e308,
        )
        self.scheduler = LoopScheduler(self.loop)
        self.permits = Permits()
        dirs = SimpleNamespace(cleaner_permits=self.permits, checkpoint_work=self.checkpoint_work)
        clock = SimpleNamespace(now_ms=lambda: NOW)
        self.cleaner = LogCleaner(
            lambda: self.config, lambda: logs, dirs, clock, self.scheduler, busy, self.fatal.append
        )
        for log in logs:
            log.scheduler = self.scheduler

    def checkpoint_work(self, log, name):
        value = log.recovery_point if name.startswith("recovery") else log.cleaned_below
        self.kept.append((log, name, value))
        return lambda: value

    def run(self, until, timeout=30):
        async def wait():
            while not until():
                await asyncio.sleep(0.005)

        self.cleaner.start()
        self.scheduler.begin()
        try:
            self.loop.run_until_complete(asyncio.wait_for(wait(), timeout))
        finally:
            self.cleaner.stop()
            self.scheduler.close()
        assert self.fatal == []
        cleaners = [thread for thread in threading.enumerate() if thread.name == "kafkad-cleaner"]
        for thread in cleaners:
            thread.join(10)  # one whose cleaning has ended may not have returned so far
        assert not any(thread.is_alive() for thread in cleaners)


def keys(log):
    return [
        record.key
        for data in log.batches(0, log.end_offset)
        for batch in read_batches(data)
        for record in batch.records()
    ]


def test_dirty_logs_are_cleaned_one_after_the_other_and_their_checkpoints_kept(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    worlds = [compacted(tmp_path / name) for name in "ab" if not (tmp_path / name).mkdir()]
    logs = [world.log for world in worlds]
    cleaners = Cleaners(*logs)
    before = [len(keys(log)) for log in logs]
    cleaners.run(lambda: all(log.cleaned_below == 50 and not log.being_cleaned for log in logs))
    assert before == [60, 60]
    for log in logs:
        assert sorted(keys(log)[:4]) == [b"0", b"1", b"2", b"3"] and len(keys(log)) == 14
        assert log.end_offset == 60
    assert [name for _, name, _ in cleaners.kept].count(cleaning.CLEANER_OFFSETS) == 2
    assert "is clean up to offset 50: 4 of 50 records" in caplog.text
    assert cleaners.permits.take(1) == 0


def test_a_log_that_cannot_be_cleaned_is_left_and_the_others_are_cleaned(tmp_path, caplog):
    worlds = [compacted(tmp_path / name) for name in "ab" if not (tmp_path / name).mkdir()]
    bad, good = (world.log for world in worlds)
    path = worlds[0].path(10, ".log")
    data = bytearray(path.read_bytes())
    data[66] ^= 0xFF  # within a record
    path.write_bytes(data)
    cleaners = Cleaners(bad, good)
    cleaners.run(lambda: good.cleaned_below == 50 and "cannot be cleaned" in caplog.text)
    assert caplog.text.count("cannot be cleaned") == 1 and bad.cleaned_below == 0 and not bad.closed
    assert not [name for name in worlds[0].names() if name.endswith((CLEANED, SWAP))]
    assert len(keys(good)) == 14


def test_a_full_disk_is_tried_again(tmp_path, monkeypatch, caplog):
    log = compacted(tmp_path).log
    failures = iter([errno.ENOSPC, errno.ENOSPC])
    write_new = cleaner.write_new

    def writes(path, data, *, sync):
        if (failure := next(failures, None)) is not None:
            raise OSError(failure, os.strerror(failure))
        write_new(path, data, sync=sync)

    monkeypatch.setattr(cleaner, "write_new", writes)
    cleaners = Cleaners(log)
    cleaners.run(lambda: log.cleaned_below == 50)
    assert "cleaning it" in caplog.text and not log.closed and len(keys(log)) == 14


def test_a_broken_disk_takes_its_directory_offline(tmp_path, monkeypatch):
    log = compacted(tmp_path).log
    offline = []
    log.on_offline = lambda log, error: offline.append(error)

    def writes(path, data, *, sync):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(cleaner, "write_new", writes)
    Cleaners(log).run(lambda: offline)
    assert log.closed


def test_an_exchange_that_fails_after_its_announcement_is_taken_back(tmp_path, monkeypatch, caplog):
    """Otherwise a start would do it, however much the log has changed since."""
    world = compacted(tmp_path)
    log, failures = world.log, []

    def syncs(directory):
        failures.append(directory)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(cleaning, "sync_directory", syncs)
    Cleaners(log).run(lambda: failures and not log.being_cleaned)
    assert not [name for name in world.names() if name.endswith((CLEANED, SWAP))]
    before = keys(log)
    log.truncate_to(25)
    world.crash(recovery_point=25)
    assert world.log.end_offset == 25 and keys(world.log) == before[:25]


def test_an_announcement_that_fails_half_way_is_taken_back_while_it_is_known_to_be_incomplete(
    tmp_path, monkeypatch
):
    """A kill later would leave .swap files without .cleaned ones: the next start would put them in place."""
    world = compacted(tmp_path)
    log, seen = world.log, []
    replace, discard = os.replace, cleaner._discard

    def replaces(source, to):
        if str(to).endswith(".log" + SWAP):  # the last one
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        replace(source, to)

    def discards(directory, base):
        seen.append([name for name in world.names() if name.endswith(SWAP)])
        discard(directory, base)

    monkeypatch.setattr(os, "replace", replaces)
    monkeypatch.setattr(cleaner, "_discard", discards)
    Cleaners(log).run(lambda: seen and not log.being_cleaned)
    assert seen[0] == []
    assert not [name for name in world.names() if name.endswith((CLEANED, SWAP))]


def test_a_stop_ends_a_cleaning_that_waits(tmp_path):
    log = compacted(tmp_path).log
    cleaners = Cleaners(log)
    cleaners.config.log_cleaner_io_max_bytes_per_second = 1.0
    cleaners.run(lambda: log.being_cleaned)
    assert log.cleaned_below == 0


def test_a_log_that_is_being_read_by_its_files_waits(tmp_path):
    log = compacted(tmp_path).log
    busy = [True]
    asked = []

    def is_busy(log):
        asked.append(log)
        if len(asked) > 5:
            busy[0] = False
        return busy[0]

    Cleaners(log, busy=is_busy).run(lambda: log.cleaned_below == 50)
    assert len(asked) > 5


@pytest.mark.parametrize("whole", [False, True])
def test_a_cleaning_ends_when_its_log_is_cut_and_nothing_comes_back(tmp_path, monkeypatch, whole):
    """The files that the cleaner announced would be put in place by the next start."""
    world = compacted(tmp_path)
    log, announced = world.log, cleaner.rename_to_swap
    base = log.segments[2][0]

    def cut_after(cleaned):
        announced(cleaned)
        assert list(world.directory.glob("*.swap"))
        log.truncate_fully_and_start_at(7) if whole else log.truncate_to(base)

    monkeypatch.setattr(cleaner, "rename_to_swap", cut_after)
    cleaners = Cleaners(log, busy=lambda log: log.cuts > 0)  # this cleaning is the only one
    cleaners.run(lambda: log.cuts and not log.being_cleaned)
    assert log.end_offset == (7 if whole else base)
    assert not list(world.directory.glob("*.swap"))
    assert log.cleaned_below == 0
    assert world.crash(log_start_offset=log.log_start_offset).end_offset == log.end_offset


def test_nothing_comes_back_if_a_shortage_makes_the_truncation_of_a_log_wait_until_its_cleaning_has_ended(
    tmp_path, monkeypatch
):
    world = compacted(tmp_path)
    log, announced = world.log, cleaner.rename_to_swap
    base = log.segments[2][0]
    end_cleaning = truncation._end_cleaning

    def ends(log):
        if log.being_cleaned:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        end_cleaning(log)

    def cut_after(cleaned):
        announced(cleaned)
        with suppress(KafkaError):
            log.truncate_to(base)
        assert log.halted

    monkeypatch.setattr(truncation, "_end_cleaning", ends)
    monkeypatch.setattr(cleaner, "rename_to_swap", cut_after)
    Cleaners(log, busy=lambda log: log.cuts > 0).run(lambda: log.cuts and not log.halted)
    assert log.end_offset == base and not log.being_cleaned
    assert not list(world.directory.glob("*.swap"))
    assert world.crash().end_offset == base


def test_retention_leaves_a_log_alone_while_it_is_cleaned(tmp_path):
    world = compacted(tmp_path, cleanup_policy=("compact", "delete"), retention_ms=HOUR)
    world.log.being_cleaned = True
    assert world.log.apply_retention(NOW + 100 * HOUR) == 0
    world.log.being_cleaned = False
    assert world.log.apply_retention(NOW + 100 * HOUR) == SEGMENTS


def test_a_log_that_was_not_flushed_since_a_kill_is_flushed_then_cleaned(tmp_path):
    world = compacted(tmp_path)
    log = world.crash()
    assert log.recovery_point == 0 and choice_of(log, NOW) is None
    Cleaners(log).run(lambda: log.cleaned_below == 50)
    assert len(keys(log)) == 14


def test_who_gets_no_permit_does_not_look(tmp_path):
    log = compacted(tmp_path).log
    asked = []
    cleaners = Cleaners(log, busy=lambda log: bool(asked.append(log)))
    permit = cleaners.permits.take(1)
    turns = count_turns(cleaners)
    cleaners.run(lambda: len(turns) > 3)
    assert not asked and not log.being_cleaned
    cleaners.permits.give_back(permit)


def count_turns(cleaners):
    turns, turn = [], cleaners.cleaner._turn
    cleaners.cleaner._turn = lambda: (turns.append(True), turn())
    return turns


def test_the_search_lets_others_run_after_each_step(tmp_path, monkeypatch):
    monkeypatch.setattr(cleaning, "STEP_S", -1.0)
    worlds = [compacted(tmp_path / name) for name in "abcde" if not (tmp_path / name).mkdir()]
    asked = []
    cleaners = Cleaners(*[world.log for world in worlds], busy=lambda log: bool(asked.append(len(turns))))
    turns = count_turns(cleaners)
    cleaners.run(lambda: all(world.log.cleaned_below == 50 for world in worlds))
    assert asked[:5] == [1, 2, 3, 4, 5]


def test_a_search_that_is_stopped_gives_its_permit_back(tmp_path, monkeypatch):
    monkeypatch.setattr(cleaning, "STEP_S", -1.0)
    worlds = [compacted(tmp_path / name) for name in "ab" if not (tmp_path / name).mkdir()]
    asked = []
    cleaners = Cleaners(*[world.log for world in worlds], busy=lambda log: asked.append(log) or True)
    cleaners.run(lambda: asked)
    assert cleaners.permits.take(1) == 0


def test_what_was_found_is_looked_at_again_before_it_is_cleaned(tmp_path):
    log = compacted(tmp_path).log
    asked = []

    def is_busy(log):
        asked.append(log.being_cleaned)
        return len(asked) == 2

    Cleaners(log, busy=is_busy).run(lambda: log.cleaned_below == 50)
    assert asked[:5] == [False, False, False, False, True]


def test_a_log_that_was_cut_while_it_was_cleaned_is_cleaned_later(tmp_path, monkeypatch, caplog):
    """Its files may have been shorter than expected, which looks like damage."""
    world = compacted(tmp_path)
    log, announced = world.log, cleaner.rename_to_swap
    base = log.segments[3][0]

    def cut_at_first(cleaned):
        if not log.cuts:
            log.truncate_to(base)
            raise ValueError("a segment ends within a batch")
        announced(cleaned)

    monkeypatch.setattr(cleaner, "rename_to_swap", cut_at_first)
    Cleaners(log).run(lambda: log.cleaned_below == 30)
    assert log.end_offset == base and not log.uncleanable
    assert "cannot be cleaned" not in caplog.text


def test_a_cleaned_segment_of_another_size_than_its_indexes_expect_is_not_exchanged(tmp_path, monkeypatch):
    world = compacted(tmp_path)
    before = keys(world.log)

    def longer(cleaning, size):
        for path in world.directory.glob(f"*{CLEANED}"):
            with path.open("ab") as file:
                file.write(b"?")

    monkeypatch.setattr(cleaning._Cleaning, "_progress", longer)
    cleaners = Cleaners(world.log)
    with pytest.raises(AssertionError):  # of `run`
        cleaners.run(lambda: cleaners.fatal)
    assert "bytes instead of" in str(cleaners.fatal[0])
    assert keys(world.log) == before
