"""Where a follower cuts (replication/truncation): each trap as a transcript of a follower and its leader."""

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from kafkad.log.leader_epochs import LeaderEpochs
from kafkad.protocol.errors import Malformed
from kafkad.replication import truncation
from kafkad.replication.fetchers import Followed, LeaderFetcher
from kafkad.replication.truncation import Beginning, Cut, StartAnew
from tests.unit.log_world import LogWorld, batch


@dataclass
class Replica:
    """A log as the epoch of each offset; `start` is that of the first."""

    records: list[int] = field(default_factory=list)
    start: int = 0
    high_watermark: int = 0

    @property
    def end(self):
        return self.start + len(self.records)

    @property
    def epochs(self):
        epochs = LeaderEpochs("")
        for offset, epoch in enumerate(self.records, self.start):
            epochs.put(epoch, offset)
        return epochs

    def asked(self, last_epoch, offset):
        """What a leader answers to a Fetch: None is records, or nothing new."""
        found, end = self.epochs.end_offset_for(last_epoch, self.end)
        return (found, end) if found < last_epoch or end < offset else None

    def cut(self, answer):
        cut = truncation.diverged(
            *answer,
            end_offset=self.end,
            high_watermark=self.high_watermark,
            end_offset_for=lambda epoch: self.epochs.end_offset_for(epoch, self.end),
        )
        del self.records[max(cut.offset - self.start, 0) :]
        return cut


def test_t14_a_follower_without_epochs_is_cut_to_hw_and_names_none():
    assert truncation.begins_at(10, 4, None) == Beginning(4, -1, True)
    assert truncation.begins_at(0, 0, None) == Beginning(0, -1, False)
    assert truncation.begins_at(10, 12, None) == Beginning(10, -1, False)  # HW is never above the end
    assert truncation.begins_at(10, 4, 3) == Beginning(10, 3, False)


@pytest.mark.parametrize("lie", [(3, -2), (-2, 4), (3, -(1 << 62))])
def test_a_leader_whose_epoch_ends_nowhere_is_not_believed(lie):
    """Otherwise the follower removes everything and begins its log at a negative offset."""
    follower = Replica([0, 1, 3, 3])
    with pytest.raises(Malformed):
        follower.cut(lie)
    assert follower.end == 4


def test_the_fetcher_waits_after_such_an_answer():
    log = SimpleNamespace(end_offset=4, high_watermark=4, end_offset_for_epoch=lambda epoch: (epoch, 4))
    followed = Followed(log, 7)
    fetcher = LeaderFetcher.__new__(LeaderFetcher)
    fetcher.followed = {(b"t" * 16, 0): followed}
    told = []
    fetcher.trouble = lambda *arguments: told.append(arguments)
    fetcher.diverged(b"t" * 16, 0, 7, 3, -2)
    assert told == [(b"t" * 16, 0, 7, False, "epoch 3 cannot end at -2")]


def test_t15_a_follower_that_does_not_know_the_leaders_epoch_is_cut_in_rounds():
    # The follower led in 1 and 3 and the leader in 2 and 4: they share epoch 0 only.
    follower = Replica([0, 0, 1, 1, 3, 3])
    leader = Replica([0, 0, 2, 2, 4])
    assert leader.asked(3, 6) == (2, 4)
    assert follower.cut((2, 4)) == Cut(4, False)  # epoch 2 is not here: to where 1 ends
    assert follower.records == [0, 0, 1, 1]
    assert leader.asked(1, 4) == (0, 2)
    assert follower.cut((0, 2)) == Cut(2, True)
    assert leader.asked(0, 2) is None


def test_t15_the_epochs_that_the_follower_knows_are_cut_at_once():
    follower = Replica([0, 0, 1, 1, 1])
    leader = Replica([0, 0, 1, 2])
    assert leader.asked(1, 5) == (1, 3)
    assert follower.cut((1, 3)) == Cut(3, True)


def test_t18_a_follower_ahead_in_the_same_epoch_diverges():
    follower, leader = Replica([5] * 9), Replica([5] * 7)
    assert leader.asked(5, 9) == (5, 7)
    assert follower.cut((5, 7)) == Cut(7, True)
    assert leader.asked(5, 7) is None


