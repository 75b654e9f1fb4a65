"""Messages between processes: none lost, doubled or misplaced; who sleeps is woken, who dies holds up nobody.

Every worker here is a forked process that really enters a mailbox; what it saw comes back through a pipe."""

import os
import pickle
import resource
import select
import signal
import sys
import time
import traceback

import pytest

from kafkad._native.shared.mailbox import Mailboxes, is_gone
from tests.readiness import readable

APPEND, APPENDED, ADVANCED = 1, 2, 3
RING = 256  # entries
HALF = 1 << 33  # of an arena


class Worker:
    """A forked process that runs `function(mailboxes)` as worker `me`; `result()` is what it returned."""

    def __init__(self, mailboxes, me, function):
        self.read_end, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.read_end)
            code = 1
            try:
                signal.alarm(60)
                if me is not None:
                    mailboxes.enter(me)
                with open(write_end, "wb") as out:
                    pickle.dump(function(mailboxes), out)
                code = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        os.close(write_end)

    def result(self):
        with open(self.read_end, "rb") as end:
            data = end.read()
        _, status = os.waitpid(self.pid, 0)
        assert status == 0, "the worker failed: see stderr"
        return pickle.loads(data)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.read_end)


class Gate:
    """One process waits until another opens it."""

    def __init__(self):
        self.read_end, self.write_end = os.pipe()

    def open(self):
        os.write(self.write_end, b"!")

    def wait(self, seconds=30):
        ready = readable([self.read_end], seconds)
        assert ready, "it did not happen in time"
        os.read(self.read_end, 1)


class Bell:
    """A worker's sleep, as its reactor does it: edge-triggered, so the doorbell is never read."""

    def __init__(self, mailboxes):
        self.mailboxes = mailboxes
        self.epoll = select.epoll()
        self.epoll.register(mailboxes.doorbell(mailboxes.me), select.EPOLLIN | select.EPOLLET)

    def wait(self, seconds=30):
        """Sleeps until there is something; answers False when nothing came."""
        if not self.mailboxes.sleep():
            return True
        woken = bool(self.epoll.poll(seconds))
        self.mailboxes.awake()
        return woken


@pytest.fixture
def pair():
    """Mailboxes of two workers; this process is worker 0."""
    mailboxes = Mailboxes(2)
    mailboxes.enter(0)
    return mailboxes


def take_all(mailboxes):
    taken = []
    while mail := mailboxes.take():
        taken.append(mail)
    return taken


def notice(mailboxes):
    """The peers whose new life is seen now."""
    seen = []
    while (peer := mailboxes.lost()) >= 0:
        seen.append(peer)
    return seen


def run_until(mailboxes, bell, done, work=lambda: None):
    """Works, rings, sleeps, as a reactor does, until `done()`."""
    while True:
        work()
        mailboxes.ring()
        if done():
            return
        assert bell.wait(), "nobody rang"
        notice(mailboxes)


def receive(mailboxes, bell, count):
    """The next `count` messages."""
    taken = []
    run_until(mailboxes, bell, lambda: len(taken) == count, lambda: taken.extend(take_all(mailboxes)))
    return taken


# -- one message


def test_a_message_arrives_as_it_was_sent(pair):
    ready = Gate()

    def take_some(mailboxes):
        notice(mailboxes)
        bell = Bell(mailboxes)
        ready.open()
        return receive(mailboxes, bell, 2)

    worker = Worker(pair, 1, take_some)
    ready.wait()
    assert notice(pair) == [1]
    pair.post(1, APPEND, row=7, token=1 << 63, topic_id=b"t" * 16, at=(1 << 34) - 1, size=1 << 30)
    pair.post(1, APPENDED, token=3, text=b"x" * 128)
    pair.ring()
    assert worker.result() == [
        (0, APPEND, 7, 1 << 63, b"t" * 16, (1 << 34) - 1, 1 << 30, b""),
        (0, APPENDED, 0, 3, bytes(16), 0, 0, b"x" * 128),
    ]


