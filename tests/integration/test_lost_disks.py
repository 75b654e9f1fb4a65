"""A disk that is lost for good: after an unclean election that names a partition, it begins empty elsewhere.

Without this consent, its partitions wait for the disk. A disk that comes back after it changes nothing."""

import re
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.protocol import errors, messages
from kafkad.testing import Broker, Cluster
from tests.clients import WAIT_S, consumer, create_topic, produce, read_partition, wait_until
from tests.integration.test_cluster import kafkad
from tests.integration.test_replica_moves import alter, wait_for_move
from tests.wire import Wire, batch, high_watermark
from tests.wire import produce as write

TOPIC = "t"
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
PARTITIONS, RECORDS = 4, 3  # of each topic; in each partition
UNCLEAN = 1
REFUSED = errors.ELIGIBLE_LEADERS_NOT_AVAILABLE


class Disks:
    """A broker with the metadata in `first`, and more directories, of which `second` is lost."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.first, self.second, self.third = (tmp_path / name for name in ("first", "second", "third"))
        self.gone = tmp_path / "gone"
        self.properties = tmp_path / "server.properties"
        self.use(self.first, self.second)
        self.broker = Broker(properties=self.properties, listen="127.0.0.1:0")

    def use(self, *paths: Path) -> None:
        self.properties.write_text(
            f"log.dirs={','.join(map(str, paths))}\n"
            f"offsets.topic.num.partitions={PARTITIONS}\ntransaction.state.log.num.partitions={PARTITIONS}\n"
        )

    def placed(self, directory: Path, topic: str) -> list[int]:
        found = (re.fullmatch(rf"{topic}-(\d+)", path.name) for path in directory.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def take_away(self, how: str) -> None:
        self.second.rename(self.gone)
        if how == "replaced":
            self.second.mkdir()
        else:
            self.second.write_text("no directory")

    def bring_back(self) -> None:
        """The old disk, beside the one that has replaced it."""
        if self.second.is_file():
            self.second.unlink()
            self.gone.rename(self.second)
        else:
            self.gone.rename(self.third)
            self.use(self.first, self.second, self.third)

    @property
    def old(self) -> Path:
        return self.third if self.third.exists() else self.second


@pytest.fixture
def disks(tmp_path):
    made = Disks(tmp_path)
    with made.broker:
        yield made


def elect(wire: Wire, wanted: dict[str, list[int]] | None) -> dict[tuple[str, int], int]:
    """The error codes of an unclean election."""
    cls = messages.ElectLeadersRequest
    topics = (
        None
        if wanted is None
        else [cls.TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in wanted.items()]
    )
    answer = wire.ask(cls(election_type=UNCLEAN, topic_partitions=topics, timeout_ms=10_000), 2)
    return {
        (topic.topic, row.partition_id): row.error_code
        for topic in answer.replica_election_results
        for row in topic.partition_result
    }


def code_of(wire: Wire, partition: int) -> tuple[int, int]:
    answer = write(wire, TOPIC, bytes(batch(b"%d" % partition)), partition)
    return answer.error_code, answer.base_offset


def commit_offset(disks: Disks, group: str) -> None:
    client = consumer(disks.broker, group)
    wait_until(lambda: committed(client))
    client.close()


def committed(client) -> bool:
    try:
        client.commit(offsets=[TopicPartition(TOPIC, 0, 1)], asynchronous=False)
    except Exception:
        return False
    return client.committed([TopicPartition(TOPIC, 0)], timeout=WAIT_S)[0].offset == 1


def transact(disks: Disks, name: str) -> None:
    client = Producer({"bootstrap.servers": disks.broker.bootstrap, "transactional.id": name})
    client.init_transactions(WAIT_S)
    client.begin_transaction()
    client.produce(TOPIC, b"in a transaction", partition=0)
    client.commit_transaction(WAIT_S)


def use_coordinators(disks: Disks) -> None:
    """Every partition of the internal topics."""
    for number in range(8):
        commit_offset(disks, f"group-{number}")
        transact(disks, f"transactional-{number}")


@pytest.mark.workers(2)
@pytest.mark.parametrize("how", ["replaced", "offline"])
def test_partitions_of_a_lost_disk_begin_empty_once_the_operator_agrees(disks, how):
    create_topic(disks.broker, TOPIC, PARTITIONS)
    use_coordinators(disks)
    with Wire(disks.broker.bootstrap) as wire:
        for partition in range(PARTITIONS):
            for _ in range(RECORDS):
                assert code_of(wire, partition)[0] == 0
        ends = [high_watermark(wire, TOPIC, partition) for partition in range(PARTITIONS)]
    lost = {topic: disks.placed(disks.second, topic) for topic in (TOPIC, OFFSETS, TRANSACTIONS)}
    assert all(lost.values())
    disks.broker.kill()
    disks.take_away(how)
    for _ in range(2):
        disks.broker.restart()
        with Wire(disks.broker.bootstrap) as wire:
            answer = elect(wire, None)  # for all partitions: names none
            assert {answer[topic, index] for topic, indexes in lost.items() for index in indexes} == {REFUSED}
            for partition in lost[TOPIC]:
                assert code_of(wire, partition)[0] == errors.KAFKA_STORAGE_ERROR
        disks.broker.kill()
    disks.broker.restart()
    with Wire(disks.broker.bootstrap) as wire:
        answer = elect(wire, lost)
        assert answer == {(topic, index): 0 for topic, indexes in lost.items() for index in indexes}
        for partition in lost[TOPIC]:
            wait_until(lambda partition=partition: code_of(wire, partition)[0] == 0, 5)
            ends[partition] = high_watermark(wire, TOPIC, partition)
        assert set(elect(wire, lost).values()) == {errors.ELECTION_NOT_NEEDED}
    use_coordinators(disks)

    for end in (disks.broker.kill, disks.broker.stop):  # nothing is missing any more
        end()
        before = len(disks.broker.log)
        disks.broker.restart()
        with Wire(disks.broker.bootstrap) as wire:
            for partition in range(PARTITIONS):
                code, offset = code_of(wire, partition)
                assert code == 0
                assert partition == 0 or offset == ends[partition]
                ends[partition] = offset + 1
        said = disks.broker.log[before:]
        assert " is gone" not in said and "is not there" not in said

    disks.broker.kill()
    disks.bring_back()
    disks.broker.restart()
    for end in (disks.broker.kill, disks.broker.stop):
        with Wire(disks.broker.bootstrap) as wire:
            for partition in lost[TOPIC]:
                assert code_of(wire, partition) == (0, ends[partition])
                ends[partition] += 1
        end()
        disks.broker.restart()
    for partition in lost[TOPIC]:
        strays = list(disks.old.glob(f"{TOPIC}-{partition}.*-stray"))
        assert len(strays) == 1 and str(strays[0]) in disks.broker.log
    use_coordinators(disks)
    assert "Traceback" not in disks.broker.log


@pytest.mark.workers(2)
@pytest.mark.parametrize("then", ["the new disk is back", "the old one is used"])
def test_a_disk_that_was_given_up_is_not_used_because_the_new_one_is_away(disks, then):
    create_topic(disks.broker, TOPIC, PARTITIONS)
    lost = list(range(1, PARTITIONS, 2))  # the controller puts them into the second directory again
    with Wire(disks.broker.bootstrap) as wire:
        for partition in range(PARTITIONS):
            place = disks.second if partition in lost else disks.first
            assert alter(wire, TOPIC, partition, place) == 0
            wait_for_move(wire, TOPIC, place, partition)
        for partition in lost:
            assert code_of(wire, partition) == (0, 0)
    disks.broker.stop()
    disks.take_away("replaced")
    disks.broker.restart()
    with Wire(disks.broker.bootstrap) as wire:
        assert set(elect(wire, {TOPIC: lost}).values()) == {0}
        for partition in lost:
            for number in range(RECORDS):
                wait_until(lambda number=number, partition=partition: code_of(wire, partition) == (0, number))
    assert disks.placed(disks.second, TOPIC) == lost
    disks.broker.stop()
    away = disks.path / "away"
    disks.second.rename(away)
    disks.second.write_text("no directory")
    disks.gone.rename(disks.third)
    disks.use(disks.first, disks.second, disks.third)
    for _ in range(3):
        disks.broker.restart()
        with Wire(disks.broker.bootstrap) as wire:
            for partition in lost:
                assert code_of(wire, partition)[0] != 0
        disks.broker.stop()
    assert "may be older than its log in a directory that is offline" in disks.broker.log
    if then == "the new disk is back":
        disks.second.unlink()
        away.rename(disks.second)
        disks.broker.restart()
    else:
        disks.broker.restart()
        with Wire(disks.broker.bootstrap) as wire:
            assert set(elect(wire, {TOPIC: lost}).values()) == {0}
    end = RECORDS if then == "the new disk is back" else 1
    with Wire(disks.broker.bootstrap) as wire:
        for partition in lost:
            wait_until(lambda partition=partition: code_of(wire, partition) == (0, end), 5)
    disks.broker.kill()
    disks.broker.restart()
    with Wire(disks.broker.bootstrap) as wire:
        for partition in lost:
            assert code_of(wire, partition) == (0, end + 1)
    assert len(list(disks.third.glob(f"{TOPIC}-*-stray"))) == (len(lost) if end == RECORDS else 0)


def test_a_partition_whose_only_replica_lost_its_disk_is_led_again_in_a_cluster():
    """And by the tool of the operator; a broker that is only down may have the records."""
    with Cluster(3) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        alone = NewTopic("alone", 1, replica_assignment=[[2]])
        pair = NewTopic("pair", 1, replica_assignment=[[2, 3]])
        for future in admin.create_topics([alone, pair], operation_timeout=WAIT_S).values():
            future.result(WAIT_S)
        for topic in ("alone", "pair"):
            produce(cluster, topic, [(None, b"old")] * 5, acks="all")
        cluster.kill(3)
        wait_until(lambda: isr_of(cluster, "pair") == [2], WAIT_S)
        cluster.kill(2)
        lost = cluster.nodes[2]
        shutil.rmtree(lost.data_dir)
        assert kafkad("format", lost.properties, "--cluster-id", cluster.cluster_id)[0] == 0
        cluster.start(2)

        def elected(topic: str) -> tuple[int, str]:
            code, out, err = kafkad(
                "cluster",
                "elect",
                "--unclean",
                f"{topic}-0",
                "--bootstrap-server",
                cluster.nodes[2].bootstrap,
            )
            return code, out + err

        wait_until(lambda: elected("alone")[0] == 0, WAIT_S)
        code, text = elected("pair")
        assert code == 1 and "may be on brokers that are down: [3]" in text
        produce(cluster, "alone", [(None, b"new")])
        assert [each.value() for each in read_partition(cluster, "alone", 1)] == [b"new"]
        for end in (cluster.kill, cluster.stop):
            end(2)
            cluster.start(2)
            produce(cluster, "alone", [(None, b"new")])
        assert len(read_partition(cluster, "alone", 3)) == 3
        log = (lost.directory / "stderr").read_text()
        assert "is gone" not in log and "Traceback" not in log


@pytest.mark.workers(2)
def test_a_disk_that_fails_under_a_broker_of_a_cluster_is_given_up_without_a_restart(tmp_path):
    with Cluster(3, data_dir=tmp_path / "cluster", workers=2) as cluster:
        node, second = cluster.nodes[2], tmp_path / "second"
        cluster.stop(2)
        lines = node.properties.read_text().replace(
            f"log.dirs={node.data_dir}", f"log.dirs={node.data_dir},{second}"
        )
        node.properties.write_text(lines)
        cluster.start(2)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        made = NewTopic(TOPIC, PARTITIONS, replica_assignment=[[2]] * PARTITIONS)
        admin.create_topics([made], operation_timeout=WAIT_S)[TOPIC].result(WAIT_S)
        wait_until(lambda: list(second.glob(f"{TOPIC}-*")), WAIT_S)
        lost = sorted(int(path.name.partition("-")[2]) for path in second.glob(f"{TOPIC}-*"))
        for partition in lost:
            produce_to(cluster, partition, RECORDS)
        gone = second.rename(tmp_path / "gone")
        second.write_text("no directory")
        wait_until(lambda: [leaders(cluster)[each] for each in lost] == [-1] * len(lost), WAIT_S)
        named = [f"{TOPIC}-{partition}" for partition in lost]
        code, out, err = kafkad("cluster", "elect", "--unclean", *named, "--bootstrap-server", node.bootstrap)
        assert code == 0, out + err
        for partition in lost:
            produce_to(cluster, partition, 1)
            assert len(read_partition(cluster, TOPIC, 1, partition)) == 1
        cluster.kill(2)
        second.unlink()
        gone.rename(second)
        cluster.start(2)
        for partition in lost:
            produce_to(cluster, partition, 1)
            assert len(read_partition(cluster, TOPIC, 2, partition)) == 2
        assert len(list(second.glob(f"{TOPIC}-*-stray"))) == len(lost)
        assert "Traceback" not in (node.directory / "stderr").read_text()


def produce_to(cluster, partition, count):
    client, failed = Producer({"bootstrap.servers": cluster.bootstrap}), []
    for _ in range(count):
        client.produce(
            TOPIC,
            b"x",
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert client.flush(WAIT_S) == 0 and not failed


def leaders(cluster):
    known = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(TOPIC, timeout=10).topics[TOPIC]
    return {index: partition.leader for index, partition in known.partitions.items()}


def isr_of(cluster, topic):
    known = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, timeout=10).topics[topic]
    return list(known.partitions[0].isrs)
