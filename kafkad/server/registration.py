"""How a broker presents itself to the controller: its advertised addresses, its directories, its rack.

Worker 0 registers, alone (server/worker) or in a cluster (server/member_worker)."""

from collections.abc import Container, Iterable
from socket import gethostname
from typing import Final

from kafkad.config.broker import BrokerConfig
from kafkad.config.listeners import Endpoint as Bound
from kafkad.controller.brokers import Registration
from kafkad.log.log_dirs import LogDirs
from kafkad.metadata.image import Endpoint, MetadataImage

SECURITY_PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


def advertised(config: BrokerConfig, bound: Iterable[Bound]) -> dict[str, Endpoint]:
    """Return the advertised endpoints, by listener; port 0 becomes the actual port, from `bound`."""
    ports = {endpoint.listener: endpoint.port for endpoint in bound}
    return {
        told.listener: Endpoint(
            told.host or gethostname(), told.port or ports[told.listener], SECURITY_PROTOCOLS[told.protocol]
        )
        for told in config.advertised_endpoints
        if told.listener in ports
    }


def controller_listeners(config: BrokerConfig) -> dict[str, Endpoint] | None:
    """Return the controller listeners that a Kafka opening this directory expects. None is served here."""
    return {
        told.listener: Endpoint(told.host or "localhost", told.port, SECURITY_PROTOCOLS[told.protocol])
        for told in config.controller_endpoints
    } or None


def registration_of(
    config: BrokerConfig,
    log_dirs: LogDirs,
    listeners: dict[str, Endpoint],
    incarnation_id: bytes,
    controllers: dict[str, Endpoint] | None = None,
) -> Registration:
    """`controllers`: the controller listeners, if this node is its own controller."""
    return Registration(
        broker_id=config.node_id,
        incarnation_id=incarnation_id,
        listeners=listeners,
        controller_listeners=controllers,
        directories=tuple(log_dirs.directory_ids()),
        rack=config.broker_rack,
        previous_epoch=log_dirs.previous_broker_epoch,
    )


def misses_directory(image: MetadataImage, broker_id: int, known: Container[bytes]) -> bool:
    """Return whether a replica of this broker that is in sync or eligible to lead, and not the only replica,
    is in a directory that is not `known`."""
    return any(
        (broker_id in state.isr or broker_id in state.elr)
        and len(state.replicas) > 1
        and state.directory(broker_id) not in known
        for topic in image.topics.values()
        for state in topic.partitions.values()
    )
