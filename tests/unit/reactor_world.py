"""A reactor with real partitions and real sockets, driven by hand: nothing runs but inside of `poll`.

`World` polls whenever a client waits for something, so every test is one thread and one order of events."""

import itertools
import os
import socket
import struct
import time

from kafkad._native.log.partition import Partition
from kafkad._native.serving.partition_table import PartitionTable
from kafkad._native.serving.reactor import Reactor
from kafkad.log.log import Log
from kafkad.protocol import codec, messages, records
from tests.readiness import readable
from tests.unit.log_world import ManualScheduler, topic_config

NOW_MS = int(time.time() * 1000)


class Closed(Exception):
    """The broker closed the connection."""


class SlowLog:
    """What `Partition.log` must offer to the reactor; a test gives it what to do."""

    def __init__(self, append=None):
        self.append = append

    def begin_append(self, view, now_ms, admission=0, guard=0):
        return self.append(bytes(view), now_ms)


class Gate:
    """The way to transaction coordinators: it admits at once, or holds the questions until a test answers."""

    def __init__(self, *, holds=False, refusals=()):
        self.asked = []  # (transactional id, producer id, epoch, version, partitions) of each question
        self.holds = holds
        self.waiting = []  # (number of partitions, done) of each question that is held
        self.refusals = dict(refusals)  # (topic, partition): the answer to it

    def __call__(self, transactional_id, producer_id, epoch, version, partitions, done):
        self.asked.append((transactional_id, producer_id, epoch, version, partitions))
        if self.holds:
            self.waiting.append((partitions, done))
        else:
            self.answer(partitions, done)

    def answer(self, partitions, done):
        done([self.refusals.get(partition, (0, None)) for partition in partitions])

    def let_go(self):
        """Answers what is held; how many questions."""
        waiting, self.waiting = self.waiting, []
        for partitions, done in waiting:
            self.answer(partitions, done)
        return len(waiting)


def open_log(directory, topic, index, topic_id=None, *, row=None, **config):
    """A real log, led."""
    log = Log.open(
        directory,
        topic,
        index,
        topic_config(**config),
        now_ms=NOW_MS,
        clean=True,
        scheduler=ManualScheduler(),
        topic_id=topic_id,
        row=row,
    )
    log.set_leader_epoch(0)
    return log


class Appended:
    """What a log's slow append returns (log.pending_append.AppendResult)."""

    def __init__(self, base_offset, end_offset, append_time_ms=-1, log_start_offset=0):
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.append_time_ms = append_time_ms
        self.log_start_offset = log_start_offset


