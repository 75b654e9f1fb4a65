"""Runs with [dedup]: Spark keeps the state over batches, which has the keys that were seen.

    format("kafkad") as a stream -> decoded by tasks.read -> view `input` -> [transform] sql
      -> watermark on _timestamp -> dropDuplicatesWithinWatermark(keys) -> foreachBatch -> the table's writer

Offsets and state are in Spark's checkpoint (`spark/` within ours). It replays an unfinished batch with its
number, and the table knows which numbers it has. Our checkpoint only follows, so that `status`, `verify` and
a pipeline that drops [dedup] later know the position; a first run with [dedup] begins at this position.

Beware: the watermark is the newest _timestamp seen, minus [dedup] watermark. Spark drops later rows, because
their keys are no longer in the state. They are counted (`late`). If the partitions of a backlog are far apart
in time, the watermark must be at least as long. Bad records are set aside by the tasks that decode: they skip
deduplication, and a topic is read once.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from kafkad.ingest import tasks
from kafkad.ingest.backlog import Backlog, offsets_text, source_options
from kafkad.ingest.checkpoint import Offsets
from kafkad.ingest.run import (
    RETRY_PAUSES_S,
    Refused,
    Run,
    RunResult,
    accountable,
    outcome,
    place_of,
    reports_of,
    spark_schema,
    told,
)  # fmt: skip
from kafkad.ingest.table import TaskReport
from kafkad.spark.offsets import from_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POLL_S = 0.1
PASSING = ("Python worker failed to connect back", "Python worker exited unexpectedly", "CANNOT_OPEN_SOCKET")


class StreamRun(Run):
    """A run whose batches come from Spark's Structured Streaming."""

    def to_end(self) -> RunResult:
        self.application = f"{self.checkpoint.id}-stream"
        self.backlog = Backlog(self.pipeline)
        self.backlog.known_ids = self.checkpoint.topic_ids()
        self.table = self.open_table()
        for sentence in self.table.recover(self.application):
            self.say(sentence)
        self.written: dict[int, dict[str, Any]] = {}
        self.trouble: BaseException | None = None
        self.check_table()
        self.settle_letters()
        self.begin()
        self.check_topics()
        self.progress.doing("starting Spark")
        trouble = self.watch(self.attempt("starting Spark", self.start))
        if trouble is not None and not self.stop:
            raise trouble if isinstance(trouble, Refused) else Refused(told(trouble))
        why = self.stop.signal.name if self.stop.signal else "done"
        lag = self.backlog.lag(self.checkpoint.position())
        return RunResult(why, self.progress.end(why, lag, place_of(self.pipeline)))

    def check_topics(self) -> None:
        """Raise if a topic was deleted and made anew: Spark's checkpoint has its offsets, and no ids."""
        anew = sorted({topic for topic, _ in self.checkpoint.position() if self.backlog.is_anew(topic)})
        if anew:
            raise Refused(
                f"{', '.join(anew)} {'was' if len(anew) == 1 else 'were'} deleted and made anew: records are"
                " told by topic, partition and offset; land it in another table, with a checkpoint of its own"
            )
        self.checkpoint.note_topic_ids(self.backlog.reader_ids)

    def watch(self, query: Any) -> BaseException | None:
        """Watch the query until it ends; return what ended it. A query that failed for lack of a Python
        worker (killed, or too slow to start) is restarted from Spark's checkpoint, a few times between two
        batches.
        """
        self.progress.doing()
        seen, failed = -1, 0
        while True:
            active = query.isActive  # before the progress is read, so that its end is not missed
            for progress in query.recentProgress:
                if progress["batchId"] > seen:
                    seen, failed = progress["batchId"], 0
                    self.follow(progress)
            if not active:
                trouble = self.trouble or query.exception()
                if self.stop or failed == len(RETRY_PAUSES_S) or not passes(trouble):
                    return trouble
                self.say(f"the stream ended and is taken up again: {told(trouble)}")
                self.wait(time.monotonic() + RETRY_PAUSES_S[failed])
                failed += 1
                self.trouble = None
                query = self.attempt("taking up the stream", self.start)
            elif self.stop:
                query.stop()  # the next run repeats a batch that this interrupts
            time.sleep(POLL_S)

    # --- the query

    def start(self) -> Any:
        dedup = self.pipeline.dedup
        rows = self.stream_rows()
        result = rows
        if self.pipeline.transform.sql:
            rows.createOrReplaceTempView("input")
            result = accountable(self.spark.sql(self.pipeline.transform.sql))
        elif self.settings.decoder is not None:
            result = rows.drop("_key")
        missing = [key for key in dedup.keys if key not in result.columns]
        if missing:
            raise Refused(
                f"[dedup] keys names {missing[0]}, which the rows do not have: {', '.join(result.columns)}"
            )
        watermark = f"{int((dedup.watermark or 0) * 1000)} milliseconds"
        unique = result.withWatermark("_timestamp", watermark).dropDuplicatesWithinWatermark(list(dedup.keys))
        writer = (
            unique.writeStream.queryName(self.pipeline.name)
            .foreachBatch(self.write)
            .option("checkpointLocation", str(self.checkpoint.path / "spark"))
        )
        interval = self.pipeline.trigger.interval
        if interval is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(interval * 1000)} milliseconds").start()

    def stream_rows(self) -> DataFrame:
        """Return the columns of tasks.rows_schema. The source returns records unchanged; the tasks that
        decode them count them and put bad ones aside.
        """
        source = self.pipeline.source
        options = source_options(source, headers=self.settings.bad == "dlq")
        for name in ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestampStrategy"):
            options.pop(name, None)
        options["startingOffsets"] = offsets_text(self.position_of_all())
        if source.max_rows:
            options["maxOffsetsPerTrigger"] = str(source.max_rows)
        if source.engine != "kafka-jar":
            from kafkad.spark import register

            register(self.spark)
            if source.max_bytes:
                options["maxBytesPerTrigger"] = str(source.max_bytes)
            if source.commit_group:
                options["commitGroup"] = source.commit_group
        engine = "kafka" if source.engine == "kafka-jar" else "kafkad"
        fetched = self.spark.readStream.format(engine).options(**options).load()
        function = tasks.read_stream_tasks(self.settings, self.table.staging(self.application))
        return fetched.mapInArrow(function, spark_schema(tasks.rows_schema(self.settings)))

    def position_of_all(self) -> Offsets:
        """Return the position of every partition. Only a first run of the stream calls it."""
        position = self.checkpoint.position()
        return {where: position.get(where, self.backlog.earliest[where]) for where in self.backlog.latest}

    # --- a batch

    def write(self, rows: DataFrame, number: int) -> None:
        """Write a batch. Spark calls this in its own thread; an exception ends the query."""
        try:
            self.written[number] = self.written_of(rows, number)
        except BaseException as trouble:
            self.trouble = trouble
            raise

    def written_of(self, rows: DataFrame, number: int) -> dict[str, Any]:
        if self.table.committed(self.application, number):
            return {"again": True}
        staging = self.table.staging(self.application)
        reports = reports_of(rows.mapInArrow(tasks.write_tasks(staging), tasks.REPORT_SCHEMA))
        read = tasks.read_reports(staging).values()
        reports += [TaskReport(told.files) for told in read]
        committed = self.commit(self.application, number, reports)
        self.settle_letters()
        return outcome(committed, read)

    def follow(self, progress: Any) -> None:
        """Record in our checkpoint what Spark's checkpoint has done."""
        if not progress["numInputRows"]:
            return
        document = progress["sources"][0]["endOffset"]
        end = from_json(document if isinstance(document, dict) else json.loads(document))
        late = sum(operator.get("numRowsDroppedByWatermark", 0) for operator in progress["stateOperators"])
        if late:
            self.say(f"{late:,} rows came later than [dedup] watermark and were dropped")
        batch = self.checkpoint.plan(self.checkpoint.position(), end)
        did = {
            "offsets": batch.records,
            "records": batch.records,
            **self.written.pop(progress["batchId"], {}),
            "late": late,
            "seconds": round(progress["durationMs"].get("triggerExecution", 0) / 1000, 4),
            "lag": self.backlog.lag(end),
        }
        record = self.checkpoint.done(batch, did)
        self.metrics.batch({**record, "at": round(time.time(), 3)})
        self.progress.batch(record)


def passes(trouble: BaseException | None) -> bool:
    """Return whether a stream that ended with this error may succeed in another attempt."""
    return trouble is not None and any(sign in str(trouble) for sign in PASSING)
