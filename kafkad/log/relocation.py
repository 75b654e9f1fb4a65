"""A log goes on in another directory, which has the same files (log.moves).

It happens in one turn of the loop, between two appends. The shared row is odd meanwhile: readers of other
workers wait, find nothing in the old directory afterwards, and read again when they hear of the new one.
What is in memory stays, since the new files have the same names, sizes and positions. Flushes that began
before are void: they were of the old files."""

from collections.abc import Callable
from typing import Protocol

from kafkad._native.log.exchange import abandon_exchange, begin_exchange
from kafkad._native.log.partition import Partition
from kafkad.log.flusher import Flusher
from kafkad.log.leader_epochs import LeaderEpochs
from kafkad.log.next_segment import NextSegment


class Relocated(Protocol):
    """The part of `log.Log` that this needs."""

    directory: str
    first_base_synced: int  # the first segment when the directory was last synced

    @property
    def native(self) -> Partition: ...
    @property
    def flusher(self) -> Flusher: ...
    @property
    def leader_epochs(self) -> LeaderEpochs: ...


def relocate(log: Relocated, ahead: NextSegment, directory: str, rename: Callable[[], None]) -> None:
    """Go on in `directory`, to which `rename` gives its name. What it raises is raised: then nothing has
    changed."""
    ahead.close()  # its files are in the old directory
    begin_exchange(log.native)
    try:
        rename()
        log.native.set_directory(directory)
        log.directory = directory
    finally:
        abandon_exchange(log.native)
    log.first_base_synced = log.native.first_base_offset
    log.leader_epochs.directory = directory
    log.leader_epochs.unwritten = log.leader_epochs.unsynced = True  # the next flush writes them
    log.flusher.moved()
