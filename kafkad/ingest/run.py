"""`kafkad ingest run`: copy batch after batch from topics into a table, each exactly once.

    plan      write the batch's offsets to the checkpoint and sync it, before anything is read
    work      Spark's tasks read, decode and write files, which no reader sees yet
    commit    the table takes the files under the pipeline's id and the batch's number, unless it has them
    done      the checkpoint records the batch; the bar, metrics and consumer group are updated

If the process dies anywhere in between, the next run repeats the planned batch with the same offsets, and the
table decides whether it already has it. After a temporary error (a broker or a Spark worker was killed), the
batch is repeated, for as long as [source] retry_for says. An error that a retry cannot fix (a full disk, a
table that cannot take the batch) ends the run with an error message.

There are two kinds of work. Without SQL and dedup, no row enters the JVM: tasks write the rows that they
decode (*landing*). With SQL, the decoded rows are the view `input`, the query runs over one batch at a time,
and the same writer writes its rows. There is no state, so row-wise SQL and joins with files work. Aggregates
would cover one batch only, and are refused: the query must keep _topic, _partition, _offset and _timestamp,
because every offset must be accounted for. Spark keeps the state of dedup over batches: see deduplicate.py.

Ctrl-C and SIGTERM end a run after the current batch. A second one ends it at once, which is as safe as kill
-9.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkad.ingest import session as sessions
from kafkad.ingest import tasks
from kafkad.ingest.backlog import GOES_ON, Backlog, DataLoss, offsets_text, source_options
from kafkad.ingest.checkpoint import WITHIN_TABLE, Batch, Busy, Checkpoint, Foreign
from kafkad.ingest.metrics import Metrics
from kafkad.ingest.pipeline import PROVENANCE, Pipeline
from kafkad.ingest.progress import Progress
from kafkad.ingest.table import safe_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from kafkad.ingest.landing import LandSettings
    from kafkad.ingest.letter_topic import LetterTopic
    from kafkad.ingest.table import Committed, Staging, Table, TaskReport

RETRY_PAUSES_S = (0.5, 2, 5, 10, 20)  # the last one is repeated
POLL_S = 0.2


class Refused(Exception):
    """The run cannot start, or cannot continue: one error message."""


@dataclass
class RunResult:
    """Why a run ended: "done" (available-now has read all), "SIGINT" or "SIGTERM"."""

    why: str
    summary: dict[str, Any]


class Stop:
    """A signal that asks the run to end; the second one ends the process."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> Stop:
        self.before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Install the handlers, again after a session was created: PySpark installs its own for Ctrl-C."""
        for number in self.before:
            signal.signal(number, self.take)

    def take(self, number: int, _frame: object) -> None:
        if self.signal is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.signal = signal.Signals(number)


def checkpoint_path(pipeline: Pipeline) -> Path:
    if pipeline.sink.checkpoint:
        return Path(pipeline.sink.checkpoint)
    if pipeline.sink.path:
        return Path(pipeline.sink.path) / WITHIN_TABLE
    return Path(pipeline.file).parent / f".{pipeline.name}-checkpoint"


def place_of(pipeline: Pipeline) -> str:
    return pipeline.sink.path or pipeline.sink.table or ""


class Run:
    """One run of a pipeline: call `to_end()`."""

    def __init__(self, pipeline: Pipeline, checkpoint: Checkpoint, progress: Progress, stop: Stop) -> None:
        self.pipeline = pipeline
        self.checkpoint = checkpoint
        self.progress = progress
        self.stop = stop
        self.settings = land_settings(pipeline)
        told, before = pipeline.metrics, checkpoint.history()
        self.metrics = Metrics(pipeline.name, told.jsonl, told.prometheus, before[-1] if before else None)
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        """Started by the first batch: a run with nothing to read needs no Java."""
        if self._spark is None:
            self._spark = sessions.session(self.pipeline)
            self.stop.install()
        return self._spark

    def close(self) -> None:
        self.metrics.close()
        if self._spark is not None and not sessions.submitted():
            self._spark.stop()

    def to_end(self) -> RunResult:
        self.backlog = Backlog(self.pipeline)
        self.backlog.reader.is_stopped = self.stop.__bool__
        self.backlog.known_ids = self.checkpoint.topic_ids()
        self.table = self.open_table()
        for sentence in self.table.recover(self.checkpoint.id):
            self.say(sentence)
        self.check_table()
        self.settle_letters()
        upto = self.begin()
        batch = self.unfinished()
        while True:
            started = time.monotonic()
            if batch is None:
                if self.stop:
                    break
                batch = self.next_batch(upto)
            if batch is None:
                if upto is not None:
                    break
                self.wait(started + (self.pipeline.trigger.interval or 0))
                continue
            if self._spark is None:
                self.progress.doing("starting Spark")
                self.attempt("starting Spark", lambda: self.spark)
                self.progress.doing()
                started = time.monotonic()
            self.one_batch(batch, started)
            batch = None
            if upto is None and not self.stop:
                self.wait(started + (self.pipeline.trigger.interval or 0))
        why = self.stop.signal.name if self.stop.signal else "done"
        lag = self.backlog.lag(self.checkpoint.position())
        return RunResult(why, self.progress.end(why, lag, place_of(self.pipeline)))

    def check_table(self) -> None:
        """Raise if the table lacks batches that the checkpoint calls done, because rows would be missing: the
        table was created again, or restored from a copy. (Numbers of StreamRun's batches are Spark's.)
        """
        last = (self.checkpoint.history() or [{}])[-1]
        if not last.get("offsets"):
            return
        names = (self.checkpoint.id, f"{self.checkpoint.id}-stream")
        has = self.table.last_batch(names[0])
        if "late" in last:
            has = max(map(self.table.last_batch, names)) + last["batch"]
        if has < last["batch"]:
            raise Refused(
                f"the table {place_of(self.pipeline)} lacks batch {last['batch']}, which the checkpoint"
                f" {self.checkpoint.path} calls done: bring the table back, or take the checkpoint away to"
                " land the topic anew"
            )

    # --- offsets

    def begin(self) -> dict[tuple[str, int], int] | None:
        """Return where an available-now run ends; None for an endless one. A first run records where it
        begins."""
        self.attempt("asking for offsets", self.backlog.look, again=False)
        if self.checkpoint.is_new:
            held = self.table.next_offsets()
            if held and not self.starts_behind(held):
                raise Refused(
                    f"the table {place_of(self.pipeline)} has rows and the checkpoint {self.checkpoint.path}"
                    " is new: they belong together; bring the checkpoint back, or go on behind what the table"
                    f" holds with [source] start = '{offsets_text(held)}'"
                )
            first = self.attempt("asking for offsets", self.backlog.first)
            batch = self.checkpoint.plan(first, dict(first))
            self.checkpoint.done(batch, {})
        position = self.checkpoint.position()
        upto = dict(self.backlog.latest) if self.pipeline.trigger.available_now else None
        self.progress.begin(None if upto is None else self.backlog.lag(position))
        return upto

    def starts_behind(self, held: dict[tuple[str, int], int]) -> bool:
        """Return whether [source] start is beyond the table's offsets in all partitions of the table."""
        named = dict(self.backlog.options.start.at or ())
        return all(named.get(where, -2) >= offset for where, offset in held.items())

    def next_batch(self, upto: dict[tuple[str, int], int] | None) -> Batch | None:
        if upto is None:
            try:
                self.attempt("asking for offsets", self.backlog.look)
            except Refused:
                if not self.stop:
                    raise
                return None  # a run that is to end does not wait for a broker that is away
        position = self.checkpoint.position()
        found = self.backlog.next(position, upto)
        if found is None:
            return None
        start, end, lost = found
        for (topic, partition), at in start.items():
            held = position.get((topic, partition), 0)
            if at < held and (topic, partition) in self.table.next_offsets():
                raise Refused(
                    f"{topic}-{partition} begins anew at {at}, and the table holds its offsets up to {held}:"
                    " records are told by topic, partition and offset; land it in another table, with a"
                    " checkpoint of its own"
                )
        if lost:
            records = "record was" if lost == 1 else "records were"
            self.say(f"{lost:,} {records} gone before the run came to it")
        now = self.backlog.reader_ids
        self.checkpoint.note_topic_ids({t: each for t, each in now.items() if not self.backlog.is_anew(t)})
        batch = self.checkpoint.plan(start, end)
        self.checkpoint.note_topic_ids(now)  # later, or the old position would count as the new topic's
        self.backlog.known_ids = now
        return batch

    def unfinished(self) -> Batch | None:
        """Return the batch that a run before left, without the ranges of topics that were made anew since it
        was planned: the next batch begins these topics. Raises DataLoss."""
        batch = self.checkpoint.unfinished()
        if batch is None or self.table.committed(self.checkpoint.id, batch.id):
            return batch
        anew = sorted({topic for topic, *_ in batch.ranges() if self.backlog.is_anew(topic)})
        if not anew:
            return batch
        names = f"{', '.join(anew)} {'was' if len(anew) == 1 else 'were'}"
        sentence = f"batch {batch.id} was not landed before {names} deleted and made anew"
        if self.pipeline.source.fail_on_data_loss:
            raise DataLoss(f"{sentence}: data may be lost; {GOES_ON}")
        self.say(f"{sentence}, and is landed without")
        start = {where: batch.end[where] if where[0] in anew else at for where, at in batch.start.items()}
        return replace(batch, start=start)

    def wait(self, until: float) -> None:
        while not self.stop and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, POLL_S))

    # --- one batch

    def one_batch(self, batch: Batch, started: float) -> None:
        if self.table.committed(self.checkpoint.id, batch.id):
            did: dict[str, Any] = {"offsets": batch.records, "again": True}
        else:
            did = self.attempt(f"batch {batch.id}", lambda: self.work(batch))
        self.settle_letters()
        did["seconds"] = round(time.monotonic() - started, 4)
        did["lag"] = self.backlog.lag(batch.end)
        record = self.checkpoint.done(batch, did)
        self.publish(batch)
        self.metrics.batch({**record, "at": round(time.time(), 3)})
        self.progress.batch(record)

    def work(self, batch: Batch) -> dict[str, Any]:
        """Read and land a batch; return its record for the checkpoint."""
        staging = self.table.staging(self.checkpoint.id)
        ranges = batch.ranges()
        if ranges:
            reports = (
                self.transformed(batch, staging)
                if self.pipeline.transform.sql
                else self.landed(batch, staging)
            )
        else:
            reports = []
        return {
            "offsets": batch.records,
            **outcome(self.commit(self.checkpoint.id, batch.id, reports), reports),
        }

    def commit(self, application: str, batch: int, reports: list[TaskReport]) -> Committed:
        """Commit to the table. If there is a topic for dead letters, they are on their way to it."""
        letters = self.letter_topic(application)
        if letters is not None:
            letters.keep(batch, reports)
        return self.table.commit(application, batch, reports)

    # --- the topic of dead letters

    def letter_topic(self, application: str) -> LetterTopic | None:
        topic = self.pipeline.dlq.topic
        if topic is None:
            return None
        from kafkad.ingest.letter_topic import LetterTopic
        from kafkad.spark.connections import cluster_of

        bootstrap, config = self.pipeline.source.bootstrap or "", self.backlog.options.client_config
        name, once = self.pipeline.name, self.pipeline.dlq.exactly_once
        return LetterTopic(
            self.table, application, name, topic, lambda: cluster_of(bootstrap, config), exactly_once=once
        )

    def settle_letters(self) -> None:
        """Send the dead letters of committed batches, of this run or of one that died, to the topic."""
        topics = [self.letter_topic(name) for name in (self.checkpoint.id, f"{self.checkpoint.id}-stream")]
        for letters in filter(None, topics):
            self.attempt(f"sending dead letters to {letters.topic}", letters.settle)

    def landed(self, batch: Batch, staging: Staging) -> list[TaskReport]:
        if self.pipeline.source.engine == "kafka-jar":
            ends = {(topic, partition): (start, end) for topic, partition, start, end in batch.ranges()}
            function = tasks.land_rows_tasks(ends, self.settings, staging)
            rows = self.kafka_rows(batch).mapInArrow(function, tasks.REPORT_SCHEMA)
            return with_silent(reports_of(rows), batch)
        work = self.work_of(batch, staging)
        return reports_of(self.numbers(work).mapInArrow(tasks.land_tasks(work), tasks.REPORT_SCHEMA))

    def transformed(self, batch: Batch, staging: Staging) -> list[TaskReport]:
        """Run the pipeline's SQL. A batch is read once: records that cannot be decoded are put aside on the
        way."""
        token = staging.new_name()
        schema = spark_schema(tasks.rows_schema(self.settings))
        rows, function, parts = self.reading(batch, staging, token)
        rows.mapInArrow(function, schema).createOrReplaceTempView("input")
        result = accountable(self.spark.sql(self.pipeline.transform.sql or ""))
        written = reports_of(result.mapInArrow(tasks.write_tasks(staging), tasks.REPORT_SCHEMA))
        read = tasks.read_reports(staging, token)
        if unread := [part for name, part in parts.items() if name not in read]:
            left = Batch(
                batch.id,
                {(topic, partition): start for topic, partition, start, _ in itertools.chain(*unread)},
                {(topic, partition): end for topic, partition, _, end in itertools.chain(*unread)},
            )
            token = staging.new_name()
            rows, function, _ = self.reading(left, staging, token)
            reports_of(rows.mapInArrow(tasks.finish(function), tasks.REPORT_SCHEMA))
            read |= {f"{token}-{name}": told for name, told in tasks.read_reports(staging, token).items()}
        return with_silent([*written, *read.values()], batch)

    def reading(
        self, batch: Batch, staging: Staging, token: str
    ) -> tuple[DataFrame, Any, dict[str, list[tuple[str, int, int, int]]]]:
        """Return what Spark maps with which function to the batch's rows; and the parts that report, by
        name."""
        ranges = batch.ranges()
        if self.pipeline.source.engine == "kafka-jar":
            ends = {(topic, partition): (start, end) for topic, partition, start, end in ranges}
            function = tasks.read_rows_tasks(ends, self.settings, staging, token)
            return self.kafka_rows(batch), function, {safe_name(f"{r[0]}-{r[1]}"): [r] for r in ranges}
        work = replace(self.work_of(batch, staging), token=token)
        parts = {str(number): list(part) for number, part in enumerate(work.ranges)}
        return self.numbers(work), tasks.read_tasks(work), parts

    def work_of(self, batch: Batch, staging: Staging) -> tasks.Work:
        shared = self.backlog.tasks(batch.ranges(), self.spark.sparkContext.defaultParallelism)
        return tasks.Work(
            self.backlog.options,
            tuple(map(tuple, shared)),
            self.settings,
            staging,
            topic_ids=dict(self.backlog.known_ids),
        )

    def numbers(self, work: tasks.Work) -> DataFrame:
        return self.spark.range(0, len(work.ranges), 1, len(work.ranges))

    def kafka_rows(self, batch: Batch) -> DataFrame:
        """Read with Spark's own connector, which queries all partitions of its topics."""
        options = source_options(self.pipeline.source, headers=self.settings.bad == "dlq")
        for name in ("subscribe", "subscribePattern", "startingOffsets", "startingTimestamp"):
            options.pop(name, None)
        options.pop("startingOffsetsByTimestampStrategy", None)
        ranges = batch.ranges()
        partitions: dict[str, list[int]] = {}
        for topic, partition, _, _ in ranges:
            partitions.setdefault(topic, []).append(partition)
        options["assign"] = json.dumps(partitions)
        options["startingOffsets"] = offsets_text({(t, p): start for t, p, start, _ in ranges})
        options["endingOffsets"] = offsets_text({(t, p): end for t, p, _, end in ranges})
        return self.spark.read.format("kafka").options(**options).load()

    # --- the table

    def open_table(self) -> Table:
        from kafkad.ingest.table import TableError
        from kafkad.ingest.tables import open_table

        try:
            schema = result_schema(self.pipeline, lambda: self.spark)
            return open_table(self.pipeline.sink, schema, self.pipeline.dlq.path)
        except TableError as refused:
            raise Refused(str(refused)) from None

    # --- helpers

    def attempt(self, what: str, work: Any, again: bool = True) -> Any:
        """Call `work()`, and retry temporary errors until the timeout."""
        deadline = 0.0
        for attempt in itertools.count():
            try:
                return work()
            except (Refused, DataLoss, Busy, Foreign, sessions.NoSpark):
                raise
            except Exception as trouble:
                sentence = told(trouble)
                deadline = deadline or time.monotonic() + self.pipeline.source.retry_for
                pause = RETRY_PAUSES_S[min(attempt, len(RETRY_PAUSES_S) - 1)]
                late = time.monotonic() + pause > deadline
                if late or not again or is_hopeless(trouble) or self.stop:
                    tried = f" after {attempt + 1} attempts" if attempt else ""
                    raise Refused(f"{what} failed{tried}: {sentence}") from trouble
                self.say(f"{what} failed and is tried again: {sentence}")
                self.wait(time.monotonic() + pause)

    def publish(self, batch: Batch) -> None:
        """Commit offsets for lag tools; a broker that refuses them does not stop the run."""
        group = self.pipeline.source.commit_group
        if group is None or self.pipeline.source.log_dir:
            return
        from kafkad.client.offsets import commit_offsets

        try:
            commit_offsets(self.backlog.reader.cluster, group, batch.end)
        except Exception as trouble:
            self.say(f"group {group} does not know of batch {batch.id}: {told(trouble)}")

    def say(self, sentence: str) -> None:
        print(f"kafkad ingest: {sentence}", file=sys.stderr, flush=True)


