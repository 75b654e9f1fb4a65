"""Apply the table of effects (effects.py) to a configuration.

`BrokerConfig` has checked the values by Kafka's rules. This module checks what kafkad supports of them: a
REFUSED value ends the start with an error message (`check_served`), and each IGNORED value is logged as one
warning (`ignored`). A change while the broker runs is refused with the same message (`refuse_changes`).

Beware: if kafkad acts on a key for all listeners alike, `listener.name.<listener>.<key>` is refused."""

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from kafkad.config.broker import BrokerConfig, base_key
from kafkad.config.broker_keys import BROKER_KEYS, BROKER_QUOTA_KEYS, RETIRED_KEYS
from kafkad.config.definition import HIDDEN, ConfigError, Key, trimmed
from kafkad.config.effects import (
    ACTED,
    OAUTH_HANDLER,
    OF,
    OF_A_CLUSTER,
    PER_LISTENER,
    RELOADED,
    TOKEN_KEYS,
    Effect,
    Treatment,
)
from kafkad.protocol.errors import INVALID_CONFIG, KafkaError

logger = logging.getLogger("kafkad")

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
NOT_FOR_ONE_LISTENER: Final = "kafkad applies it to all listeners alike"
OF_FILE: Final = (PER_LISTENER - RELOADED).union(TOKEN_KEYS, ["sasl.mechanism.inter.broker.protocol"])
PREFIXES: Final = {  # prefix of keys that only a plug-in reads -> a key with the same treatment
    "metrics.context.": "metric.reporters",
    "rlmm.config.": "remote.log.metadata.manager.class.name",
    "rsm.config.": "remote.log.storage.manager.class.name",
}


def treatment(name: str) -> Treatment:
    """Return what kafkad does with a broker's key, which may have a listener's prefix."""
    for prefix, like in PREFIXES.items():
        if name.startswith(prefix):
            return OF[like]
    base = base_key(name)
    known = OF.get(base, ACTED)
    if base != name and (base in PER_LISTENER or name.endswith(OAUTH_HANDLER)):
        return ACTED
    if base != name and base in BROKER_KEYS and known.effect is Effect.ACTED:
        return Treatment(Effect.REFUSED, NOT_FOR_ONE_LISTENER, instead=f"set {base}")
    return known


def unserved_values(config: BrokerConfig) -> list[str]:
    """Return one error message per refused value."""
    found = [sentence for name, text in config.given.items() if (sentence := unserved_message(name, text))]
    # a node alone does not open the controller's listeners, so they may have any protocol
    of_roles = () if is_alone(config) else _unserved_in_cluster(config)
    return [*of_roles, *found]


def ignored(config: BrokerConfig) -> list[str]:
    """Return one warning per value that has no effect."""
    return ignored_values(config, config.given)


def ignored_values(config: BrokerConfig, texts: Mapping[str, str]) -> list[str]:
    """The same for `texts`, values of the node with this configuration."""
    acted = frozenset() if is_alone(config) else OF_A_CLUSTER
    return [
        sentence
        for name, text in texts.items()
        if base_key(name) not in acted and (sentence := ignored_message(name, text))
    ]


def is_alone(config: BrokerConfig) -> bool:
    """Whether this node is a whole cluster: broker, controller, and the only voter."""
    voters = config.controller_quorum_voters
    return set(config.process_roles) == {"broker", "controller"} and (
        len(voters) <= 1
        and len(config.controller_quorum_bootstrap_servers) <= 1
        and not config.controller_quorum_auto_join_enable
    )


def check_workers(config: BrokerConfig, workers: int | None, usable: int) -> int:
    """Return the number of workers of a node; `usable` is the default. Raise ConfigError."""
    if "broker" in config.process_roles:
        return usable if workers is None else workers
    if workers is not None and workers > 1:
        raise ConfigError(f"--workers {workers}: a node that is a controller only has one process")
    return 1


def check_served(config: BrokerConfig) -> None:
    """Raise ConfigError with one message about all refused values, if there are any."""
    found = unserved_values(config)
    if len(found) == 1:
        raise ConfigError(found[0])
    if found:
        raise ConfigError(f"{len(found)} values ask for what kafkad does not have. {'. '.join(found)}")


