"""The source in streaming: choose the offsets of each micro-batch.

PySpark makes these calls, all to one long-lived Python process of the driver:

    [prepareForTriggerAvailableNow]  [initialOffset]      the latter only without a checkpoint, and twice
    latestOffset(start, limit)                            start: all offsets before it are committed
    reportLatestOffset  partitions(start, end)  read …    the batch
    commit(end)                                           one batch late; for the last at the next start

After a crash, partitions(start, end) may come first, for the batch that was interrupted. So a batch depends
only on its two offsets, and so do its tasks: an exactly-once sink knows by a task's number which rows it has.
(The size of a log changes, so it does not split ranges here.) Offsets have the format of Spark's own
connector. Limits are shared among partitions, data loss is defined, and new partitions are read from their
beginning as in the connector.

Additional features: maxBytesPerTrigger, estimated by the log's sizes; minOffsetsPerTrigger does not end an
available-now query early (the connector leaves a remainder that is smaller than the minimum); and
`commitGroup` commits offsets to a consumer group for lag tools, in latestOffset(start), because commit comes
late and never for the last batch.

PySpark 4.0 and 4.1 call latestOffset() without start and limit. There, a batch has all available records, so
the options that limit a batch are refused, data loss is detected when a batch is planned, and `commit`
commits to the group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader

from kafkad.client.connection import Unreachable
from kafkad.client.offsets import commit_offsets
from kafkad.protocol.errors import KafkaError
from kafkad.spark import planning, reading
from kafkad.spark.layout import Layout
from kafkad.spark.offsets import OffsetReader, Partitions, as_json, from_json
from kafkad.spark.options import EARLIEST, LATEST, ReadOptions

log = logging.getLogger("kafkad.spark")

try:  # PySpark 4.2
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )  # fmt: skip

    ADMISSION_CONTROL = True
except ImportError:
    ADMISSION_CONTROL = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


PUBLISH_SECONDS = 5.0  # a cluster's first group waits until its coordinator's topic is created

LOSS_FATAL = (
    "some data may have been lost because it is not in Kafka any more: aged out, or its topic was deleted "
    "before it "
    "was processed; a query that goes on in such cases has the option failOnDataLoss=false"
)
LOSS_TOLD = "some data may have been lost; with failOnDataLoss=true the query would fail"


class RefusedReader(DataSourceStreamReader):
    """Raises the error about the options at the first call: PySpark hides exceptions raised while a stream's
    reader is created behind its own error.
    """

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence

    def initialOffset(self) -> dict[str, Any]:
        raise ValueError(self.sentence)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        raise ValueError(self.sentence)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        raise ValueError(self.sentence)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        raise ValueError(self.sentence)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Pickled with each query, so its attributes are plain values."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        if options.log_dir is not None:
            raise ValueError("option logDir is for batch queries: a stream follows a broker")
        limited = (options.offsets_max, options.offsets_min, options.bytes_max)
        if not ADMISSION_CONTROL and any(limit is not None for limit in limited):
            import pyspark

            raise ValueError(
                "options maxOffsetsPerTrigger, minOffsetsPerTrigger and maxBytesPerTrigger need PySpark "
                "4.2 or newer "
                f"(this is {pyspark.__version__}), which tells a source where its batch starts"
            )
        self.options = options
        self.layout = layout
        self._initial: Partitions | None = None
        self._latest: Partitions | None = None
        self._available_now = False
        self._target: Partitions | None = None  # of available-now
        self._triggered_at = 0.0
        self._published: Partitions = {}
        self._topic_ids: dict[str, str] = {}

    # -- offsets

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            offsets = OffsetReader(self.options)
            found = offsets.resolve(self.options.start, offsets.partitions(), starting=True)
            self._initial = offsets.settled(found)
        return as_json(self._initial)

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True

    def getDefaultReadLimit(self) -> Any:
        """PySpark does not support several kinds of limits: return one; latestOffset adds the others."""
        options = self.options
        if options.offsets_max is not None:
            return ReadMaxRows(options.offsets_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        if options.offsets_min is not None:
            return ReadMinRows(options.offsets_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the next batch; `start` if there is nothing to read, or not enough yet."""
        offsets = OffsetReader(self.options)
        known = from_json(start) if start else {}
        if start:
            self._publish(known)
        if self._available_now and self._target is not None:
            latest = self._target
        else:
            latest = self._fetch_latest(offsets, known)
        if self._available_now:
            self._target = latest
        self._latest = latest
        if not latest and start:
            return start
        if not ADMISSION_CONTROL or limit is None or isinstance(limit, ReadAllAvailable):
            return as_json(latest)
        return as_json(self._admitted(offsets, known, latest, limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return as_json(self._latest) if self._latest else None

    def _fetch_latest(self, offsets: OffsetReader, known: Partitions) -> Partitions:
        """Return the ends of all partitions. A broker that is about to follow another may briefly return less
        than what was read already: ask again before treating that as data loss.
        """
        for left in range(max(0, self.options.retries - 1), -1, -1):
            partitions = offsets.partitions(gone_is_loss=bool(known) and not self.options.fail_on_data_loss)
            self._look_for_others(offsets.topic_ids)
            latest = offsets.list(dict.fromkeys(partitions, LATEST))
            fallen = {where for where, end in latest.items() if end < known.get(where, 0)}
            if not fallen or left == 0:
                break
            log.warning(
                "%s: the latest offset is below what was read, asking again", planning.listed(sorted(fallen))
            )
            time.sleep(self.options.retry_pause_s)
        return latest

    def _look_for_others(self, topic_ids: dict[str, str]) -> None:
        """Check for topics that were deleted and created again: their offsets differ, and may even be higher
        by now. Only detected while the query runs: a checkpoint has no room for ids.
        """
        for topic, before in self._topic_ids.items():
            if topic_ids.get(topic, before) != before:
                self._report_loss(f"topic {topic} was deleted and created anew")
        self._topic_ids |= topic_ids

    def _admitted(
        self, offsets: OffsetReader, start: Partitions, latest: Partitions, limit: Any
    ) -> Partitions:
        options = self.options
        earliest = offsets.list(dict.fromkeys(planning.new_partitions(start, latest), EARLIEST))
        counts = planning.backlog(start, latest, earliest)
        least = limit.min_rows if isinstance(limit, ReadMinRows) else options.offsets_min
        if least is not None and not self._available_now:
            now = time.monotonic()
            waited = self._triggered_at and now - self._triggered_at < options.trigger_delay_s
            if waited and sum(counts.values()) < least:
                return start
            self._triggered_at = now
        records_max = limit.max_rows if isinstance(limit, ReadMaxRows) else options.offsets_max
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.bytes_max
        weights = offsets.bytes_per_offset(sorted(counts)) if bytes_max is not None and counts else {}
        if bytes_max is not None and counts and not weights:
            log.warning(
                "option maxBytesPerTrigger has no effect: the brokers do not tell how large their logs are"
            )
        return planning.prorate(
            start, latest, earliest, records_max=records_max, bytes_max=bytes_max, weights=weights
        )

    # -- a batch

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        first, last = from_json(start), from_json(end)
        offsets = OffsetReader(self.options)
        new = planning.new_partitions(first, last)
        earliest: Partitions = {}
        if new:
            there = set(offsets.partitions(gone_is_loss=True))
            earliest = offsets.list({where: EARLIEST for where in new if where in there})
        ranges, losses = planning.ranges_of(first, last, earliest)
        for loss in losses:
            self._report_loss(loss)
        least, most = self.options.partitions_min, self.options.partition_records_max
        pieces = planning.split(ranges, records_max=most, pieces_min=least)
        return reading.tasks(pieces, self._topic_ids, packed=not least and not most)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return reading.read_partition(self.options, self.layout, partition)

    def _report_loss(self, loss: str) -> None:
        if self.options.fail_on_data_loss:
            raise ValueError(f"{loss}: {LOSS_FATAL}")
        log.warning("%s: %s", loss, LOSS_TOLD)

    # -- offsets for lag tools

    def commit(self, end: dict[str, Any]) -> None:
        if not ADMISSION_CONTROL:
            self._publish(from_json(end))

    def _publish(self, done: Partitions) -> None:
        """Send OffsetCommit without a membership, for what changed. If a broker is away, the next batch tries
        again; a group that refuses (it has its own members) ends the query.
        """
        group = self.options.commit_group
        changed = {where: offset for where, offset in done.items() if self._published.get(where) != offset}
        if group is None or not changed:
            return
        cluster = OffsetReader(self.options).cluster
        try:
            cluster.retry(lambda: commit_offsets(cluster, group, changed), PUBLISH_SECONDS)
        except (KafkaError, Unreachable) as trouble:
            cluster.forget()
            if isinstance(trouble, KafkaError) and not trouble.retriable:
                raise ValueError(
                    f"option commitGroup: the offsets of group {group} cannot be committed ({trouble}); "
                    "the group must "
                    "be one without members, which no consumer uses"
                )
            log.warning("the offsets of group %s are published with the next batch: %s", group, trouble)
            return
        self._published |= changed

    def stop(self) -> None:
        """Do nothing: connections belong to this process, and other queries may use them."""
