"""Plans of the Spark source: limits shared among partitions, ranges and what of them is lost, ranges into
tasks.
"""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkad.spark import planning, reading
from kafkad.spark.planning import Range

WHERE = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5))
OFFSETS = st.dictionaries(WHERE, st.integers(0, 1 << 60), min_size=1)


def flat(**topics):
    return {(topic, p): offset for topic, offsets in topics.items() for p, offset in enumerate(offsets)}


def test_a_limit_is_shared_by_backlog_and_starves_nobody():
    start, latest = flat(t=[0, 0, 0]), flat(t=[1000, 100, 1])
    end = planning.prorate(start, latest, {}, records_max=110)
    assert end == flat(t=[99, 9, 1])  # of 1101: 99.9, 9.99 and 0.0999, down but never to none


def test_a_limit_above_the_backlog_takes_all_of_it():
    start, latest = flat(t=[5, 7]), flat(t=[10, 7])
    assert planning.prorate(start, latest, {}, records_max=5) == latest


def test_a_new_partition_counts_from_its_earliest_offset():
    end = planning.prorate(flat(t=[0]), flat(t=[100, 300]), {("t", 1): 200}, records_max=20)
    assert end == flat(t=[10, 210])


def test_bytes_bound_a_batch_by_what_offsets_weigh():
    weights = {("t", 0): 1000.0, ("t", 1): 10.0}
    end = planning.prorate(flat(t=[0, 0]), flat(t=[1000, 1000]), {}, bytes_max=101_000, weights=weights)
    assert end == flat(t=[100, 100])  # a tenth of the million bytes and of the ten thousand


def test_an_offset_that_fell_back_stays_for_the_loss_to_be_told():
    assert planning.prorate(flat(t=[50, 0]), flat(t=[40, 100]), {}, records_max=10) == flat(t=[40, 10])


@settings(deadline=None)
@given(OFFSETS, OFFSETS, st.integers(1, 1 << 40))
def test_a_batch_stays_between_start_and_latest(start, latest, limit):
    end = planning.prorate(start, latest, {}, records_max=limit)
    assert end.keys() == latest.keys()
    read = 0
    for where, last in latest.items():
        first = start.get(where, 0)
        assert min(first, last) <= end[where] <= last
        assert end[where] > first or last <= first
        read += max(0, end[where] - first)
    assert read <= limit + len(latest)


def test_losses_are_told_and_what_is_left_is_read():
    ranges, losses = planning.ranges_of(
        flat(gone=[5], t=[10, 20]), flat(new=[30, 40], t=[15, 19]), {("new", 0): 3}
    )
    assert ranges == [Range("new", 0, 3, 30), Range("t", 0, 10, 15)]
    assert losses == [
        "cannot find the earliest offset of new-1: deleted meanwhile",
        "added partition new-0 starts from 3 instead of 0",
        "gone-0 is gone",
        "partition t-1's offset was changed from 20 to 19",
    ]


def test_nothing_is_lost_where_nothing_changed():
    assert planning.ranges_of(flat(t=[1, 2]), flat(t=[1, 2]), {}) == ([], [])


def test_ranges_are_split_by_bytes():
    ranges = [Range("t", 0, 0, 1000), Range("t", 1, 0, 1000), Range("t", 2, 0, 1000)]
    pieces = planning.split(ranges, weights={("t", 0): 100.0, ("t", 1): 1.0}, bytes_max=40_000)
    assert [piece.length for piece in pieces] == [334, 333, 333, 1000, 1000]


def test_min_partitions_splits_the_largest_most():
    ranges = [Range("t", 0, 0, 9000), Range("t", 1, 0, 900), Range("t", 2, 0, 100)]
    pieces = planning.split(ranges, pieces_min=10)
    assert len(pieces) == 10
    assert [sum(piece.partition == p for piece in pieces) for p in range(3)] == [8, 1, 1]


def test_min_partitions_cannot_make_more_tasks_than_offsets():
    assert len(planning.split([Range("t", 0, 7, 10)], pieces_min=50)) == 3


def test_no_task_has_more_records_than_it_may():
    pieces = planning.split([Range("t", 0, 0, 1001)], records_max=100)
    assert len(pieces) == 11 and max(piece.length for piece in pieces) <= 100


def test_a_plan_has_a_greatest_number_of_tasks():
    pieces = planning.split([Range("t", 0, 0, 1 << 40)], records_max=1)
    assert len(pieces) <= planning.PIECES_MAX and sum(piece.length for piece in pieces) == 1 << 40


@settings(deadline=None)
@given(
    st.dictionaries(WHERE, st.tuples(st.integers(0, 1 << 50), st.integers(0, 2000)), max_size=4),
    st.none() | st.integers(1, 10_000),
    st.none() | st.integers(1, 2000),
    st.none() | st.integers(1, 200),
    st.floats(0.0, 1e6),
)
def test_pieces_cover_each_range_without_hole_or_overlap(given_ranges, bytes_max, records_max, least, weight):
    ranges = [Range(*where, start, start + count) for where, (start, count) in given_ranges.items()]
    weights = dict.fromkeys(given_ranges, weight)
    pieces = planning.split(
        ranges, weights=weights, bytes_max=bytes_max, records_max=records_max, pieces_min=least
    )
    assert all(piece.length > 0 for piece in pieces)
    for whole in ranges:
        at = whole.start
        for piece in (piece for piece in pieces if piece.where == whole.where):
            assert piece.start == at
            at = piece.end
        assert at == whole.end
    if records_max is not None:
        assert all(piece.length <= records_max for piece in pieces)
    if least is not None:
        assert len(pieces) >= min(least, sum(each.length for each in ranges))


@given(st.lists(st.integers(1, 800), max_size=20))
def test_small_ranges_share_a_task_and_none_is_left_out(counts):
    ranges = [Range("t", p, 7, 7 + count) for p, count in enumerate(counts)]
    packed = [getattr(task, "parts", [task]) for task in reading.tasks(ranges, {}, packed=True)]
    assert [Range(p.topic, p.partition, p.start, p.end) for parts in packed for p in parts] == ranges
    sizes = [sum(p.end - p.start for p in parts) for parts in packed]
    assert all(
        size <= reading.SMALL_TASK_OFFSETS or len(parts) == 1
        for size, parts in zip(sizes, packed, strict=True)
    )
    assert all(a + b > reading.SMALL_TASK_OFFSETS for a, b in itertools.pairwise(sizes))
    assert len(reading.tasks(ranges, {})) == len(ranges)
