"""The metadata image turned into logs: real logs in real directories, and the table of the data plane."""

import asyncio
import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from kafkad._native.serving.partition_table import PartitionTable
from kafkad.config.broker import BrokerConfig
from kafkad.log import leader_epochs
from kafkad.log.checkpoints import RECOVERY_POINTS, read_offsets
from kafkad.log.filenames import STRAY_DIR
from kafkad.log.log import Log
from kafkad.metadata.image import RECOVERING, MetadataImage
from kafkad.metadata.replay import applied
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.replication.partitions import Partitions
from kafkad.server.changes import Changes
from kafkad.server.turns import Turns
from kafkad.server.worker import Worker
from tests.unit.log_world import batch
from tests.unit.test_log_dirs import DirsWorld

BROKER = 1
FIRST_SEGMENT = f"{0:020d}.log"
TOPIC = 2


class World:
    """Metadata records in, partitions out."""

    def __init__(self, root, count: int = 1) -> None:
        self.disks = DirsWorld(root, count)
        self.image = MetadataImage("cluster", BROKER)
        self.table = PartitionTable()
        self.partitions = self.made()

    def made(self) -> Partitions:
        return Partitions(BROKER, BrokerConfig(self.disks.settings), self.disks.dirs, self.table)

    def commit(self, *records) -> None:
        self.image, delta = applied(self.image, records)
        self.partitions.apply_delta(delta, self.image)

    def restart(self) -> None:
        self.disks.topics = {topic.name: topic.topic_id for topic in self.image.topics.values()}
        self.disks.restart()
        self.table = PartitionTable()
        self.partitions = self.made()
        self.partitions.apply(self.image)


def topic_id(name: str) -> bytes:
    return (name.encode() * 16)[:16]


def topic(name: str, partitions: int = 1, id_of: str | None = None, leader: int = BROKER) -> list:
    made = topic_id(id_of or name)
    return [
        messages.TopicRecord(name=name, topic_id=made),
        *(partition(made, index, leader) for index in range(partitions)),
    ]


def partition(made: bytes, index: int, leader: int = BROKER, epoch: int = 0):
    return messages.PartitionRecord(
        partition_id=index,
        topic_id=made,
        replicas=[leader],
        isr=[leader],
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=0,
        directories=[bytes(16)],
    )


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_new_topic_gets_logs_that_are_led_and_found(world):
    world.commit(*topic("t", partitions=3))
    assert len(world.partitions) == 3
    log = world.partitions.get("t", 2)
    assert log.append_client(batch(2), 1_000).base_offset == 0
    assert world.table.get("t", 2) is log.native


def test_what_is_not_here_has_its_error(world):
    world.commit(*topic("t"), *topic("elsewhere", leader=7))
    for name, index, code in (
        ("nosuch", 0, errors.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 1, errors.UNKNOWN_TOPIC_OR_PARTITION),
        ("elsewhere", 0, errors.NOT_LEADER_OR_FOLLOWER),
    ):
        with pytest.raises(KafkaError) as refused:
            world.partitions.get(name, index)
        assert refused.value.code == code
    assert world.partitions.find("elsewhere", 0) is None


def test_partitions_are_added_to_a_topic(world):
    world.commit(*topic("t"))
    first = world.partitions.get("t", 0)
    world.commit(partition(topic_id("t"), 1))
    assert len(world.partitions) == 2 and world.partitions.get("t", 0) is first


