"""What can one client make the others wait for?

For each API and version that is served, a search makes valid requests as expensive as it can: it widens one
array of the request after the other until the broker refuses the size, and keeps the width that costs most.
Meanwhile a client of the same worker pings. Its wait has a bound, and so has the memory of the worker, which
goes back.

A ping's wait is the lesser of two figures: the time until it is answered, which a busy machine makes longer,
and the CPU time of the worker's event loop in that time, which no other process adds to: what the loop did
before it came to the ping. The time alone has a bound, too. A request that exceeds one of them has two more
tries, since what other processes do to the clock and to the caches will not stop all three."""

import contextlib
import random
import socket
import struct
import threading
import time

import pytest

from kafkad.api import table
from kafkad.protocol import codec, messages
from kafkad.testing import Broker
from tests.wire import Wire, create_topic

SEED = 15
WAIT_MAX = 0.1  # seconds, of which the event loop works
CLOCK_WAIT_MAX = 0.25  # seconds by the clock
TRIES = 3  # of which the best one counts
MEMORY_MAX = 700  # MB at any time, and
MEMORY_LEFT = 60  # more than before, soon after
WIDTHS = (100_000, 40_000, 15_000, 4_000, 500)
PATIENCE = 3.0  # a group's rebalance may hold an answer back
STOPPED = 60.0  # seconds; then the broker is taken for stopped

SERVED = [row for row in table.ROWS if row.handler is not None or row in table.NATIVE]


@pytest.fixture(scope="module")
def broker():
    with Broker(workers=1, config={"auto.create.topics.enable": False}) as running:
        prepare(running)
        yield running
        running.kill()


def prepare(broker):
    """A topic, and a coordinator of groups that serves: one that loads refuses everything at once."""
    find = messages.FindCoordinatorRequest(coordinator_keys=["g"])
    fetch = messages.OffsetFetchRequest(
        groups=[messages.OffsetFetchRequest.Groups(group_id="g", topics=None)]
    )
    deadline = time.monotonic() + STOPPED
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "t", 8)
        while wire.ask(find, 4).coordinators[0].error_code or wire.ask(fetch, 8).groups[0].error_code:
            assert time.monotonic() < deadline, "the group coordinator does not begin to serve"
            time.sleep(0.05)


class Neighbour(threading.Thread):
    """Pings each worker, and knows how long it had to wait since `begin`."""

    def __init__(self, broker):
        super().__init__(daemon=True)
        self.broker = broker
        self.wires = [Wire(broker.bootstrap, 120) for _ in range(broker.workers)]  # one goes to each worker
        self.ended = False
        self.answered = threading.Condition()
        self.count = 0
        self.begin()

    def begin(self):
        self.worst = self.worst_by_clock = 0.0

    def waited(self):
        """The longest wait, when the ping that is under way has been answered, too."""
        with self.answered:
            until = self.count + 2 * len(self.wires)
            assert self.answered.wait_for(lambda: self.count >= until, STOPPED), "the broker answers nobody"
        return self.worst

    def run(self):
        request = messages.ApiVersionsRequest()
        while not self.ended:
            for wire in self.wires:
                begun, worked = time.monotonic(), loop_seconds(self.broker)
                wire.ask(request, 0)
                with self.answered:
                    waited = time.monotonic() - begun
                    self.worst_by_clock = max(self.worst_by_clock, waited)
                    self.worst = max(self.worst, min(waited, loop_seconds(self.broker) - worked))
                    self.count += 1
                    self.answered.notify_all()
            time.sleep(0.002)

    def end(self):
        self.ended = True
        self.join()
        for wire in self.wires:
            wire.socket.close()


@pytest.fixture
def neighbour(broker):
    pinging = Neighbour(broker)
    pinging.start()
    yield pinging
    pinging.end()