def outcome(committed: Committed, read: Iterable[TaskReport]) -> dict[str, Any]:
    """Return a batch's record for the checkpoint: what its tasks have read, and the result."""
    read = list(read)
    return {
        "records": sum(each.rows + each.bad for told in read for each in told.covered),
        "rows": committed.rows,
        "bad": committed.bad + sum(told.nulled for told in read),
        "bytes": sum(told.bytes_read for told in read),
        "files": committed.files,
        "file_bytes": committed.bytes,
    }


# --- the parts of a batch


def result_schema(pipeline: Pipeline, spark: Callable[[], SparkSession]) -> pa.Schema:
    """Return the columns that land. Spark is needed if SQL makes them."""
    import pyarrow as pa

    settings = land_settings(pipeline)
    schema = tasks.rows_schema(settings)
    if not pipeline.transform.sql:
        return pa.schema([field for field in schema if field.name != "_key"])
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql.pandas.types import to_arrow_schema

    empty = spark().createDataFrame([], spark_schema(schema))
    empty.createOrReplaceTempView("input")
    try:
        result = spark().sql(pipeline.transform.sql)
    except (AnalysisException, ParseException) as wrong:
        sentence = next(line.strip() for line in str(wrong).splitlines() if line.strip())
        raise Refused(f"[transform] sql: {sentence.rstrip('.')}") from None
    return to_arrow_schema(accountable(result).schema, timezone="UTC")


