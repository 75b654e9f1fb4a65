"""How a worker reads a log that another worker owns: the rare reads, which the native path does not do.

The native reader (`_native/log/partition_reader`) has the owner's directory and a copy of its row. This
module has the reads that Fetch delegates to Python, and those of ListOffsets from the row. Nothing is
written, and nothing is cached unless the row shows that it is still valid: the owner may have rolled or
deleted since."""

from typing import TYPE_CHECKING

from kafkad.log.down_conversion import DownConversion
from kafkad.log.leader_epochs import LeaderEpochs
from kafkad.log.log import ISOLATIONS, Below, whole_batches
from kafkad.log.timestamps import TimestampOffset
from kafkad.log.txn_index import AbortedTxn
from kafkad.protocol.errors import NOT_LEADER_OR_FOLLOWER, KafkaError, Malformed

if TYPE_CHECKING:
    from kafkad._native.log.partition_reader import ReaderPartition


class ReaderLog:
    """The `log` of a reader partition; the constructor sets it there."""

    down_conversion = DownConversion

    __slots__ = ("_epochs", "_epochs_of", "directory", "native", "partition", "topic")

    def __init__(self, native: "ReaderPartition", directory: str) -> None:
        self.native = native
        self.directory = directory
        self.topic = native.topic
        self.partition = native.index
        self._epochs = LeaderEpochs("")  # never written
        self._epochs_of = (-1, -1)  # the leader epoch and the generation when they were read
        native.log = self

    def __repr__(self) -> str:
        return f"<ReaderLog {self.topic}-{self.partition} in {self.directory}>"

    def read(self, offset: int, max_bytes: int, *, below: Below = "high_watermark") -> bytes:
        """Return whole batches from the one that holds `offset`: at least one, or as many as fit; b"" at the
        end. Raises KafkaError."""
        code, _, _, _, data = self.native.try_read(offset, max_bytes, True, ISOLATIONS[below])
        if code:
            raise KafkaError(code)
        return whole_batches(data)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTxn]:
        """Return those that overlap [start, end). `end` is at most LSO as of the last read, so their entries
        were written before LSO passed them. Raises KafkaError."""
        self.refresh()
        return [AbortedTxn(*txn) for txn in self.native.aborted_transactions(start, end)]

    # -- values of the row -----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Copy the row now, before its values are used. Raises KafkaError."""
        code = self.native.refresh_row()
        if code:
            raise KafkaError(code)

    @property
    def leader_epoch(self) -> int:
        return self.native.leader_epoch

    def latest(self, isolation: int = 0) -> TimestampOffset:
        """Like `Log.latest`: a leader has begun an epoch at its end."""
        offset = self.native.last_stable_offset if isolation == 1 else self.native.high_watermark
        return TimestampOffset(-1, offset, self.native.leader_epoch)

    def earliest(self) -> TimestampOffset:
        """Like `Log.earliest`. The owner writes its epochs to a file before it leads in a new one; epochs
        that the log start has passed since then are harmless."""
        start = self.native.log_start_offset
        epochs = self._read_epochs()
        epoch = epochs.epoch_for(start) if epochs is not None else None
        return TimestampOffset(-1, start, -1 if epoch is None else epoch)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Like `Log.end_offset_for_epoch`. Raises KafkaError if the file does not have the owner's leader
        epoch; the client retries."""
        epochs = self._read_epochs()
        if epochs is None or epochs.latest != self.leader_epoch:
            self._epochs_of = (-1, -1)
            raise KafkaError(NOT_LEADER_OR_FOLLOWER)
        return epochs.end_offset_for(epoch, self.native.end_offset)

    def _read_epochs(self) -> LeaderEpochs | None:
        """Return the owner's epochs; None if their file cannot be read."""
        moment = (self.native.leader_epoch, self.native.generation)
        if self._epochs_of != moment:
            try:
                self._epochs = LeaderEpochs.load(self.directory)
            except (OSError, Malformed):
                return None
            self._epochs_of = moment
        return self._epochs
