from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kafkad._native.log.group_commit import GroupCommit
from kafkad._native.serving.connection import Connection
from kafkad._native.serving.partition_table import PartitionTable
from kafkad._native.serving.replication_quota import ReplicationQuota
from kafkad._native.serving.tls import TlsContext
from kafkad._native.shared.connection_handover import Handover
from kafkad._native.shared.host_counts import HostCounts
from kafkad._native.shared.mailbox import Mailboxes
from kafkad._native.shared.quota_table import QuotaTable

# gate(transactional id, producer id, epoch, version of Produce, [(topic, partition)], done): asks a
# transaction coordinator, once per request. `done` takes an answer for each partition, possibly before the
# call returns: the error code for the client, and a message or None.
Answers = Sequence[tuple[int, str | None]]
# takes(connection, request id, version, correlation id, acks, timeout in ms, transactional id or None, topic
# name or id, partition, records): returns True if it answers the Produce, later, with Connection.respond.
Takes = Callable[[Connection, int, int, int, int, int, str | None, bytes, int, bytes], bool]
Gate = Callable[[str, int, int, int, list[tuple[str, int]], Callable[[Answers], object]], object]

class Reactor:
    """Sockets, frames and turns. Watch `fileno()` for reading and call `poll()` when it is ready. Deadlines
    and wake-ups are in the same epoll set, so no timer is needed. One per event loop, for its thread only."""

    def __init__(
        self,
        partitions: PartitionTable,
        dispatch: Callable[[Connection, int, bytes], None],
        *,
        on_fatal: Callable[[BaseException], Any]
        | None = None,  # without it, an exception in a callback aborts the process
        log: Any = None,  # a logger; kafkad.net by default
        socket_request_max_bytes: int = 104857600,
        sasl_server_max_receive_size: int = 524288,
        buffered_bytes_max: int = 536870912,  # of partial and waiting frames, for all connections together
        connections_max: int = 2147483647,
        connections_max_per_ip: int = 2147483647,
        connections_max_per_ip_overrides: dict[str, int] | None = None,
        connections_max_idle_ms: int = 600000,  # negative: never
        stall_ms: int = 10000,  # short of memory, a holder that is idle for so long is closed
        send_buffer_bytes: int = 102400,  # -1: the system's default
        receive_buffer_bytes: int = 102400,
        fetch_max_bytes: int = 57671680,
        fetch_session_slots: int = 1000,
        fetch_session_eviction_ms: int = 120000,
        fetch_session_partitions_max: int = 1000000,
        fetch_session_orphan_ms: int = 10000,
        mailboxes: Mailboxes | None = None,  # entered by this process
        hosts: HostCounts | None = None,  # entered: connections of each host, over all workers
        handover: Handover | None = None,  # entered: spreads new connections over the workers
    ) -> None: ...
    def fileno(self) -> int: ...
    def poll(self) -> None: ...
    def join_loop(self, fd: int) -> None:
        """Serve an event loop that sleeps in `wait` and makes `fd` readable if it has something to do."""
    def wait(self, timeout: float | None, ready: deque[Any], scheduled: list[Any]) -> bool:
        """Serve and sleep until the loop has something to do. True if its descriptor is readable; False if
        `ready` is not empty, `scheduled` has grown, a signal came, or `timeout` seconds are over."""
    def join_commits(self, group: GroupCommit) -> None:
        """Let the reactor publish what `group` has synced, until the reactor is closed."""
    def authorize(self, authorizer: Any) -> None:
        """Check Produce and Fetch against the rights from `authorizer` (security/authorizer). Its answers are
        remembered until `acls_changed`."""
    def count_quotas(
        self, table: QuotaTable, resolve: Callable[[int, str, str], tuple[int, float] | None]
    ) -> None:
        """Count in `table` how clients use their quotas. `resolve(kind, principal, client id)` returns the
        key of a bucket and its limit per second, or None; the result is used until `quotas_changed`."""
    def quotas_changed(self, kinds: int) -> None:
        """Resolve again for later requests. `kinds`: a bit for each kafkad.quota.Kind that has quotas; 0:
        count nothing."""
    def limit_connection_rates(self, rates: Any) -> None:
        """Ask `rates` (server/connection_rates) before a connection is accepted. None: no rate limits."""
    def acls_changed(self) -> None:
        """Check the rights again for later requests."""
    def serve_native(self, key: int, low: int, high: int) -> None:
        """Serve Produce (0) or Fetch (1) in these versions; others of that key close the connection."""
    def serve_transactions(self, gate: Gate | None, *, verify: bool = True) -> None:
        """Serve Produces with a transactional id; None: refuse them. `verify`: check that a client below v12
        has added its partitions (transaction.partition.verification.enable)."""
    def hand_over(self, takes: Takes | None, moving: Iterable[tuple[str, int]] | None = None) -> None:
        """Offer Produces to `takes` before they are appended; None: no more. Only those of one partition (of
        `moving`, if given) that has other replicas in sync, or that another broker leads; v10 and later,
        with acks."""
    def add_listener(self, fd: int, name: str, *, phase: int = 2) -> None: ...
    on_certificate: Callable[[Connection, bytes], object] | None  # a ValueError closes the connection
    def secure(self, name: str, context: TlsContext) -> None:
        """Use TLS for the connections that this listener accepts from now on."""
    def protect_listener(self, name: str | None) -> None:
        """max.connections does not hold for this listener, which is between brokers. None: it holds for
        all."""
    def remove_listener(self, fd: int) -> None: ...
    def adopt(self, fd: int, listener: str, *, phase: int = 2) -> Connection | None:
        """Take over and serve a connected socket. None if a limit refused it."""
    def attach(
        self,
        writer: Callable[[bytes | None], Any],
        listener: str,
        *,
        peer: tuple[str, int] = ("", 0),
        phase: int = 2,
    ) -> Connection | None:
        """Bytes come from `Connection.feed`, answers go to `writer`; `writer(None)` means that it is
        closed."""
    def set_limits(
        self,
        *,
        connections_max: int | None = None,
        connections_max_per_ip: int | None = None,
        connections_max_per_ip_overrides: dict[str, int] | None = None,
        connections_max_idle_ms: int | None = None,
        fetch_max_bytes: int | None = None,
    ) -> None: ...
    def peer_lost(self, peer: int) -> None:
        """A worker has died: what is in flight to it fails. A late or repeated call has no effect."""
    def hold_cold_reads(self, held: bool) -> None:
        """For tests: if `held`, start no cold read until this is called with False."""
    def ask_elsewhere(
        self,
        leader: Callable[[bytes, bool, int], tuple[int, int] | None] | None,
        name: Callable[[bytes], bytes | None] | None,
    ) -> None:
        """Refuse partitions that have no replica here as NOT_LEADER_OR_FOLLOWER, if the cluster has them:
        `leader(topic, is_id, index)` returns the leader (-1: none) and its epoch, or None if it has not.
        `name(topic id)` returns the topic's name, by which rights are decided."""
    def name_leaders(self, nodes: dict[tuple[str, int], bytes]) -> None: ...
    def name_leader(self, broker_id: int, nodes: dict[str, bytes]) -> None:
        """Name the leader of the partitions that a Fetch asks for; by listener, the tags of an answer that
        has it (api/node_endpoints)."""
    def throttle_replication(self, quota: ReplicationQuota) -> None:
        """Hold what followers fetch from here to `quota`, where topics say so."""
    def know_racks(self, names: list[str], own: str | None) -> None:
        """Send consumers that name a rack to replicas there (KIP-392). `names` are the racks of all brokers,
        by number from 1, and `own` is ours."""
    def expect_followers(self) -> None: ...
    def trim_soon(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def connections(self) -> list[tuple[int, str, str, int, int, int, int]]: ...
    def next_deadline_ms(self) -> int | None: ...
    def tick(self) -> None: ...
    def now_ms(self) -> int: ...
    def close(self) -> None: ...

def packed(host: str) -> bytes: ...
