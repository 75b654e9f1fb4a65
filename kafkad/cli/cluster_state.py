"""`kafkad cluster status`, `replicas` and `quorum`: who is there, who leads what, and who is behind
(kafka-topics --describe, kafka-replica-verification, kafka-metadata-quorum)."""

import time
from typing import Any, Final

import click

from kafkad.cli.cluster_voters import addition, change, removal
from kafkad.cli.output import CONTEXT, Refused, connected, counted, print_json, say, server_options, show
from kafkad.client.cluster import Cluster
from kafkad.client.connection import Unreachable
from kafkad.metadata.uuids import uuid_text
from kafkad.protocol import messages
from kafkad.protocol.errors import KafkaError

METADATA_TOPIC: Final = "__cluster_metadata"
DEBUGGING_CONSUMER: Final = -2  # replica id of a ListOffsets that a follower answers, too
LATEST: Final = -1
DESCRIBE_QUORUM: Final = messages.DescribeQuorumRequest.API_KEY
ALONE: Final = "this broker is a cluster by itself, without other nodes"


@click.command(context_settings=CONTEXT)
@server_options
def status(bootstrap: str, as_json: bool) -> None:
    """Show each broker with the partitions that it leads, and what is wrong with partitions."""
    with connected(bootstrap) as cluster:
        told = cluster.refresh(None)
        partitions = [p for topic in told.topics for p in topic.partitions]
        rows = []
        for broker in sorted(told.brokers, key=lambda each: int(each.node_id)):
            here = [p for p in partitions if broker.node_id in p.replica_nodes]
            rows.append(
                (
                    broker.node_id,
                    f"{broker.host}:{broker.port}",
                    broker.rack,
                    sum(p.leader_id == broker.node_id for p in here),
                    len(here),
                    sum(broker.node_id not in p.isr_nodes for p in here),
                )
            )
        without = sum(p.leader_id < 0 for p in partitions)
        behind = sum(len(p.isr_nodes) < len(p.replica_nodes) for p in partitions)
        if not as_json:
            print(
                f"Cluster {told.cluster_id}: {counted(len(told.brokers), 'broker')},"
                f" {counted(len(partitions), 'partition')}, {without:,} without a leader, {behind:,} with"
                " replicas out of the ISR"
            )
        show(("Broker", "Address", "Rack", "Leads", "Replicas", "Out of ISR"), rows, as_json)


@click.command(context_settings=CONTEXT)
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option("--lagging", is_flag=True, help="Only replicas that are behind or out of the ISR.")
@server_options
def replicas(topics: tuple[str, ...], lagging: bool, bootstrap: str, as_json: bool) -> None:
    """Show each replica: whether it leads, whether it is in the ISR, and how many records it is behind.

    The lag of a replica whose broker does not answer is not known.
    """
    with connected(bootstrap) as cluster:
        told = cluster.refresh(list(topics) or None)
        for topic in told.topics:
            if topic.error_code:
                raise KafkaError(topic.error_code, topic.name)
        ends = {broker.node_id: _ends(cluster, broker.node_id, told.topics) for broker in told.brokers}
        rows = []
        for topic in sorted(told.topics, key=lambda each: str(each.name)):
            for partition in sorted(topic.partitions, key=lambda each: int(each.partition_index)):
                place = (topic.name, partition.partition_index)
                end = ends.get(partition.leader_id, {}).get(place)
                for node in partition.replica_nodes:
                    own = ends.get(node, {}).get(place)
                    lag = None if own is None or end is None else max(end - own, 0)
                    in_sync = node in partition.isr_nodes
                    if not lagging or lag != 0 or not in_sync:
                        role = "leader" if node == partition.leader_id else "follower"
                        rows.append((*place, node, role, in_sync, own, lag))
    show(("Topic", "Partition", "Broker", "Role", "In-sync", "End", "Lag"), rows, as_json)


