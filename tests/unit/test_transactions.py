"""The transaction coordinator, rule by rule, as in Kafka 4.3's TransactionCoordinator (and its metadata)."""

import logging

import pytest
from transaction_world import ID, TransactionWorld

from kafkad._native.wire.latest_records import LatestRecords
from kafkad.coordinator import transaction_records as records
from kafkad.coordinator.markers import Marker
from kafkad.coordinator.transaction import EPOCH_EXHAUSTED, EPOCH_MAX, NO_TIMEOUT_MS, State, Transaction
from kafkad.coordinator.transaction_shard import PARKED_MAX
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import Malformed
from kafkad.protocol.records import Record, build_batch

NONE = errors.NONE
CONCURRENT = errors.CONCURRENT_TRANSACTIONS
FENCED = errors.PRODUCER_FENCED
MAPPING = errors.INVALID_PRODUCER_ID_MAPPING
TXN_STATE = errors.INVALID_TXN_STATE
NOBODY = (-1, -1)
PATIENCE_MS = 100  # add.partitions.to.txn.retry.backoff.max.ms


@pytest.fixture
def world():
    return TransactionWorld()


# -- InitProducerId


def test_first_init_gives_a_new_producer_id_in_epoch_0_and_the_next_ones_the_same_in_higher_epochs(world):
    assert world.init() == [(NONE, 1000, 0)]
    assert world.init() == [(NONE, 1000, 1)]
    assert world.init("other") == [(NONE, 1001, 0)]
    assert world.transaction().last_producer_epoch == -1


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_init_refuses_time_outs_out_of_bounds(world, timeout_ms):
    assert world.init(timeout_ms=timeout_ms) == [(errors.INVALID_TRANSACTION_TIMEOUT, *NOBODY)]
    assert world.init(timeout_ms=900_000) == [(NONE, 1000, 0)]


def test_the_empty_transactional_id_is_an_invalid_request(world):
    assert world.init("") == [(errors.INVALID_REQUEST, *NOBODY)]
    assert world.add((1, 0), name="") == [errors.INVALID_REQUEST]
    assert world.end((1, 0), True, name="") == [(errors.INVALID_REQUEST, *NOBODY)]
    assert world.end((1, 0), True, name="", version=2) == [(errors.INVALID_REQUEST, *NOBODY)]
    assert world.verify((1, 0), 3, name="") == [{("t", 3): errors.INVALID_REQUEST}]
    assert world.coordinator.describe("").error_code == errors.INVALID_REQUEST


def test_an_unknown_id_has_no_producer_id_to_map_to(world):
    assert world.add((1, 0)) == [MAPPING]
    assert world.verify((1, 0), 3) == [{("t", 3): MAPPING}]
    assert world.end((1, 0), True) == world.end((1, 0), True, version=2) == [(MAPPING, *NOBODY)]
    assert world.coordinator.describe(ID).error_code == errors.TRANSACTIONAL_ID_NOT_FOUND


def test_init_from_the_current_epoch_raises_it_and_a_retry_of_that_is_given_the_same_epoch(world):
    ((_, producer_id, _),) = world.init()
    assert world.init(expected=(producer_id, 0)) == [(NONE, producer_id, 1)]
    assert world.init(expected=(producer_id, 0)) == [(NONE, producer_id, 1)]
    assert world.init(expected=(producer_id, 1)) == [(NONE, producer_id, 2)]
    assert world.init(expected=(producer_id, 0)) == [(FENCED, *NOBODY)]


def test_init_by_a_new_producer_fences_the_retries_of_the_old_one(world):
    ((_, producer_id, _),) = world.init()
    world.init(expected=(producer_id, 0))
    world.init()
    assert world.init(expected=(producer_id, 0)) == [(FENCED, *NOBODY)]


def test_init_from_another_producer_id_is_fenced_and_from_any_if_the_id_is_new(world):
    assert world.init(expected=(77, 5)) == [(NONE, 1000, 0)]
    assert world.init(expected=(77, 5)) == [(FENCED, *NOBODY)]


def test_init_after_the_last_epoch_gives_a_new_producer_id(world):
    world.at_epoch(EPOCH_EXHAUSTED)
    assert world.init() == [(NONE, 1001, 0)]
    assert world.transaction().last_producer_epoch == -1


def test_init_from_the_last_epoch_gives_a_new_producer_id_and_its_retry_the_same_one(world):
    old = world.at_epoch(EPOCH_EXHAUSTED)
    assert world.init(expected=old) == [(NONE, 1001, 0)]
    assert world.transaction().last_producer_epoch == EPOCH_EXHAUSTED
    assert world.init(expected=old) == [(NONE, 1001, 0)]


def test_init_from_an_older_epoch_when_none_is_left_is_an_unknown_error_as_in_kafka(world):
    producer_id, _ = world.at_epoch(EPOCH_EXHAUSTED)
    assert world.init(expected=(producer_id, 7)) == [(errors.UNKNOWN_SERVER_ERROR, *NOBODY)]
    assert not world.transaction().is_settling


