"""Early fencing: a broker whose process died is fenced, and no other one, whatever its connections do."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

from kafkad.net.channel import Channel, Unreachable
from kafkad.net.frame_server import FrameServer
from kafkad.net.reach import listens
from kafkad.server.early_fencing import TRIES, EarlyFencing

A, B = ("kafka1", 9092), ("kafka1", 9094)


def heartbeat(epoch=5):
    return SimpleNamespace(broker_id=1, broker_epoch=epoch)


class Controller:
    """What EarlyFencing sees of a QuorumController."""

    def __init__(self):
        self.is_active = True
        self.fenced = []

    def fence_dead(self, broker, is_dead):
        return (broker, is_dead)


class World:
    """One broker, 1 in epoch 5, with two listeners; `answers` is what each of them says."""

    def __init__(self):
        self.controller = Controller()
        self.answers = {A: [True], B: [True]}  # the last one stays
        self.asked = 0
        self.tasks = []
        self.broker = SimpleNamespace(
            broker_id=1,
            epoch=5,
            fenced=False,
            listeners={at[1]: SimpleNamespace(host=at[0], port=at[1]) for at in (A, B)},
        )
        self.fencing = EarlyFencing(
            self.controller,
            brokers=lambda: [self.broker],
            do=self.do,
            run=lambda work: self.tasks.append(asyncio.ensure_future(work)),
            listens=self.listens,
        )

    async def listens(self, host, port, timeout_s):
        self.asked += 1
        answers = self.answers[host, port]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def do(self, steps):
        broker, is_dead = steps
        if not is_dead():
            return False
        self.controller.fenced.append(broker)
        return True

    def connect(self, epoch=5):
        connection = SimpleNamespace(broker_id=None)
        self.fencing.heard(connection, heartbeat(epoch))
        return connection

    async def settle(self):
        while self.tasks:
            await self.tasks.pop()


def say(world, *answers):
    world.answers = {A: list(answers), B: list(answers)}


def test_a_broker_whose_listeners_refuse_after_its_connection_has_ended_is_fenced():
    async def story():
        world = World()
        await world.fencing.look()
        connection = world.connect()
        say(world, True, True, False)  # its workers die one after the other
        world.fencing.ended(connection, True)
        await world.settle()
        assert world.controller.fenced == [(1, 5)]

    asyncio.run(story())


@pytest.mark.parametrize("answer", [True, None])
def test_a_broker_that_accepts_or_is_silent_is_not_fenced(answer):
    async def story():
        world = World()
        await world.fencing.look()
        connection = world.connect()
        world.answers = {A: [False], B: [answer]}
        world.fencing.ended(connection, True)
        await world.settle()
        assert world.controller.fenced == [] and world.asked > 4

    asyncio.run(story())


def test_one_refusal_is_none():
    async def story():
        world = World()
        await world.fencing.look()
        connection = world.connect()
        say(world, False, True, False, True, False, True)
        world.fencing.ended(connection, True)
        await world.settle()
        assert world.controller.fenced == []

    asyncio.run(story())


@pytest.mark.parametrize("how", ["idle", "newer", "not known", "standby", "fenced", "heard meanwhile"])
def test_without_both_signs_nothing_is_done(how):
    async def story():
        world = World()
        if how != "not known":
            await world.fencing.look()
        connection = world.connect()
        say(world, False)
        if how == "newer":
            world.connect()
        if how == "standby":
            world.controller.is_active = False
        if how == "fenced":
            world.broker.fenced = True
        world.fencing.ended(connection, how != "idle")
        if how == "heard meanwhile":
            world.connect()
        await world.settle()
        assert world.controller.fenced == []

    asyncio.run(story())


def test_an_address_that_never_accepted_is_left_alone():
    async def story():
        world = World()
        say(world, False)
        for _ in range(TRIES + 2):
            await world.fencing.look()
        assert world.asked == 2 * TRIES
        world.fencing.ended(world.connect(), True)
        world.fencing.begins()
        await world.settle()
        assert world.controller.fenced == [] and world.asked == 2 * TRIES

    asyncio.run(story())


def test_a_new_controller_fences_who_died_with_the_one_before():
    async def story():
        world = World()
        await world.fencing.look()
        world.fencing.begins()
        await world.settle()
        assert world.controller.fenced == []
        say(world, False)
        world.fencing.begins()
        await world.settle()
        assert world.controller.fenced == [(1, 5)]

    asyncio.run(story())


def test_a_new_incarnation_has_to_be_reached_again():
    async def story():
        world = World()
        await world.fencing.look()
        connection = world.connect()
        world.broker.epoch = 6
        say(world, False)
        world.fencing.ended(connection, True)
        await world.settle()
        assert world.controller.fenced == []

    asyncio.run(story())


def test_who_was_fenced_and_lives_is_not_fenced_again():
    async def story():
        world = World()
        await world.fencing.look()
        say(world, False)
        world.fencing.ended(world.connect(), True)
        await world.settle()
        assert world.controller.fenced == [(1, 5)]
        world.fencing.ended(world.connect(), True)
        await world.settle()
        assert world.controller.fenced == [(1, 5)]

    asyncio.run(story())


# -- real sockets ------------------------------------------------------------------------------------------


def test_a_listener_accepts_and_a_free_port_refuses():
    async def story():
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert await listens("127.0.0.1", port, 30.0) is True
        assert await listens("127.0.0.1", port, 30.0) is False
        assert await listens("localhost", port, 30.0) is False  # perhaps of two addresses
        with pytest.raises(Unreachable) as caught:
            await Channel.connect("localhost", port, "test", timeout_s=30.0)
        assert caught.value.refused

    asyncio.run(story())


def test_a_server_tells_which_side_has_ended_a_connection():
    async def story():
        ends = asyncio.Queue()

        async def serve(connection, frame):
            return None if frame.endswith(b"!") else frame

        server = FrameServer(serve, frame_size_max=100)
        server.on_end = lambda connection, by_peer: ends.put_nowait(by_peer)
        listening = socket.create_server(("127.0.0.1", 0))
        await server.open(listening, "CONTROLLER")
        port = listening.getsockname()[1]
        for last, by_peer in ((b"goodbye ", True), (b"goodbye!", False)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(len(last).to_bytes(4, "big") + last)
            if by_peer:
                await reader.readexactly(4 + len(last))
                writer.close()
            async with asyncio.timeout(30):
                assert await ends.get() is by_peer
            writer.close()
        await server.close()

    asyncio.run(story())
