"""Files that lie, full disks, places that are taken: the broker starts, serves what is whole, says why."""

import os
import random
import shutil
import socket
import subprocess
import sys
import time

import pytest

from kafkad.protocol import errors, messages
from kafkad.testing import Broker
from tests.small_disk import small_disk as small_file_system
from tests.wire import Wire, batch, create_topic, high_watermark, produce

TOPIC = "kept"
BATCHES = 200
FILLING = b"." * 20_000  # four segments of a megabyte, the least that Kafka allows


def serve(*arguments: str, timeout: float = 20) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kafkad", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def fetch_values(wire: Wire, topic: str, offset: int = 0) -> list[bytes]:
    """All values from `offset` to the high watermark."""
    from kafkad.protocol import records

    values: list[bytes] = []
    end = high_watermark(wire, topic)
    while offset < end:
        struct = messages.FetchRequest.Topics
        request = messages.FetchRequest(
            replica_id=-1,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[
                struct(
                    topic=topic,
                    partitions=[
                        struct.Partitions(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
                    ],
                )
            ],
        )
        answer = wire.ask(request, 11).responses[0].partitions[0]
        assert answer.error_code == 0, answer
        got = [record for b in records.read_batches(answer.records) for record in b.records()]
        got = [record for record in got if record.offset >= offset]
        assert got, f"nothing at offset {offset} of {end}"
        assert [record.offset for record in got] == list(range(offset, offset + len(got)))
        values += [record.value for record in got]
        offset += len(got)
    return values


@pytest.fixture
def written(tmp_path):
    """A broker that was killed after 200 batches over many small segments, and its data directory."""
    config = {"log.segment.bytes": 1 << 20, "log.index.interval.bytes": 256}
    broker = Broker(config=config, data_dir=tmp_path / "data")
    with broker:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, TOPIC)
            for number in range(BATCHES):
                assert produce(wire, TOPIC, bytes(batch(b"%05d" % number + FILLING))).error_code == 0
        yield broker


def partition_files(broker, suffix: str):
    files = sorted((broker.data_dir / f"{TOPIC}-0").glob(f"*{suffix}"))
    assert files, f"no {suffix} files"
    return files


def numbers(broker) -> list[int]:
    with Wire(broker.bootstrap) as wire:
        return [int(value[:5]) for value in fetch_values(wire, TOPIC)]


def test_a_corrupted_last_batch_is_cut_off_after_a_kill(written):
    written.kill()
    last = partition_files(written, ".log")[-1]
    with open(last, "r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"\xff\xff\xff")
    written.restart()
    assert numbers(written) == list(range(BATCHES - 1))
    with Wire(written.bootstrap) as wire:
        assert produce(wire, TOPIC, bytes(batch(b"99999"))).base_offset == BATCHES - 1


def test_garbage_behind_the_last_batch_is_cut_off_after_a_kill(written):
    written.kill()
    with open(partition_files(written, ".log")[-1], "ab") as file:
        file.write(os.urandom(777))
    written.restart()
    assert numbers(written) == list(range(BATCHES))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["garbage", "empty", "missing", "odd size"])
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_damaged_indexes_are_made_anew(written, suffix, damage, end):
    getattr(written, end)()
    for path in partition_files(written, suffix):
        match damage:
            case "garbage":
                path.write_bytes(random.Random(1).randbytes(120))
            case "empty":
                path.write_bytes(b"")
            case "missing":
                path.unlink()
            case "odd size":
                path.write_bytes(path.read_bytes()[:-3] + b"\x01" if path.stat().st_size else b"\x01")
    written.restart()
    assert numbers(written) == list(range(BATCHES))


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
    ],
)
@pytest.mark.parametrize(
    "content", [b"", b"garbage\n", b"0\n99999\nkept 0 5\n", b"0\n1\nkept 0 999999999\n", b"\xff\xfe\x00"]
)
def test_damaged_checkpoints_do_not_stop_the_broker(written, name, content):
    written.kill()
    (written.data_dir / name).write_bytes(content)
    written.restart()
    if name == "log-start-offset-checkpoint" and b"999999999" in content:
        # Offsets below a log start that was told are gone for ever, as in Kafka: the log goes on from there.
        with Wire(written.bootstrap) as wire:
            assert produce(wire, TOPIC, bytes(batch(b"on"))).base_offset == 999_999_999
    else:
        assert numbers(written)[-1] == BATCHES - 1


def test_damaged_snapshots_and_epoch_files_do_not_stop_the_broker(written):
    written.kill()
    directory = written.data_dir / f"{TOPIC}-0"
    for path in directory.glob("*.snapshot"):
        path.write_bytes(os.urandom(60))
    (directory / "leader-epoch-checkpoint").write_bytes(b"\x00\x01garbage")
    written.restart()
    assert numbers(written) == list(range(BATCHES))


