"""Every key is acted on, ignored with a warning that names it, or refused (issue part 1, "nothing is
pretended").

ACTED is proved by walking the source: some part of the broker reads the key. IGNORED and REFUSED are proved
by giving each key a value of its own."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kafkad.config.broker import BrokerConfig
from kafkad.config.broker_keys import (
    BROKER_KEYS,
    BROKER_QUOTA_KEYS,
    PLUGIN_KEYS,
    PRINCIPAL_BUILDER,
    RETIRED_KEYS,
)
from kafkad.config.client_metrics import CLIENT_METRICS_KEYS
from kafkad.config.definition import BOOLEAN, DOUBLE, LIST, ConfigError, Key, to_string
from kafkad.config.dynamic import with_dynamic
from kafkad.config.effects import OF, OF_A_CLUSTER, PER_LISTENER, TOKEN_KEYS, Effect
from kafkad.config.group import GROUP_KEYS
from kafkad.config.served import check_served, check_workers, ignored, ignored_message, refuse_changes
from kafkad.config.topic import TOPIC_KEYS
from kafkad.protocol.errors import INVALID_CONFIG, KafkaError

SOURCE = Path(__file__).resolve().parents[2] / "kafkad"
TABLES = {
    "broker": BROKER_KEYS,
    "quota": BROKER_QUOTA_KEYS,
    "topic": TOPIC_KEYS,
    "group": GROUP_KEYS,
    "client metrics": CLIENT_METRICS_KEYS,
}
ROWS = [(table, key) for table, keys in TABLES.items() for key in keys.values()]
# parts that are no broker
CLIENTS = ("client", "values", "spark", "ingest", "cli", "testing", "demo", "config")

# parts that only a node of a cluster has
OF_A_MEMBER = (
    "replication/throttles.py",
    "controller/quorum_controller.py",
    "replication/fetchers.py",
    "server/controller_node.py",
    "server/member_metadata.py",
    "server/member_worker.py",
    "server/node_links.py",
)
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
A_CONTROLLER = {
    "process.roles": "controller",
    "node.id": "9",
    "controller.quorum.voters": "9@h:1",
    "controller.listener.names": "C",
    "listeners": "C://h:1",
    "listener.security.protocol.map": "C:PLAINTEXT",
}
A_MEMBER = {
    "process.roles": "broker",
    "node.id": "9",
    "controller.quorum.bootstrap.servers": "h:1",
    "controller.listener.names": "C",
    "listener.security.protocol.map": "C:PLAINTEXT,PLAINTEXT:PLAINTEXT",
}

# Keys that config/ turns into another attribute, which is what the broker reads.
DERIVED = {
    "advertised.listeners": "advertised_endpoints",
    "controller.listener.names": "controller_endpoints",
    "config.providers": None,  # fills in values before anybody reads them
    "security.inter.broker.protocol": None,  # the same
    "inter.broker.listener.name": None,  # judged only: it must name one of the listeners
    "listener.security.protocol.map": "endpoints",
    "listeners": "endpoints",
    "broker.id": "node_id",
    "log.dir": "log_dirs",
    "replica.alter.log.dirs.io.max.bytes.per.second": None,  # read by its name (server/replica_moves)
    "log.retention.hours": "retention_ms",
    "log.retention.minutes": "retention_ms",
    "max.connections.per.ip.overrides": "host_connection_limits",
    "min.insync.replicas": None,  # only written into a fresh metadata log, for a Kafka that opens it
    "internal.segment.bytes": "segment_bytes",
}


@cache
def attributes_read() -> frozenset[str]:
    """What a broker that is alone reads of a configuration: `config.x`, `self._config.x`,
    `getattr(config, "x")`."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE)
        if place.parts[0] not in CLIENTS and place.as_posix() not in OF_A_MEMBER:
            found |= _read_in(path)
    return frozenset(found)


@cache
def attributes_of_members() -> frozenset[str]:
    """What only a node of a cluster reads."""
    return frozenset().union(*(_read_in(SOURCE / place) for place in OF_A_MEMBER))


def _read_in(path: Path) -> set[str]:
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and _is_config(node.value)
    }


def _is_config(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.strip("_") in ("config", "broker_config", "static_config", "defaults")


@cache
def listener_keys_read() -> frozenset[str]:
    """What is read for each listener: constants of the module that does."""
    names = (
        "security/listeners.py",
        "security/principal_rules.py",
        "security/tls.py",
        "server/connection_rates.py",
    )
    trees = [ast.parse((SOURCE / name).read_text()) for name in names]
    return frozenset(
        node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)
    )


def is_read(name: str) -> bool:
    if name in PER_LISTENER:
        return name in listener_keys_read()
    if name in DERIVED:
        attribute = DERIVED[name]
        return (
            attribute is None or attribute in attributes_read() or f"broker_{attribute}" in attributes_read()
        )
    key = BROKER_KEYS.get(name) or TOPIC_KEYS[name]
    if key.attribute in attributes_read() | attributes_of_members():
        return True
    heirs = [topic for topic in TOPIC_KEYS.values() if name in topic.synonyms]
    return any(heir.attribute in attributes_read() for heir in heirs)


