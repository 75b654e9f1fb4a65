"""What the tests of the log share: a scheduler that stands still, batches, a log that is easily reopened."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafkad._native.wire.crc32c import checksum
from kafkad.config.topic import TopicConfig
from kafkad.log.log import Log
from kafkad.protocol.records import Record, build_batch


def begin_metadata(directory: str | Path) -> None:
    """A metadata log with one record: without one a start refuses directories that hold partitions."""
    log = Path(directory) / "__cluster_metadata-0"
    log.mkdir(exist_ok=True)
    (log / f"{0:020d}.log").write_bytes(batch(1, leader_epoch=1))


TOPIC_ID = bytes(range(1, 17))


class Handle:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualScheduler:
    """Timers fire in `run`, threads' work happens in `work`: a test decides what comes before what."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.timers: list[tuple[int, int, Callable[[], None], Handle]] = []
        self.threads: list[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = []
        self._count = 0

    def call_later(self, delay_ms: int, fn: Callable[[], None]) -> Handle:
        handle = Handle()
        self._count += 1
        self.timers.append((self.now_ms + delay_ms, self._count, fn, handle))
        return handle

    def run_in_thread(
        self,
        fn: Callable[[], None],
        callback: Callable[[BaseException | None], None],
        lane: str = "work",
    ) -> None:
        self.threads.append((fn, callback))

    def run(self, advance_ms: int = 0) -> None:
        """Fires what is due now, or within `advance_ms`."""
        self.now_ms += advance_ms
        while due := sorted(timer for timer in self.timers if timer[0] <= self.now_ms)[:1]:
            self.timers.remove(due[0])
            if not due[0][3].cancelled:
                due[0][2]()

    def work(self, fail: OSError | None = None) -> int:
        """Does what threads were asked for so far (or lets it fail); how much it was."""
        taken, self.threads = self.threads, []
        for fn, callback in taken:
            error: BaseException | None = fail
            if error is None:
                try:
                    fn()
                except Exception as e:  # as a Future does
                    error = e
            callback(error)
        return len(taken)

    def settle(self) -> None:
        """Everything that is due, and the threads, until nothing is left to do."""
        self.run()
        while self.work():
            self.run()


def topic_config(**values: Any) -> TopicConfig:
    """Kafka's defaults, with others by attribute name; small segments are allowed."""
    config = TopicConfig()
    for name, value in values.items():
        assert hasattr(config, name), name
        object.__setattr__(config, name, value)
    return config


def batch(count: int = 1, timestamp: int = 1_000, size: int = 10, **fields: Any) -> bytearray:
    """`count` records whose timestamps ascend by 1 from `timestamp`."""
    return build_batch([Record(None, b"x" * size, timestamp=timestamp + i) for i in range(count)], **fields)


def idempotent(
    sequence: int, count: int = 1, producer_id: int = 7, epoch: int = 0, **fields: Any
) -> bytearray:
    return batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields)


@dataclass
class LogWorld:
    """One partition, opened and closed at will."""

    root: Path
    config: TopicConfig = field(default_factory=TopicConfig)
    scheduler: ManualScheduler = field(default_factory=ManualScheduler)
    now_ms: int = 1_000
    epoch: int = 0
    log: Log = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.directory = self.root / "t-0"
        if self.log is None:
            self.open()

    def open(self, clean: bool = False, lead: bool = True, **options: Any) -> Log:
        self.log = Log.open(
            str(self.directory), "t", 0, self.config,
            now_ms=self.now_ms, clean=clean, scheduler=self.scheduler, topic_id=TOPIC_ID, **options,
        )  # fmt: skip
        if lead:
            self.log.set_leader_epoch(self.epoch)
            self.log.native.expect_order()
        return self.log

    def crash(self, **options: Any) -> Log:
        """The process goes without a word; the page cache stays."""
        self.scheduler = ManualScheduler()
        return self.open(clean=False, **options)

    def restart(self, **options: Any) -> Log:
        """A clean stop and start."""
        self.log.close()
        self.scheduler.settle()
        options.setdefault("recovery_point", self.log.recovery_point)
        return self.open(clean=True, **options)

    def append(self, data: bytearray | None = None, **fields: Any) -> int:
        return self.log.append_client(data or batch(**fields), self.now_ms).base_offset

    def path(self, base_offset: int, suffix: str) -> Path:
        return self.directory / f"{base_offset:020d}{suffix}"

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())


def emptied(
    base_offset: int, last_offset: int, producer_id: int = -1, *, control: bool = False, sequence: int = -1
) -> bytes:
    """A batch without records, as Kafka's log cleaner keeps it for its offsets or its producer
    (MemoryRecords.filterTo: RETAIN_EMPTY, DefaultRecordBatch.writeEmptyHeader)."""
    attributes = 0x30 if control else 0
    head = struct.pack(
        ">hiqqqhii", attributes, last_offset - base_offset, -1, 1_000, producer_id, 0, sequence, 0
    )
    return struct.pack(">qiibI", base_offset, 49, 0, 2, checksum(head)) + head
