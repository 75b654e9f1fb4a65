"""The voter sets in the log, by offset: a set counts from the moment it is in the log, committed or not.

    begin      with the set in a snapshot
    note       a batch that was appended: does it have a VotersRecord or a KRaftVersionRecord?
    truncate   the log was cut: the previous set counts again
    forget     sets before a committed one

Voters are identified by id and directory id together (KIP-853). Kafka: VoterSetHistory, VoterSet. Pure."""

from typing import Any, NamedTuple

from kafkad.protocol import messages
from kafkad.raft.control_records import Voter, read_control, read_voters

Key = tuple[int, bytes]  # id, directory id
Voters = tuple[Voter, ...]


class Entry(NamedTuple):
    """The set from this offset on; -1: the set with which the nodes were formatted, or none."""

    offset: int = -1
    kraft_version: int = 0
    voters: Voters = ()


class VoterHistory:
    """`newest` is in effect. There is always one."""

    def __init__(self) -> None:
        self._entries = [Entry()]

    @property
    def newest(self) -> Entry:
        return self._entries[-1]

    def begin(self, offset: int, kraft_version: int, voters: Voters) -> None:
        self._entries = [Entry(offset, kraft_version, voters)]

    def note(self, batch: Any) -> None:
        """Take a batch that was appended. Raises Malformed."""
        if not batch.is_control:
            return
        _, version, voters = self.newest
        for message in read_control(batch):
            if type(message) is messages.KRaftVersionRecord:
                version = message.k_raft_version
            elif type(message) is messages.VotersRecord:
                voters = read_voters(message)
            else:
                continue
            self._entries.append(Entry(batch.base_offset, version, voters))

    def truncate(self, end_offset: int) -> None:
        while len(self._entries) > 1 and self.newest.offset >= end_offset:
            self._entries.pop()

    def may_vote(self, key: Key, committed: int) -> bool:
        """Return whether the voter is in any set that may be the committed one."""
        self.forget(committed)
        return any(key_of(voter) == key for entry in self._entries for voter in entry.voters)

    def forget(self, committed: int) -> None:
        """Everything below this offset is committed: of the sets there, only the newest is still needed."""
        while len(self._entries) > 1 and self._entries[1].offset < committed:
            del self._entries[0]


def key_of(voter: Voter) -> Key:
    return voter.voter_id, voter.directory_id


def without(voters: Voters, key: Key) -> Voters | None:
    """Return the voters without this one; None: it is not a voter."""
    left = tuple(voter for voter in voters if key_of(voter) != key)
    return left if len(left) < len(voters) else None


def replaced(voters: Voters, new: Voter) -> Voters | None:
    """Return the voters with new endpoints or versions of this one; None: it is not a voter."""
    if all(key_of(voter) != key_of(new) for voter in voters):
        return None
    return tuple(new if key_of(voter) == key_of(new) else voter for voter in voters)
