"""The offsets that a source requests from a cluster, and their form in Spark's checkpoint.

    {"flights": {"0": 4711, "1": 4702}}      the next offset to read, by topic and partition

Options, latestOffset and the checkpoint have this form, which is that of Spark's own connector. `Partitions`
is the same as a flat mapping, (topic, partition) -> offset.

`OffsetReader` is the driver's part of a source. A plan needs one Metadata, and one ListOffsets per timestamp
and leader, for all partitions of all topics. (The protocol does not allow a repeated partition in one
request, so both ends of a batch query are two requests.) With isolation.level=read_committed, the latest
offset is the last stable one. The bytes between two offsets are estimated from DescribeLogDirs, which is
requested once a minute, and only if a plan could be split by bytes.

Beware: one Python process serves all driver calls of a query, and readers are pickled from it. So connections
are in this module's table, never in a reader.
"""

from __future__ import annotations

import builtins
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kafkad.client.cluster import Cluster
from kafkad.client.connection import Connection, Unreachable
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.spark.connections import cluster_of
from kafkad.spark.options import (
    EARLIEST,
    LATEST,
    Bound,
    ReadOptions,
    TopicPartition,
    partition_numbers,
    shown,
)  # fmt: skip

log = logging.getLogger("kafkad.spark")

T = TypeVar("T")
Partitions = dict[TopicPartition, int]
TopicPartitions = list[TopicPartition]
Questions = list[Mapping[TopicPartition, int]]  # for ListOffsets: a timestamp by partition

NO_OFFSET = -1  # ListOffsets: no record is that late
SIZES_SECONDS = 60.0  # how long an estimate of bytes per offset is used
REQUEST_TIMEOUT_S = 30.0
API_TIMEOUT_S = 60.0  # default.api.timeout.ms: how long a known broker may be away
FIRST_TIMEOUT_S = 15.0  # for a broker never reached: a wrong address should be reported sooner

# -- the JSON of offsets -----------------------------------------------------------------------------------


def as_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    document: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        document.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return document


def from_json(document: Any) -> Partitions:
    """Parse offsets. Raises ValueError for anything that is neither our format nor that of Spark's
    connector."""
    try:
        return partition_numbers(document)
    except (ValueError, AttributeError):
        raise ValueError(
            f"the checkpoint's offset {json.dumps(document)[:200]} is not of format kafkad or kafka, which "
            'is {"topic":{"0":23}}'
        )


# -- the driver's connections ------------------------------------------------------------------------------


class Driver:
    """What this process knows of the brokers of one job, between the calls of PySpark."""

    def __init__(self, options: ReadOptions) -> None:
        self.cluster = open_cluster(options)
        self.reached = False
        self.measured_at = 0.0
        self.weights: dict[TopicPartition, float] = {}  # bytes per offset; 0: unknown


_drivers: dict[tuple[int, str, tuple[tuple[str, str], ...]], Driver] = {}


def driver_of(options: ReadOptions) -> Driver:
    key = (os.getpid(), options.bootstrap, options.client)
    if key not in _drivers:
        _drivers[key] = Driver(options)
    return _drivers[key]


def open_cluster(options: ReadOptions) -> Cluster:
    """Open connections for the caller. Raises ValueError for invalid settings."""
    config = options.client_config
    timeout = int(config.get("request.timeout.ms", REQUEST_TIMEOUT_S * 1000)) / 1000
    try:
        return cluster_of(options.bootstrap, config, timeout)
    except ValueError as wrong:
        raise ValueError(f"a kafka.* option is wrong: {wrong}")


