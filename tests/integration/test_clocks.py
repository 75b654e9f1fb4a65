"""The wall clock of a broker jumps, or its processes are halted: nothing is lost, nobody is thrown out."""

import contextlib
import os
import signal
import time

import pytest
from confluent_kafka import Producer

from kafkad.protocol import messages
from kafkad.testing import Broker
from tests.clients import consumer, create_topic, produce, read_partition, wait_until
from tests.member_cluster import MemberCluster
from tests.shifted_clock import DAY_MS, HOUR_MS, ShiftedClock
from tests.wire import Wire

LONG_MAX = (1 << 63) - 1
QUICK = {
    "log.retention.check.interval.ms": 200,
    "log.retention.ms": 7 * DAY_MS,
    "log.message.timestamp.after.max.ms": LONG_MAX,  # the clients' clock does not jump
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "producer.id.expiration.check.interval.ms": 200,
    "group.min.session.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
}


def transactional(broker, name, timeout_ms=60_000):
    client = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
        }
    )
    client.init_transactions(20)
    return client


@pytest.mark.workers(2)
@pytest.mark.parametrize("jump_ms", [-DAY_MS, HOUR_MS, DAY_MS], ids=["day back", "hour", "day"])
def test_clients_do_not_notice_that_the_clock_jumps(tmp_path, jump_ms):
    clock = ShiftedClock(tmp_path / "clock")
    config = {**QUICK, "log.flush.interval.ms": 500}
    with Broker(data_dir=tmp_path / "data", config=config, env=clock.environment()) as broker:
        create_topic(broker, "t", 2)
        create_topic(broker, "paid", 1)
        opened = transactional(broker, "opened")
        opened.begin_transaction()
        opened.produce("paid", b"before")
        assert opened.flush(20) == 0
        idempotent = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        refused, assigned, revoked, seen = [], [], [], []

        def told(error, _message):
            if error is not None:
                refused.append(error)

        readers = [consumer(broker, "readers", **{"session.timeout.ms": 2000}) for _ in range(2)]
        for reader in readers:
            reader.subscribe(
                ["t"],
                on_assign=lambda _, parts: assigned.append(len(parts)),
                on_revoke=lambda _, parts: revoked.append(len(parts)),
            )

        def turn():
            idempotent.produce("t", str(len(seen)).encode(), on_delivery=told)
            idempotent.poll(0)
            for reader in readers:
                message = reader.poll(0.02)
                if message is not None:
                    assert message.error() is None, message.error()
                    seen.append(message.value())

        def shared():
            turn()
            return [len(reader.assignment()) for reader in readers] == [1, 1]

        wait_until(shared)
        rebalances, longest_s = len(assigned), 0.0
        clock.set_wall(jump_ms)
        until = time.monotonic() + 4
        while time.monotonic() < until:
            begun = time.monotonic()
            turn()
            longest_s = max(longest_s, time.monotonic() - begun)
        assert (len(assigned), refused) == (rebalances, []), broker.log
        assert longest_s < 2
        opened.produce("paid", b"after")
        opened.commit_transaction(20)
        assert idempotent.flush(20) == 0 and refused == []
        for reader in readers:
            reader.close()
        paid = read_partition(broker, "paid", 2, **{"isolation.level": "read_committed"})
        assert [message.value() for message in paid] == [b"before", b"after"]
        assert broker.stop() == 0, broker.log
        broker.start()
        paid = read_partition(broker, "paid", 2, **{"isolation.level": "read_committed"})
        assert [message.value() for message in paid] == [b"before", b"after"]


def test_a_transaction_times_out_after_the_clock_was_set_back(tmp_path):
    """Readers of committed data would wait behind it until the clock has come that far again."""
    clock = ShiftedClock(tmp_path / "clock")
    with Broker(data_dir=tmp_path / "data", config=QUICK, env=clock.environment()) as broker:
        create_topic(broker, "t", 1)
        left = transactional(broker, "left", timeout_ms=3_000)
        left.begin_transaction()
        left.produce("t", b"left open")
        assert left.flush(20) == 0
        clock.set_wall(-DAY_MS)
        produce(broker, "t", [(None, b"free")])
        (found,) = read_partition(broker, "t", 1, **{"isolation.level": "read_committed"})
        assert found.value() == b"free"


# -- halts


