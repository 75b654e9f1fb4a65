"""`kafkad transactions` beside kafka-transactions.sh, on transactions of a real client."""

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kafkad.protocol import errors, messages
from kafkad.protocol.records import Record, build_batch
from tests.clients import WAIT_S, create_topic, wait_until
from tests.integration.test_cli import Cli
from tests.jvm import NEWEST, run_tool
from tests.wire import Wire, produce_request

pytestmark = pytest.mark.java

EXPIRED = ("--max-transaction-timeout", -1)  # minutes: a transaction need not be old


@pytest.fixture(scope="module")
def cli(broker):
    return Cli(broker.bootstrap)


@pytest.fixture
def topic(broker, unique):
    return create_topic(broker, unique("transactions"), 2)


def begun(broker, topic, name):
    """A client with an open transaction in partition 1 of the topic."""
    client = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    client.init_transactions(WAIT_S)
    client.begin_transaction()
    client.produce(topic, b"v", partition=1)
    assert client.flush(WAIT_S) == 0
    return client


def tool(broker, *arguments):
    """The cells of the table that kafka-transactions.sh prints, by row."""
    said = run_tool(NEWEST, "kafka-transactions", "--bootstrap-server", broker.bootstrap, *arguments)
    return [line.split() for line in said.lines[1:]]


def cells(rows):
    """As Kafka's tool prints them."""
    return [
        ["None" if cell is None else ",".join(cell) if isinstance(cell, list) else str(cell) for cell in row]
        for row in (row.values() for row in rows)
    ]


def test_transactions_are_shown_as_kafkas_tool_shows_them(broker, cli, topic, unique):
    name = unique("shown")
    client = begun(broker, topic, name)
    only = ("--transactional-id-pattern", f"{name}.*")
    (listed,) = ours = cli.json("transactions", "list", *only)
    assert listed.keys() == {"transactional_id", "coordinator", "producer_id", "state"}
    assert listed["state"] == "Ongoing"
    assert cells(ours) == tool(broker, "list", *only)
    assert cli.json("transactions", "list", *only, "--duration-filter", 3_600_000) == []

    (described,) = ours = cli.json("transactions", "describe", "--transactional-id", name)
    assert described["partitions"] == [f"{topic}-1"] and described["duration_ms"] >= 0
    (theirs,) = tool(broker, "describe", "--transactional-id", name)
    ((*ours, ours_ms, partitions),) = cells(ours)
    assert [*ours, partitions] == theirs[:7] + theirs[8:]
    assert int(ours_ms) <= int(theirs[7])  # asked later

    place = ("--topic", topic, "--partition", 1)
    ours = cli.json("transactions", "describe-producers", *place)
    assert [row["transaction_start_offset"] for row in ours] == [0]
    assert cells(ours) == tool(broker, "describe-producers", *place)

    client.commit_transaction(WAIT_S)
    wait_until(lambda: cli.json("transactions", "list", *only)[0]["state"] == "CompleteCommit")
    (described,) = cli.json("transactions", "describe", "--transactional-id", name)
    assert described["partitions"] == []
    assert cells(cli.json("transactions", "describe-producers", *place)) == tool(
        broker, "describe-producers", *place
    )


def verify(broker, enabled):
    """Whether an append asks the coordinator of its transaction."""
    entry = ConfigEntry(
        "transaction.partition.verification.enable",
        str(enabled).lower(),
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


def leave_hanging(broker, topic, producer_id):
    """A transaction that no coordinator knows: the broker does not ask while verification is off."""
    rows = [Record(key=None, value=b"hanging", timestamp=1_000)]
    data = build_batch(rows, producer_id=producer_id, producer_epoch=3, base_sequence=0, transactional=True)
    request = produce_request(topic, data)
    request.acks, request.transactional_id = -1, "nobody"
    verify(broker, False)
    try:
        with Wire(broker.bootstrap) as wire:

            def written():
                (part,) = wire.ask(request, 9).responses[0].partition_responses
                return part.error_code == errors.NONE

            wait_until(written)
    finally:
        verify(broker, True)


def test_a_transaction_that_hangs_is_found_and_aborted(broker, cli, topic, unique):
    client = begun(broker, topic, unique("healthy"))
    leave_hanging(broker, topic, 77_000)
    assert cli.json("transactions", "find-hanging", "--topic", topic, "--max-transaction-timeout", 60) != []
    (found,) = ours = cli.json("transactions", "find-hanging", "--topic", topic, *EXPIRED)
    assert (found["producer_id"], found["partition"], found["start_offset"]) == (77_000, 0, 0)
    theirs = tool(broker, "find-hanging", "--topic", topic, *EXPIRED)
    assert [row[:-1] for row in cells(ours)] == [row[:-1] for row in theirs]
    place = ("--topic", topic, "--partition", 0)
    assert "begins at offset 9" in cli.fails(1, "transactions", "abort", *place, "--start-offset", 9)
    cli("transactions", "abort", *place, "--start-offset", 0)
    assert cli.json("transactions", "find-hanging", "--topic", topic, *EXPIRED) == []
    assert tool(broker, "find-hanging", "--topic", topic, *EXPIRED) == []
    with Wire(broker.bootstrap) as wire:
        cls = messages.ListOffsetsRequest
        part = cls.Topics.Partitions(partition_index=0, timestamp=-1)
        asked = cls(replica_id=-1, isolation_level=1, topics=[cls.Topics(name=topic, partitions=[part])])
        assert wire.ask(asked, 5).topics[0].partitions[0].offset == 2
    client.abort_transaction(WAIT_S)


def test_a_terminated_transaction_fences_its_producer(broker, cli, topic, unique):
    name = unique("fenced")
    client = begun(broker, topic, name)
    terminate = ("transactions", "force-terminate", "--transactional-id", name)
    assert "Aborted the transaction" in cli.run(*terminate)[2]
    assert "There was no open transaction" in cli.run(*terminate)[2]
    (described,) = cli.json("transactions", "describe", "--transactional-id", name)
    assert described["state"] == "Empty" and described["partitions"] == []
    with pytest.raises(KafkaException) as refused:
        client.commit_transaction(WAIT_S)
    assert refused.value.args[0].fatal()


def test_what_cannot_be_done_is_said(broker, cli, topic, unique):
    for arguments in (
        ("describe", "--transactional-id", unique("unknown")),
        ("force-terminate", "--transactional-id", unique("unknown")),
    ):
        assert "TRANSACTIONAL_ID_NOT_FOUND" in cli.fails(1, "transactions", *arguments)
    assert "--start-offset" in cli.fails(2, "transactions", "abort", "--topic", topic, "--partition", 0)
    assert "--topic" in cli.fails(2, "transactions", "find-hanging")
    assert "--topic" in cli.fails(2, "transactions", "find-hanging", "--broker-id", 1, "--partition", 0)
    assert "INVALID_REGULAR_EXPRESSION" in cli.fails(
        1, "transactions", "list", "--transactional-id-pattern", "("
    )
