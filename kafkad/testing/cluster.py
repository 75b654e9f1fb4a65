"""`Cluster`: several kafkad nodes that a test controls, each a broker and a controller, as processes.

    with Cluster(3) as cluster:
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        cluster.kill(2)      # SIGKILL; the others take its partitions over
        cluster.start(2)

Nodes are numbered from 1. Topics have three replicas by default (or as many as there are nodes), of which all
but one must have a record of acks=all. Nobody is fenced by a test that sends SIGSTOP for less than three
seconds.

Without `data_dir`, the data is in a temporary directory that is deleted at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from kafkad.cli.local_cluster import LocalCluster, LocalNode, NodeFailed
from kafkad.testing.broker import BrokerFailed, spawn


class Cluster:
    """A kafkad cluster as a context manager.

    nodes      how many nodes
    config     Kafka's keys and values, for all nodes
    data_dir   directory for the data of all nodes, kept afterwards; default: a temporary directory
    workers    how many workers each node has
    timeout    seconds to wait until a node is ready, and for a clean stop
    """

    def __init__(
        self,
        nodes: int = 3,
        config: Mapping[str, object] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        workers: int = 1,
        timeout: float = 60.0,
    ) -> None:
        self.timeout = timeout
        self._workers = workers
        self._count = nodes
        self._config = config
        self._data_dir = Path(data_dir) if data_dir is not None else None
        self._scratch: Path | None = None
        self._cluster: LocalCluster | None = None

    @property
    def bootstrap(self) -> str:
        """Every node's `host:port`, for a client's bootstrap.servers."""
        return self._opened().bootstrap

    @property
    def nodes(self) -> dict[int, LocalNode]:
        """By number: `.bootstrap`, `.log`, `.running`, `.process`, `.data_dir`, `.properties`."""
        return self._opened().nodes

    @property
    def cluster_id(self) -> str:
        return self._opened().cluster_id

    @property
    def log(self) -> str:
        """The end of each node's stderr."""
        if self._cluster is None:
            return ""
        return "\n".join(f"-- node {number}\n{node.log}" for number, node in self._cluster.nodes.items())

    def kill(self, number: int) -> None:
        """Kill a node by SIGKILL, so that it flushes nothing."""
        self.nodes[number].kill()

    def stop(self, *numbers: int) -> dict[int, int]:
        """Stop nodes cleanly by SIGTERM, all of them unless some are named. Return their exit codes. Raise
        BrokerFailed if one takes too long."""
        try:
            return self._opened().stop(numbers or None, self.timeout)
        except NodeFailed as failed:
            raise BrokerFailed(str(failed)) from None

    def start(self, *numbers: int) -> None:
        """Start nodes, all that do not run unless some are named, and return when they are ready: that takes
        a majority of the controllers. Raise BrokerFailed."""
        try:
            self._opened().start(numbers or None, self.timeout)
        except NodeFailed as failed:
            raise BrokerFailed(str(failed)) from None

    def close(self) -> None:
        """End all processes at once and remove temporary files."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def __enter__(self) -> Self:
        root = self._data_dir
        if root is None:
            root = self._scratch = Path(tempfile.mkdtemp(prefix="kafkad-test-"))
        root.mkdir(parents=True, exist_ok=True)
        self._cluster = LocalCluster(root, self._count, self._config, workers=self._workers, spawn=spawn)
        try:
            self._cluster.open()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _opened(self) -> LocalCluster:
        if self._cluster is None:
            raise BrokerFailed("the cluster has not been started: use `with Cluster(3) as cluster:`")
        return self._cluster
