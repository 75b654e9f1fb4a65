"""Requests about transactions over three workers: each transactional id is one worker's, and so are the
partitions that it writes to. The workers are processes of their own (tests/unit/test_routing.py)."""

import asyncio

import pytest

from kafkad.protocol import errors, messages
from kafkad.server import transaction_gate
from tests.unit.routing_world import OFFSETS_TOPIC, TOPICS, World

WORKERS = 3
ALL = [(topic, index) for topic, count in TOPICS.items() for index in range(count)]
TIMEOUT_MS = 60_000

m = messages


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path, WORKERS)
    yield made
    made.close()


def id_of(world, worker, prefix="x"):
    """A transactional id that `worker` coordinates."""
    names = (f"{prefix}{number}" for number in range(1000))
    return next(name for name in names if world.site.services.transaction_owner(name) == worker)


def ids(world):
    return [id_of(world, worker) for worker in range(WORKERS)]


async def begin(client, name):
    """(producer id, epoch) of a transactional id."""
    request = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=TIMEOUT_MS)
    answer = await client.ask(request)
    assert answer.error_code == errors.NONE
    return answer.producer_id, answer.producer_epoch


def adding(names, producers, partitions, *, verify_only=False):
    cls = m.AddPartitionsToTxnRequest.Transactions
    return m.AddPartitionsToTxnRequest(
        transactions=[
            cls(
                transactional_id=name,
                producer_id=producer[0],
                producer_epoch=producer[1],
                verify_only=verify_only,
                topics=[cls.Topics(name=topic, partitions=[index]) for topic, index in partitions],
            )
            for name, producer in zip(names, producers, strict=True)
        ]
    )


def codes_of(response):
    return [
        (each.transactional_id, {part.partition_error_code for part in parts_of(each)})
        for each in response.results_by_transaction
    ]


def parts_of(result):
    return [part for topic in result.topic_results for part in topic.results_by_partition]


async def states(client, names):
    response = await client.ask(m.DescribeTransactionsRequest(transactional_ids=names))
    return [
        (each.transactional_id, each.transaction_state or each.error_code)
        for each in response.transaction_states
    ]


async def until(client, names, wanted):
    """Until all are in a state: markers are written after the answer to EndTxn."""
    while {state for _, state in await states(client, names)} != {wanted}:
        await asyncio.sleep(0.01)


def test_a_transaction_over_all_workers_from_begin_to_end(world):
    names = ids(world)
    partitions = [*ALL, (OFFSETS_TOPIC, 2)]

    async def scenario():
        client = await world.client()
        producers = [await begin(client, name) for name in names]
        # a worker's own ids begin at a million for each
        assert [producer_id // 1_000_000 for producer_id, _ in producers] == [0, 1, 2]

        added = await client.ask(adding(names, producers, partitions))
        assert codes_of(added) == [(name, {0}) for name in names]
        verified = await client.ask(adding(names[::-1], producers[::-1], partitions, verify_only=True))
        assert codes_of(verified) == [(name, {0}) for name in names[::-1]]
        # an unknown id, one named twice, in the order in which they were asked for
        asked = [names[2], "nobody", names[0], names[2]]
        ongoing = [(name, "Ongoing") for name in asked]
        ongoing[1] = ("nobody", errors.TRANSACTIONAL_ID_NOT_FOUND)
        assert await states(client, asked) == ongoing
        listed = await client.ask(m.ListTransactionsRequest(state_filters=["Ongoing", "Odd"]))
        assert sorted(each.transactional_id for each in listed.transaction_states) == sorted(names)
        assert listed.unknown_state_filters == ["Odd"]

        for name, (producer_id, epoch), commit in zip(names, producers, (True, False, True), strict=True):
            ended = await client.ask(
                m.EndTxnRequest(
                    transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=commit
                )
            )
            assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, producer_id, epoch + 1)
        await until(client, [names[0], names[2]], "CompleteCommit")
        await until(client, [names[1]], "CompleteAbort")

        topics = [
            m.DescribeProducersRequest.Topics(name=topic, partition_indexes=[index]) for topic, index in ALL
        ]
        described = await client.ask(m.DescribeProducersRequest(topics=topics))
        for topic in described.topics:
            for part in topic.partitions:
                marked = {each.producer_id: each.producer_epoch for each in part.active_producers}
                assert marked.items() >= {(producer_id, epoch + 1) for producer_id, epoch in producers}

    world.run(scenario())


@pytest.mark.parametrize("version", range(4))
def test_the_older_versions_go_to_the_worker_of_their_id(world, version):
    names = ids(world)

    async def scenario():
        client = await world.client()
        for name in names:
            producer_id, epoch = await begin(client, name)
            cls = m.AddPartitionsToTxnRequest
            added = await client.ask(
                cls(
                    v3_and_below_transactional_id=name,
                    v3_and_below_producer_id=producer_id,
                    v3_and_below_producer_epoch=epoch,
                    v3_and_below_topics=[cls.V3AndBelowTopics(name="a", partitions=[0, 1])],
                ),
                version,
            )
            (topic,) = added.results_by_topic_v3_and_below
            assert [each.partition_error_code for each in topic.results_by_partition] == [0, 0]
            offsets = await client.ask(
                m.AddOffsetsToTxnRequest(
                    transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id="g"
                ),
                version,
            )
            assert offsets.error_code == 0
            assert await states(client, [name]) == [(name, "Ongoing")]

    world.run(scenario())


