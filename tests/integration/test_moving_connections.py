"""A connection whose requests another worker answers moves to that worker, and its client does not notice."""

from contextlib import ExitStack

import pytest

from kafkad.coordinator.transactions import partition_of
from kafkad.protocol import errors, messages
from tests.clients import wait_until
from tests.conftest import new_broker
from tests.integration.test_transactional_produce import Client
from tests.integration.test_transactions_killed import worker_for
from tests.integration.test_workers import wires_to_all, worker_of
from tests.wire import Wire, batch

WORKERS = 2
REQUESTS = 40  # more than it takes
STATE_PARTITIONS = 8
CONFIG = {"transaction.state.log.num.partitions": STATE_PARTITIONS, "offsets.topic.num.partitions": 8}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    made = new_broker("kafkad", tmp_path_factory.mktemp("moving"), CONFIG)
    made.workers = WORKERS
    with made as running:
        yield running


@pytest.fixture
def wires(broker):
    with ExitStack() as stack:
        yield wires_to_all(broker, stack)


def heartbeat(wire, group):
    request = messages.HeartbeatRequest(group_id=group, generation_id=1, member_id="m")
    return wire.ask(request, 4).error_code


def group_of_another_worker(broker, wire, unique):
    """A group whose coordinator is not where the connection is."""
    coordinators = {}

    def found():
        group = unique(f"group-{len(coordinators)}")
        request = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        if wire.ask(request, 4).coordinators[0].error_code:
            return None
        number = partition_of(group, 8)
        coordinators[group] = worker_for(wire, "__consumer_offsets", number, WORKERS)
        return group if coordinators[group] != worker_of(broker, wire) else None

    return wait_until(found), coordinators


def test_a_connection_to_a_coordinator_ends_up_with_it(broker, wires, unique):
    wire = wires[0]
    group, coordinators = group_of_another_worker(broker, wire, unique)
    wait_until(lambda: heartbeat(wire, group) == errors.UNKNOWN_MEMBER_ID)
    for _ in range(REQUESTS):
        assert heartbeat(wire, group) == errors.UNKNOWN_MEMBER_ID
    wait_until(lambda: worker_of(broker, wire) == coordinators[group])
    for _ in range(REQUESTS):
        assert heartbeat(wire, group) == errors.UNKNOWN_MEMBER_ID
    assert worker_of(broker, wire) == coordinators[group]


def test_a_connection_that_has_fetched_in_a_session_stays(broker, wires, unique):
    wire = wires[0]
    group, _ = group_of_another_worker(broker, wire, unique)
    client = Client(wire, unique)
    cls = messages.FetchRequest.Topics
    topics = [cls(topic=client.topic, partitions=[cls.Partitions(partition=0, partition_max_bytes=1000)])]
    answer = wire.ask(messages.FetchRequest(max_wait_ms=0, session_epoch=0, topics=topics), 11)
    assert answer.session_id
    here = worker_of(broker, wire)
    for _ in range(REQUESTS):
        assert heartbeat(wire, group) in (errors.UNKNOWN_MEMBER_ID, errors.NOT_COORDINATOR)
    assert worker_of(broker, wire) == here
    following = messages.FetchRequest(max_wait_ms=0, session_id=answer.session_id, session_epoch=1)
    assert wire.ask(following, 11).error_code == 0


def coordinated_by_another(broker, wire, unique):
    """(client, worker): a producer whose coordinator is not where the connection is."""
    here, there, made = worker_of(broker, wire), None, 0
    client = Client(wire, unique)
    while there in (None, here):
        client.id = unique(f"id-{made}")
        made += 1
        number = partition_of(client.id, STATE_PARTITIONS)
        there = worker_for(wire, "__transaction_state", number, WORKERS)
    client.producer_id, client.epoch = client.init()
    return client, there


@pytest.mark.parametrize("place", ["there", "here"])
@pytest.mark.parametrize("version", [4, 5], ids=["TV1", "TV2"])
def test_transactions_go_on_while_their_connection_moves(broker, wires, unique, version, place):
    """A producer's coordinator, and all of its partitions or none of them, belong to the other worker."""
    wire = wires[0]
    here = worker_of(broker, wire)
    client, there = coordinated_by_another(broker, wire, unique)
    owner = there if place == "there" else here
    index = next(index for index in range(8) if worker_for(wire, client.topic, index, WORKERS) == owner)
    count = 60
    for _ in range(count):
        if version < 5:
            client.add(index)
        assert client.code(index, version=12 if version >= 5 else 9) == 0
        client.end(version=version)
    assert worker_of(broker, wire) == there != here
    with Wire(broker.bootstrap) as other:
        reader = Client.__new__(Client)
        reader.wire, reader.topic = other, client.topic
        wait_until(lambda: reader.offsets(index) == 2 * count)  # each with its marker


def test_a_connection_with_large_batches_stays_with_their_partition(broker, wires, unique):
    wire = wires[0]
    here = worker_of(broker, wire)
    client, _ = coordinated_by_another(broker, wire, unique)
    index = next(index for index in range(8) if worker_for(wire, client.topic, index, WORKERS) == here)
    for _ in range(60):
        client.add(index)
        records = bytes(
            batch(bytes(20_000), producer_id=client.producer_id, producer_epoch=client.epoch,
                  transactional=True, base_sequence=client.sequences.get(index, 0))
        )  # fmt: skip
        assert client.codes({index: records}) == [0]
        client.end()
    assert worker_of(broker, wire) == here
