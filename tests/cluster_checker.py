"""A cluster that is written and read while its nodes fail, and the checks of what is left.

`Cluster` is a LocalCluster (cli/local_cluster) whose nodes reach each other by `Links`, as brokers and as
controllers. `Story` creates a topic, starts writers and readers on it, causes one fault after the other
(cluster_faults), and then checks what Jepsen's Kafka workload checks:

    acknowledged records    none is lost, duplicated, out of its producer's order, or at another offset than
                            the producer was told
    readers                 an offset always has the same record, none is skipped, none is out of range
    replicas                all have the same batches and the same leader epochs

Use: tests/integration/test_cluster_kills.py."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import random
import signal
import socket
import struct
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.cli.local_cluster import LocalCluster, LocalNode
from kafkad.net.channel import Channel, Unreachable
from kafkad.protocol import messages
from kafkad.server.worker_context import NO_DIRECTORY
from kafkad.testing.broker import spawn
from tests.cluster_faults import Faults
from tests.controller_process import ControllerQuorum
from tests.links import Links
from tests.small_disk import small_disk

WAIT_S = 90
HEADER, PRODUCER_AT = 61, 43  # bytes of a batch's header; where the producer id and epoch are
SESSION_MS, LAG_MS = 2000, 1500
PARTITIONS, WRITERS = 4, 3

QUIET = {"log_level": 0, "reconnect.backoff.max.ms": 200, "reconnect.backoff.ms": 20}

CONFIG = {
    "broker.session.timeout.ms": SESSION_MS,
    "broker.heartbeat.interval.ms": 300,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1000,
    "leader.imbalance.check.interval.seconds": 1,
    "replica.lag.time.max.ms": LAG_MS,
    "replica.fetch.backoff.ms": 100,
    "replica.socket.timeout.ms": 1500,
    "log.segment.bytes": 1 << 20,
    "auto.create.topics.enable": False,
}


def until(condition: Callable, what: Callable[[], object] = str, within_s: float = WAIT_S):
    ends = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > ends:
            raise AssertionError(f"not so within {within_s} s: {what()}")
        time.sleep(0.05)
    return found


class Cluster:
    """`with Cluster(path) as cluster`: its nodes reach each other only through `links`."""

    disk_bytes = 0  # of each node's own disk; 0: they share one

    def __init__(self, path: Path, count: int = 3, workers: int = 1, disk_bytes: int = 0):
        """`disk_bytes`: each node has a disk of its own, of this size. Mounting it needs root."""
        self.path, self.workers = path, workers
        self.disk_bytes = disk_bytes
        self.local = LocalCluster(path, count, CONFIG, workers=workers, spawn=spawn)
        self.links = Links()
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Cluster:
        self.links.__enter__()
        try:
            for number in range(1, self.local.count + 1) if self.disk_bytes else ():
                data = self.path / f"node-{number}" / "data"
                data.parent.mkdir()
                self._held.enter_context(small_disk(data, self.disk_bytes))
            self.local.open()
            self._wire()
            self.local.start(timeout_s=WAIT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.local.close()
        self._held.close()
        self.links.__exit__()

    @property
    def nodes(self) -> dict[int, LocalNode]:
        return self.local.nodes

    @property
    def bootstrap(self) -> str:
        return self.local.bootstrap

    def _wire(self) -> None:
        """Clients have the listener PLAINTEXT; brokers and controllers reach others by links."""
        to = {number: self.links.to(number, node.controller_port) for number, node in self.nodes.items()}
        for number, node in self.nodes.items():
            inner = self._port()
            advertised = self.links.to(number, inner)
            lines = dict(line.split("=", 1) for line in node.properties.read_text().splitlines())
            lines |= {
                "controller.quorum.voters": ",".join(f"{each}@127.0.0.1:{port}" for each, port in to.items()),
                "listeners": f"{lines['listeners']},INNER://127.0.0.1:{inner}",
                "advertised.listeners": f"PLAINTEXT://{node.bootstrap},INNER://127.0.0.1:{advertised},"
                f"CONTROLLER://127.0.0.1:{to[number]}",
                "inter.broker.listener.name": "INNER",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT",
            }
            node.properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        ports = {number: node.controller_port for number, node in self.nodes.items()}
        frame = SimpleNamespace(path=self.path, cluster_id=self.local.cluster_id, controller_ports=ports)
        self.quorum = ControllerQuorum.around(self.nodes, frame)

    def _port(self) -> int:
        """Return a free port. It stays bound, so that no other process gets it while its node is down."""
        held = self._held.enter_context(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]

    def start(self, numbers) -> None:
        """Start those of the nodes that do not run, at the same time."""
        self.local.start(numbers, WAIT_S)

    def stop(self, numbers) -> dict[int, int]:
        """Stop the nodes with SIGTERM, at the same time. Return their exit codes, 0 for a node that has ended
        because its disk was full."""
        codes = self.local.stop(numbers, WAIT_S)
        return {each: 0 if self._was_full(each) else code for each, code in codes.items()}

    def _was_full(self, number: int) -> bool:
        process = self.nodes[number].process
        return self.disk_bytes > 0 and process is not None and process.poll() == NO_DIRECTORY

    def signal(self, number: int, what: signal.Signals) -> None:
        """Send a signal to all processes of a node."""
        process = self.nodes[number].process
        assert process is not None
        if self.workers > 1:
            os.killpg(process.pid, what)
        else:
            process.send_signal(what)

    def seen(self, topic: str) -> list[dict[int, tuple[int, tuple[int, ...]]]]:
        """Return what each broker says: (leader, sorted ISR) by partition; {} if it does not answer."""

        async def asked(node):
            try:
                channel = await Channel.connect("127.0.0.1", node.port, "checker", timeout_s=2)
            except Unreachable:
                return {}
            try:
                cls = messages.MetadataRequest
                response = await channel.ask(cls(topics=[cls.Topics(name=topic)]), timeout_s=2)
            except Unreachable:
                return {}
            finally:
                channel.close()
            return {
                row.partition_index: (row.leader_id, tuple(sorted(row.isr_nodes)))
                for row in response.topics[0].partitions
            }

        async def all_of_them():
            return await asyncio.gather(*map(asked, self.nodes.values()))

        return asyncio.run(all_of_them())

    def whole(self, topic: str) -> None:
        """Wait until, for all brokers, each partition has a leader and all replicas are in its ISR. A node
        that has ended because its disk was full starts again."""
        numbers = tuple(self.nodes)

        def so() -> bool:
            self.start(filter(self._was_full, numbers))
            first, *others = self.seen(topic)
            return (
                len(first) == PARTITIONS
                and all(each == first for each in others)
                and all(leader in numbers and isr == numbers for leader, isr in first.values())
            )

        until(so, lambda: (topic, self.seen(topic)))

    def active_controller(self) -> int:
        return asyncio.run(self.quorum.leader(WAIT_S))

    def tracebacks(self) -> list[str]:
        return tracebacks_in(
            {number: (node.directory / "stderr").read_text() for number, node in self.nodes.items()}
        )


def tracebacks_in(logs: Mapping[int, str]) -> list[str]:
    """Return the first traceback in the log of each node that has one."""
    return [
        f"node {number}: {log[at : at + 3000]}"
        for number, log in logs.items()
        if (at := log.find("Traceback")) >= 0
    ]


# -- the clients -------------------------------------------------------------------------------------------


class LastLines(logging.Handler):
    """Keeps what librdkafka logged last, until `ends_at`: of a client that waits for ever, how it came to
    that."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=600)
        self.ends_at = float("inf")

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() < self.ends_at:
            self.lines.append(f"{time.strftime('%H:%M:%S')} {record.getMessage()}")


