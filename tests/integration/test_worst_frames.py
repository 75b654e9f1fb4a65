"""What can one client make the others wait for? Frames wrong at their end, and the worst valid shapes.

`test_worst_input.py` widens valid requests. Here are

- near-valid requests: the widest frames of each API, spoiled at the very end (tests/worst_frames.py),
- shapes: requests that are valid, but whose answer or whose work is far larger than they are,
- pipelines: thousands of small requests at once, half frames, unread answers, connections by the thousand.

Meanwhile other clients ping every worker (tests/neighbours.py): none of them waits longer than WAIT_MAX, the
memory of a worker stays below MEMORY_MAX, as docs/operations.md says, and goes back.

The suite tries one size of each, with one worker and with two; `make soak` lets each grow."""

import contextlib
import functools
import gzip
import random
import socket
import struct
import threading
import time
import zlib

import pytest

from kafkad._native.wire.crc32c import checksum
from kafkad.api import table
from kafkad.protocol import codec, messages
from kafkad.protocol.records import Record, build_batch
from kafkad.testing import Broker
from tests.neighbours import PARTITIONS, TOPIC, Neighbours
from tests.wire import Wire, batch, create_topic, produce
from tests.worst_frames import Shape, frame, shapes, some_shapes

SEED = 16
WAIT_MAX = 0.1  # seconds
TRIES = 2  # what a request causes it causes each time; what the machine causes it does not
MEMORY_MAX = 700  # MB of a worker at any time, and
MEMORY_LEFT = 60  # more than before, soon after
LITTLE = 18  # MB
PATIENCE = 60.0
HELD = 3.0  # a group's rebalance may hold an answer back
SHORT_WIDTH = 24_000
WIDTHS = (1_000, 8_000, 64_000, 200_000)

SERVED = [row for row in table.ROWS if row.handler is not None or row in table.NATIVE]


class World:
    """A broker, its neighbours, and what the shapes need."""

    def __init__(self, workers):
        self.broker = Broker(workers=workers, config={"num.partitions": 1})

    def __enter__(self):
        self.broker.start()
        self.bootstrap = self.broker.bootstrap
        host, _, port = self.bootstrap.rpartition(":")
        self.address = (host, int(port))
        with Wire(self.bootstrap, PATIENCE) as wire:
            create_topic(wire, TOPIC, PARTITIONS)
            create_topic(wire, "t", 8)
            create_topic(wire, "many", 500)
            create_topic(wire, "compacted", 1, cleanup_policy="compact")
            create_topic(wire, "big", 40, max_message_bytes=str(100 << 20))
            for partition in range(PARTITIONS):
                assert produce(wire, TOPIC, batch(b"x" * 40), partition).error_code == 0
            for group in ("a", "b", "c"):  # their coordinators are there
                ask_until_served(wire, messages.OffsetFetchRequest(group_id=group, topics=[]), 2)
        self.made = self.topics()
        self.pids = list(self.broker.worker_pids.values())
        self.neighbours = Neighbours(self.bootstrap, self.pids)
        self.fresh = [memory_mb(pid) for pid in self.pids]
        return self

    def __exit__(self, *exception):
        self.neighbours.close()
        self.broker.kill()
        self.broker.close()

    def connect(self):
        sock = socket.create_connection(self.address, timeout=PATIENCE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def measure(self, name, act):
        """`act()`: the others wait no longer than they may, and no worker needs more than it may."""
        waits = []
        for _ in range(TRIES):
            for pid in self.pids:
                with open(f"/proc/{pid}/clear_refs", "w") as file:
                    file.write("5")  # the peak begins here
            self.neighbours.begin()
            begun = time.monotonic()
            act()
            taken = time.monotonic() - begun
            waits.append(self.neighbours.worst())
            peak = max(memory_mb(pid, "VmHWM") for pid in self.pids)
            print(
                f"{name}: {taken * 1000:.0f} ms, others waited {waits[-1][0] * 1000:.0f} ms ({waits[-1][1]}),"
                f" peak {peak:.0f} MB"
            )
            assert peak < MEMORY_MAX, f"{name}: a worker needed {peak:.0f} MB"
            if waits[-1][0] <= WAIT_MAX:
                break
        assert min(waits)[0] <= WAIT_MAX, f"{name}: others waited {waits}"
        assert list(self.broker.worker_pids.values()) == self.pids, f"{name}: a worker died"

    def topics(self):
        with Wire(self.bootstrap) as wire:
            return {topic.name for topic in wire.ask(messages.MetadataRequest(topics=None), 8).topics}

    def delete_others(self):
        others = sorted(self.topics() - self.made)
        for start in range(0, len(others), 1_000):
            request = messages.DeleteTopicsRequest(
                topic_names=others[start : start + 1_000], timeout_ms=60_000
            )
            with Wire(self.bootstrap, PATIENCE) as wire:
                assert {it.error_code for it in wire.ask(request, 5).responses} == {0}

    def has_gone_back(self):
        """Without the topics that requests created (Metadata before v4): they are data."""
        self.delete_others()
        deadline = time.monotonic() + 20
        for pid, before in zip(self.pids, self.fresh, strict=True):
            while memory_mb(pid) > before + MEMORY_LEFT:
                assert time.monotonic() < deadline, f"{memory_mb(pid):.0f} MB are left, of {before:.0f}"
                time.sleep(0.2)


def ask_until_served(wire, request, version):
    wire.ask(messages.FindCoordinatorRequest(key="a"), 0)
    deadline = time.monotonic() + PATIENCE
    while (answer := wire.ask(request, version)).error_code in (14, 15, 16):  # the coordinator is loading
        assert time.monotonic() < deadline, answer
        time.sleep(0.02)
    return answer


def memory_mb(pid, key="Pss_Anon"):
    with open(f"/proc/{pid}/{'status' if key == 'VmHWM' else 'smaps_rollup'}") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) / 1024


