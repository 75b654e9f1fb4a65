"""What does a start do when something is missing?

Each file and directory that a broker owns is missing, empty, cut, of another cluster or of yesterday at one
start, and back at the next. The first start is refused with an error message, or serves without it; at the
second all acknowledged records are there. The starts are those of `server.worker.Worker`, in this process, so
that a case takes a fraction of a second; some cases start a broker process. `make soak` tries all cases, the
suite a sample. One directory was written by JVM Kafka, whose log cleaner left gaps and empty batches."""

import asyncio
import errno
import gc
import itertools
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Producer

from kafkad.config.broker import BrokerConfig
from kafkad.log.log_dirs import DirectoryTrouble
from kafkad.protocol import messages
from kafkad.raft.single_voter import UnusableMetadata
from kafkad.server.event_loop import EventLoop
from kafkad.server.worker import Worker
from kafkad.testing import Broker, BrokerFailed
from tests.clients import WAIT_S, wait_until
from tests.jvm import JvmKafka
from tests.unit.log_world import batch
from tests.wire import Wire, create_topic, high_watermark

DAMAGES = ("missing", "empty", "cut", "of another cluster", "of yesterday")
STOPS = ("clean", "killed")


class Started:
    """A broker on `root`, until `stop`."""

    def __init__(self, root: Path) -> None:
        settings = {
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": f"{root / 'a'},{root / 'b'}",
            "log.initial.task.delay.ms": "60000",
        }

        def fatal(trouble: BaseException) -> None:
            raise trouble

        self.loop = EventLoop()
        asyncio.set_event_loop(self.loop)
        self.worker = Worker(BrokerConfig(settings), self.loop, fatal)
        # what it freezes would not be collected by `stop`; to unfreeze it would unfreeze all of the tests
        with mock.patch.object(gc, "freeze"):
            try:
                self.worker.start()
            except BaseException:
                self.loop.close()
                raise

    def settle(self) -> None:
        """Let the loop do what is to be done at once."""
        self.loop.run_until_complete(asyncio.sleep(0.01))

    def settle_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, condition
            self.settle()

    def create(self, name: str, partitions: int) -> None:
        topic = messages.CreateTopicsRequest.Topics(
            name=name, num_partitions=partitions, replication_factor=1
        )
        request = messages.CreateTopicsRequest(topics=[topic])
        answer = self.loop.run_until_complete(self._create(request))
        assert answer.topics[0].error_code == 0, answer
        self.settle()

    async def _create(self, request: Any) -> Any:
        return await self.worker.services.controller.create_topics(request)

    def fill(self, name: str, partitions: int, rolls: int) -> None:
        for index in range(partitions):
            log = self.worker.partitions.get(name, index)
            log.native.expect_order()  # its producer is of 1970, and forgotten at each start
            for _ in range(rolls):
                log.append_client(
                    batch(3, producer_id=9, producer_epoch=0, base_sequence=log.end_offset), 1_000
                )
                log.roll(1_000)
            log.append_client(batch(2, producer_id=9, producer_epoch=0, base_sequence=log.end_offset), 1_000)

    def contents(self) -> dict[tuple[str, int], bytes]:
        return {
            (log.topic, log.partition): b"".join(log.batches(log.log_start_offset, log.end_offset))
            for log in self.worker.partitions
        }

    def stop(self) -> None:
        self.worker.stop()
        self.loop.close()
        del self.worker
        gc.collect()  # what a process would give back by its end: descriptors


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    """The directories of a broker: of yesterday, of today (stopped cleanly, and killed), and of another."""
    root = tmp_path_factory.mktemp("disks")
    other = Started(root / "another")
    other.create("t", 4)
    other.fill("t", 4, rolls=4)
    other.stop()
    broker = Started(root / "live")
    broker.create("t", 4)
    broker.fill("t", 4, rolls=1)
    broker.stop()
    copy(root / "live", root / "yesterday")
    broker = Started(root / "live")
    broker.create("new", 4)
    broker.fill("t", 4, rolls=1)
    broker.fill("new", 4, rolls=2)
    broker.worker.partitions.get("t", 0).delete_records(2)
    broker.settle()
    contents = broker.contents()
    broker.worker.log_dirs.checkpoint()
    broker.loop.run_until_complete(asyncio.sleep(0.2))
    copy(root / "live", root / "killed")
    broker.stop()
    copy(root / "live", root / "clean")
    return SimpleNamespace(root=root, contents=contents)


