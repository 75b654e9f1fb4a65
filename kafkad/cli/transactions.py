"""`kafkad transactions`: kafka-transactions.

A transaction *hangs* if a partition waits for its end, but its coordinator does not know it. Readers of
committed data wait there forever. `find-hanging` finds such transactions, and `abort` ends one."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import click

from kafkad.cli.output import CONTEXT, Refused, connected, print_json, say, server_options, show
from kafkad.client.cluster import TRANSACTION_KEY, Cluster
from kafkad.client.offsets import TopicPartition, by_topic
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

AT_ONCE = 500  # partitions per DescribeProducers request, as in Kafka's tool
LIST_LATEST = 2  # ListTransactions version 1 can filter by duration, version 2 by a pattern
FENCE_TIMEOUT_MS = 30_000  # the id's new transaction timeout, as in Kafka's tool
MINUTE_MS = 60_000

PRODUCER_COLUMNS = (
    *("Producer-id", "Producer-epoch", "Coordinator-epoch", "Last-sequence", "Last-timestamp"),
    "Transaction-start-offset",
)
HANGING_COLUMNS = (
    *("Topic", "Partition", "Producer-id", "Producer-epoch", "Coordinator-epoch", "Start-offset"),
    *("Last-timestamp", "Minutes"),
)


@click.group(context_settings=CONTEXT)
def command() -> None:
    """List, describe and end transactions.

    \b
      kafkad transactions list
      kafkad transactions describe --transactional-id loader-1
      kafkad transactions describe-producers --topic flights --partition 0
      kafkad transactions find-hanging --topic flights
      kafkad transactions abort --topic flights --partition 0 --start-offset 1234
      kafkad transactions force-terminate --transactional-id loader-1
    """


class Open(NamedTuple):
    """A transaction that a partition waits for."""

    topic: str
    partition: int
    producer: Any  # of DescribeProducersResponse


# -- list and describe ---------------------------------------------------------


@command.command("list", context_settings=CONTEXT)
@click.option(
    "--duration-filter",
    type=int,
    metavar="MS",
    help="Only transactions that run longer than this; negative: all.",
)
@click.option("--transactional-id-pattern", metavar="REGEX", help="Only ids whose whole name matches.")
@server_options
def list_(
    duration_filter: int | None, transactional_id_pattern: str | None, bootstrap: str, as_json: bool
) -> None:
    """List transactional ids with their coordinator, producer id and state."""
    with connected(bootstrap) as cluster:
        listed = listings(cluster, duration_ms=duration_filter, pattern=transactional_id_pattern)
        rows = [(its.transactional_id, node, its.producer_id, its.transaction_state) for node, its in listed]
    show(("Transactional-id", "Coordinator", "Producer-id", "State"), rows, as_json)


@command.command(context_settings=CONTEXT)
@click.option("--transactional-id", required=True, help="The transactional id.")
@server_options
def describe(transactional_id: str, bootstrap: str, as_json: bool) -> None:
    """Show a transactional id: its producer, state and partitions."""
    columns = (
        *("Coordinator", "Transactional-id", "Producer-id", "Producer-epoch", "State", "Timeout-ms"),
        *("Start-time-ms", "Duration-ms", "Partitions"),
    )
    with connected(bootstrap) as cluster:
        its = described(cluster, transactional_id)
        node = cluster.coordinator_of(transactional_id, TRANSACTION_KEY)
    began = its.transaction_start_time_ms if its.transaction_start_time_ms >= 0 else None
    row = (
        node,
        transactional_id,
        its.producer_id,
        its.producer_epoch,
        its.transaction_state,
        its.transaction_timeout_ms,
        began,
        None if began is None else now_ms() - began,
        [f"{topic}-{index}" for topic, index in partitions_of(its)],
    )
    show(columns, [row], as_json)


@command.command("describe-producers", context_settings=CONTEXT)
@click.option("--topic", required=True, help="The topic.")
@click.option("--partition", required=True, type=int, help="The partition.")
@click.option("--broker-id", type=int, help="Ask this replica instead of the leader.")
@server_options
def describe_producers(
    topic: str, partition: int, broker_id: int | None, bootstrap: str, as_json: bool
) -> None:
    """Show recent producers of a partition, and their open transactions there."""
    with connected(bootstrap) as cluster:
        rows = [row_of(each) for _, each in producers(cluster, [(topic, partition)], broker_id)]
    show(PRODUCER_COLUMNS, rows, as_json)


# -- transactions that hang ---------------------------------------------------------


@command.command("find-hanging", context_settings=CONTEXT)
@click.option("--topic", help="Only this topic.")
@click.option("--partition", type=int, help="Only this partition of --topic.")
@click.option("--broker-id", type=int, help="Only partitions of this broker, read from this broker.")
@click.option(
    "--max-transaction-timeout",
    type=int,
    metavar="MINUTES",
    default=15,
    show_default=True,
    help="Only transactions without a write for longer than this.",
)
@server_options
def find_hanging(
    topic: str | None,
    partition: int | None,
    broker_id: int | None,
    max_transaction_timeout: int,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Find transactions that block a partition and that no coordinator will end."""
    if topic is None and broker_id is None:
        raise click.UsageError("give --topic or --broker-id")
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    with connected(bootstrap) as cluster:
        if broker_id is not None:
            cluster.address_of(broker_id)  # raises for one that does not exist: it would have no partitions
        searched = searched_partitions(cluster, topic, partition, broker_id)
        oldest = now_ms() - max_transaction_timeout * MINUTE_MS
        found = [
            Open(*place, each)
            for place, each in producers(cluster, searched, broker_id)
            if each.current_txn_start_offset >= 0 and each.last_timestamp < oldest
        ]
        hanging = without_coordinator(cluster, found) if found else []
    now = now_ms()
    rows = [
        (
            each.topic,
            each.partition,
            each.producer.producer_id,
            each.producer.producer_epoch,
            each.producer.coordinator_epoch,
            each.producer.current_txn_start_offset,
            each.producer.last_timestamp,
            (now - each.producer.last_timestamp) // MINUTE_MS,
        )
        for each in hanging
    ]
    show(HANGING_COLUMNS, rows, as_json)