@pytest.mark.parametrize(("table", "key"), ROWS, ids=lambda row: getattr(row, "name", row))
def test_every_key_is_acted_on_or_ignored_by_name_or_refused_by_name(table: str, key: Key) -> None:
    what = key.treatment
    assert what is OF.get(key.name, what)
    if what.effect is Effect.ACTED:
        assert is_read(key.name), "nobody reads it: give it a row in config/effects.py, or act on it"
        return
    assert what.because
    if key.name not in DERIVED:
        assert key.attribute not in attributes_read() or table == "topic", "it is read: take its row away"
    values = [text for text in others(key) if valid_for(table, key, text)]
    assert values, "no value of its own is known to this test"
    for text in values:
        shown = "[hidden]" if key.sensitive else text
        if what.effect is Effect.REFUSED:
            assert_refused(table, key, text, shown)
        elif table == "broker":
            [sentence] = ignored(BrokerConfig({key.name: text}))
            assert sentence == f"{key.name}={shown} has no effect: {what.because}"
            in_a_cluster = ignored(BrokerConfig(A_MEMBER | {key.name: text}))
            assert in_a_cluster == ([] if key.name in OF_A_CLUSTER else [sentence])
            of_a_login = key.name in TOKEN_KEYS  # tests/unit/test_node_logins
            assert key.name not in OF_A_CLUSTER or of_a_login or key.attribute in attributes_of_members()
        else:
            keys = None if table == "quota" else TABLES[table]
            assert (ignored_message(key.name, text, keys) or "").startswith(
                f"{key.name}={shown} has no effect"
            )


def assert_refused(table: str, key: Key, text: str, shown: str) -> None:
    if table == "broker":
        with pytest.raises(ConfigError) as caught:
            check_served(BrokerConfig({key.name: text} | PREREQUISITES.get(key.name, {})))
        assert f"Invalid value {shown} for configuration {key.name}: " in str(caught.value)
        for allowed in key.treatment.allowed:
            beside = {"listeners": f"{allowed}://h:1"} if key.name.endswith("broker.protocol") else {}
            check_served(BrokerConfig({key.name: allowed} | beside))
    with pytest.raises(KafkaError) as refused:
        refuse_changes({key.name: text}, None if table == "broker" else TABLES[table])
    assert refused.value.code == INVALID_CONFIG and key.name in (refused.value.message or "")


def valid_for(table: str, key: Key, text: str) -> bool:
    try:
        if key.parse(text) == key.default:
            return False
        if table == "broker":
            BrokerConfig({key.name: text} | PREREQUISITES.get(key.name, {}))
    except ConfigError:
        return False
    return text not in key.treatment.allowed


# Without these a value is refused for another reason, which Kafka has too.
PREREQUISITES = {
    "security.inter.broker.protocol": {"listeners": "SSL://h:1"},
}


def others(key: Key) -> Iterator[str]:
    """Values that are not the default."""
    if key.type == BOOLEAN:
        yield "false" if key.default else "true"
    elif isinstance(key.default, int | float) or key.type in ("int", "long", "short", DOUBLE):
        number = key.default if isinstance(key.default, int | float) else 7
        for other in (number - 1, number + 1, 1, 5, 50, 600_000):
            yield str(int(other)) if key.type != DOUBLE else str(min(abs(other) / 3, 0.4))
    elif key.valid.allowed.startswith(("[", "(")):
        names = key.valid.allowed[key.valid.allowed.index("[") + 1 : -1].split(", ")
        yield from (name for name in names if name != to_string(key.default))
        yield from ("0:1", "by_duration:PT1H", "classic,consumer")
    elif key.type == LIST:
        yield from ("a.b.C", "h:1", "client_id=x", "*")
    else:
        yield from ("a.b.C", "earliest")