def accountable(result: DataFrame) -> DataFrame:
    """Return the result of the pipeline's SQL, if its rows have their origin. Raises Refused."""
    lost = [name for name in PROVENANCE if name not in result.columns]
    if lost:
        raise Refused(
            f"[transform] sql loses {', '.join(lost)}: every landed row tells which record it comes from;"
            f" add {', '.join(lost)} to its SELECT"
        )
    return result


def land_settings(pipeline: Pipeline) -> LandSettings:
    """Return the tasks' settings for decoding: with the schema itself, from whatever file or registry. Raises
    ValueError, RegistryError or OSError if the schema is invalid or unavailable.
    """
    from kafkad.ingest.landing import LandSettings
    from kafkad.values.decoder import portable_schema

    decode = pipeline.decode
    if decode.format == "raw":
        return LandSettings(None)
    options = decoder_options(pipeline)
    schema = portable_schema(decode.format, decode.schema or "", options)
    return LandSettings((decode.format, schema, options), decode.bad_records)


def decoder_options(pipeline: Pipeline) -> dict[str, str]:
    """Return [decode] as options of the decoder (values/decoder.py)."""
    decode, topics = pipeline.decode, pipeline.source.topics
    options = {
        "columns": ",".join(decode.columns),
        "schema.registry.url": decode.registry,
        "messageName": decode.message,
        "topic": topics[0] if len(topics) == 1 else None,  # names the registry's subject
    }
    return {name: value for name, value in options.items() if value} | decode.options


