"""Everything at once, from a seed: clients that pipeline, cut, stall, lie, wait and leave while partitions
come, go and advance. Whoever behaves gets every answer, in order."""

import os
import random
import shutil
import socket
import struct

import pytest
from reactor_world import Closed, SlowLog, World, batch, fetch, produce

from kafkad.protocol import codec
from kafkad.protocol.errors import KafkaError
from tests.readiness import readable

SEEDS = int(os.environ.get("KAFKAD_CHAOS_SEEDS", "12"))
NAMES = ("a", "b", "c")


class Appended:
    base_offset, end_offset, append_time_ms, log_start_offset = 0, 0, -1, 0


class Chaos:
    def __init__(self, directory, seed):
        self.chance = random.Random(seed)
        self.world = World(
            directory,
            fetch_session_slots=self.chance.choice([0, 2, 1000]),
            fetch_session_eviction_ms=self.chance.choice([0, 120_000]),
            buffered_bytes_max=self.chance.choice([600_000, 512 << 20]),
            stall_ms=50,
            connections_max=12,
        )
        self.world.answer = self.answer
        self.late = []
        self.partitions = {}
        self.players = []

    def answer(self, connection, request_id, frame):
        what = self.chance.random()
        if what < 0.5:
            connection.respond(request_id, frame[4:8], bytes(self.chance.choice([0, 50, 300_000])))
        elif what < 0.98:
            self.late.append((connection, request_id, frame))
        else:
            connection.close("as it happens")

    def slow_append(self, data, now_ms):
        what = self.chance.random()
        if what < 0.3:
            raise KafkaError(87, "no")
        if what < 0.4 and self.partitions:
            self.drop()
        elif what < 0.5:
            raise ValueError("broken")
        return Appended

    # -- what may happen

    def add(self):
        key = (self.chance.choice(NAMES), self.chance.randrange(4))
        if key in self.partitions:
            return
        shutil.rmtree(os.path.join(self.world.directory, f"{key[0]}-{key[1]}"), ignore_errors=True)
        topic_id = key[0].encode() * 16
        self.partitions[key] = self.world.partition(
            *key, topic_id=topic_id, follows_end=self.chance.random() < 0.5, log=SlowLog(self.slow_append)
        )

    def drop(self):
        if self.partitions:
            key = self.chance.choice(list(self.partitions))
            partition = self.partitions.pop(key)
            if self.chance.random() < 0.5:
                partition.close_to_clients()
            self.world.table.remove(*key)

    def advance(self):
        for partition in self.partitions.values():
            if self.chance.random() < 0.5:
                partition.advance_high_watermark(partition.end_offset)

    def reply(self):
        while self.late and self.chance.random() < 0.8:
            connection, request_id, frame = self.late.pop(self.chance.randrange(len(self.late)))
            connection.respond(request_id, frame[4:8])

    def reply_to_all(self):
        while self.late:
            connection, request_id, frame = self.late.pop()
            connection.respond(request_id, frame[4:8])

    def join(self):
        client = self.world.connect()
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self.players.append(Player(self, client))

    def step(self):
        actions = [self.add, self.drop, self.advance, self.reply, self.reply, self.advance]
        self.chance.choice(actions)()
        if len(self.players) < 8:
            self.join()
        for player in list(self.players):
            player.step()
        if self.chance.random() < 0.3:
            readable([self.world.reactor.fileno()], 0.002)
        self.world.reactor.poll()

    def settle(self):
        """No more mischief: whoever is left gets all its answers."""
        for player in self.players:
            player.cut = None
            player.hold = False

        def done():
            self.reply_to_all()
            for partition in self.partitions.values():
                partition.advance_high_watermark(partition.end_offset)
            for player in list(self.players):
                player.flush()
                player.read()
            return not any(player.asked or player.outgoing for player in self.players)

        self.world.poll_until(done, seconds=30)


