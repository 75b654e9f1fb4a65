"""Clusters of JVM Kafka: controllers and brokers as processes of their own, formatted for one cluster.

`JvmCluster(path, controllers=1, brokers=1)` formats and starts; `static` has controller.quorum.voters
(kraft.version 0), else the voters stand in the log (kraft.version 1). `new_broker` is not started: with
`format` its directory is ready for another broker, as kafkad, or for Kafka's own later."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.jvm import FAST_JVM, NEWEST, TEST_CONFIG, JvmKafka, as_text, free_port, random_uuid, run_tool


class JvmNode(JvmKafka):
    """A controller (`role` "controller") or a broker of a cluster."""

    def __init__(self, cluster: JvmCluster, node_id: int, role: str, config: Mapping[str, object]):
        self.version = NEWEST
        self.cluster = cluster
        self.node_id = node_id
        self.role = role
        self.data_dir = cluster.path / f"{role}-{node_id}"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.port = cluster.controller_ports[node_id] if role == "controller" else free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.jvm = ("-Xmx512m", *FAST_JVM)
        self.process = None
        self.properties = cluster.path / f"{role}-{node_id}.properties"
        self.log_file = cluster.path / f"{role}-{node_id}.out"
        name = "CONTROLLER" if role == "controller" else "PLAINTEXT"
        self.config = {
            "process.roles": role,
            "node.id": str(node_id),
            **cluster.quorum,
            "listeners": f"{name}://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data_dir),
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            **TEST_CONFIG,
            **{key: as_text(value) for key, value in {**cluster.config, **config}.items()},
        }
        self.write()

    def write(self) -> None:
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in self.config.items()))

    def format(self) -> None:
        extra: list[str] = []
        if not self.cluster.static:
            initial = ["--initial-controllers", self.cluster.initial_controllers]
            extra = initial if self.role == "controller" else ["--no-initial-controllers"]
        command = ["format", "-t", self.cluster.cluster_id, "-c", self.properties, *extra]
        run_tool(self.version, "kafka-storage", *command)

    @property
    def metadata_dir(self) -> Path:
        return self.data_dir / "__cluster_metadata-0"


class JvmCluster:
    """`with JvmCluster(...) as cluster`: controllers have ids from 100 on, brokers from 1."""

    def __init__(
        self,
        path: Path,
        *,
        controllers: int = 1,
        brokers: int = 0,
        static: bool = True,
        config: Mapping[str, object] | None = None,
    ):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.static = static
        self.cluster_id = random_uuid()
        self.config = dict(config or {})
        self.controller_ports = {100 + number: free_port() for number in range(controllers)}
        addresses = {node: f"127.0.0.1:{port}" for node, port in self.controller_ports.items()}
        self.bootstrap_controllers = ",".join(addresses.values())
        self.initial_controllers = ",".join(f"{id}@{at}:{random_uuid()}" for id, at in addresses.items())
        self.quorum = (
            {"controller.quorum.voters": ",".join(f"{id}@{at}" for id, at in addresses.items())}
            if static
            else {"controller.quorum.bootstrap.servers": self.bootstrap_controllers}
        )
        self.controllers = [JvmNode(self, node, "controller", {}) for node in self.controller_ports]
        self.brokers = [self.new_broker(number + 1) for number in range(brokers)]

    def new_broker(self, node_id: int, **config: object) -> JvmNode:
        """A broker that is not started."""
        return JvmNode(self, node_id, "broker", config)

    def start(self) -> JvmCluster:
        for node in self.controllers + self.brokers:
            node.start()
        return self

    def tool(self, name: str, *arguments: object):
        """One of Kafka's scripts that goes to the controllers."""
        return run_tool(NEWEST, name, "--bootstrap-controller", self.bootstrap_controllers, *arguments)

    def __enter__(self) -> JvmCluster:
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exception: object) -> None:
        for node in self.brokers + self.controllers:
            node.kill()
