"""The broker's configuration: an immutable snapshot of all keys, from a server.properties file and its
overrides.

An attribute has the name of Kafka's key with underscores instead of dots. Its value is the one that applies:
`log_dirs` falls back to `log.dir`, `log_retention_ms` to minutes and hours, `advertised_listeners` to
`listeners`. `value(key)` is the value that was given for a key, as in DescribeConfigs.

Three layers are kept as text; a later one wins: `static` (file and command line), `dynamic_default` (set for
all brokers at run time) and `dynamic_broker` (set for this broker). A dynamic change creates a new snapshot
(dynamic.py). Values are checked one by one (broker_keys.py), then against each other, as in KafkaConfig.

Differences from Kafka: kafkad starts without a file, as broker and controller in one process with node id 1.
Such a node needs neither a controller listener nor a quorum in its configuration. Keys of ZooKeeper mode are
accepted and noted in `notes`. Unknown keys are collected in `unknown_keys`."""

import os
import re
from collections import ChainMap
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from kafkad.config.broker_keys import (
    BROKER_KEYS,
    BROKER_QUOTA_KEYS,
    FOREIGN_PREFIXES,
    PLUGIN_KEYS,
    RETIRED_KEYS,
    SYNONYMS,
)
from kafkad.config.definition import HIDDEN, PASSWORD, ConfigError, Key, Value, to_string
from kafkad.config.effects import PER_LISTENER, TOKEN_KEYS
from kafkad.config.group import GROUP_KEYS
from kafkad.config.listeners import (
    Endpoint,
    check_distinct_ports,
    listener_name,
    parse_endpoints,
    parse_host_limits,
    parse_protocol_map,
)
from kafkad.config.properties import read_properties
from kafkad.config.providers import substitute
from kafkad.config.topic import TOPIC_KEYS, conflict, defaults_from

DEFAULTS: Final = {key.attribute: key.default for key in BROKER_KEYS.values()}
LISTS: Final = tuple(key.attribute for key in BROKER_KEYS.values() if isinstance(key.default, list))
LISTENER_PREFIX: Final = re.compile(r"listener\.name\.[^.]*\.(.*)")

# Keys that can be set per listener and SASL mechanism: listener.name.<listener>.<mechanism>.<key>.
MECHANISM_KEYS: Final = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
    *TOKEN_KEYS,
    *(key for key in sorted(PER_LISTENER) if key.startswith("sasl.oauthbearer.")),
)


# A listener's name may have dots, too, although LISTENER_PREFIX ends at the first one, as in Kafka.
AFTER_DOTS: Final = tuple((key, f".{key}") for key in sorted(PER_LISTENER))


def base_key(name: str) -> str:
    """Return the key of `listener.name.<listener>.<key>`. Return any other name unchanged."""
    match = LISTENER_PREFIX.fullmatch(name)
    if not match:
        return name
    base = match.group(1)
    if base in BROKER_KEYS:
        return base
    of_mechanism = next((key for key in MECHANISM_KEYS if base.endswith(key)), base)
    return next((key for key, ending in AFTER_DOTS if base.endswith(ending)), of_mechanism)


