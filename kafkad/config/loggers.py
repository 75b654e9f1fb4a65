"""Log levels as a resource of the broker (KIP-412): Kafka's names of levels for Python's loggers.

Changes are not stored: a restart of the broker resets them."""

import logging
from typing import Final

ROOT: Final = "root"
LEVELS: Final = {  # Kafka's name -> Python's level; TRACE is one below DEBUG
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": 5,
    "WARN": logging.WARNING,
}
OWN: Final = "kafkad"  # loggers below this name are shown, and the root


def levels() -> dict[str, str]:
    """Return the effective level of each logger, by Kafka's name."""
    loggers = [logging.getLogger(name) for name in sorted(logging.root.manager.loggerDict) if _is_own(name)]
    return {ROOT: _name_of(logging.root)} | {logger.name: _name_of(logger) for logger in loggers}


def exists(name: str) -> bool:
    return name == ROOT or (_is_own(name) and name in logging.root.manager.loggerDict)


def set_level(name: str, level: str | None) -> None:
    """Set a logger's level by Kafka's name. None means the level of its parent."""
    logger = logging.root if name == ROOT else logging.getLogger(name)
    logger.setLevel(logging.NOTSET if level is None else LEVELS[level])


def _is_own(name: str) -> bool:
    return name == OWN or name.startswith(f"{OWN}.")


def _name_of(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    return max((number, name) for name, number in LEVELS.items() if number <= max(level, 5))[1]
