"""No request of a transaction or group waits for ever, whichever coordinator is killed, stopped or deaf.

Connections that speak frames by hand ask every node, of coordinators and of those that are none: each request
is answered or its connection closed in time. The time in which a node is stopped does not count for it.
KAFKAD_ROUNDS is the number of faults, KAFKAD_SEED the seed."""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter

import psutil
import pytest

from kafkad.protocol import codec, errors, messages
from kafkad.testing import Cluster
from tests.member_process import workers_of
from tests.wire import Wire, batch

SEED = int(os.environ.get("KAFKAD_SEED", "20261126"))
CONFIG = {
    "broker.heartbeat.interval.ms": 300,
    "broker.session.timeout.ms": 2000,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.commit.timeout.ms": 3000,
    "offsets.topic.num.partitions": 3,
    "replica.lag.time.max.ms": 1500,
    "request.timeout.ms": 4000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "transaction.state.log.num.partitions": 3,
}
# the longest: an append that is given up after request.timeout.ms, behind a question to a coordinator that is
# given up after as long; and a busy machine
ANSWER_S = 20.0
TICK_S = 0.5
TOPIC, PARTITIONS = "data", 3


class Fleet:
    """The nodes, and which of them is stopped."""

    def __init__(self, cluster, chance):
        self.cluster, self.chance = cluster, chance
        self.paused: set[int] = set()

    def fault(self):
        number = self.chance.choice(sorted(self.cluster.nodes))
        process = self.cluster.nodes[number].process
        workers = workers_of(process.pid)
        kinds = ["kill", "pause", "stop", *(["worker", "worker paused"] if workers else [])]
        kind = self.chance.choice(kinds)
        lasting = self.chance.uniform(0.1, 4)
        if kind == "kill":
            self.cluster.kill(number)
            time.sleep(lasting)
            self.cluster.start(number)
        elif kind == "stop":
            self.cluster.stop(number)
            time.sleep(lasting)
            self.cluster.start(number)
        elif kind == "pause":
            self._pause(number, [psutil.Process(process.pid), *workers.values()], lasting)
        elif kind == "worker":
            workers[self.chance.choice(sorted(workers))].kill()
        else:
            self._pause(number, [workers[self.chance.choice(sorted(workers))]], lasting)
        return f"{kind} {number} {lasting:.1f}"

    def _pause(self, number, processes, lasting):
        self.paused.add(number)
        try:
            for each in processes:
                each.suspend()
            time.sleep(lasting)
        finally:
            for each in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(signal.SIGCONT)
            self.paused.discard(number)


