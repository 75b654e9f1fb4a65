"""TxnOffsetCommit: who may commit, what the coordinator of its transaction is asked, when offsets count."""

import pytest
from coordinator_world import GROUP, STABLE, World, play

from kafkad.coordinator.admission import commit_error, produce_error
from kafkad.coordinator.group import State
from kafkad.coordinator.runtime import at_once
from kafkad.log.admission import Admission
from kafkad.protocol import errors, messages
from kafkad.protocol.records import Batch

NONE = errors.NONE
UNSTABLE = "UNSTABLE"
PRODUCER = (77, 3)
ADDS, KNOWS_ABORTABLE = 5, 4


class Gate:
    """The coordinator of the transaction: it answers `code`, or nothing while that is None."""

    def __init__(self, code=NONE):
        self.code = code
        self.asked = []
        self.waiting = []

    def admit(self, transactional_id, producer_id, epoch, partition, *, adds, done):
        self.asked.append((transactional_id, producer_id, epoch, partition, adds))
        if self.code is None:
            self.waiting.append(done)
        else:
            done(self.code)


@pytest.fixture
def world():
    return World()


def ask(version=ADDS, group=GROUP, member="", generation=-1, instance=None, producer=PRODUCER, **offsets):
    request = messages.TxnOffsetCommitRequest
    producer_id, epoch = producer
    return request(
        transactional_id="tx",
        group_id=group,
        producer_id=producer_id,
        producer_epoch=epoch,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        topics=[
            request.Topics(
                name="t",
                partitions=[
                    request.Topics.Partitions(partition_index=int(name[1:]), committed_offset=offset)
                    for name, offset in (offsets or {"t0": 10}).items()
                ],
            )
        ],
    )


def commit(world, gate=None, version=ADDS, verifies=True, request=None, **asked):
    """The list that will hold the error codes of the one answer."""
    heard = []

    def reply(outcome):
        if isinstance(outcome, int):
            heard.append([outcome for topic in request.topics for _ in topic.partitions])
        else:
            heard.append([each.error_code for topic in outcome.topics for each in topic.partitions])

    request = ask(version, **asked) if request is None else request
    at_once(
        world.coordinator.commit_in_transaction(request, version, gate or Gate(), reply, verifies=verifies)
    )
    return heard


def end(world, commit, producer=PRODUCER):
    codes = []
    world.coordinator.complete_transaction(
        world.shard.index, *producer, 0, commit=commit, version=2, done=codes.append
    )
    assert codes in ([], [NONE])


def fetch(world, *indexes, stable=False):
    """{partition: offset}, UNSTABLE where the offset waits for a transaction."""
    group = messages.OffsetFetchRequest.Groups
    asked = group(group_id=GROUP, topics=[group.Topics(name="t", partition_indexes=list(indexes or (0,)))])
    heard = []
    at_once(world.coordinator.fetch(asked, stable, heard.append))
    (answer,) = heard
    codes = {NONE: None, errors.UNSTABLE_OFFSET_COMMIT: UNSTABLE}
    return {
        each.partition_index: codes[each.error_code] or each.committed_offset
        for topic in answer.topics
        for each in topic.partitions
    }


# -- when offsets count


def test_offsets_count_when_their_transaction_is_committed(world):
    assert commit(world, t0=10, t1=11) == [[NONE, NONE]]
    assert fetch(world, 0, 1) == {0: -1, 1: -1}
    assert fetch(world, 0, 1, 2, stable=True) == {0: UNSTABLE, 1: UNSTABLE, 2: -1}
    end(world, True)
    assert fetch(world, 0, 1) == fetch(world, 0, 1, stable=True) == {0: 10, 1: 11}


def test_offsets_of_an_aborted_transaction_are_forgotten(world):
    commit(world)
    end(world, True)
    commit(world, t0=20)
    assert fetch(world, stable=True) == {0: UNSTABLE}
    end(world, False)
    assert fetch(world, stable=True) == {0: 10}


def test_an_offset_is_unstable_until_the_last_of_its_transactions_has_ended(world):
    commit(world, t0=10)
    commit(world, t0=20, producer=(78, 0))
    end(world, True, (78, 0))
    assert fetch(world, stable=True) == {0: UNSTABLE}
    assert fetch(world) == {0: 20}
    end(world, True)
    assert fetch(world, stable=True) == {0: 20}  # it came later in the log


@pytest.mark.parametrize("restarts", [False, True])
def test_of_a_plain_commit_and_one_in_a_transaction_the_later_in_the_log_wins(world, restarts):
    commit(world, t0=10, t1=11)
    play("commit - t_0=20\n  -: NONE", world)
    commit(world, t1=12)
    if restarts:
        world.start()
    end(world, True)
    assert fetch(world, 0, 1) == {0: 20, 1: 12}