def test_a_stop_deletes_partitions_of_changes_that_it_leaves(world):
    """The next start found directories that its metadata did not know, and kept them as strays for good."""
    world.commit(*topic("t", partitions=2), *topic("u"))
    removed = messages.RemoveTopicRecord(topic_id=topic_id("t"))
    world.image, _ = applied(world.image, [removed, *topic("t", id_of="w"), *topic("v")])

    async def stop() -> None:
        worker = Worker.__new__(Worker)
        worker.partitions, worker.metadata = world.partitions, SimpleNamespace(image=world.image)
        loop = asyncio.get_running_loop()
        worker.changes = Changes(Turns(loop), loop, pytest.fail)
        worker.changes.put(1, iter([None] * 1_000_000))
        worker.changes.put(2, iter(()))
        worker.changes.end_in(0)
        worker._finish_changes()

    asyncio.run(stop())
    assert [(log.topic, log.topic_id) for log in world.partitions] == [("u", topic_id("u"))]
    world.restart()
    assert not [name for name in os.listdir(world.disks.paths[0]) if name.endswith(STRAY_DIR)]
    assert sorted((log.topic, log.topic_id) for log in world.partitions) == [
        ("t", topic_id("w")), ("u", topic_id("u")), ("v", topic_id("v")),
    ]  # fmt: skip


def test_a_deleted_topic_is_gone_for_everybody(world):
    world.commit(*topic("t", partitions=2))
    log = world.partitions.get("t", 0)
    world.commit(messages.RemoveTopicRecord(topic_id=topic_id("t")))
    assert len(world.partitions) == 0 and ("t", 0) not in world.table
    with pytest.raises(KafkaError):
        log.append_client(batch(1), 1_000)


def test_a_topic_made_again_is_empty_and_has_its_new_id(world):
    world.commit(*topic("t"))
    world.partitions.get("t", 0).append_client(batch(5), 1_000)
    world.commit(messages.RemoveTopicRecord(topic_id=topic_id("t")), *topic("t", id_of="u"))
    log = world.partitions.get("t", 0)
    assert (log.end_offset, log.topic_id) == (0, topic_id("u"))


def test_a_new_leader_epoch_reaches_the_log(world):
    world.commit(*topic("t"))
    world.commit(messages.PartitionChangeRecord(partition_id=0, topic_id=topic_id("t"), leader=BROKER))
    assert world.partitions.get("t", 0).leader_epoch == 1


def test_configuration_of_a_topic_and_of_the_broker_reach_the_log(world):
    world.commit(*topic("t"))
    log = world.partitions.get("t", 0)
    change = messages.ConfigRecord(
        resource_type=TOPIC, resource_name="t", name="segment.bytes", value="2097152"
    )
    world.commit(change)
    assert log.config.segment_bytes == 2 << 20
    world.partitions.update_defaults(
        BrokerConfig({**world.disks.settings, "log.segment.bytes": "4194304", "log.retention.ms": "5000"})
    )
    assert (log.config.segment_bytes, log.config.retention_ms) == (2 << 20, 5000)
    change.value = None
    world.commit(change)
    assert log.config.segment_bytes == 4 << 20


def test_everything_is_there_after_a_restart(world):
    world.commit(*topic("t", partitions=2), *topic("u"))
    world.partitions.get("t", 1).append_client(batch(4), 1_000)
    world.restart()
    assert len(world.partitions) == 3
    assert world.partitions.get("t", 1).end_offset == 4
    assert world.table.get("t", 1) is world.partitions.get("t", 1).native


def test_a_partition_on_a_failed_directory_is_a_storage_error(tmp_path):
    world = World(tmp_path, count=2)
    world.commit(*topic("t", partitions=2))
    lost = world.partitions.get("t", 0)
    lost.on_failure(OSError(5, "the disk is gone"))
    with pytest.raises(KafkaError) as refused:
        lost.append_client(batch(1), 1_000)
    assert refused.value.code == errors.KAFKA_STORAGE_ERROR
    assert world.partitions.get("t", 1).append_client(batch(1), 1_000).base_offset == 0