class Player:
    def __init__(self, chaos, client):
        self.chaos = chaos
        self.client = client
        self.outgoing = bytearray()
        self.asked = []  # correlation ids
        self.next_id = 0
        self.session = (0, 0)
        self.honest = True
        self.hold = False
        self.cut = None

    def step(self):
        chance = self.chaos.chance
        what = chance.random()
        if what < 0.5 and len(self.asked) < 60:
            for _ in range(chance.choice([1, 1, 5, 30])):
                self.ask()
        elif what < 0.53:
            self.leave()
            return
        elif what < 0.55:
            self.outgoing += chance.randbytes(chance.randrange(1, 300))
            self.honest = False
        elif what < 0.6:
            self.hold = not self.hold
        elif what < 0.65:
            self.cut = chance.choice([None, 1, 7, 1000])
        self.flush()
        if not self.hold:
            self.read()

    def ask(self):
        chance = self.chaos.chance
        self.next_id += 1
        kind = chance.randrange(4)
        topic, index = chance.choice(NAMES), chance.randrange(5)
        if kind == 0:
            version = chance.randrange(3, 14)
            size, compression = chance.choice([1, 100, 5000, 100_000]), chance.choice([0, 0, 0, 1])
            message = produce(
                topic.encode() * 16 if version >= 13 else topic,
                {index: batch(1, size, compression=compression), chance.randrange(5): batch()},
                acks=chance.choice([1, -1]),
                timeout_ms=chance.choice([0, 20, 60_000]),
            )
        elif kind == 1:
            version = chance.randrange(7, 19)
            by_id = version >= 13
            parts = [
                (name.encode() * 16 if by_id else name, i, chance.randrange(4), chance.choice([100, 1 << 20]))
                for name in NAMES
                for i in range(4)
                if chance.random() < 0.4
            ]
            session, epoch = chance.choice([(0, -1), (0, 0), self.session, (chance.randrange(1 << 30), 1)])
            message = fetch(
                parts,
                session_id=session,
                session_epoch=epoch,
                max_wait_ms=chance.choice([0, 10, 30]),
                min_bytes=chance.choice([0, 1, 1000]),
                isolation_level=chance.randrange(2),
            )
            if chance.random() < 0.3:
                self.session = (session, epoch + 1)
        else:
            key = chance.choice([3, 18, 22])
            frame = struct.pack(">hhih", key, 0, self.next_id, -1) + bytes(chance.choice([0, 10, 70_000]))
            self.outgoing += struct.pack(">i", len(frame)) + frame
            self.asked.append(self.next_id)
            return
        frame = codec.encode_request(message, version, self.next_id, "c")
        self.outgoing += struct.pack(">i", len(frame)) + frame
        self.asked.append(self.next_id)

    def flush(self):
        try:
            while self.outgoing:
                size = self.client.socket.send(self.outgoing[: self.cut])
                del self.outgoing[:size]
                if self.cut:
                    break
        except BlockingIOError:
            pass
        except OSError:
            self.gone()

    def read(self):
        try:
            while self.client.pull():
                pass
        except Closed:
            self.gone()
            return
        received = self.client.received
        while len(received) >= 4:
            (size,) = struct.unpack_from(">i", received)
            if len(received) < 4 + size:
                break
            (correlation_id,) = struct.unpack_from(">i", received, 4)
            if self.honest or correlation_id in self.asked[:1]:
                assert correlation_id == self.asked.pop(0)
            del received[: 4 + size]

    def leave(self):
        self.client.socket.close()
        self.gone()

    def gone(self):
        if self in self.chaos.players:
            self.chaos.players.remove(self)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whoever_behaves_gets_every_answer_in_order(tmp_path, seed):
    chaos = Chaos(str(tmp_path), seed)
    for _ in range(250):
        chaos.step()
    for player in list(chaos.players):
        if not player.honest:
            player.leave()
    chaos.settle()
    assert chaos.world.fatal == []
    for player in list(chaos.players):
        player.leave()
    for key in list(chaos.partitions):
        chaos.world.table.remove(*key)

    def all_gone():
        chaos.reply_to_all()  # a client that left may have requests that wait: its connection lasts
        return chaos.world.reactor.stats()["connections"] == 0

    chaos.world.poll_until(all_gone)
    assert chaos.world.reactor.stats()["buffered_bytes"] == 0
    chaos.world.close()
