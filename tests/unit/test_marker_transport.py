"""Markers on their way to the logs of one worker, and of two that are processes of their own."""

import asyncio
import itertools
import time

import pytest

from kafkad.coordinator.markers import Marker
from kafkad.protocol import errors, messages
from kafkad.server import marker_transport
from kafkad.server.gate_messages import unpack_answer
from kafkad.server.marker_messages import pack_markers
from kafkad.server.routing import FORWARD
from tests.unit.routing_world import OFFSETS_TOPIC, TOPICS, World

ALL = [(topic, index) for topic, count in TOPICS.items() for index in range(count)]


@pytest.fixture
def make_world(tmp_path):
    made = []

    def make(count):
        made.append(World(tmp_path, count))
        return made[-1]

    yield make
    for world in made:
        world.close()


def transport(world):
    return world.site.services.transactions.markers._transport


def marker(producer_id=900, epoch=1, commit=True, coordinator_epoch=3):
    return Marker(producer_id, epoch, coordinator_epoch, commit, 2)


async def write(transport, *calls):
    """The codes of several calls in one turn."""
    loop = asyncio.get_running_loop()
    futures = []
    for each, partitions in calls:
        futures.append(loop.create_future())
        transport.write_markers(each, partitions, futures[-1].set_result)
    return await asyncio.gather(*futures)


