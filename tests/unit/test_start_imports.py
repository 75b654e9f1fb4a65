"""What `kafkad serve` imports: each module costs memory, in every process, and time of the start."""

import os
import subprocess
import sys

# As in `kafkad.cli.serving`, up to the fork of the workers.
START = """
import sys
from kafkad.cli.serving import plain, serve_node
from kafkad.cli.start_checks import check_start
from kafkad.config.broker import BrokerConfig
from kafkad.net.hosts import is_loopback
from kafkad.net.listener import bind
from kafkad.security import exposure
from kafkad.server import lifecycle, supervisor

config = BrokerConfig.load(None, {"log.dirs": "data", "listeners": "PLAINTEXT://127.0.0.1:0"})
check_start(config)
assert lifecycle.node_class(config) is lifecycle.Worker
list(exposure.warnings(config, is_loopback))
lifecycle.preload()
bind(config.broker_endpoints[0], count=2)
print(*sys.modules)
"""

OF_A_CLUSTER = {  # fetchers, channels, links to other nodes and a quorum of several: 1.3 MB with two workers
    "kafkad._native.serving.outgoing_tls",
    "kafkad._native.serving.replica_fetch",
    "kafkad.net.channel",
    "kafkad.replication.fetchers",
    "kafkad.raft.node",
    "kafkad.raft.observer",
    "kafkad.raft.quorum_log",
    "kafkad.server.broker_lifecycle",
    "kafkad.server.member_worker",
    "kafkad.server.node_links",
}
NOT_NEEDED = {"click", "encodings.idna", "sysconfig"}  # a table of a thousand variables; those of Unicode


def test_a_broker_alone_imports_nothing_for_clusters_or_commands():
    run = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{START}"],
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set(run.stdout.split())
    assert "kafkad.server.worker" in imported
    assert imported & (OF_A_CLUSTER | NOT_NEEDED) == set()
