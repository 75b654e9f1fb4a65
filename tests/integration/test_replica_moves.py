"""Replicas move between the log directories of a broker (KIP-113), while clients write and read.

A move is held in the middle by a rate of next to nothing, and let go by the end of it."""

import json
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kafkad.protocol import errors, messages
from kafkad.testing import Broker
from tests.clients import read_partition, wait_until
from tests.integration.test_kill import PARTITIONS, TOPIC, write_while_killed
from tests.jvm import NEWEST, JvmKafka, run_tool
from tests.member_cluster import MemberCluster
from tests.power import compiled
from tests.wire import Wire, batch, create_topic, high_watermark, produce

pytestmark = pytest.mark.workers(2)

WAIT_S = 60
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
NEXT_TO_NOTHING = 2_000  # bytes a second
SEGMENTS = {"segment_bytes": str(1 << 20)}


class Dirs:
    """A broker with two data directories, of which the second one's disk can break."""

    def __init__(self, tmp_path: Path, **config: object) -> None:
        self.first, self.second = tmp_path / "first", tmp_path / "second"
        self.broken = tmp_path / "broken"
        environment = {
            "LD_PRELOAD": compiled("broken_disk"),
            "BROKEN_DISK": str(self.second) + "/",
            "BROKEN_DISK_NOW": str(self.broken),
        }
        properties = tmp_path / "server.properties"
        lines = [f"log.dirs={self.first},{self.second}"]
        lines += [f"{key.replace('_', '.')}={value}" for key, value in config.items()]
        properties.write_text("\n".join(lines) + "\n")
        self.broker = Broker(properties=properties, listen="127.0.0.1:0", env=environment)

    def wire(self) -> Wire:
        return Wire(self.broker.bootstrap, timeout=WAIT_S)

    def other(self, directory: Path) -> Path:
        return self.second if directory == self.first else self.first


@pytest.fixture
def dirs(tmp_path):
    made = Dirs(tmp_path)
    with made.broker:
        yield made


def alter(wire: Wire, topic: str, partition: int, path: object) -> int:
    """The error code."""
    asked = messages.AlterReplicaLogDirsRequest
    of_topic = asked.Dirs.Topics(name=topic, partitions=[partition])
    answer = wire.ask(asked(dirs=[asked.Dirs(path=str(path), topics=[of_topic])]), 2)
    [result] = answer.results
    assert (result.topic_name, result.partitions[0].partition_index) == (topic, partition)
    return result.partitions[0].error_code


def described(wire: Wire, topic: str, partition: int = 0) -> dict[bool, tuple[Path, int, int]]:
    """Whether it is a future replica -> its directory, size and lag."""
    answer = wire.ask(messages.DescribeLogDirsRequest(topics=None), 4)
    return {
        each.is_future_key: (Path(result.log_dir), each.partition_size, each.offset_lag)
        for result in answer.results
        for known in result.topics
        if known.name == topic
        for each in known.partitions
        if each.partition_index == partition
    }


def place(wire: Wire, topic: str, partition: int = 0) -> Path:
    return described(wire, topic, partition)[False][0]


def wait_for_move(wire: Wire, topic: str, target: Path, partition: int = 0) -> None:
    wait_until(
        lambda: (
            {future: each[0] for future, each in described(wire, topic, partition).items()} == {False: target}
        ),
        WAIT_S,
    )


def limit(bootstrap: str, rate: int | None, broker: int = 1) -> None:
    operation = AlterConfigOpType.DELETE if rate is None else AlterConfigOpType.SET
    entry = ConfigEntry(RATE, None if rate is None else str(rate), incremental_operation=operation)
    resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [done] = admin.incremental_alter_configs([resource]).values()
    done.result(WAIT_S)


def fill(wire: Wire, topic: str, count: int, first: int = 0, size: int = 100_000) -> None:
    for number in range(first, first + count):
        answer = produce(wire, topic, bytes(batch(b"%d:" % number + b"x" * size)))
        assert (answer.error_code, answer.base_offset) == (errors.NONE, number)


