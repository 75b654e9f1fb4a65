"""The election state: what a voter must remember of elections, in the file `quorum-state` (one line of JSON).

    v0 (kraft.version 0): {"clusterId":"","leaderId":1,"leaderEpoch":2,"votedId":-1,"appliedOffset":0,
                           "currentVoters":[{"voterId":1}],"data_version":0}
    v1 (kraft.version 1): {"leaderId":1,"leaderEpoch":2,"votedId":-1,
                           "votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}

Kafka: FileQuorumStateStore, QuorumStateData. Beware: Kafka reads the first line only, and wants every field.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from kafkad.metadata.uuids import uuid_bytes, uuid_text
from kafkad.protocol.errors import Malformed

NOBODY = -1


@dataclass(slots=True, frozen=True)
class ElectionState:
    """`voters` exists in v0 only, `voted_directory_id` in v1 only."""

    leader_epoch: int
    leader_id: int = NOBODY
    voted_id: int = NOBODY
    voted_directory_id: bytes = bytes(16)
    voters: tuple[int, ...] = field(default=())

    def encode(self, version: int) -> bytes:
        fields: dict[str, Any] = {
            "leaderId": self.leader_id,
            "leaderEpoch": self.leader_epoch,
            "votedId": self.voted_id,
        }
        if version == 0:
            voters = [{"voterId": voter} for voter in self.voters]
            fields = {"clusterId": "", **fields, "appliedOffset": 0, "currentVoters": voters}
        else:
            fields["votedDirectoryId"] = uuid_text(self.voted_directory_id)
        fields["data_version"] = version
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def decode(content: bytes) -> "ElectionState":
        """Parse a quorum-state. Raises Malformed."""
        try:
            fields = json.loads(content.split(b"\n", 1)[0])
            version = fields["data_version"]
            if version not in (0, 1):
                raise Malformed(f"quorum-state has data_version {version}; 0 and 1 are known")
            return ElectionState(
                leader_epoch=int(fields["leaderEpoch"]),
                leader_id=int(fields["leaderId"]),
                voted_id=int(fields["votedId"]),
                voted_directory_id=uuid_bytes(fields["votedDirectoryId"]) if version == 1 else bytes(16),
                voters=tuple(voter["voterId"] for voter in fields.get("currentVoters") or ()),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as trouble:
            raise Malformed(f"quorum-state cannot be read: {trouble!r}") from trouble
