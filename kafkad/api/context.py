"""What a handler gets: the request's context, and the broker's services.

A handler is `def handler(services, context, request)` and returns a response message, its frame, a
SharedAnswer, or an awaitable of one of them. If its work grows with its request, it is a generator that
yields often and returns any of these (server/turns); an awaitable may also end in such a generator. It reads
what it needs from `services` and keeps nothing between requests.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafkad.api.metadata_answers import MetadataAnswers
from kafkad.clock import Clock
from kafkad.config.broker import BrokerConfig
from kafkad.coordinator.runtime import GroupCoordinator
from kafkad.log.log_dirs import LogDirs
from kafkad.metadata.image import MetadataImage
from kafkad.protocol import errors
from kafkad.replication.low_watermarks import LowWatermarks
from kafkad.replication.partitions import Partitions
from kafkad.security.authorizer import Authorizer

ANONYMOUS = "User:ANONYMOUS"  # the principal of clients that need not authenticate
OURSELVES = ""  # the principal of the broker's own requests: everything is allowed


@dataclass(slots=True, frozen=True)
class RequestContext:
    """One request's surroundings; `client_host` is the bare address, without Java's slash."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    listener: str
    connection: Any
    principal: str = ANONYMOUS
    by_token: bool = False  # the client authenticated with a delegation token


class Images(Protocol):
    """Has the newest metadata image."""

    image: MetadataImage


@dataclass(slots=True)
class Services:
    """The parts of a broker that handlers use. Filled once, by `server.worker`."""

    config: BrokerConfig  # replaced when a dynamic key changes
    static_config: BrokerConfig  # as read at the start
    clock: Clock
    metadata: Images
    controller: Any  # controller.Controller
    partitions: Partitions
    log_dirs: LogDirs
    groups: GroupCoordinator
    producer_ids: Any = None
    transactions: Any = None  # coordinator.TransactionCoordinator; None: transactions are refused
    transaction_gate: Any = None  # coordinator.admission.Gate
    authorizer: Authorizer | None = None  # None: everything is allowed
    api_versions: tuple[tuple[int, int, int], ...] = ()  # (key, lowest, highest) as listed by ApiVersions
    advertised: dict[str, tuple[str, int]] = field(default_factory=dict)  # listener name -> host, port
    metadata_answers: MetadataAnswers = field(default_factory=MetadataAnswers)
    # in a cluster
    remote_markers: Any = None  # server.remote_markers.RemoteMarkers; None: no other broker leads anything
    low_watermarks: LowWatermarks | None = None  # None: no other broker has replicas
    remote_gate: Any = None  # server.remote_gate.RemoteGate; None: no other broker coordinates anything
    # with several workers
    is_controller: bool = False  # requests come from brokers, which have made their own checks
    me: int = 0  # this worker's index
    peers: Any = None  # server.Peers: the other workers; None: there are none
    owner_of: Callable[[str, int], int] | None = None  # topic, partition -> worker; unknown: me
    group_owner: Callable[[str], int | None] | None = None  # group id -> worker; None: nobody yet
    transaction_owner: Callable[[str], int] | None = None  # transactional id -> worker; none yet: me
    tls: Any = None  # server.tls_listeners.TlsListeners
    log_level_set: Callable[[str, str | None], None] | None = None  # called after a client set a log level


def code_of(trouble: BaseException) -> int:
    """Return the error code that a client gets for an exception."""
    if isinstance(trouble, errors.KafkaError):
        return trouble.code
    if isinstance(trouble, errors.Malformed):
        return errors.CORRUPT_MESSAGE
    return errors.UNKNOWN_SERVER_ERROR
