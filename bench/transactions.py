"""Transactions: what a batch in one costs beside a plain one, and how many small ones end in a second.

The clients are in a process of their own (bench/transaction_load.py). One record a transaction is the least
that a transaction can be: its figures are the coordinator's, the markers' and two round trips."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bench.bounds import IDEMPOTENT, MANY, ONE_NEW, ONE_OLD, TRANSACTIONAL
from bench.brokers import ENVIRONMENT, ROOT, Bare, Process
from bench.running import Bench, Cell

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


ROWS: tuple[Small | Batches, ...] = (
    Batches(IDEMPOTENT, 0),
    Batches(TRANSACTIONAL, BATCHES_A_TRANSACTION * RECORDS_A_BATCH),
    Small(ONE_OLD, "librdkafka", 4),
    Small(ONE_NEW, "frames", 4),
    Small(MANY, "frames", 16, 50),
)


def run_group(bench: Bench) -> None:
    rows = [row for row in ROWS if bench.wanted(row.name)]
    if not rows:
        return
    brokers = [broker for broker in bench.main_fleet() if not isinstance(broker, Bare)]
    for row in rows:  # a JVM that has ended few transactions is slow, and librdkafka waits for a coordinator
        for broker in brokers:
            for _ in range(bench.options.warm):
                bench.say(f"warming {broker.name}: {row.name}")
                one(bench, broker, row)
    bench.rounds(GROUP, [cell(bench, broker, row) for row in rows for broker in brokers])


def cell(bench: Bench, broker: Process, row: Small | Batches) -> Cell:
    run: Callable[[], dict[str, float]] = partial(one, bench, broker, row)
    return Cell(row.name, broker, run)


def one(bench: Bench, broker: Process, row: Small | Batches) -> dict[str, float]:
    topic = bench.topic()
    partitions = row.partitions if isinstance(row, Small) else 4
    broker.create_topic(topic, partitions)
    cpu = broker.cpu_seconds()
    try:
        if isinstance(row, Batches):
            records = min(bench.options.client_records, int(bench.options.mb_max * 1000))
            found = loaded(broker, "batches", topic, records, row.records_a_transaction)
        else:
            more = [row.producers] if row.client == "frames" else []
            found = loaded(broker, row.client, topic, partitions, *more, bench.options.seconds)
        cpu = broker.cpu_seconds() - cpu
    finally:
        broker.delete_topic(topic)
    if isinstance(row, Batches):
        return {"MB/s": found["bytes"] / 1e6 / found["seconds"], "CPU s/GB": cpu / (found["bytes"] / 1e9)}
    return {
        "transactions/s": found["transactions"] / found["seconds"],
        "commit p50 ms": found["p50_ms"],
        "commit p99 ms": found["p99_ms"],
        "CPU us/transaction": cpu / found["transactions"] * 1e6,
    }


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