def test_no_row_is_about_a_key_that_does_not_exist() -> None:
    known = {key.name for _, key in ROWS} | PLUGIN_KEYS | RETIRED_KEYS.keys()
    assert set(OF) <= known


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"replica.selector.class": "a.B"},
         "replica.selector.class: kafkad cannot load Java classes; use org.apache.kafka"),
        ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"},
         "authorizer.class.name: kafkad cannot load Java classes; use org.apache.kafka.metadata.authorizer."),
        ({"delegation.token.master.key": "hush"}, "value [hidden] for configuration delegation.token.master"),
        ({"listener.name.plaintext.max.connections": "3"},
         "3 for configuration listener.name.plaintext.max.connections: kafkad applies it to all "
         "listeners alike; set max.connections"),
        ({"listener.name.x.plain.sasl.server.callback.handler.class": "a.B"},
         "listener.name.x.plain.sasl.server.callback.handler.class: kafkad cannot load Java classes"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_by_name(given: dict[str, str], message: str) -> None:
    """HUNTS U9 is the row of the voters: they were refused in words about a directory just formatted."""
    with pytest.raises(ConfigError) as caught:
        check_served(BrokerConfig(given))
    assert message in str(caught.value)


def test_all_refused_values_stand_in_one_message() -> None:
    config = BrokerConfig(
        {"authorizer.class.name": "a.B", "delegation.token.master.key": "s", "num.partitions": "3"}
    )
    with pytest.raises(ConfigError, match=r"^2 values ask .*authorizer\.class\.name.*delegation\.token"):
        check_served(config)


@pytest.mark.parametrize(
    "given",
    [
        {"super.users": "User:a"},
        *(  # a node alone does not open the controller's listener
            {
                "listeners": "PLAINTEXT://h:1,C://h:2",
                "controller.listener.names": "C",
                "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,C:{protocol}",
            }
            for protocol in ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
        ),
        {"allow.everyone.if.no.acl.found": "true"},
        {"authorizer.class.name": STANDARD},
        {"authorizer.class.name": ""},
        {"principal.builder.class": PRINCIPAL_BUILDER},
        {"controller.quorum.voters": "1@localhost:9093"},
        A_MEMBER | {"replica.selector.class": RACK_AWARE},
        {"process.roles": "controller,broker"},
        {"authorizer.class.name": STANDARD, "delegation.token.secret.key": "hush"} | A_MEMBER,
        A_MEMBER | {"listener.security.protocol.map": "C:SSL,PLAINTEXT:PLAINTEXT"},
        A_MEMBER
        | {
            "listeners": "SSL://h:1,PLAINTEXT://h:2",
            "security.inter.broker.protocol": "SSL",
            "listener.security.protocol.map": "C:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL",
            "sasl.mechanism.controller.protocol": "PLAIN",
        },
        A_CONTROLLER | {"authorizer.class.name": STANDARD},
        A_CONTROLLER,
    ],
)
def test_values_that_ask_for_nothing_more_are_taken(given: dict[str, str]) -> None:
    check_served(BrokerConfig(given))
    assert ignored(BrokerConfig(given)) == []


def test_keys_of_plug_ins_and_of_listeners_are_named() -> None:
    config = BrokerConfig(
        {
            "rsm.config.bucket": "b",
            "metrics.context.team": "t",
            "listener.name.x.ssl.provider": "hush",
            "listener.name.x.plain.sasl.jaas.config": "hush",
            "sasl.jaas.config": "hush",
            "config.providers.env.class": "x",
        }
    )
    assert [sentence.split(" has no effect: ")[0] for sentence in ignored(config)] == [
        "rsm.config.bucket=b",
        "metrics.context.team=t",
        "listener.name.x.ssl.provider=hush",
        "sasl.jaas.config=[hidden]",
    ]


def test_refused_values_in_the_metadata_log_are_left_out_and_ignored_ones_are_named() -> None:
    static = BrokerConfig({"node.id": "1"})
    config, complaints = with_dynamic(
        static,
        {"log.cleaner.io.buffer.size": "2", "max.connections": "7"},
        {"principal.builder.class": "a.B"},
    )
    assert (config.max_connections, config.is_given("principal.builder.class")) == (7, False)
    assert len(complaints) == 2
    assert "principal.builder.class is ignored: Invalid value a.B" in complaints[0]
    assert "log.cleaner.io.buffer.size=2 has no effect" in complaints[1]


def test_a_dynamic_throttle_of_replication_has_no_effect_on_a_broker_alone_only() -> None:
    throttle = {"leader.replication.throttled.rate": "1000000"}
    _, complaints = with_dynamic(BrokerConfig({"node.id": "1"}), {}, throttle)
    assert ["has no effect" in sentence for sentence in complaints] == [True]
    assert with_dynamic(BrokerConfig(A_MEMBER), {}, throttle)[1] == []


def test_a_node_that_is_a_controller_only_has_one_worker() -> None:
    member, alone = BrokerConfig(A_MEMBER), BrokerConfig({})
    assert check_workers(alone, None, 8) == 8
    assert check_workers(alone, 3, 8) == 3
    assert check_workers(member, None, 8) == 8
    voters = "1@h:1,9@h:2"
    listening = {"listeners": "C://h:2,PLAINTEXT://h:3", "controller.quorum.voters": voters}
    protocols = {"listener.security.protocol.map": "C:PLAINTEXT,PLAINTEXT:PLAINTEXT"}
    both = BrokerConfig({**A_CONTROLLER, **listening, **protocols, "process.roles": "broker,controller"})
    assert (check_workers(both, None, 8), check_workers(both, 1, 8), check_workers(both, 2, 8)) == (8, 1, 2)
    controller = BrokerConfig({**A_CONTROLLER, "controller.quorum.voters": "9@h:2"})
    assert check_workers(controller, None, 8) == check_workers(controller, 1, 8) == 1
    with pytest.raises(ConfigError, match="--workers 2: a node that is a controller only has one process"):
        check_workers(controller, 2, 8)
