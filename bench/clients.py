"""Loads by real clients: the Java client's perf tools, and librdkafka.

They use most of the machine themselves, so their MB/s say little about a broker; its CPU seconds per GB do.

    python -m bench.clients librdkafka HOST:PORT TOPIC RECORDS VALUE_SIZE     (started by a run)
"""

import json
import re
import subprocess
import sys
import time
from typing import Any

from bench.brokers import ENVIRONMENT, ROOT, Jvm, Process

SENT = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\), .*?"
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99.9th",
    re.MULTILINE,
)


def _java(version: str, main: str, *arguments: object, timeout: float = 300) -> str:
    tools = Jvm(ROOT, version)
    command = [*tools.java(["-Xmx512M", "-XX:+UseG1GC"]), main, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"{main}: {done.stderr.strip()[-500:] or done.stdout.strip()[-500:]}")
    return done.stdout


def java_produce(broker: Process, topic: str, records: int, value_size: int) -> dict[str, Any]:
    """kafka-producer-perf-test with batches of 64 KB."""
    begun = time.perf_counter()
    output = _java(
        "4.3.1",
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic", topic, "--num-records", records, "--record-size", value_size, "--throughput", -1,
        "--producer-props", f"bootstrap.servers=127.0.0.1:{broker.port}",
        "acks=1", "batch.size=65536", "linger.ms=5", "buffer.memory=67108864",
    )  # fmt: skip
    match = SENT.findall(output)[-1]
    count = int(match[0])
    return {
        "bytes": count * value_size,
        "requests": count,
        "seconds": count / float(match[1]),
        "wall": time.perf_counter() - begun,
        "p50_us": float(match[3]) * 1000,
        "p99_us": float(match[5]) * 1000,
        "p999_us": float(match[6]) * 1000,
    }


def java_consume(broker: Process, topic: str, records: int, value_size: int) -> dict[str, Any]:
    """kafka-consumer-perf-test over all that java_produce wrote."""
    output = _java(
        "4.3.1",
        "org.apache.kafka.tools.ConsumerPerformance",
        "--topic", topic, "--bootstrap-server", f"127.0.0.1:{broker.port}",
        "--messages", records, "--timeout", 60000, "--hide-header",
    )  # fmt: skip
    cells = [cell.strip() for cell in output.strip().splitlines()[-1].split(",")]
    megabytes, count, fetch_ms = float(cells[2]), int(cells[4]), int(cells[7])
    return {"bytes": megabytes * (1 << 20), "requests": count, "seconds": fetch_ms / 1000}


def librdkafka_produce(broker: Process, topic: str, records: int, value_size: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.clients", "librdkafka", f"127.0.0.1:{broker.port}", topic]
    command += [str(records), str(value_size)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=ENVIRONMENT, check=True
    )
    return json.loads(done.stdout)


LOADS = {
    "Java client produces 1 KB records": java_produce,
    "Java client consumes them": java_consume,
    "librdkafka produces 1 KB records": librdkafka_produce,
}


def _librdkafka(bootstrap: str, topic: str, records: int, value_size: int) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "linger.ms": 5,
            "batch.size": 65536,
            "queue.buffering.max.kbytes": 65536,
        }
    )
    value = bytes(range(256)) * (value_size // 256 + 1)
    value = value[:value_size]
    begun = time.perf_counter()
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    assert producer.flush(60) == 0
    seconds = time.perf_counter() - begun
    print(json.dumps({"bytes": records * value_size, "requests": records, "seconds": seconds}))


if __name__ == "__main__":
    _, _, at, name, count, size = sys.argv
    _librdkafka(at, name, int(count), int(size))