def refuse_changes(changes: Mapping[str, str | None], keys: Mapping[str, Key] | None = None) -> None:
    """Raise KafkaError(INVALID_CONFIG) if `changes` has a refused value. `keys` is the table of the changed
    resource; None means a broker. Also raise it for a broker's key that counts in the file only."""
    for name, text in changes.items():
        if keys is None and text is not None and is_of_file(name):
            reason = "only the properties file sets it for a listener; change the file and restart the broker"
            raise KafkaError(INVALID_CONFIG, f"Invalid configuration {name}: {reason}")
        if text is not None and (sentence := unserved_message(name, text, keys)):
            raise KafkaError(INVALID_CONFIG, sentence)


def is_of_file(name: str) -> bool:
    """Return whether a broker's key for listeners, with or without a prefix, counts in the file only. A value
    of the metadata log has no effect, also after the next start, as in Kafka (DynamicListenerConfig: existing
    listeners keep their values). Otherwise it could take away what protects a listener."""
    base = base_key(name)
    return base in OF_FILE or base.startswith("sasl.oauthbearer.assertion.") or name.endswith(OAUTH_HANDLER)


def unserved_message(name: str, text: str, keys: Mapping[str, Key] | None = None) -> str | None:
    what = OF.get(name, ACTED) if keys is not None else treatment(name)
    if what.effect is not Effect.REFUSED or not _asks_for_more(name, text, what, keys):
        return None
    return (
        f"Invalid value {_shown(name, text, keys)} for configuration {name}: {what.because}; {what.instead}"
    )


def ignored_message(name: str, text: str, keys: Mapping[str, Key] | None = None) -> str | None:
    what = OF.get(name, ACTED) if keys is not None else treatment(name)
    if (
        what.effect is not Effect.IGNORED
        or name in RETIRED_KEYS
        or not _asks_for_more(name, text, what, keys)
    ):
        return None
    return f"{name}={_shown(name, text, keys)} has no effect: {what.because}"


def _asks_for_more(name: str, text: str, what: Treatment, keys: Mapping[str, Key] | None) -> bool:
    """Return whether a value is neither the default nor one of the allowed values."""
    key = _row(name, keys)
    if key is None:
        return trimmed(text) not in ("", *what.allowed)
    value = key.parse(text)
    if value == key.default or (value == "" and key.default is None):
        return False
    return all(value != key.parse(allowed) for allowed in what.allowed)


def _row(name: str, keys: Mapping[str, Key] | None) -> Key | None:
    if keys is not None:
        return keys.get(name)
    return BROKER_KEYS.get(base_key(name)) or BROKER_QUOTA_KEYS.get(name)


def _shown(name: str, text: str, keys: Mapping[str, Key] | None) -> str:
    key = _row(name, keys)
    secret = key.sensitive if key is not None else name.endswith(("key", "password", "secret"))
    return HIDDEN if secret else text


def _unserved_in_cluster(config: BrokerConfig) -> Iterator[str]:
    """Yield an error message per value that a node of a cluster cannot do yet."""
    if not config.is_given("node.id") and not config.is_given("broker.id"):
        yield "Missing required configuration node.id: each node of a cluster has a number of its own"
    for name in sorted({name.upper() for name in config.controller_listener_names}):
        protocol = config.listener_protocols.get(name, "PLAINTEXT")
        if protocol not in PROTOCOLS:
            yield (
                f"Invalid value {name} for configuration controller.listener.names: {protocol} is not"
                f" supported; use one of {', '.join(PROTOCOLS)}"
            )


_warned: set[str] = set()


def warn_ignored(kind: str, texts: Mapping[str, str], keys: Mapping[str, Key]) -> None:
    """Log the values of a topic, group or subscription that have no effect. Each key is logged once per
    process, because clients such as Connect set some of them for each topic that they create."""
    for name, text in texts.items():
        if name not in _warned and (sentence := ignored_message(name, text, keys)):
            _warned.add(name)
            logger.warning("%s configuration: %s", kind, sentence)