def test_init_without_a_producer_id_at_hand_is_told_to_come_back(world):
    ids, world.ids = world.ids, None
    assert world.init() == [(errors.COORDINATOR_LOAD_IN_PROGRESS, *NOBODY)]
    assert world.transaction() is None
    world.ids = ids
    assert world.init() == [(NONE, 1000, 0)]


@pytest.mark.parametrize("version, epoch", [(1, 2), (2, 2)])
def test_init_aborts_the_open_transaction_and_goes_on_when_that_is_complete(version, epoch):
    """Kafka answers CONCURRENT_TRANSACTIONS here, and the client's retry gets the same epoch."""
    world = TransactionWorld(version)
    old = world.began()
    assert world.init() == [(NONE, old[0], epoch)]
    assert world.transport.sent == [(Marker(old[0], 1, 0, False, 2 if version == 2 else 0), ("t", 0))]
    assert world.state is State.EMPTY


def test_init_that_waits_too_long_for_the_abort_is_answered_concurrent_transactions(world):
    world.began()
    world.transport.hold()
    heard = world.init()
    world.scheduler.advance(PATIENCE_MS - 1)
    assert heard == []
    world.scheduler.advance(1)
    assert heard == [(CONCURRENT, *NOBODY)]
    world.transport.release()
    assert world.state is State.COMPLETE_ABORT
    assert heard == [(CONCURRENT, *NOBODY)]
    assert world.scheduler.armed() == 0


def test_init_that_fences_the_last_epoch_gives_a_new_producer_id(world):
    producer_id, epoch = world.at_epoch(EPOCH_EXHAUSTED)
    world.add((producer_id, epoch))
    assert world.init() == [(NONE, 1001, 1)]
    ((marker, _),) = world.transport.sent
    assert (marker.producer_id, marker.producer_epoch) == (producer_id, EPOCH_MAX)


def test_version_1_fences_the_last_epoch_with_the_one_that_is_left_for_that():
    world = TransactionWorld(version=1)
    producer_id, epoch = world.at_epoch(EPOCH_EXHAUSTED)
    world.add((producer_id, epoch))
    assert world.init() == [(NONE, 1001, 0)]
    ((marker, _),) = world.transport.sent
    assert (marker.producer_id, marker.producer_epoch) == (producer_id, EPOCH_MAX)


def test_version_1_does_not_raise_the_epoch_again_after_a_fence_that_was_not_written():
    world = TransactionWorld(version=1)
    old = world.began()
    world.storage.failures = [errors.NOT_ENOUGH_REPLICAS] * 2
    for _ in range(2):
        assert world.init() == [(errors.COORDINATOR_NOT_AVAILABLE, *NOBODY)]
        assert world.transaction().producer_epoch == 1
    assert world.end(old, True) == [(FENCED, *NOBODY)]
    assert world.init() == [(NONE, old[0], 2)]
    assert not world.transaction().has_failed_fence


def test_version_2_keeps_the_epoch_when_a_fence_was_not_written(world):
    old = world.began(version=2)
    world.storage.failures = [errors.REQUEST_TIMED_OUT]
    assert world.init() == [(errors.COORDINATOR_NOT_AVAILABLE, *NOBODY)]
    assert world.transaction().producer_epoch == 0
    assert world.end(old, True, version=2) == [(NONE, old[0], 1)]


def test_version_2_that_cannot_get_a_producer_id_for_the_fence_leaves_the_transaction_open(world):
    producer_id, epoch = world.at_epoch(EPOCH_EXHAUSTED)
    world.add((producer_id, epoch), version=2)
    world.ids = None
    assert world.init() == [(errors.COORDINATOR_LOAD_IN_PROGRESS, *NOBODY)]
    assert world.state is State.ONGOING
    assert not world.transaction().is_settling


# -- adding and verifying partitions


def test_the_first_partition_begins_a_transaction_and_the_next_ones_join_it(world):
    ((_, *who),) = world.init()
    assert world.add(who, 0, 1) == [NONE]
    began_ms = world.transaction().start_ms
    assert began_ms == world.clock.now_ms()
    world.scheduler.advance(50)
    assert world.add(who, 2) == [NONE]
    assert world.transaction().partitions == {("t", 0), ("t", 1), ("t", 2)}
    assert (world.transaction().start_ms, world.transaction().update_ms) == (began_ms, began_ms + 50)


def test_partitions_that_are_in_the_transaction_are_not_written_again(world):
    who = world.began()
    appends = world.storage.appends
    assert world.add(who, 0) == [NONE]
    assert world.storage.appends == appends


def test_a_transaction_begins_anew_after_each_end(world):
    who, _ = world.ended(True)
    world.scheduler.advance(10)
    assert world.add(who, 1) == [NONE]
    assert world.transaction().partitions == {("t", 1)}
    assert world.transaction().start_ms == world.clock.now_ms()