def reports_of(rows: DataFrame) -> list[TaskReport]:
    from kafkad.ingest.table import TaskReport

    found = []
    for row in rows.collect():
        if row.report.startswith(tasks.REFUSED):
            raise Refused(row.report.removeprefix(tasks.REFUSED))
        found.append(TaskReport.from_json(row.report))
    return found


def with_silent(reports: list[TaskReport], batch: Batch) -> list[TaskReport]:
    """Add reports for ranges without one: Spark's connector found no record there, so all of it is a hole."""
    from kafkad.ingest.table import Covered, TaskReport

    told = {(each.topic, each.partition) for report in reports for each in report.covered}
    silent = tuple(
        Covered(topic, partition, start, end, 0, 0, end - start, ((start, end),))
        for topic, partition, start, end in batch.ranges()
        if (topic, partition) not in told
    )
    return [*reports, TaskReport(covered=silent)] if silent else reports


def spark_schema(schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def is_hopeless(trouble: Exception) -> bool:
    """Return whether a retry is useless: Spark's analysis of a query, a full disk, or a task's permanent
    error."""
    if isinstance(trouble, OSError) and trouble.errno in tasks.HOPELESS:
        return True
    names = {kind.__name__ for kind in type(trouble).__mro__}
    final = {"AnalysisException", "ParseException", "TableError", "ValueError", "TypeError"}
    return bool(names & final) or any(f"{name}: " in str(trouble) for name in ("BadRecord", "TableError"))


def told(trouble: BaseException) -> str:
    """Extract the message from a stack trace."""
    text = str(trouble).partition("=== Streaming Query ===")[0]  # the plan follows
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if not line.startswith(("at ", "File ", "Traceback", "Caused by", "^"))]
    for line in python:
        if (
            ": " in line
            and line.split(":")[0].replace(".", "").replace("_", "").isalnum()
            and "Exception" not in line
        ):
            name, _, rest = line.partition(": ")
            return (rest if "." in name else line)[:500]  # our own exceptions are complete messages
    return (python[0] if python else type(trouble).__name__)[:500]
