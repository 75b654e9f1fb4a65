"""The table of quotas beside its slow twin: Kafka's arithmetic, rows that are found again, taken back and
shared, and workers that die."""

import random

import pytest

from kafkad._native.shared.quota_table import QuotaTable
from tests.reference.slow_quota import SlowRate, pause_ms, rate
from tests.unit.forked import Forked

LIMIT = 1000.0


def entered(*arguments, **options):
    table = QuotaTable(*arguments, **options)
    table.enter(0)
    return table


@pytest.mark.soak
def test_the_rate_and_the_pause_are_those_of_the_slow_twin(seeds):
    for seed in seeds(40, 2000):
        _the_rate_and_the_pause_are_those_of_the_slow_twin(seed)


def _the_rate_and_the_pause_are_those_of_the_slow_twin(seed):
    rng = random.Random(seed)
    workers = rng.choice((1, 1, 2, 4))
    windows, seconds = rng.choice((1, 2, 11, 30)), rng.choice((1, 1, 3))
    table = QuotaTable(workers, windows, seconds)
    cells = [SlowRate(windows, 1000 * seconds) for _ in range(workers)]
    row, now_ms = table.claim(rng.getrandbits(64) | 2, 0), rng.randrange(1, 1 << 40)
    for worker in range(workers):
        table.enter(worker)
    for _ in range(300):
        now_ms += rng.choice((0, 0, 1, 50, 999, 1000, 1001, 5000, 1000 * windows * seconds, 100_000))
        worker = rng.randrange(workers)
        amount = rng.choice((0.0, 1.0, 80.0, 1e4, 1e6, -1.0))
        limit = rng.choice((1.0, 1000.0, 1e5, 1e18))
        table.become(worker)
        cells[worker].add(amount, now_ms)
        assert table.record(row, amount, limit, now_ms) == pytest.approx(
            pause_ms(cells, limit, now_ms), abs=1, rel=1e-9
        )
        assert table.rate(row, now_ms) == pytest.approx(rate(cells, now_ms)[0], abs=1e-6, rel=1e-9)


def test_a_burst_of_ten_windows_passes_and_what_follows_pauses():
    table = entered(1)
    row = table.claim(7, 0)
    assert table.record(row, 10 * LIMIT, LIMIT, 5) == 0
    assert table.record(row, 500, LIMIT, 5) == 500  # half a second's worth too much
    assert table.record(row, 0, LIMIT, 5 + 11_000) == 0  # they are too old by now


def test_a_key_finds_its_row_again_and_others_have_their_own():
    table = entered(2, rows=64)
    found = {key: table.claim(key, 0) for key in range(2, 50)}
    assert len(set(found.values())) == len(found) == table.used()
    assert found == {key: table.claim(key, 1) for key in found}
    assert all(table.holds(row, key) for key, row in found.items())


def test_idle_rows_are_taken_back_when_the_table_is_full_and_busy_ones_stay():
    table = entered(1, rows=16)
    rows = {key: table.claim(key, 0) for key in range(2, 17)}
    table.record(rows[5], 100 * LIMIT, LIMIT, 20_000)
    assert table.record(table.claim(99, 20_000), 1, LIMIT, 20_000) == 0
    assert table.swept == 14
    assert table.holds(rows[5], 5)
    assert not table.holds(rows[6], 6) or rows[6] == table.claim(99, 20_000)
    assert table.claim(5, 20_000) == rows[5]
    assert table.record(rows[5], 0, LIMIT, 20_000) > 0
    assert table.used() == 2


def test_clients_beyond_the_last_row_share_one_and_none_is_unlimited():
    table = entered(1, rows=16)
    rows = [table.claim(key, 0) for key in range(2, 40)]
    assert rows[15:] == [15] * len(rows[15:])
    assert table.shared == len(rows[15:])
    assert table.record(15, 10 * LIMIT, LIMIT, 1) == 0
    assert table.record(15, LIMIT, LIMIT, 1) == 1000  # another one's
    assert table.used() == 15


@pytest.mark.soak
def test_rows_come_and_go_and_every_key_is_found_while_it_is_used(seeds):
    for seed in seeds(10, 300):
        _rows_come_and_go_and_every_key_is_found_while_it_is_used(seed)


def _rows_come_and_go_and_every_key_is_found_while_it_is_used(seed):
    rng = random.Random(seed)
    table, now_ms, fresh = entered(1, rows=32), 0, {}
    for _ in range(2000):
        now_ms += rng.choice((0, 100, 1000, 14_000))
        key = rng.randrange(2, 200)
        row = table.claim(key, now_ms)
        fresh = {k: (r, at) for k, (r, at) in fresh.items() if now_ms - at <= 13_000}
        if key in fresh and row != 31:
            assert row == fresh[key][0]
        if row != 31:
            assert row not in {r for k, (r, _) in fresh.items() if k != key}
            fresh[key] = row, now_ms
    assert table.used() <= 31


def test_the_memory_of_all_rows_is_bounded_whatever_is_configured():
    with pytest.raises(ValueError, match="a quota table has"):
        QuotaTable(1, rows=100)
    table = entered(64, 100_000, 1)
    assert 2 <= table.row_count < 16_384  # 68 GB of address space, of which nothing is touched
    assert table.record(table.claim(5, 0), 1.0, LIMIT, 0) == 0


def test_workers_see_what_the_others_have_counted_and_a_successor_begins_with_nothing():
    table = QuotaTable(2)

    def other(child):
        table.enter(1)
        row = table.claim(77, 0)
        table.record(row, 10 * LIMIT, LIMIT, 100)
        child.tell(row)
        child.hear()

    table.enter(0)
    process = Forked(other)
    row = process.hear()
    assert table.claim(77, 100) == row
    assert table.record(row, LIMIT, LIMIT, 100) == 1000
    process.kill()
    assert table.record(row, 0, LIMIT, 200) > 0  # what it counted is there until it is old
    table.enter(1)
    table.become(0)
    assert table.record(row, 0, LIMIT, 200) == 0


def test_a_worker_that_dies_with_the_lock_frees_it_and_one_that_is_stopped_with_it_holds_up_nobody():
    table = QuotaTable(2)
    table.enter(0)

    def holder(child):
        assert table.lock()
        child.tell()
        child.hear()

    process = Forked(holder)
    process.hear()
    assert table.claim(77, 0) == table.row_count - 1  # the row that many share
    process.kill()
    assert table.claim(77, 0) != table.row_count - 1
    assert table.claim(77, 0) == table.claim(77, 0)
