from kafkad._native.log.partition import Partition

class ReaderPartition(Partition):
    """Made by `Partition.reader`. Its offsets are as of the last read or `refresh_row`."""

    def refresh_row(self) -> int:
        """Copy the shared row now. Return 0, or the error code for reads."""
    @property
    def listings(self) -> int: ...