def test_what_does_not_fit_in_the_ring_waits_and_follows_in_order(pair):
    ready, go = Gate(), Gate()

    def take_some(mailboxes):
        ready.open()
        go.wait()
        notice(mailboxes)
        bell = Bell(mailboxes)
        return [mail[3] for mail in receive(mailboxes, bell, 5000)]

    worker = Worker(pair, 1, take_some)
    ready.wait()
    notice(pair)
    bell = Bell(pair)
    for token in range(5000):
        pair.post(1, ADVANCED, token=token)
    pair.ring()
    assert pair.waiting(1) == 5000 - RING
    go.open()
    run_until(pair, bell, lambda: pair.waiting(1) == 0)  # woken for each room that was made
    pair.ring()
    assert worker.result() == list(range(5000))


def test_bytes_in_an_arena_are_the_same_for_all(pair):
    ready = Gate()

    def read(mailboxes):
        notice(mailboxes)
        bell = Bell(mailboxes)
        ready.open()
        sender, _, _, _, _, at, size, _ = receive(mailboxes, bell, 1)[0]
        return bytes(mailboxes.arena_view(sender)[at : at + size])

    worker = Worker(pair, 1, read)
    ready.wait()
    notice(pair)
    at = pair.arena_half() * HALF + 123
    pair.arena_view(0)[at : at + 5] = b"bytes"
    pair.post(1, APPEND, at=at, size=5)
    pair.ring()
    assert worker.result() == b"bytes"


# -- doorbells


def test_who_is_awake_is_not_rung(pair):
    ready, go, slept = Gate(), Gate(), Gate()

    def take_some(mailboxes):
        notice(mailboxes)
        bell = Bell(mailboxes)
        bell.epoll.poll(0)  # worker 0 rang when it entered
        ready.open()  # awake
        go.wait()
        woken_early = bool(bell.epoll.poll(0))
        taken = len(take_all(mailboxes))
        assert mailboxes.sleep()
        slept.open()
        return woken_early, taken, bool(bell.epoll.poll(30))

    worker = Worker(pair, 1, take_some)
    ready.wait()
    notice(pair)
    pair.post(1, ADVANCED)
    pair.ring()
    assert pair.rings == 0
    go.open()
    slept.wait()
    for _ in range(3):
        pair.post(1, ADVANCED)
        pair.ring()
    assert worker.result() == (False, 1, True)
    assert pair.rings == 1  # the second and third saw that it had been rung


def test_nobody_falls_asleep_over_mail(pair):
    gate = Gate()

    def send(mailboxes):
        notice(mailboxes)
        mailboxes.post(0, ADVANCED)
        mailboxes.ring()
        gate.open()

    worker = Worker(pair, 1, send)
    gate.wait()
    assert not pair.sleep()  # a life to notice
    assert notice(pair) == [1]
    assert not pair.sleep()  # and a message
    assert len(take_all(pair)) == 1
    assert pair.sleep()
    worker.result()


# -- many


def meet(mailboxes, bell):
    """Waits until every worker has entered, and notices it."""
    while any(mailboxes.life(peer) == 0 for peer in range(mailboxes.count)):
        bell.wait(0.01)
        notice(mailboxes)
    notice(mailboxes)


def hammer(mailboxes, messages):
    """Sends numbered messages to every peer, in bursts, and answers each of theirs; sleeps in between with
    no deadline that would hide a lost doorbell. Tells what came, by (sender, kind), in order."""
    me, peers = mailboxes.me, [k for k in range(mailboxes.count) if k != mailboxes.me]
    bell = Bell(mailboxes)
    meet(mailboxes, bell)
    received = {(peer, kind): [] for peer in peers for kind in (APPEND, APPENDED)}
    sent = 0

    def finished():
        return (
            sent == messages
            and all(len(tokens) == messages for tokens in received.values())
            and not any(mailboxes.waiting(peer) for peer in peers)
        )

    while not finished():
        for sender, kind, _, token, *_ in take_all(mailboxes):
            received[sender, kind].append(token)
            if kind == APPEND:
                mailboxes.post(sender, APPENDED, token=token, text=b"answer")
        burst = min(messages - sent, 1 + sent % 97)
        for number in range(sent, sent + burst):
            for peer in peers:
                mailboxes.post(peer, APPEND, token=number)
        sent += burst
        mailboxes.ring()
        if not finished() and (not burst or sent % 3 == 0):
            assert bell.wait(30), f"worker {me} was not woken, with {sent} sent"
            notice(mailboxes)
    return received


