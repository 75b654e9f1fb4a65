"""Hand-over: new connections are spread over the workers evenly, exactly and whoever dies."""

import errno
import os
import signal
import socket
import struct
import time
from functools import partial

import pytest
from reactor_world import Closed
from workers_world import Workers, WorkersClient

from kafkad._native.shared.connection_handover import Handover
from kafkad._native.shared.host_counts import HostCounts

PEER = socket.inet_pton(socket.AF_INET6, "2001:db8::7")


def in_child(work):
    """Forks a worker of which the test says when it is over: its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def opened(count, me=0):
    """A hand-over of which all are open, and this process is worker `me`."""
    handover = Handover(count)
    for worker in range(count):
        handover.enter(worker)
        handover.open()
    handover.enter(me)
    handover.open()
    return handover


def ends():
    return socket.socketpair()


# -- giving and taking


def test_a_socket_arrives_with_all_that_was_said_of_it():
    handover = opened(2)
    handover.publish(1)
    ours, theirs = ends()
    ours.setblocking(False)
    number = ours.detach()
    assert handover.give(number, 3, 1, PEER, 65535)
    with pytest.raises(OSError) as gone:
        os.fstat(number)
    assert gone.value.errno == errno.EBADF
    assert handover.loads() == [1, 1]
    handover.enter(1)
    fd, *told = handover.take()
    assert told == [3, 1, PEER, 65535]
    assert not os.get_inheritable(fd) and not os.get_blocking(fd)
    theirs.send(b"first byte")
    assert os.read(fd, 100) == b"first byte"
    os.close(fd)
    assert handover.take() is None


def test_who_has_least_is_given_and_equals_keep_theirs():
    handover = opened(4)
    given = 0
    for _ in range(400):
        ours, _ = ends()
        if handover.give(ours.fileno(), 0):
            ours.detach()
            given += 1
    assert given == 300
    assert handover.loads() == [100] * 4


def test_nothing_is_given_to_one_that_is_not_open():
    handover = opened(3)
    handover.publish(10)
    handover.shut(1)
    for expected in ([10, 0, 1], [10, 0, 2]):
        assert handover.give(ends()[0].detach(), 0)
        assert handover.loads() == expected
    handover.shut(2)
    ours, _ = ends()
    assert not handover.give(ours.fileno(), 0)


def test_what_is_on_its_way_to_a_dead_worker_waits_for_its_successor():
    handover = opened(2)
    handover.publish(100)
    peers = []
    for _ in range(5):
        ours, theirs = ends()
        assert handover.give(ours.detach(), 0)
        peers.append(theirs)

    def die():
        handover.enter(1)
        handover.open()
        handover.take()
        handover.publish(1)
        os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code(in_child(die)) == -signal.SIGKILL
    handover.bury(1)
    assert handover.loads() == [100, 4]
    assert peers[0].recv(1) == b"", "the one that it had in its hands is closed by the kernel"
    handover.enter(1)
    for peer in peers[1:]:
        fd = handover.take()[0]
        peer.send(b"x")
        assert os.read(fd, 10) == b"x"
        os.close(fd)
    assert handover.take() is None and handover.loads() == [100, 0]


def test_who_leaves_closes_what_was_on_its_way():
    handover = opened(2)
    handover.publish(100)
    peers = []
    for _ in range(3):
        ours, theirs = ends()
        assert handover.give(ours.detach(), 0)
        peers.append(theirs)
    handover.enter(1)
    handover.open()
    assert handover.leave() == 3
    assert [peer.recv(1) for peer in peers] == [b""] * 3
    handover.open_again()
    handover.enter(0)
    handover.publish(100)
    ours, _ = ends()
    assert not handover.give(ours.fileno(), 0), "it has left"


def test_when_no_more_can_be_on_its_way_who_accepts_keeps_it():
    handover = opened(2)
    handover.publish(1 << 40)
    given = 0
    ours, _ = ends()
    while handover.give(os.dup(fd := ours.fileno()), given):
        given += 1
        assert given < 100_000
    assert given >= 200, "a burst fits"
    assert handover.loads()[1] == given
    os.fstat(fd)
    handover.enter(1)
    for number in range(given):
        taken, listener, *_ = handover.take()
        assert listener == number
        os.close(taken)
    assert handover.take() is None


# -- the lock


def test_who_dies_with_the_lock_frees_it():
    handover = opened(2)

    def die():
        handover.enter(1)
        assert handover.lock()
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(3):
        assert exit_code(in_child(die)) == -signal.SIGKILL
        assert handover.lock()
        handover.unlock()


def test_who_is_stopped_with_the_lock_is_waited_for_once():
    handover = opened(2)
    read_end, write_end = os.pipe()

    def stop():
        handover.enter(1)
        handover.open()
        assert handover.lock()
        os.write(write_end, b"x")
        os.kill(os.getpid(), signal.SIGSTOP)
        handover.unlock()
        signal.pause()

    pid = in_child(stop)
    try:
        os.read(read_end, 1)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        handover.publish(1)
        begun = time.monotonic()
        for _ in range(200):  # 50 ms each would take 10 s
            ours, _ = ends()
            if handover.give(ours.fileno(), 0):
                ours.detach()
        assert time.monotonic() - begun < 5
        assert handover.loads() in ([101, 100], [100, 101])
        assert not handover.lock()
        os.kill(pid, signal.SIGCONT)
        while not handover.lock():
            pass
        handover.unlock()
    finally:
        os.kill(pid, signal.SIGKILL)
        exit_code(pid)
        os.close(read_end)
        os.close(write_end)


def test_many_at_once_leave_no_two_apart_by_more_than_one():
    count, each = 6, 150
    handover = opened(count)
    begin_read, begin_write = os.pipe()
    there_read, there_write = os.pipe()

    def work(me):
        os.close(begin_write)
        handover.enter(me)
        handover.open()
        os.write(there_write, b"x")
        os.read(begin_read, 1)  # all at once
        for _ in range(each):
            ours, _ = ends()
            if handover.give(ours.fileno(), 0):
                ours.detach()

    pids = [in_child(partial(work, me)) for me in range(count)]
    for _ in pids:
        os.read(there_read, 1)
    for fd in (begin_read, begin_write, there_read, there_write):
        os.close(fd)
    assert [exit_code(pid) for pid in pids] == [0] * count
    assert handover.loads() == [each] * count


# -- reactors


def ask(client, number=5):
    frame = struct.pack(">hhih", 18, 0, number, 1) + b"m"
    client.send(struct.pack(">i", len(frame)) + frame)


def is_served(client, number=5):
    ask(client, number)
    return client.receive_frame() == struct.pack(">i", number) + b"!"


def connections(workers):
    return [workers.ask(worker, "stats")["connections"] for worker, pid in enumerate(workers.pids) if pid]


def connect(workers, worker):
    """To the port of a worker, without asking it anything."""
    client = WorkersClient(("127.0.0.1", workers.ports[worker]))
    workers.clients.append(client)
    return client


@pytest.fixture
def make(tmp_path):
    made = []

    def make(count, **limits):
        workers = Workers(count, tmp_path, handover=Handover(count), **limits)
        workers.ports = [workers.ask(worker, "port") for worker in range(count)]
        made.append(workers)
        return workers

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("count", [2, 4])
def test_connections_that_come_by_one_listener_are_served_by_all(make, count):
    workers, so_far = make(count), 0
    for total in (2, 3, 50, 200):
        so_far += total
        clients = [connect(workers, 0) for _ in range(total)]
        for number, client in enumerate(clients):
            ask(client, number)
        for number, client in enumerate(clients):
            assert client.receive_frame() == struct.pack(">i", number) + b"!"
        counts = connections(workers)
        assert sum(counts) == total and max(counts) - min(counts) <= 1, counts
        stats = workers.ask(0, "stats")
        assert stats["adopted"] == 0 and stats["handed_over"] == so_far - stats["accepted"]
        for client in clients:
            client.socket.close()
        for worker in range(count):
            workers.ask_until(worker, "stats", want=lambda stats: stats["connections"] == 0)
        assert workers.handover.loads() == [0] * count
        if total == 2:
            fds = [workers.ask(worker, "fds") for worker in range(count)]
    for worker in range(count):  # fewer, where the collector has closed what the parent had
        assert workers.ask(worker, "fds") <= fds[worker]


def test_who_hands_over_is_not_woken_by_what_comes_then(make):
    workers = make(2)
    kept, given = connect(workers, 0), connect(workers, 0)
    assert is_served(kept) and is_served(given)
    assert connections(workers) == [1, 1]
    before = workers.ask(0, "stats")["reads"]
    for number in range(100):
        assert is_served(given, number)
    assert workers.ask(0, "stats")["reads"] == before


def test_who_is_served_has_the_address_that_it_came_from(make):
    workers = make(2)
    clients = [connect(workers, 0) for _ in range(2)]
    for client in clients:
        assert is_served(client)
    told = {row[2:4] for worker in (0, 1) for row in workers.ask(worker, "peers")}
    assert told == {("127.0.0.1", client.socket.getsockname()[1]) for client in clients}


def test_max_connections_counts_those_of_all_workers_and_those_on_their_way(make):
    workers = make(2, connections_max=4)
    workers.stop(1)
    mine = [connect(workers, 0) for _ in range(4)]
    assert is_served(mine[0])
    stats = workers.ask_until(0, "stats", want=lambda stats: stats["accepted"] + stats["handed_over"] == 4)
    assert stats["connections"] == 2  # two are on their way
    late = connect(workers, 0)
    ask(late)
    assert not late.has_answer(0.3), "it waits in the backlog"
    workers.go(1)
    assert all(is_served(client) for client in mine)
    assert not late.has_answer(0.3)
    mine[1].socket.close()
    assert late.receive_frame()
    assert sorted(connections(workers)) == [2, 2]


def test_the_limit_of_a_host_is_exact_over_all_workers(make):
    count, limit = 3, 20
    workers = make(count, hosts=HostCounts(count), connections_max_per_ip=limit)
    for _ in range(3):
        served = []
        for client in [connect(workers, worker) for worker in list(range(count)) * 20]:
            try:
                assert is_served(client)
                served.append(client)
            except (Closed, OSError):
                client.socket.close()
        assert len(served) == limit
        assert sum(connections(workers)) == limit
        for client in served:
            client.socket.close()
        for worker in range(count):
            workers.ask_until(worker, "stats", want=lambda stats: stats["connections"] == 0)


def test_a_dead_worker_is_succeeded_with_what_was_on_its_way(make):
    workers = make(2)
    workers.stop(1)
    clients = [connect(workers, 0) for _ in range(6)]
    workers.ask_until(0, "stats", want=lambda stats: stats["handed_over"] == 3)
    workers.kill(1)
    workers.handover.bury(1)
    more = [connect(workers, 0) for _ in range(4)]
    for client in more:
        assert is_served(client), "nothing is given to the dead"
    workers.start(1)
    assert all(is_served(client) for client in clients)
    assert connections(workers) == [7, 3]
    again = [connect(workers, 0) for _ in range(4)]
    assert all(is_served(client) for client in again)
    assert connections(workers) == [7, 7]


def test_who_has_no_descriptors_left_is_given_no_more(make):
    workers = make(2)
    assert is_served(connect(workers, 0)) and is_served(connect(workers, 0))
    workers.ask(1, "limit_fds", 3)
    closed = 0
    for _ in range(40):
        client = connect(workers, 0)
        try:
            assert is_served(client)
        except (Closed, OSError):
            closed += 1
    assert closed == 1
    assert connections(workers) == [37, 4]
    assert workers.handover.loads() == [37, 4]
    assert any("no descriptor" in line for line in workers.ask(1, "told"))
