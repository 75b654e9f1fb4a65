"""Followers' Fetches at a leader: the order of the checks, what they note, and whom that wakes."""

import pytest
from kafkad._native.log.partition_watermarks import NEW_LEADER
from reactor_world import World, batch, fetch, produce, rows

from kafkad.protocol import errors, messages

TOPIC_ID = bytes(range(16))
EPOCH = 41  # of broker 2
VERSIONS = [4, 11, 12, 13, 14, 15, 17, 18]


class Leader(World):
    """Broker 1 leads "t"-0 in epoch 3, with broker 2 as its follower."""

    def lead(self, *, isr=(2,), insync=1, **config):
        self.led = self.log("t", topic_id=TOPIC_ID, min_insync_replicas=insync, **config)
        self.led.set_leader_epoch(3, 1, alone=False)
        self.show(isr)
        return self

    def show(self, isr, maximal=None):
        maximal = isr if maximal is None else maximal
        self.led.native.replicate(
            [(2, 2 in isr, 2 in maximal, True, EPOCH, 0)],
            isr_count=len(isr) + 1,
            isr_count_max=len(maximal) + 1,
            reset=NEW_LEADER,
            now_ms=0,
            lag_ms_max=1000,
        )


@pytest.fixture
def world(tmp_path):
    world = Leader(str(tmp_path)).lead()
    yield world
    world.close()


def topic_of(version):
    return TOPIC_ID if version >= 13 else "t"


def asked(offset, version=17, *, broker=2, epoch=EPOCH, leader_epoch=3, last_epoch=-1, **fields):
    fields = {"max_wait_ms": 0, "min_bytes": 1, **fields}
    request = fetch([(topic_of(version), 0, offset)], **fields)
    if version >= 15:
        request.replica_state.replica_id, request.replica_state.replica_epoch = broker, epoch
    else:
        request.replica_id = broker
    for topic in request.topics:
        for part in topic.partitions:
            part.current_leader_epoch, part.last_fetched_epoch = leader_epoch, last_epoch
    return request


def told(answer):
    return answer.responses[0].partitions[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_follower_reads_to_the_end_and_commits_what_it_has(world, version):
    client = world.connect()
    client.ask(produce("t", {0: batch(3)}, acks=1), 9)
    follower = world.connect()
    part = told(follower.ask(asked(0, version), version))
    assert (part.error_code, part.high_watermark, len(part.records)) == (0, 0, len(batch(3)))
    assert rows(client.fetch([(topic_of(version), 0, 0)], version=version))[0][3:] == (0, 0)
    part = told(follower.ask(asked(3, version), version))
    assert (part.error_code, part.high_watermark, part.records) == (0, 3, b"")
    assert world.led.high_watermark == 3
    ((_, end, start, epoch, _, _),) = world.led.native.replica_rows()
    assert (end, epoch) == (3, EPOCH if version >= 15 else -1)
    assert start == (0 if version >= 5 else -1) or start == -1


def test_acks_all_waits_for_the_followers_next_fetch(world):
    client, follower = world.connect(), world.connect()
    waiting = client.send_request(produce("t", {0: batch(2)}, acks=-1), 9)
    world.poll()
    assert not client.has_answer()
    follower.ask(asked(0), 17)
    world.poll()
    assert not client.has_answer()
    follower.ask(asked(2), 17)
    answer = client.receive(messages.ProduceResponse, 9, waiting)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_waiting_follower_is_woken_by_an_append_and_not_by_the_high_watermark(world):
    client, follower = world.connect(), world.connect()
    waiting = follower.send_request(asked(0, max_wait_ms=60_000), 17)
    world.poll()
    assert not follower.has_answer()
    client.ask(produce("t", {0: batch(2)}, acks=1), 9)
    part = told(follower.receive(messages.FetchResponse, 17, waiting))
    assert (part.high_watermark, bool(part.records)) == (0, True)
    waiting = follower.send_request(asked(2, max_wait_ms=60_000), 17)
    world.poll()
    assert world.led.high_watermark == 2
    assert not follower.has_answer()


def test_a_follower_gets_what_is_appended_because_its_own_fetch_raised_the_high_watermark(world):
    """As a transaction coordinator does: it writes the next record when the one before is committed."""
    client, follower = world.connect(), world.connect()
    client.ask(produce("t", {0: batch(2)}, acks=1), 9)
    appended = []
    world.led.await_high_watermark(2, lambda _: appended.append(world.led.append(bytearray(batch(1)), 0)))
    waiting = follower.send_request(asked(2, max_wait_ms=60_000), 17)
    part = told(follower.receive(messages.FetchResponse, 17, waiting))
    assert (appended, part.high_watermark, part.records[:8]) == ([2], 2, (2).to_bytes(8, "big"))


def test_the_read_at_the_end_of_a_wait_notes_nothing(world):
    """T8: a follower that died while its Fetch waited is not caught up by the answer to it."""
    client, follower = world.connect(), world.connect()
    follower.send_request(asked(0, max_wait_ms=60_000), 17)
    world.poll()
    before = world.led.native.replica_rows()
    client.ask(produce("t", {0: batch(2)}, acks=1), 9)
    world.poll()
    assert world.led.native.replica_rows() == before


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"leader_epoch": 2}, errors.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 4}, errors.UNKNOWN_LEADER_EPOCH),
        ({"broker": 9}, errors.UNKNOWN_LEADER_EPOCH),  # T29: assigned, but not heard of here yet
        ({"broker": 9, "leader_epoch": -1}, errors.NOT_LEADER_OR_FOLLOWER),
        ({"epoch": EPOCH - 1}, errors.NOT_LEADER_OR_FOLLOWER),  # T6
        ({"offset": 9}, errors.OFFSET_OUT_OF_RANGE),
        ({"offset": 2, "last_epoch": 4}, errors.OFFSET_OUT_OF_RANGE),  # T13: an epoch that is not known
    ],
)
def test_what_is_refused_is_not_noted(world, fields, code):
    client = world.connect()
    client.ask(produce("t", {0: batch(2)}, acks=1), 9)
    fields = {"offset": 2, **fields}
    part = told(world.connect().ask(asked(fields.pop("offset"), **fields), 17))
    assert (part.error_code, part.records) == (code, b"")
    assert world.led.native.replica_rows()[0][1] == -1
    assert world.led.high_watermark == 0


