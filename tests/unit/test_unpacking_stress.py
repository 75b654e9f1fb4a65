"""Threads that unpack while everything around them goes away, from a seed.

Connections are closed or reset, partitions are deleted, resigned and made again, and workers stop or are
killed, all while threads unpack batches for them. Afterwards no memory is held, every log is whole, and a
client that behaves is served. `make sanitize` runs this with AddressSanitizer and UBSan."""

import gzip
import random
import struct
import threading
from contextlib import suppress

import pytest
from reactor_world import NOW_MS, Closed, World, produce
from workers_world import Workers

from kafkad.protocol.records import Record, build_batch, read_batches
from tests.unit.test_batch_bombs import as_batch

CODECS = (1, 2, 3, 4)
PARTITIONS = 4


def made(codec, count, size):
    records = [Record(b"k", bytes(size), timestamp=NOW_MS) for _ in range(count)]
    return bytes(build_batch(records, compression=codec))


def cut_record(size):
    """A gzip bomb that only its end shows to be bad: its one record claims more bytes than there are."""
    return bytes(as_batch(1, gzip.compress(b"\xfe\xff\xff\xff\x0f" + bytes(size), 9)))


GOOD = [made(codec, 20, size) for codec in CODECS for size in (100, 60_000)]
BAD = [cut_record(8 << 20), cut_record(20 << 20), GOOD[1][:-20], bytes(as_batch(3, b"\0" * 5000))]


def choose(chance):
    return chance.choice(BAD if chance.random() < 0.4 else GOOD)


def request(chance):
    numbers = chance.sample(range(PARTITIONS), chance.randint(1, PARTITIONS))
    batches = {number: choose(chance) for number in numbers}
    return produce("t", batches, acks=chance.choice([-1, -1, 0]), timeout_ms=100)


def reset(client):
    client.socket.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER
    client.socket.close()


def is_whole(log):
    offset = 0
    log.set_leader_epoch(1 << 20)  # it may have resigned
    for batch in read_batches(log.read(0, 1 << 30)):
        assert batch.is_intact() and batch.base_offset == offset
        offset = batch.last_offset + 1
    return offset == log.end_offset


def play(world, chance, steps):
    """Things happen; the logs that are left at the end."""
    logs, clients, generation = {}, [], 0
    for index in range(PARTITIONS):
        logs[index] = world.log("t", index)
    for _ in range(steps):
        what = chance.random()
        if what < 0.55:
            if not clients or (len(clients) < 6 and chance.random() < 0.5):
                clients.append(world.connect())
            with suppress(OSError, Closed):  # the broker closed it: an acks=0 Produce failed
                chance.choice(clients).send_request(request(chance), 9)
        elif what < 0.7 and clients:
            client = clients.pop(chance.randrange(len(clients)))
            if chance.random() < 0.5:
                reset(client)
            else:
                client.socket.close()
        elif what < 0.8:
            index = chance.randrange(PARTITIONS)
            generation += 1
            world.table.remove("t", index)
            logs.pop(index).close()
            directory, world.directory = world.directory, f"{world.directory}/{generation}"
            logs[index] = world.log("t", index)
            world.directory = directory
        elif what < 0.85:
            chance.choice(list(logs.values())).resign()
        elif what < 0.9:
            chance.choice(list(logs.values())).set_leader_epoch(generation)
        world.reactor.poll()
    return logs


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_connections_and_partitions_go_while_threads_unpack(tmp_path, rounds, seed):
    unpacked = 0
    for number in range(rounds(20, 1000)):
        chance = random.Random(f"{seed}.{number}")
        directory = tmp_path / str(number)
        directory.mkdir()
        world = World(str(directory))
        logs = play(world, chance, 60)
        unpacked += world.reactor.stats()["unpack_jobs"]
        if chance.random() < 0.3:  # a worker that stops: with jobs in the threads
            world.close()
        else:
            world.poll_until(lambda: world.reactor.stats()["unpacking"] == 0, seconds=60)  # noqa: B023
            for client in world.clients:
                client.socket.close()
            world.poll_until(lambda: world.reactor.stats()["connections"] == 0)  # noqa: B023
            stats = world.reactor.stats()
            assert stats["buffered_bytes"] == 0 and stats["unpacking"] == 0
            logs[0].set_leader_epoch(1 << 19)
            end = logs[0].end_offset
            assert world.connect().produce("t", GOOD[1]).base_offset == end
            world.close()
        assert all(is_whole(log) for log in logs.values())
        assert not [thread for thread in threading.enumerate() if thread.name == "kafkad-unpack"]
    assert unpacked > 20


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
def test_workers_are_killed_while_owners_unpack(tmp_path, rounds, seed):
    for number in range(rounds(3, 60)):
        chance = random.Random(f"{seed}.{number}")
        directory = tmp_path / str(number)
        directory.mkdir()
        workers = Workers(3, directory)
        rows = [workers.partition("t", index, 1, own="own_log") for index in range(PARTITIONS)]
        for _ in range(6):
            clients = [workers.connect(worker) for worker in (0, 2, 0, 2, 1)]
            for client in clients:
                with suppress(OSError):  # the broker closed it: an acks=0 Produce failed
                    for _ in range(chance.randint(1, 3)):
                        client.send_request(request(chance), 9)
            what = chance.random()
            if what < 0.4:
                for client in clients:
                    reset(client)
            elif what < 0.8:  # a sender dies; its successor uses the memory from which it sent
                victim = chance.choice([0, 2])
                workers.kill(victim)
                workers.start(victim)
                for index, row in enumerate(rows):
                    workers.ask(victim, "read", "t", index, b"t".ljust(16, b"\1"), row, 1)
                for worker in {0, 1, 2} - {victim}:
                    workers.ask(worker, "peer_lost", victim)
            else:
                workers.ask(1, "close_to_clients", "t", chance.randrange(PARTITIONS))
        for worker in range(3):
            workers.ask_until(worker, "stats", want=lambda stats: stats["unpacking"] == 0, seconds=60)
        for client in workers.clients:
            client.socket.close()
        for worker in range(3):
            workers.ask_until(
                worker,
                "stats",
                want=lambda stats: stats["buffered_bytes"] == 0 and stats["in_flight"] == 0,
            )
        workers.close()
