"""The guard before a transaction's first batch: who may append, who must ask, who comes too late."""

import random

import pytest

from kafkad.log.admission import Admission, NeedTransaction
from kafkad.protocol.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_REQUEST,
    INVALID_TXN_STATE,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError,
)
from tests.reference.slow_guards import SlowGuards
from tests.unit.log_world import LogWorld, idempotent, topic_config

ADDED, IMPLICIT = Admission.ADDED, Admission.IMPLICIT


@pytest.fixture
def world(tmp_path):
    return LogWorld(tmp_path)


def send(world, sequence=0, *, producer=7, epoch=0, admission=ADDED, guard=0, count=1, **fields):
    """The base offset, an error code as a negative number, or ("ask", guard)."""
    data = idempotent(sequence, count, producer, epoch, transactional=True, **fields)
    end = world.log.end_offset
    try:
        return world.log.append_client(data, world.now_ms, admission, guard).base_offset
    except NeedTransaction as asked:
        assert world.log.end_offset == end
        return "ask", asked.guard
    except KafkaError as trouble:
        assert world.log.end_offset == end
        return -trouble.code


def begin(world, sequence=0, **fields):
    word, guard = send(world, sequence, **fields)
    assert word == "ask" and guard > 0
    return send(world, sequence, guard=guard, **fields)


def end(world, producer=7, epoch=0, version=0):
    return world.log.append_marker(producer, epoch, 0, commit=True, version=version, now_ms=1_000)


@pytest.mark.parametrize("admission", [ADDED, IMPLICIT])
def test_only_the_first_batch_of_a_transaction_is_asked_for(world, admission):
    assert begin(world, admission=admission) == 0
    assert send(world, 1, admission=admission) == 1
    assert send(world, 2, count=3, admission=admission) == 2
    assert world.log.last_stable_offset == 0
    end(world)
    assert send(world, 5, admission=admission)[0] == "ask"


def test_a_request_without_a_transactional_id_is_refused(world):
    assert send(world, admission=Admission.PLAIN) == -INVALID_REQUEST
    assert begin(world) == 0
    assert send(world, 1, admission=Admission.PLAIN) == -INVALID_REQUEST


def test_without_verification_nobody_is_asked(world):
    assert send(world, admission=Admission.UNVERIFIED) == 0
    end(world, epoch=1)
    assert send(world, 1, admission=Admission.UNVERIFIED) == -INVALID_PRODUCER_EPOCH


def test_a_guard_that_was_not_given_is_refused(world):
    assert send(world, guard=5) == -INVALID_TXN_STATE
    _, guard = send(world)
    assert send(world, guard=guard + 1) == -INVALID_TXN_STATE
    assert send(world, producer=8, guard=guard) == -INVALID_TXN_STATE
    assert send(world, guard=guard) == 0


def test_an_answer_that_comes_after_the_marker_is_too_late(world):
    """ABA: the transaction that was verified is over, and another may have begun."""
    _, guard = send(world)
    end(world)
    assert send(world, guard=guard) == -INVALID_TXN_STATE
    _, fresh = send(world)
    assert fresh != guard
    assert send(world, guard=guard) == -INVALID_TXN_STATE
    assert send(world, guard=fresh) == 1


def test_the_marker_of_the_transaction_before_leaves_the_guard_of_the_next(world):
    """TV2: the epoch rises with each. The next one may ask before the marker of this one is there."""
    assert begin(world, admission=IMPLICIT) == 0
    _, guard = send(world, epoch=1, admission=IMPLICIT)
    end(world, epoch=1, version=2)
    assert send(world, epoch=1, admission=IMPLICIT, guard=guard) == 2


def test_under_tv1_a_marker_takes_the_guard_of_its_epoch(world):
    _, guard = send(world, epoch=1)
    end(world, epoch=1)
    assert send(world, epoch=1, guard=guard) == -INVALID_TXN_STATE


def test_a_retry_is_answered_and_not_asked_for(world):
    assert begin(world, count=2) == 0
    assert send(world, 2) == 2
    assert send(world, 0, count=2) == 0
    end(world)
    assert send(world, 2) == -OUT_OF_ORDER_SEQUENCE_NUMBER  # of an ended transaction: it is no retry
    assert send(world, 3)[0] == "ask"


def test_a_later_batch_does_not_overtake_the_first(world):
    """Else the first would be out of order for ever."""
    _, guard = send(world, 1)
    assert send(world, 0) == ("ask", guard)
    assert send(world, 1, guard=guard) == -OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(world, 0, guard=guard) == 0
    assert send(world, 1) == 1


def test_a_higher_epoch_begins_its_sequences_anew(world):
    _, guard = send(world, 0, epoch=1)
    assert send(world, 5, epoch=2) == ("ask", guard)
    assert send(world, 5, epoch=2, guard=guard) == 0