class Member:
    """One member of a group by hand, so that nobody but the broker ends its session."""

    def __init__(self, bootstrap, group, session_ms):
        self.bootstrap, self.group, self.session_ms = bootstrap, group, session_ms
        self.wire = Wire(bootstrap, timeout=30)
        find = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        wait_until(lambda: self.wire.ask(find, 4).coordinators[0].error_code == 0)
        self.id = self.wire.ask(self.join(""), 4).member_id
        joined = self.wire.ask(self.join(self.id), 4)
        assert joined.error_code == 0
        self.generation = joined.generation_id
        cls = messages.SyncGroupRequest
        mine = cls.Assignments(member_id=self.id, assignment=b"all")
        synced = cls(group_id=group, generation_id=self.generation, member_id=self.id, assignments=[mine])
        assert self.wire.ask(synced, 3).error_code == 0

    def join(self, member_id):
        cls = messages.JoinGroupRequest
        return cls(
            group_id=self.group,
            member_id=member_id,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.session_ms,
            protocol_type="consumer",
            protocols=[cls.Protocols(name="range", metadata=b"")],
        )

    @property
    def commit(self):
        cls = messages.OffsetCommitRequest
        partition = cls.Topics.Partitions(partition_index=0, committed_offset=7)
        return cls(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.id,
            topics=[cls.Topics(name="t", partitions=[partition])],
        )

    @property
    def beat(self):
        return messages.HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.id
        )

    def connect_again(self):
        self.wire.socket.close()
        self.wire = Wire(self.bootstrap, timeout=30)


@contextlib.contextmanager
def halted(broker):
    pids = [broker.pid, *broker.worker_pids.values()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.workers(2)
@pytest.mark.parametrize("comes_back", ["on its connection", "on another one"])
def test_members_of_groups_outlive_a_halt_of_the_broker(tmp_path, comes_back):
    with Broker(data_dir=tmp_path / "data", config=QUICK) as broker:
        members = []
        for number in range(10):
            members.append(Member(broker.bootstrap, f"g{number}", 2_000))
            for member in members:  # on a busy machine the next one may take long
                assert member.wire.ask(member.beat, 3).error_code == 0
        with halted(broker):
            time.sleep(1)
            if comes_back == "on its connection":
                for member in members:
                    member.wire.send(member.beat, 3)
            time.sleep(4)
        if comes_back == "on another one":
            time.sleep(0.5)  # clients wait a moment between two tries
            for member in members:
                member.connect_again()
        else:
            for member in members:
                member.wire.read_frame()
        assert [member.wire.ask(member.beat, 3).error_code for member in members] == [0] * 10, broker.log
        time.sleep(5)  # now they are silent, and removed
        assert {member.wire.ask(member.beat, 3).error_code for member in members} == {25}


def test_brokers_outlive_a_halt_of_the_only_controller(tmp_path):
    """It has heard of nobody, because it did not run."""
    with MemberCluster(tmp_path, brokers=2) as cluster:
        controller = cluster.quorum.nodes[100]
        for _ in range(2):
            with cluster.quorum.stopped(100):
                time.sleep(6)
            time.sleep(4)
        assert "is fenced" not in controller.log, controller.log[-4000:]
        cluster.members[2].kill()  # it still fences
        wait_until(lambda: "broker 2 is fenced" in controller.log)


@pytest.mark.workers(2)
def test_requests_of_clients_that_left_during_a_halt_begin_no_session(tmp_path):
    """librdkafka gives a silent connection up when its session has ended, and joins as another member. The
    heartbeats, commits and joins that it had sent were read after the halt: the group waited for members that
    did not live any more, for one more session."""
    session_ms = 12_000
    with Broker(data_dir=tmp_path / "data", config=QUICK) as broker:
        create_topic(broker, "t", 1)
        members = [Member(broker.bootstrap, f"g{number}", session_ms) for number in range(6)]
        for member in members:
            assert member.wire.ask(member.beat, 3).error_code == 0
        with halted(broker):
            for number, member in enumerate(members):
                requests = [(member.beat, 3), (member.commit, 7), (member.join(""), 4)]
                for request, version in requests[number % 3 :] + requests[: number % 3]:
                    member.wire.send(request, version)
                member.wire.socket.close()
            time.sleep(session_ms / 1000 + 2)
        begun = time.monotonic()
        for number in range(6):
            Member(broker.bootstrap, f"g{number}", session_ms)
        assert time.monotonic() - begun < session_ms / 1000 - 3, broker.log
        # The commit of a first request counts. The kernel may drop the others when the first one is answered.
        for member in members[1::3]:
            asked = messages.OffsetFetchRequest.Groups(group_id=member.group, topics=None)
            with Wire(broker.bootstrap, timeout=30) as wire:
                [found] = wire.ask(messages.OffsetFetchRequest(groups=[asked]), 8).groups
            assert [row.committed_offset for topic in found.topics for row in topic.partitions] == [7]