class Writer(threading.Thread):
    """An idempotent producer. Its records are `writer:number:filling`, numbered by partition.

    A leader that was cut off or paused may not know yet that another one was elected, and append records that
    no other replica has. If librdkafka then sends a batch again, the answer may be
    OUT_OF_ORDER_SEQUENCE_NUMBER (kafkad: when the new leader has led for 2 s), and librdkafka takes a new
    producer epoch (`renewals`) or fails for good. After a failure a new producer continues under another
    number (`lives` counts them); records of the old one that were not acknowledged may be in the log or
    not.

    `alone`: the first record for each partition is sent alone. A JVM leader accepts the second batch of a
    producer although it has just refused the first one, because it had not begun to lead or its ISR was too
    small. Then the first one is out of order for ever, and librdkafka says that it was written.

    If a leader changes and changes back before librdkafka's threads get to run, librdkafka (2.16) may send
    the partition's records to the leader between for ever. It gets NOT_LEADER_OR_FOLLOWER and the right
    metadata from it, and takes that for a "preferred replica", which a producer does not have. Records that
    are not answered because of that (`is_stuck`) may be in the log or not."""

    def __init__(
        self, bootstrap: str, topic: str, number: int, seed: int, alone: bool = False, **config: object
    ):
        super().__init__(daemon=True)
        self.topic, self.number, self.alone = topic, number, alone
        self.random = random.Random(f"{seed}-{number}")
        self.acked: dict[tuple[int, int], bytes] = {}  # by partition and offset
        # By partition: acknowledged without an offset, because a later answer implies it (librdkafka).
        self.unplaced: list[set[bytes]] = [set() for _ in range(PARTITIONS)]
        self.unanswered = [0] * PARTITIONS
        self.failures: list[str] = []
        self.ended = threading.Event()
        self.lives = 1
        self.config = (
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", **QUIET,
                "linger.ms": self.random.choice((0, 2, 10)), "retry.backoff.ms": 20,
                "compression.type": self.random.choice(("none", "lz4", "zstd")),
                "message.timeout.ms": 240_000, "request.timeout.ms": 5000, "error_cb": self._trouble,
                "topic.metadata.refresh.interval.ms": 1000, "socket.timeout.ms": 6000,
                "debug": "topic,eos,broker", "log_level": 7, **config,
            }
        )  # fmt: skip
        self._last_lines = LastLines()
        self._begin()

    def _begin(self) -> None:
        self.unanswered = [0] * PARTITIONS
        logger = logging.Logger(f"writer {self.number}")
        logger.addHandler(self._last_lines)
        self.producer, self.gives_up = Producer(self.config, logger=logger), False

    def _trouble(self, error) -> None:
        if error.fatal() and error.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.gives_up = True
        elif error.fatal() and not self.gives_up:
            self.failures.append(f"writer {self.number}: {error}")

    def _told(self, error, message) -> None:
        self.unanswered[message.partition()] -= 1
        if error is not None and self.gives_up:
            return
        if error is not None:
            self.failures.append(f"writer {self.number}: {message.value()[:40]!r}: {error}")
            return
        at = (message.partition(), message.offset())
        if at[1] is None or at[1] < 0:
            self.unplaced[at[0]].add(message.value())
            return
        if at in self.acked:
            both = message.value()[:40], self.acked[at][:40]
            self.failures.append(f"writer {self.number}: {both} are both at {at}")
        self.acked[at] = message.value()

    def run(self) -> None:
        while not self.ended.is_set() and not self.failures:
            try:
                self.producer.poll(0)  # raises the fatal error itself; `produce` says only that there is one
                self._live()
            except KafkaException as trouble:
                self._trouble(trouble.args[0])
            if self.gives_up:
                with contextlib.suppress(KafkaException):  # the same fatal error
                    self.producer.flush(WAIT_S)
                self.number += WRITERS
                self.lives += 1
                self._begin()

    def _live(self) -> None:
        counts = [0] * PARTITIONS
        while not self.ended.is_set() and not self.failures and not self.gives_up:
            partition = self.random.randrange(PARTITIONS)
            count = self.random.choice((1, 1, 5, 20))
            first = self.alone and counts[partition] == 0
            for _ in range(1 if first else count):
                filling = b"x" * self.random.choice((0, 10, 100, 2000))
                value = b"%d:%d:%b" % (self.number, counts[partition], filling)
                try:
                    self.producer.produce(self.topic, value, partition=partition, on_delivery=self._told)
                except BufferError:
                    self.producer.poll(0.1)
                    break
                counts[partition] += 1
                self.unanswered[partition] += 1
            if first:
                self.producer.flush(WAIT_S)
            self.producer.poll(0)
            self.ended.wait(self.random.choice((0.005, 0.02, 0.05)))

    def end(self) -> None:
        self.ended.set()
        self.join(30)
        self._last_lines.ends_at = time.monotonic() + 5
        left = 0
        with contextlib.suppress(KafkaException):  # a fatal error
            left = self.producer.flush(WAIT_S)
        lines = "\n".join(self._last_lines.lines)
        if left and not self.gives_up and not self.is_stuck():
            self.failures.append(f"writer {self.number}: {left} records are never answered:\n{lines}")

    def is_stuck(self) -> bool:
        """Return whether librdkafka sends all records that are left to brokers that it knows not to lead. It
        logs that with all metadata, and they come each second."""
        self._last_lines.lines.clear()
        self._last_lines.ends_at = float("inf")
        self.producer.flush(5)
        wrong = [
            line for line in self._last_lines.lines if "not migrating away from preferred replica" in line
        ]
        waiting = [index for index, count in enumerate(self.unanswered) if count]
        return bool(waiting) and all(
            sum(f" {self.topic} [{index}]: leader " in line for line in wrong) >= 3 for index in waiting
        )


