"""What a supervisor gives each of several workers, and the signals and exit codes between them."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from socket import socket

from kafkad._native.shared.connection_handover import Handover
from kafkad._native.shared.host_counts import HostCounts
from kafkad._native.shared.mailbox import Mailboxes
from kafkad._native.shared.quota_table import QuotaTable
from kafkad.config.listeners import Endpoint
from kafkad.log.log_dirs import LogDirs
from kafkad.server import metadata_feed
from kafkad.server.heartbeat import Heartbeats

BROKEN = 70  # EX_SOFTWARE
NO_DIRECTORY = 74  # EX_IOERR
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOP = signal.SIGUSR1  # to one of several workers: first close connections, then stop


@dataclass(slots=True)
class WorkerContext:
    """The parameters of one of several workers: its index, and its share of what was created before the
    fork."""

    me: int
    count: int
    restarted: bool  # others may have kept running when its predecessor died
    incarnation_id: bytes  # of the broker: the same in all workers and after their restarts
    log_dirs: LogDirs  # opened: locked and identified
    mailboxes: Mailboxes
    hosts: HostCounts
    handover: Handover
    quotas: QuotaTable
    throttles: QuotaTable  # of replication
    heartbeats: Heartbeats
    sockets: list[tuple[socket, str]]  # listening sockets, and the name of their listener
    endpoints: list[Endpoint]  # as bound, with the actual ports
    peer_sockets: list[socket]
    peer_addresses: list[bytes]
    first_image: metadata_feed.FirstImage
    tell: Callable[..., None]  # reports to the supervisor: tell(ready=True), tell(trouble=message)
