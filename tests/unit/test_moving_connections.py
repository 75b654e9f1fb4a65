"""A connection moves to the worker that answers its requests, between two of them, and nothing is lost."""

import struct
import threading
import time

import pytest
from reactor_world import Closed
from workers_world import Workers, WorkersClient

from kafkad._native.shared.connection_handover import Handover
from kafkad._native.shared.host_counts import HostCounts

MOVE_AT = 32  # requests


def framed(number):
    frame = struct.pack(">hhih", 18, 0, number, 1) + b"m"
    return struct.pack(">i", len(frame)) + frame


def ask(client, number=5):
    client.send(framed(number))
    assert client.receive_frame() == struct.pack(">i", number) + b"!"


def served(workers):
    return [workers.ask(worker, "stats")["connections"] for worker in range(len(workers.pids))]


@pytest.fixture
def make(tmp_path):
    made = []

    def make(count, **limits):
        workers = Workers(count, tmp_path, handover=Handover(count), **limits)
        made.append(workers)
        return workers

    yield make
    for each in made:
        each.close()


def connected(workers):
    """A client of worker 0."""
    client = WorkersClient(("127.0.0.1", workers.ask(0, "port")))
    workers.clients.append(client)
    ask(client)
    assert served(workers)[0] == 1
    return client


def more(workers, count):
    """Clients that came by worker 0; any worker may serve them."""
    port = workers.ask(0, "port")
    clients = []
    for _ in range(count):
        clients.append(client := WorkersClient(("127.0.0.1", port)))
        ask(client)
    workers.clients.extend(clients)
    return clients


def test_it_moves_after_many_requests_for_one_other_worker_and_keeps_what_is_known_of_it(make):
    workers = make(3)
    client = connected(workers)
    fds = [workers.ask(worker, "fds") for worker in range(3)]
    workers.ask(0, "answer_for", 2, software="libkafka")
    for number in range(MOVE_AT - 1):
        ask(client, number)
    assert served(workers) == [1, 0, 0]
    ask(client)
    workers.ask_until(2, "stats", want=lambda stats: stats["connections"] == 1)
    assert served(workers) == [0, 0, 1] == workers.handover.loads()
    reads = workers.ask(0, "stats")["reads"]
    for number in range(100):
        ask(client, number)
    assert workers.ask(0, "stats")["reads"] == reads
    assert workers.ask(2, "names") == ("libkafka", "1.2", "127.0.0.1", client.socket.getsockname()[1])
    assert workers.ask(0, "stats")["moved"] == workers.ask(2, "stats")["settled"] == 1
    assert [workers.ask(worker, "fds") for worker in range(3)] == [fds[0] - 1, fds[1], fds[2] + 1]
    client.socket.close()
    workers.ask_until(2, "stats", want=lambda stats: stats["connections"] == 0)
    assert workers.handover.loads() == [0, 0, 0]


@pytest.mark.parametrize(
    "turns", [(1, -1), (1, 1, -1), (1, 2), (-1,)], ids=["half here", "a third here", "two others", "all here"]
)
def test_it_stays_when_its_requests_are_for_several_workers(make, turns):
    workers = make(3)
    client = connected(workers)
    workers.ask(0, "answer_for", *turns)
    for number in range(20 * MOVE_AT):
        ask(client, number)
    assert served(workers) == [1, 0, 0]


def test_it_moves_when_few_of_its_requests_are_for_this_worker(make):
    workers = make(2)
    client = connected(workers)
    workers.ask(0, "answer_for", 1, 1, 1, -1)
    for number in range(4 * MOVE_AT + 4):
        ask(client, number)
    workers.ask_until(1, "stats", want=lambda stats: stats["connections"] == 1)
    ask(client)


def test_it_moves_with_a_later_answer_too(make):
    workers = make(2)
    client = connected(workers)
    workers.ask(0, "answer_later")
    for number in range(MOVE_AT):
        client.send(framed(number))
        workers.ask_until(0, "calls_seen", want=lambda calls, number=number: len(calls) == number + 2)
        workers.ask(0, "answer_all", 1)
        assert client.receive_frame() == struct.pack(">i", number) + b"!"
    workers.ask_until(1, "stats", want=lambda stats: stats["connections"] == 1)
    ask(client)


