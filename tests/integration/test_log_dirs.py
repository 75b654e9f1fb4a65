"""Several log.dirs: partitions are spread over them, and one that fails takes only its own with it.

A directory fails by a preloaded library (tests/broken_disk.c) that answers EIO, as a dead disk does; or it is
not there when the broker starts.
"""

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkad.protocol import errors, messages
from kafkad.testing import Broker
from tests.clients import consumer, read
from tests.jvm import JvmKafka
from tests.power import compiled
from tests.wire import Wire, batch, create_topic, high_watermark, produce

pytestmark = pytest.mark.workers(2)

TOPIC = "spread"
PARTITIONS = 6
RECORDS = 5  # in each partition


class Dirs:
    """A broker with two data directories, `first` (with the metadata) and `second`."""

    def __init__(self, tmp_path: Path) -> None:
        self.first, self.second = tmp_path / "first", tmp_path / "second"
        self.gone = tmp_path / "gone"
        self.broken = tmp_path / "broken"
        environment = {
            "LD_PRELOAD": compiled("broken_disk"),
            "BROKEN_DISK": str(self.second) + "/",
            "BROKEN_DISK_NOW": str(self.broken),
        }
        properties = tmp_path / "server.properties"
        properties.write_text(f"log.dirs={self.first},{self.second}\n")
        self.broker = Broker(properties=properties, listen="127.0.0.1:0", env=environment)

    def placed(self, directory: Path) -> list[int]:
        found = (re.fullmatch(rf"{TOPIC}-(\d+)", entry) for entry in os.listdir(directory))
        return sorted(int(match[1]) for match in found if match)

    def take_second_away(self) -> None:
        self.second.rename(self.gone)
        self.second.write_text("no directory")  # so that it cannot be made anew

    def bring_second_back(self) -> None:
        self.second.unlink()
        self.gone.rename(self.second)


@pytest.fixture
def dirs(tmp_path):
    made = Dirs(tmp_path)
    with made.broker as broker, Wire(broker.bootstrap) as wire:
        create_topic(wire, TOPIC, PARTITIONS)
        for partition in range(PARTITIONS):
            for number in range(RECORDS):
                assert write(wire, partition, number) == (0, number)
        yield made


def write(wire: Wire, partition: int, number: int) -> tuple[int, int]:
    """(error code, offset)"""
    answer = produce(wire, TOPIC, bytes(batch(b"%d:%d" % (partition, number))), partition)
    return answer.error_code, answer.base_offset


def fetch_code(wire: Wire, partition: int) -> int:
    struct = messages.FetchRequest.Topics
    asked = struct.Partitions(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    request = messages.FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[struct(topic=TOPIC, partitions=[asked])],
    )
    return wire.ask(request, 11).responses[0].partitions[0].error_code


def described(wire: Wire) -> dict[str, tuple[int, list[int]]]:
    """Path -> (error code, partitions of the topic), as DescribeLogDirs tells."""
    answer = wire.ask(messages.DescribeLogDirsRequest(topics=None), 4)
    return {
        result.log_dir: (
            result.error_code,
            sorted(
                partition.partition_index
                for topic in result.topics
                if topic.name == TOPIC
                for partition in topic.partitions
            ),
        )
        for result in answer.results
    }


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def values(broker: Broker) -> list[bytes]:
    client = consumer(broker, "all")
    client.subscribe([TOPIC])
    try:
        return sorted(message.value() for message in read(client, PARTITIONS * RECORDS))
    finally:
        client.close()


ALL = sorted(b"%d:%d" % (partition, number) for partition in range(PARTITIONS) for number in range(RECORDS))


def test_partitions_are_spread_evenly_and_stay_where_they_are(dirs):
    first, second = dirs.placed(dirs.first), dirs.placed(dirs.second)
    assert len(first) == len(second) == PARTITIONS // 2
    assert sorted(first + second) == list(range(PARTITIONS))
    with Wire(dirs.broker.bootstrap) as wire:
        assert described(wire) == {str(dirs.first): (0, first), str(dirs.second): (0, second)}
    for end in (dirs.broker.stop, dirs.broker.kill):
        end()
        dirs.broker.restart()
        assert (dirs.placed(dirs.first), dirs.placed(dirs.second)) == (first, second)
        assert values(dirs.broker) == ALL
    identities = [
        dict(
            line.split("=", 1) for line in (path / "meta.properties").read_text().splitlines() if "=" in line
        )
        for path in (dirs.first, dirs.second)
    ]
    assert identities[0]["cluster.id"] == identities[1]["cluster.id"]
    assert identities[0]["directory.id"] != identities[1]["directory.id"]