def loop_seconds(broker):
    """CPU time of the threads of the event loops."""
    pids = [broker.pid]
    if broker.workers > 1:
        with open(f"/proc/{broker.pid}/task/{broker.pid}/children") as file:
            pids = file.read().split()
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def memory_mb(broker, key="Pss_Anon"):
    with open(f"/proc/{broker.pid}/{'status' if key == 'VmHWM' else 'smaps_rollup'}") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) / 1024


# -- requests as wide as they may be -----------------------------------------------------------------------

# To make 100,000 elements takes the client longer than the broker needs to answer. So BLOCK elements are made
# and repeated. MARK stands in their names and numbers; each repetition replaces it by another one.
BLOCK = 500
MARK = b"@@"
SIZES = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8}


def arrays(spec, version, path=()):
    """The paths of all arrays of a message."""
    for field in spec.fields:
        if field.versions[0] <= version <= field.versions[1]:
            here = (*path, field.name)
            if field.type.startswith("[]"):
                yield here
            if field.struct is not None:
                yield from arrays(field.struct, version, here)


class Filler:
    """Makes messages in which one array is `width` long and the others have one element. With `alike`, all
    of its elements name the same thing, which is there (0) or not (1)."""

    def __init__(self, wide, width, chance, alike=None):
        self.wide, self.width, self.chance, self.alike = wide, width, chance, alike
        self.mark = MARK if alike is None else b"##"
        self.number = 0
        self.place = 0  # in the wide array: every other element is of a topic and a partition that are there
        self.block = []  # the wide array, and
        self.kind = ""  # what it is one of

    def message(self, cls, version, path=()):
        filled = cls()
        for field in cls.SPEC.fields:
            if field.versions[0] <= version <= field.versions[1]:
                setattr(filled, field.name, self.value(field, version, (*path, field.name)))
        return filled

    def value(self, field, version, path):
        if field.type.startswith("[]"):
            count = self.width if path == self.wide else 1
            elements = []
            for place in range(count):
                if path == self.wide:
                    self.place = place if self.alike is None else self.alike
                elements.append(self.element(field, field.type[2:], version, path))
            if path == self.wide:
                self.block, self.kind = elements, field.type[2:]
            return elements
        return self.element(field, field.type, version, path)

    def element(self, field, kind, version, path):
        if self.alike is None:
            self.number += 1
        if kind == "{}" and field.nullable[0] <= version <= field.nullable[1]:
            return None  # a cursor, which would be refused
        if field.struct is not None:
            return self.message(field.struct.cls, version, path)
        if kind == "string":
            known = self.place % 2 == 0 and field.name in (
                "name",
                "topic",
                "topic_name",
                "topics",
                "topic_names",
            )
            return "t" if known else f"{field.name[:6]}-{self.mark.decode()}{self.number}"
        if kind in ("bytes", "records"):
            return b"x"
        if kind == "uuid":
            return self.mark + self.number.to_bytes(14, "big")
        if kind == "bool":
            return field.name in ("validate_only", "include_synonyms")
        if kind == "float64":
            return 1.0
        if field.name == "acks":
            return 1
        if field.name in ("partition_index", "partition_indexes", "index", "partition", "partitions"):
            if kind != "int32" or self.place % 2 == 0:
                return self.place % 8
            return int.from_bytes(self.mark, "big") << 16 | self.number
        return self.chance.choice((0, 1)) if self.alike is None else 0