def test_it_goes_to_and_fro_under_pipelined_requests_in_pieces_and_none_is_lost(make):
    workers = make(2)
    port = workers.ask(0, "port")
    clients = [connected(workers), *(WorkersClient(("127.0.0.1", port)) for _ in range(3))]
    workers.clients.extend(clients[1:])
    for worker in (0, 1):
        workers.ask(worker, "answer_for", 1 - worker)
    count = 1500
    sent = b"".join(map(framed, range(count)))

    def send(client, size):
        for at in range(0, len(sent), size):
            client.socket.sendall(sent[at : at + size])
            time.sleep(0.001)  # pieces of requests, and quiet moments

    threads = [
        threading.Thread(target=send, args=(client, size))
        for client, size in zip(clients, (20, 101, 333, 1009), strict=True)
    ]
    for thread in threads:
        thread.start()
    for client in clients:
        for number in range(count):
            assert client.receive_frame() == struct.pack(">i", number) + b"!"
    for thread in threads:
        thread.join()
    moved = sum(workers.ask(worker, "stats")["moved"] for worker in (0, 1))
    assert moved > 10
    assert sum(served(workers)) == 4 == sum(workers.handover.loads())


@pytest.mark.parametrize("why", ["logged in", "limited", "shut", "stopped"])
def test_it_stays_where_it_cannot_move(make, why):
    limited = {"hosts": HostCounts(2), "connections_max_per_ip": 100} if why == "limited" else {}
    workers = make(2, **limited)
    client = connected(workers)
    workers.ask(0, "answer_for", 1, state="a session" if why == "logged in" else None)
    if why == "shut":
        workers.handover.shut(1)
    if why == "stopped":
        workers.kill(1)
        workers.handover.bury(1)
    for number in range(3 * MOVE_AT):
        ask(client, number)
    assert workers.ask(0, "stats")["connections"] == 1 and workers.ask(0, "stats")["moved"] == 0
    if why == "stopped":
        workers.start(1)


def test_on_its_way_to_a_dead_worker_it_waits_for_the_successor(make):
    workers = make(2)
    client = connected(workers)
    workers.ask(0, "answer_for", 1)
    workers.stop(1)
    for number in range(MOVE_AT):
        ask(client, number)
    workers.ask_until(0, "stats", want=lambda stats: stats["moved"] == 1)
    assert workers.handover.loads() == [0, 1]
    client.send(framed(1) + framed(2))
    workers.kill(1)
    workers.handover.bury(1)
    workers.start(1)
    for number in (1, 2):
        assert client.receive_frame() == struct.pack(">i", number) + b"!"
    workers.ask(1, "answer_for", 0)
    for number in range(MOVE_AT):
        ask(client, number)
    workers.ask_until(0, "stats", want=lambda stats: stats["connections"] == 1)


def test_new_connections_are_spread_as_if_none_had_moved(make):
    workers = make(2)
    for worker in (0, 1):
        workers.ask(worker, "answer_for", 1)
    clients = [connected(workers), *more(workers, 19)]
    for client in clients:
        for number in range(2 * MOVE_AT):
            ask(client, number)
    assert served(workers) == [0, 20]
    more(workers, 20)
    new = served(workers)
    # 10 stayed where they came to, and the new ones are spread beside these
    assert new == [15, 25], new
    for client in clients:
        client.socket.close()
    workers.ask_until(1, "stats", want=lambda stats: stats["settled"] == 0)


def test_no_worker_gets_far_more_than_the_others(make):
    workers = make(4)
    for worker in range(4):
        workers.ask(worker, "answer_for", 3)
    clients = [connected(workers), *more(workers, 199)]
    for client in clients:
        for number in range(3 * MOVE_AT):
            ask(client, number)
    assert served(workers)[3] == 64 + 2 * 200 // 4


def test_max_connections_counts_it_once(make):
    workers = make(2, connections_max=2)
    client = connected(workers)
    other = WorkersClient(("127.0.0.1", workers.ask(0, "port")))
    workers.clients.append(other)
    ask(other)
    for worker in (0, 1):
        workers.ask(worker, "answer_for", 1 - worker)
    late = WorkersClient(("127.0.0.1", workers.ask(0, "port")))
    workers.clients.append(late)
    late.send(framed(9))
    for number in range(10 * MOVE_AT):
        ask(client, number)
        ask(other, number)
    assert not late.has_answer(0.2), "it waits in the backlog"
    client.socket.close()
    assert late.receive_frame() == struct.pack(">i", 9) + b"!"


def test_who_has_no_descriptor_for_it_loses_it_and_takes_no_more(make):
    workers = make(2)
    client = connected(workers)
    workers.ask(0, "answer_for", 1)
    workers.ask(1, "limit_fds", 1)
    workers.clients.append(hold := WorkersClient(("127.0.0.1", workers.ask(1, "port"))))
    ask(hold)
    assert served(workers) == [1, 1]
    with pytest.raises((Closed, OSError)):
        for number in range(40 * MOVE_AT):
            ask(client, number)
    assert any("no descriptor" in line for line in workers.ask(1, "told"))
