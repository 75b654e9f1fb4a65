"""meta.properties at a start: what is refused, what goes offline, what is left as it was (HUNTS L1, L4)."""

import os
import shutil
from pathlib import Path

import pytest

from kafkad.log.checkpoints import META_PROPERTIES
from kafkad.log.log_dirs import DirectoryTrouble
from tests.unit.log_world import batch
from tests.unit.test_log_dirs import DirsWorld


def content(root: str | Path) -> dict[str, bytes]:
    """Every file below `root` but the locks, which hold nothing."""
    paths = (path for path in Path(root).rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path): path.read_bytes() for path in paths}


def used(tmp_path: Path, count: int = 2, clean: bool = True, **keys: str) -> DirsWorld:
    """A broker that had four partitions with a record each, stopped."""
    world = DirsWorld(tmp_path, count, **keys)
    for index in range(4):
        world.create("t", index).append_client(batch(1), 1_000)
    world.dirs.close(clean)
    return world


def records(world: DirsWorld) -> dict[int, int]:
    return {log.partition: log.end_offset for log in world.dirs.all()}


def take_away(path: str) -> None:
    """The disk of `path` is not mounted."""
    os.rename(path, path + ".elsewhere")
    os.mkdir(path)


def bring_back(path: str) -> None:
    shutil.rmtree(path)
    os.rename(path + ".elsewhere", path)


def refuse(world: DirsWorld, match: str) -> None:
    """A start is refused, and has changed nothing."""
    root = os.path.dirname(world.paths[0])
    before = content(root)
    with pytest.raises(DirectoryTrouble, match=match):
        world.open()
    assert content(root) == before


@pytest.mark.parametrize("clean", [True, False])
def test_a_metadata_directory_that_is_not_mounted_ends_the_start(tmp_path, clean):
    """HUNTS L1: the other directories kept their cluster id, so an empty metadata directory is a mistake."""
    world = used(tmp_path, clean=clean)
    take_away(world.paths[0])
    refuse(world, r"metadata directory .*/d0 has no meta.properties, but .*/d1 belongs to .*mount its disk")
    bring_back(world.paths[0])
    world.dirs = world.open()
    assert records(world) == dict.fromkeys(range(4), 1)


def test_a_metadata_log_dir_that_is_not_mounted_ends_the_start(tmp_path):
    """HUNTS L1, with metadata.log.dir."""
    own = tmp_path / "m"
    own.mkdir()
    world = DirsWorld(tmp_path, 1, **{"metadata.log.dir": str(own)})
    shutil.copytree(tmp_path / "d0" / "__cluster_metadata-0", own / "__cluster_metadata-0")
    shutil.rmtree(tmp_path / "d0" / "__cluster_metadata-0")
    world.create("t").append_client(batch(3), 1_000)
    world.dirs.close()
    take_away(str(own))
    refuse(world, r"metadata directory .*/m has no meta.properties")
    bring_back(str(own))
    world.dirs = world.open()
    assert records(world) == {0: 3}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("left", ["no directory", "an empty directory", "an empty log"])
def test_a_lost_metadata_log_ends_the_start(tmp_path, left, clean):
    """HUNTS L1: a log that this start made would call every partition a stray."""
    world = used(tmp_path, 1, clean=clean)
    log = tmp_path / "d0" / "__cluster_metadata-0"
    shutil.copytree(log, tmp_path / "copy")
    shutil.rmtree(log)
    if left != "no directory":
        log.mkdir()
    if left == "an empty log":
        (log / f"{0:020d}.log").touch()
    refuse(
        world,
        r"d0 has no whole records at the start of __cluster_metadata-0, but .*/d0 holds \S+; mount its disk",
    )
    shutil.rmtree(log, ignore_errors=True)
    shutil.copytree(tmp_path / "copy", log)
    world.dirs = world.open()
    assert records(world) == dict.fromkeys(range(4), 1)


@pytest.mark.parametrize("left", ["no directory", "an empty log", "a damaged log"])
def test_a_broker_without_a_controller_may_have_lost_its_metadata_log(tmp_path, left):
    """It fetches the log from the controllers before it opens any partition."""
    roles = {"process.roles": "broker", "controller.quorum.voters": "2@127.0.0.1:1"}
    world = used(tmp_path, 1, **roles, **{"controller.listener.names": "CONTROLLER"})
    log = tmp_path / "d0" / "__cluster_metadata-0"
    segment = log / f"{0:020d}.log"
    damaged = segment.read_bytes()[:-1]
    shutil.rmtree(log)
    if left != "no directory":
        log.mkdir()
        segment.write_bytes(damaged if left == "a damaged log" else b"")
    world.dirs = world.open()
    assert records(world) == dict.fromkeys(range(4), 1)
    world.dirs.close()
    (tmp_path / "d0" / META_PROPERTIES).unlink()
    with pytest.raises(DirectoryTrouble, match=f"has no {META_PROPERTIES}, but"):
        world.open()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("at", [17, 30, 70])