def test_a_dead_workers_transactions_are_refused_so_that_clients_try_again(world):
    names = ids(world)

    async def scenario():
        client = await world.client()
        producers = [await begin(client, name) for name in names]
        world.kill(2)
        while 2 in world.peers.up:
            await asyncio.sleep(0.01)
        added = await client.ask(adding(names, producers, [("a", 0)]))
        assert codes_of(added) == [(names[0], {0}), (names[1], {0}), (names[2], {errors.NOT_COORDINATOR})]
        ended = await client.ask(m.EndTxnRequest(transactional_id=names[2], producer_id=producers[2][0]))
        assert ended.error_code == errors.NOT_COORDINATOR
        told = dict(await states(client, names))
        assert told == {names[0]: "Ongoing", names[1]: "Ongoing", names[2]: errors.NOT_COORDINATOR}
        listed = await client.ask(m.ListTransactionsRequest())
        assert (listed.error_code, listed.transaction_states) == (errors.COORDINATOR_LOAD_IN_PROGRESS, [])

    world.run(scenario())


# -- the gate ----------------------------------------------------------------------------------------------


async def admitted(world, name, producer, partitions, *, adds):
    answered = asyncio.get_running_loop().create_future()
    world.site.services.transaction_gate.admit_all(
        name, *producer, partitions, adds=adds, done=answered.set_result
    )
    return list(await answered)


@pytest.mark.parametrize("worker", range(WORKERS))
def test_the_gate_asks_the_worker_of_the_id(world, worker):
    name = id_of(world, worker)
    mixed = [("b", 0), ("a", 1), ("b", 2), ("a", 0)]

    async def scenario():
        client = await world.client()
        producer = await begin(client, name)
        # verified before it was added: TRANSACTION_ABORTABLE, each for itself
        refused = await admitted(world, name, producer, mixed, adds=False)
        assert refused == [errors.TRANSACTION_ABORTABLE] * 4
        assert await admitted(world, name, producer, mixed[:2], adds=True) == [0, 0]
        abortable = errors.TRANSACTION_ABORTABLE
        assert await admitted(world, name, producer, mixed, adds=False) == [0, 0, abortable, abortable]
        stale = (producer[0], producer[1] - 1)
        assert await admitted(world, name, stale, [("a", 5)], adds=True) == [errors.PRODUCER_FENCED]
        assert await states(client, [name]) == [(name, "Ongoing")]
        one = asyncio.get_running_loop().create_future()
        world.site.services.transaction_gate.admit(name, *producer, ("a", 1), adds=False, done=one.set_result)
        assert await one == 0

    world.run(scenario())


def test_a_question_waits_until_the_transaction_before_is_over(world):
    """If it were asked again after a while, that would take 20 ms of many transactions."""
    name = id_of(world, 1)

    async def scenario():
        client = await world.client()
        producer = await begin(client, name)
        for _ in range(20):
            assert await admitted(world, name, producer, ALL, adds=True) == [0] * len(ALL)
            ended = await client.ask(
                m.EndTxnRequest(
                    transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=True
                ),
                5,
            )
            assert ended.error_code == 0
            producer = ended.producer_id, ended.producer_epoch

    world.run(scenario())


def test_more_partitions_than_a_short_question_has_are_added(world, monkeypatch):
    name = id_of(world, 1)
    monkeypatch.setattr(transaction_gate, "WIDE", 2)
    partitions = [("b", 0), ("a", 1), ("b", 2), ("a", 0)]

    async def scenario():
        client = await world.client()
        producer = await begin(client, name)
        assert await admitted(world, name, producer, partitions, adds=True) == [0] * 4
        assert await admitted(world, name, producer, partitions, adds=False) == [0] * 4

    world.run(scenario())


def test_a_partition_that_the_coordinators_worker_does_not_know_is_refused(world):
    name = id_of(world, 1)

    async def scenario():
        client = await world.client()
        producer = await begin(client, name)
        asked = [("a", 0), ("nowhere", 0), ("a", 99)]
        unknown, other = errors.UNKNOWN_TOPIC_OR_PARTITION, errors.OPERATION_NOT_ATTEMPTED
        assert await admitted(world, name, producer, asked, adds=True) == [other, unknown, unknown]

    world.run(scenario())


def test_several_questions_of_one_turn_are_answered_each(world):
    name, other = id_of(world, 1, "x"), id_of(world, 1, "y")

    async def scenario():
        client = await world.client()
        first, second = await begin(client, name), await begin(client, other)
        answers = await asyncio.gather(
            admitted(world, name, first, [("a", 0)], adds=True),
            admitted(world, other, second, [("a", 0), ("c", 0)], adds=True),
            admitted(world, name, (first[0], 99), [("a", 1)], adds=True),
        )
        assert answers == [[0], [0, 0], [errors.PRODUCER_FENCED]]

    world.run(scenario())


def test_a_dead_coordinator_is_unreachable(world):
    name = id_of(world, 1)

    async def scenario():
        client = await world.client()
        producer = await begin(client, name)
        world.kill(1)
        answer = await admitted(world, name, producer, [("a", 0), ("a", 1)], adds=True)
        assert answer == [errors.NETWORK_EXCEPTION] * 2

    world.run(scenario())
