"""Messages of magic 0 and 1, cleaned here and by JVM Kafka: the same records, and each reads what we made."""

import os
import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.log.filenames import LOG, segment_file
from kafkad.protocol.records import Record, build_batch, read_batches
from tests.clients import WAIT_S, wait_until
from tests.jvm import JvmKafka, run_tool
from tests.reference import message_sets
from tests.unit.test_legacy_cleaning import World, kept, told

pytestmark = pytest.mark.java

HOUR = 3_600_000
CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", ".kafka_cleanshutdown")


def old_log(directory: Path) -> World:
    """Three segments of old messages, wrappers and batches, and an active one."""
    world = World(directory, 11)
    for number in range(3):
        base = world.end
        world.mix(80)
        last = Record(b"last", b"%d" % number, None, -1, world.end)
        world.add(message_sets.message(0, last.key, last.value, offset=last.offset), [last])
        world.write(base)
    active = build_batch([Record(b"active", b"1", timestamp=1, offset=world.end)], base_offset=world.end)
    Path(segment_file(str(directory), world.end, LOG)).write_bytes(active)
    return world


def records_in(path: str) -> list[Record]:
    return [record for batch in read_batches(Path(path).read_bytes()) for record in batch.records()]


def read(bootstrap: str, topic: str, end: int) -> list[tuple[bytes | None, bytes | None, int]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    found: list[tuple[bytes | None, bytes | None, int]] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + WAIT_S
        while not found or found[-1][2] < end:
            assert time.monotonic() < deadline, found[-1:]
            for message in consumer.consume(500, 0.5):
                assert message.error() is None
                found.append((message.key(), message.value(), message.offset()))
    finally:
        consumer.close()
    return found


def test_both_keep_the_same_records_and_kafka_reads_ours(tmp_path):
    config = {
        "log.cleaner.backoff.ms": 100,
        "log.initial.task.delay.ms": 100,
        "log.cleaner.dedupe.buffer.size": 8 << 20,
    }
    kafka = JvmKafka(tmp_path / "data", config=config)
    compact = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    forever = {"retention.ms": "-1"}  # the records are old
    names = ("theirs", "ours")
    with kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        topics = [NewTopic(name, 1, 1, config=compact if name == "theirs" else forever) for name in names]
        for future in admin.create_topics(topics).values():
            future.result(WAIT_S)
        wait_until(lambda: all((tmp_path / "data" / f"{name}-0").exists() for name in names))
        kafka.stop()
    for name in CHECKPOINTS:
        (tmp_path / "data" / name).unlink(missing_ok=True)
    theirs, ours = (tmp_path / "data" / f"{name}-0" for name in names)
    for directory in (theirs, ours):
        for path in directory.iterdir():
            if path.name[:20].isdigit():
                path.unlink()
    world = old_log(ours)
    for path in ours.glob("*" + LOG):
        shutil.copy2(path, theirs / path.name)
    outcome = world.clean(now_ms=int(time.time() * 1000), delete_retention_ms=24 * HOUR)
    assert outcome.end_offset == world.end
    (log,) = [path for path in ours.glob("*" + LOG) if path.name.startswith("0" * 20)]
    checkpoint = tmp_path / "data" / "cleaner-offset-checkpoint"
    with kafka:
        wait_until(lambda: checkpoint.exists() and f"theirs 0 {world.end}" in checkpoint.read_text(), 60)
        served = [read(kafka.bootstrap, name, world.end) for name in names]
        kafka.stop()
    made = [told(record) for record in records_in(str(log))]
    assert made == kept(world.records)
    assert made == [told(record) for record in records_in(segment_file(str(theirs), 0, LOG))]
    assert served[0] == served[1]
    assert served[1][:-1] == [(key, value, offset) for key, value, _, offset in made]
    dump = run_tool("4.3.1", "kafka-dump-log", "--files", str(log), "--deep-iteration")
    assert "isvalid: false" not in dump.stdout
    assert dump.stdout.count("isvalid: true") == len(list(read_batches(log.read_bytes())))
    assert dump.stdout.count("| offset:") == len(made)
    check = run_tool("4.3.1", "kafka-dump-log", "--files", segment_file(os.fspath(ours), 0, ".index"))
    assert "ismatch" not in check.stdout
