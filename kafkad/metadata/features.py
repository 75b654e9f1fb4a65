"""Features: the levels that a cluster has agreed on, and the range that this broker supports (KIP-584).

There is one row per feature of Kafka 4.3.1. `metadata.version` decides in which versions metadata records are
written. The others enable protocols (KIP-848 groups, KIP-890 transactions, KIP-966 eligible leader replicas,
...). `kraft.version` is not part of the image: it is stored in control records of the metadata log (KIP-853).

A level may be known without being served. A log in which a JVM broker, or an older kafkad, has finalized
`group.version` 1 can be opened, and keeps its record, so that a JVM can open it again. But clients see only
levels that are served (`advertised`, `finalized`), because they enable protocols by them.

Beware: a cluster that has finalized an unknown level must not be served; `unsupported` checks that.
"""

from typing import Final, NamedTuple

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"
TRANSACTION_VERSION: Final = "transaction.version"
ELIGIBLE_LEADER_REPLICAS_VERSION: Final = "eligible.leader.replicas.version"

# the first level of metadata.version with each property (Kafka: MetadataVersion)
ZK_MIGRATION: Final = 8  # 3.4-IV0
SCRAM: Final = 11  # 3.5-IV2
NO_EPOCH_ON_SHRINK: Final = 12  # 3.6-IV0: shrinking an ISR does not change the leader epoch (KAFKA-15021)
TRANSACTIONS: Final = 13  # 3.6-IV1: metadata records may be grouped by Begin- and EndTransactionRecord
DELEGATION_TOKENS: Final = 14  # 3.6-IV2
CONTROLLER_REGISTRATION: Final = 15  # 3.7-IV0
DIRECTORY_ASSIGNMENT: Final = 17  # 3.7-IV2
ELIGIBLE_LEADER_REPLICAS: Final = 23  # 4.0-IV1
CORDONED_LOG_DIRS: Final = 30  # 4.3-IV0


class Feature(NamedTuple):
    """Levels: the lowest and highest that a log may have, and the highest that is served, with which a fresh
    cluster starts."""

    name: str
    lowest: int
    highest: int
    served: int


SUPPORTED: Final = (
    Feature("eligible.leader.replicas.version", 0, 1, 1),
    Feature("group.version", 0, 1, 0),
    Feature("kraft.version", 0, 1, 1),
    Feature("metadata.version", 7, 30, 30),
    Feature("share.version", 0, 1, 0),
    Feature("streams.version", 0, 1, 0),
    Feature("transaction.version", 0, 2, 2),
)
BY_NAME: Final = {feature.name: feature for feature in SUPPORTED}


def fresh_levels() -> dict[str, int]:
    """Return the levels that a fresh cluster finalizes: metadata.version first, the others by name.
    `kafka-storage format` also finalizes levels that are not served here; it leaves out levels of 0, too."""
    others = sorted(f.name for f in SUPPORTED if f.served and f.name not in (METADATA_VERSION, KRAFT_VERSION))
    return {name: BY_NAME[name].served for name in [METADATA_VERSION, *others]}


def advertised() -> list[Feature]:
    """Return the features with a served level: `lowest` to `served`."""
    return [feature for feature in SUPPORTED if feature.served]


def finalized(levels: dict[str, int]) -> dict[str, int]:
    """Return the finalized levels as served; a higher one counts as the highest served one."""
    served = {name: min(level, BY_NAME[name].served) for name, level in levels.items() if name in BY_NAME}
    return {name: level for name, level in served.items() if level > 0}


def level(levels: dict[str, int], name: str) -> int:
    """Return the finalized level of a feature as served; 0 if there is none."""
    return finalized(levels).get(name, 0)


def unsupported(levels: dict[str, int]) -> str | None:
    """Return an error message about the first finalized level that this broker does not support, or None."""
    for name, level in levels.items():
        feature = BY_NAME.get(name)
        lowest, highest = (feature.lowest, feature.highest) if feature is not None else (0, 0)
        if not lowest <= level <= highest:
            can = f"this broker can do {lowest} to {highest}"
            return f"the cluster has finalized {name} at level {level}, and {can}"
    return None