def test_add_and_verify_refuse_other_producer_ids_and_epochs(world):
    producer_id, _ = world.began()
    for ask, refused in ((world.add, lambda code: code), (world.verify, lambda code: {("t", 1): code})):
        assert ask((producer_id + 1, 0), 1) == [refused(MAPPING)]
        assert ask((producer_id, 1), 1) == [refused(FENCED)]


def test_verify_tells_what_is_in_the_transaction(world):
    who = world.began()
    expected = {("t", 0): NONE, ("t", 1): errors.TRANSACTION_ABORTABLE}
    assert world.verify(who, 0, 1) == [expected]


def test_verify_is_abortable_when_no_transaction_is_open(world):
    who, _ = world.ended(True)
    assert world.verify(who, 0) == [{("t", 0): errors.TRANSACTION_ABORTABLE}]


def test_verify_does_not_wait_for_a_change_that_is_on_its_way(world):
    who = world.began()
    world.storage.hold()
    assert world.add(who, 1) == []
    assert world.verify(who, 0, 1) == [{("t", 0): NONE, ("t", 1): errors.TRANSACTION_ABORTABLE}]


def test_nothing_is_added_while_markers_are_written_but_soon_after(world):
    who = world.began()
    world.transport.hold()
    assert world.end(who, True) == [(NONE, *NOBODY)]
    added, verified = world.add(who, 1), world.verify(who, 1)
    assert (added, verified) == ([], [])
    world.transport.release()
    assert added == [NONE]
    assert verified == [{("t", 1): NONE}]
    assert world.state is State.ONGOING
    assert world.scheduler.armed() == 0


# -- EndTxn, version 1


@pytest.mark.parametrize("commit", [True, False])
def test_version_1_ends_a_transaction_in_its_epoch(world, commit):
    who, _ = world.ended(commit)
    assert world.transport.sent == [(Marker(*who, 0, commit, 0), ("t", 0))]
    transaction = world.transaction()
    assert (transaction.producer_id, transaction.producer_epoch, transaction.partitions) == (
        *who,
        frozenset(),
    )


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("was", [True, False])
def test_version_1_answers_the_same_end_again_and_refuses_the_other(world, was, commit):
    who, _ = world.ended(was)
    appends = world.storage.appends
    assert world.end(who, commit) == [(NONE if was == commit else TXN_STATE, *NOBODY)]
    assert world.storage.appends == appends


@pytest.mark.parametrize("commit", [True, False])
def test_version_1_has_nothing_to_end_where_nothing_began(world, commit):
    ((_, *who),) = world.init()
    assert world.end(who, commit) == [(TXN_STATE, *NOBODY)]


@pytest.mark.parametrize("version", [0, 2])
def test_end_refuses_other_producer_ids_and_epochs(world, version):
    producer_id, _ = world.began(version)
    assert world.end((producer_id + 1, 0), True, version=version) == [(MAPPING, *NOBODY)]
    assert world.end((producer_id, 1), True, version=version) == [(FENCED, *NOBODY)]
    world.transaction().producer_epoch = 5
    assert world.end((producer_id, 4), True, version=version) == [(FENCED, *NOBODY)]


@pytest.mark.parametrize("version", [0, 2])
def test_an_end_that_is_being_marked_is_concurrent_and_answered_when_it_is_complete(world, version):
    who = world.began(version)
    world.transport.hold()
    ((_, *after),) = world.end(who, True, version=version)
    again = world.end(who, True, version=version)
    assert again == []
    world.transport.release()
    assert again == [(NONE, *after)]


@pytest.mark.parametrize("version", [0, 2])
def test_prepared_transactions_without_their_markers_are_concurrent_to_the_same_end_only(world, version):
    """While a partition is loaded, requests may come before the markers are sent."""
    who = world.began(version)
    world.transport.hold()
    world.end(who, True, version=version)
    assert world.state is State.PREPARE_COMMIT
    world.transaction().pending = None
    same, other = world.end(who, True, version=version), world.end(who, False, version=version)
    assert other == [(TXN_STATE, *NOBODY)]
    world.scheduler.advance(PATIENCE_MS)
    assert same == [(CONCURRENT, *NOBODY)]
    if version:
        current = (who[0], who[1] + 1)
        assert world.end(current, True, version=2) == [(FENCED, *NOBODY)]
    world.transport.held = None
    world.restart()
    assert world.state is State.COMPLETE_COMMIT


# -- EndTxn, version 2


@pytest.mark.parametrize("commit", [True, False])
def test_version_2_raises_the_epoch_with_each_end(world, commit):
    who, after = world.ended(commit, version=2)
    assert after == (who[0], 1)
    assert world.transport.sent == [(Marker(who[0], 1, 0, commit, 2), ("t", 0))]


