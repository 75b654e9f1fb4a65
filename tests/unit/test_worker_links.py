"""Workers that talk: real processes, forked as the supervisor forks them, and killed."""

import asyncio
import errno
import gc
import os
import resource
import signal
import socket
import struct
import sys
import threading
import traceback
from contextlib import suppress

import pytest

from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from kafkad.server import worker_links
from kafkad.server.event_loop import EventLoop
from kafkad.server.worker_links import PeerLost, Peers, PeerTrouble, make_sockets
from tests.readiness import readable

ECHO, LATER, NEVER, REFUSE, BREAK, NOTE, NOTES, WHO, BACK, DOUBLE, DOUBLE_LATER, BULK = range(1, 13)
DOUBLED = bytes(100)  # room for the sentence of a failure
WAIT_S = 20

pytestmark = pytest.mark.timeout(60)


def serve_forever(me, sockets, addresses, new_loop):
    """A worker process: answers what the tests ask, and never returns."""
    loop = new_loop()
    peers = Peers(me, sockets, addresses, loop)
    notes = []

    async def later(payload):
        await asyncio.sleep(0)
        return payload[::-1]

    async def back(sender, payload):
        return await peers.call(sender, ECHO, payload)

    def refuse(sender, payload):
        raise KafkaError(errors.NOT_COORDINATOR, payload.decode())

    def broken(sender, payload):
        raise ValueError("broken")

    peers.handle(ECHO, lambda sender, payload: payload)
    peers.handle(LATER, lambda sender, payload: later(payload))
    peers.handle(NEVER, lambda sender, payload: loop.create_future())
    peers.handle(REFUSE, refuse)
    peers.handle(BREAK, broken)
    peers.handle(NOTE, lambda sender, payload: notes.append(payload))
    peers.handle(NOTES, lambda sender, payload: b",".join(notes))
    peers.handle(WHO, lambda sender, payload: struct.pack("<3i", me, sender, os.getpid()))
    peers.handle(BACK, back)
    peers.handle(DOUBLE, lambda sender, payload: payload * 2)
    peers.handle(DOUBLE_LATER, lambda sender, payload: later(payload * 2))
    peers.handle(BULK, lambda sender, payload: payload, bulk=True)
    loop.run_forever()


class World:
    """The test's own worker, and forked ones; what a supervisor would do is done by hand."""

    def __init__(self, count, me, new_loop):
        self.sockets, self.addresses = make_sockets(count)
        self.me, self.new_loop = me, new_loop
        self.pids = {}
        self.loop = new_loop()
        self.peers = None

    def fork(self, k):
        pid = os.fork()
        if pid == 0:
            try:
                serve_forever(k, self.sockets, self.addresses, self.new_loop)
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(1)
        self.pids[k] = pid

    def open(self):
        mine = [each.dup() for each in self.sockets]  # the supervisor keeps its own
        self.peers = Peers(self.me, mine, self.addresses, self.loop)
        return self.peers

    def kill(self, k, number=signal.SIGKILL):
        os.kill(self.pids[k], number)
        if number == signal.SIGKILL:
            os.waitpid(self.pids.pop(k), 0)

    def run(self, scenario):
        return self.loop.run_until_complete(asyncio.wait_for(scenario, WAIT_S))

    def close(self):
        if self.peers is not None:
            self.peers.close()
        self.loop.close()
        for k in list(self.pids):
            with suppress(ProcessLookupError):
                self.kill(k)
        for each in self.sockets:
            each.close()


@pytest.fixture(params=[EventLoop, asyncio.new_event_loop], ids=["ours", "asyncio"])
def make_world(request):
    made = []

    def make(count, me, fork=True):
        world = World(count, me, request.param)
        made.append(world)
        for k in range(count):
            if fork and k != me:
                world.fork(k)
        return world

    yield make
    for world in made:
        world.close()


@pytest.mark.parametrize("me", [0, 1, 2])
def test_every_worker_calls_every_other(make_world, me):
    world = make_world(3, me)
    peers = world.open()

    async def scenario():
        for k in {0, 1, 2} - {me}:
            await peers.wait_up(k)
            index, sender, pid = struct.unpack("<3i", await peers.call(k, WHO))
            assert (index, sender, pid) == (k, me, world.pids[k])
            assert await peers.call(k, LATER, b"abc") == b"cba"
        assert peers.up == {0, 1, 2} - {me}

    world.run(scenario())


