"""The files that `kafka-storage format` creates in a metadata directory, created by `kafkad format`, and at
the first start of a single broker.

    bootstrap.checkpoint                      the feature levels that the first leader will write to the log
    __cluster_metadata-0/0…0-0…0.checkpoint   only with kraft.version 1: the first set of voters

kraft.version is 0 if controller.quorum.voters names the voters, otherwise 1, as with
`kafka-storage format --standalone` (Kafka: Formatter).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafkad.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
    TRANSACTIONS,
    fresh_levels,
)
from kafkad.metadata.image import BROKER
from kafkad.metadata.records import encode_record
from kafkad.protocol import messages
from kafkad.protocol.errors import Malformed
from kafkad.raft.control_records import Voter
from kafkad.raft.snapshots import build_snapshot, read_snapshot


def build_bootstrap(now_ms: int, levels: Mapping[str, int] | None = None, more: Iterable[Any] = ()) -> bytes:
    """bootstrap.checkpoint of a fresh cluster. `levels`: of features, metadata.version first. `more` records
    come after these."""
    levels = levels or fresh_levels()
    records: list[Any] = [
        messages.FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items()
    ]
    records.extend(more)
    values = (encode_record(record, levels[METADATA_VERSION]) for record in records)
    return b"".join(build_snapshot(values, epoch=0, timestamp_ms=0, now_ms=now_ms))


def read_bootstrap(content: bytes | None) -> list[Any]:
    """Return the records of bootstrap.checkpoint; without one, only the newest metadata.version. Raises
    Malformed."""
    if content is None:
        level = fresh_levels()[METADATA_VERSION]
        return [messages.FeatureLevelRecord(name=METADATA_VERSION, feature_level=level)]
    records = read_snapshot(content).records
    if not _levels(records).get(METADATA_VERSION):
        raise Malformed("bootstrap.checkpoint does not say metadata.version")
    return records


def build_voters_checkpoint(voters: Iterable[Voter], now_ms: int) -> bytes:
    """Return the snapshot at offset 0 that names the first voters."""
    return b"".join(
        build_snapshot((), epoch=0, timestamp_ms=now_ms, now_ms=now_ms, kraft_version=1, voters=voters)
    )


def first_records(bootstrap: Sequence[Any], min_insync_replicas: int) -> list[Any]:
    """Return what the first leader of an empty log writes (Kafka: ActivationRecordsGenerator).

    With eligible leader replicas (KIP-966) min.insync.replicas must be the same on all brokers, hence a
    cluster-wide value.
    """
    levels = _levels(bootstrap)
    records = list(bootstrap)
    if levels.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) > 0:
        records.append(
            messages.ConfigRecord(
                resource_type=BROKER,
                resource_name="",
                name="min.insync.replicas",
                value=str(min_insync_replicas),
            )
        )
    if levels[METADATA_VERSION] >= TRANSACTIONS:
        begin = messages.BeginTransactionRecord(name="Bootstrap records")
        return [begin, *records, messages.EndTransactionRecord()]
    return records


def _levels(records: Sequence[Any]) -> dict[str, int]:
    return {r.name: r.feature_level for r in records if type(r) is messages.FeatureLevelRecord}
