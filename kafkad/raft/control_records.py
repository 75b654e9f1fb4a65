"""Control records: the records that the quorum itself writes between the metadata records.

    LeaderChange   first record of each leader epoch                                   (log)
    KRaftVersion   kraft.version: 1 if the voters are in the log (KIP-853)              (log, snapshot)
    Voters         the voters, by id and directory id, and their listeners              (log, snapshot)
    SnapshotHeader, SnapshotFooter   first and last record of a snapshot                (snapshot)

Key: int16 version (0), int16 type. Value: the message, at version 0; it repeats its version inside.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from kafkad.protocol import codec, messages
from kafkad.protocol.records import (
    KRAFT_VERSION,
    KRAFT_VOTERS,
    LEADER_CHANGE,
    SNAPSHOT_FOOTER,
    SNAPSHOT_HEADER,
    build_batch,
    control_kind,
    control_record,
)

CLASSES: Final[dict[int, Any]] = {
    LEADER_CHANGE: messages.LeaderChangeMessage,
    SNAPSHOT_HEADER: messages.SnapshotHeaderRecord,
    SNAPSHOT_FOOTER: messages.SnapshotFooterRecord,
    KRAFT_VERSION: messages.KRaftVersionRecord,
    KRAFT_VOTERS: messages.VotersRecord,
}
TYPES: Final[dict[Any, int]] = {cls: number for number, cls in CLASSES.items()}


class Voter(NamedTuple):
    """A voter of kraft.version 1; `endpoints` by listener name: (host, port)."""

    voter_id: int
    directory_id: bytes
    endpoints: dict[str, tuple[str, int]]
    kraft_versions: tuple[int, int] = (0, 1)


def control_batch(records: Iterable[Any], *, base_offset: int, epoch: int, now_ms: int) -> bytearray:
    """Return one control batch of these messages."""
    return build_batch(
        [
            control_record(TYPES[type(message)], codec.encode(message, 0), timestamp=now_ms)
            for message in records
        ],
        base_offset=base_offset,
        leader_epoch=epoch,
        control=True,
    )


def read_control(batch: Any) -> list[Any]:
    """Return the messages of a control batch; unknown types are left out. Raises Malformed."""
    found = []
    for record in batch.records():
        cls = CLASSES.get(control_kind(record))
        if cls is not None:
            message, _ = codec.decode(cls, 0, record.value or b"")
            found.append(message)
    return found


def leader_change(leader_id: int, voters: Iterable[int], granting: Iterable[int] = ()) -> Any:
    """`granting`: the voters that voted for it, besides itself."""
    cls = messages.LeaderChangeMessage
    return cls(
        leader_id=leader_id,
        voters=[cls.Voters(voter_id=voter) for voter in voters],
        granting_voters=[cls.GrantingVoters(voter_id=voter) for voter in sorted({leader_id, *granting})],
    )


def voters_record(voters: Iterable[Voter]) -> Any:
    cls = messages.VotersRecord
    return cls(
        voters=[
            cls.Voters(
                voter_id=voter.voter_id,
                voter_directory_id=voter.directory_id,
                endpoints=[
                    cls.Voters.Endpoints(name=name, host=host, port=port)
                    for name, (host, port) in voter.endpoints.items()
                ],
                k_raft_version_feature=cls.Voters.KRaftVersionFeature(
                    min_supported_version=voter.kraft_versions[0],
                    max_supported_version=voter.kraft_versions[1],
                ),
            )
            for voter in voters
        ]
    )


def read_voters(record: Any) -> tuple[Voter, ...]:
    return tuple(
        Voter(
            voter.voter_id,
            voter.voter_directory_id,
            {point.name: (point.host, point.port) for point in voter.endpoints},
            (
                voter.k_raft_version_feature.min_supported_version,
                voter.k_raft_version_feature.max_supported_version,
            ),
        )
        for voter in record.voters
    )