@pytest.mark.parametrize("workers", [2, 4])
def test_many_workers_at_once_lose_and_double_nothing(workers):
    mailboxes = Mailboxes(workers)
    messages = 20_000 // workers
    processes = [Worker(mailboxes, me, lambda m: hammer(m, messages)) for me in range(workers)]
    for me, process in enumerate(processes):
        received = process.result()
        assert set(received) == {(k, kind) for k in range(workers) if k != me for kind in (APPEND, APPENDED)}
        for tokens in received.values():
            assert tokens == list(range(messages))


def test_no_doorbell_is_lost_between_two_who_always_sleep():
    """Ping-pong: each message is sent to somebody who is just falling asleep."""
    mailboxes = Mailboxes(2)

    def play(mailboxes):
        bell = Bell(mailboxes)
        meet(mailboxes, bell)
        if mailboxes.me == 0:
            mailboxes.post(1, ADVANCED, token=0)
            mailboxes.ring()
        seen = []
        while not seen or seen[-1] < 20_000 - 2:
            for mail in take_all(mailboxes):
                seen.append(mail[3])
                if mail[3] < 20_000 - 1:
                    mailboxes.post(1 - mailboxes.me, ADVANCED, token=mail[3] + 1)
            mailboxes.ring()
            if not seen or seen[-1] < 20_000 - 2:
                assert bell.wait(30), "a doorbell was lost"
                notice(mailboxes)
        return seen

    players = [Worker(mailboxes, me, play) for me in (0, 1)]
    first, second = players[0].result(), players[1].result()
    assert second == list(range(0, 20_000, 2))
    assert first == list(range(1, 20_000, 2))


# -- death


def busy_forever(mailboxes):
    """Sends to worker 0 as fast as it can, and takes what comes."""
    token = 0
    while True:
        notice(mailboxes)
        take_all(mailboxes)
        for _ in range(5):
            mailboxes.post(0, APPEND, token=token, row=mailboxes.life(1))
            token += 1
        mailboxes.ring()


def test_a_killed_sender_leaves_whole_messages_and_its_successor_begins_anew(pair):
    for life in range(1, 15):
        worker = Worker(pair, 1, busy_forever)
        tokens = []
        bell = Bell(pair)
        while len(tokens) < life * 400:
            assert bell.wait()
            notice(pair)
            for sender, kind, row, token, *_ in take_all(pair):
                assert (sender, kind, row) == (1, APPEND, life)  # never one of a life before
                tokens.append(token)
            pair.post(1, ADVANCED)
            pair.ring()
        worker.kill()
        notice(pair)
        tokens.extend(mail[3] for mail in take_all(pair))
        assert tokens == list(range(len(tokens)))
        assert pair.life(1) == life


def test_a_successor_never_sees_what_was_sent_to_the_one_before(pair):
    ready = Gate()

    def stand_still(mailboxes):
        notice(mailboxes)
        ready.open()
        time.sleep(60)

    worker = Worker(pair, 1, stand_still)
    ready.wait()
    notice(pair)
    for token in range(1000):  # more than the ring holds
        pair.post(1, APPEND, token=token)
    pair.ring()
    worker.kill()

    entered, go = Gate(), Gate()

    def succeed(mailboxes):
        notice(mailboxes)
        bell = Bell(mailboxes)
        entered.open()
        go.wait()
        return [mail[3] for mail in receive(mailboxes, bell, 1)]

    worker = Worker(pair, 1, succeed)
    entered.wait()
    pair.post(1, APPEND, token=2000)  # not noticed yet: to the life before, so it is in flight to nobody
    pair.ring()
    go.open()
    assert notice(pair) == [1]
    assert pair.waiting(1) == 0
    pair.post(1, APPEND, token=3000)
    run_until(pair, Bell(pair), lambda: pair.waiting(1) == 0)  # the ring may be full of what is for nobody
    assert worker.result() == [3000]


