"""The high watermark of a leader with followers, by what their Fetches say. Each trap has Kafka's place."""

import pytest
from kafkad._native.log.partition_watermarks import NEW_LEADER, RE_ELECTED, SAME_EPOCH

from kafkad.log.log import Log
from kafkad.protocol import errors
from tests.unit.log_world import ManualScheduler, batch, topic_config
from tests.unit.reactor_world import open_log

LAG_MS = 1_000
LONG_AGO, NOW = 0, 50_000  # monotonic, small: what is caught up by time would be so at no real time


class Leader:
    """Broker 1 leads; `isr` and `maximal` are the others' ids."""

    def __init__(self, directory, others=(2, 3), isr=(2, 3), **config):
        self.log = open_log(str(directory / "t-0"), "t", 0, **config)
        self.native = self.log.native
        self.others, self.asked = others, []
        self.log.set_leader_epoch(1, 1, alone=False)
        self.log.replica_joins = lambda log, broker_id: self.asked.append(broker_id)
        self.show(isr, reset=NEW_LEADER)

    def show(self, isr, maximal=None, *, reset=SAME_EPOCH, eligible=None, now_ms=NOW, epochs=None):
        maximal = isr if maximal is None else maximal
        rows = [
            (
                each,
                each in isr,
                each in maximal,
                eligible is None or each in eligible,
                (epochs or {}).get(each, 10 + each),
                0,
            )
            for each in self.others
        ]
        counts = {"isr_count": len(isr) + 1, "isr_count_max": len(maximal) + 1}
        self.native.replicate(rows, reset=reset, now_ms=now_ms, lag_ms_max=LAG_MS, **counts)

    def append(self, count=1):
        return self.log.append_client(batch(count), 1_000).base_offset

    def fetch(self, broker_id, offset, *, at=NOW, epoch=None, leader_end=None):
        return self.native.note_fetch(
            broker_id, 10 + broker_id if epoch is None else epoch, offset, 0, at, leader_end
        )

    @property
    def high(self):
        return self.log.high_watermark


@pytest.fixture
def leader(tmp_path):
    return Leader(tmp_path)


def test_it_moves_when_all_of_the_isr_have_fetched(leader):
    leader.append(3)
    assert leader.high == 0
    leader.fetch(2, 3)
    assert leader.high == 0
    leader.fetch(3, 2)
    assert leader.high == 2
    leader.fetch(3, 3)
    assert leader.high == 3


def test_a_leader_alone_in_its_isr_commits_by_itself(leader):
    leader.show(())
    leader.append(3)
    assert leader.high == 3


def test_an_addition_in_flight_binds_it_and_a_removal_releases_it_when_committed(leader):
    """T1, T4. Partition.maybeIncrementLeaderHW"""
    leader.show((2,), maximal=(2, 3))
    leader.append(3)
    leader.fetch(2, 3)
    assert leader.high == 0
    leader.show((2,))
    assert leader.high == 3


def test_it_stands_still_below_min_insync_replicas(tmp_path):
    """T2. Partition.isUnderMinIsr"""
    leader = Leader(tmp_path, min_insync_replicas=2)
    leader.append(2)
    leader.show(())
    leader.fetch(2, 2)
    leader.fetch(3, 2)
    assert leader.high == 0
    leader.show((2,))
    assert leader.high == 2


def test_min_insync_replicas_is_at_most_the_number_of_replicas(tmp_path):
    leader = Leader(tmp_path, others=(2,), isr=(2,), min_insync_replicas=5)
    leader.append(1)
    leader.fetch(2, 1)
    assert leader.high == 1


def test_a_caught_up_follower_outside_of_the_isr_holds_it_back_if_it_is_eligible(leader):
    """T3. shouldWaitForReplicaToJoinIsr"""
    leader.show((2,), eligible=(2, 3))
    leader.append(2)
    leader.fetch(3, 2)  # it has all
    leader.append(2)
    leader.fetch(2, 4)
    assert leader.high == 4  # by a real clock it was never caught up, and it has not all
    leader.fetch(3, 4)
    assert leader.high == 4


def test_it_may_join_when_it_has_what_is_committed_and_the_leaders_epoch_began_before(leader):
    """T5. Partition.isFollowerInSync"""
    leader.append(4)
    leader.fetch(2, 4)
    leader.fetch(3, 2)
    leader.log.set_leader_epoch(2, 1, alone=False)
    leader.show((2,), reset=RE_ELECTED)
    assert (leader.native.epoch_start, leader.asked) == (4, [])
    leader.fetch(3, 3)
    assert leader.asked == []
    leader.fetch(3, 4)
    assert leader.asked == [3]
    leader.fetch(3, 4)
    assert leader.asked == [3]  # once, until something has changed
    leader.show((2,))
    leader.fetch(3, 4)
    assert leader.asked == [3, 3]