class BrokerConfig:
    """A snapshot of the configuration. `BrokerConfig.load` creates the first one.

    Its attributes are the keys that are set; the class has the defaults of all others. So a snapshot is
    small, and a worker that makes one does not write to 400 names in memory that it shares."""

    static: dict[str, str]
    dynamic_default: dict[str, str]
    dynamic_broker: dict[str, str]
    unknown_keys: list[str]
    notes: list[str]  # warnings about keys without an effect, or with a doubtful one
    endpoints: list[Endpoint]  # from `listeners`
    advertised_endpoints: list[Endpoint]
    listener_protocols: dict[str, str]  # listener name -> security protocol
    host_connection_limits: dict[str, int]  # from max.connections.per.ip.overrides

    if TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any: ...

    def __init__(
        self,
        static: Mapping[str, str] | None = None,
        dynamic_default: Mapping[str, str] | None = None,
        dynamic_broker: Mapping[str, str] | None = None,
    ) -> None:
        """Parse and check the layers. Raise ConfigError."""
        own = self.__dict__
        own["static"] = _with_both_ids(static or {})
        own["dynamic_default"] = dict(dynamic_default or {})
        own["dynamic_broker"] = dict(dynamic_broker or {})
        own["_given"] = given = _layered(self.static, self.dynamic_default, self.dynamic_broker)
        own["unknown_keys"], own["notes"] = [], []
        values: dict[str, Any] = {attribute: list(DEFAULTS[attribute]) for attribute in LISTS}  # type: ignore[arg-type]
        own["_values"] = values
        for name, text in given.items():
            if key := BROKER_KEYS.get(name):
                values[key.attribute] = key.parse(text)
            else:
                self._take_unlisted(name, text)
        own.update(values)
        own.update(_applying(ChainMap(values, DEFAULTS)))  # type: ignore[arg-type]
        _check(self)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str] | None = None, overrides: Mapping[str, str] | None = None
    ) -> "BrokerConfig":
        """Load a Java properties file, and override it with `overrides` (key -> text). Raise ConfigError,
        also for a file that cannot be read or that sets none of Kafka's keys: with a wrong file, the broker
        would listen on all interfaces and write to Kafka's default directory."""
        given: dict[str, str] = {}
        if path is not None:
            try:
                given = read_properties(path)
            except OSError as error:
                raise ConfigError(f"Cannot read {path}: {error.strerror}")
            except ValueError as error:
                raise ConfigError(f"Cannot read {path}: {error}")
        config = cls(substitute(given | dict(overrides or {})))
        if path is not None and given.keys() <= set(config.unknown_keys):
            raise ConfigError(f"{path} is not a server.properties: it sets none of Kafka's keys")
        return config

    def __setattr__(self, attribute: str, value: object) -> None:
        raise AttributeError(f"BrokerConfig is immutable; {attribute} was to be set")

    def __repr__(self) -> str:
        shown = (
            f"{name}={HIDDEN if is_sensitive(name) else text}" for name, text in sorted(self._given.items())
        )
        return f"BrokerConfig({', '.join(shown)})"

    def value(self, name: str) -> Any:
        """Return the given value of a key, parsed, or its default, or None if there is neither."""
        attribute = BROKER_KEYS[name].attribute
        return self._values[attribute] if attribute in self._values else DEFAULTS[attribute]

    @property
    def given(self) -> Mapping[str, str]:
        """The text of each key that is set in any layer."""
        return self._given

    def is_given(self, name: str) -> bool:
        return name in self._given

    def for_listener(self, listener: str, name: str) -> Any:
        """Return a key's value for one listener: that of listener.name.<listener>.<key>, or the key's own."""
        text = self._given.get(f"listener.name.{listener.lower()}.{name}")
        return self.value(name) if text is None else BROKER_KEYS[name].parse(text)

    @property
    def broker_endpoints(self) -> list[Endpoint]:
        """The endpoints of `listeners` that serve clients and brokers."""
        return [endpoint for endpoint in self.endpoints if endpoint.listener not in self._controller_names]

    @property
    def controller_endpoints(self) -> list[Endpoint]:
        return [endpoint for endpoint in self.endpoints if endpoint.listener in self._controller_names]

    @property
    def advertised_broker_endpoints(self) -> list[Endpoint]:
        """The endpoints that are advertised to clients."""
        return [
            endpoint
            for endpoint in self.advertised_endpoints
            if endpoint.listener not in self._controller_names
        ]

    @cached_property
    def topic_defaults(self) -> dict[str, Value]:
        """The values of a topic without values of its own, by topic key."""
        return defaults_from(self, TOPIC_KEYS)

    @cached_property
    def group_defaults(self) -> dict[str, Value]:
        return defaults_from(self, GROUP_KEYS)

    @cached_property
    def _controller_names(self) -> frozenset[str]:
        return frozenset(name.upper() for name in self.controller_listener_names)

    def _take_unlisted(self, name: str, text: str) -> None:
        """Handle a key that is not in BROKER_KEYS."""
        key = BROKER_KEYS.get(base_key(name)) or BROKER_QUOTA_KEYS.get(name)
        if key:
            key.parse(text)
        elif name in RETIRED_KEYS:
            self.notes.append(f"{name} has no effect: {RETIRED_KEYS[name]}")
        elif name not in PLUGIN_KEYS and not name.startswith(FOREIGN_PREFIXES):
            self.unknown_keys.append(name)


for _attribute, _default in DEFAULTS.items():
    assert not hasattr(BrokerConfig, _attribute), _attribute
    setattr(BrokerConfig, _attribute, _default)


def is_sensitive(name: str) -> bool:
    """Return whether a broker key's value must not be shown: passwords and unknown keys."""
    key: Key | None = BROKER_KEYS.get(base_key(name)) or BROKER_QUOTA_KEYS.get(name)
    return key is None or key.type is PASSWORD