def owned(today: Path) -> list[str]:
    """All that a broker owns, relative to its root; of each kind of partition file a few."""
    paths = [path.relative_to(today) for path in sorted(today.rglob("*")) if path.name != ".lock"]
    return [str(path) for path in paths]


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=copy_with_holes)
    else:
        copy_with_holes(source, target)


def copy_with_holes(source: str | Path, target: str | Path) -> None:
    """The indexes of active segments have 10 MB each, nearly all of it holes: a killed broker's 180 MB."""
    with open(source, "rb") as read, open(target, "wb") as written:
        size = os.fstat(read.fileno()).st_size
        position = 0
        while position < size:
            try:
                position = os.lseek(read.fileno(), position, os.SEEK_DATA)
            except OSError as trouble:
                if trouble.errno != errno.ENXIO:
                    raise
                break  # no data behind
            end = os.lseek(read.fileno(), position, os.SEEK_HOLE)
            read.seek(position)
            written.seek(position)
            written.write(read.read(end - position))
            position = end
        written.truncate(size)
    shutil.copystat(source, target)


def damage(how: str, live: Path, name: str, root: Path) -> bool:
    """Do it; False if there is nothing to do it with."""
    path = live / name
    if how in ("of yesterday", "of another cluster"):
        source = root / ("yesterday" if how == "of yesterday" else "another") / name
        if not source.exists() or (source.is_file() and source.read_bytes() == path.read_bytes()):
            return False
        remove(path)
        copy(source, path)
        return True
    if path.is_dir():
        remove(path)
        if how == "empty":
            path.mkdir()
        return how != "cut"
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif not data or (how == "cut" and len(data) < 2):
        return False
    else:
        path.write_bytes(data[: len(data) // 2] if how == "cut" else b"")
    return True


def put_back(live: Path, name: str, today: Path) -> None:
    path = live / name
    for stray in path.parent.parent.glob(f"{path.parent.name}.*-stray"):
        # partition.metadata had another id: the log says where the directory went
        remove(path.parent)
        stray.rename(path.parent)
    remove(path)
    copy(today / name, path)
    for lost in live.rglob("*.lost"):  # what the error message says
        if not (plain := lost.with_suffix("")).exists():
            lost.rename(plain)


def run_case(tmp_path: Path, disks, stop: str, name: str, how: str) -> str:
    """What happened at the first start; "" where the case does not exist."""
    live, today = tmp_path / "live", disks.root / stop
    shutil.rmtree(live, ignore_errors=True)
    copy(today, live)
    if not damage(how, live, name, disks.root):
        return ""
    try:
        broker = Started(live)
    except (DirectoryTrouble, UnusableMetadata) as refused:
        assert str(live) in str(refused), f"{name} {how}: the message names no path: {refused}"
        outcome = "refused"
    else:
        outcome = "served"
        broker.settle()
        broker.stop()
    put_back(live, name, today)
    broker = Started(live)
    try:
        found = broker.contents()
        assert found.keys() == disks.contents.keys()
        for key, data in disks.contents.items():
            assert found[key].endswith(data), f"{name} {how} ({stop}): {key} is not whole: {outcome}"
    finally:
        broker.stop()
    return outcome


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_what_is_missing_at_one_start_is_whole_at_the_next(tmp_path, disks, rounds):
    cases = [(stop, name, how) for stop in STOPS for name in owned(disks.root / stop) for how in DAMAGES]
    random.Random(20261123).shuffle(cases)
    outcomes, failures = set(), []
    for case in cases[: rounds(60, len(cases))]:
        try:
            outcomes.add(run_case(tmp_path, disks, *case))
        except Exception as trouble:
            failures.append(f"{case}: {type(trouble).__name__}: {trouble}"[:600])
    assert not failures, f"{len(failures)} cases:\n" + "\n".join(failures)
    assert outcomes >= {"served", "refused"}


CERTAIN = [
    ("a/meta.properties", "missing", "refused"),
    ("a/meta.properties", "empty", "refused"),
    ("a/meta.properties", "cut", "refused"),
    ("a/meta.properties", "of another cluster", "refused"),
    ("a/__cluster_metadata-0", "missing", "refused"),
    ("a/__cluster_metadata-0", "empty", "refused"),
    ("a", "missing", "refused"),
    ("a", "empty", "refused"),
    ("a", "of another cluster", "refused"),
    ("a/t-0/partition.metadata", "of another cluster", "served"),
    ("b", "missing", "served"),
    ("b", "empty", "served"),
    ("b", "of another cluster", "refused"),
    ("b/meta.properties", "missing", "served"),
    ("b/meta.properties", "cut", "served"),
    ("a/recovery-point-offset-checkpoint", "missing", "served"),
    ("a/replication-offset-checkpoint", "cut", "served"),
]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(("name", "how", "outcome"), CERTAIN)
def test_what_is_refused_and_what_is_served(tmp_path, disks, stop, name, how, outcome):
    assert run_case(tmp_path, disks, stop, name, how) == outcome


def test_a_partition_that_is_missing_is_made_where_it_was(tmp_path, disks):
    """A broker of two directories once made it in the other one: twice there, it kept the next start from
    serving."""
    live, today = tmp_path / "live", disks.root / "killed"
    for name in sorted(path.relative_to(today) for path in today.glob("?/new-?")):
        shutil.rmtree(live, ignore_errors=True)
        copy(today, live)
        shutil.rmtree(live / name)
        broker = Started(live)
        broker.settle_until((live / name).is_dir)
        broker.stop()
        assert len(list(live.glob(f"?/{name.name}"))) == 1, name


# -- a broker process --------------------------------------------------------------------------------------


def process_on(root: Path) -> Broker:
    """A broker on the directories of `Started`, by a server.properties."""
    properties = root.with_name(f"{root.name}.properties")
    properties.write_text(
        "node.id=1\nprocess.roles=broker,controller\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        f"log.dirs={root / 'a'},{root / 'b'}\n"
    )
    return Broker(properties=properties, listen="127.0.0.1:0", workers=2)


def fetched(wire: Wire, topic: str, index: int) -> bytes:
    """All stored batches of a partition, from the one that has the log start offset on."""
    asked = messages.ListOffsetsRequest.Topics.Partitions(partition_index=index, timestamp=-2)
    topics = [messages.ListOffsetsRequest.Topics(name=topic, partitions=[asked])]
    first = wire.ask(messages.ListOffsetsRequest(replica_id=-1, topics=topics), 6).topics[0].partitions[0]
    assert first.error_code == 0, first
    data, start, end = b"", first.offset, high_watermark(wire, topic, index)
    partition = messages.FetchRequest.Topics.Partitions
    while start < end:
        asked = partition(partition=index, fetch_offset=start, partition_max_bytes=1 << 20)
        request = messages.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            topics=[messages.FetchRequest.Topics(topic=topic, partitions=[asked])],
        )
        answer = wire.ask(request, 11).responses[0].partitions[0]
        assert answer.error_code == 0, answer
        assert answer.records, f"nothing at {start} of {end}"
        rest = bytes(answer.records)
        data += rest
        while rest:  # base offset, length, ..., last offset delta
            start = int.from_bytes(rest[:8], "big") + int.from_bytes(rest[23:27], "big") + 1
            rest = rest[12 + int.from_bytes(rest[8:12], "big") :]
    return data


PROCESS_CASES = [
    ("clean", "a/meta.properties", "cut", "refused"),
    ("clean", "a/__cluster_metadata-0", "missing", "refused"),
    ("killed", "b", "missing", "served"),
    ("killed", "b/new-1", "missing", "served"),
    ("killed", "a/recovery-point-offset-checkpoint", "empty", "served"),
]


@pytest.mark.parametrize(("stop", "name", "how", "outcome"), PROCESS_CASES)
def test_a_broker_process_refuses_or_serves_and_is_whole_at_the_next_start(
    tmp_path, disks, stop, name, how, outcome
):
    live = tmp_path / "live"
    copy(disks.root / stop, live)
    if not (live / name).exists():  # topics are spread over the directories by chance
        name = name.replace("b/", "a/")
    assert damage(how, live, name, disks.root)
    broker = process_on(live)
    try:
        with broker, Wire(broker.bootstrap) as wire:
            assert outcome == "served"
            assert wire.ask(messages.MetadataRequest(topics=None), 12).topics
    except BrokerFailed as refused:
        assert outcome == "refused", refused
        assert broker.process.returncode == 1
        (line,) = [line for line in str(refused).splitlines()[1:] if line]
        assert str(live) in line
    put_back(live, name, disks.root / stop)
    with process_on(live) as broker, Wire(broker.bootstrap) as wire:
        for (topic, index), data in disks.contents.items():
            assert fetched(wire, topic, index).endswith(data), f"{topic}-{index}"


# -- a directory of JVM Kafka, compacted --------------------------------------------------------------------

CLEANED = "compacted"


@pytest.fixture(scope="module")
def compacted(tmp_path_factory):
    """Logs that JVM Kafka cleaned: offsets with gaps between batches, and batches without records, among them
    markers of transactions."""
    root = tmp_path_factory.mktemp("compacted")
    live = root / "live"
    config = {
        "log.dirs": f"{live / 'a'},{live / 'b'}",
        "log.cleaner.backoff.ms": 100,
        "log.cleaner.min.cleanable.ratio": 0.001,
        "log.cleaner.delete.retention.ms": 1,
        "log.retention.check.interval.ms": 100,
    }
    with JvmKafka(live / "a", config=config) as jvm:
        with Wire(jvm.bootstrap, 60) as wire:
            create_topic(wire, CLEANED, cleanup_policy="compact", segment_ms="500", delete_retention_ms="1")
        for number in range(6):  # the last two end the transactions that were left open before, no more
            some = Producer({"bootstrap.servers": jvm.bootstrap, "transactional.id": f"some-{number % 2}"})
            some.init_transactions(WAIT_S)  # an abort with an epoch of its own: all that its producer leaves
            for round_number in range(3 if number < 4 else 0):
                some.begin_transaction()
                for key in range(10):
                    value = b"%d" % round_number if key % 3 else None
                    some.produce(CLEANED, value, b"%d" % key, partition=0)
                some.flush(WAIT_S)
                if round_number < 2:
                    some.commit_transaction(WAIT_S)
            time.sleep(0.6)  # a segment's age
        (log,) = live.glob(f"*/{CLEANED}-0")
        plain = Producer({"bootstrap.servers": jvm.bootstrap})

        def is_cleaned() -> bool:
            """Each look writes: the cleaner takes a log that has something new, and empties a marker in two
            passes."""
            plain.produce(CLEANED, b"x", b"0", partition=0)
            assert plain.flush(WAIT_S) == 0
            time.sleep(0.3)
            return gaps(log) > 0 and any(is_marker for *_, is_marker in without_records(log))

        wait_until(is_cleaned, 60)
        jvm.stop()
    copy(live, root / "clean")
    copy(live, root / "killed")
    for mark in (root / "killed").glob("*/.kafka_cleanshutdown"):
        mark.unlink()
    copy(live, root / "first")
    broker = Started(root / "first")
    contents = broker.contents()
    broker.stop()
    assert len(contents[CLEANED, 0]) == sum(path.stat().st_size for path in (log.glob("*.log")))
    return SimpleNamespace(root=root, contents=contents, log=log.relative_to(live))


def headers(log: Path):
    """(base offset, last offset, count of records, is it a marker) of each batch."""
    for path in sorted(log.glob("*.log")):
        data = path.read_bytes()
        while len(data) > 61 and any(data[:61]):
            base = int.from_bytes(data[:8], "big")
            last = base + int.from_bytes(data[23:27], "big")
            yield base, last, int.from_bytes(data[57:61], "big"), bool(data[22] & 0x20)
            data = data[12 + int.from_bytes(data[8:12], "big") :]


def without_records(log: Path) -> list:
    return [header for header in headers(log) if header[2] == 0]


def gaps(log: Path) -> int:
    found = list(headers(log))
    return sum(after[0] != before[1] + 1 for before, after in itertools.pairwise(found))


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_compacted_directory_of_kafka_is_whole_at_the_next_start(tmp_path, compacted, rounds):
    names = [name for name in owned(compacted.root / "clean") if name.startswith(str(compacted.log))]
    names += [
        "a/cleaner-offset-checkpoint",
        "b/cleaner-offset-checkpoint",
        "a/recovery-point-offset-checkpoint",
    ]
    cases = [(stop, name, how) for stop in STOPS for name in names for how in ("missing", "empty", "cut")]
    cases = [case for case in cases if (compacted.root / case[0] / case[1]).exists()]
    random.Random(20261123).shuffle(cases)
    failures = []
    for case in cases[: rounds(25, len(cases))]:
        try:
            run_case(tmp_path, compacted, *case)
        except Exception as trouble:
            failures.append(f"{case}: {type(trouble).__name__}: {trouble}"[:600])
    assert not failures, f"{len(failures)} cases:\n" + "\n".join(failures)
