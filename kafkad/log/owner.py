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
    next_start: int  # to which deletion is about to move the log start, when that is on the disk; -1: nowhere

    first_base_synced: int  # the first segment when the directory was last synced

    being_cleaned: bool  # no segment may go meanwhile

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
        """Writes the log start to the disk, and then calls."""

    def on_failure(self, error: OSError) -> None:
        """The disk does not work: the log goes offline."""

    def refuse(self, error: OSError) -> KafkaError:
        """What to raise because of `error`, which is logged."""

    def half_done(self, what: str, error: OSError) -> KafkaError:
        """What to raise when files and memory may differ: the log serves nothing until the next start."""

    def roll(self, now_ms: int) -> Any: ...

    def largest_timestamp(self, at: int) -> int: ...

    def set_log_start(self, start: int) -> None: ...

    def forget_epochs_below(self, start: int) -> None: ...

    def sync_later(self, directory: str) -> None: ...
