"""The log cleaner: how fast it compacts, and what a producer beside it notices.

A topic is filled while nothing cleans it, and then becomes a compacted one. The time is from that change
until the checkpoint of the cleaner has passed everything but the active segment; MB are those of the segments
that it read. One record in eight survives. The broker looks for work every 100 ms; its other keys are the
defaults (one thread, a buffer of 128 MB)."""

import random
import socket
import threading
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.bounds import BESIDE_CLEANER, CLEAN_COMPRESSED, CLEAN_LARGE, CLEAN_SMALL, HELD_ALONE
from bench.brokers import Process, ask
from bench.drive import run_produce
from bench.running import Bench, Cell
from bench.scenarios import PRODUCE
from kafkad.protocol import codec, compression, messages
from kafkad.protocol.records import Record, build_batch

GROUP = "cleaner"
BACKOFF_MS = 100
BATCH_BYTES = 64_000  # of values
TIMES = 8  # that a key is written
SEGMENTS = 8
CLEANED_MAX_S = 600.0
HELD = next(row for row in PRODUCE if row.rate_mb_per_s)
CHECKPOINT = "cleaner-offset-checkpoint"


class Row(NamedTuple):
    name: str
    value_size: int
    codec: str = "none"


ROWS = (
    Row(CLEAN_SMALL, 100),
    Row(CLEAN_LARGE, 1000),
    *(Row(name, 1000, name_of) for name_of, name in CLEAN_COMPRESSED.items()),
)


def run_group(bench: Bench) -> None:
    rows = [row for row in ROWS if bench.wanted(row.name)]
    beside = any(map(bench.wanted, (HELD_ALONE, BESIDE_CLEANER)))
    if not rows and not beside:
        return
    bench.stop_main_fleet()
    overrides = {"log.cleaner.backoff.ms": str(BACKOFF_MS)}
    with bench.fleet(bench.plain / "cleaner", overrides) as brokers:
        filled = {row: batches_of(row, bench.options.clean_mb) for row in (*rows, ROWS[1])}
        cells = [
            Cell(row.name, broker, partial(clean, bench, broker, filled[row]))
            for row in rows
            for broker in brokers
        ]
        cells += [
            Cell(name, broker, partial(held, bench, broker, filled[ROWS[1]], is_beside))
            for name, is_beside in ((HELD_ALONE, False), (BESIDE_CLEANER, True))
            for broker in brokers
        ]
        if bench.options.warm:
            for cell in cells:
                bench.say(f"warming {cell.broker.name}: {cell.scenario}")
                cell.run()
        bench.rounds(GROUP, cells)


def batches_of(row: Row, megabytes: float) -> list[bytes]:
    """All different ones; a topic is filled by writing them TIMES times."""
    rng = random.Random(7)
    words = [rng.randbytes(6).hex()[: rng.randrange(3, 12)] for _ in range(400)]
    texts = [" ".join(rng.choices(words, k=200)).encode()[: row.value_size] for _ in range(64)]
    per_batch = BATCH_BYTES // row.value_size
    count = max(1, int(megabytes * 1e6 / TIMES / BATCH_BYTES))
    now_ms = int(time.time() * 1000)
    return [
        bytes(
            build_batch(
                [
                    Record(b"key-%010d" % (number * per_batch + n), texts[n % len(texts)], timestamp=now_ms)
                    for n in range(per_batch)
                ],
                compression=compression.NAMES.index(row.codec),
            )
        )
        for number in range(count)
    ]