def test_t19_out_of_range_keeps_what_the_leader_may_have():
    assert truncation.out_of_range(10, leader_start=0, leader_end=7) == Cut(7, True)
    assert truncation.out_of_range(10, leader_start=4, leader_end=20) == Cut(10, True)  # asked again at 10
    assert truncation.out_of_range(10, leader_start=10, leader_end=20) == Cut(10, True)
    assert truncation.out_of_range(10, leader_start=11, leader_end=20) == StartAnew(11)
    assert truncation.out_of_range(10, leader_start=12, leader_end=12) == StartAnew(12)


def test_t20_an_empty_follower_begins_at_the_batch_that_holds_its_start():
    assert truncation.begins_anew(5, 5, base_offset=3, last_offset=7) == StartAnew(3)
    assert truncation.begins_anew(5, 5, base_offset=3, last_offset=5) == StartAnew(3)
    assert truncation.begins_anew(5, 5, base_offset=3, last_offset=4) is None  # all of it lies below
    assert truncation.begins_anew(2, 5, base_offset=3, last_offset=7) is None  # there are records here


def test_an_undefined_end_cuts_to_hw_and_an_undefined_epoch_to_the_end():
    follower = Replica([0, 0, 0, 0], high_watermark=1)
    assert follower.cut((-1, -1)) == Cut(1, True)
    follower = Replica([0, 0, 0, 0], high_watermark=1)
    assert follower.cut((-1, 3)) == Cut(3, True)


def test_a_follower_that_knows_no_epoch_is_cut_to_the_leaders_end():
    cut = truncation.diverged(4, 6, end_offset=9, high_watermark=0, end_offset_for=lambda epoch: (-1, -1))
    assert cut == Cut(6, True)


def test_an_epoch_in_which_a_follower_led_and_wrote_nothing_goes(tmp_path):
    """Every restart of an idle cluster, one node after the other, makes such epochs."""
    follower, leader = (LogWorld(tmp_path / name).log for name in ("follower", "leader"))
    for log in (follower, leader):
        log.set_leader_epoch(0)
        log.append_client(batch(3), 1_000)
    follower.set_leader_epoch(1)
    leader.set_leader_epoch(2)
    assert leader.end_offset_for_epoch(1) == (0, 3)  # which is not the epoch that was asked for
    cut = truncation.diverged(
        0, 3, end_offset=3, high_watermark=0, end_offset_for=follower.end_offset_for_epoch
    )
    assert cut == Cut(3, True)
    assert follower.truncate_to(cut.offset)
    assert follower.leader_epochs.entries == [(0, 0)] == LeaderEpochs.load(follower.directory).entries
    assert follower.end_offset == 3
    assert leader.end_offset_for_epoch(0) == (0, 3)  # now they agree
    assert not follower.truncate_to(cut.offset)


@pytest.mark.parametrize("seed", range(20))
def test_logs_that_parted_anywhere_agree_after_a_few_rounds(seed):
    chance = random.Random(seed)
    for _ in range(100):
        shared = sorted(chance.choices(range(4), k=chance.randrange(6)))
        base = shared[-1] if shared else 0
        mine = sorted(chance.choices(range(base + 1, base + 9, 2), k=chance.randrange(6)))
        theirs = sorted(chance.choices(range(base + 2, base + 10, 2), k=chance.randrange(6)))
        follower, leader = Replica([*shared, *mine]), Replica([*shared, *theirs])
        known = set(follower.records)
        for _ in range(len(known) + 2):
            latest = follower.epochs.latest
            if latest is None:
                break
            answer = leader.asked(latest, follower.end)
            if answer is None:
                break
            before = follower.end
            if answer[1] == -1:  # the leader does not know so late an epoch: OFFSET_OUT_OF_RANGE
                break
            follower.cut(answer)
            assert follower.end < before
        else:
            raise AssertionError("it does not end")
        if answer is None if follower.epochs.latest is not None else True:
            assert follower.records == leader.records[: follower.end]
            assert follower.end >= len(shared)  # nothing that both have was cut
