"""Configuration that changes while the broker runs (KIP-226, KIP-339).

Two sets of values come from the metadata log: one for all brokers (resource name "") and one for this broker.
They override the file; this broker's values override both. Each change creates a new `BrokerConfig`. A
request is checked before it is written (`validate_broker_configs`). Values that are already in the log may
come from another version of Kafka; they are applied as far as possible (`with_dynamic`), because a broker
must always start.

List operations change the dynamic value, or the key's default, never the file's value.
Source of the rules: DynamicBrokerConfig, ConfigAdminManager, ConfigurationControlManager.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from kafkad.config.broker import BrokerConfig, base_key, is_sensitive
from kafkad.config.broker_keys import BROKER_KEYS, BROKER_QUOTA_KEYS
from kafkad.config.definition import HIDDEN, LIST, PER_BROKER, READ_ONLY, ConfigError, Key, to_string
from kafkad.config.served import ignored_values, is_of_file, unserved_message
from kafkad.protocol.errors import INVALID_CONFIG, INVALID_REQUEST, KafkaError

# IncrementalAlterConfigs' operations
SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3

VALUE_SIZE_MAX: Final = 32767  # largest value in the metadata log: Kafka's Short.MAX_VALUE

DYNAMIC_KEYS: Final = frozenset(
    [key.name for key in BROKER_KEYS.values() if key.update != READ_ONLY] + list(BROKER_QUOTA_KEYS)
)

# These may be changed for a listener only: listener.name.<listener>.<key>.
SECURITY_KEYS: Final = frozenset(
    (
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    )
)

# Keys of a listener that may also be changed for all brokers at once.
CLUSTER_WIDE_LISTENER_KEYS: Final = frozenset(
    ("max.connection.creation.rate", "max.connections", "num.network.threads")
)

# Kafka at most doubles or halves these in one step.
THREAD_COUNTS: Final = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)

# Kafka can open and close listeners while it runs; kafkad binds them once. A value of the metadata log has no
# effect: it could take the login away from a listener that the file protects, which Kafka refuses as well.
FIXED_HERE: Final = ("listener.security.protocol.map", "listeners")


class Operation(NamedTuple):
    key: str
    kind: int  # SET, DELETE, APPEND or SUBTRACT
    value: str | None


def apply_operations(
    current: Mapping[str, str], operations: Iterable[Operation], keys: Mapping[str, Key]
) -> dict[str, str | None]:
    """Return the new value of each changed key; None means deleted. Raise KafkaError (INVALID_CONFIG) for a
    list operation on a key that is not a list."""
    result: dict[str, str | None] = {}
    for key, kind, value in operations:
        if kind == DELETE:
            result[key] = None
        elif kind == SET:
            result[key] = value
        elif kind in (APPEND, SUBTRACT):
            assert value is not None  # the handler refused it
            row = keys.get(key)
            if row is None or row.type is not LIST:
                verb = "APPEND" if kind == APPEND else "SUBTRACT"
                reason = f"Can't {verb} to key {key} because its type is not LIST."
                raise KafkaError(INVALID_CONFIG, reason)
            before = current.get(key, to_string(row.default) or "")
            result[key] = edited(before, kind, value)
        else:
            raise KafkaError(INVALID_REQUEST, f"Unknown operations type {kind}")
    return result


def edited(before: str, kind: int, value: str) -> str:
    """Return a list after APPEND or SUBTRACT, in linear time. Each entry of a SUBTRACT removes one entry."""
    entries = [entry for entry in before.split(",") if entry]
    if kind == APPEND:
        known = set(entries)
        entries += [entry for entry in dict.fromkeys(value.split(",")) if entry not in known]
        return ",".join(entries)
    gone = Counter(value.split(","))
    kept = []
    for entry in entries:
        if gone[entry]:
            gone[entry] -= 1
        else:
            kept.append(entry)
    return ",".join(kept)


def changed(current: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the values after `changes`."""
    after: dict[str, str | None] = {**current, **changes}
    return {key: value for key, value in after.items() if value is not None}


def validate_broker_configs(config: BrokerConfig, texts: Mapping[str, str], *, per_broker: bool) -> None:
    """Check all dynamic values of this broker or, without `per_broker`, of all brokers. Raise
    KafkaError(INVALID_REQUEST), as Kafka does here."""
    for refuse, reason in (
        (_is_static, "Cannot update these configs dynamically"),
        (
            SECURITY_KEYS.__contains__,
            "These security configs can be dynamically updated only per-listener using the listener prefix",
        ),
    ):
        _refuse(texts, refuse, reason)
    try:
        for name, text in texts.items():
            if key := _row(name):
                key.parse(text)
    except ConfigError as error:
        raise KafkaError(INVALID_REQUEST, str(error))
    if not per_broker:
        reason = "Cannot update these configs at default cluster level, broker id must be specified"
        _refuse(texts, _is_per_broker, reason)
    try:
        if per_broker:
            after = BrokerConfig(config.static, config.dynamic_default, texts)
        else:
            after = BrokerConfig(config.static, texts, config.dynamic_broker)
        _check_step(config, after)
    except ConfigError as error:
        raise KafkaError(INVALID_REQUEST, str(error))