@pytest.fixture(scope="module", params=[1, 2], ids=["one_worker", "two_workers"])
def world(request):
    with World(request.param) as running:
        yield running


def ask(world, data, patience=PATIENCE):
    """Send a frame, and read its answer or the end of the connection. The answer's size, or None."""
    with world.connect() as sock:
        sock.settimeout(patience)
        with contextlib.suppress(ConnectionError, TimeoutError):
            sock.sendall(struct.pack(">i", len(data)) + data)
            return read_answer(sock)


def read_answer(sock):
    head = b""
    while len(head) < 4:
        part = sock.recv(4 - len(head))
        if not part:
            return None
        head += part
    left = size = int.from_bytes(head, "big")
    while left > 0:
        data = sock.recv(min(left, 1 << 20))
        if not data:
            return None
        left -= len(data)
    return size


# -- near-valid --------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("row", SERVED, ids=lambda row: row.name)
def test_frames_that_are_wrong_at_their_end_stop_nobody(world, row, rounds):
    """The lowest and the highest version; two shapes of each in the suite, all in `make soak`."""
    chance = random.Random(SEED * 1000 + row.key)
    for version in (row.low, row.high):
        if rounds(0, 1):
            tried = list(shapes(row, version, WIDTHS))
        else:
            tried = some_shapes(row, version, SHORT_WIDTH, 1, chance)
        for shape in tried:
            data = frame(row, version, shape)
            world.measure(f"{row.name} v{version} {named(shape)}", lambda data=data: ask(world, data, HELD))
    world.has_gone_back()


def test_objects_that_stay_while_many_come_and_go_keep_little_memory():
    """A timer that is set while a client's 64,000 names are served kept 1 MB of free memory, and so did each
    object of that kind: 30 MB after a few such requests, and more with each."""
    row = table.BY_KEY[3]
    data = frame(row, 0, Shape(("topics",), 64_000, distinct=True))
    with World(1) as world:
        [pid] = world.pids
        before = memory_mb(pid)
        world.neighbours.begin()
        for _ in range(4):
            assert ask(world, data) is not None
            time.sleep(1)  # the heap is trimmed once a second at most
        deadline = time.monotonic() + 10
        while (left := memory_mb(pid) - before) > LITTLE:
            assert time.monotonic() < deadline, f"{left:.0f} MB are left"
            time.sleep(0.2)


def named(shape):
    kind = "numbered" if shape.distinct else "same"
    return f"{'.'.join(shape.wide)} x {shape.width} {kind}, {shape.end}"


# -- shapes ------------------------------------------------------------------------------------------------