class Reader(threading.Thread):
    """Reads all partitions as they grow. `goes_back`: it reads a part again now and then, and compares."""

    def __init__(self, bootstrap: str, topic: str, seed: int, *, goes_back: bool):
        super().__init__(daemon=True)
        self.topic, self.goes_back = topic, goes_back
        self.random = random.Random(f"{seed}-reader-{goes_back}")
        self.found: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
        self.next = [0] * PARTITIONS
        self.failures: list[str] = []
        self.ended = threading.Event()
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, **QUIET,
                "auto.offset.reset": "error", "check.crcs": True, "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 50, "topic.metadata.refresh.interval.ms": 1000,
                "socket.timeout.ms": 6000,
            }
        )  # fmt: skip
        self.consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])

    def run(self) -> None:
        turn = time.monotonic() + 1
        try:
            while not self.ended.is_set() and not self.failures:
                for message in self.consumer.consume(500, 0.1):
                    self._take(message)
                if self.goes_back and time.monotonic() > turn:
                    turn = time.monotonic() + 1
                    self._go_back()
        except Exception:
            self.failures.append(traceback.format_exc())

    def _take(self, message) -> None:
        if error := message.error():
            if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                at = self.next[message.partition()] if message.partition() is not None else self.next
                self.failures.append(f"reader at {message.partition()}, {at}: {error}")
            return
        index, offset, value = message.partition(), message.offset(), message.value()
        if offset != self.next[index]:
            self.failures.append(f"reader of {index}: {offset} comes after {self.next[index] - 1}")
        self.next[index] = offset + 1
        before = self.found[index].setdefault(offset, value)
        if before != value:
            self.failures.append(f"reader of {index}: {offset} was {before[:40]!r}, is {value[:40]!r}")

    def _go_back(self) -> None:
        index = self.random.randrange(PARTITIONS)
        if not self.next[index]:
            return
        offset = self.random.randrange(max(self.next[index] - 500, 0), self.next[index])
        try:
            self.consumer.seek(TopicPartition(self.topic, index, offset))
        except KafkaException:  # the partition has no leader that librdkafka knows
            return
        self.next[index] = offset

    def end(self, high_watermarks: Sequence[int]) -> None:
        self.goes_back = False
        try:
            until(
                lambda: self.failures or all(n >= h for n, h in zip(self.next, high_watermarks, strict=True)),
                lambda: ("the reader stays behind", self.next, high_watermarks),
            )
        except AssertionError as trouble:
            self.failures.append(str(trouble))
        self.ended.set()
        self.join(30)
        self.consumer.close()


