"""BrokerConfig: files that load, what applies, and one sentence for each wrong value."""

import subprocess
import sys
from pathlib import Path

import pytest

from kafkad.config.broker import BrokerConfig, is_sensitive
from kafkad.config.definition import ConfigError
from kafkad.config.served import check_served, is_alone

# What the files say that Kafka ships (config/ of 4.3.1 and 3.9.1), comments left out.
COMMON = """
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
PROTOCOLS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
SHIPPED = {
    "4.3 server": f"""
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map={PROTOCOLS}
log.dirs=/tmp/kraft-combined-logs
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
""",
    "4.3 broker": f"""
process.roles=broker
node.id=2
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://localhost:9092
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092
controller.listener.names=CONTROLLER
listener.security.protocol.map={PROTOCOLS}
log.dirs=/tmp/kraft-broker-logs
""",
    "4.3 controller": """
process.roles=controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=CONTROLLER://:9093
advertised.listeners=CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
log.dirs=/tmp/kraft-controller-logs
""",
    "3.9 kraft server": f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map={PROTOCOLS}
log.dirs=/tmp/kraft-combined-logs
""",
    "3.9 zookeeper": """
broker.id=0
log.dirs=/tmp/kafka-logs
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
""",
}


def load(**overrides: str) -> BrokerConfig:
    return BrokerConfig.load(overrides={key.replace("_", "."): value for key, value in overrides.items()})