def test_a_dead_receiver_blocks_nobody():
    mailboxes = Mailboxes(3)
    mailboxes.enter(0)
    gates = Gate(), Gate()

    def stand_still(mailboxes):
        gates[0].open()
        time.sleep(60)

    def take_some(mailboxes):
        bell = Bell(mailboxes)
        gates[1].open()
        return [mail[3] for mail in receive(mailboxes, bell, 2000)]

    dead, alive = Worker(mailboxes, 1, stand_still), Worker(mailboxes, 2, take_some)
    for gate in gates:
        gate.wait()
    notice(mailboxes)
    dead.kill()
    for token in range(2000):
        mailboxes.post(1, APPEND, token=token)
        mailboxes.post(2, APPEND, token=token)
        mailboxes.ring()
    bell = Bell(mailboxes)
    run_until(mailboxes, bell, lambda: mailboxes.waiting(2) == 0)
    mailboxes.ring()
    assert alive.result() == list(range(2000))
    assert mailboxes.waiting(1) == 2000 - RING
    assert mailboxes.peer_lost(1)
    assert mailboxes.waiting(1) == 0


def test_a_late_word_of_a_death_harms_no_successor(pair):
    first = Worker(pair, 1, lambda mailboxes: time.sleep(60))
    while pair.life(1) == 0:
        time.sleep(0.001)
    assert not pair.peer_lost(1)  # its life is not noticed: nothing was sent to it
    notice(pair)
    assert not pair.peer_lost(1)  # it lives
    first.kill()
    assert pair.peer_lost(1)  # gone, and nobody is there
    second = Worker(pair, 1, lambda mailboxes: time.sleep(60))
    while pair.life(1) == 1:
        time.sleep(0.001)
    assert not pair.peer_lost(1)
    assert notice(pair) == [1]
    assert not pair.peer_lost(1)
    second.kill()


def test_a_process_is_gone_as_soon_as_it_is_killed_also_before_it_is_reaped():
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        time.sleep(60)
        os._exit(0)
    os.close(write_end)
    assert not is_gone(pid)
    os.kill(pid, signal.SIGKILL)
    readable([read_end], 30)  # its end of the pipe closes while it dies
    assert is_gone(pid)
    os.waitpid(pid, 0)
    assert is_gone(pid)
    os.close(read_end)


def test_who_has_no_descriptor_left_takes_nobody_for_gone():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        gone = is_gone(pid)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not gone
    assert is_gone(pid)
    os.waitpid(pid, 0)


# -- arenas of successors


def sender_of_one_append(mailboxes):
    notice(mailboxes)
    half = mailboxes.arena_half()
    at = half * HALF
    mailboxes.arena_view(1)[at : at + 4] = b"data"
    mailboxes.post(0, APPEND, at=at, size=4)
    mailboxes.ring()
    return half


def stay(mailboxes):
    time.sleep(60)


def test_a_successor_waits_for_the_readers_of_its_arena_then_uses_the_other_half(pair):
    """Worker 0 has not taken the message: the bytes stand until it has."""
    first_half = Worker(pair, 1, sender_of_one_append).result()
    at = first_half * HALF
    began = time.monotonic()
    second = Worker(
        pair, 1, lambda mailboxes: (mailboxes.arena_half(), bytes(mailboxes.arena_view(1)[at : at + 4]))
    )
    second_half, seen = second.result()
    assert 0.9 < time.monotonic() - began < 20
    assert second_half != first_half
    assert seen == b"data"
    assert bytes(pair.arena_view(1)[at : at + 4]) == b"data"


def test_a_successor_gives_the_arena_back_when_it_has_been_read(pair):
    half = Worker(pair, 1, sender_of_one_append).result()
    at = half * HALF
    notice(pair)
    assert len(take_all(pair)) == 1
    assert bytes(pair.arena_view(1)[at : at + 4]) == b"data"

    def seconds_to_enter(mailboxes):  # without those that the process takes to begin
        began = time.monotonic()
        mailboxes.enter(1)
        return time.monotonic() - began

    assert Worker(pair, None, seconds_to_enter).result() < 0.9
    assert bytes(pair.arena_view(1)[at : at + 4]) == bytes(4)


def test_one_process_enters_once(pair):
    with pytest.raises(ValueError, match="already"):
        pair.enter(1)
    with pytest.raises(ValueError, match="no such worker"):
        Mailboxes(2).enter(2)
    with pytest.raises(ValueError):
        Mailboxes(65)