def high_watermarks(bootstrap: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", **QUIET})
    try:
        return [until(lambda i=i: _high_watermark(consumer, topic, i)) - 1 for i in range(PARTITIONS)]
    finally:
        consumer.close()


def _high_watermark(consumer, topic, index) -> int:
    """Return the high watermark plus 1; 0 if it is not known yet."""
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=5)[1] + 1
    except KafkaException:
        return 0


# -- the checks --------------------------------------------------------------------------------------------


def batches(path: Path) -> list[tuple[int, int, str]]:
    """Return (base offset, leader epoch, digest) of each batch of a replica."""
    return [
        (*struct.unpack_from(">q4xi", batch), hashlib.md5(batch).hexdigest()) for batch in raw_batches(path)
    ]


def raw_batches(path: Path) -> Iterator[bytes]:
    """Yield the complete batches of a replica."""
    for segment in sorted(path.glob("*.log")):
        data, at = segment.read_bytes(), 0
        while at + HEADER <= len(data):
            size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
            if size <= HEADER or at + size > len(data):
                break
            yield data[at : at + size]
            at += size


def renewals(path: Path) -> set[int]:
    """Return the offsets at which a producer continued with a new epoch (KIP-360). librdkafka takes one after
    OUT_OF_ORDER_SEQUENCE_NUMBER, which a leader answers to a request that overtook the one before it (kafkad:
    when it has led for 2 s). It then repeats all unanswered records of all partitions, so such a record may
    be in the log twice."""
    found = set()
    epochs: dict[int, int] = {}
    for batch in raw_batches(path):
        producer_id, epoch = struct.unpack_from(">qh", batch, PRODUCER_AT)
        if epoch > epochs.setdefault(producer_id, epoch):
            found.add(int.from_bytes(batch[:8], "big"))
        epochs[producer_id] = epoch
    return found