SHAPES = {}


def shape(short, *sizes):
    """A function of the world and a size; `short` is for the suite, all `sizes` for `make soak`."""

    def keep(function):
        SHAPES[function.__name__] = (function, short, sizes)
        return function

    return keep


def encode(request, version):
    return codec.encode_request(request, version, 1, "worst")


def sent(world, *frames, patience=PATIENCE):
    """What sends these frames in one write and reads their answers."""
    data = b"".join(struct.pack(">i", len(one)) + one for one in frames)

    def act():
        with world.connect() as sock, contextlib.suppress(ConnectionError, TimeoutError):
            sock.settimeout(patience)
            sender = threading.Thread(target=send_all, args=(sock, data))
            sender.start()
            sizes = []
            for _ in frames:
                sizes.append(read_answer(sock))
                if sizes[-1] is None:
                    break
            sock.shutdown(socket.SHUT_RDWR)
            sender.join()
            if len(frames) < 20:
                print("answers of", sizes)

    return act


def send_all(sock, data):
    with contextlib.suppress(OSError):
        sock.sendall(data)


def produced(parts, version=9):
    """A Produce of [(topic, [(partition, records)])]."""
    kind = messages.ProduceRequest.TopicData
    return encode(
        messages.ProduceRequest(
            acks=1,
            timeout_ms=10_000,
            topic_data=[
                kind(
                    name=name, partition_data=[kind.PartitionData(index=i, records=r) for i, r in partitions]
                )
                for name, partitions in parts
            ],
        ),
        version,
    )


def values(count, size=0, **how):
    now = int(time.time() * 1000)
    value = b"v" * size
    return bytes(
        build_batch([Record(key=None, value=value, headers=[], timestamp=now) for _ in range(count)], **how)
    )


def raw_batch(body, count, attributes=0, crc=None):
    """A batch of these bytes, whatever they are."""
    now = int(time.time() * 1000)
    tail = struct.pack(">hiqqqhii", attributes, count - 1, now, now, -1, -1, -1, count) + body
    crc = checksum(tail) if crc is None else crc
    return struct.pack(">qiibI", 0, len(tail) + 9, -1, 2, crc) + tail


# Produce


@shape(5_000, 5_000, 20_000, 80_000)
def produce_tiny_batches_for_one_partition_again_and_again(world, size, stack):
    data = values(1)
    return sent(world, produced([("t", [(0, data)] * size)]))


@shape(5_000, 5_000, 20_000, 80_000)
def produce_for_topics_that_do_not_exist(world, size, stack):
    data = values(1)
    return sent(world, produced([(f"none-{i}", [(0, data)]) for i in range(size)]))


@shape(500, 500)
def produce_for_all_partitions_of_a_topic(world, size, stack):
    data = values(1)
    return sent(world, produced([("many", [(i, data) for i in range(size)])]))


@shape(20_000, 20_000, 200_000)
def produce_many_batches_where_one_may_be(world, size, stack):
    return sent(world, produced([("t", [(0, values(1) * size)])]))


@shape(1_000_000, 100_000, 1_000_000, 4_000_000)
def produce_one_batch_of_tiny_records(world, size, stack):
    body = b"".join(map(tiny_record, range(size)))
    return sent(world, produced([("big", [(0, raw_batch(body, size))])]))


def tiny_record(delta):
    inner = b"\0\0" + varint(delta) + b"\x01\x00\x00"
    return varint(len(inner)) + inner


def varint(value):
    value <<= 1
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


@shape(40, 10, 40, 90)
def produce_megabytes_in_one_batch(world, size, stack):
    data = raw_batch(records_of(1, (size << 20) - 1000), 1)
    return sent(world, produced([("big", [(0, data)])]))


@shape(40, 40)
def produce_megabytes_for_many_partitions(world, size, stack):
    data = raw_batch(records_of(1, 2_000_000), 1)
    return sent(world, produced([("big", [(i, data) for i in range(size)])]))


@shape(40, 10, 40, 90)
def produce_with_a_bad_crc_at_the_end(world, size, stack):
    data = raw_batch(records_of(1, (size << 20) - 1000), 1, crc=1)
    return sent(world, produced([("big", [(0, data)])]))