@pytest.mark.parametrize("ended", [None, True, False])
def test_a_restart_finds_what_was_there(world, ended):
    commit(world)
    if ended is not None:
        end(world, ended)
    world.start()
    expected = {None: UNSTABLE, True: 10, False: -1}[ended]
    assert fetch(world, stable=True) == {0: expected}
    if ended is None:
        end(world, True)
        assert fetch(world, stable=True) == {0: 10}


def test_a_marker_waits_for_the_commits_before_it(world):
    world.storage.hold()
    heard = commit(world)
    end(world, True)
    world.storage.release()
    assert heard == [[NONE]]
    assert fetch(world, stable=True) == {0: 10}


def test_offsets_that_could_not_be_written_leave_nothing_behind(world):
    world.storage.hold()
    heard = commit(world)
    world.storage.release(errors.NOT_ENOUGH_REPLICAS)
    assert heard == [[errors.COORDINATOR_NOT_AVAILABLE]]
    assert fetch(world, stable=True) == {0: -1}


def test_deleted_offsets_do_not_come_back_with_the_end_of_the_transaction(world):
    commit(world, t0=10, t1=11)
    play("delete\n  deleted: NONE", world)
    end(world, True)
    assert fetch(world, 0, 1) == {0: -1, 1: -1}
    assert not world.shard.offsets.has_transactions(GROUP)


def test_a_group_lives_while_a_transaction_has_offsets_for_it(world):
    commit(world)
    world.scheduler.advance(10 * 24 * 3_600_000)
    assert GROUP in world.shard.groups
    end(world, False)
    world.scheduler.advance(24 * 3_600_000)
    assert GROUP not in world.shard.groups


def test_the_batch_is_the_transactions(world):
    commit(world, t0=10, t1=11)
    (data,) = world.storage.logs[world.shard.index]
    batch = Batch(data)
    assert (batch.producer_id, batch.producer_epoch, batch.is_transactional) == (*PRODUCER, True)
    assert batch.records_count == 2
    assert world.storage.admitted == (Admission.IMPLICIT, 7)


# -- the coordinator's word


def test_the_coordinator_is_asked_for_the_groups_partition(world):
    gate = Gate()
    commit(world, gate)
    commit(world, gate, version=ADDS - 1)
    partition = ("__consumer_offsets", world.shard.index)
    assert gate.asked == [("tx", *PRODUCER, partition, True), ("tx", *PRODUCER, partition, False)]


def test_the_coordinator_is_not_asked_again_while_the_transaction_is_open(world):
    world.storage.open.add((world.shard.index, *PRODUCER))
    gate = Gate(errors.INVALID_TXN_STATE)
    assert commit(world, gate) == [[NONE]]
    assert gate.asked == []


@pytest.mark.parametrize(
    "version, verifies, admission",
    [
        (5, True, Admission.IMPLICIT),
        (5, False, Admission.IMPLICIT),
        (4, True, Admission.ADDED),
        (3, False, Admission.UNVERIFIED),
    ],
)
def test_the_version_says_what_is_asked(world, version, verifies, admission):
    commit(world, version=version, verifies=verifies)
    assert world.storage.admitted[0] is admission


def test_the_coordinators_refusal_comes_before_the_groups(world):
    assert commit(world, Gate(errors.INVALID_TXN_STATE), generation=5) == [[errors.INVALID_TXN_STATE]]
    assert GROUP not in world.shard.groups


def test_a_commit_goes_on_when_the_coordinator_has_answered(world):
    gate = Gate(None)
    heard = commit(world, gate)
    assert heard == []
    gate.waiting.pop()(NONE)
    assert heard == [[NONE]]
    heard = commit(world, gate)
    gate.waiting.pop()(errors.PRODUCER_FENCED)
    assert heard == [[errors.INVALID_PRODUCER_EPOCH]]


def test_a_commit_whose_partition_leaves_while_the_coordinator_is_asked_is_answered(world):
    gate = Gate(None)
    heard = commit(world, gate)
    world.coordinator.unload(world.shard.index)
    gate.waiting.pop()(NONE)
    assert heard == [[errors.NOT_COORDINATOR]]


def test_what_the_log_refuses_at_once_is_told(world):
    world.storage.guard_error = errors.INVALID_PRODUCER_EPOCH
    gate = Gate()
    assert commit(world, gate) == [[errors.INVALID_PRODUCER_EPOCH]]
    assert gate.asked == []