def _ends(cluster: Cluster, node: int, topics: Any) -> dict[tuple[str, int], int]:
    """Where the logs of a broker's replicas end; empty if it does not answer."""
    cls = messages.ListOffsetsRequest
    wanted = [
        cls.Topics(
            name=topic.name,
            partitions=[
                cls.Topics.Partitions(partition_index=p.partition_index, timestamp=LATEST)
                for p in topic.partitions
                if node in p.replica_nodes
            ],
        )
        for topic in topics
    ]
    request = cls(replica_id=DEBUGGING_CONSUMER, topics=[topic for topic in wanted if topic.partitions])
    try:
        answer = cluster.broker(node).ask(request)
    except Unreachable:
        return {}
    return {
        (topic.name, p.partition_index): p.offset
        for topic in answer.topics
        for p in topic.partitions
        if not p.error_code
    }


@click.command(context_settings=CONTEXT)
@click.option("--add", metavar="FILE", help="Make the controller with this properties file a voter.")
@click.option("--remove", metavar="ID:DIRECTORY", help="Remove this voter from the quorum.")
@server_options
def quorum(add: str | None, remove: str | None, bootstrap: str, as_json: bool) -> None:
    """Show the quorum of controllers: its leader, and how far each node has the metadata log.

    Brokers that are not controllers are observers: they follow the log without a vote. With kraft.version 1,
    --add and --remove change the voters, one at a time.

    \b
      kafkad cluster quorum --add controller4.properties
      kafkad cluster quorum --remove 1:fjR0F0mDTuWHZiFTOLyWqg
    """
    if add is not None and remove is not None:
        raise click.UsageError("give --add or --remove")
    request = addition(add) if add is not None else removal(remove) if remove is not None else None
    with connected(bootstrap) as cluster:
        connection = cluster.any()
        if DESCRIBE_QUORUM not in connection.versions:
            raise Refused(
                "this broker does not describe its quorum: its Kafka uses ZooKeeper, or is older than 3.0"
            )
        if request is not None:
            if request.API_KEY not in connection.versions:
                raise Refused(ALONE)
            change(connection, request)
            if as_json:
                voter = (request.voter_id, uuid_text(request.voter_directory_id), add is not None)
                show(("Node", "Directory", "Voter"), [voter], as_json)
            else:
                say(f"{'Added' if add is not None else 'Removed'} voter {request.voter_id}.")
            return
        cls = messages.DescribeQuorumRequest
        asked = [cls.Topics(topic_name=METADATA_TOPIC, partitions=[cls.Topics.Partitions()])]
        told = connection.ask(cls(topics=asked))
        if told.error_code:
            raise KafkaError(told.error_code, told.error_message)
        (topic,) = told.topics
        (partition,) = topic.partitions
        if partition.error_code:
            raise KafkaError(partition.error_code, partition.error_message)
        cluster_id = cluster.refresh([]).cluster_id
    places = {
        node.node_id: ",".join(f"{each.host}:{each.port}" for each in node.listeners) for node in told.nodes
    }
    ends = [
        each.log_end_offset for each in partition.current_voters if each.replica_id == partition.leader_id
    ]
    now_ms = time.time() * 1000
    rows = []
    for kind, found in (("voter", partition.current_voters), ("observer", partition.observers)):
        for each in sorted(found, key=lambda one: int(one.replica_id)):
            leads = kind == "voter" and each.replica_id == partition.leader_id
            caught_up = each.last_caught_up_timestamp
            rows.append(
                (
                    each.replica_id,
                    "leader" if leads else kind,
                    uuid_text(each.replica_directory_id) if any(each.replica_directory_id) else None,
                    places.get(each.replica_id),
                    each.log_end_offset,
                    max(ends[0] - each.log_end_offset, 0) if ends and each.log_end_offset >= 0 else None,
                    None if caught_up < 0 else max(int(now_ms - caught_up), 0),
                )
            )
    if as_json:
        columns = ("node", "role", "directory_id", "listeners", "log_end_offset", "lag", "caught_up_ms_ago")
        print_json(
            {
                "cluster_id": cluster_id,
                "leader_id": partition.leader_id,
                "leader_epoch": partition.leader_epoch,
                "high_watermark": partition.high_watermark,
                "nodes": [dict(zip(columns, row, strict=True)) for row in rows],
            }
        )
        return
    print(
        f"Cluster {cluster_id}: node {partition.leader_id} leads the quorum in epoch"
        f" {partition.leader_epoch}, the log is committed up to offset {partition.high_watermark}"
    )
    show(("Node", "Role", "Directory", "Listeners", "End", "Lag", "Caught up ms ago"), rows, False)