def _with_both_ids(static: Mapping[str, str]) -> dict[str, str]:
    """Set node.id and broker.id to the same value; either may be given. A broker.id of -1, with which a
    broker of a ZooKeeper cluster requests an id, counts as not given."""
    given = dict(static)
    if "node.id" not in given and given.get("broker.id", "").strip() == "-1":
        del given["broker.id"]
    for name, other in (("node.id", "broker.id"), ("broker.id", "node.id")):
        if name in given:
            given.setdefault(other, given[name])
    return given


def _layered(static: dict[str, str], *dynamic: dict[str, str]) -> dict[str, str]:
    """Merge the layers. A dynamic value also overrides keys with the same meaning in lower layers."""
    given = dict(static)
    for layer in dynamic:
        for name, text in layer.items():
            for synonym in SYNONYMS.get(name, ()):
                given.pop(synonym, None)
            given[name] = text
    return given


def _applying(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes whose value comes from another key if their own is not given."""
    hour_ms = 3_600_000
    minutes = values["log_retention_minutes"]
    retention_ms = values["log_retention_hours"] * hour_ms if minutes is None else minutes * 60_000
    retention_ms = _first(values["log_retention_ms"], retention_ms)
    log_dirs = values["log_dirs"] or values["log_dir"]
    flush_ms, scheduler_ms = values["log_flush_interval_ms"], values["log_flush_scheduler_interval_ms"]
    jitter_ms, jitter_hours = values["log_roll_jitter_ms"], values["log_roll_jitter_hours"]
    movers = values["num_replica_alter_log_dirs_threads"]
    return {
        "advertised_listeners": values["advertised_listeners"] or values["listeners"],
        "broker_id": values["node_id"] if values["broker_id"] == -1 else values["broker_id"],
        "log_dirs": log_dirs,
        "log_flush_interval_ms": _first(flush_ms, scheduler_ms),
        "log_retention_ms": max(retention_ms, -1),
        "log_roll_jitter_ms": _first(jitter_ms, jitter_hours * hour_ms),
        "log_roll_ms": _first(values["log_roll_ms"], values["log_roll_hours"] * hour_ms),
        "metadata_log_dir": values["metadata_log_dir"] or log_dirs[0],
        "num_replica_alter_log_dirs_threads": _first(movers, len(log_dirs)),
    }


def _first(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


# The left key's value must be at most (<=) or below (<) the right one's.
ORDERED: Final = (
    ("connection.failed.authentication.delay.ms", "<", "connections.max.idle.ms"),
    ("group.min.session.timeout.ms", "<=", "group.max.session.timeout.ms"),
    *(
        (f"group.{kind}.{low}", relation, f"group.{kind}.{high}")
        for kind in ("consumer", "share", "streams")
        for low, relation, high in (
            ("min.heartbeat.interval.ms", "<=", "max.heartbeat.interval.ms"),
            ("min.heartbeat.interval.ms", "<=", "heartbeat.interval.ms"),
            ("heartbeat.interval.ms", "<=", "max.heartbeat.interval.ms"),
            ("min.session.timeout.ms", "<=", "max.session.timeout.ms"),
            ("min.session.timeout.ms", "<=", "session.timeout.ms"),
            ("session.timeout.ms", "<=", "max.session.timeout.ms"),
            ("heartbeat.interval.ms", "<", "session.timeout.ms"),
            ("min.assignment.interval.ms", "<=", "max.assignment.interval.ms"),
            ("min.assignment.interval.ms", "<=", "assignment.interval.ms"),
            ("assignment.interval.ms", "<=", "max.assignment.interval.ms"),
        )
    ),
    ("group.share.delivery.count.limit", "<=", "group.share.max.delivery.count.limit"),
    ("group.share.max.size", "<=", "group.share.max.share.sessions"),
    ("group.share.min.delivery.count.limit", "<=", "group.share.delivery.count.limit"),
    ("group.share.min.partition.max.record.locks", "<=", "group.share.partition.max.record.locks"),
    ("group.share.min.record.lock.duration.ms", "<=", "group.share.record.lock.duration.ms"),
    ("group.share.partition.max.record.locks", "<=", "group.share.max.partition.max.record.locks"),
    ("group.share.record.lock.duration.ms", "<=", "group.share.max.record.lock.duration.ms"),
    ("group.streams.num.standby.replicas", "<=", "group.streams.max.standby.replicas"),
    ("log.cleaner.min.compaction.lag.ms", "<=", "log.cleaner.max.compaction.lag.ms"),
    ("replica.fetch.wait.max.ms", "<=", "replica.lag.time.max.ms"),
    ("replica.fetch.wait.max.ms", "<=", "replica.socket.timeout.ms"),
    ("socket.request.max.bytes", "<=", "queued.max.request.bytes"),
)

# A bound of ORDERED that is below this value means "no limit".
LIMITED_FROM: Final = {"connections.max.idle.ms": 0, "queued.max.request.bytes": 1}


def _check(config: BrokerConfig) -> None:
    """Check the rules between keys (KafkaConfig.validateValues and its parts). Raise ConfigError."""
    if config.broker_id != config.node_id:
        raise _wrong(config, "node.id", f"Value must be the same as broker.id, which is {config.broker_id}")
    _check_order(config)
    _check_listeners(config)
    _check_roles(config)
    _check_log(config)
    limits = parse_host_limits("max.connections.per.ip.overrides", config.max_connections_per_ip_overrides)
    config.__dict__["host_connection_limits"] = limits
    if config.max_connections_per_ip == 0 and not limits:
        raise _wrong(
            config, "max.connections.per.ip", "Value may be 0 only if there are overrides for some hosts"
        )
    if "classic" not in config.group_coordinator_rebalance_protocols:
        raise _wrong(
            config, "group.coordinator.rebalance.protocols", "The classic protocol cannot be left out"
        )
    if len(config.group_share_assignors) != 1:
        raise _wrong(config, "group.share.assignors", "Exactly one assignor must be given")
    if config.broker_heartbeat_interval_ms * 2 > config.broker_session_timeout_ms:
        config.notes.append("broker.heartbeat.interval.ms is more than half of broker.session.timeout.ms")


def _check_order(config: BrokerConfig) -> None:
    for low, relation, high in ORDERED:
        low_value, high_value = config.value(low), config.value(high)
        if high_value < LIMITED_FROM.get(high, high_value):
            continue
        if low_value > high_value or (relation == "<" and low_value == high_value):
            if config.is_given(low) or not config.is_given(high):
                bound = "less than" if relation == "<" else "no more than"
                raise _wrong(config, low, f"Value must be {bound} {high}, which is {high_value}")
            bound = "greater than" if relation == "<" else "at least"
            raise _wrong(config, high, f"Value must be {bound} {low}, which is {low_value}")


def _check_log(config: BrokerConfig) -> None:
    if config.log_roll_ms < 1:
        raise _wrong(config, "log.roll.ms", "Value must be at least 1")
    if config.log_roll_jitter_ms < 0:
        raise _wrong(config, "log.roll.jitter.ms", "Value must be at least 0")
    if config.log_retention_ms == 0:
        name = next(
            n
            for n in ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
            if config.is_given(n)
        )
        raise _wrong(config, name, "Value must be at least 1, or -1 for no limit")  # fmt: skip
    if config.log_cleaner_threads == 0:
        raise _wrong(config, "log.cleaner.threads", "Value must be at least 1")
    if config.log_cleaner_dedupe_buffer_size // config.log_cleaner_threads <= 1 << 20:
        reason = "Value must be more than 1 MiB for each of the log.cleaner.threads"
        raise _wrong(config, "log.cleaner.dedupe.buffer.size", reason)
    cordoned, known = config.cordoned_log_dirs, config.log_dirs
    if "*" in cordoned and len(cordoned) > 1:
        raise _wrong(config, "cordoned.log.dirs", "* must be the only entry")
    if "*" not in cordoned and not set(cordoned) <= set(known):
        raise _wrong(config, "cordoned.log.dirs", f"Entries must be in log.dirs, which is {','.join(known)}")
    if conflicting := conflict(config.topic_defaults, tiered=config.remote_log_storage_system_enable):
        raise ConfigError(conflicting)


def _check_listeners(config: BrokerConfig) -> None:
    """Set the endpoints, and the security protocols of their names."""
    own = config.__dict__
    key = "listener.security.protocol.map"
    protocols = parse_protocol_map(key, config.listener_security_protocol_map)
    names = [listener_name(text) for text in config.listeners]
    plain = not {"SSL", "SASL_PLAINTEXT", "SASL_SSL"}.intersection(names, config.controller_listener_names)
    if not config.is_given(key) and plain:
        protocols |= dict.fromkeys((name.upper() for name in config.controller_listener_names), "PLAINTEXT")
    own["listener_protocols"] = protocols
    own["endpoints"] = parse_endpoints("listeners", config.listeners, protocols)
    check_distinct_ports("listeners", config.endpoints)
    own["advertised_endpoints"] = parse_endpoints(
        "advertised.listeners", config.advertised_listeners, protocols
    )
    own["inter_broker_listener_name"] = _inter_broker_listener(config)


def _inter_broker_listener(config: BrokerConfig) -> str:
    name = config.value("inter.broker.listener.name")
    if name is None:
        return config.security_inter_broker_protocol
    if config.is_given("security.inter.broker.protocol"):
        reason = "Only one of inter.broker.listener.name and security.inter.broker.protocol may be given"
        raise _wrong(config, "inter.broker.listener.name", reason)
    if name.upper() not in config.listener_protocols:
        reason = "Name must be in the listener.security.protocol.map"
        raise _wrong(config, "inter.broker.listener.name", reason)
    return name.upper()


def _check_roles(config: BrokerConfig) -> None:
    roles, names = config.process_roles, config.controller_listener_names
    voters = {int(voter.partition("@")[0]) for voter in config.controller_quorum_voters}
    broker, controller = "broker" in roles, "controller" in roles
    own_controllers = config.controller_endpoints
    if not (broker and controller):
        if not voters and not config.controller_quorum_bootstrap_servers:
            reason = (
                "controller.quorum.bootstrap.servers or controller.quorum.voters must name the controllers"
            )
            raise _wrong(config, "process.roles", reason)
        if not names:
            raise _wrong(config, "controller.listener.names", "The controller's listener must be named")
    if controller and voters and config.node_id not in voters:
        reason = f"A controller must be one of the controller.quorum.voters, which are {sorted(voters)}"
        raise _wrong(config, "node.id", reason)
    if controller and not config._controller_names <= {endpoint.listener for endpoint in config.endpoints}:
        raise _wrong(config, "controller.listener.names", "A controller must have them all in listeners")
    if not controller:
        _check_broker_only(config, voters)
    if not broker and len(own_controllers) < len(config.endpoints):
        reason = "A controller that is no broker may only listen on its controller.listener.names"
        raise _wrong(config, "listeners", reason)
    if broker:
        _check_advertised(config)
    given = config.value("advertised.listeners")
    advertised = config.advertised_endpoints if given else config.advertised_broker_endpoints
    if any(endpoint.host == "0.0.0.0" for endpoint in advertised):
        name = "advertised.listeners" if given else "listeners"
        raise _wrong(
            config, name, "0.0.0.0 cannot be advertised; set advertised.listeners to a routable address"
        )


def _check_broker_only(config: BrokerConfig, voters: set[int]) -> None:
    if config.node_id in voters:
        reason = "A node that is no controller must not be one of the controller.quorum.voters"
        raise _wrong(config, "node.id", reason)
    if config.controller_endpoints:
        reason = "A node that is no controller must not listen on its controller.listener.names"
        raise _wrong(config, "listeners", reason)
    if not config._controller_names <= config.listener_protocols.keys():
        reason = "Names must be in the listener.security.protocol.map"
        raise _wrong(config, "controller.listener.names", reason)
    if config.controller_quorum_auto_join_enable:
        raise _wrong(config, "controller.quorum.auto.join.enable", "Only a controller can join the quorum")


def _check_advertised(config: BrokerConfig) -> None:
    advertised = {endpoint.listener for endpoint in config.advertised_broker_endpoints}
    if not advertised:
        raise _wrong(config, "advertised.listeners", "A broker needs one that is not a controller's")
    if not advertised <= {endpoint.listener for endpoint in config.endpoints}:
        raise _wrong(config, "advertised.listeners", "Each name must also be in listeners")
    if config.inter_broker_listener_name not in advertised:
        given = config.is_given("security.inter.broker.protocol")
        name = "security.inter.broker.protocol" if given else "inter.broker.listener.name"
        text = config.inter_broker_listener_name
        reason = f"Listener must be one of the advertised ones: {', '.join(sorted(advertised))}"
        raise ConfigError(f"Invalid value {text} for configuration {name}: {reason}")
    protocol = config.listener_protocols[config.inter_broker_listener_name]
    mechanisms = config.for_listener(config.inter_broker_listener_name, "sasl.enabled.mechanisms")
    if protocol.startswith("SASL_") and config.sasl_mechanism_inter_broker_protocol not in mechanisms:
        reason = "Mechanism must be in sasl.enabled.mechanisms while brokers talk over SASL"
        raise _wrong(config, "sasl.mechanism.inter.broker.protocol", reason)


def _wrong(config: BrokerConfig, name: str, reason: str) -> ConfigError:
    text = config._given.get(name, to_string(config.value(name)))
    return BROKER_KEYS[name].error(text, reason)
