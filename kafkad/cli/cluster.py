"""`kafkad cluster`: information about a cluster and its changes (kafka-metadata-quorum, kafka-cluster,
kafka-broker-api-versions, kafka-log-dirs, kafka-leader-election, kafka-reassign-partitions, kafka-features).
"""

from typing import Any

import click

from kafkad.cli import cluster_changes, cluster_moves, cluster_state
from kafkad.cli.output import CONTEXT, connected, counted, print_json, server_options, show
from kafkad.protocol import messages
from kafkad.protocol.errors import NAMES, KafkaError


@click.group(context_settings=CONTEXT)
def command() -> None:
    """Show brokers, replicas, the quorum and log directories of a cluster, and change them.

    \b
      kafkad cluster status
      kafkad cluster replicas --lagging
      kafkad cluster quorum
      kafkad cluster reassign orders-0=2,3,4
      kafkad cluster api-versions
      kafkad cluster log-dirs --json
    """


@command.command(context_settings=CONTEXT)
@server_options
def metadata(bootstrap: str, as_json: bool) -> None:
    """Show the cluster id, the brokers, and the number of topics and partitions."""
    with connected(bootstrap) as cluster:
        told = cluster.refresh(None)
        partitions = sum(len(topic.partitions) for topic in told.topics)
        brokers = sorted(told.brokers, key=lambda b: b.node_id)
        if as_json:
            print_json(
                {
                    "cluster_id": told.cluster_id,
                    "controller_id": told.controller_id,
                    "brokers": [
                        {"broker": b.node_id, "host": b.host, "port": b.port, "rack": b.rack} for b in brokers
                    ],
                    "topics": len(told.topics),
                    "partitions": partitions,
                }
            )
            return
        sizes = f"{counted(len(told.topics), 'topic')}, {counted(partitions, 'partition')}"
        print(f"Cluster {told.cluster_id}: {sizes}")
        rows = [(b.node_id, b.host, b.port, b.rack, b.node_id == told.controller_id) for b in brokers]
        show(("Broker", "Host", "Port", "Rack", "Controller"), rows, False)


@command.command("api-versions", context_settings=CONTEXT)
@server_options
def api_versions(bootstrap: str, as_json: bool) -> None:
    """Show the APIs of each broker with their versions, and the highest version that kafkad can use."""
    rows: list[tuple[Any, ...]] = []
    with connected(bootstrap) as cluster:
        for node in sorted(cluster.brokers()):
            for key, (low, high) in sorted(cluster.broker(node).versions.items()):
                name = messages.NAMES.get(key)
                ours = messages.request_class(key).MAX_VERSION if name else None
                rows.append((node, key, name, low, high, None if ours is None else min(ours, high)))
    show(("Broker", "Key", "Api", "Lowest", "Highest", "Usable"), rows, as_json)


@command.command("cluster-id", context_settings=CONTEXT)
@server_options
def cluster_id(bootstrap: str, as_json: bool) -> None:
    """Print the cluster's id."""
    with connected(bootstrap) as cluster:
        told = cluster.refresh([]).cluster_id
        if as_json:
            print_json({"cluster_id": told})
        else:
            print(f"Cluster ID: {told}")


@command.command("log-dirs", context_settings=CONTEXT)
@click.option("--topic-list", metavar="T[,T]", help="Only these topics.")
@click.option("--broker-list", metavar="ID[,ID]", help="Only these brokers.")
@server_options
def log_dirs(topic_list: str | None, broker_list: str | None, bootstrap: str, as_json: bool) -> None:
    """Show the log directories with the size of each partition."""
    topics = set(topic_list.split(",")) if topic_list else None
    try:
        brokers = [int(each) for each in broker_list.split(",")] if broker_list else None
    except ValueError:
        raise click.BadParameter(f"{broker_list!r} is not like 1,2", param_hint="--broker-list")
    rows: list[tuple[Any, ...]] = []
    with connected(bootstrap) as cluster:
        for node in sorted(cluster.brokers() if brokers is None else set(brokers)):
            told = cluster.broker(node).ask(messages.DescribeLogDirsRequest(topics=None))
            if told.error_code:
                raise KafkaError(told.error_code)
            for directory in told.results:
                error = NAMES.get(directory.error_code) if directory.error_code else None
                found = [
                    (
                        node,
                        directory.log_dir,
                        t.name,
                        p.partition_index,
                        p.partition_size,
                        p.offset_lag,
                        p.is_future_key,
                        error,
                    )
                    for t in directory.topics
                    for p in t.partitions
                    if topics is None or t.name in topics
                ]
                if error and not found:
                    found = [(node, directory.log_dir, None, None, None, None, None, error)]
                rows += sorted(found, key=lambda row: row[2:4])
    columns = ("Broker", "Directory", "Topic", "Partition", "Size", "Offset-lag", "Future", "Error")
    show(columns, rows, as_json)


for _each in (
    cluster_state.status,
    cluster_state.replicas,
    cluster_state.quorum,
    cluster_changes.elect,
    cluster_changes.reassign,
    cluster_moves.move,
    cluster_changes.features,
    cluster_changes.unregister,
):
    command.add_command(_each)
