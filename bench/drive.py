"""One run of a load against one broker, and its figures."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from bench.batches import compressed
from bench.brokers import Process
from bench.clients import LOADS
from bench.figures import figures
from bench.native import load
from bench.scenarios import Fetch, Mixed, Produce

FETCH_TOPIC = "fetched"
LONG_POLL_MS = 100
PRIMING_VALUE_SIZE = 5000  # above index.interval.bytes: the second batch makes the first index entry
PRIMING_BATCH_BYTES = 5070
DRAIN_SECONDS_MAX = 120


def timed(broker: Process, **options: Any) -> dict[str, float]:
    before = broker.cpu_seconds()
    told = load(**{"port": broker.port, **options})
    return figures(told, broker.cpu_seconds() - before)


def produce_options(row: Produce) -> dict[str, Any]:
    options: dict[str, Any] = {
        "partitions": row.partitions,
        "producers": row.connections,
        "in_flight": row.in_flight,
        "records": row.records,
        "value_size": row.value_size,
        "acks": row.acks,
        "rate": row.rate_mb_per_s,
        "keyed": int(row.keyed),
        "batches": row.batches,
    }
    if row.codec:
        options["batch_file"] = compressed(row.codec, row.records, row.value_size)
    return options


def run_produce(
    broker: Process,
    row: Produce,
    topic: str,
    *,
    seconds: float,
    mb_max: float,
    configs: dict[str, str] | None = None,
    touched: Callable[[], AbstractContextManager[None]] = nullcontext,
    before_delete: Callable[[], dict[str, float]] = dict,
    **more: Any,
) -> dict[str, float]:
    """Into a topic of its own, which is deleted afterwards. `touched` is the context of the load,
    `before_delete` gives further figures; `more` are further options of load.c.
    """
    broker.create_topic(topic, row.partitions, configs)
    prime(broker, topic, row.partitions)
    try:
        options = {"seconds": seconds, "mb_max": mb_max, **produce_options(row), **more}
        with touched():
            figure = timed(broker, topic=topic, **options)
        figure |= before_delete()
    finally:
        broker.delete_topic(topic)
    if row.acks == 0:  # only the last request of a connection was answered
        figure = {name: value for name, value in figure.items() if not name.endswith(" ms")}
    if row.codec:
        figure["records/s"] = figure["requests/s"] * row.batches * row.records
        figure["CPU us/record"] = figure["CPU us/request"] / row.batches / row.records
    return figure


def prime(broker: Process, topic: str, partitions: int) -> None:
    """Two batches to each partition: on a tmpfs of huge pages the first byte of a file, and a partition has
    a log and two indexes, costs the zeroing of 2 MB, which is no part of a steady load.
    """
    load(
        port=broker.port, topic=topic, partitions=partitions, producers=1, records=1,
        value_size=PRIMING_VALUE_SIZE, seconds=60, mb_max=2 * partitions * PRIMING_BATCH_BYTES / 1e6,
    )  # fmt: skip


def fill(broker: Process, topic: str, partitions: int, megabytes: float, *, create: bool = True) -> None:
    """64 KB batches of 1 KB records, evenly over the partitions."""
    if create:
        broker.create_topic(topic, partitions)
    # one producer keeps them even; at the end the same number of MB is in each
    load(
        port=broker.port, topic=topic, partitions=partitions, producers=1, in_flight=5,
        records=64, value_size=1000, seconds=600, mb_max=megabytes,
    )  # fmt: skip


def run_fetch(broker: Process, row: Fetch, topic: str, *, seconds: float, **more: Any) -> dict[str, float]:
    return timed(
        broker, topic=topic, partitions=row.partitions, consumers=row.connections,
        max_bytes=row.max_bytes, seconds=seconds, **more,
    )  # fmt: skip


def run_mixed(broker: Process, row: Mixed, topic: str, *, seconds: float, mb_max: float) -> dict[str, float]:
    broker.create_topic(topic, row.partitions)
    prime(broker, topic, row.partitions)
    try:
        if row.backlog_mb:
            fill(broker, topic, row.partitions, min(row.backlog_mb, mb_max / 2), create=False)
        return timed(broker, topic=topic, **mixed_options(row, seconds=seconds, mb_max=mb_max))
    finally:
        broker.delete_topic(topic)


def mixed_options(row: Mixed, *, seconds: float, mb_max: float) -> dict[str, Any]:
    return {
        "partitions": row.partitions,
        "producers": row.producers,
        "consumers": row.consumers,
        "in_flight": row.in_flight,
        "records": row.records,
        "value_size": row.value_size,
        "rate": row.rate_mb_per_s,
        "shared": int(row.shared),
        "fetch_all": 1,
        "max_wait_ms": LONG_POLL_MS,
        "drain": int(row.backlog_mb > 0),
        "stamp": int(row.backlog_mb == 0),
        "seconds": DRAIN_SECONDS_MAX if row.backlog_mb else seconds,
        "mb_max": mb_max,
    }


def run_client(broker: Process, name: str, topic: str, records: int) -> dict[str, float]:
    before = broker.cpu_seconds()
    told = LOADS[name](broker, topic, records, 1000)
    return figures(told, broker.cpu_seconds() - before)