async def coordinator_epochs(world, producer_id, partitions):
    """Of the markers that the logs have, as DescribeProducers tells them."""
    Topic = messages.DescribeProducersRequest.Topics
    topics = [Topic(name=topic, partition_indexes=[index]) for topic, index in partitions]
    client = await world.client()
    response = await client.ask(messages.DescribeProducersRequest(topics=topics))
    return [
        producer.coordinator_epoch
        for topic in response.topics
        for partition in topic.partitions
        for producer in partition.active_producers
        if producer.producer_id == producer_id
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_each_marker_reaches_the_log_of_its_partition(make_world, count):
    world = make_world(count)
    way = transport(world)
    partitions = [*ALL, (OFFSETS_TOPIC, 0), (OFFSETS_TOPIC, 1)]
    (codes,) = world.run(write(way, (marker(), partitions)))
    assert codes == dict.fromkeys(partitions, errors.NONE)
    assert world.run(coordinator_epochs(world, 900, ALL)) == [3] * len(ALL)


@pytest.mark.parametrize(
    ("few", "kinds"),
    [
        (marker_transport.FEW, [marker_transport.MARKERS]),
        (0, [FORWARD, FORWARD]),  # the second for the producer that is there twice
    ],
    ids=["in a message", "in requests"],
)
def test_markers_of_one_turn_go_together_and_get_their_own_answers(make_world, monkeypatch, few, kinds):
    monkeypatch.setattr(marker_transport, "FEW", few)
    world = make_world(2)
    way = transport(world)
    theirs = [each for each in ALL if world.owner(*each) == 1]
    assert theirs
    asked = []
    ask = world.peers.ask
    world.peers.ask = lambda k, kind, *rest: asked.append(kind) or ask(k, kind, *rest)
    old = marker(901, epoch=2, coordinator_epoch=2)
    found = world.run(
        write(way, (marker(900), theirs), (marker(901), theirs), (marker(902), theirs[:1]), (old, theirs))
    )
    assert asked == kinds
    ends = [set(codes.values()) for codes in found]
    assert ends[:3] == [{errors.NONE}] * 3
    assert ends[3] == {errors.TRANSACTION_COORDINATOR_FENCED}
    assert [set(codes) for codes in found] == [set(theirs), set(theirs), set(theirs[:1]), set(theirs)]


def test_a_worker_that_is_gone_is_tried_again_later(make_world):
    world = make_world(2)
    way = transport(world)
    world.kill(1)
    (codes,) = world.run(write(way, (marker(), ALL)))
    expected = {0: errors.NONE, 1: errors.NOT_LEADER_OR_FOLLOWER}
    assert codes == {each: expected[world.owner(*each)] for each in ALL}
    world.fork(1)
    world.loop.run_until_complete(world.peers.wait_up(1, 30))
    (codes,) = world.run(write(way, (marker(), ALL)))
    assert set(codes.values()) == {errors.NONE}


def test_many_markers_let_others_have_their_turn(make_world, monkeypatch):
    """A transaction may have thousands of partitions."""
    world = make_world(1)
    way = transport(world)
    written = []

    def write_marker(_services, topic, index, _marker, done):
        time.sleep(marker_transport.TURN_S / 2)
        written.append((topic, index))
        done(errors.NONE)

    monkeypatch.setattr(marker_transport, "write_marker", write_marker)
    partitions = [("a", index) for index in range(20)]
    seen = []

    async def scenario():
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        way.write_markers(marker(), partitions, ended.set_result)
        while not ended.done():
            seen.append(len(written))
            await asyncio.sleep(0)
        return ended.result()

    assert world.run(scenario()) == dict.fromkeys(partitions, errors.NONE)
    assert written == partitions
    assert max(after - before for before, after in itertools.pairwise([0, *seen, 20])) <= 3


def test_many_messages_of_markers_let_others_have_their_turn(make_world, monkeypatch):
    world = make_world(1)
    way = transport(world)
    written = []

    def write_marker(_services, topic, index, entry, done):
        time.sleep(marker_transport.TURN_S / 2)
        written.append((entry.producer_id, topic, index))
        done(errors.NONE)

    monkeypatch.setattr(marker_transport, "write_marker", write_marker)
    topic, count = next(iter(TOPICS.items()))
    partitions = [(topic, index) for index in range(count)]
    producers = range(900, 906)
    seen, answers = [], []

    async def scenario():
        for producer_id in producers:  # in one turn
            answer = way._asked(1, pack_markers([(marker(producer_id), [*partitions, ("nowhere", 0)])]))
            answer.then(answers.append)
        while len(answers) < len(producers):
            seen.append(len(written))
            await asyncio.sleep(0)

    world.run(scenario())
    assert written == [(producer_id, *each) for producer_id in producers for each in partitions]
    found = [*[errors.NONE] * count, errors.UNKNOWN_TOPIC_OR_PARTITION]
    assert [list(unpack_answer(each)) for each in answers] == [found] * len(producers)
    assert max(after - before for before, after in itertools.pairwise([0, *seen, len(written)])) <= 3


def test_one_marker_that_fails_or_waits_does_not_keep_the_others_of_its_message(make_world, monkeypatch):
    world = make_world(1)
    way = transport(world)
    monkeypatch.setattr(marker_transport, "ASKED_S", 0.1)

    def write_marker(_services, _topic, index, _entry, done):
        if index == 0:
            raise ValueError("broken")
        if index != 1:  # that one does not become durable
            done(errors.NONE)

    monkeypatch.setattr(marker_transport, "write_marker", write_marker)
    topic, count = next((topic, count) for topic, count in TOPICS.items() if count > 2)
    partitions = [(topic, index) for index in range(count)]

    async def scenario():
        return unpack_answer(await way._asked(1, pack_markers([(marker(), partitions)])))

    wanted = [errors.UNKNOWN_SERVER_ERROR, errors.REQUEST_TIMED_OUT, *[errors.NONE] * (count - 2)]
    assert list(world.run(scenario())) == wanted


def test_a_marker_that_waited_too_long_is_not_written(make_world, monkeypatch):
    """Its sender has sent it again, and its producer may have begun another transaction."""
    world = make_world(1)
    way = transport(world)
    monkeypatch.setattr(marker_transport, "ASKED_S", 0.0)
    monkeypatch.setattr(marker_transport, "write_marker", lambda *_: pytest.fail("it was written"))

    async def scenario():
        return unpack_answer(await way._asked(1, pack_markers([(marker(), ALL[:1])])))

    assert world.run(scenario()) == (errors.REQUEST_TIMED_OUT,)


def test_markers_begin_in_the_next_turn(make_world):
    """The client of the transaction has its answer by then."""
    world = make_world(1)
    way = transport(world)

    async def scenario():
        ended = asyncio.get_running_loop().create_future()
        way.write_markers(marker(), ALL, ended.set_result)
        assert not ended.done()
        return await ended

    assert set(world.run(scenario()).values()) == {errors.NONE}


def test_partitions_exist_as_long_as_the_image_has_them(make_world):
    way = transport(make_world(1))
    assert way.exists(("a", 5))
    assert not way.exists(("a", 6))
    assert not way.exists(("nowhere", 0))


def test_a_partition_without_a_leader_exists_so_its_marker_waits(make_world):
    """JVM Kafka 4.3.1 takes it for deleted, and the aborted records are committed later."""
    world = make_world(1)
    way = transport(world)
    partitions = world.site.services.metadata.image.topics["a"].partitions
    partitions[5] = partitions[5]._replace(leader=-1)
    assert way.exists(("a", 5))
