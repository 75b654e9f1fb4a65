"""The driver's view of the topics: what there is to read, and how much of it is one batch.

`Backlog` asks the brokers (kafkad/spark/offsets.py: one ListOffsets per plan) and returns where a batch
starts and ends. The rules are those of Spark's connector: the first run begins at [source] start, a partition
that is created later begins at its earliest offset, a limit of rows or bytes is shared among partitions by
their backlog, and nothing is read twice.

If records were deleted before they were read (by retention, or because the topic was recreated), it raises
DataLoss. With fail_on_data_loss = false, the batch begins at the first remaining record, and reports how many
were lost.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kafkad.ingest.pipeline import Pipeline, Source
from kafkad.spark import planning
from kafkad.spark.offsets import FIRST_TIMEOUT_S, OffsetReader
from kafkad.spark.options import EARLIEST, ReadOptions, read_options
from kafkad.spark.planning import Range

if TYPE_CHECKING:
    from kafkad.ingest.checkpoint import Offsets

TASK_ATTEMPTS = 4  # like spark.task.maxFailures
TASK_BYTES = 64 << 20  # per task: what a worker reads in a few seconds
TASK_BYTES_MIN = 4 << 20  # below this, another task costs more than it saves, and writes another small file

LEFT_SHARE = 0.01  # of a batch: a smaller rest is included, instead of being a batch and files of its own

GOES_ON = "[source] fail_on_data_loss = false goes on with what is left"


class DataLoss(Exception):
    """Records were deleted before they were read; the message says where and how many."""


def client_options(source: Source) -> dict[str, str]:
    """Return [source] kafka. A table holds committed records only, unless the file says otherwise."""
    return {"isolation.level": "read_committed", **source.kafka}


def source_options(source: Source, *, headers: bool = False) -> dict[str, str]:
    """Return a pipeline's [source] as options of format("kafkad")."""
    options = {f"kafka.{name}": value for name, value in client_options(source).items()}
    if source.bootstrap:
        options["kafka.bootstrap.servers"] = source.bootstrap
    if source.log_dir:
        options["logDir"] = source.log_dir
    if source.pattern:
        options["subscribePattern"] = source.pattern
    else:
        options["subscribe"] = ",".join(source.topics)
    if source.start in ("earliest", "latest") or source.start.startswith("{"):
        options["startingOffsets"] = source.start
    else:
        options["startingTimestamp"] = str(milliseconds(source.start))
        options["startingOffsetsByTimestampStrategy"] = "latest"
    options["failOnDataLoss"] = str(source.fail_on_data_loss).lower()
    # a task waits for a part of it, because Spark gives a task several attempts
    options["kafkaConsumer.pollTimeoutMs"] = str(max(1000, int(source.retry_for * 1000 / TASK_ATTEMPTS)))
    if source.retry_for < FIRST_TIMEOUT_S:
        options.setdefault("kafka.default.api.timeout.ms", str(max(1000, int(source.retry_for * 1000))))
    if headers:
        options["includeHeaders"] = "true"
    return options


