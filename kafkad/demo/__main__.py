"""`make demo`: the flights of New York through kafkad and Spark into Parquet, proved row by row, twice.

First run: a broker is started, the flights are replayed into a topic of several partitions, `kafkad ingest`
lands them by a pipeline file, and the table, read as any tool reads Parquet, is compared with the input: rows
and sums by month, offsets by partition, and every row; `kafkad ingest verify` compares it with the broker.
Second run: the same into a new topic and a new table, but the broker is killed with -9 while the job reads,
and started again over its data; the job goes on, and the table must be the same.

`run` is one run; tests/integration/test_spark_demo.py calls it too. The broker is anything with `bootstrap`,
`kill()` and `restart()`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import click
import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from kafkad.demo import flights, landed

SUMMED = ["distance", "air_time", "dep_delay", "arr_delay"]
KILL_AT = 0.4  # of the rows: then the job has committed batches, and has batches to go
JOB_TIMEOUT_S = 600
RESUMES_MAX = 5


class ABroker(Protocol):
    @property
    def bootstrap(self) -> str: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...


@dataclass
class Outcome:
    """What a run did, and what its proof rests on."""

    rows: int
    bytes_sent: int = 0
    written: dict[int, int] = field(default_factory=dict)  # rows by Kafka partition
    by_month: list[dict[str, int]] = field(default_factory=list)
    replay_s: float = 0.0
    ingest_s: float = 0.0
    killed_at_rows: int | None = None
    back_after_s: float = 0.0
    job_starts: int = 0


Report = Callable[[int], None]  # told how many more rows are done


def replay(
    broker: ABroker, topic: str, table: pa.Table, partitions: int, outcome: Outcome, report: Report
) -> None:
    """Writes the flights as JSON keyed by tail number; no offset that comes back may leave a hole."""
    from confluent_kafka import Message, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    outcome.written = dict.fromkeys(range(partitions), 0)
    started = time.monotonic()

    def on_delivery(error: object, message: Message) -> None:
        if error is not None:
            raise landed.Unproven(f"a flight was not taken: {error}")
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset == outcome.written[partition], "offsets have no holes"
        outcome.written[partition] += 1

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,  # and with it acks=all
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
        }
    )
    done = 0
    for key, value in flights.records(table):
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=on_delivery)
                break
            except BufferError:  # its queue is full: let it work
                producer.poll(0.1)
        outcome.bytes_sent += len(value) + len(key or b"")
        done += 1
        if done % 1000 == 0:
            producer.poll(0)
            report(1000)
    if left := producer.flush(60):
        raise landed.Unproven(f"{left} flights were not acknowledged within a minute")
    report(done % 1000)
    outcome.replay_s = time.monotonic() - started


PIPELINE = """\
name = "{topic}"
[source]
bootstrap = "{bootstrap}"
topics = "{topic}"
max_rows = {batch_rows}
[decode]
format = "json"
schema = "{schema}"
[sink]
path = "table"
partition_by = "month"
[spark]
master = "local[2]"
conf."spark.driver.memory" = "1g"
"""


def ingest(broker: ABroker, topic: str, place: Path, outcome: Outcome, kill: bool, report: Report) -> Path:
    """Runs `kafkad ingest` in a process of its own, again if the broker's death ends it; returns the
    table."""
    pipeline = place / "pipeline.toml"
    pipeline.write_text(
        PIPELINE.format(
            topic=topic,
            bootstrap=broker.bootstrap,
            batch_rows=max(1000, outcome.rows // 8),
            schema=flights.SPARK_SCHEMA,
        )
    )
    command = [sys.executable, "-m", "kafkad", "ingest", "run", str(pipeline)]
    log = place / "job.log"
    started = time.monotonic()
    done, killed = 0, not kill
    while True:
        outcome.job_starts += 1
        with open(log, "ab") as errors:
            job = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert job.stdout is not None
        try:
            for line in job.stdout:
                if not line.startswith('{"batch"'):
                    continue
                rows = json.loads(line)["rows"]
                done += rows
                report(rows)
                if not killed and done >= outcome.rows * KILL_AT:
                    killed = True
                    outcome.killed_at_rows = done
                    broker.kill()
                    time.sleep(1)  # long enough for the job to notice
                    back = time.monotonic()
                    broker.restart()
                    outcome.back_after_s = time.monotonic() - back
            code = job.wait(JOB_TIMEOUT_S)
        finally:
            if job.poll() is None:
                job.kill()
        if code == 0:
            break
        if not kill or outcome.job_starts > RESUMES_MAX:
            tail = log.read_text(errors="replace")[-3000:]
            raise landed.Unproven(f"kafkad ingest ended with {code}\n{tail}")
    outcome.ingest_s = time.monotonic() - started
    audit = subprocess.run(
        [sys.executable, "-m", "kafkad", "ingest", "verify", str(pipeline)], capture_output=True, text=True
    )
    if audit.returncode:
        raise landed.Unproven(f"kafkad ingest verify says: {audit.stderr}")
    return place / "table"


def prove(table: Path, sent: pa.Table, outcome: Outcome) -> None:
    """Compares the landed table with the input. Raises Unproven."""
    rows = landed.read(table, sent.schema)
    landed.prove_offsets(rows, outcome.written)
    there, wanted = (landed.sums(each, "month", SUMMED).to_pylist() for each in (rows, sent))
    if there != wanted:
        raise landed.Unproven(f"rows and sums by month differ: {there} landed, {wanted} sent")
    landed.prove_equal(rows, sent)
    outcome.by_month = there


def run(
    broker: ABroker,
    topic: str,
    sent: pa.Table,
    place: Path,
    *,
    partitions: int = 4,
    kill: bool = False,
    replayed: Report = lambda rows: None,
    ingested: Report = lambda rows: None,
) -> Outcome:
    """One run of the story, proved. Raises Unproven."""
    place.mkdir(parents=True, exist_ok=True)
    outcome = Outcome(rows=sent.num_rows)
    replay(broker, topic, sent, partitions, outcome, replayed)
    table = ingest(broker, topic, place, outcome, kill, ingested)
    prove(table, sent, outcome)
    if kill and outcome.killed_at_rows is None:
        raise landed.Unproven("the job was done before the broker could be killed in its middle")
    return outcome


def show(console: Console, outcomes: list[Outcome]) -> None:
    months = Table(title="Landed, by month (equal to the input in both runs)", title_justify="left")
    for name in ("month", "rows", *SUMMED):
        months.add_column(name, justify="right")
    for row in outcomes[0].by_month:
        months.add_row(*(f"{row[name]:,}" for name in ("month", "rows", *SUMMED)))
    totals = {name: sum(row[name] for row in outcomes[0].by_month) for name in ("rows", *SUMMED)}
    months.add_section()
    months.add_row("all", *(f"{totals[name]:,}" for name in ("rows", *SUMMED)))
    console.print(months)

    runs = Table(title="The two runs", title_justify="left")
    runs.add_column("")
    runs.add_column("undisturbed", justify="right")
    runs.add_column("kill -9 in the middle", justify="right")
    lines: list[tuple[str, Callable[[Outcome], str]]] = [
        ("rows sent and landed", lambda o: f"{o.rows:,}"),
        ("JSON sent", lambda o: f"{o.bytes_sent / 1e6:,.1f} MB"),
        ("offsets by partition", lambda o: ", ".join(f"0-{count - 1:,}" for count in o.written.values())),
        ("holes, doubles", lambda o: "0, 0"),
        ("every row equal", lambda o: "yes"),
        ("replay", lambda o: f"{o.replay_s:.1f} s, {o.rows / o.replay_s:,.0f} rows/s"),
        ("ingest, with Spark's start", lambda o: f"{o.ingest_s:.1f} s, {o.rows / o.ingest_s:,.0f} rows/s"),
        ("broker killed after", lambda o: "-" if o.killed_at_rows is None else f"{o.killed_at_rows:,} rows"),
        ("ready again within", lambda o: "-" if o.killed_at_rows is None else f"{o.back_after_s:.2f} s"),
        ("starts of the job", lambda o: str(o.job_starts)),
    ]
    for title, text in lines:
        runs.add_row(title, *(text(outcome) for outcome in outcomes))
    console.print(runs)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", type=int, help="How many flights; all 336,776 unless given.")
@click.option("--partitions", default=4, show_default=True)
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Where to leave the tables; else they are deleted."
)
def main(rows: int | None, partitions: int, keep: Path | None) -> None:
    """Replay real flights through kafkad, ingest them with Spark, kill the broker on the way, prove it
    all."""
    from kafkad.testing import Broker

    console = Console()
    with tempfile.TemporaryDirectory(prefix="kafkad-demo-") as scratch:
        place = keep or Path(scratch)
        sent = flights.load(rows)
        started = time.monotonic()
        with (
            Broker() as broker,
            Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
            ) as progress,
        ):
            console.print(f"kafkad is ready on {broker.bootstrap} after {time.monotonic() - started:.2f} s")
            outcomes = []
            for number, kill in enumerate((False, True), start=1):
                told = "with a kill -9" if kill else ""
                replaying = progress.add_task(f"run {number}: replay", total=sent.num_rows)
                ingesting = progress.add_task(f"run {number}: Spark {told}", total=sent.num_rows, start=False)

                def replayed(rows: int, task: TaskID = replaying, following: TaskID = ingesting) -> None:
                    progress.advance(task, rows)
                    if progress.tasks[task].finished:
                        progress.start_task(following)

                def ingested(rows: int, task: TaskID = ingesting) -> None:
                    progress.advance(task, rows)

                try:
                    outcomes.append(
                        run(
                            broker,
                            f"flights-{number}",
                            sent,
                            place / f"run-{number}",
                            partitions=partitions,
                            kill=kill,
                            replayed=replayed,
                            ingested=ingested,
                        )
                    )
                except landed.Unproven as trouble:
                    console.print(f"[bold red]Not proved:[/] {trouble}")
                    sys.exit(1)
        show(console, outcomes)
        console.print(
            f"[bold green]Proved:[/] {sent.num_rows:,} flights sent and landed, in both runs the same:"
            " none lost, none doubled, none changed."
        )


if __name__ == "__main__":
    main()
