"""Where each leader epoch begins (Kafka's LeaderEpochFileCache), stored in `leader-epoch-checkpoint`.

Entries ascend in epoch and in start offset. A follower uses them to find where its log and the leader's
diverge (KIP-101, KIP-279). The file is written when the entries change, and fsynced with the next flush of
the log. Entries that are not on disk yet can be found in the batches beyond the recovery point, which carry
their epoch. So a full disk is no reason to refuse a change: the next flush writes the file (`unwritten`). The
shared row has the latest epoch, so the successor of a killed worker sees that the file is old."""

import os
from functools import lru_cache
from typing import Final

from kafkad._native.log.epochs import Epochs
from kafkad.log.checkpoints import checkpoint_lines, checkpoint_text, write_file
from kafkad.log.filenames import LEADER_EPOCHS
from kafkad.protocol.errors import Malformed

EPOCH_MAX: Final = (1 << 31) - 1
OFFSET_MAX: Final = (1 << 63) - 1

Entries = tuple[tuple[int, int], ...]  # (epoch, start offset), in the order of the file


@lru_cache(maxsize=256)
def _parse(data: bytes) -> Entries:
    # cached: most of thousands of partitions have the same contents
    if not data:
        raise Malformed("the file is empty: its bytes were lost with the power")
    entries: list[tuple[int, int]] = []
    for entry in checkpoint_lines(data):
        try:
            epoch, start = int(entry[0]), int(entry[1])
        except (IndexError, ValueError):
            raise Malformed(f"not a leader epoch: {' '.join(entry)!r}") from None
        if len(entry) != 2 or not 0 <= epoch <= EPOCH_MAX or not 0 <= start <= OFFSET_MAX:
            raise Malformed(f"not a leader epoch: {' '.join(entry)!r}")
        entries.append((epoch, start))
    return tuple(entries)


class LeaderEpochs(Epochs):
    """The epochs of the partition in `directory`."""

    __slots__ = ("directory", "unsynced", "unwritten")

    def __init__(self, directory: str, entries: Entries = ()) -> None:
        self.directory = directory
        self.unsynced = False
        self.unwritten = False  # the file does not have the current entries yet
        self.fill(entries)

    @classmethod
    def load(cls, directory: str) -> "LeaderEpochs":
        """Read the file. Raises Malformed if it is damaged; then `LeaderEpochs(directory)` begins empty, and
        the log has the epochs."""
        try:
            with open(os.path.join(directory, LEADER_EPOCHS), "rb") as file:
                return cls.read(directory, file.read())
        except FileNotFoundError:
            return cls(directory)

    @classmethod
    def read(cls, directory: str, data: bytes | None) -> "LeaderEpochs":
        """Like `load`, from the file's contents; None: there is no such file."""
        return cls(directory, () if data is None else _parse(data))

    @property
    def path(self) -> str:
        return os.path.join(self.directory, LEADER_EPOCHS)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` begins at `start_offset`, and remove entries that contradict. Write the file if
        something changed."""
        assert epoch >= 0 and start_offset >= 0
        if self.put(epoch, start_offset):
            self.write()

    def rebuild(self, first: int, found: list[tuple[int, int]]) -> None:
        """Replace the epochs that begin at `first` or later by those `found` in its batches. Write the
        file if something changed. Raises OSError."""
        before = self.entries
        self.cut_end(first)
        for epoch, start in found:
            if self.latest is None or epoch > self.latest:
                self.put(epoch, start)
        if self.entries != before:
            self.write()

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that begin at or after `end_offset`."""
        if self.cut_end(end_offset):
            self.write()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that ended before `start_offset`; the one that holds it begins there.

        The next flush writes the file: one DeleteRecords moves thousands of log starts, and a start does the
        same to the entries of an older file."""
        if self.cut_start(start_offset):
            self.unwritten = self.unsynced = True

    def write(self) -> None:
        """Write the file. Raises OSError; the entries stay, and the file must be written later."""
        self.unwritten = self.unsynced = True
        lines = checkpoint_text(f"{epoch} {start}" for epoch, start in self.entries)
        write_file(self.path, lines, sync=False)
        self.unwritten = False