TABLE = {  # Kafka's own, in TransactionCoordinator; (abort or commit, retry or current)
    State.EMPTY: {"abort retry": FENCED, "abort": "bump", "commit retry": FENCED, "commit": TXN_STATE},
    State.COMPLETE_ABORT:  {"abort retry": NONE, "abort": "bump",
                            "commit retry": TXN_STATE, "commit": TXN_STATE},
    State.COMPLETE_COMMIT: {"abort retry": TXN_STATE, "abort": "bump",
                            "commit retry": NONE, "commit": TXN_STATE},
}  # fmt: skip


@pytest.mark.parametrize("state", TABLE)
@pytest.mark.parametrize("cell", TABLE[State.EMPTY])
def test_version_2_ends_what_is_at_rest_as_kafkas_table_says(world, state, cell):
    if state is State.EMPTY:
        world.init()
        ((_, *current),) = world.init()
    else:
        _, current = world.ended(state is State.COMPLETE_COMMIT, version=2)
    producer_id, epoch = current
    asked = (producer_id, epoch - 1) if "retry" in cell else (producer_id, epoch)
    sent = len(world.transport.sent)
    world.scheduler.advance(7)
    ((code, *told),) = world.end(asked, "commit" in cell, version=2)
    if TABLE[state][cell] == "bump":
        assert (code, *told) == (NONE, producer_id, epoch + 1)
        assert world.state is State.COMPLETE_ABORT
        assert world.transaction().start_ms == world.clock.now_ms()
    else:
        assert code == TABLE[state][cell]
        assert tuple(told) == (tuple(current) if code == NONE else NOBODY)
        assert world.state is state
    assert len(world.transport.sent) == sent  # nothing was added, so nothing is marked


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", ["prepared", "complete"])
def test_a_fenced_instance_of_version_2_is_not_taken_for_the_newer_one_of_version_1(world, state, commit):
    ((_, *zombie),), ((_, *newer),) = world.init(), world.init()
    world.add(newer, 1)
    if state == "prepared":
        world.transport.hold()
    world.end(newer, commit)
    heard = world.end(zombie, commit, version=2)
    world.transport.release()
    assert heard == [(FENCED, *NOBODY)]


@pytest.mark.parametrize("commit", [True, False])
def test_version_2_goes_on_under_a_new_producer_id_after_the_last_epoch(world, commit):
    who = world.at_epoch(EPOCH_EXHAUSTED)
    world.add(who, version=2)
    assert world.end(who, commit, version=2) == [(NONE, 1001, 0)]
    ((marker, _),) = world.transport.sent
    assert (marker.producer_id, marker.producer_epoch) == (who[0], EPOCH_MAX)
    transaction = world.transaction()
    assert (transaction.prev_producer_id, transaction.last_producer_epoch) == (who[0], EPOCH_EXHAUSTED)
    assert world.end(who, commit, version=2) == [(NONE, 1001, 0)]  # a retry
    assert world.end(who, not commit, version=2) == [(TXN_STATE, *NOBODY)]
    assert world.add((1001, 0), version=2) == [NONE]


def test_version_2_keeps_the_new_producer_id_over_a_restart_before_the_markers(world):
    who = world.at_epoch(EPOCH_EXHAUSTED)
    world.add(who, version=2)
    world.transport.hold()
    assert world.end(who, True, version=2) == [(NONE, 1001, 0)]
    assert world.transaction().next_producer_id == 1001
    world.transport.held = None
    world.restart()
    transaction = world.transaction()
    assert (transaction.state, transaction.producer_id, transaction.producer_epoch) == (
        State.COMPLETE_COMMIT,
        1001,
        0,
    )
    assert world.end(who, True, version=2) == [(NONE, 1001, 0)]


def test_version_2_aborts_a_transaction_whose_epoch_is_beyond_the_last(world):
    who = world.began(version=2)
    world.transaction().producer_epoch = EPOCH_MAX
    assert world.end((who[0], EPOCH_MAX), False, version=2) == [(NONE, 1001, 0)]


def test_version_2_without_a_producer_id_at_hand_ends_nothing_at_the_last_epoch(world):
    who = world.at_epoch(EPOCH_EXHAUSTED)
    world.add(who, version=2)
    ids, world.ids = world.ids, None
    assert world.end(who, True, version=2) == [(errors.COORDINATOR_LOAD_IN_PROGRESS, *NOBODY)]
    world.ids = ids
    assert world.end(who, True, version=2) == [(NONE, 1001, 0)]


def test_an_end_in_version_1_after_one_in_version_2_goes_by_the_rules_of_version_1(world):
    _, after = world.ended(True, version=2)
    assert world.end(after, True) == [(NONE, *NOBODY)]
    world.add(after)
    assert world.end(after, True) == [(NONE, *NOBODY)]
    assert world.transport.sent[-1] == (Marker(*after, 0, True, 0), ("t", 0))


# -- appends that fail