def _refuse(texts: Mapping[str, str], refuse, reason: str) -> None:  # type: ignore[no-untyped-def]
    if names := sorted(filter(refuse, texts)):
        raise KafkaError(INVALID_REQUEST, f"{reason}: [{', '.join(names)}]")


def _row(name: str) -> Key | None:
    return BROKER_KEYS.get(base_key(name)) or BROKER_QUOTA_KEYS.get(name)


def _is_static(name: str) -> bool:
    """Return whether a key cannot change at run time. Unknown keys can: they are kept for a version that
    knows them."""
    return name in BROKER_KEYS and name not in DYNAMIC_KEYS


def _is_per_broker(name: str) -> bool:
    if name in BROKER_KEYS:
        return BROKER_KEYS[name].update == PER_BROKER
    base = base_key(name)
    return base != name and base not in CLUSTER_WIDE_LISTENER_KEYS


def _check_step(before: BrokerConfig, after: BrokerConfig) -> None:
    """Check the size of a change. Raise ConfigError."""
    for name in THREAD_COUNTS:
        old, new = before.value(name), after.value(name)
        wrong = f"Dynamic thread count update validation failed for {name}={new}, value should"
        if new < old // 2:
            raise ConfigError(f"{wrong} be at least half the current value {old}")
        if new > old * 2:
            raise ConfigError(f"{wrong} not be greater than double the current value {old}")
    for name in FIXED_HERE:
        if before.value(name) != after.value(name):
            text = to_string(after.value(name))
            raise BROKER_KEYS[name].error(text, "kafkad cannot change its listeners while it runs")


def with_dynamic(
    config: BrokerConfig, default: Mapping[str, str], broker: Mapping[str, str]
) -> tuple[BrokerConfig, list[str]]:
    """Return the configuration with these dynamic values instead of its own, and a message about each one
    that is left out. Never raises."""
    complaints: list[str] = []
    layers = (
        _usable(default, "cluster-wide default", complaints, per_broker=False),
        _usable(broker, "per-broker", complaints, per_broker=True),
    )
    if layers == (config.dynamic_default, config.dynamic_broker):
        return config, complaints + _ignored(config, layers)
    try:
        applied = BrokerConfig(config.static, *layers)
    except ConfigError:
        applied, left_out = one_by_one(config, layers, lambda tried: None)
        complaints.extend(left_out)
    return applied, complaints + _ignored(config, layers)


def one_by_one(
    config: BrokerConfig, wanted: tuple[Mapping[str, str], ...], adopt: Callable[[BrokerConfig], object]
) -> tuple[BrokerConfig, list[str]]:
    """Change the layers of `config` to `wanted`, one value after the other, as far as `adopt` does not raise.
    Return the last configuration that it took, and a message about each value that is left out. The values of
    the broker come first: they are meant for it alone. Kafka drops all of them together."""
    layers = [config.dynamic_default, config.dynamic_broker]
    places = [(at, name) for at in (1, 0) for name in sorted({*layers[at], *wanted[at]})]
    while True:
        left_out, progress = [], False
        for at, name in places:
            if layers[at].get(name) == wanted[at].get(name):
                continue
            tried = list(layers)
            tried[at] = changed(tried[at], {name: wanted[at].get(name)})
            try:
                applied = BrokerConfig(config.static, *tried)
                adopt(applied)
            except Exception as trouble:
                shown = HIDDEN if is_sensitive(name) else wanted[at].get(name)
                left_out.append(
                    f"{name}={shown} cannot be applied and is left out: {str(trouble) or repr(trouble)}"
                )
            else:
                config, layers, progress = applied, tried, True
        if not left_out or not progress:  # one may have had to wait for another
            return config, left_out


def _ignored(config: BrokerConfig, layers: Iterable[Mapping[str, str]]) -> list[str]:
    return [sentence for layer in layers for sentence in ignored_values(config, layer)]


def _usable(
    texts: Mapping[str, str], layer: str, complaints: list[str], *, per_broker: bool
) -> dict[str, str]:
    usable = {}
    for name, text in texts.items():
        reason = None
        if _is_static(name):
            reason = "it cannot change while the broker runs"
        elif name in SECURITY_KEYS:
            reason = "it can change for a listener only"
        elif not per_broker and _is_per_broker(name):
            reason = "it can change for one broker only"
        elif is_of_file(name):
            reason = "only the properties file sets it for a listener"
        elif name in FIXED_HERE:
            reason = "only the properties file sets it; kafkad cannot change its listeners while it runs"
        elif key := _row(name):
            try:
                key.parse(text)
            except ConfigError as error:
                reason = str(error)
        if reason is None:
            reason = unserved_message(name, text)
        if reason:
            complaints.append(f"The {layer} {name} is ignored: {reason}")
        else:
            usable[name] = text
    return usable


def changed_keys(before: BrokerConfig, after: BrokerConfig) -> set[str]:
    """Return the keys whose values differ."""
    return {name for name in BROKER_KEYS if before.value(name) != after.value(name)}