def test_a_handler_may_call_back(make_world):
    world = make_world(2, 0)
    peers = world.open()
    peers.handle(ECHO, lambda sender, payload: payload + b" from " + str(sender).encode())

    async def scenario():
        await peers.wait_up(1)
        assert await peers.call(1, BACK, b"hello") == b"hello from 1"

    world.run(scenario())


def test_messages_and_calls_keep_their_order(make_world):
    world = make_world(2, 1)
    peers = world.open()

    async def scenario():
        await peers.wait_up(0)
        expected, calls = [], []
        for number in range(2000):
            note = b"%d" % number
            assert peers.tell(0, NOTE, note)
            expected.append(note)
            if number % 100 == 0:
                calls.append((len(expected), peers.call(0, NOTES)))
        for count, call in calls:
            assert await call == b",".join(expected[:count])

    world.run(scenario())


def test_small_calls_overtake_large_ones_whose_order_does_not_matter(make_world):
    world = make_world(2, 0)
    peers = world.open()
    peers.handle(BULK, lambda sender, payload: payload, bulk=True)
    order = []

    async def scenario():
        await peers.wait_up(1)
        large = [os.urandom(20 << 20), os.urandom(100_000), os.urandom(3 << 20)]
        calls = [peers.call(1, BULK, each) for each in large]
        calls += [peers.call(1, kind, b"small %d" % kind) for kind in (ECHO, BULK)]
        for number, call in enumerate(calls):
            call.add_done_callback(lambda _, number=number: order.append(number))
        answers = await asyncio.gather(*calls)
        assert answers == [*large, b"small %d" % ECHO, b"small %d" % BULK]
        link = peers._links[1]
        assert link._queued == 0 and not link._parts_in and not link._writing

    world.run(scenario())
    assert order == [3, 4, 0, 1, 2]


def test_a_large_answer_to_a_visit_comes_whole(make_world):
    world = make_world(2, 1)
    peers = world.open()
    big = os.urandom(1 << 20)
    assert peers.call_blocking(0, BULK, big, 10) == big


def test_a_worker_that_dies_within_a_large_call_is_noticed_and_replaced(make_world):
    world = make_world(2, 0)
    peers = world.open()
    peers.handle(BULK, lambda sender, payload: payload, bulk=True)

    async def scenario():
        await peers.wait_up(1)
        world.kill(1, signal.SIGSTOP)
        call = peers.call(1, BULK, bytes(5 << 20))
        world.kill(1)
        with pytest.raises(PeerLost):
            await call
        world.fork(1)
        await peers.wait_up(1)
        assert await peers.call(1, BULK, b"x" * 200_000) == b"x" * 200_000

    world.run(scenario())


def test_big_payloads_pass_both_ways_among_small_ones(make_world):
    world = make_world(2, 1)
    peers = world.open()

    async def scenario():
        await peers.wait_up(0)
        payloads = [os.urandom(size) for size in (0, 1, 20 << 20, 7, 300_000, 5 << 20, 3)]
        answers = await asyncio.gather(*(peers.call(0, ECHO, payload) for payload in payloads))
        assert answers == payloads

    world.run(scenario())


def test_refusals_and_failures_reach_the_caller(make_world):
    world = make_world(2, 0)
    peers = world.open()

    async def scenario():
        await peers.wait_up(1)
        with pytest.raises(KafkaError) as refused:
            await peers.call(1, REFUSE, b"not here")
        assert (refused.value.code, refused.value.message) == (errors.NOT_COORDINATOR, "not here")
        with pytest.raises(PeerTrouble, match="broken"):
            await peers.call(1, BREAK)
        with pytest.raises(PeerTrouble, match="does not handle kind 99"):
            await peers.call(1, 99)
        with pytest.raises(TimeoutError):
            await peers.call(1, NEVER, timeout_s=0.01)
        assert await peers.call(1, ECHO, b"still there") == b"still there"

    world.run(scenario())