def test_a_partition_that_we_are_not_let_lead_is_led_later(world, monkeypatch):
    lead, opened = Log.set_leader_epoch, []

    def refused(log, *arguments, **options):
        if log.partition == 1:
            raise KafkaError(errors.KAFKA_STORAGE_ERROR)
        lead(log, *arguments, **options)

    monkeypatch.setattr(Log, "set_leader_epoch", refused)
    world.partitions.on_opened = lambda log: opened.append(log.partition)
    world.commit(*topic("t", partitions=3))
    assert opened == [0, 2]
    for index, code in ((0, 0), (1, errors.KAFKA_STORAGE_ERROR), (2, 0)):
        assert world.table.get("t", index).try_append(batch(1), 1_000)[0] == code
    monkeypatch.setattr(Log, "set_leader_epoch", lead)
    world.disks.scheduler.run(1_000)
    assert world.table.get("t", 1).try_append(batch(1), 1_000)[0] == 0
    assert world.partitions.get("t", 1).epochs == [(0, 0)]
    assert opened == [0, 2, 1]


def test_a_full_disk_does_not_keep_a_partition_from_being_led(world, monkeypatch):
    """REVIEW D3: the file with the leader epochs is written when there is room."""
    write_file, opened = leader_epochs.write_file, []

    def full(path, data, **how):
        if "/t-1/" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_file(path, data, **how)

    monkeypatch.setattr(leader_epochs, "write_file", full)
    world.partitions.on_opened = lambda log: opened.append(log.partition)
    world.commit(*topic("t", partitions=3))
    assert opened == [0, 1, 2]
    for index in range(3):
        assert world.table.get("t", index).try_append(batch(1), 1_000)[0] == 0
    monkeypatch.setattr(leader_epochs, "write_file", write_file)
    log = world.partitions.get("t", 1)
    log.flush()
    assert log.epochs == [(0, 0)]
    with open(f"{log.directory}/leader-epoch-checkpoint") as file:
        assert file.read() == "0\n1\n0 0\n"


def test_what_has_another_leader_comes_before_what_has_lost_a_replica(world):
    made = topic_id("t")
    world.commit(
        messages.TopicRecord(name="t", topic_id=made),
        *(
            messages.PartitionRecord(
                partition_id=index, topic_id=made, replicas=[7, BROKER], isr=[7, BROKER], leader=7,
                leader_epoch=0, partition_epoch=0, directories=[bytes(16)] * 2,
            )
            for index in range(4)
        ),
    )  # fmt: skip
    told = []
    world.partitions.on_role = lambda log, state: told.append((log.partition, log.native.leader_epoch))
    change = messages.PartitionChangeRecord
    world.commit(
        change(topic_id=made, partition_id=0, isr=[7]),
        change(topic_id=made, partition_id=1, isr=[BROKER], leader=BROKER),
        change(topic_id=made, partition_id=2, isr=[7]),
        change(topic_id=made, partition_id=3, isr=[BROKER], leader=BROKER),
    )
    assert told == [(1, 1), (3, 1), (0, 0), (2, 0)]


def test_a_partition_without_other_replicas_whose_directory_is_gone_begins_empty_and_says_so(world, caplog):
    """As in Kafka, which says nothing."""
    world.commit(*topic("t", 2))
    log = world.partitions.get("t", 0)
    for _ in range(3):
        log.append_client(batch(), 1_000)
    world.disks.dirs.close()
    for index in range(2):
        shutil.rmtree(f"{world.disks.paths[0]}/t-{index}")
    world.restart()
    for _ in range(2):
        world.disks.scheduler.settle()
        world.disks.scheduler.run(1_000)
    assert [world.partitions.get("t", index).end_offset for index in range(2)] == [0, 0]
    assert caplog.text.count("t-0 is gone, with records up to offset 3: the log begins empty") == 1
    assert "t-1 is gone" not in caplog.text  # it was empty
    world.restart()
    assert caplog.text.count(" is gone") == 1