def numbers(broker, topic: str, first: int, end: int) -> None:
    """The records from `first` on are those of `fill`."""
    found = read_partition(broker, topic, end - first, offset=first)
    assert [int(each.value().split(b":")[0]) for each in found] == list(range(first, end))


def start_held(dirs: Dirs, wire: Wire, topic: str, records: int = 100, **config: str) -> Path:
    """A topic whose move does not get on; its target."""
    create_topic(wire, topic, **{**SEGMENTS, **config})
    fill(wire, topic, records)
    limit(dirs.broker.bootstrap, NEXT_TO_NOTHING)
    target = dirs.other(place(wire, topic))
    wait_until(lambda: alter(wire, topic, 0, target) == errors.NONE, WAIT_S)
    shown = described(wire, topic)
    assert shown[True][0] == target and shown[False][0] != target
    return target


def wait_for_more(what: list[int]) -> None:
    before = len(what)
    wait_until(lambda: len(what) > before, WAIT_S)


def directories_of(*places: Path) -> list[str]:
    """Names of the partition's directories, without their unique part."""
    names = [f"{each.name}/{entry.name}" for each in places for entry in each.glob("moved-0*")]
    return sorted(re.sub(r"\.[0-9a-f]{32}", "", name) for name in names)


@pytest.mark.parametrize("flushes", [{}, {"flush_messages": "1"}], ids=["", "flushed"])
def test_a_replica_moves_while_it_is_written_and_read(dirs, flushes):
    with dirs.wire() as wire:
        create_topic(wire, "moved", **SEGMENTS, **flushes)
        fill(wire, "moved", 40)
        stop, troubles, acknowledged = threading.Event(), [], []
        producer = Producer(
            {"bootstrap.servers": dirs.broker.bootstrap, "enable.idempotence": True, "linger.ms": 1}
        )

        def told(error, message):
            record = int(message.value().split(b":")[0]), message.offset()
            (troubles if error else acknowledged).append(error or record)

        def write() -> None:
            number = 40
            while not stop.is_set() or number < 100:
                producer.produce("moved", b"%d:" % number + b"y" * 2000, partition=0, on_delivery=told)
                producer.poll(0.001)
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(4):  # there and back
                target = dirs.other(place(wire, "moved"))
                assert alter(wire, "moved", 0, target) == errors.NONE
                wait_for_move(wire, "moved", target)
                assert (target / "moved-0").is_dir()
                wait_for_more(acknowledged)
        finally:
            stop.set()
            writer.join()
        assert producer.flush(WAIT_S) == 0 and not troubles
        end = 40 + len(acknowledged)
        assert sorted(number for number, _ in acknowledged) == list(range(40, end))
        # each is where its number says; librdkafka may know no offset of what it sent again
        assert all(offset in (number, None) for number, offset in acknowledged)
        assert high_watermark(wire, "moved") == end
    numbers(dirs.broker, "moved", 0, end)
    for stopped in (dirs.broker.kill, dirs.broker.stop):
        stopped()
        dirs.broker.restart()
        with dirs.wire() as wire:
            assert place(wire, "moved") == target and high_watermark(wire, "moved") == end
        numbers(dirs.broker, "moved", 0, end)