def test_a_follower_whose_log_parts_is_told_where_and_not_noted(world):
    """T8, T12, T18: epoch 3 begins at 0; the follower has records of epoch 2 that this leader never had."""
    client, follower = world.connect(), world.connect()
    client.ask(produce("t", {0: batch(2)}, acks=1), 9)
    world.led.set_leader_epoch(5, 1, alone=False)
    part = told(follower.ask(asked(4, leader_epoch=5, last_epoch=3, max_wait_ms=60_000), 17))
    assert (part.error_code, part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (0, 3, 2)
    part = told(follower.ask(asked(3, leader_epoch=5, last_epoch=5, max_wait_ms=60_000), 17))
    assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (5, 2)
    assert world.led.native.replica_rows()[0][1] == -1
    part = told(follower.ask(asked(2, leader_epoch=5, last_epoch=3), 17))
    assert (part.error_code, part.diverging_epoch.epoch) == (0, -1)
    assert world.led.native.replica_rows()[0][1] == 2


def test_a_waiting_follower_of_the_epoch_before_is_answered_when_it_ends(world):
    """T10: FENCED_LEADER_EPOCH, so that it comes again with the new one."""
    follower = world.connect()
    waiting = follower.send_request(asked(0, max_wait_ms=60_000), 17)
    world.poll()
    world.led.set_leader_epoch(4, 1, alone=False)
    part = told(follower.receive(messages.FetchResponse, 17, waiting))
    assert part.error_code == errors.FENCED_LEADER_EPOCH


def test_a_follower_that_has_all_asks_to_join_the_isr(world):
    joined = []
    world.led.replica_joins = lambda log, broker_id: joined.append(broker_id)
    world.show(())
    world.connect().ask(produce("t", {0: batch(2)}, acks=-1), 9)
    follower = world.connect()
    follower.ask(asked(0), 17)
    assert joined == []
    follower.ask(asked(2), 17)
    assert joined == [2]


def code_of(answer):
    return answer.responses[0].partition_responses[0].error_code


def test_what_overtook_a_batch_that_the_isr_was_too_small_for_is_to_come_again(tmp_path):
    """Were the second batch accepted, the first one would be out of order for ever."""
    world = Leader(str(tmp_path)).lead(isr=(), insync=2)
    world.led.native.expect_order()  # as 30 s later
    client = world.connect()

    def told_to(sequence, count=2, acks=1):
        records = batch(count, producer_id=7, producer_epoch=0, base_sequence=sequence)
        return code_of(client.ask(produce("t", {0: records}, acks=acks), 9))

    assert told_to(0, acks=-1) == errors.NOT_ENOUGH_REPLICAS
    world.show((2,))
    assert told_to(2) == errors.NOT_LEADER_OR_FOLLOWER
    assert told_to(0) == 0
    assert told_to(4) == errors.NOT_LEADER_OR_FOLLOWER
    assert told_to(2) == 0
    world.show((2,))  # no batch was refused for it
    world.led.native.expect_order()
    world.show((2,))
    assert told_to(6) == errors.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_acks_all_below_min_insync_replicas_is_refused_and_acks_1_is_not(tmp_path):
    world = Leader(str(tmp_path)).lead(isr=(), insync=2)
    client = world.connect()
    assert code_of(client.ask(produce("t", {0: batch()}, acks=-1), 9)) == errors.NOT_ENOUGH_REPLICAS
    assert world.led.end_offset == 0
    assert code_of(client.ask(produce("t", {0: batch()}, acks=1), 9)) == 0
    world.show((2,))
    waiting = client.send_request(produce("t", {0: batch()}, acks=-1), 9)
    world.poll()
    assert not client.has_answer()
    world.connect().ask(asked(2), 17)
    assert code_of(client.receive(messages.ProduceResponse, 9, waiting)) == 0
    world.close()


def test_an_isr_that_shrinks_below_min_insync_replicas_holds_what_waits(tmp_path):
    world = Leader(str(tmp_path)).lead(insync=2)
    client = world.connect()
    waiting = client.send_request(produce("t", {0: batch()}, acks=-1), 9)
    world.poll()
    world.show(())
    world.connect().ask(asked(1), 17)
    world.poll()
    assert not client.has_answer()
    world.show((2,))
    world.connect().ask(asked(1), 17)
    assert code_of(client.receive(messages.ProduceResponse, 9, waiting)) == 0
    world.close()


def test_a_followers_session_tells_of_a_high_watermark_that_moved(world):
    """T27: with the next answer, not by itself."""
    client, follower = world.connect(), world.connect()
    client.ask(produce("t", {0: batch(2)}, acks=1), 9)
    first = follower.ask(asked(0, session_epoch=0), 17)
    again = asked(2, session_id=first.session_id, session_epoch=1)
    part = told(follower.ask(again, 17))
    assert (part.high_watermark, part.records) == (2, b"")
    nothing = asked(0, session_id=first.session_id, session_epoch=2)
    nothing.topics = []
    assert follower.ask(nothing, 17).responses == []


def test_a_follower_that_waits_is_told_at_once_that_the_log_begins_later(world):
    """DeleteRecords waits until its next Fetch says that it has followed."""
    client, follower = world.connect(), world.connect()
    client.ask(produce("t", {0: batch(3)}, acks=1), 9)
    first = follower.ask(asked(0, session_epoch=0), 17)

    def wait(epoch, start):
        request = asked(3, session_id=first.session_id, session_epoch=epoch, max_wait_ms=60_000)
        request.topics[0].partitions[0].log_start_offset = start
        return follower.send_request(request, 17)

    follower.ask(asked(3, session_id=first.session_id, session_epoch=1), 17)
    waiting = wait(2, 0)
    world.poll()
    assert not follower.has_answer()
    world.led.delete_records(2)
    assert told(follower.receive(messages.FetchResponse, 17, waiting)).log_start_offset == 2
    waiting = wait(3, 0)  # it has been told, and cannot follow yet
    world.poll()
    assert not follower.has_answer()
    client.ask(produce("t", {0: batch(1)}, acks=1), 9)
    follower.receive(messages.FetchResponse, 17, waiting)
    world.led.delete_records(3)
    waiting = wait(4, 2)  # sent before it could know
    assert told(follower.receive(messages.FetchResponse, 17, waiting)).log_start_offset == 3


def test_a_partition_with_one_replica_has_no_followers(tmp_path):
    world = World(str(tmp_path))
    world.log("t", topic_id=TOPIC_ID)
    part = told(world.connect().ask(asked(0, leader_epoch=0), 17))
    assert part.error_code == errors.UNKNOWN_LEADER_EPOCH
    world.close()


def test_followers_that_wait_are_answered_when_we_lead_another_partition_and_consumers_are_not(world):
    follower, consumer = world.connect(), world.connect()
    opened = follower.ask(asked(0, session_id=0, session_epoch=0), 17)
    waits = {"max_wait_ms": 600_000, "session_id": opened.session_id}
    waiting = follower.send_request(asked(0, session_epoch=1, **waits), 17)
    consumer.send_request(fetch([("t", 0, 0)], max_wait_ms=600_000, min_bytes=1), 12)
    world.poll()
    assert not follower.has_answer()
    world.reactor.expect_followers()
    answer = follower.receive(messages.FetchResponse, 17, waiting)
    assert (answer.error_code, answer.responses) == (0, [])
    waiting = follower.send_request(asked(0, session_epoch=2, **waits), 17)
    world.poll()
    world.reactor.expect_followers()  # the moment of before may be over
    assert follower.receive(messages.FetchResponse, 17, waiting).error_code == 0
    assert not consumer.has_answer()
