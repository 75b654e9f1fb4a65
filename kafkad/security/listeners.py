"""What a configuration says of its SASL listeners.

    sasl.enabled.mechanisms, or listener.name.<listener>.sasl.enabled.mechanisms
    listener.name.<listener>.<mechanism>.sasl.jaas.config   PLAIN's passwords: options user_NAME="PASSWORD"
    connections.max.reauth.ms, or with either prefix

A JAAS file that `java.security.auth.login.config` names is not read. (ChannelBuilders, JaasContext.)"""

from typing import Any, Final, NamedTuple

from kafkad.config.broker_keys import BROKER_KEYS
from kafkad.config.definition import ConfigError
from kafkad.security import jaas
from kafkad.security.mechanisms import MECHANISMS, PLAIN_MODULE, SCRAM_MODULE

ENABLED: Final = "sasl.enabled.mechanisms"
JAAS: Final = "sasl.jaas.config"
REAUTH: Final = "connections.max.reauth.ms"
USER: Final = "user_"  # of PLAIN's options: the rest of the name is a user's


class SaslListener(NamedTuple):
    mechanisms: list[str]
    passwords: dict[str, str]  # of PLAIN, by user
    max_reauth_ms: dict[str, int]  # by mechanism; 0: a session does not end


def sasl_listeners(config: Any) -> dict[str, SaslListener]:
    """By name, those of `config` (BrokerConfig) that serve clients. Raises ConfigError, about the first key
    that is wrong."""
    return {
        endpoint.listener: _listener(config, endpoint.listener)
        for endpoint in config.broker_endpoints
        if endpoint.protocol.startswith("SASL_")
    }


def _listener(config: Any, listener: str) -> SaslListener:
    mechanisms = config.for_listener(listener, ENABLED)
    for mechanism in mechanisms:
        if mechanism not in MECHANISMS:
            reason = f"{mechanism} is not supported yet; those that are: {', '.join(MECHANISMS)}"
            raise _wrong(",".join(mechanisms), ENABLED, f"of listener {listener}, {reason}")
    if not mechanisms:
        raise _wrong("", ENABLED, f"listener {listener} needs one of: {', '.join(MECHANISMS)}")
    passwords: dict[str, str] = {}
    reauth: dict[str, int] = {}
    for mechanism in mechanisms:
        prefix = f"listener.name.{listener.lower()}.{mechanism.lower()}."
        module = _module(config, prefix + JAAS, PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE)
        if mechanism == "PLAIN":
            if module is None:
                raise ConfigError(
                    f"Missing configuration {prefix}{JAAS}: PLAIN takes its passwords from it, as"
                    f' {PLAIN_MODULE} required user_alice="secret";'
                )
            options = module.options.items()
            passwords = {name.removeprefix(USER): text for name, text in options if name.startswith(USER)}
        text = config.given.get(prefix + REAUTH)
        found: Any = BROKER_KEYS[REAUTH].parse(text) if text is not None else None
        reauth[mechanism] = config.for_listener(listener, REAUTH) if found is None else found
    return SaslListener(mechanisms, passwords, reauth)


def _module(config: Any, name: str, expected: str) -> jaas.LoginModule | None:
    text = config.given.get(name)
    if text is None:
        return None
    try:
        module = jaas.parse(text)
    except ValueError as trouble:
        raise _wrong("[hidden]", name, str(trouble)) from None
    if module.name != expected:
        raise _wrong("[hidden]", name, f"the login module is {module.name}, and kafkad has {expected}")
    return module


def _wrong(text: str, name: str, reason: str) -> ConfigError:
    return ConfigError(f"Invalid value {text} for configuration {name}: {reason}")