def test_a_move_follows_its_rate_deletions_transactions_and_a_restart(dirs):
    with dirs.wire() as wire:
        target = start_held(dirs, wire, "moved")
        assert described(wire, "moved")[True][2] > 0  # it lags
        delete = messages.DeleteRecordsRequest
        partition = delete.Topics.Partitions(partition_index=0, offset=33)
        request = delete(topics=[delete.Topics(name="moved", partitions=[partition])], timeout_ms=10_000)
        assert wire.ask(request, 2).topics[0].partitions[0].error_code == 0
        producer = Producer({"bootstrap.servers": dirs.broker.bootstrap, "transactional.id": "mover"})
        producer.init_transactions(WAIT_S)
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.produce("moved", b"in a transaction", partition=0)
            producer.flush(WAIT_S)
            end(WAIT_S)
        producer.begin_transaction()  # stays open
        producer.produce("moved", b"open", partition=0)
        producer.flush(WAIT_S)
        assert described(wire, "moved")[True][0] == target  # still on its way
    for stopped in (dirs.broker.kill, dirs.broker.stop):
        stopped()
        dirs.broker.restart()
        with dirs.wire() as wire:  # the move goes on
            assert described(wire, "moved")[True][0] == target
    limit(dirs.broker.bootstrap, None)
    with dirs.wire() as wire:
        wait_for_move(wire, "moved", target)
        stamp = messages.ListOffsetsRequest.Topics
        for isolation, latest in ((0, 105), (1, 104)):
            offsets = []
            for timestamp in (-2, -1, 0):
                asked = stamp.Partitions(partition_index=0, timestamp=timestamp)
                request = messages.ListOffsetsRequest(
                    replica_id=-1, isolation_level=isolation, topics=[stamp(name="moved", partitions=[asked])]
                )
                offsets.append(wire.ask(request, 5).topics[0].partitions[0].offset)
            assert offsets == [33, latest, 33]
    consumer = Consumer(
        {"bootstrap.servers": dirs.broker.bootstrap, "group.id": "-", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition("moved", 0, 33)])
    seen = [consumer.poll(WAIT_S).value() for _ in range(68)]
    consumer.close()
    assert [int(value.split(b":")[0]) for value in seen[:67]] == list(range(33, 100))
    assert seen[67] == b"in a transaction"  # the committed one
    wait_until(lambda: directories_of(dirs.first, dirs.second)[-1:] == [f"{target.name}/moved-0"], WAIT_S)


def test_a_move_back_cancels_and_another_request_is_none(dirs):
    with dirs.wire() as wire:
        target = start_held(dirs, wire, "moved")
        source = place(wire, "moved")
        assert alter(wire, "moved", 0, target) == errors.NONE  # again
        assert described(wire, "moved")[True][0] == target
        assert alter(wire, "moved", 0, source) == errors.NONE
        assert set(described(wire, "moved")) == {False} and place(wire, "moved") == source
        wait_until(lambda: directories_of(target) == [], WAIT_S)
        assert alter(wire, "moved", 0, target) == errors.NONE  # and a new one
        limit(dirs.broker.bootstrap, None)
        wait_for_move(wire, "moved", target)
        numbers(dirs.broker, "moved", 0, 100)
        assert alter(wire, "moved", 0, target) == errors.NONE  # it is there
        assert set(described(wire, "moved")) == {False}


