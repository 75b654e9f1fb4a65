"""Where each leader epoch begins (Kafka's LeaderEpochFileCache), kept in `leader-epoch-checkpoint`.

Entries ascend in epoch and in start offset. A follower finds with them where its log and the leader's part
(KIP-101, KIP-279). The file is written when the entries change, and fsynced with the next flush of the log:
what is not on the disk yet is found again in the batches beyond the recovery point, which carry their
epoch. So a full disk is no reason to refuse a change: the next flush writes the file (`unwritten`)."""

import os
from bisect import bisect_right
from functools import lru_cache
from operator import itemgetter

from kafkad.log.checkpoints import checkpoint_lines, checkpoint_text, write_file
from kafkad.log.filenames import LEADER_EPOCHS
from kafkad.protocol.errors import Malformed

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


Entries = tuple[tuple[int, int], ...]  # (epoch, start offset), ascending


def _with(entries: Entries, epoch: int, start: int) -> Entries:
    """`epoch` begins at `start`; entries that contradict go. The same object where nothing changes."""
    kept = len(entries)
    if kept and epoch == entries[-1][0] and start >= entries[-1][1]:
        return entries
    while kept and (entries[kept - 1][0] >= epoch or entries[kept - 1][1] >= start):
        kept -= 1
    return (*entries[:kept], (epoch, start))


@lru_cache(maxsize=256)
def _parse(data: bytes) -> Entries:
    # of thousands of partitions most say the same
    if not data:
        raise Malformed("the file is empty: its bytes were lost with the power")
    entries: Entries = ()
    for entry in checkpoint_lines(data):
        try:
            epoch, start = int(entry[0]), int(entry[1])
        except (IndexError, ValueError):
            raise Malformed(f"not a leader epoch: {' '.join(entry)!r}") from None
        if len(entry) != 2 or epoch < 0 or start < 0:
            raise Malformed(f"not a leader epoch: {' '.join(entry)!r}")
        entries = _with(entries, epoch, start)
    return entries


class LeaderEpochs:
    """Those of the partition in `directory`."""

    __slots__ = ("_entries", "directory", "unsynced", "unwritten")

    def __init__(self, directory: str, entries: Entries = ()) -> None:
        self.directory = directory
        self.unsynced = False
        self.unwritten = False  # the file does not say yet what the entries are
        self._entries = entries  # never changed: partitions that say the same share one

    @classmethod
    def load(cls, directory: str) -> "LeaderEpochs":
        """Raises Malformed when the file is damaged; then `LeaderEpochs(directory)` begins anew, from the
        log."""
        try:
            with open(os.path.join(directory, LEADER_EPOCHS), "rb") as file:
                return cls.read(directory, file.read())
        except FileNotFoundError:
            return cls(directory)

    @classmethod
    def read(cls, directory: str, data: bytes | None) -> "LeaderEpochs":
        """As `load`, of the file's bytes; None: there is no such file."""
        return cls(directory, () if data is None else _parse(data))

    @property
    def path(self) -> str:
        return os.path.join(self.directory, LEADER_EPOCHS)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        return list(self._entries)

    @property
    def latest(self) -> int | None:
        return self._entries[-1][0] if self._entries else None

    def _become(self, entries: Entries) -> None:
        if entries is not self._entries:
            self._entries = entries
            self.write()

    def _at(self, offset: int) -> int:
        # how many epochs begin at or before `offset`
        return bisect_right(self._entries, offset, key=itemgetter(1))

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` begins at `start_offset`; entries that contradict go. Writes the file when something
        changed."""
        assert epoch >= 0 and start_offset >= 0
        self._become(_with(self._entries, epoch, start_offset))

    def assign_all(self, entries: list[tuple[int, int]]) -> None:
        changed = self._entries
        for epoch, start in entries:
            changed = _with(changed, epoch, start)
        self._become(changed)

    def truncate_from_end(self, end_offset: int) -> None:
        """Epochs that begin at or after `end_offset` go."""
        kept = len(self._entries)
        while kept and self._entries[kept - 1][1] >= end_offset:
            kept -= 1
        if kept < len(self._entries):
            self._become(self._entries[:kept])

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that ended before `start_offset`; the one that holds it begins there.

        The next flush writes the file: one DeleteRecords moves thousands of log starts, and a start does the
        same to what it finds in an older file."""
        at = self._at(start_offset)
        if at == 0 or (at == 1 and self._entries[0][1] == start_offset):
            return
        self._entries = ((self._entries[at - 1][0], start_offset), *self._entries[at:])
        self.unwritten = self.unsynced = True

    def epoch_for(self, offset: int) -> int | None:
        at = self._at(offset)
        return self._entries[at - 1][0] if at else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest known epoch <= `epoch`, the offset after its last), or (-1, -1)
        (OffsetForLeaderEpoch)."""
        entries = self._entries
        if epoch == UNDEFINED_EPOCH or not entries:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == entries[-1][0]:
            return epoch, log_end_offset
        at = bisect_right(entries, epoch, key=itemgetter(0))
        if at == len(entries):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        return (entries[at - 1][0] if at else epoch), entries[at][1]

    def write(self) -> None:
        """Raises OSError; the entries stand, and the file is to be written later."""
        self.unwritten = self.unsynced = True
        lines = checkpoint_text(f"{epoch} {start}" for epoch, start in self._entries)
        write_file(self.path, lines, sync=False)
        self.unwritten = False