def odd_batches(path: Path) -> list[str]:
    """Return a line for each batch of a replica that does not follow the one before it of its producer."""
    found = []
    following: dict[int, tuple[int, int]] = {}  # by producer id: epoch, sequence
    for batch in raw_batches(path):
        offset, leader_epoch = struct.unpack_from(">q4xi", batch)
        producer_id, epoch, sequence, count = struct.unpack_from(">qhii", batch, PRODUCER_AT)
        expected = following.get(producer_id, (0, 0))
        if producer_id >= 0 and (epoch, sequence) != expected:
            is_at = f"{offset} to {offset + count - 1}, of leader epoch {leader_epoch}"
            found.append(f"{is_at}: producer {producer_id} has {epoch, sequence}, expected {expected}")
        following[producer_id] = epoch, sequence + count
    return found


def epochs(path: Path, last_batch: int) -> list[tuple[int, int]]:
    """Return (epoch, start offset) of the leaders that have written something. Only the leader itself knows
    of an epoch in which nothing was written yet."""
    lines = (path / "leader-epoch-checkpoint").read_text().split("\n")[2:]
    known = [tuple(map(int, line.split())) for line in lines if line]
    return [(epoch, start) for epoch, start in known if start <= last_batch]


def check_records(
    records: Sequence[bytes], writers: Sequence[Writer], index: int, renewed: AbstractSet[int] = frozenset()
) -> list[str]:
    """Return the errors in a partition that has these records, from offset 0 on. At a `renewed` offset a
    writer may repeat records that are in the log already, if they were never acknowledged."""
    wrong = []
    acked = {offset for writer in writers for partition, offset in writer.acked if partition == index}
    for writer in writers:
        for (partition, offset), value in writer.acked.items():
            if partition != index:
                continue
            is_there = offset < len(records)
            if not is_there or records[offset] != value:
                there = records[offset][:40] if is_there else None
                kind = "is at another offset" if value in records else "is lost"
                wrong.append(f"acknowledged {value[:40]!r} at {index}, {offset} {kind}; there: {there!r}")
        lost = writer.unplaced[index] - set(records)
        wrong += [f"acknowledged {value[:40]!r} of {index} is lost" for value in sorted(lost)]
    last: dict[bytes, int] = {}
    seen: dict[bytes, int] = {}
    for offset, value in enumerate(records):
        writer_id, number, _ = value.split(b":", 2)
        expected = last.get(writer_id, -1) + 1
        if seen.setdefault(value, offset) != offset and seen[value] in acked:
            wrong.append(f"{value[:40]!r}, acknowledged at {index}, {seen[value]}, is at {offset}, too")
        if int(number) != expected and not (offset in renewed and seen[value] != offset):
            wrong.append(f"{index}, {offset}: writer {writer_id!r} has {number!r}, expected {expected}")
        last[writer_id] = int(number)
    return wrong


def create(admin: AdminClient, *topics: NewTopic) -> None:
    for made in admin.create_topics([*topics]).values():
        try:
            made.result(WAIT_S)
        except KafkaException as trouble:  # librdkafka asks again when an answer is lost
            if trouble.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


# -- a story -----------------------------------------------------------------------------------------------


