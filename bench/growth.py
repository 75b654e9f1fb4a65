"""How each cost grows: `python -m bench.growth [--jvm] [N]`, a table for docs/benchmarks.md.

Requests about N, 4 N and 16 N topics, to a broker that has as many. Each row tells how long the answer took,
and the worst wait of other clients meanwhile, which ping every worker from a process of their own.

Beware: the first answer after a change is measured, not the best of several; of a linear cost each column is
four times the one before, and less where a fixed part is large."""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kafkad.protocol import codec, messages
from kafkad.testing import Broker
from tests.wire import Wire

NAMES = "grown-{:06}"
SET = 0
TOPIC, BROKER = 2, 4


def requests(first: int, count: int) -> Iterator[tuple[str, Any, int]]:
    """(row, request, version) for the topics up to `count`, of which `first` are there."""
    names = [NAMES.format(i) for i in range(count)]
    create, offsets = messages.CreateTopicsRequest.Topics, messages.ListOffsetsRequest.Topics
    records, described = messages.DeleteRecordsRequest.Topics, messages.DescribeConfigsRequest.Resources
    altered = messages.IncrementalAlterConfigsRequest.Resources
    new = [create(name=name, num_partitions=1, replication_factor=1) for name in names[first:]]
    yield "create topics", messages.CreateTopicsRequest(topics=new, timeout_ms=120_000), 7
    yield "Metadata, first", messages.MetadataRequest(topics=None), 12
    yield "Metadata, again", messages.MetadataRequest(topics=None), 12
    some = [messages.MetadataRequest.Topics(name=name) for name in names[:10]]
    yield "Metadata of ten", messages.MetadataRequest(topics=some), 12
    resources = [
        described(resource_type=TOPIC, resource_name=name, configuration_keys=None) for name in names
    ]
    yield "DescribeConfigs", messages.DescribeConfigsRequest(resources=resources), 4
    change = altered.Configs(name="retention.ms", config_operation=SET, value=str(10**9 + count))
    changes = [altered(resource_type=TOPIC, resource_name=name, configs=[change]) for name in names]
    yield "IncrementalAlterConfigs", messages.IncrementalAlterConfigsRequest(resources=changes), 1
    default = altered.Configs(name="log.retention.ms", config_operation=SET, value=str(10**9 + count))
    broker = altered(resource_type=BROKER, resource_name="", configs=[default])
    yield "a broker's default", messages.IncrementalAlterConfigsRequest(resources=[broker]), 1
    for what, timestamp in (("ListOffsets, ends", -1), ("ListOffsets by time", 5)):
        asked = [offsets.Partitions(partition_index=0, timestamp=timestamp)]
        topics = [offsets(name=name, partitions=asked) for name in names]
        yield what, messages.ListOffsetsRequest(replica_id=-1, topics=topics), 6
    everything = [records.Partitions(partition_index=0, offset=-1)]
    topics = [records(name=name, partitions=everything) for name in names]
    yield "DeleteRecords", messages.DeleteRecordsRequest(topics=topics, timeout_ms=120_000), 2
    yield "DescribeLogDirs", messages.DescribeLogDirsRequest(topics=None), 4


def ping(bootstrap: str, pipe: Connection) -> None:
    wires = [Wire(bootstrap, 300) for _ in range(4)]
    worst = 0.0
    pipe.send("ready")
    while True:
        for wire in wires:
            begun = time.monotonic()
            wire.ask(messages.ApiVersionsRequest(), 0)
            worst = max(worst, time.monotonic() - begun)
        if pipe.poll(0.002):
            pipe.recv()
            pipe.send(worst)
            worst = 0.0


def measure(broker: Any, sizes: list[int]) -> dict[str, list[tuple[float, float]]]:
    """By row and size: seconds until the answer, and of the worst wait of the others."""
    rows: dict[str, list[tuple[float, float]]] = {}
    pipe, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    others = context.Process(target=ping, args=(broker.bootstrap, theirs), daemon=True)
    others.start()
    pipe.recv()

    def act(row: str, request: Any, version: int) -> None:
        pipe.send("reset")
        pipe.recv()
        with Wire(broker.bootstrap, 300) as wire:
            frame = codec.encode_request(request, version, 1, "growth")
            begun = time.monotonic()
            wire.send_frame(frame)
            wire.read_frame()
            taken = time.monotonic() - begun
        pipe.send("tell")
        rows.setdefault(row, []).append((taken, pipe.recv()))

    first = 0
    for size in sizes:
        for row, request, version in requests(first, size):
            act(row, request, version)
        first = size
    names = [NAMES.format(i) for i in range(first)]
    act(f"delete {first:,} topics", messages.DeleteTopicsRequest(topic_names=names, timeout_ms=120_000), 5)
    others.terminate()
    others.join()
    return rows


def table(rows: dict[str, list[tuple[float, float]]], sizes: list[int]) -> str:
    """Milliseconds, the others' worst wait in brackets."""
    lines = ["| topics | " + " | ".join(f"{size:,}" for size in sizes) + " |", "|---|" + "---:|" * len(sizes)]
    for row, figures in rows.items():
        cells = [f"{taken * 1000:,.0f} ({worst * 1000:,.0f})" for taken, worst in figures]
        cells = [""] * (len(sizes) - len(cells)) + cells
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topics", nargs="?", type=int, default=500, help="N; 4 N and 16 N follow")
    parser.add_argument("--jvm", action="store_true", help="ask JVM Kafka")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    sizes = [arguments.topics * factor for factor in (1, 4, 16)]
    with tempfile.TemporaryDirectory() as directory:
        broker: Any = Broker(workers=arguments.workers, timeout=120, data_dir=Path(directory) / "data")
        if arguments.jvm:
            from tests.jvm import JvmKafka

            broker = JvmKafka(Path(directory) / "data")
        with broker:
            print(table(measure(broker, sizes), sizes))
            broker.kill()


if __name__ == "__main__":
    main()
