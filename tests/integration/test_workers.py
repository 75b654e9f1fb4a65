"""Several workers are one broker: whatever worker a client reaches, it finds all topics, partitions and
groups; and one worker's death is nobody else's.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kafkad.protocol import messages
from kafkad.testing import Broker, BrokerFailed
from tests.clients import wait_until
from tests.wire import Wire, batch, create_topic, high_watermark, produce

MARK = ".kafka_cleanshutdown"
QUICK = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 8}
COUNTS = [2, 4]


@pytest.fixture(params=COUNTS)
def broker(request, tmp_path):
    with Broker(workers=request.param, data_dir=tmp_path / "data", config=QUICK) as running:
        yield running


def worker_of(broker, wire) -> int | None:
    """Which worker has accepted a connection; None: none has, yet."""
    port = wire.socket.getsockname()[1]
    for k, pid in broker.worker_pids.items():
        for connection in psutil.Process(pid).net_connections("tcp"):
            if connection.raddr and connection.raddr.port == port:
                return k
    return None


def wires_to_all(broker, stack) -> dict[int, Wire]:
    """A connection to each worker. A new one goes to who has fewest, so those that are not wanted stay open
    until all are found."""
    found: dict[int, Wire] = {}
    with ExitStack() as unwanted:
        for _ in range(200):
            wire = Wire(broker.bootstrap)
            wire.ask(messages.ApiVersionsRequest(), 0)  # answered: it is accepted
            k = worker_of(broker, wire)
            if k in found:
                unwanted.enter_context(wire)
            else:
                found[k] = stack.enter_context(wire)
            if len(found) == broker.workers:
                return found
    raise AssertionError(f"200 connections reached the workers {sorted(found)} only")


def read_values(wire, topic, partition, count):
    """The values of the first `count` records, by Fetch."""
    from kafkad.protocol.records import read_batches

    values, offset = [], 0
    topics = messages.FetchRequest.Topics
    deadline = time.monotonic() + 10
    while len(values) < count:
        assert time.monotonic() < deadline, f"{len(values)} of {count} records"
        request = messages.FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=1 << 24,
            topics=[
                topics(
                    topic=topic,
                    partitions=[
                        topics.Partitions(
                            partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
                        )
                    ],
                )
            ],
        )
        answer = wire.ask(request, 11).responses[0].partitions[0]
        assert answer.error_code == 0, answer.error_code
        for each in read_batches(answer.records or b""):
            for record in each.records():
                if record.offset >= offset:
                    values.append(record.value)
                    offset = record.offset + 1
    return values


def retried(ask, codes=(6, 7, 14, 15, 16), timeout=10.0):
    """`ask()` until the error code is none of those that tell a client to try again."""
    deadline = time.monotonic() + timeout
    while (answer := ask()).error_code in codes:
        assert time.monotonic() < deadline, answer
        time.sleep(0.01)
    return answer


# -- one broker --------------------------------------------------------------------------------------------


def test_every_worker_accepts_connections(broker):
    assert sorted(broker.worker_pids) == list(range(broker.workers))
    with ExitStack() as stack:
        wires = wires_to_all(broker, stack)
        told = {
            tuple((each.node_id, each.host, each.port) for each in wire.ask(request, 9).brokers)
            for wire in wires.values()
            for request in [messages.MetadataRequest(topics=[])]
        }
    assert len(told) == 1 and len(next(iter(told))) == 1, "all workers tell of the same one broker"


def test_a_topic_made_through_one_worker_is_known_through_all_when_it_is_answered(broker):
    with ExitStack() as stack:
        wires = wires_to_all(broker, stack)
        for round_ in range(5):
            for k, maker in wires.items():
                name = f"made-{round_}-by-{k}"
                create_topic(maker, name, 2 * broker.workers)
                for wire in wires.values():
                    for partition in range(2 * broker.workers):
                        answer = produce(wire, name, batch(b"%d" % partition), partition)
                        assert answer.error_code == 0
                        assert high_watermark(wire, name, partition) == answer.base_offset + 1
                gone = messages.DeleteTopicsRequest(
                    topics=[messages.DeleteTopicsRequest.Topics(name=name)], timeout_ms=10_000
                )
                assert maker.ask(gone, 6).responses[0].error_code == 0
                for wire in wires.values():
                    everything = wire.ask(messages.MetadataRequest(topics=None), 9)
                    assert name not in {topic.name for topic in everything.topics}


def test_a_topic_made_by_asking_for_it_is_there_at_once(broker):
    with ExitStack() as stack:
        wires = wires_to_all(broker, stack)
        for k, wire in wires.items():
            asked = messages.MetadataRequest.Topics(name=f"auto-{k}")
            told = wire.ask(messages.MetadataRequest(topics=[asked], allow_auto_topic_creation=True), 9)
            assert [topic.error_code for topic in told.topics] == [0]
            for other in wires.values():
                assert produce(other, f"auto-{k}", batch(b"x")).error_code == 0


def test_what_is_written_through_one_worker_is_read_through_all(broker):
    partitions = 2 * broker.workers
    with ExitStack() as stack:
        wires = wires_to_all(broker, stack)
        create_topic(next(iter(wires.values())), "shared", partitions)
        written = defaultdict(list)
        for round_ in range(20):
            for k, wire in wires.items():
                for partition in range(partitions):
                    values = [b"%d:%d:%d" % (k, round_, each) for each in range(3)]
                    answer = produce(wire, "shared", batch(*values), partition)
                    assert (answer.error_code, answer.base_offset) == (0, len(written[partition]))
                    written[partition] += values
        for wire in wires.values():
            for partition, values in written.items():
                assert read_values(wire, "shared", partition, len(values)) == values


def test_a_fetch_that_waits_is_woken_by_another_worker(broker):
    partitions = broker.workers
    with ExitStack() as stack:
        wires = wires_to_all(broker, stack)
        create_topic(wires[0], "woken", partitions)
        topics = messages.FetchRequest.Topics
        for reader in wires.values():
            for writer in wires.values():
                if reader is writer:
                    continue
                for partition in range(partitions):
                    offset = high_watermark(writer, "woken", partition)
                    wanted = topics.Partitions(
                        partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
                    )
                    request = messages.FetchRequest(
                        max_wait_ms=8_000,
                        min_bytes=1,
                        max_bytes=1 << 20,
                        topics=[topics(topic="woken", partitions=[wanted])],
                    )
                    reader.send(request, 11)
                    time.sleep(0.01)  # so that it waits, most of the time
                    begun = time.monotonic()
                    assert produce(writer, "woken", batch(b"ring"), partition).error_code == 0
                    frame = reader.read_frame()
                    assert time.monotonic() - begun < 2, "nobody has rung"
                    assert b"ring" in frame


def test_a_group_is_the_same_through_every_worker(broker):
    with ExitStack() as stack:
        wires = wires_to_all(broker, stack)
        create_topic(wires[0], "grouped", 8)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(400):
            producer.produce("grouped", b"%d" % number, partition=number % 8)
        assert producer.flush(20) == 0
        seen: set[bytes] = set()
        for group in range(4):
            consumer = Consumer(
                {
                    "bootstrap.servers": broker.bootstrap,
                    "group.id": f"group-{group}",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                }
            )
            consumer.subscribe(["grouped"])
            seen.clear()
            deadline = time.monotonic() + 20
            while len(seen) < 400:
                assert time.monotonic() < deadline, f"{len(seen)} of 400"
                for message in consumer.consume(100, timeout=0.5):
                    assert message.error() is None, message.error()
                    seen.add(message.value())
            consumer.commit(asynchronous=False)
            for wire in wires.values():
                described = wire.ask(messages.DescribeGroupsRequest(groups=[f"group-{group}"]), 5).groups[0]
                assert (described.error_code, len(described.members)) == (0, 1)
                listed = {each.group_id for each in wire.ask(messages.ListGroupsRequest(), 4).groups}
                assert f"group-{group}" in listed
            committed = consumer.committed([TopicPartition("grouped", index) for index in range(8)], 10)
            assert [each.offset for each in committed] == [50] * 8
            consumer.close()


# -- its end and its beginning -----------------------------------------------------------------------------


def test_a_stop_is_clean_and_another_number_of_workers_finds_everything(tmp_path):
    partitions, written = 8, 0
    for workers in (2, 4, 1, 3):
        with Broker(workers=workers, data_dir=tmp_path / "data", config=QUICK) as broker:
            with Wire(broker.bootstrap) as wire:
                if written == 0:
                    create_topic(wire, "kept", partitions)
                for partition in range(partitions):
                    expected = [b"%d" % number for number in range(written)]
                    assert high_watermark(wire, "kept", partition) == written
                    if written:
                        assert read_values(wire, "kept", partition, written) == expected
                    answer = produce(wire, "kept", batch(b"%d" % written), partition)
                    assert answer.error_code == 0 and answer.base_offset == written
            written += 1
            pids = [broker.pid, *broker.worker_pids.values()]
            begun = time.monotonic()
            assert broker.stop() == 0, broker.log
            assert time.monotonic() - begun < 2
            assert (broker.data_dir / MARK).exists(), broker.log
            assert "Traceback" not in broker.log, broker.log
            assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_all_processes_at_once_stops_it_cleanly(tmp_path, number):
    """What a terminal does with Ctrl-C, and a service manager with SIGTERM."""
    with Broker(workers=2, data_dir=tmp_path / "data") as broker:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "t", 4)
        for pid in [*broker.worker_pids.values(), broker.pid]:
            os.kill(pid, number)
        assert broker.process.wait(10) == 0
        assert (broker.data_dir / MARK).exists(), broker.log
        assert "has died" not in broker.log and "Traceback" not in broker.log, broker.log


def test_a_signal_is_never_lost(tmp_path):
    """Whenever it comes: before the ready line, right after it, or later. Then the port and lock are free."""
    data = tmp_path / "data"
    with Broker(workers=2, data_dir=data) as broker, Wire(broker.bootstrap) as wire:
        create_topic(wire, "t", 4)
    command = [sys.executable, "-m", "kafkad", "serve", "--workers", "2", "--data-dir", str(data)]
    command += ["--listen", "127.0.0.1:0"]
    for delay_s in [each * 0.04 for each in range(20)]:
        with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err)
            wait_until(partial(_catches, process.pid, signal.SIGTERM), timeout=20)
            time.sleep(delay_s)
            process.send_signal(signal.SIGTERM)
            said = (tmp_path / "err").read_text
            assert process.wait(20) == 0, said()
            assert "Traceback" not in said(), said()


def _catches(pid, number):
    text = Path(f"/proc/{pid}/status").read_text()
    caught = int(text.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


def test_a_place_that_is_taken_is_told_in_one_sentence(tmp_path):
    with Broker(workers=2, data_dir=tmp_path / "one") as broker:
        with pytest.raises(BrokerFailed, match="in use by another broker") as lock:
            Broker(workers=2, data_dir=tmp_path / "one").start()
        assert str(lock.value).count("kafkad: ") == 1
        with pytest.raises(BrokerFailed, match="is in use by another process") as port:
            Broker(workers=2, data_dir=tmp_path / "two", listen=broker.bootstrap).start()
        assert str(port.value).count("kafkad: ") == 1


def test_a_start_that_fails_in_a_worker_is_told_once_and_ends_all(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    config = {"log.dirs": f"{one},{two}"}
    properties = tmp_path / "server.properties"
    properties.write_text("listeners=PLAINTEXT://127.0.0.1:0\n")
    with Broker(workers=2, properties=properties, config=config) as broker:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "t", 4)
        assert broker.stop() == 0
    for partition in range(4):  # whatever worker owns it
        here, there = (one, two) if (one / f"t-{partition}").exists() else (two, one)
        shutil.copytree(here / f"t-{partition}", there / f"t-{partition}")
        # with the same topic id, the one that the metadata name would be kept
        (there / f"t-{partition}" / "partition.metadata").unlink()
    failing = Broker(workers=2, properties=properties, config=config)
    with pytest.raises(BrokerFailed, match="exited with 1") as told:
        failing.start()
    assert str(told.value).count("kafkad: a partition is there twice") == 1, told.value
    assert not (one / MARK).exists() and not (two / MARK).exists()
    failing.close()


# -- deaths ------------------------------------------------------------------------------------------------


def test_the_other_workers_serve_on_while_one_is_killed_and_its_partitions_come_back(broker):
    partitions = 4 * broker.workers
    with ExitStack() as stack:
        wires = wires_to_all(broker, stack)
        create_topic(wires[0], "killed", partitions)
        written = dict.fromkeys(range(partitions), 0)
        for victim in [*range(broker.workers), 0]:
            survivor = wires[(victim + 1) % broker.workers]
            for partition in range(partitions):
                answer = produce(survivor, "killed", batch(b"%d" % written[partition]), partition)
                assert answer.error_code == 0 and answer.base_offset == written[partition]
                written[partition] += 1
            killed = broker.kill_worker(victim)
            begun = time.monotonic()
            for partition in range(partitions):
                data = batch(b"%d" % written[partition])
                answer = retried(partial(produce, survivor, "killed", data, partition))
                assert answer.error_code == 0 and answer.base_offset == written[partition]
                written[partition] += 1
            assert time.monotonic() - begun < 8, "partitions come back within a second or so"
            assert broker.worker_pids[victim] != killed
            for partition, count in written.items():
                expected = [b"%d" % number for number in range(count)]
                assert read_values(survivor, "killed", partition, count) == expected
            wires[victim].socket.close()
            again = wires_to_all(broker, stack)
            wires[victim] = again[victim]
            for partition, count in written.items():
                assert high_watermark(wires[victim], "killed", partition) == count
            create_topic(survivor, f"after-{victim}-{len(again)}-{killed}", partitions)
        assert broker.stop() == 0
        assert (broker.data_dir / MARK).exists(), broker.log


def test_a_worker_that_dies_again_and_again_is_started_less_often(tmp_path):
    with Broker(workers=2, data_dir=tmp_path / "data") as broker:
        begun = time.monotonic()
        for _ in range(4):
            broker.kill_worker(1)
        wait_until(lambda: 1 in broker.worker_pids)
        assert time.monotonic() - begun > 1.5
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "t", 4)
        assert broker.log.count("worker 1 has died: signal SIGKILL") == 4
        assert "worker 0 has died" not in broker.log


def test_while_a_worker_is_not_there_the_others_accept_in_its_place(tmp_path):
    """Before: a part of all connections waited for it, at most 10 s."""
    with Broker(workers=2, data_dir=tmp_path / "data") as broker:
        for _ in range(6):
            broker.kill_worker(1)
        wait_until(lambda: "worker 1 has died 6 times in a row; next start in 5 s" in broker.log)
        with ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(Wire(broker.bootstrap)).ask(messages.ApiVersionsRequest(), 0)
        assert broker.log.count("worker 1 is started again") == 5, "the connections have waited for it"
        wait_until(lambda: broker.log.count("worker 1 is started again") == 6)
        wait_until(lambda: "worker 1 serves again" in broker.log.rpartition("worker 1 is started again")[2])
        with ExitStack() as stack:
            assert set(wires_to_all(broker, stack)) == {0, 1}


def test_workers_die_with_the_supervisor_and_the_place_is_free_at_once(tmp_path):
    with Broker(workers=2, data_dir=tmp_path / "data") as broker:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "t", 4)
            for partition in range(4):
                assert produce(wire, "t", batch(b"x"), partition).error_code == 0
        pids = list(broker.worker_pids.values())
        broker.kill()
        assert not any(psutil.pid_exists(pid) and _runs(pid) for pid in pids)
        broker.restart()
        with Wire(broker.bootstrap) as wire:
            assert [high_watermark(wire, "t", partition) for partition in range(4)] == [1] * 4


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
