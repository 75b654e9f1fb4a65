"""Fetches of consumers at followers, and at leaders that send them to a follower in their rack (KIP-392)."""

import pytest
from kafkad._native.log.partition_watermarks import NEW_LEADER

from kafkad.protocol import errors
from tests.unit.log_world import batch
from tests.unit.reactor_world import World, fetch

TOPIC_ID = bytes(range(16))
ROW = (True, True, True, 40)  # in both ISRs, eligible, its epoch


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path))
    yield world
    world.close()


def asked(world, offset=0, version=17, rack="", epoch=-1, wait_ms=0):
    request = fetch([(TOPIC_ID if version >= 13 else "t", 0, offset)], max_wait_ms=wait_ms)
    request.rack_id = rack
    request.topics[0].partitions[0].current_leader_epoch = epoch
    return request, version


def part(answer):
    return answer.responses[0].partitions[0]


def followed(world):
    """Five records, in epoch 5 of another broker."""
    log = world.log("t", topic_id=TOPIC_ID)
    log.append_client(batch(3), 1_000)
    log.append_client(batch(2), 1_000)
    log.native.follow(5, 8)
    assert log.high_watermark == 5
    return log


def led(world, rows, count=3):
    log = world.log("t", topic_id=TOPIC_ID)
    log.set_leader_epoch(3, 1, alone=False)
    log.native.replicate(rows, isr_count=3, isr_count_max=3, reset=NEW_LEADER, now_ms=0, lag_ms_max=1000)
    for _ in range(count):
        log.append_client(batch(1), 1_000)
    return log.native


def test_a_follower_serves_consumers_that_may_know_it_and_refuses_others(world):
    followed(world)
    client = world.connect()
    for version in (11, 12, 17, 18):
        answer = part(client.ask(*asked(world, version=version)))
        assert (answer.error_code, answer.high_watermark, answer.preferred_read_replica) == (0, 5, -1)
        assert answer.records
    assert part(client.ask(*asked(world, version=10))).error_code == errors.NOT_LEADER_OR_FOLLOWER
    for epoch, code in ((4, errors.FENCED_LEADER_EPOCH), (6, errors.UNKNOWN_LEADER_EPOCH), (5, 0)):
        assert part(client.ask(*asked(world, epoch=epoch))).error_code == code
    assert part(client.ask(*asked(world, offset=6))).error_code == errors.OFFSET_OUT_OF_RANGE


def test_a_replica_that_has_lost_its_role_serves_nobody(world):
    log = followed(world)
    log.native.close_to_clients()
    assert part(world.connect().ask(*asked(world))).error_code == errors.NOT_LEADER_OR_FOLLOWER


def test_of_several_in_the_rack_the_one_that_has_most_is_named(world):
    rows = [(2, *ROW, 2), (3, *ROW, 2), (4, *ROW, 0), (5, False, *ROW[1:], 2)]
    native = led(world, rows)
    world.reactor.know_racks(["a", "b"], "a")
    client = world.connect()
    preferred = lambda **more: part(client.ask(*asked(world, **more))).preferred_read_replica  # noqa: E731
    assert preferred(rack="b") == -1  # none of them has fetched yet
    assert native.note_fetch(2, 40, 1, 0, 0) == 0
    assert native.note_fetch(3, 40, 2, 0, 0) == 0
    assert native.note_fetch(5, 40, 3, 0, 0) == 0  # not in the ISR
    assert preferred(rack="b") == 3 and preferred(rack="b", offset=2) == 3
    assert preferred(rack="b", offset=3) == -1
    assert preferred(rack="a") == preferred(rack="c") == preferred() == -1
    assert preferred(rack="b", version=11) == 3
    native.note_fetch(3, 40, 2, 1, 0)  # its log starts later
    assert preferred(rack="b") == 2
    answer = part(client.ask(*asked(world, rack="b", epoch=2)))
    assert (answer.error_code, answer.preferred_read_replica) == (errors.FENCED_LEADER_EPOCH, -1)


def test_a_session_is_told_each_time_and_at_once(world):
    native = led(world, [(2, *ROW, 1)])
    native.note_fetch(2, 40, 3, 0, 0)
    world.reactor.know_racks(["b"], None)
    client = world.connect()
    request, version = asked(world, rack="b", wait_ms=60_000)
    request.session_epoch = 0
    first = client.ask(request, version)
    assert part(first).preferred_read_replica == 2 and not part(first).records
    again, _ = asked(world, rack="b", wait_ms=60_000)
    again.topics, again.session_id, again.session_epoch = [], first.session_id, 1
    assert part(client.ask(again, version)).preferred_read_replica == 2