def test_a_fenced_one_may_not_join(leader):
    leader.show((2,), eligible=(2,))
    leader.append(1)
    leader.fetch(3, 1)
    assert leader.asked == []


def test_a_fetch_of_a_former_life_of_a_broker_is_refused(leader):
    """T6, KIP-903. Replica.updateFetchStateOrThrow"""
    leader.append(2)
    leader.fetch(3, 2)
    assert leader.fetch(2, 2, epoch=9) == errors.NOT_LEADER_OR_FOLLOWER
    assert leader.high == 0
    assert leader.fetch(2, 2, epoch=-1) == 0  # a version that says none
    assert leader.high == 2


def test_a_newer_epoch_than_the_metadata_has_is_noted_but_may_not_join(leader):
    leader.show((2,))
    leader.append(1)
    leader.fetch(3, 1, epoch=99)
    assert leader.asked == []
    leader.show((2,), epochs={3: 99})
    leader.fetch(3, 1, epoch=99)
    assert leader.asked == [3]
    assert leader.native.replica_epoch(3) == 99


def test_under_constant_load_a_follower_that_keeps_up_stays(leader):
    """T7: it never has all, but at each Fetch what there was at the Fetch before."""
    leader.append(1)
    for turn in range(1, 10):
        at = NOW + turn * LAG_MS // 2
        leader.fetch(2, turn - 1, at=at)
        leader.append(1)
        leader.fetch(3, turn + 1, at=at)
    assert leader.native.lagging(NOW + 10 * LAG_MS // 2) == []


def test_one_that_fetches_and_falls_behind_is_found(leader):
    leader.append(100)
    for turn in range(1, 10):
        leader.fetch(2, turn, at=NOW + turn * LAG_MS)
        leader.fetch(3, 100, at=NOW + turn * LAG_MS)
    assert leader.native.lagging(NOW + 10 * LAG_MS) == [2]


def test_one_that_has_all_does_not_lag_however_long_it_is_silent(leader):
    leader.append(1)
    leader.fetch(2, 1)
    leader.fetch(3, 1)
    assert leader.native.lagging(NOW + 1_000_000) == []
    leader.append(1)
    assert leader.native.lagging(NOW + 1_000_000) == [2, 3]


def test_a_new_leader_knows_no_ends_and_gives_the_isr_its_time(leader):
    """T9. Replica.resetReplicaState"""
    leader.append(3)
    leader.fetch(2, 3)
    leader.fetch(3, 1)
    assert leader.high == 1
    leader.log.follow(2, 3)
    leader.log.set_leader_epoch(3, 1, alone=False)
    leader.show((2, 3), reset=NEW_LEADER, now_ms=NOW)
    assert [row[1] for row in leader.native.replica_rows()] == [-1, -1]
    leader.fetch(3, 3)
    assert leader.high == 1  # broker 2 has not fetched from this leader
    assert leader.native.lagging(NOW + LAG_MS) == []
    assert leader.native.lagging(NOW + LAG_MS + 1) == [2]
    leader.fetch(2, 3)
    assert leader.high == 3


def test_a_leader_that_is_elected_again_keeps_the_ends(leader):
    """T10"""
    leader.append(3)
    leader.fetch(2, 3)
    leader.log.set_leader_epoch(2, 1, alone=False)
    leader.show((2, 3), reset=RE_ELECTED)
    leader.fetch(3, 3)
    assert leader.high == 3


def test_it_never_goes_back(leader):
    leader.append(3)
    leader.fetch(2, 3)
    leader.fetch(3, 3)
    leader.fetch(2, 1)  # it has lost some
    assert leader.high == 3


def test_a_stranger_is_refused(leader):
    assert leader.fetch(7, 0) == errors.NOT_LEADER_OR_FOLLOWER


def test_whose_batch_is_found_again_by_the_index_when_hw_stops_in_the_midst(leader):
    for _ in range(300):  # more than the ring remembers
        leader.append(2)
    leader.fetch(2, 600)
    leader.fetch(3, 20)
    assert leader.high == 20
    code, high, _, _, data = leader.native.try_read(0, 1 << 20)
    assert (code, high) == (0, 20)
    assert len(data) == leader.native.position_of(20)[1]


def test_a_leader_with_followers_begins_with_the_checkpoints_high_watermark(tmp_path):
    """T22: not with its end, which the followers may not have."""
    leader = Leader(tmp_path)
    leader.append(5)
    leader.log.close()
    log = Log.open(
        leader.log.directory, "t", 0, topic_config(), now_ms=1_000, clean=True, scheduler=ManualScheduler(),
        high_watermark=2,
    )  # fmt: skip
    log.set_leader_epoch(2, 1, alone=False)
    assert (log.high_watermark, log.native.epoch_start) == (2, 5)
    log.resign()
    log.set_leader_epoch(3, 1)
    assert log.high_watermark == 5  # alone