@pytest.mark.parametrize("then", ["another leads", "left the ISR", "back", "made"])
def test_a_replica_whose_directory_is_gone_does_not_lead_with_an_empty_log(world, then):
    """Others would follow it, and truncate. It stays refused after more starts, too."""
    made = topic_id("t")
    there = partition(made, 0)
    there.replicas = [BROKER, 2]
    world.commit(messages.TopicRecord(name="t", topic_id=made), there)
    world.partitions.get("t", 0).append_client(batch(), 1_000)
    world.disks.dirs.checkpoint()
    world.disks.scheduler.settle()
    world.disks.dirs.close()
    path, away = f"{world.disks.paths[0]}/t-0", f"{world.disks.paths[0]}.away"
    os.rename(path, away)

    def goes_on():
        for _ in range(3):
            world.disks.scheduler.settle()
            world.disks.scheduler.run(5_000)

    for _ in range(3):
        world.restart()
        assert world.disks.dirs.misses_logs(lambda topic, index: topic == "t")
        world.commit(*topic("u"))
        goes_on()
        world.disks.dirs.checkpoint()
        goes_on()
        with pytest.raises(KafkaError) as refusal:
            world.partitions.get("t", 0)
        assert refusal.value.code == errors.KAFKA_STORAGE_ERROR
        assert not os.path.exists(path)
        world.commit(messages.RemoveTopicRecord(topic_id=topic_id("u")))

    change = messages.PartitionChangeRecord(partition_id=0, topic_id=made)
    if then == "back":
        os.rename(away, path)
        goes_on()
        with pytest.raises(KafkaError):  # it may still be being copied
            world.partitions.get("t", 0)
        world.disks.dirs.close()
        assert not world.disks.dirs.misses_logs(lambda topic, index: True)
        world.restart()
    elif then == "made":
        os.mkdir(path)
        goes_on()
        with pytest.raises(KafkaError):  # as after `rm -r t-0/*`
            world.partitions.get("t", 0)
        Path(path, FIRST_SEGMENT).touch()
    else:
        change.leader, change.isr = 2, [2] if then == "left the ISR" else [BROKER, 2]
        world.commit(change)
    goes_on()
    if then == "another leads":
        with pytest.raises(KafkaError):
            world.partitions.get("t", 0)
        return
    log = world.partitions.get("t", 0)
    assert (log.directory, log.end_offset) == (path, int(then == "back"))
    assert not world.disks.dirs.misses_logs(lambda topic, index: True)


def closed_replica(world) -> str:
    """The directory of a partition with two records here and another replica, after a clean stop."""
    made = topic_id("t")
    there = partition(made, 0)
    there.replicas = [BROKER, 2]
    world.commit(messages.TopicRecord(name="t", topic_id=made), there)
    world.partitions.get("t", 0).append_client(batch(2), 1_000)
    world.disks.dirs.close()
    return f"{world.disks.paths[0]}/t-0"


def emptied(path: str, kept: str) -> None:
    """Remove the files of a partition by hand: all, or only its segments."""
    for file in Path(path).iterdir():
        if kept == "nothing" or file.name[:1] == "0":
            file.unlink()


@pytest.mark.parametrize("kept", ["nothing", "small files"])
def test_a_partition_without_other_replicas_whose_directory_was_emptied_begins_empty_and_says_so(
    tmp_path, caplog, kept
):
    world = World(tmp_path, 2)
    world.commit(*topic("t", 2))
    paths = [world.partitions.get("t", index).directory for index in range(2)]
    world.partitions.get("t", 0).append_client(batch(3), 1_000)
    world.disks.dirs.close()
    for path in paths:
        emptied(path, kept)
    world.restart()
    world.disks.scheduler.settle()
    logs = [world.partitions.get("t", index) for index in range(2)]
    assert [(log.directory, log.end_offset) for log in logs] == [(path, 0) for path in paths]
    assert caplog.text.count("t-0 is gone, with records up to offset 3: the log begins empty") == 1
    assert caplog.text.count(" is gone") == 1
    world.partitions.get("t", 0).append_client(batch(1), 1_000)
    world.restart()
    assert world.partitions.get("t", 0).end_offset == 1 and caplog.text.count(" is gone") == 1