@command.command(context_settings=CONTEXT)
@click.option("--topic", required=True, help="The topic.")
@click.option("--partition", required=True, type=int, help="The partition.")
@click.option("--start-offset", type=int, help="The transaction's first offset, as shown by find-hanging.")
@click.option("--producer-id", type=int, help="For Kafka before 3.0, with the next two options.")
@click.option("--producer-epoch", type=int, help="The epoch of --producer-id.")
@click.option("--coordinator-epoch", type=int, help="The coordinator's epoch for --producer-id.")
@server_options
def abort(
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Abort a hanging transaction in one partition.

    Readers of committed data never see its records there. Beware: if the transaction does not hang, this
    aborts it in one partition only, and it may still be committed in the others.
    """
    named = (producer_id, producer_epoch, coordinator_epoch)
    if start_offset is None and None in named:
        raise click.UsageError(
            "give --start-offset; before Kafka 3.0 --producer-id, --producer-epoch and --coordinator-epoch"
        )
    with connected(bootstrap) as cluster:
        if start_offset is not None:
            its = opened_at(cluster, topic, partition, start_offset)
            named = (its.producer_id, its.producer_epoch, its.coordinator_epoch)
        cluster.retry(lambda: write_abort(cluster, topic, partition, *named))
    if as_json:
        print_json([{"topic": topic, "partition": partition, "producer_id": named[0]}])
    else:
        say(f"Aborted the transaction of producer {named[0]} in {topic}-{partition}.")


@click.command(context_settings=CONTEXT)
@click.option("--transactional-id", "--transactionalId", "transactional_id", required=True, help="The id.")
@server_options
def force_terminate(transactional_id: str, bootstrap: str, as_json: bool) -> None:
    """Abort the transaction of a transactional id, and fence its producer.

    The next request of that producer fails. A new producer can use the id.
    """

    def attempt() -> Any:
        asked = messages.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=FENCE_TIMEOUT_MS
        )
        connection = cluster.coordinator(transactional_id, TRANSACTION_KEY)
        told = connection.ask(asked, connection.version_for(messages.InitProducerIdRequest, 5))
        if told.error_code:
            raise KafkaError(told.error_code, f"transactional id {transactional_id!r}")
        return told

    with connected(bootstrap) as cluster:
        before = described(cluster, transactional_id)  # InitProducerId would create an unknown id
        its = cluster.retry(attempt)
    if as_json:
        row = {"transactional_id": transactional_id, "producer_id": its.producer_id}
        print_json([{**row, "producer_epoch": its.producer_epoch}])
    else:
        was_open = before.transaction_state == "Ongoing"
        done = "Aborted the transaction" if was_open else "There was no open transaction"
        say(f"{done} of transactional id {transactional_id}. Its producer is fenced.")


command.add_command(force_terminate, "force-terminate")
command.add_command(force_terminate, "forceTerminateTransaction")  # Kafka's name of the command

# -- queries ---------------------------------------------------------------------


def now_ms() -> int:
    return int(time.time() * 1000)


def listings(
    cluster: Cluster,
    *,
    duration_ms: int | None = None,
    pattern: str | None = None,
    producer_ids: Sequence[int] = (),
) -> list[tuple[int, Any]]:
    """Return (coordinator, transaction) from all brokers, sorted by transactional id."""

    def look() -> list[tuple[int, Any]]:
        found = []
        for node in cluster.brokers():
            connection = cluster.broker(node)
            version = connection.version_for(messages.ListTransactionsRequest, LIST_LATEST)
            request = messages.ListTransactionsRequest(producer_id_filters=list(producer_ids))
            for least, name, value in (
                (1, "duration_filter", duration_ms),
                (2, "transactional_id_pattern", pattern),
            ):
                if value is not None and version < least:
                    raise Refused(f"broker {node} does not support --{name.replace('_', '-')}")
                if value is not None:
                    setattr(request, name, value)
            told = connection.ask(request, version)
            if told.error_code:  # a part of its ids is still loading, or the pattern is wrong
                raise KafkaError(told.error_code, pattern and f"pattern {pattern!r}")
            found += [(node, each) for each in told.transaction_states]
        return sorted(found, key=lambda one: one[1].transactional_id)

    return cluster.retry(look)


def described(cluster: Cluster, transactional_id: str) -> Any:
    def look() -> Any:
        connection = cluster.coordinator(transactional_id, TRANSACTION_KEY)
        request = messages.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        told = connection.ask(request, connection.version_for(type(request), 0)).transaction_states[0]
        if told.error_code:
            raise KafkaError(told.error_code, f"transactional id {transactional_id!r}")
        return told

    return cluster.retry(look)


def partitions_of(transaction: Any) -> list[TopicPartition]:
    return sorted((each.topic, index) for each in transaction.topics for index in each.partitions)


def producers(
    cluster: Cluster, partitions: Sequence[TopicPartition], broker_id: int | None = None
) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield (partition, producer) from DescribeProducers, sent to the leaders or to one broker."""
    by_broker: dict[int, tuple[Any, list[TopicPartition]]] = {}
    for place in partitions:
        connection = cluster.leader(*place) if broker_id is None else cluster.broker(broker_id)
        by_broker.setdefault(id(connection), (connection, []))[1].append(place)
    cls = messages.DescribeProducersRequest
    for connection, all_of_it in by_broker.values():
        for first in range(0, len(all_of_it), AT_ONCE):
            some = by_topic(all_of_it[first : first + AT_ONCE])
            request = cls(topics=[cls.Topics(name=t, partition_indexes=p) for t, p in some.items()])
            for topic in connection.ask(request, connection.version_for(cls, 0)).topics:
                for part in topic.partitions:
                    place = (topic.name, part.partition_index)
                    if part.error_code:
                        raise KafkaError(part.error_code, part.error_message or f"{place[0]}-{place[1]}")
                    for each in sorted(part.active_producers, key=lambda its: its.producer_id):
                        yield place, each


def row_of(producer: Any) -> tuple[int | None, ...]:
    began = producer.current_txn_start_offset
    return (
        producer.producer_id,
        producer.producer_epoch,
        producer.coordinator_epoch,
        producer.last_sequence,
        producer.last_timestamp,
        began if began >= 0 else None,
    )


def searched_partitions(
    cluster: Cluster, topic: str | None, partition: int | None, broker_id: int | None
) -> list[TopicPartition]:
    if topic is not None and partition is not None:
        return [(topic, partition)]
    told = cluster.refresh(None if topic is None else [topic])
    found = []
    for each in told.topics:
        if each.error_code:
            raise KafkaError(each.error_code, f"topic {each.name!r}")
        found += [
            (each.name, part.partition_index)
            for part in each.partitions
            if broker_id is None or broker_id in part.replica_nodes
        ]
    return sorted(found)


def without_coordinator(cluster: Cluster, found: Sequence[Open]) -> list[Open]:
    """Return the transactions that no coordinator knows: the producer id is unknown, or its transaction does
    not include the partition (any more).
    """
    ids = {each.producer.producer_id for each in found}
    names = {
        each.producer_id: each.transactional_id for _, each in listings(cluster, producer_ids=sorted(ids))
    }
    awaited: dict[int, set[TopicPartition]] = {}
    for producer_id in ids & names.keys():
        try:
            awaited[producer_id] = set(partitions_of(described(cluster, names[producer_id])))
        except KafkaError as trouble:
            if trouble.code != errors.TRANSACTIONAL_ID_NOT_FOUND:  # expired between the two requests
                raise
    return [
        each
        for each in found
        if (each.topic, each.partition) not in awaited.get(each.producer.producer_id, ())
    ]


def opened_at(cluster: Cluster, topic: str, partition: int, offset: int) -> Any:
    for _, each in producers(cluster, [(topic, partition)]):
        if each.current_txn_start_offset == offset:
            return each
    raise Refused(f"no open transaction of {topic}-{partition} begins at offset {offset}")


def write_abort(
    cluster: Cluster, topic: str, partition: int, producer_id: Any, epoch: Any, coordinator_epoch: Any
) -> None:
    """Write one abort marker. If the partition has no marker yet, its coordinator epoch is unknown; use 0,
    which is never above the real one.
    """
    cls = messages.WriteTxnMarkersRequest
    marker = cls.Markers(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=False,
        coordinator_epoch=max(0, coordinator_epoch),
        topics=[cls.Markers.Topics(name=topic, partition_indexes=[partition])],
    )
    connection = cluster.leader(topic, partition)
    told = connection.ask(cls(markers=[marker]), connection.version_for(cls))
    (part,) = (part for each in told.markers for its in each.topics for part in its.partitions)
    if part.error_code:
        raise KafkaError(part.error_code, f"{topic}-{partition}")