def filled_topic(broker: Process, topic: str, batches: list[bytes]) -> None:
    total = TIMES * sum(map(len, batches))
    segment = max(1 << 20, total // SEGMENTS)
    configs = {
        "cleanup.policy": "delete", "segment.bytes": str(segment), "min.cleanable.dirty.ratio": "0.01",
    }  # fmt: skip
    broker.create_topic(topic, 1, configs)
    cls = messages.ProduceRequest.TopicData
    frames = []
    for batch in batches:
        part = cls.PartitionData(index=0, records=batch)
        request = messages.ProduceRequest(
            acks=1, timeout_ms=30_000, topic_data=[cls(name=topic, partition_data=[part])]
        )
        frame = codec.encode_request(request, 7, 1, "bench")
        frames.append(len(frame).to_bytes(4, "big") + frame)
    with socket.create_connection(("127.0.0.1", broker.port)) as to:
        for _ in range(TIMES):
            for frame in frames:
                to.sendall(frame)
                size = int.from_bytes(to.recv(4, socket.MSG_WAITALL), "big")
                answer = codec.decode_response(
                    messages.ProduceResponse, 7, to.recv(size, socket.MSG_WAITALL)
                )[1]
                assert answer.responses[0].partition_responses[0].error_code == 0, answer


def segments_of(broker: Process, topic: str) -> list[Path]:
    """In order; the last one is the active one."""
    return sorted((broker.directory / f"{topic}-0").glob("*.log"))


def compact(broker: Process, topic: str) -> None:
    cls = messages.IncrementalAlterConfigsRequest
    policy = cls.Resources.Configs(name="cleanup.policy", config_operation=0, value="compact")
    request = cls(resources=[cls.Resources(resource_type=2, resource_name=topic, configs=[policy])])
    told = ask(broker.port, request, 0)
    assert told.responses[0].error_code == 0, told


def wait_cleaned(broker: Process, topic: str, end: int) -> float:
    """Until the checkpoint of the cleaner is there: `time.perf_counter()` of that moment."""
    until = time.perf_counter() + CLEANED_MAX_S
    while time.perf_counter() < until:
        for place in broker.directory.glob(CHECKPOINT):
            try:
                lines = place.read_text().splitlines()
            except FileNotFoundError:  # it is being exchanged
                continue
            found = [int(line.split()[2]) for line in lines[2:] if line.split()[:2] == [topic, "0"]]
            if found and found[0] >= end:
                return time.perf_counter()
        time.sleep(0.005)
    raise RuntimeError(f"{broker.name} did not clean {topic} within {CLEANED_MAX_S:.0f} s")


def clean(bench: Bench, broker: Process, batches: list[bytes]) -> dict[str, float]:
    topic = bench.topic("cleaned")
    filled_topic(broker, topic, batches)
    try:
        *dirty, active = segments_of(broker, topic)
        before = sum(place.stat().st_size for place in dirty)
        cpu, begun = broker.cpu_seconds(), time.perf_counter()
        compact(broker, topic)
        took = wait_cleaned(broker, topic, int(active.stem)) - begun
        cpu = broker.cpu_seconds() - cpu
        left = sum(place.stat().st_size for place in segments_of(broker, topic)[:-1])
        assert left < before / 2, f"{left} of {before} bytes are left"
    finally:
        broker.delete_topic(topic)
    return {"MB/s": before / 1e6 / took, "CPU s/GB": cpu / (before / 1e9), "left %": left / before * 100}


def held(bench: Bench, broker: Process, batches: list[bytes], is_beside: bool) -> dict[str, float]:
    """Latencies of a producer at a held rate. "cleaner busy %": of the producer's time."""

    def produced() -> dict[str, float]:
        seconds, mb_max = bench.options.seconds, bench.options.mb_max
        return run_produce(broker, HELD, bench.topic(), seconds=seconds, mb_max=mb_max, touched=bench.touched)

    if not is_beside:
        figures = produced()
        return {name: value for name, value in figures.items() if name.endswith(" ms")}
    topic = bench.topic("cleaned")
    filled_topic(broker, topic, batches)
    try:
        active = segments_of(broker, topic)[-1]
        done: list[float] = []
        waiting = threading.Thread(
            target=lambda: done.append(wait_cleaned(broker, topic, int(active.stem))), daemon=True
        )
        waiting.start()
        begun = time.perf_counter()
        compact(broker, topic)
        figures = produced()
        ended = time.perf_counter()
        waiting.join(CLEANED_MAX_S)
    finally:
        broker.delete_topic(topic)
    figures = {name: value for name, value in figures.items() if name.endswith(" ms")}
    return {**figures, "cleaner busy %": min(1.0, (done[0] - begun) / (ended - begun)) * 100}
