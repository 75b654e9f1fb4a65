"""The coordinator's interfaces to the outside: time, timers, and its partitions of an internal topic."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from kafkad.coordinator.deadline import Handle
from kafkad.log.admission import Admission

Appended = Callable[[int, int], object]


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


class Scheduler(Protocol):
    def call_later(self, delay_ms: float, function: Callable[[], Any]) -> Handle: ...


class Storage(Protocol):
    """The coordinator's view of `__consumer_offsets`."""

    def partition_count(self) -> int: ...

    def topic_id(self, topic: str) -> bytes | None:
        """Return the id of an existing topic (zeros: unknown), or None if it does not exist. The image must
        have everything that was committed when the coordinator began."""

    def batch_size_max(self, partition: int) -> int:
        """In bytes; `append` refuses a larger batch with MESSAGE_TOO_LARGE."""

    def ask_guard(self, partition: int, admission: int, producer_id: int, epoch: int) -> int:
        """What a batch in a transaction is to be appended with, once the transaction's coordinator has
        admitted it (log/admission.py); 0: the transaction is open here. Raises KafkaError."""

    def lead(self, partition: int, epoch: int) -> None:
        """From now on, appends of another leader epoch are refused."""

    def append(
        self, partition: int, batch: bytearray, callback: Appended, admitted: tuple[Admission, int] = ...
    ) -> None:
        """Appends one batch to a partition. `callback(error code, base offset)` once: when it is as durable
        as acks=all makes it, or has failed or timed out. In the order of the appends of that partition, and
        possibly before this returns. A batch that is in the log when its time is up has REQUEST_TIMED_OUT
        with its offset, and later a second call with its outcome. admitted: of a batch in a transaction, its
        admission and guard."""

    def append_marker(
        self, partition: int, of: tuple[int, int, int], *, commit: bool, version: int, callback: Appended
    ) -> None:
        """As `append`, of the marker that ends a transaction; `of`: producer id, its epoch, the epoch of the
        transaction's coordinator."""


class Coordinator(Protocol):
    """What a shard needs of the coordinator that it is of. (`runtime.GroupCoordinator` is one.)"""

    @property
    def config(self) -> Any: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def scheduler(self) -> Scheduler: ...
    @property
    def storage(self) -> Storage: ...
    @property
    def new_uuid(self) -> Callable[[], str]: ...

    def run(self, shard: Any, steps: Iterator[None], done: Callable[[], object] | None = None) -> None:
        """Does `steps` for a shard, in slices."""