def test_a_metadata_log_that_begins_with_a_damaged_batch_ends_the_start(tmp_path, at, clean):
    """Recovery would cut it to nothing, and the start would begin a new one."""
    world = used(tmp_path, 1, clean=clean)
    segment = tmp_path / "d0" / "__cluster_metadata-0" / f"{0:020d}.log"
    whole = segment.read_bytes()
    damaged = bytearray(whole)
    damaged[at] ^= 0x40
    segment.write_bytes(damaged)
    refuse(world, r"d0 has no whole records at the start of __cluster_metadata-0, but .*; mount its disk")
    segment.write_bytes(whole)
    world.dirs = world.open()
    assert records(world) == dict.fromkeys(range(4), 1)


def test_log_dirs_in_another_order_are_refused(tmp_path):
    """Kafka: "Found unexpected metadata location"."""
    world = used(tmp_path)
    world.settings["log.dirs"] = ",".join(reversed(world.paths))
    refuse(world, r"/d0/__cluster_metadata-0 is a metadata log outside of the metadata directory.*/d1")


def test_a_formatted_directory_is_begun_even_after_a_start_that_was_killed(tmp_path):
    """What kafka-storage format leaves, and what a first start leaves that dies before its metadata log."""
    world = DirsWorld(tmp_path, 2)
    shutil.rmtree(tmp_path / "d0" / "__cluster_metadata-0")
    world.dirs.close(clean=False)
    log = tmp_path / "d0" / "__cluster_metadata-0"
    log.mkdir()
    (log / f"{0:020d}-{0:010d}.checkpoint").write_bytes(b"voters")
    (tmp_path / "d0" / "bootstrap.checkpoint").write_bytes(b"features")
    cluster = world.dirs.cluster_id
    assert world.open().cluster_id == cluster


def test_another_directory_that_is_not_mounted_is_formatted_and_comes_back(tmp_path):
    """Better than Kafka, which refuses the start: the others are served without it."""
    world = used(tmp_path)
    here = len([name for name in os.listdir(world.paths[0]) if name.startswith("t-")])
    take_away(world.paths[1])
    world.dirs = world.open()
    assert len(world.dirs.all()) == here < 4
    world.dirs.close()
    bring_back(world.paths[1])
    world.dirs = world.open()
    assert records(world) == dict.fromkeys(range(4), 1)


DAMAGES = {
    "garbage": b"\x00\xff\x93garbage\n",
    "empty": b"",
    "another version": b"version=9\ncluster.id=c\nnode.id=1\n",
    "a bad escape": b"version=1\ncluster.id=\\uzz\nnode.id=1\n",
    "no cluster": b"version=1\nnode.id=1\n",
    "no node": b"version=1\ncluster.id=c\n",
    "a node that is no number": b"version=1\ncluster.id=c\nnode.id=one\n",
    "a bad id": b"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=x\n",
    "a reserved id": b"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_identity_of_the_metadata_directory_ends_the_start(tmp_path, damage):
    """HUNTS L4: it was accepted and written anew."""
    world = used(tmp_path)
    path = tmp_path / "d0" / META_PROPERTIES
    good = path.read_bytes()
    path.write_bytes(DAMAGES[damage])
    refuse(world, r"/d0/meta.properties cannot be used: .*restore it from a copy")
    path.write_bytes(good)
    world.dirs = world.open()
    assert records(world) == dict.fromkeys(range(4), 1)


@pytest.mark.parametrize("damage", [*DAMAGES, "missing"])
def test_another_directory_with_a_damaged_identity_is_offline(tmp_path, caplog, damage):
    """HUNTS L4: as Kafka takes it offline. Nothing in it is written, and it is complete again afterwards."""
    world = used(tmp_path)
    path = tmp_path / "d1" / META_PROPERTIES
    good = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(DAMAGES[damage])
    before = content(tmp_path / "d1")
    world.dirs = world.open()
    assert [directory.offline for directory in world.dirs.directories()] == [False, True]
    assert f"log directory {tmp_path / 'd1'} is offline" in caplog.text
    world.dirs.close()
    assert content(tmp_path / "d1") == before
    path.write_bytes(good)
    world.dirs = world.open()
    assert records(world) == dict.fromkeys(range(4), 1)


def test_a_lost_identity_of_the_only_directory_ends_the_start(tmp_path):
    world = used(tmp_path, 1)
    (tmp_path / "d0" / META_PROPERTIES).unlink()
    refuse(world, r"d0 has no meta.properties, but .*/d0 holds ")


def test_the_identity_of_an_older_kafka_is_completed(tmp_path):
    (tmp_path / "d0").mkdir()
    (tmp_path / "d0" / META_PROPERTIES).write_text("broker.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n")
    world = DirsWorld(tmp_path)
    assert world.dirs.cluster_id == "MkU3OEVBNTcwNTJENDM2Qg"
    written = (tmp_path / "d0" / META_PROPERTIES).read_text()
    assert "version=1" in written and "node.id=1" in written and "broker.id" not in written