@pytest.mark.parametrize(
    "stored, told",
    [
        (errors.UNKNOWN_TOPIC_OR_PARTITION, errors.COORDINATOR_NOT_AVAILABLE),
        (errors.NOT_ENOUGH_REPLICAS, errors.COORDINATOR_NOT_AVAILABLE),
        (errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND, errors.COORDINATOR_NOT_AVAILABLE),
        (errors.REQUEST_TIMED_OUT, errors.COORDINATOR_NOT_AVAILABLE),
        (errors.NOT_LEADER_OR_FOLLOWER, errors.NOT_COORDINATOR),
        (errors.KAFKA_STORAGE_ERROR, errors.NOT_COORDINATOR),
        (errors.MESSAGE_TOO_LARGE, errors.UNKNOWN_SERVER_ERROR),
        (errors.RECORD_LIST_TOO_LARGE, errors.UNKNOWN_SERVER_ERROR),
        (errors.CORRUPT_MESSAGE, errors.CORRUPT_MESSAGE),
    ],
)
def test_what_cannot_be_written_changes_nothing_and_is_told_in_the_coordinators_words(world, stored, told):
    who = world.began()
    before = world.transaction().partitions
    world.storage.failures = [stored]
    assert world.add(who, 1) == [told]
    assert world.transaction().partitions == before
    assert not world.transaction().is_settling
    assert world.end(who, True) == [(NONE, *NOBODY)]


def test_an_append_may_take_as_long_as_the_transaction(world):
    world.init(timeout_ms=12_345)
    assert world.storage.timeouts_ms == [12_345]


@pytest.mark.parametrize("refusal", ["NOT_ENOUGH_REPLICAS", "KAFKA_STORAGE_ERROR", "MESSAGE_TOO_LARGE"])
def test_the_end_is_written_until_it_is_and_all_wait_meanwhile(world, refusal):
    """A disk may be full for a moment: the id was never served again."""
    who = world.began()
    world.transport.hold()
    world.end(who, True)
    world.storage.failures = [getattr(errors, refusal)] * 2
    world.transport.release()
    waiting = world.add(who, 1)
    world.scheduler.advance(49)
    assert waiting == []
    world.scheduler.advance(1 + 100)  # 50 ms, then 100 ms
    assert waiting == [CONCURRENT]
    assert world.state is State.COMPLETE_COMMIT


# -- waiting


def test_no_more_than_a_few_requests_of_an_id_wait(world):
    who = world.began()
    world.storage.hold()
    world.add(who, 1)
    waiting = [world.add(who, 2) for _ in range(PARKED_MAX)]
    assert world.add(who, 2) == [CONCURRENT]
    world.storage.release(keep_holding=True)
    assert waiting.count([]) == PARKED_MAX  # the first of them is being written, the others wait for it
    world.storage.release()
    assert waiting == [[NONE]] * PARKED_MAX
    assert world.scheduler.armed() == 0


def test_who_waits_has_no_longer_than_one_patience_in_all(world):
    who = world.began()
    world.storage.hold()
    world.add(who, 1)
    waiting = [world.add(who, 2), world.add(who, 3)]
    world.scheduler.advance(60)
    world.storage.release(keep_holding=True)
    world.scheduler.advance(40)
    assert waiting == [[], [CONCURRENT]]
    world.storage.release()
    assert waiting == [[NONE], [CONCURRENT]]


# -- markers


def test_markers_that_can_be_written_later_are_tried_again_ever_less_often(world, caplog):
    who = world.began()
    world.add(who, 1)
    world.transport.failures = [errors.NOT_LEADER_OR_FOLLOWER, NONE, *[errors.REQUEST_TIMED_OUT] * 6]
    world.end(who, True)
    times = []
    for _ in range(40):
        before = len(world.transport.sent)
        world.scheduler.advance(50)
        if len(world.transport.sent) > before:
            times.append(world.clock.monotonic_ms() - 5_000)
    assert times == [50, 150, 350, 750, 1_550]
    assert world.state is State.PREPARE_COMMIT
    assert [partition for _, partition in world.transport.sent[2:]] == [("t", 0)] * 5
    assert caplog.text == ""
    world.transport.failures = [errors.CLUSTER_AUTHORIZATION_FAILED]
    world.coordinator.markers.retry_now()
    assert "no marker in t-0 (CLUSTER_AUTHORIZATION_FAILED); it is tried again" in caplog.text
    world.coordinator.markers.retry_now()
    assert world.state is State.COMPLETE_COMMIT
    assert world.scheduler.armed() == 0


@pytest.mark.parametrize("code", [errors.INVALID_PRODUCER_EPOCH, errors.TRANSACTION_COORDINATOR_FENCED])
def test_markers_that_are_refused_stop_the_transaction_until_it_is_loaded_anew(world, caplog, code):
    who = world.began()
    world.transport.failures = [code]
    with caplog.at_level(logging.WARNING):
        assert world.end(who, True) == [(NONE, *NOBODY)]
    assert errors.NAMES[code] in caplog.text
    assert world.state is State.PREPARE_COMMIT
    assert world.scheduler.armed() == 0
    world.restart()
    assert world.state is State.COMPLETE_COMMIT