def test_a_directory_that_fails_takes_only_its_own_partitions(dirs):
    first, second = dirs.placed(dirs.first), dirs.placed(dirs.second)
    with Wire(dirs.broker.bootstrap) as wire:
        dirs.broken.touch()
        assert write(wire, second[0], RECORDS)[0] == errors.KAFKA_STORAGE_ERROR
        wait_for(lambda: described(wire)[str(dirs.second)][0] == errors.KAFKA_STORAGE_ERROR)
        for partition in second:
            assert write(wire, partition, RECORDS)[0] == errors.KAFKA_STORAGE_ERROR
            assert fetch_code(wire, partition) == errors.KAFKA_STORAGE_ERROR
        for partition in first:
            assert write(wire, partition, RECORDS) == (0, RECORDS)
            assert fetch_code(wire, partition) == 0
        assert described(wire)[str(dirs.first)] == (0, first)
        create_topic(wire, "later", 2)  # goes where there is a disk
        assert produce(wire, "later", bytes(batch(b"1")), 1).error_code == 0
    assert "is offline" in dirs.broker.log
    assert dirs.broker.stop() == 0
    assert not (dirs.second / ".kafka_cleanshutdown").exists()
    assert (dirs.first / ".kafka_cleanshutdown").exists()

    dirs.broken.unlink()  # the disk is repaired
    dirs.broker.restart()
    with Wire(dirs.broker.bootstrap) as wire:
        assert described(wire) == {str(dirs.first): (0, first), str(dirs.second): (0, second)}
        for partition in range(PARTITIONS):
            assert high_watermark(wire, TOPIC, partition) == RECORDS + (partition in first)
            number = RECORDS + (partition in first)
            assert write(wire, partition, number) == (0, number)


def test_a_directory_that_is_missing_at_the_start_keeps_its_partitions_for_its_return(dirs):
    first, second = dirs.placed(dirs.first), dirs.placed(dirs.second)
    dirs.broker.stop()
    dirs.take_second_away()
    dirs.broker.restart()
    with Wire(dirs.broker.bootstrap) as wire:
        assert described(wire) == {
            str(dirs.first): (0, first),
            str(dirs.second): (errors.KAFKA_STORAGE_ERROR, []),
        }
        for partition in first:
            assert write(wire, partition, RECORDS) == (0, RECORDS)
        for partition in second:  # not made anew, empty, elsewhere: that would be a loss of all that is in it
            assert write(wire, partition, 0)[0] == errors.KAFKA_STORAGE_ERROR
            assert fetch_code(wire, partition) == errors.KAFKA_STORAGE_ERROR
        create_topic(wire, "later", 2)
        assert produce(wire, "later", bytes(batch(b"1")), 1).error_code == 0
    assert dirs.placed(dirs.first) == first
    dirs.broker.stop()
    dirs.bring_second_back()
    dirs.broker.restart()
    with Wire(dirs.broker.bootstrap) as wire:
        for partition in second:
            assert write(wire, partition, RECORDS) == (0, RECORDS)
        assert described(wire) == {str(dirs.first): (0, first), str(dirs.second): (0, second)}


def test_a_topic_is_deleted_while_a_part_of_it_is_missing(dirs):
    dirs.broker.stop()
    dirs.take_second_away()
    dirs.broker.restart()
    with Wire(dirs.broker.bootstrap) as wire:
        delete = messages.DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=10_000)
        assert wire.ask(delete, 5).responses[0].error_code == 0
        create_topic(wire, TOPIC, 2)
        assert write(wire, 1, 0) == (0, 0)
    dirs.broker.stop()
    dirs.bring_second_back()
    dirs.broker.restart()
    with Wire(dirs.broker.bootstrap) as wire:
        assert write(wire, 1, 1) == (0, 1)
        assert write(wire, 0, 0) == (0, 0)


def test_a_directory_that_was_replaced_by_an_empty_one_takes_new_partitions_only(dirs):
    """What was lost with the old one is for the operator to decide: an empty log would hide it."""
    first, second = dirs.placed(dirs.first), dirs.placed(dirs.second)
    dirs.broker.stop()
    shutil.rmtree(dirs.second)
    dirs.broker.restart()
    with Wire(dirs.broker.bootstrap) as wire:
        assert described(wire) == {str(dirs.first): (0, first), str(dirs.second): (0, [])}
        for partition in second:
            assert write(wire, partition, 0)[0] == errors.KAFKA_STORAGE_ERROR
        for partition in first:
            assert write(wire, partition, RECORDS) == (0, RECORDS)
        delete = messages.DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=10_000)
        assert wire.ask(delete, 5).responses[0].error_code == 0
        create_topic(wire, TOPIC, 2)
        assert [len(dirs.placed(each)) for each in (dirs.first, dirs.second)] == [1, 1]
        assert [write(wire, partition, 0) for partition in (0, 1)] == [(0, 0), (0, 0)]


@pytest.mark.java
def test_jvm_kafka_opens_our_two_directories(tmp_path):
    first, second = tmp_path / "data", tmp_path / "second"
    second.mkdir()
    jvm = JvmKafka(first, config={"log.dirs": f"{first},{second}"})
    with Broker(properties=jvm.properties) as broker:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, TOPIC, PARTITIONS)
            for partition in range(PARTITIONS):
                for number in range(RECORDS):
                    assert write(wire, partition, number) == (0, number)
        assert broker.stop() == 0
    spread = [sorted(path.name for path in each.glob(f"{TOPIC}-*")) for each in (first, second)]
    assert [len(names) for names in spread] == [3, 3]
    with jvm:
        assert values(jvm) == ALL
        with Wire(jvm.bootstrap) as wire:
            assert {code for code, _ in described(wire).values()} == {0}
            for partition in range(PARTITIONS):
                assert write(wire, partition, RECORDS) == (0, RECORDS)
        jvm.stop()
    assert [sorted(path.name for path in each.glob(f"{TOPIC}-*")) for each in (first, second)] == spread
    with Broker(properties=jvm.properties) as broker, Wire(broker.bootstrap) as wire:
        for partition in range(PARTITIONS):
            assert high_watermark(wire, TOPIC, partition) == RECORDS + 1