@pytest.mark.parametrize("kept", ["nothing", "small files"])
@pytest.mark.parametrize("then", ["another leads", "left the ISR", "put back", "begun anew"])
def test_a_replica_whose_directory_was_emptied_does_not_lead_with_an_empty_log(world, kept, then):
    """`rm -r t-0/*` is no permission, unlike an empty first segment."""
    made, path = topic_id("t"), closed_replica(world)
    shutil.copytree(path, f"{path}.copy")
    emptied(path, kept)
    for _ in range(2):
        assert world.disks.dirs.misses_logs(lambda topic, index: True)
        world.restart()
        world.disks.scheduler.settle()
        world.disks.scheduler.run(5_000)
        world.disks.dirs.checkpoint()
        world.disks.scheduler.settle()
        with pytest.raises(KafkaError) as refusal:
            world.partitions.get("t", 0)
        assert refusal.value.code == errors.KAFKA_STORAGE_ERROR
        assert not os.path.exists(f"{path}/{FIRST_SEGMENT}")
    if then == "put back":
        shutil.rmtree(path)
        os.rename(f"{path}.copy", path)
        world.disks.dirs.close()
        assert not world.disks.dirs.misses_logs(lambda topic, index: True)
        world.restart()
    elif then == "begun anew":
        Path(path, FIRST_SEGMENT).touch()
    else:
        change = messages.PartitionChangeRecord(partition_id=0, topic_id=made)
        change.leader, change.isr = 2, [2] if then == "left the ISR" else [BROKER, 2]
        world.commit(change)
    world.disks.scheduler.run(5_000)
    world.disks.scheduler.settle()
    if then == "another leads":
        with pytest.raises(KafkaError):
            world.partitions.get("t", 0)
        return
    log = world.partitions.get("t", 0)
    assert (log.directory, log.end_offset) == (path, 2 if then == "put back" else 0)
    world.disks.scheduler.settle()
    offsets = read_offsets(f"{world.disks.paths[0]}/{RECOVERY_POINTS}")
    assert offsets["t", 0] == (2 if then == "put back" else 0)


def test_a_start_with_an_empty_first_segment_goes_on_without_the_records_but_says_that_they_are_missing(
    world,
):
    """The broker registers as after an unclean stop, so another replica leads if there is one."""
    path = closed_replica(world)
    emptied(path, "nothing")
    Path(path, FIRST_SEGMENT).touch()
    assert world.disks.dirs.misses_logs(lambda topic, index: True)
    world.restart()
    assert world.partitions.get("t", 0).end_offset == 0


def lost_partition(world) -> Log:
    """The log of a partition with two records in the second of two directories."""
    _, second = world.disks.dirs.directories()
    made = topic_id("t")
    there = partition(made, 0)
    there.directories = [second.id]
    world.commit(messages.TopicRecord(name="t", topic_id=made), there)
    log = world.partitions.get("t", 0)
    log.append_client(batch(2), 1_000)
    return log


def elected_to(directory: bytes):
    """The change after an unclean election of this broker, without a log."""
    return messages.PartitionChangeRecord(
        partition_id=0,
        topic_id=topic_id("t"),
        leader=BROKER,
        isr=[BROKER],
        leader_recovery_state=RECOVERING,
        directories=[directory],
    )


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_partition_whose_directory_is_lost_begins_empty_where_the_controller_says(
    tmp_path, replaced, killed
):
    world = World(tmp_path, 2)
    old = lost_partition(world).directory
    world.disks.dirs.close()
    second = Path(world.disks.paths[1])
    second.rename(tmp_path / "gone")
    if not replaced:
        second.touch()
    world.restart()
    with pytest.raises(KafkaError) as refused:
        world.partitions.get("t", 0)
    assert refused.value.code == errors.KAFKA_STORAGE_ERROR
    directory = world.disks.dirs.directories()[1 if replaced else 0]
    if killed:  # right after the change was written
        world.image, _ = applied(world.image, [elected_to(directory.id)])
        world.restart()
    else:
        world.commit(elected_to(directory.id))
    log = world.partitions.get("t", 0)
    assert world.table.get("t", 0) is log.native
    assert (log.directory, log.end_offset) == (f"{directory.path}/t-0", 0)
    assert log.append_client(batch(1), 1_000).base_offset == 0
    world.restart()
    assert world.partitions.get("t", 0).end_offset == 1
    assert os.path.exists(old) == replaced


