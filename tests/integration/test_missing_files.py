"""What does a start do when something is missing?

Each file and directory that a broker owns is missing, empty, cut, of another cluster or of yesterday at one
start, and back at the next. The first start is refused with an error message, or serves without it; at the
second all acknowledged records are there. The starts are those of `server.worker.Worker`, in this process, so
that a case takes a fraction of a second. `make soak` tries all cases, the suite a sample."""

import asyncio
import gc
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkad.config.broker import BrokerConfig
from kafkad.log.log_dirs import DirectoryTrouble
from kafkad.protocol import messages
from kafkad.raft.single_voter import UnusableMetadata
from kafkad.server.event_loop import EventLoop
from kafkad.server.worker import Worker
from tests.unit.log_world import batch

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
        try:
            self.worker.start()
        except BaseException:
            self.loop.close()
            raise
        gc.unfreeze()

    def settle(self) -> None:
        """Let the loop do what is to be done at once."""
        self.loop.run_until_complete(asyncio.sleep(0.01))

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
    shutil.copytree(root / "live", root / "yesterday")
    broker = Started(root / "live")
    broker.create("new", 4)
    broker.fill("t", 4, rolls=1)
    broker.fill("new", 4, rolls=2)
    broker.worker.partitions.get("t", 0).delete_records(2)
    broker.settle()
    contents = broker.contents()
    broker.worker.log_dirs.checkpoint()
    broker.loop.run_until_complete(asyncio.sleep(0.2))
    shutil.copytree(root / "live", root / "killed")
    broker.stop()
    shutil.copytree(root / "live", root / "clean")
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
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


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
    shutil.copytree(today, live)
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