def test_one_timer_ends_late_calls_in_the_order_of_their_timeouts(make_world):
    world = make_world(2, 0)
    peers = world.open()

    async def scenario():
        await peers.wait_up(1)
        ended = []
        for timeout_s in (0.5, None, 30, 0.05, 0.2):
            name = f"{timeout_s}"
            call = peers.call(1, NEVER, timeout_s=timeout_s)
            call.add_done_callback(lambda done, name=name: ended.append((name, type(done.exception()))))
        for number in range(200):
            assert await peers.call(1, ECHO, b"%d" % number, timeout_s=30) == b"%d" % number
        while len(ended) < 3:
            await asyncio.sleep(0.01)
        assert ended == [(name, TimeoutError) for name in ("0.05", "0.2", "0.5")]
        assert len(peers._calls) == 2
        timers = [each for each in world.loop._scheduled if not each.cancelled()]
        assert len(timers) <= 2  # for the call of 30 s; the other is the test's own

    world.run(scenario())


def test_an_answer_arrives_in_the_turn_in_which_it_is_read(make_world):
    """And trouble in a turn of its own: it may come amid the end of a link."""
    world = make_world(2, 0)
    peers = world.open()

    async def scenario():
        await peers.wait_up(1)
        found = []
        for kind, payload in ((ECHO, b"here"), (REFUSE, b"not here")):
            peers.ask(1, kind, payload).then(found.append)
        while len(found) < 2:
            await asyncio.sleep(0)
        answer, refused = found
        assert answer == b"here"
        assert isinstance(refused, KafkaError) and refused.code == errors.NOT_COORDINATOR
        lost = peers.ask(1, NEVER)
        world.kill(1)
        with pytest.raises(PeerLost):
            await lost
        peers.ask(1, ECHO).then(found.append)  # nobody is there
        assert len(found) == 2
        await asyncio.sleep(0)
        assert isinstance(found[2], PeerLost)

    world.run(scenario())


@pytest.mark.parametrize("me", [0, 1])
def test_a_killed_worker_is_down_and_its_successor_is_up(make_world, me):
    world = make_world(2, me)
    peers = world.open()
    other = 1 - me
    seen = []
    peers.on_up(lambda k: seen.append(("up", k)))
    peers.on_down(lambda k: seen.append(("down", k)))

    async def scenario():
        for _ in range(3):
            await peers.wait_up(other)
            waiting = [peers.call(other, NEVER) for _ in range(3)]
            assert await peers.call(other, ECHO, b"x") == b"x"
            world.kill(other)
            for call in waiting:
                with pytest.raises(PeerLost):
                    await call
            assert other not in peers.up
            assert not peers.tell(other, NOTE, b"lost")
            with pytest.raises(PeerLost):
                await peers.call(other, ECHO)
            world.fork(other)
        await peers.wait_up(other)
        assert await peers.call(other, NOTES) == b""

    world.run(scenario())
    assert seen == [("up", other), ("down", other)] * 3 + [("up", other)]


def test_what_was_said_before_death_is_heard(make_world):
    world = make_world(2, 0)
    peers = world.open()

    async def scenario():
        await peers.wait_up(1)
        call = peers.call(1, ECHO, b"last words")
        # the answer is in our socket, and nobody has read it
        assert readable([peers._links[1]._socket], WAIT_S)
        world.kill(1)
        assert await call == b"last words"

    world.run(scenario())


def test_a_worker_that_does_not_read_is_still_served_later(make_world):
    world = make_world(2, 0)
    peers = world.open()

    async def scenario():
        await peers.wait_up(1)
        world.kill(1, signal.SIGSTOP)
        calls = [peers.call(1, ECHO, bytes([number]) * 100_000) for number in range(50)]
        await asyncio.sleep(0)
        assert not any(call.done() for call in calls)
        world.kill(1, signal.SIGCONT)
        answers = await asyncio.gather(*calls)
        assert answers == [bytes([number]) * 100_000 for number in range(50)]

    world.run(scenario())


def test_who_queues_too_much_for_a_stopped_worker_loses_it(make_world, monkeypatch):
    world = make_world(2, 0)
    peers = world.open()
    monkeypatch.setattr(worker_links, "QUEUED_MAX", 1 << 20)

    async def scenario():
        await peers.wait_up(1)
        world.kill(1, signal.SIGSTOP)
        calls = [peers.call(1, ECHO, bytes(400_000)) for _ in range(10)]
        for call in calls:
            with pytest.raises(PeerLost):
                await call
        world.kill(1, signal.SIGCONT)
        await peers.wait_up(1)
        assert await peers.call(1, ECHO, b"again") == b"again"

    world.run(scenario())