def test_a_torn_metadata_log_keeps_what_is_whole(written):
    with Wire(written.bootstrap) as wire:
        create_topic(wire, "later")
    written.kill()
    newest = sorted((written.data_dir / "__cluster_metadata-0").glob("*.log"))[-1]
    with open(newest, "ab") as file:
        file.write(os.urandom(333))
    written.restart()
    assert numbers(written) == list(range(BATCHES))
    with Wire(written.bootstrap) as wire:
        topics = wire.ask(messages.MetadataRequest(topics=None), 9).topics
        assert {"later", TOPIC} <= {topic.name for topic in topics}


def test_leftovers_of_a_swap_or_a_deletion_are_cleared(written):
    written.kill()
    directory = written.data_dir / f"{TOPIC}-0"
    (directory / "00000000000000000000.log.deleted").write_bytes(b"x")
    (directory / "00000000000000000005.log.cleaned").write_bytes(b"x")
    (written.data_dir / f"gone-0.{'a' * 32}-delete").mkdir()
    written.restart()
    assert numbers(written) == list(range(BATCHES))
    assert not list(directory.glob("*.cleaned"))


# -- places that are taken


def test_a_data_directory_in_use_is_one_sentence_and_no_harm(written):
    second = serve("--data-dir", str(written.data_dir), "--listen", "127.0.0.1:0")
    assert second.returncode == 1
    assert "in use" in second.stderr and str(written.data_dir) in second.stderr
    assert "Traceback" not in second.stderr
    assert numbers(written) == list(range(BATCHES))


def test_a_port_in_use_is_one_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = serve("--data-dir", str(tmp_path / "d"), "--listen", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr and "in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_of_another_broker_is_refused(written, tmp_path):
    done = serve("--data-dir", str(tmp_path / "d2"), "--listen", written.bootstrap)
    assert done.returncode == 1 and "in use" in done.stderr


def test_a_meta_properties_that_lies_is_one_sentence(written):
    written.stop()
    (written.data_dir / "meta.properties").write_text(
        "version=1\nnode.id=77\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n"
    )
    done = serve("--data-dir", str(written.data_dir), "--listen", "127.0.0.1:0")
    assert done.returncode == 1 and "node.id" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("num.partitions=zero", "num.partitions"),
        ("num.partitions=0", "num.partitions"),
        ("log.segment.bytes=3", "log.segment.bytes"),
        ("compression.type=rar", "compression.type"),
        ("listeners=nonsense", "listeners"),
        ("log.cleanup.policy=burn", "log.cleanup.policy"),
    ],
)
def test_a_bad_configuration_value_is_one_sentence_and_exit_2(tmp_path, override, told):
    done = serve("--data-dir", str(tmp_path / "d"), "--override", override)
    assert done.returncode == 2
    assert told in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_unknown_keys_are_named_and_ignored(tmp_path):
    with Broker(config={"no.such.key": 1, "another.unknown": 2}, data_dir=tmp_path / "d") as broker:
        assert "no.such.key" in broker.log and "another.unknown" in broker.log


def test_python_minus_o_is_refused(tmp_path):
    command = [sys.executable, "-O", "-m", "kafkad", "serve", "--data-dir", str(tmp_path / "d")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and "-O" in done.stderr


# -- a full disk


@pytest.fixture
def small_disk(tmp_path):
    with small_file_system(tmp_path / "small", 24 << 20) as where:
        yield where


def test_a_full_disk_refuses_writes_serves_reads_and_heals(small_disk):
    ballast = small_disk / "ballast"
    config = {"offsets.topic.num.partitions": 1, "log.segment.bytes": 1 << 20}
    with Broker(config=config, data_dir=small_disk / "data") as broker, Wire(broker.bootstrap) as wire:
        create_topic(wire, "full")
        ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - (4 << 20)))
        stored = 0
        for number in range(100):
            answer = produce(wire, "full", bytes(batch(b"%05d" % number + os.urandom(100_000))))
            if answer.error_code:
                break
            stored += 1
        assert answer.error_code == errors.KAFKA_STORAGE_ERROR and stored > 5
        assert high_watermark(wire, "full") == stored
        assert len(fetch_values(wire, "full")) == stored

        ballast.unlink()
        deadline = time.monotonic() + 20
        while (
            answer := produce(wire, "full", bytes(batch(b"again")))
        ).error_code and time.monotonic() < deadline:
            time.sleep(0.1)
        assert answer.error_code == 0 and answer.base_offset == stored
        broker.kill()
        broker.restart()
        with Wire(broker.bootstrap) as again:
            assert high_watermark(again, "full") == stored + 1


def test_a_broker_on_a_full_disk_starts_again(small_disk):
    config = {"offsets.topic.num.partitions": 1, "log.segment.bytes": 1 << 20}
    with Broker(config=config, data_dir=small_disk / "data") as broker:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "full")
            while produce(wire, "full", bytes(batch(os.urandom(200_000)))).error_code == 0:
                pass
            stored = high_watermark(wire, "full")
        broker.kill()
        broker.restart()
        with Wire(broker.bootstrap) as wire:
            assert len(fetch_values(wire, "full")) == stored