def test_a_partition_on_a_disk_that_fails_begins_empty_elsewhere_only_after_an_unclean_election(tmp_path):
    world = World(tmp_path, 2)
    lost = lost_partition(world)
    led = []
    world.partitions.on_led = led.append
    first, second = world.disks.dirs.directories()
    world.disks.dirs.go_offline(second)
    leaderless = messages.PartitionChangeRecord(partition_id=0, topic_id=topic_id("t"), leader=-1)
    moving = elected_to(first.id)  # as if it was moving when the disk failed
    moving.leader_recovery_state = -1
    for change in (leaderless, moving):
        world.commit(change)
        assert world.partitions.get("t", 0) is lost
    led.clear()
    world.commit(elected_to(first.id))
    (log,) = led
    assert world.partitions.get("t", 0) is log is not lost
    assert world.table.get("t", 0) is log.native
    assert (log.directory, log.end_offset) == (f"{first.path}/t-0", 0)
    assert log.append_client(batch(1), 1_000).base_offset == 0
    assert os.path.exists(lost.directory)


def test_every_worker_forgets_what_the_log_of_a_deleted_topic_had(world):
    """Each notes at the start what is gone; another may have the next topic of that name."""
    world.partitions.mine = lambda *_: False
    world.commit(*topic("t"))
    (directory,) = world.disks.dirs.directories()
    directory.missing["t", 0] = 5
    world.commit(messages.RemoveTopicRecord(topic_id=topic_id("t")))
    assert directory.missing == {}


def test_a_log_of_which_retention_has_left_an_empty_segment_is_not_missing(world):
    world.commit(*topic("t"))
    log = world.partitions.get("t", 0)
    log.append_client(batch(3), 1_000)
    log.delete_records(3)
    log.roll(1_000)
    assert log.apply_retention(1_000) == 1
    world.disks.dirs.close()
    assert [path.name for path in Path(log.directory).glob("*.log")] == [f"{3:020d}.log"]
    assert not world.disks.dirs.misses_logs(lambda topic, index: True)
    world.restart()
    assert world.partitions.get("t", 0).end_offset == 3


def test_a_replica_whose_directory_is_gone_is_reported_seldom(world, caplog):
    shutil.rmtree(closed_replica(world))
    world.restart()
    caplog.clear()
    for _ in range(300):
        world.disks.scheduler.run(1_000)
    assert caplog.text.count(" is gone, with records") <= 2
    for _ in range(600):
        world.disks.scheduler.run(1_000)
    assert 2 <= caplog.text.count(" is gone, with records") <= 3
    assert world.partitions.failed()


def test_a_replica_whose_directory_is_gone_is_not_made_elsewhere_either(tmp_path):
    """AlterReplicaLogDirs names the other directory, and the metadata do not know in which one it was."""
    world = World(tmp_path, 2)
    made = topic_id("t")
    there = partition(made, 0)
    there.replicas = [BROKER, 2]
    world.commit(messages.TopicRecord(name="t", topic_id=made), there)
    log = world.partitions.get("t", 0)
    log.append_client(batch(), 1_000)
    world.disks.dirs.close()
    shutil.rmtree(log.directory)
    world.restart()
    for path in world.disks.paths:
        world.disks.dirs.moves.prefer("t", 0, path)
        world.disks.scheduler.run(5_000)
        with pytest.raises(KafkaError):
            world.partitions.get("t", 0)
        assert not os.path.exists(f"{path}/t-0")
    dirs = world.disks.dirs
    dirs.go_offline(next(each for each in dirs.directories() if each.missing))
    world.disks.scheduler.run(5_000)
    assert world.partitions.failed() and not any(os.path.exists(f"{path}/t-0") for path in world.disks.paths)