def test_our_own_command_moves_and_shows_replicas(dirs):
    def command(*arguments: str) -> tuple[int, list[dict[str, object]]]:
        line = [sys.executable, "-m", "kafkad", "cluster", "move", *arguments, "--json"]
        done = subprocess.run(
            [*line, "--bootstrap-server", dirs.broker.bootstrap],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        return done.returncode, json.loads(done.stdout)

    with dirs.wire() as wire:
        target = start_held(dirs, wire, "moved", 50)
        source = place(wire, "moved")
        code, [row] = command()
        assert (code, row["topic"], row["partition"], row["directory"]) == (0, "moved", 0, str(target))
        assert row["offset_lag"] > 0
        assert command(f"moved-0={source}")[0] == 0
        assert command() == (0, [])
        code, [row] = command("moved-0=/nowhere")
        assert code != 0 and row["error"] == "LOG_DIR_NOT_FOUND"


def test_a_topic_is_deleted_while_it_moves(dirs):
    with dirs.wire() as wire:
        target = start_held(dirs, wire, "moved")
        delete = messages.DeleteTopicsRequest(topic_names=["moved"], timeout_ms=10_000)
        assert wire.ask(delete, 5).responses[0].error_code == 0
        wait_until(lambda: not any("future" in each for each in directories_of(target)), WAIT_S)
        create_topic(wire, "moved")
        assert set(described(wire, "moved")) == {False}
        fill(wire, "moved", 1)


def test_what_cannot_move_is_refused_by_kafkas_codes(dirs):
    with dirs.wire() as wire:
        create_topic(wire, "moved", 2)
        target = dirs.other(place(wire, "moved"))
        assert alter(wire, "moved", 0, target / "nowhere") == errors.LOG_DIR_NOT_FOUND
        assert alter(wire, "moved", 7, target) == errors.UNKNOWN_TOPIC_OR_PARTITION
        assert alter(wire, "a" * 230, 0, target) == errors.INVALID_TOPIC_EXCEPTION
        for number in range(3):  # where they are to be, when they are created
            assert alter(wire, f"later-{number}", 0, dirs.second) == errors.UNKNOWN_TOPIC_OR_PARTITION
            create_topic(wire, f"later-{number}")
            assert place(wire, f"later-{number}") == dirs.second
        dirs.broken.touch()
        moved = next(index for index in (0, 1) if place(wire, "moved", index) == dirs.second)
        assert produce(wire, "moved", bytes(batch(b"1")), moved).error_code == errors.KAFKA_STORAGE_ERROR

        def is_offline() -> bool:
            answer = wire.ask(messages.DescribeLogDirsRequest(topics=None), 4)
            return [each.error_code for each in answer.results] == [0, errors.KAFKA_STORAGE_ERROR]

        wait_until(is_offline, WAIT_S)
        assert alter(wire, "moved", 1 - moved, dirs.second) == errors.KAFKA_STORAGE_ERROR
        assert alter(wire, "moved", moved, dirs.first) == errors.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("breaks", ["target", "source"])
def test_a_disk_fails_in_the_midst_of_a_move(tmp_path, breaks):
    dirs = Dirs(tmp_path)
    with dirs.broker, dirs.wire() as wire:
        source = dirs.first if breaks == "target" else dirs.second
        alter(wire, "moved", 0, source)  # where it will be created
        target = start_held(dirs, wire, "moved")
        assert target == dirs.other(source)
        dirs.broken.touch()
        if breaks == "target":
            limit(dirs.broker.bootstrap, None)
            wait_until(lambda: set(described(wire, "moved")) == {False}, WAIT_S)
            fill(wire, "moved", 1, first=100)
        else:
            answer = produce(wire, "moved", bytes(batch(b"1")))
            assert answer.error_code == errors.KAFKA_STORAGE_ERROR
            wait_until(lambda: False not in described(wire, "moved"), WAIT_S)
            assert described(wire, "moved")[True][2] == -1
            limit(dirs.broker.bootstrap, None)
        count = 101 if breaks == "target" else 100
        assert dirs.broker.stop() == 0
        dirs.broken.unlink()
        dirs.broker.restart()
        with dirs.wire() as again:  # with both disks it goes on
            wait_for_move(again, "moved", target)
            # for a moment other workers look into its old directory, and answer NOT_LEADER_OR_FOLLOWER
            wait_until(lambda: leads(again, "moved"), WAIT_S)
            assert high_watermark(again, "moved") == count
        numbers(dirs.broker, "moved", 0, count)


def test_a_log_whose_copy_had_no_name_yet_is_found(dirs):
    """A kill between the two renames: the old directory is out of use, and the copy has no plain name."""
    with dirs.wire() as wire:
        create_topic(wire, "moved", **SEGMENTS)
        fill(wire, "moved", 30)
        target = dirs.other(place(wire, "moved"))
        assert alter(wire, "moved", 0, target) == errors.NONE
        wait_for_move(wire, "moved", target)
    dirs.broker.kill()
    (target / "moved-0").rename(target / f"moved-0.{'a' * 32}-future")
    dirs.broker.restart()
    with dirs.wire() as wire:
        assert place(wire, "moved") == target
        fill(wire, "moved", 1, first=30)
    numbers(dirs.broker, "moved", 0, 31)


@pytest.mark.workers()  # it takes its own numbers of workers
@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [None, 2])
def test_acknowledged_records_survive_kill_9_while_replicas_move(tmp_path, rounds, workers):
    """Of the broker, or of one of its workers."""
    places = [tmp_path / "first", tmp_path / "second"]
    moves = []

    def kill(broker, chance):
        end = time.monotonic() + chance.uniform(0, 0.3)
        with suppress(OSError), Wire(broker.bootstrap, timeout=WAIT_S) as wire:
            for partition in range(PARTITIONS):
                known = described(wire, TOPIC, partition).get(False)
                if known is not None:  # else its worker is away
                    target = next(each for each in places if each != known[0])
                    moves.append(alter(wire, TOPIC, partition, target))
        time.sleep(max(0.0, end - time.monotonic()))
        if workers is not None:
            broker.kill_worker(chance.randrange(workers))
            return
        broker.kill()
        broker.restart()
        found = [entry.name for each in places for entry in each.iterdir()]
        assert [found.count(f"{TOPIC}-{partition}") for partition in range(PARTITIONS)] == [1] * PARTITIONS

    properties = tmp_path / "server.properties"
    properties.write_text(f"log.dirs={places[0]},{places[1]}\n")
    where = {"properties": properties, "listen": "127.0.0.1:0"}
    write_while_killed(tmp_path, rounds(5, 300), kill, workers, **where)
    assert errors.NONE in moves


