"""What the checks of a cluster's stories let pass, and what they do not."""

from types import SimpleNamespace

import pytest

from tests.cluster_checker import check_records, odd_batches, renewals
from tests.cluster_transactions import wrong_copies
from tests.unit.log_world import batch


def value(number):
    return b"1:%d:text" % number


def check(numbers, acked=(), renewed=frozenset()):
    """`acked`: offsets of partition 0."""
    records = [value(number) for number in numbers]
    writer = SimpleNamespace(acked={(0, offset): records[offset] for offset in acked}, unplaced=[set()])
    return check_records(records, [writer], 0, renewed)


def test_each_once_and_in_order():
    assert check([0, 1, 2, 3], acked=range(4)) == []


@pytest.mark.parametrize("numbers", [[0, 1, 1], [0, 2], [0, 1, 2, 1, 2, 3], [1, 0]])
def test_a_repeat_a_gap_and_another_order_are_wrong(numbers):
    assert check(numbers)


def test_what_is_repeated_with_a_new_producer_epoch_was_never_acknowledged():
    numbers = [0, 1, 2, 1, 2, 3]
    assert check(numbers, acked=[0, 3, 4, 5], renewed={3}) == []
    assert check(numbers, acked=[0, 1], renewed={3})
    assert check(numbers, acked=[0, 2], renewed={3})  # the second one of its batch
    assert check(numbers, renewed={2})
    assert check([0, 1, 3], renewed={2})  # a gap is never right


def test_renewals_are_where_the_epoch_of_a_producer_rises(tmp_path):
    of = [(7, 0), (8, 3), (7, 0), (7, 1), (8, 3), (7, 1), (8, 4)]
    data = b"".join(
        batch(1, base_offset=offset, producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
        for offset, (producer_id, epoch) in enumerate(of)
    )
    (tmp_path / "00000000000000000000.log").write_bytes(data)
    assert renewals(tmp_path) == {3, 6}


def test_odd_batches_do_not_follow_those_before_them(tmp_path):
    of = [(7, 0, 0, 2), (8, 3, 0, 1), (7, 0, 2, 1), (7, 0, 2, 1), (7, 1, 0, 1), (8, 3, 1, 1), (7, 1, 1, 1)]
    data, offset = b"", 0
    for producer_id, epoch, sequence, count in of:
        data += batch(
            count,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        offset += count
    (tmp_path / "00000000000000000000.log").write_bytes(data)
    odd = odd_batches(tmp_path)
    assert [line.split(":")[0].split(",")[0] for line in odd] == ["2 to 2", "4 to 4", "5 to 5"]
    assert odd[1].endswith("producer 7 has (0, 2), expected (0, 3)")


def copies(*numbers):
    return [b"0:%d:text" % number for number in numbers]


def test_each_copy_once_and_in_order():
    def wrong(here, there, end=3):
        return wrong_copies([here, there, [], []], [end, 0, 0, 0])

    assert wrong(copies(0, 1, 2), copies(0, 1, 2)) == []
    for other in ((0, 1), (0, 2), (0, 1, 1, 2), (1, 0, 2), (0, 1, 2, 3), ()):
        assert len(wrong(copies(0, 1, 2), copies(*other))) == 1, other
        assert len(wrong(copies(*other), copies(0, 1, 2))) == 1, other