def milliseconds(text: str) -> int:
    """Return milliseconds since 1970 for an RFC 3339 time; without a zone it is UTC. Raises ValueError."""
    at = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    return int((at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


def offset_reader(options: ReadOptions) -> OffsetReader:
    """Return a reader of offsets from brokers, or from a broker's directory."""
    if options.log_dir is None:
        return OffsetReader(options)
    from kafkad.spark.segment_scan import DirectoryOffsets

    return DirectoryOffsets(options)


def read_options_of(pipeline: Pipeline) -> ReadOptions:
    headers = pipeline.decode.bad_records == "dlq"
    return read_options(source_options(pipeline.source, headers=headers), streaming=True)


class Backlog:
    """`look()` queries the brokers; everything else uses its result."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.source = pipeline.source
        self.options = read_options_of(pipeline)
        self.reader = offset_reader(self.options)
        self.earliest: Offsets = {}
        self.latest: Offsets = {}
        self.weights: Mapping[tuple[str, int], float] = {}
        self.known_ids: Mapping[str, str] = {}  # of topics when they were read: from the checkpoint
        self.reader_ids: Mapping[str, str] = {}  # and of the topics now

    def look(self) -> None:
        partitions = self.reader.partitions(gone_is_loss=True)
        self.reader_ids = dict(getattr(self.reader, "topic_ids", {}))
        self.earliest, self.latest = self.reader.list_both(partitions)
        if self.options.log_dir is not None:
            self.weights = self.weights_of_files()
        elif partitions:
            self.weights = self.reader.bytes_per_offset(partitions)

    def weights_of_files(self) -> dict[tuple[str, int], float]:
        """Bytes per offset, if the segment files are accessible."""
        from kafkad.spark.segment_files import logs_in

        found = {}
        for where, log in logs_in(self.options.log_dir or "").items():
            records = self.latest.get(where, 0) - self.earliest.get(where, 0)
            if records > 0:
                found[where] = (
                    sum(path.stat().st_size for path in Path(log.directory).glob("*.log")) / records
                )
        return found

    def first(self) -> Offsets:
        """Return where a new pipeline begins. Raises ValueError for a topic that does not exist."""
        partitions = self.reader.partitions()
        if self.source.start.startswith("{"):  # others begin at their earliest offset
            named = dict(self.options.start.at or ())
            return self.reader.settled({where: named.get(where, EARLIEST) for where in partitions})
        return self.reader.settled(self.reader.resolve(self.options.start, partitions, starting=True))

    def next(self, position: Offsets, upto: Offsets | None = None) -> tuple[Offsets, Offsets, int] | None:
        """Return (start, end, offsets lost) of the next batch, or None if there is no data. `upto`: where
        this run ends. Raises DataLoss.
        """
        latest = dict(self.latest)
        if upto is not None:
            latest = {where: min(end, upto.get(where, 0)) for where, end in latest.items() if where in upto}
        start, lost = self.start_of(position)
        end = planning.prorate(
            start,
            {where: max(at, start[where]) for where, at in latest.items()},
            self.earliest,
            records_max=self.source.max_rows,
            bytes_max=self.source.max_bytes,
            weights=self.weights,
        )
        end = {
            where: min(at, latest[where]) if latest[where] > start[where] else start[where]
            for where, at in end.items()
        }
        if all(end[where] <= start[where] for where in end):
            return None
        taken, left = (sum(b[where] - a[where] for where in end) for a, b in ((start, end), (end, latest)))
        if 0 < left <= taken * LEFT_SHARE:
            end = {where: max(at, latest[where]) for where, at in end.items()}
        return start, end, lost

    def start_of(self, position: Offsets) -> tuple[Offsets, int]:
        """Return where each existing partition continues, and how many offsets are lost. A topic that was
        deleted and created again is recognised by its id, even if it is longer now than before.
        """
        start, sentences, lost = {}, [], 0
        for where, latest in self.latest.items():
            earliest = self.earliest[where]
            at = position.get(where, earliest)
            if where in position and self.is_anew(where[0]):
                sentences.append(f"{name(where)} was to go on at {at} and was made anew")
                start[where] = earliest
                continue
            if at < earliest:
                sentences.append(f"{name(where)} was to go on at {at} and begins at {earliest}")
                lost += earliest - at
                at = earliest
            elif at > latest:
                sentences.append(f"{name(where)} was to go on at {at} and ends at {latest}")
                at = earliest
            start[where] = at
        gone = sorted(where for where in position if where not in self.latest and self.is_ours(where[0]))
        if gone:
            sentences.append(f"{', '.join(map(name, gone))} {'is' if len(gone) == 1 else 'are'} gone")
        if sentences and self.source.fail_on_data_loss:
            raise DataLoss(f"{'; '.join(sentences)}: data may be lost; {GOES_ON}")
        return start, lost

    def is_anew(self, topic: str) -> bool:
        now, then = self.reader_ids.get(topic), self.known_ids.get(topic)
        return now is not None and then is not None and now != then

    def is_ours(self, topic: str) -> bool:
        """Return whether the pipeline still names the topic; a topic removed from its file is no loss."""
        return topic in self.source.topics

    def lag(self, position: Offsets) -> int:
        return sum(
            max(0, end - position.get(where, self.earliest[where])) for where, end in self.latest.items()
        )

    def tasks(self, ranges: list[tuple[str, int, int, int]], cores: int) -> list[list[Range]]:
        """Return ranges as tasks of about TASK_BYTES: enough for all cores if there is enough to read, and
        few if there is little, because each task writes its own files.
        """
        wanted = [Range(*each) for each in ranges]
        mean = sum(self.weights.values()) / len(self.weights) if self.weights else 0.0
        size = {each: each.length * (self.weights.get(each.where) or mean or 1.0) for each in wanted}
        total = sum(size.values())
        count = max(1, min(math.ceil(total / TASK_BYTES_MIN), max(cores, math.ceil(total / TASK_BYTES))))
        pieces = planning.split(wanted, weights=self.weights, bytes_max=TASK_BYTES, pieces_min=count)
        tasks: list[list[Range]] = [[] for _ in range(min(count, len(pieces)) or 1)]
        filled = [0.0] * len(tasks)
        weigh = {each: each.length * (self.weights.get(each.where) or mean or 1.0) for each in pieces}
        for piece in sorted(pieces, key=lambda each: (-weigh[each], each)):
            least = filled.index(min(filled))
            tasks[least].append(piece)
            filled[least] += weigh[piece]
        return [sorted(task) for task in tasks if task]


def name(where: tuple[str, int]) -> str:
    return f"{where[0]}-{where[1]}"


def offsets_text(offsets: Offsets) -> str:
    from kafkad.spark.offsets import as_json

    return json.dumps(as_json(offsets), separators=(",", ":"))
