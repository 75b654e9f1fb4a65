"""Config providers: references `${provider:path:key}` to values that are stored elsewhere (KIP-297).

`config.providers` names the providers, and `config.providers.<name>.class` selects one of Kafka's three
classes. If the provider or the key does not exist, the text stays unchanged, as in Kafka."""

import os
import re
from collections.abc import Mapping
from typing import Final

from kafkad.config.definition import ConfigError
from kafkad.config.properties import read_properties

_REFERENCE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")


def _from_environment(path: str, key: str) -> str | None:
    return os.environ.get(key)


def _from_file(path: str, key: str) -> str | None:
    return read_properties(path).get(key) if path else None


def _from_directory(path: str, key: str) -> str | None:
    name = os.path.join(path, key)
    if not path or os.sep in key or not os.path.isfile(name):
        return None
    with open(name, encoding="utf-8") as file:
        return file.read()


PROVIDERS: Final = {
    "org.apache.kafka.common.config.provider.DirectoryConfigProvider": _from_directory,
    "org.apache.kafka.common.config.provider.EnvVarConfigProvider": _from_environment,
    "org.apache.kafka.common.config.provider.FileConfigProvider": _from_file,
}


def substitute(given: Mapping[str, str]) -> dict[str, str]:
    """Return the values with their references replaced. Raise ConfigError."""
    names = [name.strip() for name in given.get("config.providers", "").split(",") if name.strip()]
    if not names:
        return dict(given)
    providers = {name: _provider(given, name) for name in names}

    def replaced(match: re.Match[str]) -> str:
        name, path, key = match.groups()
        if name not in providers:
            return match.group()
        try:
            value = providers[name](path or "", key)
        except (OSError, ValueError) as error:
            raise ConfigError(f"Cannot read {path}, which {match.group()} names: {error}")
        return match.group() if value is None else value

    return {name: _REFERENCE.sub(replaced, text) for name, text in given.items()}


def _provider(given: Mapping[str, str], name: str):  # type: ignore[no-untyped-def]
    key = f"config.providers.{name}.class"
    class_name = given.get(key, "").strip()
    if class_name not in PROVIDERS:
        allowed = ", ".join(PROVIDERS)
        raise ConfigError(
            f"Invalid value {class_name} for configuration {key}: Class must be one of: {allowed}"
        )
    return PROVIDERS[class_name]