def plan_of(tmp_path: Path, topic: str, replicas: list[int], paths: list[object]) -> Path:
    plan = tmp_path / "plan.json"
    partition = {
        "topic": topic,
        "partition": 0,
        "replicas": replicas,
        "log_dirs": [str(path) for path in paths],
    }
    plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    return plan


@pytest.mark.java
def test_kafkas_tools_move_a_replica(dirs, tmp_path):
    with dirs.wire() as wire:
        create_topic(wire, "moved", **SEGMENTS)
        fill(wire, "moved", 50)
        server = ("--bootstrap-server", dirs.broker.bootstrap)
        for throttle in ((), ("--replica-alter-log-dirs-throttle", "100000000")):
            target = dirs.other(place(wire, "moved"))
            plan = plan_of(tmp_path, "moved", [1], [target])
            using = (*server, "--reassignment-json-file", plan)
            started = run_tool(NEWEST, "kafka-reassign-partitions", *using, "--execute", *throttle).stdout
            assert f"started moving log directory to {target} for replica moved-0 with broker 1" in started
            wait_for_move(wire, "moved", target)
            verified = run_tool(NEWEST, "kafka-reassign-partitions", *using, "--verify").stdout
            assert "Reassignment of replica moved-0-1 completed successfully" in verified
        told = run_tool(NEWEST, "kafka-log-dirs", *server, "--describe", "--topic-list", "moved").stdout
        [line] = [line for line in told.splitlines() if line.startswith("{")]
        found = {each["logDir"]: each["partitions"] for each in json.loads(line)["brokers"][0]["logDirs"]}
        assert [(row["partition"], row["isFuture"]) for row in found[str(target)]] == [("moved-0", False)]
        numbers(dirs.broker, "moved", 0, 50)


def leads(wire: Wire, topic: str) -> bool:
    """Whether the broker does: it may say earlier that a topic is made, or where its log is now."""
    try:
        high_watermark(wire, topic)
    except AssertionError:
        return False
    return True


