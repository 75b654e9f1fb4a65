"""Client quotas on a real broker: byte rates are held, by one worker and by several together, others are not
held up, and no request about quotas does harm. The arithmetic is in tests/unit/test_quota_table.py, JVM Kafka
beside us in test_quotas_jvm.py."""

import os
import signal
import threading
import time

import pytest

from kafkad.protocol import codec, errors, messages
from kafkad.testing import Broker
from tests.clients import wait_until
from tests.wire import Wire, batch, create_topic, produce_request

# A short memory, so that a test sees the rate itself and not the burst before it.
QUICK = {"quota.window.num": 3}
LIMIT = 300_000.0
PRODUCE, FETCH = "producer_byte_rate", "consumer_byte_rate"
FETCHED = 20_000  # by one answer


class Named(Wire):
    """A connection with a client id of its own."""

    def __init__(self, bootstrap, client_id):
        super().__init__(bootstrap, timeout=20)
        self.client_id = client_id

    def send(self, request, version):
        self.correlation += 1
        self.send_frame(codec.encode_request(request, version, self.correlation, self.client_id))
        return self.correlation


def alter(wire, key, limit, **entity):
    cls = messages.AlterClientQuotasRequest.Entries
    names = {"user": "user", "client": "client-id", "ip": "ip"}
    parts = [cls.Entity(entity_type=names[kind], entity_name=name) for kind, name in entity.items()]
    op = cls.Ops(key=key, value=limit or 0.0, remove=limit is None)
    answer = wire.ask(messages.AlterClientQuotasRequest(entries=[cls(entity=parts, ops=[op])]), 1)
    return answer.entries[0].error_code


def produce_once(wire, size=10_000, partition=0):
    request = produce_request("t", batch(bytes(size)), partition)
    answer = wire.ask(request, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return answer.throttle_time_ms


def fetch_once(wire, partition=0):
    """(bytes of records, pause)"""
    cls = messages.FetchRequest
    wanted = cls.Topics.Partitions(partition=partition, fetch_offset=0, partition_max_bytes=FETCHED)
    request = cls(max_wait_ms=100, min_bytes=1, topics=[cls.Topics(topic="t", partitions=[wanted])])
    answer = wire.ask(request, 12)
    assert answer.error_code == 0
    records = [len(part.records or b"") for topic in answer.responses for part in topic.partitions]
    return sum(records), answer.throttle_time_ms


def achieved(bootstrap, kind, *, connections, seconds, client_id="limited", settle=3.0, make=Named):
    """Bytes a second that a load without mercy gets through, once its burst is over."""
    counted, stop, troubles = [], threading.Event(), []

    def run(number):
        try:
            with make(bootstrap, client_id) as wire:
                while not stop.is_set():
                    if kind == PRODUCE:
                        produce_once(wire, partition=number % 4)
                        counted.append((time.monotonic(), 10_170))
                    else:
                        size, _ = fetch_once(wire, number % 4)
                        counted.append((time.monotonic(), size))
        except Exception as trouble:
            troubles.append(trouble)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(connections)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(settle + seconds)
    stop.set()
    for thread in threads:
        thread.join()
    assert troubles == []
    return sum(size for at, size in counted if began + settle <= at < began + settle + seconds) / seconds


@pytest.fixture(params=[1, 4])
def broker(request):
    with Broker(workers=request.param, config=QUICK) as broker:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "t", 4)
        yield broker


@pytest.mark.soak
def test_rates_are_held_within_a_tenth(broker, rounds):
    seconds = rounds(4, 30)
    with Wire(broker.bootstrap) as wire:
        for partition in range(4):
            for _ in range(4):
                produce_once(wire, partition=partition)
        for key in (PRODUCE, FETCH):
            assert alter(wire, key, LIMIT, client=None) == 0
        for key in (PRODUCE, FETCH):
            rate = achieved(broker.bootstrap, key, connections=4, seconds=seconds)
            assert rate == pytest.approx(LIMIT, rel=0.1), key
    assert "Traceback" not in broker.log


