"""`kafkad cluster move`: replicas move between the log directories of one broker (KIP-113), one request to
that broker (kafka-reassign-partitions with log_dirs)."""

from typing import Any

import click

from kafkad.cli.cluster_changes import finish, partition_of
from kafkad.cli.output import CONTEXT, Refused, connected, server_options, show
from kafkad.protocol import messages
from kafkad.protocol.errors import NAMES, KafkaError

COLUMNS = ("Broker", "Topic", "Partition", "Directory")


@click.command(context_settings=CONTEXT)
@click.argument("moves", nargs=-1, metavar="[TOPIC-PARTITION=DIRECTORY]...")
@click.option(
    "--broker",
    type=click.IntRange(0),
    metavar="ID",
    help="The broker that has the replicas, if there are several brokers.",
)
@server_options
def move(moves: tuple[str, ...], broker: int | None, bootstrap: str, as_json: bool) -> None:
    """Move replicas to other log directories of their broker, or show the moves under way.

    The directory is one of the broker's log.dirs. To cancel a move, move the replica to the directory in
    which it is. The broker's replica.alter.log.dirs.io.max.bytes.per.second limits all moves together;
    `kafkad configs` sets it.

    \b
      kafkad cluster move orders-0=/disk2/kafkad orders-1=/disk2/kafkad --broker 1
      kafkad cluster move
    """
    targets: dict[str, dict[str, list[int]]] = {}
    for text in moves:
        place, equals, path = text.partition("=")
        if not equals or not path:
            raise click.UsageError(f"{text!r} is not of the form TOPIC-PARTITION=DIRECTORY")
        topic, index = partition_of(place)
        targets.setdefault(path, {}).setdefault(topic, []).append(index)
    with connected(bootstrap) as cluster:
        nodes = sorted(cluster.brokers())
        if broker is not None and broker not in nodes:
            raise Refused(f"there is no broker {broker}")
        if not moves:
            _show(cluster, nodes if broker is None else [broker], as_json)
            return
        if broker is None and len(nodes) > 1:
            raise click.UsageError("name the --broker whose replicas move")
        node = nodes[0] if broker is None else broker
        cls = messages.AlterReplicaLogDirsRequest
        request = cls(
            dirs=[
                cls.Dirs(
                    path=path,
                    topics=[
                        cls.Dirs.Topics(name=name, partitions=indexes) for name, indexes in topics.items()
                    ],
                )
                for path, topics in targets.items()
            ]
        )
        answer = cluster.broker(node).ask(request)
    paths = {
        (name, index): path
        for path, topics in targets.items()
        for name, its in topics.items()
        for index in its
    }
    rows = [
        (
            node,
            topic.topic_name,
            each.partition_index,
            paths[topic.topic_name, each.partition_index],
            _error(each),
        )
        for topic in answer.results
        for each in topic.partitions
    ]
    finish(COLUMNS, rows, as_json)


def _error(row: Any) -> str | None:
    return NAMES.get(row.error_code, str(row.error_code)) if row.error_code else None


def _show(cluster: Any, nodes: list[int], as_json: bool) -> None:
    rows = []
    for node in nodes:
        told = cluster.broker(node).ask(messages.DescribeLogDirsRequest(topics=None))
        if told.error_code:
            raise KafkaError(told.error_code)
        rows += [
            (node, topic.name, each.partition_index, directory.log_dir, each.partition_size, each.offset_lag)
            for directory in told.results
            for topic in directory.topics
            for each in topic.partitions
            if each.is_future_key
        ]
    show((*COLUMNS, "Size", "Offset-lag"), rows, as_json)
