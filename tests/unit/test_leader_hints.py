"""Who leads, in the answers of Produces that came to the wrong broker (KIP-951)."""

import pytest
from kafkad._native.log.partition_watermarks import NEW_LEADER

from kafkad.api.node_endpoints import node_endpoints, node_entry
from kafkad.metadata.image import Endpoint
from kafkad.protocol import errors, messages
from tests.unit.log_world import batch
from tests.unit.reactor_world import World, produce

IDS = {"t": bytes(range(16)), "u": bytes(range(1, 17))}
WRONG = errors.NOT_LEADER_OR_FOLLOWER


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path))
    entries = {("PLAINTEXT", each): node_entry(each, Endpoint(f"h{each}", each, 0), "r") for each in (8, 9)}
    world.reactor.name_leader(7, {"PLAINTEXT": node_endpoints(7, Endpoint("h", 1, 0), None)})
    world.reactor.name_leaders(entries)
    yield world
    world.close()


def led(world, topic, index):
    """By us, with a follower that has fetched nothing: acks=all waits."""
    log = world.log(topic, index, topic_id=IDS[topic])
    log.set_leader_epoch(3, 7, alone=False)
    rows = [(2, True, True, True, 40, 0)]
    log.native.replicate(rows, isr_count=2, isr_count_max=2, reset=NEW_LEADER, now_ms=0, lag_ms_max=1000)
    return log.native


def asked(version, parts, **fields):
    """`parts`: (topic, partition), neighbours of a topic together."""
    by_topic = {}
    for topic, index in parts:
        by_topic.setdefault(topic, {})[index] = bytes(batch(1))
    requests = [
        produce(IDS[topic] if version >= 13 else topic, batches, **fields)
        for topic, batches in by_topic.items()
    ]
    requests[0].topic_data = [data for request in requests for data in request.topic_data]
    return requests[0]


def told(answer):
    found = {
        (index, part.index): (
            part.error_code,
            part.current_leader.leader_id,
            part.current_leader.leader_epoch,
        )
        for index, topic in enumerate(answer.responses)
        for part in topic.partition_responses
    }
    return found, [(node.node_id, node.host, node.port, node.rack) for node in answer.node_endpoints]


@pytest.mark.parametrize("version", [9, 10, 12, 13])
@pytest.mark.parametrize("acks", [1, -1])
def test_a_follower_names_its_leader(world, version, acks):
    for topic, index, leader in (("t", 0, 8), ("t", 1, 9), ("u", 0, 8), ("u", 1, -1)):
        world.log(topic, index, topic_id=IDS[topic]).native.follow(5, leader)
    world.log("t", 2, topic_id=IDS["t"])
    request = asked(version, [("t", 1), ("t", 2), ("t", 0), ("u", 1), ("u", 0)], acks=acks)
    parts, nodes = told(world.connect().ask(request, version))
    if version < 10:
        assert {code for code, *_ in parts.values()} == {WRONG, 0} and nodes == []
        return
    assert parts == {
        (0, 1): (WRONG, 9, 5), (0, 2): (0, -1, -1), (0, 0): (WRONG, 8, 5),
        (1, 1): (WRONG, -1, 5), (1, 0): (WRONG, 8, 5),
    }  # fmt: skip
    assert nodes == [(8, "h8", 8, "r"), (9, "h9", 9, "r")]


def test_who_waits_while_the_leader_changes_is_told_who_leads_now(world):
    first, second = led(world, "t", 0), led(world, "u", 0)
    led(world, "t", 1)
    world.log("t", 2, topic_id=IDS["t"]).native.follow(4, 9)
    client = world.connect()
    request = asked(13, [("t", 2), ("t", 1), ("t", 0), ("u", 0)], timeout_ms=60_000)
    number = client.send_request(request, 13)
    world.poll()
    second.follow(5, 8)
    first.follow(6, 9)
    world.table.get("t", 1).note_fetch(2, 40, 1, 0, 0)
    parts, nodes = told(client.receive(messages.ProduceResponse, 13, number))
    assert parts == {
        (0, 2): (WRONG, 9, 4), (0, 1): (0, -1, -1), (0, 0): (WRONG, 9, 6), (1, 0): (WRONG, 8, 5)
    }  # fmt: skip
    assert nodes == [(8, "h8", 8, "r"), (9, "h9", 9, "r")]
    assert client.ask(asked(13, [("t", 1)], acks=1), 13).responses[0].partition_responses[0].error_code == 0


def test_a_request_that_is_never_answered_takes_its_hints_with_it(world):
    led(world, "t", 0)
    world.log("t", 1, topic_id=IDS["t"]).native.follow(4, 9)
    client = world.connect()
    client.send_request(asked(13, [("t", 1), ("t", 0)], timeout_ms=60_000), 13)
    world.poll()
    assert world.reactor.stats()["produce_waits"] == 1  # and the world ends now