class Story:
    """`Story(cluster, seed).tell(faults)` causes these faults, with a topic of its own. An error has the seed
    and everything that was done."""

    writing: Mapping[str, object] = MappingProxyType({})  # added to the writers' configuration

    def __init__(self, cluster: Cluster, seed: int):
        self.cluster, self.seed = cluster, seed
        self.topic = f"story-{seed}"
        self.chance = random.Random(seed)
        self.faults = Faults(cluster, self.chance)

    def tell(self, faults: Sequence[Callable[[Faults], None]]) -> int:
        """Return the number of acknowledged records."""
        try:
            return self._tell(faults)
        except Exception as trouble:
            events = "\n".join(self.faults.told)
            raise AssertionError(f"seed {self.seed}: {trouble}\n{self.cluster.path}\n{events}") from trouble

    def _tell(self, faults: Sequence[Callable[[Faults], None]]) -> int:
        self._create()
        self.writers = [
            Writer(self.cluster.bootstrap, self.topic, n, self.seed, **self.writing) for n in range(WRITERS)
        ]
        self.readers = [
            Reader(self.cluster.bootstrap, self.topic, self.seed, goes_back=back) for back in (False, True)
        ]
        self.others = self._others()
        for client in (*self.readers, *self.writers, *self.others):
            client.start()
        try:
            self._progress()
            for fault in faults:
                fault(self.faults)
                if self.chance.random() < 0.5:
                    self.cluster.whole(self.topic)
                    self._progress()
                else:
                    self.faults.pause(0.1, 1.0)
                assert not self.failures(), "\n".join(self.failures()[:20])
            self.cluster.whole(self.topic)
            self._progress()
            return self._check()
        finally:
            for client in (*self.writers, *self.readers, *self.others):
                client.ended.set()

    def _create(self) -> None:
        self._create_topic(self.topic)
        self._links_are_used()

    def _create_topic(self, name: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, **QUIET})
        create(admin, NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"}))
        self.cluster.whole(name)

    def _isolations(self) -> int:
        """Count the faults after which a leader may not know that it has a successor."""
        return sum(" cut " in told or " SIGSTOP " in told for told in self.faults.told)

    def _links_are_used(self) -> None:
        """Wait until the nodes use the links: otherwise nothing would be cut. The ISRs of a new topic are
        whole before its followers fetch."""

        def unused() -> set[tuple[bytes, int, int]]:
            leader = self.cluster.active_controller()
            pairs = [(source, target) for source in self.cluster.nodes for target in self.cluster.nodes]
            ways = {(b"broker", source, target) for source, target in pairs if source != target}
            ways |= {(b"kafkad", source, leader) for source in self.cluster.nodes if source != leader}
            return ways - self.cluster.links.used

        until(lambda: not unused(), lambda: ("links are not used", unused()))

    def _progress(self) -> None:
        before = [len(writer.acked) for writer in self.writers]
        until(
            lambda: (
                self.failures()
                or all(len(w.acked) > n + 20 for w, n in zip(self.writers, before, strict=True))
            ),
            lambda: (
                "nothing is acknowledged",
                before,
                [(len(writer.acked), len(writer.producer)) for writer in self.writers],
                self.cluster.seen(self.topic),
            ),
        )

    def failures(self) -> list[str]:
        clients = (*self.writers, *self.readers, *self.others)
        return [failure for client in clients for failure in client.failures]

    def _others(self) -> list:
        """Return more clients: threads with `failures` and `ended`."""
        return []

    def _check(self) -> int:
        for writer in self.writers:
            writer.end()
        ends = high_watermarks(self.cluster.bootstrap, self.topic)
        last = Reader(self.cluster.bootstrap, self.topic, self.seed, goes_back=False)
        last.start()
        for reader in (*self.readers, last):
            reader.end(ends)
        wrong = self.failures() + last.failures + self._check_others(ends)
        for index in range(PARTITIONS):
            found = last.found[index]
            wrong += self._replicas_of(self.topic, index)
            records = [found[offset] for offset in range(len(found))]
            misplaced = check_records(records, self.writers, index, self._renewed(index))
            if misplaced:
                misplaced += odd_batches(self.cluster.nodes[1].data_dir / f"{self.topic}-{index}")
            wrong += misplaced
            for reader in self.readers:
                wrong += [
                    f"a reader of {index} has read {value[:40]!r} at {offset}, where {found.get(offset)!r} is"
                    for offset, value in reader.found[index].items()
                    if found.get(offset) != value
                ]
        wrong += self.cluster.tracebacks()
        lives, lives_max = max(writer.lives for writer in self.writers), 1 + self._isolations()
        if lives > lives_max:
            wrong.append(f"a writer needed {lives} producers")
        assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:20])
        return sum(len(writer.acked) for writer in self.writers)

    def _renewed(self, index: int) -> set[int]:
        """Return the offsets at which the client may have repeated records (see Writer)."""
        if not self._isolations():
            return set()
        return renewals(self.cluster.nodes[1].data_dir / f"{self.topic}-{index}")

    def _check_others(self, ends: list[int]) -> list[str]:
        """Return the errors of the other clients. `ends`: of the topic's partitions."""
        return []

    def _replicas_of(self, topic: str, index: int) -> list[str]:
        """Wait until all replicas are the same. Return an error if they never are."""
        paths = [node.data_dir / f"{topic}-{index}" for node in self.cluster.nodes.values()]

        def replicas():
            for path in paths:
                log = batches(path)
                yield log, epochs(path, log[-1][0] if log else -1)

        def same() -> bool:
            first, *others = replicas()
            return bool(first[0]) and all(each == first for each in others)

        try:
            until(same, within_s=30)
        except AssertionError:
            told = [(log[-3:], known) for log, known in replicas()]
            return [f"the replicas of {topic}-{index} differ: {told}"]
        return []
