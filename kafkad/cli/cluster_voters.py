"""`kafkad cluster quorum --add` and `--remove`: the voters of a running quorum (kafka-metadata-quorum
add-controller, remove-controller; KIP-853)."""

import os
from typing import Any, Final

import click

from kafkad.cli.output import Refused
from kafkad.metadata.uuids import uuid_bytes
from kafkad.protocol import messages
from kafkad.protocol.errors import KafkaError, Malformed

TIMEOUT_MS: Final = 15_000  # for the new voter to catch up


def addition(path: str) -> Any:
    """AddRaftVoter of the controller with this properties file, which is formatted here. Raises
    Refused."""
    from kafkad.config.broker import BrokerConfig, ConfigError
    from kafkad.log.checkpoints import META_PROPERTIES
    from kafkad.log.identity import read_identity

    try:
        config = BrokerConfig.load(path, {})
    except (ConfigError, OSError, ValueError) as wrong:
        raise Refused(f"{path}: {wrong}") from wrong
    if "controller" not in config.process_roles:
        raise Refused(f"{path}: only a node with process.roles=controller can be a voter")
    meta = os.path.join(config.metadata_log_dir or config.log_dirs[0], META_PROPERTIES)
    try:
        identity = read_identity(meta)
    except (OSError, ValueError) as wrong:
        raise Refused(f"{meta}: {wrong}; run this where the new controller is") from wrong
    if identity.directory_id is None:
        raise Refused(f"{meta} has no directory.id; start the new controller first")
    points = {each.listener: each for each in config.controller_endpoints}
    points |= {each.listener: each for each in config.advertised_endpoints if each.listener in points}
    cls = messages.AddRaftVoterRequest
    return cls(
        cluster_id=identity.cluster_id,
        timeout_ms=TIMEOUT_MS,
        voter_id=config.node_id,
        voter_directory_id=identity.directory_id,
        listeners=[
            cls.Listeners(name=name, host=each.host or "localhost", port=each.port)
            for name, each in points.items()
        ],
    )


def removal(text: str) -> Any:
    """RemoveRaftVoter of ID:DIRECTORY. Raises click.UsageError."""
    node, _, directory = text.partition(":")
    try:
        node_id, directory_id = int(node), uuid_bytes(directory)
    except (ValueError, Malformed):
        raise click.UsageError(
            f"--remove {text}: it takes ID:DIRECTORY, as `cluster quorum` shows them"
        ) from None
    return messages.RemoveRaftVoterRequest(cluster_id=None, voter_id=node_id, voter_directory_id=directory_id)


def change(connection: Any, request: Any) -> None:
    """Raises Refused, KafkaError."""
    if request.API_KEY not in connection.versions:
        raise Refused("this cluster cannot change its voters")
    answer = connection.ask(request)
    if answer.error_code:
        raise KafkaError(answer.error_code, answer.error_message)
