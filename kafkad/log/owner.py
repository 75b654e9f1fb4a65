"""What the parts of a log (flushes, the next segment, deletion) need from the log: `log.Log` implements
it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kafkad._native.log.partition import Partition
from kafkad.log.leader_epochs import LeaderEpochs
from kafkad.log.scheduler import Scheduler
from kafkad.protocol.errors import KafkaError

if TYPE_CHECKING:
    from kafkad.config.topic import TopicConfig


class Owner(Protocol):
    next_start: int  # to which deletion will move the log start once that is on disk; -1: none

    first_base_synced: int  # the first segment when the directory was last synced

    being_cleaned: bool  # no segment may be deleted meanwhile

    topic: str
    partition: int

    @property
    def native(self) -> Partition: ...
    @property
    def directory(self) -> str: ...
    @property
    def scheduler(self) -> Scheduler: ...
    @property
    def closed(self) -> bool: ...
    @property
    def halted(self) -> bool: ...
    @property
    def config(self) -> "TopicConfig": ...
    @property
    def leader_epochs(self) -> LeaderEpochs: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def keep_log_start(self) -> "Callable[[Any, Callable[[OSError | None], None]], None] | None":
        """Writes the log start to disk, then calls the callback."""

    def on_failure(self, error: OSError) -> None:
        """The disk has failed: take the log offline."""

    def refuse(self, error: OSError) -> KafkaError:
        """Log `error` and return the exception to raise."""

    def half_done(self, what: str, error: OSError) -> KafkaError:
        """Return the exception to raise if files and memory may differ: the log then serves nothing until a
        start."""

    def roll(self, now_ms: int) -> Any: ...

    def newest_ms(self, at: int, base: int) -> int: ...

    def set_log_start(self, start: int) -> None: ...

    def forget_epochs_below(self, start: int) -> None: ...

    def sync_later(self, directory: str) -> None: ...