@pytest.mark.parametrize("name", SHIPPED)
def test_the_files_that_kafka_ships_load(name: str, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(SHIPPED[name] + COMMON)
    config = BrokerConfig.load(file)
    assert config.unknown_keys == []
    assert bool(config.notes) == ("zookeeper" in name)
    assert config.socket_request_max_bytes == 100 << 20
    assert config.node_id == config.broker_id == {"4.3 broker": 2, "3.9 zookeeper": 0}.get(name, 1)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_files_that_kafka_ships_start_a_node(name: str) -> None:
    lines = (SHIPPED[name] + COMMON).split()
    config = BrokerConfig(dict(line.split("=", 1) for line in lines))
    check_served(config)
    assert is_alone(config) == (name not in ("4.3 broker", "4.3 controller"))


def test_it_starts_without_a_file() -> None:
    config = BrokerConfig.load()
    assert (config.node_id, config.process_roles) == (1, ["broker", "controller"])
    assert [str(endpoint) for endpoint in config.endpoints] == ["PLAINTEXT://:9092"]
    assert config.controller_endpoints == []
    assert config.inter_broker_listener_name == "PLAINTEXT"


def test_overrides_win_over_the_file_and_a_snapshot_stays(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\nlog.dirs=/a, /b\n")
    config = BrokerConfig.load(file, {"num.partitions": "5"})
    assert (config.num_partitions, config.log_dirs) == (5, ["/a", "/b"])
    with pytest.raises(AttributeError):
        config.num_partitions = 6
    config.log_dirs.append("/c")
    assert BrokerConfig.load().log_dir == ["/tmp/kafka-logs"]


def test_what_applies_comes_from_the_next_key_where_its_own_is_missing() -> None:
    config = load(
        log_dir="/d", log_retention_hours="2", log_roll_hours="3", log_flush_scheduler_interval_ms="9"
    )
    assert config.log_dirs == ["/d"] and config.value("log.dirs") is None
    assert config.metadata_log_dir == "/d"
    assert config.log_retention_ms == 7_200_000 and config.value("log.retention.ms") is None
    assert load(log_retention_hours="2", log_retention_minutes="3").log_retention_ms == 180_000
    assert load(log_retention_minutes="3", log_retention_ms="-5").log_retention_ms == -1
    assert config.log_roll_ms == 10_800_000
    assert config.log_flush_interval_ms == 9
    assert config.advertised_listeners == config.listeners == ["PLAINTEXT://:9092"]
    assert load(broker_id="7").node_id == 7
    assert load(broker_id="-1").node_id == 1


def test_controller_listeners_are_kept_apart() -> None:
    config = load(
        listeners="PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093",
        controller_listener_names="CONTROLLER",
    )
    assert [endpoint.listener for endpoint in config.broker_endpoints] == ["PLAINTEXT"]
    assert [endpoint.port for endpoint in config.controller_endpoints] == [9093]
    assert [endpoint.listener for endpoint in config.advertised_broker_endpoints] == ["PLAINTEXT"]


def test_unknown_keys_are_collected_and_old_ones_noted() -> None:
    config = BrokerConfig.load(
        overrides={
            "no.such.key": "1",
            "log.message.format.version": "2.8",
            "super.users": "User:a",
            "rsm.config.x": "y",
            "listener.name.internal.ssl.keystore.location": "/k",
            "listener.name.internal.plain.sasl.jaas.config": "x",
            "listener.name.internal.nonsense": "x",
        }
    )
    assert config.unknown_keys == ["no.such.key", "listener.name.internal.nonsense"]
    assert config.notes == ["log.message.format.version has no effect: records are stored in format v2"]
    assert config.for_listener("INTERNAL", "ssl.keystore.location") == "/k"
    assert config.for_listener("OTHER", "ssl.keystore.location") is None


def test_secrets_do_not_show() -> None:
    config = BrokerConfig.load(overrides={"ssl.key.password": "hunter2", "unknown.token": "hunter3"})
    assert "hunter" not in repr(config)
    assert is_sensitive("listener.name.x.plain.sasl.jaas.config") and not is_sensitive("listeners")


def test_values_come_from_providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("password=from file\n")
    monkeypatch.setenv("KAFKAD_TEST_PARTITIONS", "4")
    package = "org.apache.kafka.common.config.provider"
    config = BrokerConfig.load(
        overrides={
            "config.providers": "env,file",
            "config.providers.env.class": f"{package}.EnvVarConfigProvider",
            "config.providers.file.class": f"{package}.FileConfigProvider",
            "num.partitions": "${env:KAFKAD_TEST_PARTITIONS}",
            "ssl.key.password": f"${{file:{secrets}:password}}",
            "broker.rack": "${env:KAFKAD_TEST_MISSING}-${other:a}",
        }
    )
    assert (config.num_partitions, config.ssl_key_password) == (4, "from file")
    assert config.broker_rack == "${env:KAFKAD_TEST_MISSING}-${other:a}"
    with pytest.raises(ConfigError, match=r"config\.providers\.x\.class: Class must be one of"):
        BrokerConfig.load(overrides={"config.providers": "x"})


CONTROLLER = {"listeners": "PLAINTEXT://:9092,C://:9093", "controller.listener.names": "C"}
BROKER_ONLY = {"process.roles": "broker", "controller.quorum.bootstrap.servers": "h:1"}

# What is given; the value and the key that the sentence names, and what is wrong with them.
WRONG = [
    ({"num.partitions": "0"}, "0", "num.partitions", "Value must be at least 1"),
    ({"num.partitions": "many"}, "many", "num.partitions", "Not a number of type INT, allowed is [1,...]"),
    (
        {"auto.create.topics.enable": "1"},
        "1",
        "auto.create.topics.enable",
        "Expected value to be either true or false",
    ),
    (
        {"compression.type": "brotli"},
        "brotli",
        "compression.type",
        "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
    ),
    ({"compression.gzip.level": "0"}, "0", "compression.gzip.level", "Value must be from 1 to 9, or -1"),
    (
        {"log.cleanup.policy": "delete,"},
        "delete,",
        "log.cleanup.policy",
        "List must not contain an empty entry",
    ),
    ({"log.dirs": ""}, "", "log.dirs", "List must not be empty"),
    (
        {"log.cleaner.min.cleanable.ratio": "1.5"},
        "1.5",
        "log.cleaner.min.cleanable.ratio",
        "Value must be no more than 1",
    ),
    ({"node.id": "1", "broker.id": "2"}, "1", "node.id", "Value must be the same as broker.id, which is 2"),
    ({"node.id": "-1"}, "-1", "node.id", "Value must be at least 0"),
    (
        {"process.roles": "zookeeper"},
        "zookeeper",
        "process.roles",
        "String must be one of: broker, controller",
    ),
    (
        {"process.roles": "broker"},
        "broker",
        "process.roles",
        "controller.quorum.bootstrap.servers or controller.quorum.voters must name the controllers",
    ),
    (BROKER_ONLY, "", "controller.listener.names", "The controller's listener must be named"),
    (
        BROKER_ONLY | CONTROLLER,
        "PLAINTEXT://:9092,C://:9093",
        "listeners",
        "A node that is no controller must not listen on its controller.listener.names",
    ),
    (
        {"controller.quorum.voters": "localhost:9093"},
        "localhost:9093",
        "controller.quorum.voters",
        "Entries must look like 1@host:9093",
    ),
    (
        {"controller.quorum.voters": "3@h:1"},
        "1",
        "node.id",
        "A controller must be one of the controller.quorum.voters, which are [3]",
    ),
    (
        {"controller.listener.names": "C"},
        "C",
        "controller.listener.names",
        "A controller must have them all in listeners",
    ),
    ({"listeners": "9092"}, "9092", "listeners", "Expected NAME://host:port with a port of at most 65535"),
    (
        {"listeners": "PLAINTEXT://:70000"},
        "PLAINTEXT://:70000",
        "listeners",
        "Expected NAME://host:port with a port of at most 65535",
    ),
    (
        {"listeners": "A://:1"},
        "A://:1",
        "listeners",
        "No security protocol defined for listener A: it must be in the listener.security.protocol.map",
    ),
    (
        {"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"},
        "PLAINTEXT://:1,PLAINTEXT://:2",
        "listeners",
        "Each listener must have a different name",
    ),
    (
        {"listeners": "PLAINTEXT://:1,SSL://:1"},
        "PLAINTEXT://:1,SSL://:1",
        "listeners",
        "Port 1 may be shared only by one IPv4 and one IPv6 address",
    ),
    (
        {"listeners": "PLAINTEXT://0.0.0.0:9092"},
        "PLAINTEXT://0.0.0.0:9092",
        "listeners",
        "0.0.0.0 cannot be advertised; set advertised.listeners to a routable address",
    ),
    (
        {"advertised.listeners": "SSL://h:1"},
        "SSL://h:1",
        "advertised.listeners",
        "Each name must also be in listeners",
    ),
    (
        {"listeners": "SSL://:1"},
        "PLAINTEXT",
        "inter.broker.listener.name",
        "Listener must be one of the advertised ones: SSL",
    ),
    (
        {"listener.security.protocol.map": "A:TLS"},
        "A:TLS",
        "listener.security.protocol.map",
        "Entries must be NAME:PROTOCOL, where PROTOCOL is one of: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
    ),
    (
        {"listener.security.protocol.map": "A:SSL\xa0"},
        "A:SSL\xa0",
        "listener.security.protocol.map",
        "Entries must be NAME:PROTOCOL, where PROTOCOL is one of: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
    ),
    (
        {"inter.broker.listener.name": "B"},
        "B",
        "inter.broker.listener.name",
        "Name must be in the listener.security.protocol.map",
    ),
    (
        {"inter.broker.listener.name": "SSL", "security.inter.broker.protocol": "SSL"},
        "SSL",
        "inter.broker.listener.name",
        "Only one of inter.broker.listener.name and security.inter.broker.protocol may be given",
    ),
    (
        {"group.min.session.timeout.ms": "5000000"},
        "5000000",
        "group.min.session.timeout.ms",
        "Value must be no more than group.max.session.timeout.ms, which is 1800000",
    ),
    (
        {"group.max.session.timeout.ms": "5"},
        "5",
        "group.max.session.timeout.ms",
        "Value must be at least group.min.session.timeout.ms, which is 6000",
    ),
    (
        {"group.consumer.session.timeout.ms": "5000"},
        "5000",
        "group.consumer.session.timeout.ms",
        "Value must be at least group.consumer.min.session.timeout.ms, which is 45000",
    ),
    (
        {"connections.max.idle.ms": "100"},
        "100",
        "connections.max.idle.ms",
        "Value must be greater than connection.failed.authentication.delay.ms, which is 100",
    ),
    (
        {"queued.max.request.bytes": "1000"},
        "1000",
        "queued.max.request.bytes",
        "Value must be at least socket.request.max.bytes, which is 104857600",
    ),
    (
        {"replica.fetch.wait.max.ms": "40000"},
        "40000",
        "replica.fetch.wait.max.ms",
        "Value must be no more than replica.lag.time.max.ms, which is 30000",
    ),
    ({"log.retention.ms": "0"}, "0", "log.retention.ms", "Value must be at least 1, or -1 for no limit"),
    ({"log.roll.ms": "0"}, "0", "log.roll.ms", "Value must be at least 1"),
    (
        {"log.cleaner.threads": "200"},
        "134217728",
        "log.cleaner.dedupe.buffer.size",
        "Value must be more than 1 MiB for each of the log.cleaner.threads",
    ),
    (
        {"cordoned.log.dirs": "/x"},
        "/x",
        "cordoned.log.dirs",
        "Entries must be in log.dirs, which is /tmp/kafka-logs",
    ),
    (
        {"max.connections.per.ip": "0"},
        "0",
        "max.connections.per.ip",
        "Value may be 0 only if there are overrides for some hosts",
    ),
    (
        {"max.connections.per.ip.overrides": "h"},
        "h",
        "max.connections.per.ip.overrides",
        "Entries must be host:count",
    ),
    (
        {"max.connections.per.ip.overrides": "h\xa0:1"},
        "h\xa0:1",
        "max.connections.per.ip.overrides",
        "Entries must be host:count",
    ),
    (
        {"group.coordinator.rebalance.protocols": "consumer"},
        "consumer",
        "group.coordinator.rebalance.protocols",
        "The classic protocol cannot be left out",
    ),
    ({"listener.name.a.max.connections": "-1"}, "-1", "max.connections", "Value must be at least 0"),
]


@pytest.mark.parametrize(("given", "value", "key", "reason"), WRONG)
def test_a_wrong_value_gets_one_sentence(given: dict[str, str], value: str, key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(overrides=given)
    assert str(caught.value) == f"Invalid value {value} for configuration {key}: {reason}"


def test_a_file_that_cannot_be_read_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^Cannot read .*none\.properties: No such file or directory$"):
        BrokerConfig.load(tmp_path / "none.properties")
    (tmp_path / "bad.properties").write_text("a=\\u12")
    with pytest.raises(ConfigError, match=r"^Cannot read .*bad\.properties: Malformed"):
        BrokerConfig.load(tmp_path / "bad.properties")


def test_unlimited_bounds_nothing() -> None:
    config = load(connections_max_idle_ms="-1", queued_max_request_bytes="-1")
    assert config.connections_max_idle_ms == -1


def test_names_of_listeners_are_trimmed_as_by_java() -> None:
    """Otherwise the second entry would be about A."""
    protocols = "PLAINTEXT:PLAINTEXT,\0A\x1f :SSL ,A\xa0:PLAINTEXT"
    given = {"listeners": "A://:1,PLAINTEXT://:2", "listener.security.protocol.map": protocols}
    assert BrokerConfig.load(overrides=given).endpoints[0].protocol == "SSL"


def test_host_limits_are_read() -> None:
    config = load(max_connections_per_ip_overrides="127.0.0.1:200, ::1:5,host:0", max_connections_per_ip="0")
    assert config.host_connection_limits == {"127.0.0.1": 200, "::1": 5, "host": 0}


def test_configuration_takes_little_of_the_start() -> None:
    """Starting fast is a promise; this is far above what it takes, 7 ms of CPU, below what people feel."""
    code = (
        "import time, re, typing; before = time.process_time();"
        "from kafkad.config.broker import BrokerConfig; BrokerConfig.load();"
        "print(time.process_time() - before)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)  # compiles what is not yet
    took = min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3))
    assert took < 0.1
