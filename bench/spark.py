"""Spark beside the brokers: the source `kafkad` against Spark's own connector, on kafkad and on JVM Kafka.

    python -m bench.spark --check                             everything but Avro, and the bounds
    python -m bench.spark --shapes raw,json,avro              with Avro (tools/fetch_jars.py spark-avro)
    python -m bench.spark --rounds 3 --records 1000000 --shapes json --sinks noop
    python -m bench.spark --report --check                    what the last run said

Method. The flights of New York (19 columns) as JSON and as Avro, over and over up to --records, in four
partitions, in both brokers, on a tmpfs. One Spark, local[2], on the same cores as the broker at work. A job
reads them and writes to `noop` (which drops rows once they are made) or to Parquet on a tmpfs; `raw` are the
record's own columns, `json` and `avro` the 19 typed ones with partition and offset. Each job runs once before
anything counts. A round runs every job once, so drift of the machine hits all; a figure is the median over
the rounds. MB are of record values. CPU seconds a GB are of *all* processes: the broker at work, the JVM of
Spark, its Python workers, and this driver.

How many. A job costs some tenths of a second whatever it reads, and rates are to be compared, not that: so
each job reads as much as takes it some seconds. That is all --records for format("kafkad") to noop, for
segment files and for `kafkad ingest`, and one --part th for Spark's connector, and for both to Parquet by
Spark's sink, which are slower by about as much. (With 1 M flights, from files and through the broker looked
equal.) The default keeps the run under 20 minutes on two cores.

Readers. "spark-sql-kafka" is Spark's connector with from_json or from_avro (FAILFAST: both sides must find a
bad record), once as it comes and, to noop, once with larger polls; "kafkad" is format("kafkad"), no jar;
"segment files" is the same with logDir, which reads the broker's directory, and is compared with "kafkad" on
the same broker; "kafkad ingest" lands the table itself, without a row in the JVM.

Avro. from_avro is in a jar of its own; without .cache/jars/spark-avro its cells fail, and are told.

Micro-batches: a stream of many small ones, what one takes (triggerExecution), median over a query.
Both settings that `kafkad ingest` and our docs name (Unix-domain sockets to Python workers, plain files for
the checkpoint) are on for all; --plain leaves them out.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from rich.console import Console

from bench import report, running
from bench.brokers import Jvm, Kafkad, Process
from bench.figures import medians
from bench.memory import tmpfs
from bench.spark_report import (
    CONNECTOR,
    INGEST,
    OURS,
    READERS,
    SEGMENTS,
    TUNED,
    Results,
    check,
    markdown,
    plot,
    table,
)
from kafkad.demo import flights

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(".cache/bench")
JARS = [ROOT / ".cache" / "jars" / name for name in ("spark-sql-kafka", "spark-avro")]
SHAPES, SINKS = ("raw", "json", "avro"), ("noop", "parquet")
SINKS_OF = {TUNED: ("noop",), SEGMENTS: ("noop",), INGEST: ("parquet",)}  # of the others: both
LARGER_POLLS = {"kafka.max.poll.records": 20_000, "kafka.max.partition.fetch.bytes": 8 << 20}
PARTITIONS = 4
SMALL_BATCHES, SMALL_ROWS = 60, 40  # micro-batches, and the rows of each
SETTLE_SECONDS_MAX = 60.0  # high watermarks are checkpointed every 5 s
SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass":
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
}  # fmt: skip
AVRO_SCHEMA = {
    "type": "record",
    "name": "flight",
    "fields": [
        *({"name": n, "type": ["null", "int"], "default": None} for n in flights.INTEGERS),
        *({"name": n, "type": ["null", "string"], "default": None} for n in flights.STRINGS),
        {"name": "time_hour", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}],
         "default": None},
    ],
}  # fmt: skip


class Job(NamedTuple):
    reader: str
    shape: str
    sink: str

    @property
    def scenario(self) -> str:
        return f"{self.shape} to {self.sink}"

    @property
    def topic(self) -> str:
        return "avro" if self.shape == "avro" else "json"

    @property
    def reads_all(self) -> bool:
        """Else a part of the records: it is that much slower."""
        return self.reader in (SEGMENTS, INGEST) or (self.reader == OURS and self.sink == "noop")


class Bench:
    """Two brokers with the same records, one Spark, and what was measured."""

    def __init__(self, options: argparse.Namespace, where: Path, console: Console) -> None:
        self.options, self.where, self.console = options, where, console
        self.value_bytes: dict[str, dict[int, int]] = {}  # topic -> of so many records
        self.brokers: list[Process] = [Kafkad(where / "kafkad", options.workers)]
        if options.kafka != "none":
            self.brokers.append(Jvm(where / "jvm", options.kafka))
        self.spark: Any = None
        self.made = 0

    # -- the scene

    def start(self) -> None:
        for broker in self.brokers:
            broker.start()
        table = flights.load(self.options.records)
        for topic, values in (
            ("json", [value for _, value in flights.records(table)]),
            *([("avro", list(as_avro(table)))] if "avro" in self.options.shapes else []),
        ):
            self.fill(topic, values, self.options.records)
            self.value_bytes[topic] = {
                count: bytes_of(values, count) for count in (self.options.records, self.part)
            }
        self.fill("small", [b"%d" % n for n in range(SMALL_BATCHES * SMALL_ROWS)], SMALL_BATCHES * SMALL_ROWS)
        if SEGMENTS in self.options.readers:
            for broker in self.brokers:
                self.settle(broker)
        self.spark = make_spark(self.options)

    @property
    def part(self) -> int:
        """Records that the slow jobs read: the first ones, as many of each partition."""
        return max(self.options.records // self.options.part // PARTITIONS, 1) * PARTITIONS

    def fill(self, topic: str, values: list[bytes], count: int) -> None:
        """The values over and over, turn about in the partitions of every broker."""
        from confluent_kafka import Producer

        for broker in self.brokers:
            broker.create_topic(topic, PARTITIONS)
            producer = Producer(
                {"bootstrap.servers": f"127.0.0.1:{broker.port}", "linger.ms": 20, "batch.size": 256 << 10,
                 "compression.type": self.options.codec, "queue.buffering.max.messages": 500_000}
            )  # fmt: skip
            for n, value in zip(range(count), itertools.cycle(values), strict=False):
                while True:
                    try:
                        producer.produce(topic, value, partition=n % PARTITIONS)
                        break
                    except BufferError:
                        producer.poll(0.1)
                if n % 10_000 == 0:
                    producer.poll(0)
            assert producer.flush(120) == 0

    def settle(self, broker: Process) -> None:
        """Until its high watermarks are checkpointed, below which segment files are read."""
        from kafkad.spark.options import read_options
        from kafkad.spark.segment_scan import DirectoryOffsets

        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        for topic in self.value_bytes:
            told = read_options({"logDir": str(broker.directory), "topic": topic}, streaming=False)
            while True:
                offsets = DirectoryOffsets(told)
                if sum(offsets.list_both(offsets.partitions())[1].values()) == self.options.records:
                    break
                assert time.monotonic() < deadline, f"{broker.name} does not checkpoint the end of {topic}"
                time.sleep(0.2)

    def stop(self) -> None:
        for broker in self.brokers:  # first: a Spark that is interrupted may not stop cleanly
            broker.kill()
        if self.spark is not None:
            self.spark.stop()

    # -- jobs

    def frame(self, job: Job, broker: Process) -> Any:
        ours = job.reader in (OURS, SEGMENTS)
        reader = self.spark.read.format("kafkad" if ours else "kafka")
        if job.reader == SEGMENTS:
            reader = reader.option("logDir", str(broker.directory))
        else:
            reader = reader.option("kafka.bootstrap.servers", f"127.0.0.1:{broker.port}")
        reader = reader.option("subscribe", job.topic)
        if not job.reads_all:
            ends = dict.fromkeys(map(str, range(PARTITIONS)), self.part // PARTITIONS)
            reader = reader.option("endingOffsets", json.dumps({job.topic: ends}))
        if job.reader == TUNED:
            reader = reader.options(**LARGER_POLLS)
        if job.shape == "raw":
            return reader.load()
        names = [*flights.ARROW_SCHEMA.names, "partition", "offset"]
        if ours:
            schema = flights.SPARK_SCHEMA if job.shape == "json" else json.dumps(AVRO_SCHEMA)
            reader = reader.option("valueFormat", job.shape).option("valueSchema", schema)
            return reader.option("columns", ",".join(names)).load()
        from pyspark.sql.functions import col, from_json

        if job.shape == "json":
            row = from_json(col("value").cast("string"), flights.SPARK_SCHEMA, {"mode": "FAILFAST"})
        else:
            from pyspark.sql.avro.functions import from_avro

            row = from_avro(col("value"), json.dumps(AVRO_SCHEMA), {"mode": "FAILFAST"})
        return reader.load().select(row.alias("row"), "partition", "offset").select("row.*", *names[-2:])

    def run(self, job: Job, broker: Process) -> dict[str, float]:
        records = self.options.records if job.reads_all else self.part
        target = self.where / f"table-{self.made}"
        self.made += 1
        frame = None if job.reader == INGEST else self.frame(job, broker)
        before, began = self.cpu_seconds(broker), time.perf_counter()
        if frame is None:
            self.ingest(job, broker, target)
        elif job.sink == "noop":
            frame.write.format("noop").mode("overwrite").save()
        else:
            frame.write.parquet(str(target))
        seconds, cpu = time.perf_counter() - began, self.cpu_seconds(broker) - before
        if job.sink == "parquet":
            assert (found := parquet_rows(target)) == records, f"{found} rows landed: {job}"
            shutil.rmtree(target)
        megabytes = self.value_bytes[job.topic][records] / 1e6
        return {
            "rows/s": records / seconds,
            "MB/s": megabytes / seconds,
            "CPU s/GB": cpu / (megabytes / 1000),
        }

    def ingest(self, job: Job, broker: Process, target: Path) -> None:
        """A pipeline run with the Spark that is there."""
        from kafkad.ingest.checkpoint import Checkpoint
        from kafkad.ingest.pipeline_file import load
        from kafkad.ingest.progress import Progress
        from kafkad.ingest.run import Run, Stop, checkpoint_path

        decode = f'[decode]\nformat = "{job.shape}"\n' if job.shape != "raw" else ""
        if job.shape == "json":
            decode += f'schema = "{flights.SPARK_SCHEMA}"\n'
        elif job.shape == "avro":
            (self.where / "flight.avsc").write_text(json.dumps(AVRO_SCHEMA))
            decode += f'schema = "{self.where / "flight.avsc"}"\n'
        file = self.where / "pipeline.toml"
        file.write_text(
            f'[source]\nbootstrap = "127.0.0.1:{broker.port}"\n'
            f'topics = ["{job.topic}"]\n{decode}'
            f'[sink]\npath = "{target}"\ncompression = "snappy"\n[spark]\nmaster = "local[2]"\n'
        )
        pipeline = load(file, os.environ)
        with Checkpoint(checkpoint_path(pipeline), pipeline.name) as checkpoint, Stop() as stop:
            Run(pipeline, checkpoint, Progress(pipeline.name, io.StringIO()), stop).to_end()

    def micro_batches(self, reader: str, broker: Process) -> dict[str, float]:
        checkpoint = self.where / f"checkpoint-{self.made}"
        self.made += 1
        stream = self.spark.readStream.format("kafkad" if reader == OURS else "kafka")
        stream = stream.option("kafka.bootstrap.servers", f"127.0.0.1:{broker.port}")
        stream = stream.option("subscribe", "small").option("startingOffsets", "earliest")
        stream = stream.option("maxOffsetsPerTrigger", SMALL_ROWS)
        writer = stream.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        before = self.cpu_seconds(broker)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        cpu = self.cpu_seconds(broker) - before
        told = [json.loads(progress.json) for progress in query.recentProgress]
        took = sorted(each["durationMs"]["triggerExecution"] for each in told if each["numInputRows"])
        assert len(took) >= SMALL_BATCHES * 2 // 3, f"{len(took)} batches"
        return {"ms a batch": took[len(took) // 2], "CPU ms a batch": cpu / len(took) * 1000}

    # -- costs

    def cpu_seconds(self, broker: Process) -> float:
        """Of this process and all below it but the brokers that are not at work; also of the dead ones."""
        idle = {p.pid for other in self.brokers if other is not broker for p in other.tree()}
        me = psutil.Process()
        total = 0.0
        for process in (me, *me.children(recursive=True)):
            if process.pid not in idle:
                try:
                    total += sum(process.cpu_times()[:4])
                except psutil.NoSuchProcess:
                    pass
        return total


def bytes_of(values: list[bytes], count: int) -> int:
    """Of the first `count` of the values, over and over."""
    whole, rest = divmod(count, len(values))
    return whole * sum(map(len, values)) + sum(map(len, values[:rest]))


def as_avro(table: Any) -> Iterable[bytes]:
    import fastavro

    schema = fastavro.parse_schema(AVRO_SCHEMA)
    for batch in table.to_batches(max_chunksize=flights.CHUNK_ROWS):
        for flight in batch.to_pylist():
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, flight)
            yield out.getvalue()


def parquet_rows(where: Path) -> int:
    from pyarrow import parquet

    hidden = ("_", ".")
    files = [
        path for path in where.rglob("*.parquet")
        if not any(part.startswith(hidden) for part in path.relative_to(where).parts)
    ]  # fmt: skip
    return sum(parquet.read_metadata(path).num_rows for path in files)


def make_spark(options: argparse.Namespace) -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    jars = [path for where in options.jars or JARS for path in sorted(where.glob("*.jar"))]
    builder: Any = SparkSession.builder
    for key, value in {
        "spark.master": "local[2]",
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.memory": options.memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        **({} if options.plain else SETTINGS),
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


# -- a run


def jobs(options: argparse.Namespace) -> list[Job]:
    return [
        Job(reader, shape, sink)
        for shape in options.shapes
        for sink in options.sinks
        for reader in options.readers
        if sink in SINKS_OF.get(reader, SINKS)
    ]


Cells = list[tuple[str, str, Callable[[], dict[str, float]]]]  # scenario, "reader on broker", a run of it


def cells_of(bench: Bench) -> Cells:
    cells: Cells = []
    for broker in bench.brokers:
        for job in jobs(bench.options):
            name = f"{job.reader} on {broker.name}"
            cells.append((job.scenario, name, partial(bench.run, job, broker)))
        if bench.options.micro:
            for reader in (CONNECTOR, OURS):
                name = f"{reader} on {broker.name}"
                cells.append(("micro-batches", name, partial(bench.micro_batches, reader, broker)))
    return cells


def run(bench: Bench, cells: Cells) -> tuple[Results, list[str]]:
    failures: list[str] = []
    rounds: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(bench.options.rounds + 1):  # the first warms
        for scenario, name, measure in cells:
            if f"{scenario}, {name}" in failures:
                continue
            try:
                got = measure()
            except Exception as error:
                failures.append(f"{scenario}, {name}")
                bench.console.print(f"failed: {scenario}, {name}: {str(error)[:600]}", markup=False)
                continue
            told = ", ".join(f"{figure} {value:,.3g}" for figure, value in got.items())
            bench.console.print(f"{number or 'warm'}  {scenario}  {name}: {told}", highlight=False)
            if number:
                rounds.setdefault((scenario, name), []).append(got)
    results: Results = {}
    for (scenario, name), figures in rounds.items():
        results.setdefault(scenario, {})[name] = medians(figures)
    return results, failures


def listed(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        asked = tuple(part.strip() for part in text.split(";" if ";" in text else ",") if part.strip())
        if unknown := [part for part in asked if part not in known]:
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}; there are: {'; '.join(known)}")
        return asked

    return parse


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add(
        "--records",
        type=int,
        default=5_388_416,
        help="in each topic; default: %(default)s, 16 years' flights",
    )
    add("--part", type=int, default=4, help="the slow jobs read one of so many parts; 1: all read all")
    add("--rounds", type=int, default=5)
    add("--shapes", type=listed(SHAPES), default=("raw", "json"))
    add("--sinks", type=listed(SINKS), default=SINKS)
    add("--readers", type=listed(READERS), default=READERS, help="separated by ;")
    add("--no-micro", dest="micro", action="store_false", help="without the micro-batches")
    add("--codec", default="none", help="of the records: none, gzip, snappy, lz4, zstd")
    add("--kafka", default="4.3.1", help="a version of JVM Kafka, or none")
    add("--workers", type=int, default=1, help="of kafkad")
    add("--memory", default="2g", help="of Spark's JVM")
    add("--plain", action="store_true", help="Spark as it comes, without our two settings")
    add("--jars", type=Path, action="append", help="directories; default: those of .cache/jars")
    add("--json", type=Path, default=CACHE / "spark.json")
    add("--plot", type=Path, default=CACHE / "spark", help="writes PLOT.png and PLOT.svg")
    add("--report", action="store_true", help="run nothing: table and plot of the JSON file")
    add("--check", action="store_true", help="say which bounds are met; exit 1 when one is not")
    add("--markdown", action="store_true", help="print the table as Markdown, too")
    return parser


def run_group(whole: running.Bench) -> None:
    """As a group of `python -m bench`: with its rounds, its first count of workers and its first Kafka, the
    rest as it comes."""
    options = arguments().parse_args([])
    options.rounds, options.workers = whole.options.rounds, whole.options.workers[0]
    options.kafka = next((k.partition(":")[0] for k in whole.options.kafka), "none")
    bench = Bench(options, whole.plain / "spark", whole.console)
    cells = [cell for cell in cells_of(bench) if whole.wanted(cell[0])]
    if not cells:
        return
    bench.where.mkdir()
    try:
        bench.start()
        whole.results["spark"], failures = run(bench, cells)
    except Exception as error:  # no Java, no jar: the other groups go on
        failures = [f"{type(error).__name__}: {error}"]
    finally:
        bench.stop()
        shutil.rmtree(bench.where, ignore_errors=True)
    whole.failures += [f"spark: {failure}" for failure in failures]


def main() -> int:
    options = arguments().parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140)
    failures: list[str] = []
    if not options.report:
        for ending in (signal.SIGTERM, signal.SIGHUP):  # no broker stays behind
            signal.signal(ending, lambda number, _: sys.exit(128 + number))
        where = tmpfs()
        bench = Bench(options, where, console)
        try:
            bench.start()
            results, failures = run(bench, cells_of(bench))
        finally:
            bench.stop()
            shutil.rmtree(where, ignore_errors=True)
        told = {key: value if isinstance(value, int | str | tuple) else str(value)
                for key, value in vars(options).items()}  # fmt: skip
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(
            json.dumps({"options": told, "value bytes": bench.value_bytes, "results": results}, indent=1)
        )
    stored = json.loads(options.json.read_text())
    console.print(table(stored["results"]))
    if options.markdown:
        print(markdown(stored["results"]))
    for path in plot(stored["results"], options.plot):
        console.print(f"written to {path}")
    if options.check:
        verdicts = check(stored["results"])
        console.print(report.verdict_table(verdicts))
        console.print(report.totals(verdicts))
        return int(bool(failures) or any(verdict.met is False for verdict in verdicts))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
