"""What the tests of `kafkad ingest` share: topics full of real records, a run in a process of its own, kills.

`fill` writes records and damages some of them; `Job` is `kafkad ingest run` as a user has it. Its lines of
JSON say which batch is done, and a worker that has a staged file open is in the middle of the next one: so a
test kills there, and not after some seconds. `through_every_kill` is the story of all three kinds of kill.

SOAK: `make soak` runs the same stories on all of the data.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from kafkad.client.cluster import Cluster
from kafkad.client.consumer import READ_COMMITTED, Consumer
from kafkad.client.offsets import LATEST, list_offsets
from tests.clients import wait_until
from tests.resident import kafkad
from tests.sparks import INTERPRETED, SPARK_JVM, prepare_spark

SOAK = os.environ.get("KAFKAD_SOAK") == "1"
JOB_SECONDS = 3000 if SOAK else 240
STORY_SECONDS = 7200 if SOAK else 400  # of a test
SPARK = f"""
[spark]
master = "local[2]"
conf."spark.driver.memory" = "1g"
conf."spark.driver.extraJavaOptions" = "{" ".join(SPARK_JVM)}"
conf."spark.executor.extraJavaOptions" = "{" ".join(SPARK_JVM)}"
{"".join(f'conf."{key}" = "{value}"{chr(10)}' for key, value in INTERPRETED.items())}"""


def fill(
    bootstrap: str,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes]],
    partitions: int,
    bad_every: int = 0,
) -> dict[str, int]:
    """Creates the topic and writes (key, value) records; every `bad_every`th value is cut in its middle. How
    many were written, and how many of them damaged.
    """
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    return produce(bootstrap, topic, records, bad_every)


def produce(
    bootstrap: str, topic: str, records: Iterable[tuple[bytes | None, bytes]], bad_every: int = 0
) -> dict[str, int]:
    """The same for a topic that is there."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", "linger.ms": 20,
                         "queue.buffering.max.messages": 500_000})  # fmt: skip
    counts = {"sent": 0, "bad": 0}
    for key, value in records:
        counts["sent"] += 1
        if bad_every and counts["sent"] % bad_every == 0:
            value = value[: len(value) // 2]
            counts["bad"] += 1
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
        if counts["sent"] % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    return counts


def verified(pipeline: Path) -> list[dict[str, Any]]:
    """`kafkad ingest verify`, which must find the table clean: its partitions."""
    told = json.loads(kafkad("ingest", "verify", str(pipeline), "--json").stdout)
    assert told["clean"] is True
    return told["partitions"]


def run_to_end(pipeline: Path, *arguments: str) -> dict[str, Any]:
    """`kafkad ingest run` in the process of the commands: its summary."""
    lines = kafkad("ingest", "run", str(pipeline), *arguments).stdout.splitlines()
    return json.loads(lines[-1])["summary"]


class Job:
    """`kafkad ingest run` in a process of its own; iterate for its batches, `finish()` for its summary."""

    def __init__(self, pipeline: Path, *arguments: str, command: list[str] | None = None) -> None:
        self.errors = pipeline.with_suffix(".log")
        self.summary: dict[str, Any] = {}
        self.rows = 0
        prepare_spark()
        with open(self.errors, "ab") as errors:
            self.process = subprocess.Popen(
                [*(command or [sys.executable, "-m", "kafkad", "ingest", "run"]), str(pipeline), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                told = json.loads(line)
                if "summary" in told:
                    self.summary = told["summary"]
                else:
                    self.rows += told["rows"]
                    yield told

    def finish(self, code: int = 0) -> dict[str, Any]:
        """Reads on to the end; the summary."""
        for _ in self:
            pass
        ended = self.process.wait(JOB_SECONDS)
        assert ended == code, f"exit code {ended}\n{self.errors.read_text(errors='replace')[-4000:]}"
        return self.summary

    def kill(self) -> None:
        """The driver, with -9, and what is left of its JVM when that does not see it."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        _, left = psutil.wait_procs(family, timeout=10)
        for each in left:
            each.kill()

    def writing_worker(self) -> int:
        """The process id of a Python worker of Spark that is in the middle of a batch: a file that it writes
        is open. Waits for one; asks again and again, since nobody is told when a task opens a file."""
        deadline = time.monotonic() + JOB_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the run ended: {self.errors.read_text()[-4000:]}"
            daemons = [
                each.pid
                for each in psutil.Process(self.process.pid).children(recursive=True)
                if is_daemon(each)
            ]
            until = time.monotonic() + 1
            while daemons and time.monotonic() < until:
                for worker in itertools.chain.from_iterable(map(forked_by, daemons)):
                    if writes(worker):
                        return worker
                time.sleep(0.001)
            time.sleep(0.02)
        raise AssertionError("no Python worker of Spark writes")

    def kill_worker(self) -> int:
        """A Python worker of Spark, with -9, while it writes."""
        worker = self.writing_worker()
        os.kill(worker, signal.SIGKILL)
        return worker


def is_daemon(process: psutil.Process) -> bool:
    """Spark's parent of Python workers, which have its command line."""
    try:
        return "pyspark.daemon" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def forked_by(pid: int) -> list[int]:
    """The process ids of its children."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def writes(pid: int) -> bool:
    """Whether the process has a staged file open."""
    try:
        folder = f"/proc/{pid}/fd"
        return any(os.readlink(f"{folder}/{number}").endswith(".staged") for number in os.listdir(folder))
    except (FileNotFoundError, ProcessLookupError):  # the file, or the process, was closed meanwhile
        return False


def through_every_kill(pipeline: Path, broker: Any) -> dict[str, Any]:
    """Runs a pipeline of five batches or more to its end while the Spark driver, a worker of Spark and the
    broker are killed with -9, each when a batch is half written. The last run's summary.
    """
    with Job(pipeline) as job:
        next(iter(job))
        job.writing_worker()
        job.kill()
    assert job.rows > 0
    with Job(pipeline) as job:
        job.kill_worker()  # in the batch that is done again
        job.writing_worker()  # another one, which does its work once more
        broker.kill()
        broker.restart()
        summary = job.finish()
    assert (summary["ended"], summary["lag"]) == ("done", 0)
    return summary


def landed(table: Path, query: str) -> list[tuple[Any, ...]]:
    """A query of duckdb over the table, which is called `landed` in it."""
    import duckdb

    with duckdb.connect() as connection:
        files = f"read_parquet('{table}/**/*.parquet', hive_partitioning = true, union_by_name = true)"
        connection.execute(f"CREATE VIEW landed AS SELECT * FROM {files}")
        return connection.execute(query).fetchall()


def letters(table: Path) -> int:
    """How many records are in the dead letter queue."""
    import duckdb

    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT count(*) FROM read_parquet('{table}/_dlq/*.dlq')").fetchone()
        assert found is not None
        return int(found[0])


def sent_letters(bootstrap: str, topic: str) -> list[dict[str, bytes]]:
    """The headers of what is in the topic of dead letters, for a reader of committed data."""
    with Cluster(bootstrap) as cluster:
        partitions = dict.fromkeys(cluster.partitions(topic), LATEST)
        ends = list_offsets(cluster, topic, partitions)
        wait_until(lambda: list_offsets(cluster, topic, partitions, READ_COMMITTED) == ends)
        consumer = Consumer(cluster, topic, wait_ms=50, isolation=READ_COMMITTED)
        consumer.assign(dict.fromkeys(partitions, 0))
        rows: list[dict[str, bytes]] = []
        while any(consumer.positions[p] < end for p, end in ends.items()):
            rows += [dict(received.headers) for received in consumer.poll()]
    return rows