class World:
    def __init__(self, directory, *, native=True, **limits):
        self.directory = directory
        self.table = PartitionTable()
        self.calls = []  # frames that Python saw: (connection, request_id, frame)
        self.answer = lambda connection, request_id, frame: connection.respond(request_id, frame[4:8], b"!")
        self.fatal = []
        self.lines = []
        self.reactor = Reactor(self.table, self._dispatch, on_fatal=self.fatal.append, log=self, **limits)
        if native:
            self.reactor.serve_native(0, 3, 13)
            self.reactor.serve_native(1, 4, 18)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.reactor.add_listener(self.listener.fileno(), "PLAINTEXT")
        self.clients = []

    def _dispatch(self, connection, request_id, frame):
        self.calls.append((connection, request_id, frame))
        self.answer(connection, request_id, frame)

    def info(self, line, *args):  # a logger
        self.lines.append(line % args)

    warning = critical = info

    def partition(self, topic, index=0, *, topic_id=None, follows_end=True, log=None):
        directory = os.path.join(self.directory, f"{topic}-{index}")
        os.makedirs(directory)
        with open(os.path.join(directory, f"{0:020d}.log"), "wb"):
            pass
        partition = Partition(topic, index, topic_id, directory)
        partition.add_segment(0, 0, NOW_MS)
        partition.follows_end = follows_end
        partition.log = log or SlowLog()
        partition.lead(0)
        self.table.add(partition, topic, topic_id)
        return partition

    def log(self, topic, index=0, *, topic_id=None, **config):
        """A partition with a real log, which unpacks; configuration by attribute name."""
        log = open_log(os.path.join(self.directory, f"{topic}-{index}"), topic, index, topic_id, **config)
        self.table.add(log.native, topic, topic_id)
        return log

    def connect(self, *, source="", to=None, **options):
        """`to`: a socket that listens, other than `listener`."""
        address = (source, 0) if source else None
        there = (to or self.listener).getsockname()
        client = Client(self, socket.create_connection(there, source_address=address), **options)
        self.clients.append(client)
        self.reactor.poll()
        return client

    def poll(self, rounds=3):
        for _ in range(rounds):
            self.reactor.poll()

    def poll_until(self, condition, seconds=10):
        """Polls, sleeping on the reactor's own fd in between, so its timer is what wakes it."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            readable([self.reactor.fileno()], 0.05)
            self.reactor.poll()

    def close(self):
        self.reactor.close()
        for client in self.clients:
            client.socket.close()
        self.listener.close()
        self.reactor = self.table = None  # their files are closed now, not when the garbage is collected
        assert self.fatal == []


class Client:
    def __init__(self, world, sock):
        self.world = world
        self.socket = sock
        self.correlation = itertools.count(1)
        self.received = bytearray()
        sock.setblocking(False)

    # -- bytes

    def send(self, data):
        """All of it, polling while the socket is full."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except BlockingIOError:
                self.world.reactor.poll()

    def send_frame(self, frame):
        self.send(struct.pack(">i", len(frame)) + frame)

    def pull(self):
        """What is there; raises Closed at the end."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            raise Closed from None
        if not data:
            raise Closed
        self.received += data
        return True

    def receive_frame(self, seconds=10):
        deadline = time.monotonic() + seconds
        while True:
            if len(self.received) >= 4:
                (size,) = struct.unpack_from(">i", self.received)
                if len(self.received) >= 4 + size:
                    frame = bytes(self.received[4 : 4 + size])
                    del self.received[: 4 + size]
                    return frame
            self.world.reactor.poll()
            if not self.pull():
                assert time.monotonic() < deadline, "no answer"
                readable([self.socket, self.world.reactor.fileno()], 0.05)

    def has_answer(self):
        self.world.poll()
        while self.pull():
            pass
        return len(self.received) >= 4

    def wait_closed(self, seconds=5):
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                self.world.reactor.poll()
                if not self.pull():  # sleep: a loop that spins keeps Python's lock from the threads
                    readable([self.socket, self.world.reactor.fileno()], 0.05)
        except Closed:
            return
        raise AssertionError("the broker did not close the connection")

    # -- messages

    def send_request(self, message, version, client_id="test"):
        correlation_id = next(self.correlation)
        self.send_frame(codec.encode_request(message, version, correlation_id, client_id))
        return correlation_id

    def receive(self, message_class, version, correlation_id=None):
        got, response = codec.decode_response(message_class, version, self.receive_frame())
        if correlation_id is not None:
            assert got == correlation_id
        return response

    def ask(self, message, version, client_id="test"):
        correlation_id = self.send_request(message, version, client_id)
        return self.receive(codec.response_class(message.API_KEY), version, correlation_id)

    def send_produce(self, topic, batch, *, index=0, version=9, acks=-1, timeout_ms=30_000, **fields):
        return self.send_request(produce(topic, {index: batch}, acks, timeout_ms, **fields), version)

    def produce(self, topic, batch, *, version=9, **fields):
        correlation_id = self.send_produce(topic, batch, version=version, **fields)
        answer = self.receive(messages.ProduceResponse, version, correlation_id)
        return answer.responses[0].partition_responses[0]

    def fetch(self, partitions, *, version=12, **fields):
        return self.ask(fetch(partitions, **fields), version)


def produce(topic, batches, acks=-1, timeout_ms=30_000, transactional_id=None):
    """`topic` is a name or an id; `batches` is {partition: records}."""
    data = messages.ProduceRequest.TopicData
    return messages.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            data(
                **named("name", topic),
                partition_data=[data.PartitionData(index=i, records=b) for i, b in batches.items()],
            )
        ],
    )


def fetch(partitions, *, max_wait_ms=0, min_bytes=1, max_bytes=1 << 30, forgotten=(), **fields):
    """`partitions` are (topic, index, offset[, max_bytes]); `forgotten` are (topic, index)."""
    topics = messages.FetchRequest.Topics
    forget = messages.FetchRequest.ForgottenTopicsData
    return messages.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[
            topics(
                **named("topic", topic),
                partitions=[
                    topics.Partitions(
                        partition=index, fetch_offset=offset, partition_max_bytes=rest[0] if rest else 1 << 20
                    )
                ],
            )
            for topic, index, offset, *rest in partitions
        ],
        forgotten_topics_data=[
            forget(**named("topic", topic), partitions=[index]) for topic, index in forgotten
        ],
        **fields,
    )


def named(field, topic):
    return {field: topic} if isinstance(topic, str) else {"topic_id": topic}


def batch(count=1, size=100, **options):
    """A record batch of `count` records of `size` bytes."""
    value = bytes(size)
    return bytes(
        records.build_batch(
            [records.Record(key=None, value=value, timestamp=NOW_MS) for _ in range(count)], **options
        )
    )


def rows(response):
    """[(topic, partition, code, high watermark, bytes of records)] of a Fetch answer."""
    return [
        (
            topic.topic or topic.topic_id,
            part.partition_index,
            part.error_code,
            part.high_watermark,
            len(part.records or b""),
        )
        for topic in response.responses
        for part in topic.partitions
    ]