def test_a_producer_that_nobody_knows_begins_at_zero_under_tv2(world):
    _, guard = send(world, 3, admission=IMPLICIT)
    assert send(world, 3, admission=IMPLICIT, guard=guard) == -OUT_OF_ORDER_SEQUENCE_NUMBER
    assert begin(world, 3, producer=8) == 0


def test_an_old_epoch_is_refused_before_anybody_is_asked(world):
    assert begin(world, epoch=3) == 0
    assert send(world, epoch=2) == -INVALID_PRODUCER_EPOCH
    end(world, epoch=4, version=2)
    assert send(world, epoch=3) == -INVALID_PRODUCER_EPOCH


def test_guards_are_bounded_and_expire(world):
    for producer in range(10_000):
        assert send(world, producer=producer)[0] == "ask"
    assert send(world, producer=10_000) == -INVALID_TXN_STATE
    _, guard = send(world, producer=5)
    world.now_ms += world.log.producer_expiration_ms + 1
    world.log.remove_expired_producers(world.now_ms)
    assert send(world, producer=5, guard=guard) == -INVALID_TXN_STATE
    assert begin(world, producer=10_000) == 0


def test_a_guard_of_an_earlier_term_is_asked_for_anew(world):
    """INVALID_TXN_STATE would make the client abort a transaction that nobody has ended."""
    _, guard = send(world)
    world.log.resign()
    world.log.set_leader_epoch(1)
    assert send(world, guard=guard) == -NOT_LEADER_OR_FOLLOWER
    assert begin(world) == 0
    end(world)
    _, guard = send(world, 1)
    end(world)
    assert send(world, 1, guard=guard) == -INVALID_TXN_STATE


def test_the_term_of_a_guard_is_known_however_many_come_after_it(world):
    """Their table grows, and is copied."""
    _, guard = send(world)
    world.log.resign()
    world.log.set_leader_epoch(1)
    for producer in range(100, 200):
        assert begin(world, producer=producer) == producer - 100
        assert send(world, guard=guard) == -NOT_LEADER_OR_FOLLOWER


def test_the_slow_path_asks_first_and_brings_the_guard(tmp_path):
    world = LogWorld(tmp_path, topic_config(compression_type="gzip"))
    _, guard = send(world)
    assert world.log.append_client(idempotent(0, 1, 9), 1_000).base_offset == 0
    begun = world.log.begin_append(idempotent(0, 2, 7, transactional=True), 1_000, ADDED, guard)
    while begun.step() >= 0:
        pass
    assert begun.finish(1_000).base_offset == 1
    _, guard = send(world, producer=8)
    begun = world.log.begin_append(idempotent(0, 2, 8, transactional=True), 1_000, ADDED, guard)
    while begun.step() >= 0:
        pass
    end(world, producer=8)  # meanwhile
    with pytest.raises(KafkaError) as caught:
        begun.finish(1_000)
    assert caught.value.code == INVALID_TXN_STATE


def test_a_roll_between_the_ask_and_the_append_changes_nothing(tmp_path):
    world = LogWorld(tmp_path, topic_config(segment_bytes=200))
    assert begin(world, size=60) == 0
    end(world)
    assert begin(world, 1, size=60) == 2
    assert len(world.log.segments) > 1


def test_a_groups_commit_asks_by_itself(world):
    guard = world.log.ask_guard(IMPLICIT, 7, 0, -1, 1_000)
    assert guard > 0
    data = idempotent(-1, 1, transactional=True)
    with pytest.raises(KafkaError) as caught:
        world.log.append(bytearray(data), 1_000, admission=IMPLICIT, guard=guard + 1)
    assert caught.value.code == INVALID_TXN_STATE
    assert world.log.append(bytearray(data), 1_000, admission=IMPLICIT, guard=guard) == 0
    assert world.log.ask_guard(IMPLICIT, 7, 0, -1, 1_000) == 0


@pytest.mark.parametrize("seed", range(30))
def test_random_asks_against_the_twin(tmp_path, seed):
    chance = random.Random(seed)
    world, twin = LogWorld(tmp_path), SlowGuards()
    asked = [0]
    for _ in range(300):
        producer, epoch = chance.randrange(6), chance.choice((0, 0, 0, 1, 2))
        if chance.random() < 0.25:
            version = chance.choice((0, 2))
            expected = twin.marker(producer, epoch, version)
            try:
                end(world, producer, epoch, version)
                code = NONE
            except KafkaError as trouble:
                code = trouble.code
            assert code == expected
            continue
        admission = chance.choice((ADDED, IMPLICIT))
        sequence, guard = chance.randrange(4), chance.choice(asked[-6:])
        found = send(world, sequence, producer=producer, epoch=epoch, admission=admission, guard=guard)
        expected = twin.append(producer, epoch, sequence, admission is IMPLICIT, guard)
        if isinstance(found, tuple):
            assert expected == "ask"
            twin.guards[producer].number = found[1]
            asked.append(found[1])
        else:
            assert found == expected or (found >= 0 and expected == "appended")
