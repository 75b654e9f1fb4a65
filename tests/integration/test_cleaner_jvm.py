"""Our cleaner beside Kafka's own, over the same log."""

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.log import cleaner
from kafkad.log.cleaner import Job, Segment
from kafkad.log.filenames import LOG, segment_file
from kafkad.log.txn_index import read_txn_index
from kafkad.protocol.records import Batch, Record, build_batch, read_batches
from tests.clients import WAIT_S, wait_until
from tests.jvm import JvmKafka, run_tool
from tests.unit.cleaner_world import Log

pytestmark = pytest.mark.java

HOUR = 3_600_000
TOPICS = 4
HORIZON = 0x40


def write_segments(directory: Path, log: Log, parts: int) -> list[Segment]:
    """The log as files of about the same number of batches, and an active one with a last batch."""
    for path in directory.iterdir():
        if path.name[:20].isdigit():
            path.unlink()
    batches = [batch.bytes for batch in read_batches(bytes(log.data))]
    step = len(batches) // parts + 1
    cuts = [batches[at : at + step] for at in range(0, len(batches), step)]
    bases = [0 if at == 0 else Batch(cut[0]).base_offset for at, cut in enumerate(cuts)]
    last = build_batch([Record(b"last", b"1", timestamp=log.now)], base_offset=log.end, leader_epoch=0)
    for base, cut in zip([*bases, log.end], [*cuts, [last]], strict=True):
        Path(segment_file(str(directory), base, LOG)).write_bytes(b"".join(bytes(each) for each in cut))
    return [Segment(base, sum(map(len, cut))) for base, cut in zip(bases, cuts, strict=True)]


def described(batch: Batch, before: dict[int, Batch]) -> tuple[Any, ...]:
    """All that both cleaners must agree on: a new horizon is a matter of their clocks."""
    is_new = batch.attributes & HORIZON and not before[batch.base_offset].attributes & HORIZON
    return (
        batch.base_offset, batch.last_offset, batch.attributes, batch.max_timestamp, batch.leader_epoch,
        batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.records_count,
        "new" if is_new else batch.base_timestamp, batch.is_intact(),
        [(each.offset, each.key, each.value, each.headers, each.timestamp) for each in batch.records()],
    )  # fmt: skip


def cleaned_batches(directory: Path, log: Log) -> list[tuple[Any, ...]]:
    before = {batch.base_offset: batch for batch in read_batches(bytes(log.data))}
    data = Path(segment_file(str(directory), 0, LOG)).read_bytes()
    return [described(batch, before) for batch in read_batches(data)]


def test_both_cleaners_make_the_same_log(tmp_path):
    """Transactions, tombstones, horizons that have and have not come, codecs, gaps, both timestamp types."""
    config = {
        "log.cleaner.backoff.ms": 100,
        "log.initial.task.delay.ms": 100,
        "log.cleaner.dedupe.buffer.size": 8 << 20,
    }
    kafka = JvmKafka(tmp_path / "data", config=config)
    logs: list[Log] = []
    ours: list[Path] = []
    segments: list[list[Segment]] = []
    names = [f"cleaned{number}" for number in range(TOPICS)]
    with kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        topic_config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        for future in admin.create_topics(
            [NewTopic(name, 1, 1, config=topic_config) for name in names]
        ).values():
            future.result(WAIT_S)
        wait_until(lambda: all((tmp_path / "data" / f"{name}-0").exists() for name in names))
        kafka.stop()
    now_ms = int(time.time() * 1000)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", ".kafka_cleanshutdown"):
        (tmp_path / "data" / name).unlink(missing_ok=True)
    for number, name in enumerate(names):
        log = Log(
            random.Random(number), plain=True, horizons=(now_ms - HOUR, now_ms + HOUR), now=now_ms - HOUR
        )
        for _ in range(150):
            log.step()
        for producer in list(log.open):
            log.mark(producer, number % 2)
        theirs = tmp_path / "data" / f"{name}-0"
        segments.append(write_segments(theirs, log, 3))
        shutil.copytree(theirs, tmp_path / name)
        logs.append(log)
        ours.append(tmp_path / name)

    checkpoint = tmp_path / "data" / "cleaner-offset-checkpoint"
    with kafka:
        wait_until(lambda: all(f"{name} 0 " in text(checkpoint) for name in names), 60)
        kafka.stop()

    for name, log, directory, known in zip(names, logs, ours, segments, strict=True):
        job = Job(
            directory=str(directory),
            segments=tuple(known),
            first_dirty=0,
            first_uncleanable=log.end,
            now_ms=now_ms,
            delete_retention_ms=24 * HOUR,
            segment_bytes=1 << 30,
            index_bytes=10 << 20,
            index_interval=4096,
            memory=1 << 20,
            aborted=tuple(log.aborted),
            last_records=lambda log=log: log.last,
        )
        outcome = cleaner.clean(job, swap)
        assert outcome.end_offset == log.end
        assert f"{name} 0 {log.end}" in checkpoint.read_text()
        theirs = tmp_path / "data" / f"{name}-0"
        expected = cleaned_batches(theirs, log)
        got = cleaned_batches(directory, log)
        assert len(got) < len(list(read_batches(bytes(log.data))))
        for one, other in zip(got, expected, strict=True):
            assert one == other
        aborted = [read_txn_index(segment_file(str(each), 0, ".txnindex")) for each in (directory, theirs)]
        assert aborted[0] == aborted[1]
        dump = run_tool(
            "4.3.1", "kafka-dump-log", "--files", segment_file(str(directory), 0, LOG), "--deep-iteration"
        )
        assert "isvalid: false" not in dump.stdout
        assert dump.stdout.count("isvalid: true") == len(got)
        check = run_tool("4.3.1", "kafka-dump-log", "--files", segment_file(str(directory), 0, ".index"))
        assert "ismatch" not in check.stdout


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def swap(cleaned: cleaner.Cleaned) -> None:
    cleaner.announce_swap(cleaned)
    for path in cleaner.swap_in(cleaned):
        os.unlink(path)