@shape(40, 10, 40, 90)
def produce_with_a_record_whose_length_lies_at_the_end(world, size, stack):
    count = size * 1000
    body = records_of(count, 1000)
    return sent(world, produced([("big", [(0, raw_batch(body[:-1] + b"\x02", count))])]))


@shape(300_000, 100_000, 1_000_000, 4_000_000)
def produce_a_record_of_headers(world, size, stack):
    inner = b"\0\0\0\x01\x00" + varint(size) + b"\0\0" * size
    return sent(world, produced([("big", [(0, raw_batch(varint(len(inner)) + inner, 1))])]))


@shape(100_000, 100_000)
def produce_keyless_records_into_a_compacted_topic(world, size, stack):
    return sent(world, produced([("compacted", [(0, values(size))])]))


@shape(50_000, 50_000)
def produce_messages_of_old_formats(world, size, stack):
    inner = struct.pack(">bbq", 1, 0, 0) + struct.pack(">i", -1) + struct.pack(">i", 1) + b"x"
    one = struct.pack(">I", zlib.crc32(inner)) + inner
    message = struct.pack(">qi", 0, len(one)) + one
    return sent(world, produced([("t", [(0, message * size)])], 3))


def records_of(count, size):
    inner_tail = b"\x01" + varint(size) + b"v" * size + b"\0"
    parts = []
    for i in range(count):
        inner_size = 2 + len(varint(i)) + len(inner_tail)
        parts += (varint(inner_size), b"\0\0", varint(i), inner_tail)
    return b"".join(parts)


@shape(30, 10, 90)
def produce_gzip_bombs(world, size, stack):
    body = gzip.compress(records_of(1, 60_000_000))
    data = raw_batch(body, 1, attributes=1)
    return sent(world, produced([("big", [(i % 40, data) for i in range(size)])]))


@shape(4, 1, 4, 16)
def produce_empty_gzip_members(world, size, stack):
    body = gzip.compress(b"") * 40_000 + gzip.compress(records_of(1, 10))
    data = raw_batch(body, 1, attributes=1)
    return sent(world, produced([("big", [(i, data) for i in range(size)])]))


@shape(1, 1, 4)
def produce_tiny_records_in_every_codec(world, size, stack):
    frames = []
    for codec_id in (1, 2, 3, 4):
        data = tiny_records(codec_id)
        frames.append(produced([("big", [(i, data) for i in range(size * 4)])]))
    return sent(world, *frames)


@functools.cache
def tiny_records(codec_id):
    """2 s of CPU for all codecs: made once for both worlds."""
    return values(500_000, compression=codec_id)


# Fetch


def fetched(topics, version=11, **how):
    kind = messages.FetchRequest.Topics
    asked = [
        kind(
            topic=name,
            partitions=[
                kind.Partitions(partition=i, fetch_offset=0, partition_max_bytes=limit)
                for i, limit in partitions
            ],
        )
        for name, partitions in topics
    ]
    settings = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 30, **how}
    return encode(messages.FetchRequest(topics=asked, **settings), version)


@shape(65_000, 16_000, 65_000)
def fetch_partitions_that_do_not_exist(world, size, stack):
    return sent(world, fetched([("t", [(i, 1) for i in range(size)])]))


@shape(65_000, 16_000, 65_000)
def fetch_one_partition_again_and_again(world, size, stack):
    return sent(world, fetched([("t", [(0, 1 << 30)] * size)]))


@shape(30, 10, 100)
def fetch_sessions_made_again_and_again(world, size, stack):
    """And ended, since sessions stay otherwise."""
    data = fetched([("t", [(i, 1) for i in range(20_000)])], session_id=0, session_epoch=0)

    def act():
        with Wire(world.bootstrap, PATIENCE) as wire:
            stream = (struct.pack(">i", len(data)) + data) * size
            sender = threading.Thread(target=send_all, args=(wire.socket, stream))
            sender.start()
            sessions = [int.from_bytes(wire.read_frame()[10:14], "big") for _ in range(size)]
            sender.join()
            for session in sessions:  # a worker knows its own only
                wire.send_frame(fetched([], session_id=session, session_epoch=-1))
                wire.read_frame()

    return act


