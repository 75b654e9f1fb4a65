"""What a handler gets: the request's context, and the broker's services.

A handler is `def handler(services, context, request)` and returns a response message, its frame, a
SharedAnswer, or an awaitable of one of them. If its work grows with its request, it is a generator that
yields often and returns any of these (server/turns); an awaitable may also end in such a generator. It reads
what it needs from `services` and keeps nothing between requests.
"""

from asyncio import Future
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from kafkad.api.metadata_answers import MetadataAnswers
from kafkad.clock import Clock
from kafkad.config.broker import BrokerConfig
from kafkad.coordinator.admission import Gate
from kafkad.coordinator.markers import Marker
from kafkad.coordinator.runtime import GroupCoordinator
from kafkad.coordinator.transaction import TopicPartition
from kafkad.coordinator.transactions import TransactionCoordinator
from kafkad.log.log_dirs import LogDirs
from kafkad.metadata.image import MetadataImage
from kafkad.protocol import errors
from kafkad.replication.low_watermarks import LowWatermarks
from kafkad.replication.partitions import Partitions
from kafkad.security.authorizer import Authorizer
from kafkad.seldom import Seldom

T = TypeVar("T")

ANONYMOUS = "User:ANONYMOUS"  # the principal of clients that need not authenticate
OURSELVES = ""  # the principal of the broker's own requests: everything is allowed


class Client(Protocol):
    """The connection of a client: to this worker (_native Connection), or to another one (server.routing)."""

    client_software_name: str | None  # from ApiVersions
    client_software_version: str | None

    @property
    def hung_up(self) -> bool: ...  # it has closed its side


@dataclass(slots=True, frozen=True)
class RequestContext:
    """One request's surroundings; `client_host` is the bare address, without Java's slash."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    listener: str
    connection: Client | None  # None: the request came in an Envelope
    principal: str = ANONYMOUS
    by_token: bool = False  # the client authenticated with a delegation token

    @property
    def has_left(self) -> bool:
        """Whether the client has closed its connection already, so it does not live by this request."""
        return self.connection is not None and self.connection.hung_up


class Images(Protocol):
    """Has the newest metadata image."""

    image: MetadataImage


class Controller(Protocol):
    """Changes the metadata. Each method returns an answer, or an awaitable of one, or an encoded one if
    another worker or broker has answered. Any other worker than 0, and the members of a cluster, have only
    some of these: the API table sends the other requests elsewhere."""

    def create_topics(self, request: Any, context: RequestContext) -> Any: ...
    def delete_topics(self, request: Any, context: RequestContext) -> Any: ...
    def create_partitions(self, request: Any, context: RequestContext) -> Any: ...
    def auto_create(self, names: Iterable[str], context: RequestContext | None = None) -> Any:
        """The answer is dict[str, KafkaError | None]: the error for each topic that did not exist.
        `context`: of the client that needs the topics; None: this broker does."""

    def alter_partition_reassignments(self, request: Any) -> Any: ...
    def elect_leaders(self, request: Any, version: int) -> Any: ...
    def describe_quorum(self, request: Any, version: int) -> Any: ...
    def update_features(self, request: Any, version: int) -> Any: ...
    def alter_configs(self, wanted: Any, validate_only: bool, context: RequestContext) -> Any: ...
    def incremental_alter_configs(
        self, changes: Any, validate_only: bool, context: RequestContext
    ) -> Any: ...
    def alter_user_scram_credentials(self, request: Any, context: RequestContext) -> Any: ...
    def alter_client_quotas(self, request: Any, context: RequestContext) -> Any: ...
    def create_acls(self, request: Any, context: RequestContext) -> Any: ...
    def delete_acls(self, request: Any, context: RequestContext) -> Any: ...
    def create_delegation_token(self, request: Any, context: RequestContext) -> Any: ...
    def renew_delegation_token(self, request: Any, context: RequestContext) -> Any: ...
    def expire_delegation_token(self, request: Any, context: RequestContext) -> Any: ...


class OwnRequests(Protocol):
    """The controller, for what this broker asks itself: every worker has these (server.controller_queue,
    server.metadata_feed; in a cluster server.member_worker)."""

    def auto_create(self, names: Iterable[str], context: RequestContext | None = None) -> Any: ...
    def allocate_producer_ids(self) -> tuple[int, int] | Awaitable[tuple[int, int]]:
        """Return (first, count) of a block, or an awaitable of it."""

    def assign_directories(self, placed: dict[tuple[bytes, int], bytes]) -> None:
        """Record the log directories of replicas, by (topic id, partition). Retries by itself."""


class ProducerIds(Protocol):
    """Hands out producer ids (server.producer_ids)."""

    def generate(self) -> int | Awaitable[int]: ...
    def take(self) -> int: ...
    def coming(self) -> Awaitable[Any] | None: ...


class Peers(Protocol):
    """The links to the other workers (server.worker_links)."""

    @property
    def count(self) -> int: ...  # of workers, with this one
    @property
    def up(self) -> Collection[int]: ...  # those that are connected now
    def call(
        self, k: int, kind: int, payload: bytes = b"", timeout_s: float | None = None
    ) -> "Future[bytes]": ...
    def ask(self, k: int, kind: int, payload: bytes = b"", timeout_s: float | None = None) -> Any: ...
    def handle(self, kind: int, function: Callable[..., Any], *, bulk: bool = False) -> None: ...
    async def wait_up(self, k: int, timeout_s: float | None = None) -> None: ...


class MarkerAnswers(Protocol):
    """Collects the error codes of one marker's partitions."""

    def put(self, partition: TopicPartition, code: int) -> None: ...


