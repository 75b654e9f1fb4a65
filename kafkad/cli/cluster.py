"""`kafkad cluster`: what a cluster says of itself (kafka-metadata-quorum, kafka-broker-api-versions, kafka-
cluster).
"""

import json

import click

from kafkad.cli.output import CONTEXT, connected, server_options, show
from kafkad.protocol import messages


@click.group(context_settings=CONTEXT)
def command() -> None:
    """Show brokers, metadata and API versions of a cluster."""


@command.command(context_settings=CONTEXT)
@server_options
def metadata(bootstrap: str, as_json: bool) -> None:
    """Cluster id, brokers, and how many topics and partitions there are."""
    with connected(bootstrap) as cluster:
        told = cluster.refresh(None)
        partitions = sum(len(topic.partitions) for topic in told.topics)
        if as_json:
            brokers = [
                {"id": b.node_id, "host": b.host, "port": b.port, "rack": b.rack} for b in told.brokers
            ]
            print(
                json.dumps(
                    {
                        "cluster_id": told.cluster_id,
                        "controller_id": told.controller_id,
                        "brokers": brokers,
                        "topics": len(told.topics),
                        "partitions": partitions,
                    }
                )
            )
            return
        print(f"Cluster {told.cluster_id}: {len(told.topics)} topics, {partitions} partitions")
        rows = [(b.node_id, b.host, b.port, b.rack, b.node_id == told.controller_id) for b in told.brokers]
        show(("Broker", "Host", "Port", "Rack", "Controller"), rows, False)


@command.command("api-versions", context_settings=CONTEXT)
@server_options
def api_versions(bootstrap: str, as_json: bool) -> None:
    """Every API that the broker serves, with its versions, and the highest that this client would use."""
    with connected(bootstrap) as cluster:
        versions = cluster.any().versions
        rows = []
        for key, (low, high) in sorted(versions.items()):
            name = messages.NAMES.get(key)
            ours = messages.request_class(key).MAX_VERSION if name else None
            rows.append((key, name or "unknown", low, high, None if ours is None else min(ours, high)))
        show(("Key", "Api", "Lowest", "Highest", "Usable"), rows, as_json)


@command.command("cluster-id", context_settings=CONTEXT)
@server_options
def cluster_id(bootstrap: str, as_json: bool) -> None:
    """The cluster's id."""
    with connected(bootstrap) as cluster:
        told = cluster.refresh([]).cluster_id
        print(json.dumps({"cluster_id": told}) if as_json else f"Cluster ID: {told}")
