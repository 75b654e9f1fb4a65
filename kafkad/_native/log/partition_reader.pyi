from kafkad._native.log.partition import Partition

class ReaderPartition(Partition):
    """Made by `Partition.reader`. Its offsets are those of the last read or `refresh_row`."""

    def refresh_row(self) -> int:
        """Copies the shared row now: 0, or the error that reads get."""
    @property
    def listings(self) -> int: ...