@pytest.mark.parametrize("code", [errors.UNSUPPORTED_FOR_MESSAGE_FORMAT, errors.UNSUPPORTED_VERSION])
def test_partitions_that_cannot_have_markers_do_not_hold_up_the_end(world, code):
    who = world.began()
    world.transport.failures = [code]
    world.end(who, True)
    assert world.state is State.COMPLETE_COMMIT


def test_partitions_that_are_deleted_do_not_hold_up_the_end(world):
    who = world.began()
    world.add(who, 1)
    del world.transport.partitions["t", 0]
    world.end(who, True)
    assert [partition for _, partition in world.transport.sent] == [("t", 1)]
    assert world.state is State.COMPLETE_COMMIT


def test_a_partition_that_is_deleted_while_its_marker_waits_does_not_hold_up_the_end(world):
    who = world.began()
    world.transport.failures = [errors.UNKNOWN_TOPIC_OR_PARTITION]
    world.end(who, True)
    assert world.state is State.PREPARE_COMMIT
    del world.transport.partitions["t", 0]
    world.scheduler.advance(50)
    assert world.state is State.COMPLETE_COMMIT


# -- time


@pytest.mark.parametrize("version, epoch", [(1, 1), (2, 1)])
def test_a_transaction_that_takes_too_long_is_fenced_and_aborted(version, epoch):
    world = TransactionWorld(version)
    world.coordinator.start_timers()
    who = world.began(version if version == 2 else 0)
    world.scheduler.advance(60_000)
    assert world.state is State.ONGOING
    world.scheduler.advance(10_000)
    assert world.state is State.COMPLETE_ABORT
    assert world.transaction().producer_epoch == epoch
    ((marker, _),) = world.transport.sent
    assert (marker.producer_epoch, marker.commit) == (epoch, False)
    asked = 2 if version == 2 else 0
    expected = TXN_STATE if version == 2 else FENCED  # under version 2 it looks like a retry of an abort
    assert world.end(who, True, version=asked) == [(expected, *NOBODY)]


def test_two_phase_commits_have_no_time_out(world):
    world.began()
    world.transaction().timeout_ms = NO_TIMEOUT_MS
    world.scheduler.advance(NO_TIMEOUT_MS + 1)
    world.coordinator.abort_timed_out()
    assert world.state is State.ONGOING


def test_a_transaction_does_not_time_out_while_a_change_is_on_its_way(world):
    who = world.began()
    world.scheduler.advance(70_000)
    world.storage.hold()
    world.add(who, 1)
    world.coordinator.abort_timed_out()
    world.storage.release()
    assert world.state is State.ONGOING
    world.coordinator.abort_timed_out()
    assert world.state is State.COMPLETE_ABORT


def test_ids_without_a_transaction_expire_with_a_tombstone(world):
    world.coordinator.start_timers()
    world.init("quiet")
    world.began(name="open")
    world.scheduler.advance(7 * 24 * 3_600_000 - 1)
    assert world.transaction("quiet") is not None
    world.scheduler.advance(3_600_000)
    assert world.transaction("quiet") is None
    assert (records.key_of("quiet"), None) in list(world.storage.records())
    world.restart()
    assert world.transaction("quiet") is None
    assert world.init("quiet")[0][2] == 0


def test_ids_with_an_open_transaction_do_not_expire(world):
    world.began()
    world.scheduler.advance(8 * 24 * 3_600_000)
    world.coordinator.expire()
    assert world.state is State.ONGOING


def test_an_id_whose_tombstone_could_not_be_written_is_kept_and_can_be_used(world):
    world.init()
    world.scheduler.advance(8 * 24 * 3_600_000)
    world.storage.failures = [errors.NOT_ENOUGH_REPLICAS]
    world.coordinator.expire()
    assert world.init() == [(NONE, 1000, 1)]


def test_who_comes_while_an_id_expires_gets_a_new_one_afterwards(world):
    world.init()
    world.scheduler.advance(8 * 24 * 3_600_000)
    world.storage.hold()
    world.coordinator.expire()
    heard = world.init()
    assert heard == []
    world.storage.release()
    assert heard == [(NONE, 1001, 0)]


def test_tombstones_fit_into_batches(world):
    for number in range(300):
        world.init(f"a rather long transactional id, of which few fit into a batch {number}")
    world.scheduler.advance(8 * 24 * 3_600_000)
    world.storage.size_max = 500
    world.coordinator.expire()
    assert not any(shard.transactions for shard in world.coordinator.shards.values())


# -- loading and unloading


