"""Transactional Produces under trouble: large batches, a flood, a coordinator that stands still or dies."""

import os
import signal
import socket
import threading
import time

import psutil
import pytest
from confluent_kafka import Producer, TopicPartition

from kafkad.protocol import errors
from kafkad.testing import Broker
from tests.clients import WAIT_S, consumer, create_topic
from tests.integration.test_transactional_produce import PARTITIONS, Client
from tests.jvm import TEST_CONFIG
from tests.wire import Wire, batch

ROOMY = {"message.max.bytes": 60 << 20, "replica.fetch.max.bytes": 60 << 20}


def new_broker(workers, **config):
    return Broker(workers=workers, config={**TEST_CONFIG, **config})


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_large_batches_of_librdkafka(workers):
    """Threads check those above 2 MiB, and write those above 32 MiB ahead of their append."""
    sizes = [1000, 3 << 20, 33 << 20, 200_000]
    with new_broker(workers, **ROOMY) as broker:
        create_topic(broker, "t", 4)
        client = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "transactional.id": "large",
                "linger.ms": 0,
                "message.max.bytes": 60 << 20,
            }
        )
        client.init_transactions(WAIT_S)
        wanted, failed = [], []
        for number in range(3):
            client.begin_transaction()
            for i in range(8):
                size, partition = sizes[(number + i) % 4], i % 4 if number else i % 3
                client.produce(
                    "t",
                    bytes([number]) * size,
                    partition=partition,
                    on_delivery=lambda error, _: error and failed.append(error),
                )
                if number != 1:
                    wanted.append((partition, number, size))
            client.flush(WAIT_S)
            if number == 1:
                client.abort_transaction(WAIT_S)
            else:
                client.commit_transaction(WAIT_S)
        assert failed == []
        reader = consumer(
            broker,
            **{
                "isolation.level": "read_committed",
                "fetch.message.max.bytes": 60 << 20,
                "receive.message.max.bytes": 400 << 20,
            },
        )
        reader.assign([TopicPartition("t", index, 0) for index in range(4)])
        found = []
        while len(found) < len(wanted):
            message = reader.poll(WAIT_S)
            assert message is not None and not message.error()
            found.append((message.partition(), message.value()[0], len(message.value())))
        reader.close()
        assert sorted(found) == sorted(wanted)


def test_a_flood_of_batches_that_no_coordinator_admits(unique):
    """Its connections wait one question at a time; a good producer goes on, and memory stays bounded."""
    with new_broker(1) as broker, Wire(broker.bootstrap) as wire:
        good = Client(wire, unique)
        stop = threading.Event()
        big = bytes(300_000)

        def flood(number):
            with socket.create_connection((broker.host, broker.port)) as flooding:
                other = Wire.__new__(Wire)
                other.socket, other.correlation = flooding, 0
                sequence = 0
                while not stop.is_set():
                    fields = {"producer_id": 10_000 + number, "producer_epoch": 0, "base_sequence": sequence}
                    records = bytes(batch(big, transactional=True, **fields))
                    for _ in range(5):
                        other.send(good.request({0: records}, transactional_id="foreign"), 9)
                    for _ in range(5):
                        answered[number] = b"\x00\x31" in other.read_frame()  # INVALID_PRODUCER_ID_MAPPING
                    sequence += 1

        answered = {}
        threads = [threading.Thread(target=flood, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        process = psutil.Process(broker.pid)
        peak = 0
        try:
            good.add(*range(PARTITIONS))
            for _ in range(300):
                assert good.code(1) == 0
                peak = max(peak, process.memory_info().rss)
            good.end()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert answered == dict.fromkeys(range(8), True)
        assert peak < 200 << 20
        assert good.offsets(0, 0) == 1  # the marker alone


@pytest.mark.parametrize("dies", [False, True])
def test_a_coordinator_that_stands_still_or_dies(unique, dies):
    """What it was asked for ends with a retriable error, in time, and then goes on."""
    with new_broker(2) as broker:
        wires = [Wire(broker.bootstrap, timeout=30) for _ in range(6)]
        client = Client(wires[0], unique)
        producers = {}
        for client.id in ("a", "b", "c", "d"):
            producers[client.id] = client.init()
        stopped = broker.worker_pids[1]
        os.kill(stopped, signal.SIGSTOP)
        for wire in wires:  # one of worker 0
            client.wire = wire
            wire.socket.settimeout(2)
            try:
                client.offsets(0)
                break
            except TimeoutError:
                continue
        client.wire.socket.settimeout(30)
        codes = client.codes(dict.fromkeys(range(PARTITIONS), bytes(batch(b"v"))), timeout_ms=1000)
        own = [index for index, code in enumerate(codes) if code == 0]
        assert 0 < len(own) < PARTITIONS
        waiting = []
        for client.id, (client.producer_id, client.epoch) in producers.items():
            client.sequences.clear()
            code = client.code(own[0], 12, timeout_ms=1000)
            assert code in (0, errors.NOT_ENOUGH_REPLICAS)
            if code:
                waiting.append(client.id)
        assert 0 < len(waiting) < len(producers)
        if dies:
            os.kill(stopped, signal.SIGKILL)
        os.kill(stopped, signal.SIGCONT)
        for client.id in waiting:
            client.producer_id, client.epoch = producers[client.id]
            client.sequences.clear()
            retriable = errors.NOT_ENOUGH_REPLICAS, errors.CONCURRENT_TRANSACTIONS
            deadline = time.monotonic() + WAIT_S
            while code := client.code(own[0], 12, timeout_ms=5000):
                assert code in retriable
                assert time.monotonic() < deadline
        for wire in wires:
            wire.socket.close()