class OffsetReader:
    """Finds partitions, and their first and last offsets. Raises KafkaError and Unreachable after
    `fetchOffset.numRetries` retries of temporary errors."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.driver = driver_of(options)
        self.cluster = self.driver.cluster
        self.topic_ids: dict[str, str] = {}  # of the topics that `partitions` found, if brokers know ids
        self.is_stopped: Callable[[], bool] = lambda: False  # whether to give up at the next error

    # -- which partitions

    def partitions(self, *, gone_is_loss: bool = False) -> TopicPartitions:
        """Return the partitions of subscribe, subscribePattern or assign, now. Raises ValueError for a topic
        or partition that does not exist; with `gone_is_loss` it is left out, for a stream that reports it as
        data loss itself.
        """
        options = self.options
        if options.pattern is not None:
            response = self._retried(lambda: self._metadata(None))
            wanted = re.compile(options.pattern)
            return sorted(
                (topic.name, p.partition_index)
                for topic in response.topics
                if not topic.error_code and not internal(topic) and wanted.search(topic.name)
                for p in topic.partitions
            )
        if options.assign is not None:
            topics = sorted({topic for topic, _ in options.assign})
        else:
            topics = sorted(options.subscribe or ())
        response = self._retried(lambda: self._metadata(topics))
        found: TopicPartitions = []
        for topic in response.topics:
            if topic.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION and gone_is_loss:
                continue
            if topic.error_code:
                raise self._no_such(topic)
            found += [(topic.name, p.partition_index) for p in topic.partitions]
        if options.assign is None:
            return sorted(found)
        missing = [where for where in options.assign if where not in set(found)]
        if missing and not gone_is_loss:
            raise ValueError(f"option assign names {shown(missing[0])}, which does not exist")
        return sorted(set(options.assign) & set(found))

    def _metadata(self, topics: builtins.list[str] | None) -> Any:
        response = self.cluster.refresh(topics)
        for topic in response.topics:
            code = topic.error_code
            if code in errors.RETRIABLE and code != errors.UNKNOWN_TOPIC_OR_PARTITION:
                raise KafkaError(code, topic.name)
            if code == errors.NONE and any(topic.topic_id):
                self.topic_ids[topic.name] = bytes(topic.topic_id).hex()
        return response

    def _no_such(self, topic: Any) -> Exception:
        if topic.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION:
            option = "assign" if self.options.assign is not None else "subscribe"
            return ValueError(
                f"option {option} names topic {topic.name}, which does not exist on {self.brokers}"
            )
        return KafkaError(topic.error_code, f"topic {topic.name}")

    @property
    def brokers(self) -> str:
        return self.options.bootstrap

    # -- first and last offsets

    def list(self, asked: Mapping[TopicPartition, int]) -> Partitions:
        """Return the offset for each partition's timestamp, LATEST or EARLIEST; NO_OFFSET if no record is
        that late. One request to each broker that leads some of them.
        """
        if not asked:
            return {}
        return self._retried(lambda: self._list(asked))

    def list_both(self, partitions: Iterable[TopicPartition]) -> tuple[Partitions, Partitions]:
        """Return (earliest, latest), requested concurrently."""
        partitions = [*partitions]
        if not partitions:
            return {}, {}

        def both() -> tuple[Partitions, Partitions]:
            earliest, latest = self._list_all(
                [dict.fromkeys(partitions, EARLIEST), dict.fromkeys(partitions, LATEST)]
            )
            return earliest, latest

        return self._retried(both)

    def _list(self, asked: Mapping[TopicPartition, int]) -> Partitions:
        return self._list_all([asked])[0]

    def _list_all(self, wanted: Questions) -> builtins.list[Partitions]:
        """Send all requests before reading the first answer. An error of one leaves answers unread, so the
        connections must be dropped before a retry."""
        under_way: builtins.list[tuple[Connection, int]] = []
        struct = messages.ListOffsetsRequest.Topics
        isolation = int(self.options.read_committed)
        for number, asked in enumerate(wanted):
            for connection, partitions in self._by_leader(asked):
                topics: dict[str, builtins.list[Any]] = {}
                for topic, p in partitions:
                    row = struct.Partitions(partition_index=p, timestamp=asked[topic, p])
                    topics.setdefault(topic, []).append(row)
                version = connection.version_for(messages.ListOffsetsRequest)
                request = messages.ListOffsetsRequest(
                    replica_id=-1,
                    topics=[struct(name=name, partitions=rows) for name, rows in topics.items()],
                )
                if version >= 2:
                    request.isolation_level = isolation
                connection.send(request, version)
                under_way.append((connection, number))
        found: builtins.list[Partitions] = [{} for _ in wanted]
        refused: KafkaError | None = None
        for connection, number in under_way:
            for topic in connection.receive().topics:
                for answer in topic.partitions:
                    where = (topic.name, answer.partition_index)
                    if answer.error_code:
                        refused = refused or KafkaError(answer.error_code, shown(where))
                    found[number][where] = answer.offset
        if refused is not None:
            raise refused
        return found

    def _by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> builtins.list[tuple[Connection, TopicPartitions]]:
        grouped: dict[int, tuple[Connection, TopicPartitions]] = {}
        for topic, partition in partitions:
            connection = self.cluster.leader(topic, partition)
            grouped.setdefault(id(connection), (connection, []))[1].append((topic, partition))
        return [*grouped.values()]

    # -- options

    def resolve(self, bound: Bound, partitions: TopicPartitions, *, starting: bool) -> Partitions:
        """Return the offsets that an option means for these partitions; EARLIEST and LATEST stay as they
        are."""
        if bound.word is not None:
            return dict.fromkeys(partitions, bound.word)
        if bound.at is not None:
            return self._same(bound, dict(bound.at), partitions)
        if bound.times is not None:
            times = self._same(bound, dict(bound.times), partitions)
        else:
            assert bound.time is not None
            times = dict.fromkeys(partitions, bound.time)
        # Kafka gives timestamps below 0 special meanings, and Spark's connector passes them on
        found = self.list(times)
        for where, offset in found.items():
            if offset != NO_OFFSET:
                continue
            if starting and not self.options.latest_on_no_match:
                raise ValueError(
                    f"option {bound.option}: {shown(where)} has no record at or after {times[where]}; with "
                    "startingOffsetsByTimestampStrategy=latest reading starts at its end"
                )
            found[where] = LATEST
        return found

    @staticmethod
    def _same(bound: Bound, named: Partitions, partitions: TopicPartitions) -> Partitions:
        missing = sorted(set(partitions) - set(named))
        if missing:
            raise ValueError(
                f"option {bound.option} must name all partitions, and {shown(missing[0])} is missing "
                "(-1 stands for latest, -2 for earliest)"
            )
        extra = sorted(set(named) - set(partitions))
        if extra:
            raise ValueError(
                f"option {bound.option} names {shown(extra[0])}, which is not among what is read"
            )
        return named

    def settled(self, offsets: Partitions) -> Partitions:
        """Replace EARLIEST and LATEST by offsets, with one request per broker."""
        words = {where: offset for where, offset in offsets.items() if offset < 0}
        return offsets | self.list(words)

    # -- sizes

    def bytes_per_offset(self, partitions: TopicPartitions) -> dict[TopicPartition, float]:
        """Return the bytes per offset in the log, as stored (compressed), by partition. Partitions without
        information are missing: the estimate need not be right, only fast.
        """
        driver = self.driver
        known = driver.weights
        stale = time.monotonic() - driver.measured_at > SIZES_SECONDS
        if stale or any(where not in known for where in partitions):
            try:
                known = dict.fromkeys(partitions, 0.0) | self._retried(lambda: self._measure(partitions))
            except (KafkaError, Unreachable) as trouble:
                log.warning("reads are not split by bytes, since the brokers do not tell them: %s", trouble)
                known = dict.fromkeys(partitions, 0.0)
            driver.weights, driver.measured_at = known, time.monotonic()
        return {where: known[where] for where in partitions if known.get(where)}

    def _measure(self, partitions: TopicPartitions) -> dict[TopicPartition, float]:
        earliest, latest = self.list_both(partitions)
        sizes: Partitions = {}
        topics: dict[str, builtins.list[int]] = {}
        for topic, p in partitions:
            topics.setdefault(topic, []).append(p)
        request = messages.DescribeLogDirsRequest
        asked = [request.Topics(topic=name, partitions=numbers) for name, numbers in topics.items()]
        for connection in {id(c): c for c, _ in self._by_leader(partitions)}.values():
            response = connection.ask(request(topics=asked), connection.version_for(request))
            if response.error_code:  # perhaps DESCRIBE of the cluster is not allowed
                raise KafkaError(response.error_code, "DescribeLogDirs")
            for directory in response.results:
                if directory.error_code:
                    raise KafkaError(directory.error_code, "DescribeLogDirs")
                for told in directory.topics:
                    for p in told.partitions:
                        where = (told.name, p.partition_index)
                        if not p.is_future_key:
                            sizes[where] = max(p.partition_size, sizes.get(where, 0))
        return {
            where: size / (latest[where] - earliest[where])
            for where, size in sizes.items()
            if size > 0 and latest.get(where, 0) > earliest.get(where, 0)
        }

    # -- temporary errors

    def _retried(self, attempt: Callable[[], T]) -> T:
        """Retry temporary KafkaErrors `fetchOffset.numRetries` times; wait for a broker that is away."""
        given = self.options.client_config.get("default.api.timeout.ms")
        patience = int(given) / 1000 if given else API_TIMEOUT_S if self.driver.reached else FIRST_TIMEOUT_S
        deadline = time.monotonic() + patience
        left, lost = self.options.retries, False
        logged = ""  # a broker that is away would repeat the same warning every second
        while True:
            try:
                done = attempt()
                self.driver.reached = True
                return done
            except KafkaError as trouble:
                self.cluster.forget()
                if left <= 0 or not trouble.retriable or self.is_stopped():
                    raise
                left -= 1
                logged = _log_again(trouble, logged)
            except Unreachable as trouble:
                self.cluster.forget()
                if self.driver.reached and not lost:
                    lost = True  # brokers close idle connections
                    continue
                if time.monotonic() > deadline or self.is_stopped():
                    raise
                logged = _log_again(trouble, logged)
            except BaseException:
                self.cluster.forget()  # there may be unread answers
                raise
            time.sleep(self.options.retry_pause_s)


def _log_again(trouble: Exception, logged: str) -> str:
    """Log that offsets are requested again, unless this was the last message. Return the message."""
    message = str(trouble)
    if message != logged:
        log.warning("asking for offsets again: %s", message)
    return message


def internal(topic: Any) -> bool:
    return bool(getattr(topic, "is_internal", False))
