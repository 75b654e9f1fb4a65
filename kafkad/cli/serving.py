"""What `kafkad serve` does, without click: a broker that needs no parser of command lines is up sooner.

`plain` reads the command lines that most starts have. Whatever it does not know, for example a wrong option,
is left to click (cli.serve), which has the same options, and words for what is wrong.
"""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from kafkad.cli.exits import end

DEFAULT_LISTENER: Final = "PLAINTEXT://127.0.0.1:9092"
WORKERS_MAX: Final = 64  # a partition's shared row has one bit per waiting worker
WORKERS_VARIABLE: Final = "KAFKAD_WORKERS"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_LEVEL: Final = "info"
OPTIONS: Final = {
    "--data-dir": "data_dir",
    "--listen": "listen",
    "--workers": "workers",
    "--override": "override",
    "--log-level": "log_level",
}


def plain(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the arguments of `serve_node`. Return None unless all are in their simplest form, and right."""
    found: dict[str, Any] = {}
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("-"):
            name, value = "properties", name + equals + value
            if not (os.path.isfile(value) and os.access(value, os.R_OK)):
                return None
        elif name not in OPTIONS:
            return None
        else:
            name = OPTIONS[name]
            if not equals:
                value = rest.pop(0) if rest else ""
        if not value or value.startswith("-") or name in found:
            return None
        if name == "override":
            overrides.append(value)
        else:
            found[name] = value
    workers = found.get("workers") or environment.get(WORKERS_VARIABLE) or None
    if workers is not None and not (
        workers.isascii() and workers.isdecimal() and 1 <= int(workers) <= WORKERS_MAX
    ):
        return None
    level = found.get("log_level", LOG_LEVEL)
    if level not in LOG_LEVELS or not all(is_override(pair) for pair in overrides):
        return None
    return {
        "properties": found.get("properties"),
        "data_dir": found.get("data_dir"),
        "listen": found.get("listen"),
        "workers": int(workers) if workers is not None else None,
        "override": tuple(overrides),
        "log_level": level,
    }


def is_override(pair: str) -> bool:
    key, equals, _ = pair.partition("=")
    return bool(equals and key.strip())


def parse_overrides(pairs: Sequence[str]) -> dict[str, str]:
    """Parse `key=value` arguments. A later one wins. Raise ValueError."""
    overrides: dict[str, str] = {}
    for pair in pairs:
        if not is_override(pair):
            raise ValueError(f"{pair!r} is not of the form key=value")
        key, _, value = pair.partition("=")
        overrides[key.strip()] = value.strip()
    return overrides


def serve_node(
    properties: str | None,
    data_dir: str | None,
    listen: str | None,
    workers: int | None,
    override: Sequence[str],
    log_level: str,
) -> NoReturn:
    """Run a node until a signal ends it, then exit. Raise ValueError if an override is malformed."""
    from kafkad.cli.start_checks import check_start
    from kafkad.config.broker import BrokerConfig, ConfigError
    from kafkad.config.served import check_workers, ignored
    from kafkad.server.cores import usable_cores
    from kafkad.server.stderr import OneLine, StderrHandler

    overrides = parse_overrides(override)
    if data_dir is not None:
        overrides["log.dirs"] = data_dir
    elif properties is None and not {"log.dirs", "log.dir"} & overrides.keys():
        overrides["log.dirs"] = "data"
    if properties is None:
        overrides.setdefault("listeners", DEFAULT_LISTENER)
    try:
        if listen is not None:
            overrides |= listen_on(listen, properties, overrides)
        config = BrokerConfig.load(properties, overrides)
        check_start(config)
        workers = check_workers(config, workers, min(usable_cores(), WORKERS_MAX))
    except OSError as trouble:
        end(f"{trouble.filename}: {trouble.strerror}", 2)
    except (ConfigError, ValueError) as wrong:
        end(str(wrong), 2)
    handler = StderrHandler(shared=workers > 1)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    logger = logging.getLogger("kafkad")
    if config.unknown_keys:
        logger.warning("unknown configuration keys: %s", ", ".join(sorted(config.unknown_keys)))
    for sentence in ignored(config):
        logger.warning("%s", sentence)

    from kafkad.server.lifecycle import serve

    sys.exit(serve(config, workers))


EVERY_INTERFACE = ("0.0.0.0", "::", "[::]")


def listen_on(address: str, properties: str | None, overrides: dict[str, str]) -> dict[str, str]:
    """Return the configuration changes for --listen: clients connect to this address only. The controller's
    listeners of a properties file are kept. Its advertised listeners are dropped, because they belong to the
    listeners that --listen replaces.
    """
    given = overrides
    if properties is not None:
        from kafkad.config.properties import read_properties

        given = read_properties(properties) | overrides
    controllers = {name.strip() for name in given.get("controller.listener.names", "").split(",")}
    kept = [
        one.strip()
        for one in given.get("listeners", "").split(",")
        if one.strip() and one.strip().partition("://")[0] in controllers
    ]
    host, colon, port = address.rpartition(":")
    if colon and host in EVERY_INTERFACE:
        address = (
            f":{port}"  # this address cannot be advertised; without a host, the broker uses its own name
        )
    changed = {"listeners": ",".join([f"PLAINTEXT://{address}", *kept])}
    if properties is not None and "advertised.listeners" not in overrides:
        # Without a host in the address, the broker advertises its own name.
        changed["advertised.listeners"] = f"PLAINTEXT://{address}"
    return changed