def test_what_was_answered_is_there_after_a_restart(world):
    who = world.began(version=2)
    world.add(who, 1, version=2)
    before = world.coordinator.describe(ID)
    world.restart()
    assert world.coordinator.describe(ID) == before
    assert world.end(who, True, version=2) == [(NONE, who[0], 1)]
    assert {partition for _, partition in world.transport.sent} == {("t", 0), ("t", 1)}


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_markers_are_written_again_by_who_loads_a_prepared_transaction(world, version, commit):
    who = world.began(version)
    world.add(who, 1, version=version)
    world.transport.failures = [NONE, errors.NOT_LEADER_OR_FOLLOWER]
    world.end(who, commit, version=version)
    world.restart()
    assert world.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert {marker.coordinator_epoch for marker, _ in world.transport.sent[2:]} == {1}


def test_what_is_loading_is_said_to_be_loading_and_what_is_not_here_is_not(world):
    partition = world.coordinator.partition_for(ID)
    world.coordinator.begin_load(partition)
    loading = errors.COORDINATOR_LOAD_IN_PROGRESS
    assert world.init() == [(loading, *NOBODY)]
    assert world.add((1, 0)) == [loading]
    assert world.coordinator.describe(ID).error_code == loading
    assert world.list([], []).error_code == loading
    world.coordinator.unload(partition)
    assert world.init() == [(errors.NOT_COORDINATOR, *NOBODY)]
    assert world.coordinator.describe(ID).error_code == errors.NOT_COORDINATOR
    assert world.list([], []).error_code == NONE
    world.coordinator.close()
    assert world.init() == [(errors.COORDINATOR_NOT_AVAILABLE, *NOBODY)]
    assert world.list([], []).error_code == errors.COORDINATOR_NOT_AVAILABLE


def test_all_who_wait_are_answered_when_the_partition_leaves(world):
    who = world.began()
    world.storage.hold()
    written, waiting = world.add(who, 1), world.end(who, True)
    world.coordinator.unload(world.coordinator.partition_for(ID))
    assert written == [errors.NOT_COORDINATOR]
    assert waiting == [(errors.NOT_COORDINATOR, *NOBODY)]
    world.storage.release()
    assert (len(written), len(waiting)) == (1, 1)
    assert world.scheduler.armed() == 0


def test_a_partition_that_leaves_gives_its_ids_back_in_slices(world):
    world.began()
    shard = world.coordinator.shards[world.coordinator.partition_for(ID)]
    steps = shard.close()
    assert shard.closed and shard.transactions and shard.ongoing
    for _ in steps:
        pass
    assert not shard.transactions and not shard.ongoing


def test_markers_of_a_partition_that_left_are_not_tried_again(world):
    who = world.began()
    world.transport.failures = [errors.NOT_LEADER_OR_FOLLOWER] * 9
    world.end(who, True)
    world.coordinator.unload(world.coordinator.partition_for(ID))
    world.scheduler.advance(10_000)
    assert len(world.transport.sent) == 1


def test_a_partition_that_does_not_parse_is_not_served(world, caplog):
    partition = world.coordinator.partition_for(ID)
    broken = build_batch([Record(records.key_of(ID), b"\0\1broken", timestamp=1)])
    with pytest.raises(Malformed):
        world.coordinator.load(partition, [broken])
    assert "cannot be loaded" in caplog.text
    assert world.init() == [(errors.NOT_COORDINATOR, *NOBODY)]


# -- records


def filled(state=State.ONGOING):
    transaction = Transaction("é", 77, 9_000, update_ms=1_700_000_000_123)
    transaction.prev_producer_id, transaction.next_producer_id, transaction.producer_epoch = 76, 78, 32_000
    transaction.state, transaction.start_ms, transaction.client_version = state, 1_700_000_000_001, 2
    if state is not State.EMPTY:
        transaction.partitions = frozenset({("b", 1), ("a", 7), ("a", 2)})
    return transaction


def change_of(transaction):
    return transaction._prepare(State.ONGOING)._replace(state=transaction.state, prev_producer_id=76)


@pytest.mark.parametrize("state", [State.EMPTY, State.ONGOING])
def test_a_record_of_version_1_holds_all_but_the_last_epoch(state):
    transaction = filled(state)
    found = records.read(records.key_of("é"), records.value_of(change_of(transaction), 2))
    for name in Transaction.__slots__:
        expected = None if name == "pending" else getattr(transaction, name)
        assert getattr(found, name) == expected, name


def test_a_record_of_version_0_is_written_while_the_feature_is_off():
    value = records.value_of(change_of(filled()), 0)
    assert value[:2] == b"\0\0"
    found = records.read(records.key_of("é"), value)
    assert (found.producer_id, found.prev_producer_id, found.next_producer_id) == (77, -1, -1)
    assert (found.client_version, found.partitions) == (0, filled().partitions)
    assert records.value_of(change_of(filled()), 1)[:2] == b"\0\1"


