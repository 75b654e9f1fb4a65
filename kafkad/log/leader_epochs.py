"""Where each leader epoch begins (Kafka's LeaderEpochFileCache), kept in `leader-epoch-checkpoint`.

Entries ascend in epoch and in start offset. A follower finds with them where its log and the leader's part
(KIP-101, KIP-279). The file is written when the entries change, and fsynced with the next flush of the log:
what is not on the disk yet is found again in the batches beyond the recovery point, which carry their
epoch."""

import os
from bisect import bisect_right

from kafkad.log.checkpoints import checkpoint_lines, checkpoint_text, write_file
from kafkad.log.filenames import LEADER_EPOCHS
from kafkad.protocol.errors import Malformed

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochs:
    __slots__ = ("_epochs", "_starts", "path", "unsynced")

    def __init__(self, path: str) -> None:
        self.path = path
        self.unsynced = False
        self._epochs: list[int] = []
        self._starts: list[int] = []

    @classmethod
    def load(cls, directory: str) -> "LeaderEpochs":
        """Raises Malformed when the file is damaged; then `LeaderEpochs(path)` begins anew, from the log."""
        self = cls(os.path.join(directory, LEADER_EPOCHS))
        try:
            with open(self.path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return self
        if not data:
            raise Malformed("the file is empty: its bytes were lost with the power")
        for entry in checkpoint_lines(data):
            try:
                epoch, start = int(entry[0]), int(entry[1])
            except (IndexError, ValueError):
                raise Malformed(f"not a leader epoch: {' '.join(entry)!r}") from None
            if len(entry) != 2 or epoch < 0 or start < 0:
                raise Malformed(f"not a leader epoch: {' '.join(entry)!r}")
            self._put(epoch, start)
        return self

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int | None:
        return self._epochs[-1] if self._epochs else None

    def _put(self, epoch: int, start: int) -> bool:
        if self._epochs and epoch == self._epochs[-1] and start >= self._starts[-1]:
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start)
        return True

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` begins at `start_offset`; entries that contradict go. Writes the file when something
        changed."""
        assert epoch >= 0 and start_offset >= 0
        if self._put(epoch, start_offset):
            self.write()

    def assign_all(self, entries: list[tuple[int, int]]) -> None:
        changed = [self._put(epoch, start) for epoch, start in entries]
        if any(changed):
            self.write()

    def truncate_from_end(self, end_offset: int) -> None:
        """Epochs that begin at or after `end_offset` go."""
        before = len(self._starts)
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()
        if len(self._starts) != before:
            self.write()

    def truncate_from_start(self, start_offset: int) -> None:
        """Epochs that ended before `start_offset` go; the one that holds it begins there."""
        at = bisect_right(self._starts, start_offset)
        if at == 0 or (at == 1 and self._starts[0] == start_offset):
            return
        epoch = self._epochs[at - 1]
        self._epochs[:at] = [epoch]
        self._starts[:at] = [start_offset]
        self.write()

    def epoch_for(self, offset: int) -> int | None:
        at = bisect_right(self._starts, offset)
        return self._epochs[at - 1] if at else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest known epoch <= `epoch`, the offset after its last), or (-1, -1)
        (OffsetForLeaderEpoch)."""
        if epoch == UNDEFINED_EPOCH or not self._epochs:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        at = bisect_right(self._epochs, epoch)
        if at == len(self._epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        return (self._epochs[at - 1] if at else epoch), self._starts[at]

    def write(self) -> None:
        lines = checkpoint_text(f"{epoch} {start}" for epoch, start in self.entries)
        write_file(self.path, lines, sync=False)
        self.unsynced = True