def test_what_is_too_large_fails_and_the_pair_stays_up(make_world, monkeypatch):
    monkeypatch.setattr(worker_links, "PAYLOAD_MAX", 1000, raising=False)
    monkeypatch.setattr(worker_links, "FRAME_MAX", 1009 + len(DOUBLED))
    world = make_world(2, 0)
    peers = world.open()

    async def scenario():
        await peers.wait_up(1)
        assert len(await peers.call(1, ECHO, bytes(1000))) == 1000
        with pytest.raises(PeerTrouble, match="1001 bytes are too many"):
            await peers.call(1, ECHO, bytes(1001))
        with pytest.raises(PeerTrouble, match="1200 bytes are too many"):
            await peers.call(1, DOUBLE, bytes(600))
        with pytest.raises(PeerTrouble, match="1200 bytes are too many"):
            await peers.call(1, DOUBLE_LATER, bytes(600))
        assert peers.up == {1}
        assert await peers.call(1, WHO) == struct.pack("<3i", 1, 0, world.pids[1])

    world.run(scenario())


def test_a_predecessors_last_words_are_heard_before_its_successor(make_world):
    world = make_world(2, 0, fork=False)
    heard = []
    world.open()
    world.peers.handle(NOTE, lambda sender, payload: heard.append(payload))
    world.peers.on_up(lambda k: heard.append("up"))
    world.peers.on_down(lambda k: heard.append("down"))

    def hello(k):
        body = worker_links.HELLO_BODY.pack(worker_links.MAGIC, worker_links.PAIR, k)
        return worker_links.HEADER.pack(worker_links.AFTER_SIZE + len(body), worker_links.HELLO, 0) + body

    def note(text):
        return worker_links.HEADER.pack(worker_links.AFTER_SIZE + len(text), NOTE, 0) + text

    async def scenario():
        with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
            first.connect(world.addresses[0])
            first.sendall(hello(1))
            await world.peers.wait_up(1)
            second.connect(world.addresses[0])  # this is what the loop hears of first
            second.sendall(hello(1))
            first.sendall(note(b"last words"))
            first.close()
            while heard.count("up") < 2:
                await asyncio.sleep(0)

    world.run(scenario())
    assert heard[:4] == ["up", b"last words", "down", "up"]


class Scarce:
    """A socket of a kernel that is short of memory for a moment."""

    def __init__(self, connected, code):
        self._connected = connected
        self._code = code

    def send(self, data, flags):
        if self._code:
            code, self._code = self._code, 0
            raise OSError(code, os.strerror(code))
        return self._connected.send(data, flags)

    def __getattr__(self, name):
        return getattr(self._connected, name)


@pytest.mark.parametrize("code", [errno.ENOBUFS, errno.ENOMEM])
def test_a_kernel_without_memory_for_a_moment_is_no_dead_peer(make_world, code):
    world = make_world(2, 0)
    peers = world.open()

    async def scenario():
        await peers.wait_up(1)
        peers._links[1]._socket = Scarce(peers._links[1]._socket, code)
        assert await peers.call(1, ECHO, b"in spite of it") == b"in spite of it"

    world.run(scenario())


def test_without_descriptors_a_peer_waits_and_the_log_is_not_flooded(make_world, caplog, monkeypatch):
    monkeypatch.setattr(worker_links, "ACCEPT_AGAIN_S", 0.2)
    world = make_world(2, 0, fork=False)
    peers = world.open()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def scenario():
        await asyncio.sleep(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(world.addresses[0])
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
            try:
                await asyncio.sleep(0.1)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            warnings = [each for each in caplog.records if "cannot be accepted" in each.message]
            assert len(warnings) == 1
            while not peers._all:  # it is accepted in the end
                await asyncio.sleep(0.01)

    world.run(scenario())


def test_a_blocking_call_before_the_loop_runs(make_world):
    world = make_world(2, 1)
    peers = world.open()
    big = os.urandom(3 << 20)
    assert peers.call_blocking(0, ECHO, big, 10) == big
    assert peers.call_blocking(0, LATER, b"abc", 10) == b"cba"
    index, sender, _ = struct.unpack("<3i", peers.call_blocking(0, WHO, b"", 10))
    assert (index, sender) == (0, 1)
    with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
        peers.call_blocking(0, REFUSE, b"no", 10)
    with pytest.raises(PeerLost):
        peers.call_blocking(0, NEVER, b"", 0.05)

    async def scenario():  # and those visits are not taken for the pair's connection
        await peers.wait_up(0)
        assert await peers.call(0, ECHO, b"x") == b"x"

    world.run(scenario())


def test_a_blocking_call_waits_for_who_comes_late_and_asks_its_successor(make_world):
    world = make_world(2, 1, fork=False)
    peers = world.open()
    world.fork(0)
    world.kill(0, signal.SIGSTOP)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(peers.call_blocking(0, WHO, b"", WAIT_S)))
    asking.start()
    world.kill(0)
    world.fork(0)
    asking.join(WAIT_S)
    assert [struct.unpack("<3i", answer)[2] for answer in answers] == [world.pids[0]]