def test_an_empty_state_has_null_partitions_and_others_an_array():
    empty, _ = codec.decode(
        messages.TransactionLogValue, 1, records.value_of(change_of(filled(State.EMPTY)), 2), 2
    )
    assert empty.transaction_partitions is None
    ongoing, _ = codec.decode(messages.TransactionLogValue, 1, records.value_of(change_of(filled()), 2), 2)
    topics = [(each.topic, list(each.partition_ids)) for each in ongoing.transaction_partitions]
    assert topics == [("a", [2, 7]), ("b", [1])]


@pytest.mark.parametrize("key, value", [(b"\0\1\0\1x", b"\0\1"), (records.key_of("x"), b"\0\2rest")])
def test_unknown_versions_are_skipped_with_a_warning(caplog, key, value):
    assert records.read(key, value) is None
    assert "unknown version" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"transaction_status": 6},
        {"transaction_status": 7},
        {"transaction_status": 99},
        {"producer_id": -1},
        {"producer_epoch": -1},
    ],
)
def test_states_that_nobody_writes_are_malformed(change):
    fields = {"producer_id": 1, "producer_epoch": 0, "transaction_timeout_ms": 1, "transaction_status": 1}
    value = messages.TransactionLogValue(**{**fields, **change}, transaction_partitions=[])
    with pytest.raises(Malformed):
        records.read(records.key_of("x"), b"\0\1" + codec.encode(value, 1))


@pytest.mark.parametrize("key, value", [(b"", b"\0\1"), (b"\0", b"\0\1"), (records.key_of("x"), b"\0")])
def test_records_without_a_version_are_malformed(key, value):
    with pytest.raises(Malformed):
        records.read(key, value)


def test_replay_keeps_the_last_record_of_each_id_also_of_compressed_batches():
    first = change_of(filled())
    last = first._replace(producer_epoch=32_001)
    key = records.key_of("é")
    batches = [
        build_batch(
            [Record(key, records.value_of(first, 2)), Record(records.key_of("b"), b"\0\7")], base_offset=0
        ),
        build_batch([Record(key, records.value_of(last, 2))], base_offset=2, compression=1),
        build_batch([Record(records.key_of("b"), None)], base_offset=3),
    ]
    replay = records.Replay()
    data = b"".join(batches)
    cut = data[:-5]
    taken = replay.feed(cut)
    assert taken == len(data) - len(batches[-1])
    assert replay.feed(data[taken:]) == len(batches[-1])
    (found,) = replay.take(10)
    assert (found.transactional_id, found.producer_epoch) == ("é", 32_001)
    assert not len(replay.latest)


def test_keys_of_type_0_stay_as_they_are_where_there_are_no_offsets():
    latest = LatestRecords(has_offsets=False)
    latest.put(b"\0\0\0\1x", b"v", 0)
    latest.put(b"\0\1\0\1x", b"w", 1)
    assert latest.take_records(1) == [(b"\0\0\0\1x", b"v", 0)]
    assert latest.take_records(5) == [(b"\0\1\0\1x", b"w", 1)]


# -- administration


def test_describe_tells_all_of_a_transaction(world):
    producer_id, epoch = world.began()
    world.add((producer_id, epoch), 3, 1)
    found = world.coordinator.describe(ID)
    assert (found.error_code, found.transaction_state, found.transaction_timeout_ms) == (
        NONE,
        "Ongoing",
        60_000,
    )
    assert (found.producer_id, found.producer_epoch) == (producer_id, epoch)
    assert found.transaction_start_time_ms == world.clock.now_ms()
    assert [(topic.topic, list(topic.partitions)) for topic in found.topics] == [("t", [0, 1, 3])]


def listed(answer):
    assert answer.error_code == NONE
    return {each.transactional_id: each.transaction_state for each in answer.transaction_states}


def test_list_filters_by_state_producer_id_duration_and_pattern(world):
    world.init("empty")
    open_id, _ = world.began(name="open")
    everything = {"empty": "Empty", "open": "Ongoing"}
    assert listed(world.list([], [])) == everything
    assert listed(world.list(["Ongoing"], [])) == {"open": "Ongoing"}
    assert listed(world.list([], [open_id])) == {"open": "Ongoing"}
    assert listed(world.list(["Empty"], [open_id])) == {}
    assert listed(world.list([], [], matches=lambda name: name == "empty")) == {"empty": "Empty"}
    world.scheduler.advance(1_000)
    assert listed(world.list([], [], 1_000)) == {"empty": "Empty"}  # its start is -1, as in Kafka
    assert listed(world.list([], [], 999)) == everything
    assert listed(world.list([], [], -1)) == everything


def test_list_gives_unknown_states_back_and_matches_none_by_them(world):
    world.init()
    answer = world.list(["Nonsense", "ongoing"], [])
    assert answer.unknown_state_filters == ["Nonsense", "ongoing"]
    assert listed(answer) == {}
    assert listed(world.list(["Nonsense", "Empty"], [])) == {ID: "Empty"}
    for name in ("Dead", "PrepareEpochFence"):
        assert world.list([name], []).unknown_state_filters == []