def test_errors_of_the_coordinator_by_version_of_the_commit():
    for version in range(6):
        assert commit_error(errors.PRODUCER_FENCED, version) == errors.INVALID_PRODUCER_EPOCH
        assert commit_error(errors.NETWORK_EXCEPTION, version) == errors.COORDINATOR_LOAD_IN_PROGRESS
        abortable = errors.TRANSACTION_ABORTABLE if version >= KNOWS_ABORTABLE else errors.INVALID_TXN_STATE
        assert commit_error(errors.TRANSACTION_ABORTABLE, version) == abortable
        for code in (errors.CONCURRENT_TRANSACTIONS, errors.NOT_COORDINATOR, NONE):
            assert commit_error(code, version) == code


def test_errors_of_the_coordinator_by_version_of_produce():
    for version in range(3, 14):
        assert produce_error(errors.PRODUCER_FENCED, version) == errors.INVALID_PRODUCER_EPOCH
        for code in (
            errors.NETWORK_EXCEPTION,
            errors.COORDINATOR_LOAD_IN_PROGRESS,
            errors.COORDINATOR_NOT_AVAILABLE,
            errors.NOT_COORDINATOR,
        ):
            assert produce_error(code, version) == errors.NOT_ENOUGH_REPLICAS
        abortable = errors.TRANSACTION_ABORTABLE if version >= 11 else errors.INVALID_TXN_STATE
        assert produce_error(errors.TRANSACTION_ABORTABLE, version) == abortable
        busy = errors.CONCURRENT_TRANSACTIONS if version >= 12 else errors.NOT_ENOUGH_REPLICAS
        assert produce_error(errors.CONCURRENT_TRANSACTIONS, version) == busy
        assert produce_error(errors.INVALID_TXN_STATE, version) == errors.INVALID_TXN_STATE
        assert produce_error(NONE, version) == NONE


# -- the group's word


def test_an_unknown_group_takes_commits_of_simple_consumers_only(world):
    assert commit(world, generation=0) == [[errors.ILLEGAL_GENERATION]]
    assert GROUP not in world.shard.groups
    assert commit(world) == [[NONE]]
    assert world.group.state is State.EMPTY


def test_members_commit_with_their_generation():
    world = play(STABLE)
    member = world.client("A").member_id
    assert commit(world, member=member, generation=1) == [[NONE]]
    assert commit(world, member=member, generation=0) == [[errors.ILLEGAL_GENERATION]]
    assert commit(world, member="somebody", generation=1) == [[errors.UNKNOWN_MEMBER_ID]]
    assert commit(world, member=member, generation=1, instance="i") == [[errors.UNKNOWN_MEMBER_ID]]


def test_older_clients_name_no_member_and_commit_in_any_state():
    world = play(STABLE)
    assert commit(world, version=2) == [[NONE]]


def test_a_rebalance_that_completes_does_not_refuse_a_transaction():
    world = play(STABLE)
    play(
        """
        join B version=3
        join A
          A: joined 2 as leader, members A B
          B: joined 2 after A
        """,
        world,
    )
    assert world.group.state is State.COMPLETING_REBALANCE
    assert commit(world, member=world.client("A").member_id, generation=2) == [[NONE]]


def test_a_commit_in_a_transaction_does_not_keep_the_session_alive():
    world = play(STABLE)
    world.scheduler.advance(9_000)
    commit(world, member=world.client("A").member_id, generation=1)
    world.scheduler.advance(9_000)
    assert not world.group.members


def test_the_empty_group_is_invalid_and_others_are_not_here(world):
    assert commit(world, group="") == [[errors.INVALID_GROUP_ID]]
    index = world.shard.index
    world.coordinator.begin_load(index)
    assert commit(world) == [[errors.COORDINATOR_LOAD_IN_PROGRESS]]
    world.coordinator.unload(index)
    assert commit(world) == [[errors.NOT_COORDINATOR]]


def test_metadata_that_is_too_long_is_refused_by_itself(world):
    request = ask(t0=1, t1=2)
    request.topics[0].partitions[0].committed_metadata = "x" * 4097
    assert commit(world, request=request) == [[errors.OFFSET_METADATA_TOO_LARGE, NONE]]
    request.topics[0].partitions.pop()
    assert commit(world, request=request) == [[errors.OFFSET_METADATA_TOO_LARGE]]


def test_commits_larger_than_a_batch_are_refused(world):
    world.storage.size_max = 100
    assert commit(world, t0=1, t1=2) == [[errors.UNKNOWN_SERVER_ERROR] * 2]