class Asker(threading.Thread):
    """One transactional id and group, by one connection to each node."""

    def __init__(self, fleet, number, seed):
        super().__init__(daemon=True)
        self.fleet, self.chance = fleet, random.Random(f"{seed}-{number}")
        self.name = f"asker-{number}"
        self.ended = threading.Event()
        self.wires: dict[int, Wire] = {}
        self.producer = (-1, -1)
        self.coordinators = {0: 1, 1: 1}  # of groups, of transactions
        self.answers: Counter = Counter()
        self.failures: list[str] = []
        self.longest = (0.0, "")

    def run(self):
        while not self.ended.is_set() and not self.failures:
            kind, request, version = self._next()
            at = self.coordinators[kind] if kind is not None and self.chance.random() < 0.8 else 0
            at = at or self.chance.choice(sorted(self.fleet.cluster.nodes))
            try:
                answer = self._ask(at, request, version)
            except OSError:
                self.answers["closed"] += 1
                if (wire := self.wires.pop(at, None)) is not None:
                    wire.socket.close()
                self.ended.wait(0.02)
                continue
            self._learn(request, answer)

    def _ask(self, at, request, version):
        if at not in self.wires:
            self.wires[at] = Wire(self.fleet.cluster.nodes[at].bootstrap, TICK_S)
        wire = self.wires[at]
        began, waited = time.monotonic(), 0.0
        wire.send(request, version)
        while True:
            try:
                head = wire.socket.recv(1)
                break
            except TimeoutError:
                waited += 0.0 if self.fleet.paused else TICK_S
                if waited > ANSWER_S:
                    self.failures.append(f"{self.name}: {at} does not answer {request!r} v{version}")
                    raise
        if not head:
            raise ConnectionError
        wire.socket.settimeout(ANSWER_S)
        try:
            frame = wire.rest_of_frame(head)
        except TimeoutError:
            self.failures.append(f"{self.name}: {at} answers {request!r} v{version} in part")
            raise
        wire.socket.settimeout(TICK_S)
        _, answer = codec.decode_response(codec.response_class(type(request).API_KEY), version, frame)
        self.longest = max(self.longest, (time.monotonic() - began, f"{type(request).__name__} v{version}"))
        return answer

    def _learn(self, request, answer):
        name = type(request).__name__.removesuffix("Request")
        if name == "FindCoordinator":
            (found,) = answer.coordinators
            code = found.error_code
            if not code:
                self.coordinators[request.key_type] = found.node_id
        elif name == "InitProducerId":
            code = answer.error_code
            if not code:
                self.producer = answer.producer_id, answer.producer_epoch
        elif name == "EndTxn":
            code = answer.error_code
            if not code and answer.producer_id >= 0:
                self.producer = answer.producer_id, answer.producer_epoch
        elif name == "AddPartitionsToTxn":
            code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        elif name == "OffsetFetch":
            code = answer.groups[0].error_code
        elif name == "Produce":
            code = answer.responses[0].partition_responses[0].error_code
        elif name == "AddOffsetsToTxn":
            code = answer.error_code
        else:
            code = answer.topics[0].partitions[0].error_code
        self.answers[name, code] += 1
        if code in (errors.NOT_COORDINATOR, errors.COORDINATOR_NOT_AVAILABLE):
            self.coordinators[0] = self.coordinators[1] = 0
            self.ended.wait(0.01)
        if code in (errors.INVALID_PRODUCER_EPOCH, errors.PRODUCER_FENCED, errors.INVALID_TXN_STATE):
            self.producer = (-1, -1)

    def _next(self):
        """(0 for a group's coordinator, 1 for a transaction's, None for any node; request, version)."""
        pid, epoch = self.producer
        chance = self.chance
        if pid < 0 or chance.random() < 0.05:
            request = messages.InitProducerIdRequest(
                transactional_id=self.name, transaction_timeout_ms=chance.choice((3_000, 60_000))
            )
            if chance.random() < 0.5:
                return 1, request, 4
        which = chance.randrange(8)
        if which == 0 or 0 in self.coordinators.values():
            key_type = chance.randrange(2)
            return (
                None,
                messages.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[self.name]),
                4,
            )
        who = {"transactional_id": self.name, "producer_id": pid, "producer_epoch": epoch}
        if which == 1:
            cls = messages.AddPartitionsToTxnRequest
            topics = [cls.V3AndBelowTopics(name=TOPIC, partitions=[0, 1, 2])]
            return (
                1,
                cls(
                    v3_and_below_transactional_id=self.name, v3_and_below_producer_id=pid,
                    v3_and_below_producer_epoch=epoch, v3_and_below_topics=topics,
                ),
                3,
            )  # fmt: skip
        if which == 2:
            return 1, messages.AddOffsetsToTxnRequest(group_id=self.name, **who), 3
        if which == 3:
            return (
                1,
                messages.EndTxnRequest(committed=chance.random() < 0.7, **who),
                chance.choice((3, 5)),
            )
        if which == 4:
            cls = messages.OffsetFetchRequest
            asked = cls.Groups(
                group_id=self.name, topics=[cls.Groups.Topics(name=TOPIC, partition_indexes=[0])]
            )
            return 0, cls(groups=[asked], require_stable=True), 8
        if which == 5:
            cls = messages.OffsetCommitRequest
            part = cls.Topics.Partitions(partition_index=1, committed_offset=5)
            topics = [cls.Topics(name=TOPIC, partitions=[part])]
            return 0, cls(group_id=self.name, generation_id_or_member_epoch=-1, topics=topics), 8
        if which == 6:
            data = messages.ProduceRequest.TopicData
            records = bytes(
                batch(b"v", producer_id=pid, producer_epoch=epoch, base_sequence=0, transactional=True)
            )
            parts = [data.PartitionData(index=chance.randrange(PARTITIONS), records=records)]
            request = messages.ProduceRequest(
                transactional_id=self.name, acks=-1, timeout_ms=4000,
                topic_data=[data(name=TOPIC, partition_data=parts)],
            )  # fmt: skip
            return None, request, chance.choice((9, 12))
        cls = messages.TxnOffsetCommitRequest
        part = cls.Topics.Partitions(partition_index=0, committed_offset=5)
        topics = [cls.Topics(name=TOPIC, partitions=[part])]
        return 0, cls(group_id=self.name, topics=topics, **who), chance.choice((2, 3, 5))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("workers", [1, 2])
def test_every_request_is_answered_or_its_connection_closed(tmp_path, rounds, workers):
    chance = random.Random(SEED + workers)
    with Cluster(config=CONFIG, data_dir=tmp_path, workers=workers) as cluster:
        with Wire(cluster.nodes[1].bootstrap) as wire:
            cls = messages.CreateTopicsRequest
            topic = cls.Topics(name=TOPIC, num_partitions=PARTITIONS, replication_factor=3)
            (made,) = wire.ask(cls(topics=[topic], timeout_ms=10_000), 7).topics
            assert made.error_code == 0
        fleet = Fleet(cluster, chance)
        askers = [Asker(fleet, number, SEED) for number in range(12)]
        for asker in askers:
            asker.start()
        told = []
        for _ in range(rounds(4, 200)):
            time.sleep(chance.uniform(0.2, 2))
            told.append(fleet.fault())
            failures = [failure for asker in askers for failure in asker.failures]
            assert not failures, (failures, told[-5:], cluster.log)
        time.sleep(1)
        for asker in askers:
            asker.ended.set()
        for asker in askers:
            asker.join(2 * ANSWER_S)
            assert not asker.is_alive() and not asker.failures, (asker.failures, told[-5:], cluster.log)
        answers = sum((asker.answers for asker in askers), Counter())
        print(told, max(asker.longest for asker in askers), sorted(answers.items(), key=str), sep="\n")
        known = {each[0] for each in answers if each != "closed" and each[1] == 0}
        assert known >= {"EndTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "InitProducerId", "OffsetFetch"}
        assert "Traceback" not in cluster.log