@shape(300, 100, 1000)
def fetch_that_waits_for_more_than_will_come(world, size, stack):
    """Watchers on the partitions to which the others produce."""
    data = fetched(
        [(TOPIC, [(i, 1 << 20) for i in range(PARTITIONS)])],
        max_wait_ms=5_000,
        min_bytes=1 << 30,
        max_bytes=1 << 30,
    )
    return held_open(world, size, struct.pack(">i", len(data)) + data, 1.5)


@shape(60_000, 60_000, 400_000)
def fetch_that_forgets_what_it_never_had(world, size, stack):
    forgotten = messages.FetchRequest.ForgottenTopicsData
    request = messages.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 30,
        session_id=0,
        session_epoch=0,
        forgotten_topics_data=[forgotten(topic="t", partitions=list(range(size)))],
    )
    return sent(world, encode(request, 11))


@shape(2_000, 500, 5_000)
def fetch_all_of_a_topic_in_a_pipeline(world, size, stack):
    return sent(world, *[fetched([("many", [(i, 1 << 20) for i in range(500)])])] * (size // 10))


# groups


def join(group, metadata=b"m", version=3, **how):
    protocol = messages.JoinGroupRequest.Protocols(name="range", metadata=metadata)
    settings = {
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 1_000,
        "protocol_type": "consumer",
        **how,
    }
    return messages.JoinGroupRequest(group_id=group, protocols=[protocol], **settings)


def with_group(world, group, metadata):
    """A stable group of one member."""
    with Wire(world.bootstrap, PATIENCE) as wire:
        joined = wire.ask(join(group, metadata), 3)
        assert joined.error_code == 0, joined
        assigned = messages.SyncGroupRequest.Assignments(member_id=joined.member_id, assignment=metadata)
        request = messages.SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[assigned],
        )
        assert wire.ask(request, 2).error_code == 0


@shape(15, 4, 15)
def join_with_the_largest_metadata(world, size, stack):
    return sent(world, encode(join(f"large-{size}", bytes(size << 20)), 3), patience=HELD)


@shape(300, 300, 900)
def join_as_hundreds_of_members(world, size, stack):
    frames = encode(join(f"crowd-{size}", b"m" * 100), 3)
    return held_open(world, size, struct.pack(">i", len(frames)) + frames, 1.5)


@shape(100_000, 25_000, 100_000)
def describe_one_group_again_and_again(world, size, stack):
    with_group(world, "described", bytes(20_000))
    return sent(world, encode(messages.DescribeGroupsRequest(groups=["described"] * size), 4))


@shape(100_000, 25_000, 100_000)
def leave_as_members_that_nobody_knows(world, size, stack):
    with_group(world, "left", b"")
    members = [messages.LeaveGroupRequest.Members(member_id=f"m-{i}") for i in range(size)]
    return sent(world, encode(messages.LeaveGroupRequest(group_id="left", members=members), 4))


@shape(400, 100, 500)
def groups_of_the_longest_names(world, size, stack):
    names = [f"{i:08}".ljust(0x7FFF, "g") for i in range(size)]
    return sent(world, encode(messages.DescribeGroupsRequest(groups=names), 4))


def committed(group, partitions=200):
    topic = messages.OffsetCommitRequest.Topics
    commits = [
        topic.Partitions(partition_index=i, committed_offset=1, committed_metadata="m" * 4096)
        for i in range(partitions)
    ]
    return messages.OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, topics=[topic(name="many", partitions=commits)]
    )


@shape(20, 20, 200)
def commit_the_largest_metadata(world, size, stack):
    return sent(world, *[encode(committed("committer"), 7)] * size)


@shape(100_000, 5_000, 20_000, 100_000)
def fetch_all_offsets_of_one_group_again_and_again(world, size, stack):
    with Wire(world.bootstrap, PATIENCE) as wire:
        answer = wire.ask(committed("fetched"), 7)
        assert answer.topics[0].partitions[0].error_code == 0
    group = messages.OffsetFetchRequest.Groups
    groups = [group(group_id="fetched", topics=None)] * size
    return sent(world, encode(messages.OffsetFetchRequest(groups=groups), 8))


# descriptions