def test_a_throttled_client_holds_up_nobody_and_gets_on_when_its_quota_is_gone(broker):
    with Wire(broker.bootstrap) as wire, Named(broker.bootstrap, "limited") as limited:
        assert alter(wire, PRODUCE, 10_000.0, client="limited") == 0
        while produce_once(limited) == 0:
            pass
        limited.send(produce_request("t", batch(b"x")), 9)
        began = time.monotonic()
        for partition in range(8):
            assert produce_once(wire, partition=partition % 4) == 0
        assert time.monotonic() - began < 5
        assert alter(wire, PRODUCE, None, client="limited") == 0
        with Named(broker.bootstrap, "limited") as again:
            for _ in range(10):
                assert produce_once(again) == 0
        limited.read_frame()  # its pause ends, too


def test_a_change_is_known_to_every_worker_when_it_is_answered(broker):
    with Wire(broker.bootstrap) as wire:
        for limit in (1000.0, None, 2000.0):
            assert alter(wire, PRODUCE, limit, client="known") == 0
            pauses = []
            for _ in range(4):  # connections spread over the workers
                with Named(broker.bootstrap, "known") as client:
                    pauses.append(produce_once(client, size=30_000) > 0)
            assert pauses[1:] == [limit is not None] * 3


def test_quotas_outlive_a_killed_worker_and_a_restart():
    with Broker(workers=2, config=QUICK) as broker:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "t", 4)
            assert alter(wire, PRODUCE, LIMIT, client=None) == 0
        pids = broker.worker_pids
        for victim in (1, 0):
            os.kill(pids[victim], signal.SIGKILL)
            wait_until(lambda victim=victim: broker.worker_pids.get(victim, pids[victim]) != pids[victim], 20)
            wait_until(lambda: can_produce(broker.bootstrap), 20)
        rate = achieved(broker.bootstrap, PRODUCE, connections=4, seconds=4)
        assert rate == pytest.approx(LIMIT, rel=0.15)
        broker.restart()
        with Named(broker.bootstrap, "limited") as client:
            assert any(produce_once(client) for _ in range(100))


def can_produce(bootstrap):
    try:
        with Named(bootstrap, "probe") as wire:
            for partition in range(4):
                produce_once(wire, size=10, partition=partition)
    except (AssertionError, OSError):
        return False
    return True


def test_many_client_ids_cost_a_bounded_table():
    with Broker(workers=1) as broker, Wire(broker.bootstrap) as wire:
        create_topic(wire, "t", 4)
        assert alter(wire, PRODUCE, 1e9, client=None) == 0
        frames = [
            codec.encode_request(produce_request("t", batch(b"x"), acks=0), 9, 1, f"client-{number}")
            for number in range(18_000)
        ]
        with Wire(broker.bootstrap) as flood:
            for frame in frames:
                flood.send_frame(frame)
            assert produce_once(flood) == 0
        with Named(broker.bootstrap, "client-3") as client:
            assert produce_once(client) == 0
        assert broker.running
        wait_until(lambda: "those beyond share one bucket" in broker.log, 10)


def mutate(wire, name, partitions, version=7):
    """(error code, pause) of a topic that is to be created."""
    topic = messages.CreateTopicsRequest.Topics(name=name, num_partitions=partitions, replication_factor=1)
    answer = wire.ask(messages.CreateTopicsRequest(topics=[topic], timeout_ms=10_000), version)
    return answer.topics[0].error_code, answer.throttle_time_ms


def test_a_client_that_creates_too_many_partitions_is_refused_and_paused(broker):
    """Whichever worker its connection is with; older versions are only paused."""
    key = "controller_mutation_rate"
    with Wire(broker.bootstrap) as wire:
        assert alter(wire, key, 2.0, client="limited") == 0  # 22 at once
        with Named(broker.bootstrap, "limited") as limited:
            assert mutate(limited, "a", 20) == (0, 0)
            assert mutate(limited, "b", 12) == (0, 0)  # more than there is: a debt
        for number in range(4):
            with Named(broker.bootstrap, "limited") as limited:
                code, pause_ms = mutate(limited, f"c{number}", 1)
                assert code == errors.THROTTLING_QUOTA_EXCEEDED
                assert 0 < pause_ms <= 5000
                limited.send(produce_request("t", batch(b"x")), 9)
                limited.socket.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    limited.read_frame()
        with Named(broker.bootstrap, "limited") as limited:
            code, pause_ms = mutate(limited, "d", 2, version=5)
            assert (code, pause_ms > 0) == (0, True)
        assert mutate(wire, "e", 20) == (0, 0)