@pytest.mark.java
@pytest.mark.workers()  # the other side has one
@pytest.mark.parametrize("begins", ["jvm", "kafkad"])
def test_a_move_begun_by_one_is_gone_on_with_by_the_other(tmp_path, begins):
    first, second = tmp_path / "data", tmp_path / "second"
    second.mkdir()
    jvm = JvmKafka(first, config={"log.dirs": f"{first},{second}"})
    ours = Broker(properties=jvm.properties)
    before, after = (jvm, ours) if begins == "jvm" else (ours, jvm)
    with before:
        with Wire(before.bootstrap, timeout=WAIT_S) as wire:
            create_topic(wire, "moved", **SEGMENTS)
            wait_until(lambda: begins == "kafkad" or leads(wire, "moved"))
            fill(wire, "moved", 100)
            source = place(wire, "moved")
            target = second if source == first else first
            limit(before.bootstrap, 300_000)
            assert alter(wire, "moved", 0, target) == errors.NONE
            wait_until(lambda: described(wire, "moved")[True][1] > 1_000_000, WAIT_S)
            limit(before.bootstrap, 1)
            assert described(wire, "moved")[True][0] == target
        before.stop()
    [future] = [entry for entry in target.iterdir() if entry.name.endswith("-future")]
    assert any(entry.stat().st_size for entry in future.glob("*.log"))
    with after, Wire(after.bootstrap, timeout=WAIT_S) as wire:
        limit(after.bootstrap, None)
        wait_for_move(wire, "moved", target)
        fill(wire, "moved", 1, first=100)
        numbers(after, "moved", 0, 101)


@pytest.mark.workers()  # it has its own number
def test_replicas_of_a_cluster_move(tmp_path):
    """A leader's and a follower's; the ISR stays whole, also after a restart."""
    with MemberCluster(tmp_path, brokers=2, workers={1: 1, 2: 2}, second_directories=True) as cluster:
        places = {number: [tmp_path / f"broker-{number}", tmp_path / f"second-{number}"] for number in (1, 2)}
        topic = NewTopic("moved", 1, replica_assignment=[[1, 2]])
        cluster.admin.create_topics([topic])["moved"].result(WAIT_S)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})

        def write(first: int, end: int) -> None:
            for number in range(first, end):
                producer.produce("moved", b"%d:" % number + b"x" * 10_000, partition=0)
            assert producer.flush(WAIT_S) == 0

        cluster.whole("moved")
        write(0, 300)
        targets = {}
        for number, (first, second) in places.items():
            with Wire(cluster.members[number].bootstrap, timeout=WAIT_S) as wire:
                targets[number] = target = second if place(wire, "moved") == first else first
                assert alter(wire, "moved", 0, target) == errors.NONE
                write(300 * number, 300 * number + 300)
                wait_for_move(wire, "moved", target)
        write(900, 1000)
        cluster.whole("moved")
        for number, member in cluster.members.items():
            member.kill()
            member.start()
            cluster.whole("moved")
            with Wire(member.bootstrap, timeout=WAIT_S) as wire:
                assert place(wire, "moved") == targets[number]
        numbers(cluster, "moved", 0, 1000)
        for topic, directory in zip(("here", "there"), places[2], strict=True):
            replica_begins_in(cluster, topic, directory)


def replica_begins_in(cluster: MemberCluster, topic: str, directory: Path) -> None:
    """Broker 2 is told where its replica shall be before it has one."""
    new = NewTopic(topic, 1, replica_assignment=[[1]])
    cluster.admin.create_topics([new])[topic].result(WAIT_S)
    with Wire(cluster.members[2].bootstrap, timeout=WAIT_S) as wire:
        assert alter(wire, topic, 0, directory) == errors.REPLICA_NOT_AVAILABLE
        asked = messages.AlterPartitionReassignmentsRequest
        partition = asked.Topics.Partitions(partition_index=0, replicas=[1, 2])
        wanted = asked.Topics(name=topic, partitions=[partition])
        answer = wire.ask(asked(topics=[wanted], timeout_ms=30_000), 0)
        assert answer.responses[0].partitions[0].error_code == 0
        cluster.whole(topic)
        wait_until(lambda: described(wire, topic), WAIT_S)
        assert place(wire, topic) == directory