@shape(100_000, 25_000, 100_000)
def describe_the_configuration_of_the_broker_again_and_again(world, size, stack):
    resource = messages.DescribeConfigsRequest.Resources(
        resource_type=4, resource_name="0", configuration_keys=None
    )
    with Wire(world.bootstrap) as wire:
        brokers = wire.ask(messages.DescribeClusterRequest(), 0).brokers
    resource.resource_name = str(brokers[0].broker_id)
    request = messages.DescribeConfigsRequest(
        resources=[resource] * size, include_synonyms=True, include_documentation=True
    )
    return sent(world, encode(request, 4))


@shape(100_000, 25_000, 100_000)
def describe_the_configuration_of_a_topic_again_and_again(world, size, stack):
    resource = messages.DescribeConfigsRequest.Resources(
        resource_type=2, resource_name="t", configuration_keys=None
    )
    request = messages.DescribeConfigsRequest(
        resources=[resource] * size, include_synonyms=True, include_documentation=True
    )
    return sent(world, encode(request, 4))


@shape(100_000, 25_000, 100_000)
def metadata_of_one_topic_again_and_again(world, size, stack):
    return sent(
        world,
        encode(messages.MetadataRequest(topics=[messages.MetadataRequest.Topics(name="many")] * size), 12),
    )


@shape(100_000, 25_000, 100_000)
def partitions_of_one_topic_again_and_again(world, size, stack):
    topic = messages.DescribeTopicPartitionsRequest.Topics(name="many")
    return sent(world, encode(messages.DescribeTopicPartitionsRequest(topics=[topic] * size), 0))


@shape(1_000, 200, 5_000)
def metadata_of_all_topics_in_a_pipeline(world, size, stack):
    return sent(world, *[encode(messages.MetadataRequest(topics=None), 12)] * size)


# -- pipelines and connections -----------------------------------------------------------------------------


@shape(2, 2, 8)
def small_requests_of_each_api_in_one_write(world, size, stack):
    """A thousand or two of each API, on `size` connections at once."""
    count = 1_000 if size == 2 else 2_000
    acts = [
        sent(world, *[frame(row, row.high, Shape())] * count, patience=20)
        for row in SERVED
        if row.name not in ("SaslHandshake", "JoinGroup", "SyncGroup")
    ]

    def act():
        for one in acts:
            threads = [threading.Thread(target=one) for _ in range(size)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    return act


def held_open(world, count, data, seconds):
    """Many connections that each send this, and read nothing."""

    def act():
        with contextlib.ExitStack() as open_ones:
            for _ in range(count):
                open_ones.enter_context(world.connect()).sendall(data)
            time.sleep(seconds)

    return act


@shape(400, 400, 900)
def half_frames_held_open(world, size, stack):
    whole = frame(table.BY_KEY[3], 12, Shape(("topics",), 2_000, True))
    return held_open(world, size, struct.pack(">i", len(whole)) + whole[:-1], 0.5)


@shape(400, 400, 900)
def sizes_of_frames_that_never_come(world, size, stack):
    return held_open(world, size, struct.pack(">i", 100 << 20) + struct.pack(">hhi", 0, 9, 1), 0.5)


@shape(100, 100, 400)
def answers_that_nobody_reads(world, size, stack):
    one = encode(messages.MetadataRequest(topics=None), 12)
    return held_open(world, size, (struct.pack(">i", len(one)) + one) * 200, 1.0)


@shape(60, 60, 200)
def records_that_nobody_reads(world, size, stack):
    topic = f"unread-{size}"  # "t" may have been deleted by one of the requests before
    with Wire(world.bootstrap, PATIENCE) as wire:
        create_topic(wire, topic)
        assert produce(wire, topic, batch(bytes(900_000))).error_code == 0
    one = fetched([(topic, [(0, 1 << 20)])])
    return held_open(world, size, (struct.pack(">i", len(one)) + one) * 200, 1.0)


@shape(1_500, 1_500, 10_000)
def connections_opened_and_closed(world, size, stack):
    def act():
        for _ in range(size):
            world.connect().close()

    return act


@pytest.mark.soak
@pytest.mark.parametrize("name", SHAPES)
def test_the_worst_shapes_stop_nobody(world, name, rounds):
    function, short, sizes = SHAPES[name]
    for size in sizes if rounds(0, 1) else (short,):
        with contextlib.ExitStack() as stack:
            world.measure(f"{name} x {size}", function(world, size, stack))
    world.has_gone_back()