def wide_frame(request_class, version, path, width, chance, alike=None):
    """The frame of a request whose array at `path` has `width` elements."""
    filler = Filler(path, min(width, BLOCK), chance, alike)
    message = filler.message(request_class, version)
    frame = codec.encode_request(message, version, 7, "worst")
    compact = version >= request_class.FLEXIBLE_VERSION
    block = b"".join(element_bytes(element, filler.kind, version, compact) for element in filler.block)
    at = frame.index(block)
    count = array_size(len(filler.block), compact)
    assert frame[:at].endswith(count)
    repeated = (
        block.replace(MARK, bytes((97 + number // 16, 97 + number % 16))) for number in range(width // BLOCK)
    )
    wide = b"".join((array_size(width, compact), *repeated, frame[at + len(block) :]))
    return frame[: at - len(count)].replace(MARK, b"qq") + wide


def element_bytes(element, kind, version, compact):
    if kind == "string":
        text = element.encode()
        return (uvarint(len(text) + 1) if compact else len(text).to_bytes(2, "big")) + text
    if kind == "bytes":
        return array_size(len(element), compact) + element
    if kind == "uuid":
        return element
    if kind in SIZES:
        return int(element).to_bytes(SIZES[kind], "big", signed=True)
    return codec.encode(element, version)


def array_size(count, compact):
    return uvarint(count + 1) if compact else count.to_bytes(4, "big")


def uvarint(value):
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def worst_of(broker, neighbour, row, version, chance, widths, alike=None):
    """[(seconds that others waited, the same by the clock, width, path, served)] of the widest requests that
    are served."""
    found = []
    request_class = codec.request_class(row.key)
    for path in arrays(request_class.SPEC, version):
        for width in widths:
            frame = wide_frame(request_class, version, path, width, chance, alike)
            waits = []
            for _ in range(TRIES):
                neighbour.begin()
                served = ask(broker, frame)
                waits.append((neighbour.waited(), neighbour.worst_by_clock))
                if waits[-1][0] < WAIT_MAX and waits[-1][1] < CLOCK_WAIT_MAX:
                    break
            waited, by_clock = map(min, zip(*waits, strict=True))
            found.append((waited, by_clock, width, ".".join(path), served))
            if served:
                break
    return found


def ask(broker, frame):
    """Whether the broker answers, or keeps the request for later, and does not close the connection."""
    host, _, port = broker.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as sock:
        try:
            sock.sendall(struct.pack(">i", len(frame)) + frame)
            left = None
            while left is None or left > 0:
                data = sock.recv(1 << 20)
                if not data:
                    return False
                left = struct.unpack(">i", data[:4])[0] + 4 - len(data) if left is None else left - len(data)
        except TimeoutError:
            return True
        except ConnectionError:
            return False
    return True


def check(broker, neighbour, row, version, widths=WIDTHS, alike=None):
    chance = random.Random(SEED * 1000 + row.key * 100 + version)
    for waited, by_clock, width, path, served in worst_of(
        broker, neighbour, row, version, chance, widths, alike
    ):
        times = f"{waited * 1000:.0f} ms, {by_clock * 1000:.0f} ms by the clock"
        print(f"{row.name} v{version} {path} x {width}: {times}{'' if served else ', refused'}")
        assert waited < WAIT_MAX, f"{row.name} v{version}: {path} of {width}"
        assert by_clock < CLOCK_WAIT_MAX, f"{row.name} v{version}: {path} of {width}"
    assert memory_mb(broker, "VmHWM") < MEMORY_MAX


def test_wide_frames_are_requests_of_so_many_different_elements():
    """Of this harness: what it repeats parses, in each shape that arrays have."""
    for name, version, path in (
        ("Metadata", 1, ("topics",)),
        ("Metadata", 12, ("topics",)),
        ("OffsetCommit", 8, ("topics", "partitions")),
        ("DescribeGroups", 5, ("groups",)),
        ("DescribeGroups", 4, ("groups",)),
        ("DescribeProducers", 0, ("topics", "partition_indexes")),
        ("ListConfigResources", 1, ("resource_types",)),
    ):
        cls = messages.message_class(f"{name}Request")
        chance = random.Random(1)
        _, read = codec.decode_request(wide_frame(cls, version, path, 4_000, chance))
        for step in path[:-1]:
            (read,) = getattr(read, step)
        elements = getattr(read, path[-1])
        assert len(elements) == 4_000
        if name != "ListConfigResources":  # its elements are 0 and 1
            assert 2_001 <= len({repr(element) for element in elements}) <= 4_000


@pytest.mark.soak
@pytest.mark.parametrize("row", SERVED, ids=lambda row: row.name)
def test_the_widest_requests_do_not_stop_the_others(broker, neighbour, row, rounds):
    """The lowest and the highest version in the suite; `make soak` tries each version, at each width."""
    if rounds(0, 1) == 0:
        for version in sorted({row.low, row.high}):
            check(broker, neighbour, row, version)
        return
    for version in range(row.low, row.high + 1):
        for width in WIDTHS:
            check(broker, neighbour, row, version, (width,))


@pytest.mark.soak_only
@pytest.mark.parametrize("place", [0, 1], ids=["there", "unknown"])
@pytest.mark.parametrize("row", SERVED, ids=lambda row: row.name)
def test_requests_that_name_the_same_again_and_again_do_not_stop_the_others(broker, neighbour, row, place):
    for version in range(row.low, row.high + 1):
        check(broker, neighbour, row, version, alike=place)


def test_memory_has_gone_back(broker):
    """After all that: what stays is less than MEMORY_LEFT above a broker that has just started."""
    deadline = time.monotonic() + 15
    with Broker(workers=1) as fresh:
        prepare(fresh)
        most = memory_mb(fresh) + MEMORY_LEFT
    while memory_mb(broker) > most:
        assert time.monotonic() < deadline, f"{memory_mb(broker):.0f} MB are left, of at most {most:.0f}"
        time.sleep(0.2)


# -- several wide requests ---------------------------------------------------------------------------------


def test_many_wide_requests_at_a_time_share_their_memory():
    """Each takes 40 MB while it is served; they are served a few at a time, and the others wait as frames."""
    frame = wide_frame(messages.MetadataRequest, 13, ("topics",), 100_000, random.Random(SEED))
    with Broker(workers=1) as broker, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(Wire(broker.bootstrap, 60)) for _ in range(12)]
        for client in clients:
            client.send_frame(frame)
        assert len({len(client.read_frame()) for client in clients}) == 1
        assert memory_mb(broker, "VmHWM") < 300


def test_two_workers_that_share_a_wide_request_do_not_stop_the_others():
    """What one of them splits, forwards and merges, and the other one answers in part."""
    with Broker(workers=2, config={"auto.create.topics.enable": False}) as broker:
        prepare(broker)
        neighbour = Neighbour(broker)
        neighbour.start()
        for row in SERVED:
            held = row.name in ("JoinGroup", "SyncGroup")  # their group holds them
            if not held and row.route not in (table.Route.LOCAL, table.Route.CONTROLLER):
                check(broker, neighbour, row, row.high, WIDTHS[:2])
        neighbour.end()


def test_topics_that_a_wide_request_would_create_do_not_stop_the_others():
    """Metadata before v4 creates what it names: here 50,000 topics, more than one request may create."""
    with Broker(workers=1) as broker:
        prepare(broker)
        neighbour = Neighbour(broker)
        neighbour.start()
        check(broker, neighbour, table.BY_KEY[messages.MetadataRequest.API_KEY], 3, (100_000,))
        neighbour.end()


def test_a_connection_has_its_answers_in_order_and_one_that_leaves_holds_up_nobody(broker):
    frame = wide_frame(messages.MetadataRequest, 13, ("topics",), 100_000, random.Random(SEED))
    ping = codec.encode_request(messages.ApiVersionsRequest(), 0, 8, "small")
    with Wire(broker.bootstrap, 60) as wire:
        for _ in range(4):  # so that others wait for their turn
            with Wire(broker.bootstrap) as leaving:
                leaving.send_frame(frame)
        for sent in (ping, frame, ping, frame, ping):
            wire.send_frame(sent)
        sizes = [len(wire.read_frame()) for _ in range(5)]
    assert sizes[0] == sizes[2] == sizes[4] < 1_000 < sizes[1] == sizes[3]