class RemoteMarkers(Protocol):
    """The way of markers to the other brokers of a cluster (server.remote_markers)."""

    def take(
        self, marker: Marker, partitions: list[TopicPartition], answers: MarkerAnswers
    ) -> list[TopicPartition]:
        """Send the marker to the partitions of other brokers. Return the partitions of this broker."""


class RemoteGate(Protocol):
    """The transaction coordinators at the other brokers of a cluster (server.remote_gate)."""

    def coordinator_of(self, transactional_id: str) -> int | None:
        """Return the other broker that coordinates it; -1: there is none; None: this broker does."""

    def ask(self, broker_id: int, entry: Any, done: Callable[[Sequence[int]], object]) -> None:
        """Call `done` with a code for each partition of `entry`, a transaction of AddPartitionsToTxn."""


class TlsListeners(Protocol):
    """The certificates of this worker's listeners (server.tls_listeners)."""

    def check(self, config: BrokerConfig, names: Collection[str]) -> None:
        """Raise ConfigError if a listener cannot serve with `config`, which differs in the keys `names`."""

    def adopt(self, config: BrokerConfig) -> None:
        """Load the changed stores of `config`."""


@dataclass(slots=True)
class Services:
    """The parts of a broker that handlers use. Filled once, by `server.worker`."""

    config: BrokerConfig  # replaced when a dynamic key changes
    static_config: BrokerConfig  # as read at the start
    clock: Clock
    metadata: Images
    controller: Controller
    partitions: Partitions
    log_dirs: LogDirs
    groups: GroupCoordinator
    # these three are None on a controller
    producer_ids: ProducerIds | None = None
    transactions: TransactionCoordinator | None = None
    transaction_gate: Gate | None = None
    authorizer: Authorizer | None = None  # None: everything is allowed
    api_versions: tuple[tuple[int, int, int], ...] = ()  # (key, lowest, highest) as listed by ApiVersions
    advertised: dict[str, tuple[str, int]] = field(default_factory=dict)  # listener name -> host, port
    metadata_answers: MetadataAnswers = field(default_factory=MetadataAnswers)
    seldom: Seldom = field(default_factory=Seldom)  # limits log lines that clients cause
    # in a cluster
    remote_markers: RemoteMarkers | None = None  # None: no other broker leads anything
    low_watermarks: LowWatermarks | None = None  # None: no other broker has replicas
    remote_gate: RemoteGate | None = None  # None: no other broker coordinates anything
    # with several workers
    is_controller: bool = False  # requests come from brokers, which have made their own checks
    me: int = 0  # this worker's index
    peers: Peers | None = None  # None: there are no other workers
    owner_of: Callable[[str, int], int] | None = None  # topic, partition -> worker; unknown: me
    group_owner: Callable[[str], int | None] | None = None  # group id -> worker; None: nobody yet
    transaction_owner: Callable[[str], int] | None = None  # transactional id -> worker; none yet: me
    tls: TlsListeners | None = None  # None: on a controller
    log_level_set: Callable[[str, str | None], None] | None = None  # called after a client set a log level


def present(service: T | None) -> T:
    """Return a service that every broker has: only a controller serves without it."""
    assert service is not None
    return service


def code_of(trouble: BaseException) -> int:
    """Return the error code that a client gets for an exception."""
    if isinstance(trouble, errors.KafkaError):
        return trouble.code
    if isinstance(trouble, errors.Malformed):
        return errors.CORRUPT_MESSAGE
    return errors.UNKNOWN_SERVER_ERROR