def test_closing_fails_what_waits(make_world):
    world = make_world(2, 1)
    peers = world.open()

    async def scenario():
        await peers.wait_up(0)
        call = peers.call(0, NEVER)
        peers.close()
        with pytest.raises(PeerLost):
            await call
        assert not peers.tell(0, NOTE, b"")

    world.run(scenario())


def test_a_lost_call_that_nobody_waits_for_is_no_trouble(make_world):
    """The loop's exception handler ends a worker."""
    world = make_world(2, 0)
    peers = world.open()
    troubles = []
    world.loop.set_exception_handler(lambda loop, context: troubles.append(context))

    async def scenario():
        await peers.wait_up(1)
        lost = asyncio.Event()
        peers.on_down(lambda k: lost.set())
        peers.call(1, NEVER)
        peers.call(1, REFUSE)
        asking = asyncio.ensure_future(peers.call(1, LATER, b"x"))
        asking.cancel()
        await peers.call(1, ECHO)
        world.kill(1)
        await lost.wait()
        peers.call(1, ECHO)

    world.run(scenario())
    gc.collect()
    assert troubles == []


# -- strangers


def stranger(address, uid, data):
    """What another user's process gets for `data`; forked, since a process cannot become itself again."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresuid(uid, uid, uid)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
                connected.settimeout(WAIT_S)
                connected.connect(address)
                with suppress(BrokenPipeError):
                    connected.sendall(data)
                try:
                    answer = connected.recv(1000)
                except ConnectionResetError:
                    answer = b""
            os.write(writer, b"got:" + answer)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = pipe.read()
    os.waitpid(pid, 0)
    return found


def visit(kind, payload):
    hello = struct.pack("<6sBI", b"kafkad", 1, 0)
    return struct.pack("<IBQ", 9 + len(hello), 200, 0) + hello + struct.pack("<IBQ", 9, kind, 1) + payload


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_is_hung_up_on_unread(make_world):
    world = make_world(2, 0)
    assert stranger(world.addresses[1], 65534, visit(ECHO, b"")) == b"got:"
    ours = stranger(world.addresses[1], os.getuid(), visit(ECHO, b""))
    assert ours == b"got:" + struct.pack("<IBQ", 9, 201, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack("<IBQ", 1 << 31, 200, 0),
        struct.pack("<IBQ", 9 + 4, 200, 0) + b"what",
        struct.pack("<IBQ", 9 + 11, 200, 0) + struct.pack("<6sBI", b"kafkad", 0, 77),
        struct.pack("<IBQ", 9 + 11, 200, 0) + struct.pack("<6sBI", b"kafkad", 0, 1),
        struct.pack("<IBQ", 9, ECHO, 1),
        visit(ECHO, b"")[:24] + struct.pack("<IBQ", 3, ECHO, 1),
    ],
    ids=["http", "huge", "short", "index", "itself", "no hello", "size"],
)
def test_nonsense_is_hung_up_on(make_world, data):
    world = make_world(2, 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        connected.settimeout(WAIT_S)
        connected.connect(world.addresses[1])
        connected.sendall(data)
        try:
            assert connected.recv(100) == b""
        except ConnectionResetError:
            pass
    peers = world.open()

    async def scenario():
        await peers.wait_up(1)
        assert await peers.call(1, ECHO, b"unharmed") == b"unharmed"

    world.run(scenario())
