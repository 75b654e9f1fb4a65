"""Kafka's releases: which metadata.version each has, and the features with which its clusters begin.

A level of metadata.version has a name: 4.0-IV1 is 23. A release's name alone means its last level. (Kafka:
MetadataVersion, and the default levels of each Feature.)"""

from typing import Final

from kafkad.metadata.features import (
    BY_NAME,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
    TRANSACTION_VERSION,
)

_INTERIM: Final = {  # the IV numbers of each release
    "3.3": range(3, 4), "3.4": range(1), "3.5": range(3), "3.6": range(3), "3.7": range(5), "3.8": range(1),
    "3.9": range(1), "4.0": range(4), "4.1": range(2), "4.2": range(2), "4.3": range(1),
}  # fmt: skip
_NAMES: Final = [f"{release}-IV{number}" for release, numbers in _INTERIM.items() for number in numbers]
LEVELS: Final = {name: level for level, name in enumerate(_NAMES, 7)}
LEVELS_OF_RELEASES: Final = {name.partition("-")[0]: level for name, level in LEVELS.items()}
FROM: Final = {ELIGIBLE_LEADER_REPLICAS_VERSION: LEVELS["4.1-IV0"], TRANSACTION_VERSION: LEVELS["4.0-IV2"]}


def metadata_level(release: str) -> int:
    """Return the level of 4.3, 4.3.1 or 4.3-IV0. Raises ValueError."""
    major_minor = ".".join(release.split(".")[:2])
    level = LEVELS.get(release) or LEVELS_OF_RELEASES.get(major_minor)
    if level is None:
        known = f"{_NAMES[0]} to {_NAMES[-1]}"
        raise ValueError(f"Unknown metadata.version {release}. Known versions are {known}")
    return level


def name_of(level: int) -> str:
    return next(name for name, each in LEVELS.items() if each == level)


def default_levels(level: int) -> dict[str, int]:
    """Return the levels that a fresh cluster of this metadata.version finalizes, of those served here."""
    others = {name: BY_NAME[name].served for name, since in sorted(FROM.items()) if level >= since}
    return {METADATA_VERSION: level, **others}
