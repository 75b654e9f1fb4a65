"""Transactions: what a batch in one costs beside a plain one, and how many small ones end in a second.

The clients are in a process of their own (bench/transaction_load.py). One record a transaction is the least
that a transaction can be: its figures are the coordinator's, the markers' and two round trips.

The readers behind aborts read a topic of nothing but aborted transactions, each of a batch of 10 records of
100 B. The transactional ids are empty ones, in a broker that is stopped and started: until it describes them
again."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bench.bounds import (
    COMMITTED,
    COPIES,
    IDEMPOTENT,
    IDS,
    MANY,
    ONE_NEW,
    ONE_OLD,
    ONE_OLD_FRAMES,
    TRANSACTIONAL,
    UNCOMMITTED,
)
from bench.brokers import ENVIRONMENT, READY_SECONDS_MAX, ROOT, Bare, Process, ask
from bench.drive import FETCH_TOPIC
from bench.mixed import CLIENT_MB_S, CLIENT_SECONDS
from bench.running import Bench, Cell
from kafkad.protocol import messages

GROUP = "transactions"
BATCHES_A_TRANSACTION = 1000
RECORDS_A_BATCH = 64


class Small(NamedTuple):
    """Transactions as small as they come. `client`: of bench.transaction_load."""

    name: str
    client: str
    partitions: int
    producers: int = 1


class Batches(NamedTuple):
    name: str
    records_a_transaction: int  # 0: idempotent only


class Copy(NamedTuple):
    """Consume, transform, produce: of what fetch scenarios read."""

    name: str
    records_a_transaction: int


Row = Small | Batches | Copy
ROWS: tuple[Row, ...] = (
    Batches(IDEMPOTENT, 0),
    Batches(TRANSACTIONAL, BATCHES_A_TRANSACTION * RECORDS_A_BATCH),
    Small(ONE_OLD, "librdkafka", 4),
    Small(ONE_OLD_FRAMES, "old_frames", 4),
    Small(ONE_NEW, "frames", 4),
    Small(MANY, "frames", 16, 50),
    Copy(COPIES, 200),
)
READERS = {UNCOMMITTED: 0, COMMITTED: 1}  # isolation levels
ABORT_PARTITIONS, ABORT_PRODUCERS = 4, 50
IDLE_SECONDS = 1.0
ID_PREFIX, IDS_ASKED = "id", 500  # DescribeTransactions of so many finds all partitions of the state


def run_group(bench: Bench) -> None:
    rows = [row for row in ROWS if bench.wanted(row.name)]
    if rows:
        run_rows(bench, rows)
    if any(map(bench.wanted, READERS)):
        readers(bench)


def run_rows(bench: Bench, rows: list[Row]) -> None:
    brokers = [broker for broker in bench.main_fleet() if not isinstance(broker, Bare)]
    for row in rows:  # a JVM that has ended few transactions is slow, and librdkafka waits for a coordinator
        for broker in brokers:
            for _ in range(bench.options.warm):
                bench.say(f"warming {broker.name}: {row.name}")
                one(bench, broker, row)
    bench.rounds(GROUP, [cell(bench, broker, row) for row in rows for broker in brokers])


def cell(bench: Bench, broker: Process, row: Row) -> Cell:
    run: Callable[[], dict[str, float]] = partial(one, bench, broker, row)
    return Cell(row.name, broker, run)


def one(bench: Bench, broker: Process, row: Row) -> dict[str, float]:
    topic = bench.topic()
    partitions = row.partitions if isinstance(row, Small) else 4
    broker.create_topic(topic, partitions)
    cpu = broker.cpu_seconds()
    try:
        if isinstance(row, Batches):
            records = min(bench.options.client_records, int(bench.options.mb_max * 1000))
            with bench.touched(CLIENT_MB_S, CLIENT_SECONDS):
                found = loaded(broker, "batches", topic, records, row.records_a_transaction)
        elif isinstance(row, Copy):
            found = loaded(
                broker, "copy", FETCH_TOPIC, topic, bench.options.seconds, row.records_a_transaction
            )
        else:
            more = [] if row.client == "librdkafka" else [row.producers]
            found = loaded(broker, row.client, topic, partitions, *more, bench.options.seconds)
        cpu = broker.cpu_seconds() - cpu
    finally:
        broker.delete_topic(topic)
    if isinstance(row, Batches):
        return {"MB/s": found["bytes"] / 1e6 / found["seconds"], "CPU s/GB": cpu / (found["bytes"] / 1e9)}
    if isinstance(row, Copy):
        rate, per_record = found["records"] / found["seconds"], cpu / found["records"] * 1e6
        return {"records/s": rate, "commit p50 ms": found["p50_ms"], "CPU us/record": per_record}
    return {
        "transactions/s": found["transactions"] / found["seconds"],
        "commit p50 ms": found["p50_ms"],
        "commit p99 ms": found["p99_ms"],
        "CPU us/transaction": cpu / found["transactions"] * 1e6,
    }


def readers(bench: Bench) -> None:
    """Behind aborts: made once, read in each round at both isolation levels."""
    brokers = [broker for broker in bench.main_fleet() if not isinstance(broker, Bare)]
    topic = bench.topic("aborted")
    for broker in brokers:
        bench.say(f"{broker.name}: {bench.options.aborts:,} aborts")
        broker.create_topic(topic, ABORT_PARTITIONS)
        loaded(broker, "aborts", topic, ABORT_PARTITIONS, ABORT_PRODUCERS, bench.options.aborts)

    def reading(broker: Process, isolation: int) -> dict[str, float]:
        cpu = broker.cpu_seconds()
        found = loaded(broker, "read", topic, ABORT_PARTITIONS, isolation, bench.options.seconds)
        cpu = broker.cpu_seconds() - cpu
        if isolation and not found["aborted"]:
            raise RuntimeError(f"{broker.name} told of no aborted transaction")
        return {"MB/s": found["bytes"] / 1e6 / found["seconds"], "CPU s/GB": cpu / (found["bytes"] / 1e9)}

    cells = [
        Cell(name, broker, partial(reading, broker, isolation))
        for name, isolation in READERS.items()
        for broker in brokers
    ]
    if bench.options.warm:
        for one_cell in cells:
            one_cell.run()
    bench.rounds(GROUP, cells)
    for broker in brokers:
        broker.delete_topic(topic)


def run_ids(bench: Bench) -> None:
    """Transactional ids that a broker finds at its start, and the memory that they take."""
    if not bench.wanted(IDS):
        return
    bench.stop_main_fleet()
    before: dict[str, float] = {}
    with bench.fleet(bench.plain / "ids", warm=False) as brokers:
        for broker in brokers:
            loaded(broker, "ids", ID_PREFIX, 1)
            broker.stop()
            broker.start()
            time.sleep(IDLE_SECONDS)
            before[broker.name] = broker.pss_bytes() / 1e6
            bench.say(f"{broker.name}: {bench.options.transactional_ids:,} transactional ids")
            loaded(broker, "ids", ID_PREFIX, bench.options.transactional_ids)

        def run(broker: Process) -> dict[str, float]:
            stop = broker.stop()
            begun = time.perf_counter()
            broker.start()
            wait_described(broker, bench.options.transactional_ids)
            seconds = time.perf_counter() - begun
            time.sleep(IDLE_SECONDS)
            more = broker.pss_bytes() / 1e6 - before[broker.name]
            return {"ready s": seconds, "stop s": stop, "MB more": more}

        bench.rounds("transactional ids", [Cell(IDS, broker, partial(run, broker)) for broker in brokers])


def wait_described(broker: Process, count: int) -> None:
    names = [f"{ID_PREFIX}-{number}" for number in range(min(count, IDS_ASKED))]
    begun = time.perf_counter()
    while time.perf_counter() - begun < READY_SECONDS_MAX:
        request = messages.DescribeTransactionsRequest(transactional_ids=names)
        states = ask(broker.port, request, 0).transaction_states
        names = [state.transactional_id for state in states if state.error_code]
        if not names:
            return
        time.sleep(0.005)
    raise RuntimeError(f"{broker.name} does not describe {names[0]}")


def loaded(broker: Process, kind: str, topic: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.transaction_load", kind, f"127.0.0.1:{broker.port}", topic]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, cwd=ROOT, env=ENVIRONMENT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{kind}: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
