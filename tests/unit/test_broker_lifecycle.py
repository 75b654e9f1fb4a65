"""A broker's life as its controllers see it: what it says in each state, and what it makes of the answers."""

import asyncio
from types import SimpleNamespace

import pytest

from kafkad.controller.brokers import NotRegistered, Registration
from kafkad.metadata.image import Endpoint, MetadataImage
from kafkad.net.channel import Unreachable
from kafkad.protocol import errors, messages
from kafkad.server.broker_lifecycle import BrokerLifecycle, State
from kafkad.server.member_worker import MemberWorker

Registered = messages.BrokerRegistrationResponse
Beat = messages.BrokerHeartbeatResponse
DIRS = (b"b" * 16, b"a" * 16)


class Controllers:
    """Answers with what `say` holds, then with `always`; an exception is raised. All requests are kept."""

    def __init__(self, *say, always=None):
        self.say = list(say)
        self.always = always
        self.registrations, self.beats = [], []
        self.image = MetadataImage("abc")
        self.image.features = {"metadata.version": 30, "group.version": 1}
        self.image.offset = 5

    async def ask(self, request, *, timeout_s, lowest=0):
        await asyncio.sleep(0)
        registers = type(request) is messages.BrokerRegistrationRequest
        (self.registrations if registers else self.beats).append(request)
        said = self.say.pop(0) if self.say else self.always
        if isinstance(said, Exception):
            raise said
        return said

    def broker(self, **settings):
        registration = Registration(
            7, b"i" * 16, {"PLAINTEXT": Endpoint("here", 9092, 0)}, DIRS, rack="r1", previous_epoch=40
        )
        settings = {"heartbeat_interval_ms": 5, "initial_timeout_ms": 5000} | settings
        return BrokerLifecycle(
            registration, cluster_id="abc", ask=self.ask, image=lambda: self.image, **settings
        )


def run(work):
    async def bounded():
        async with asyncio.timeout(20):
            await work

    asyncio.run(bounded())


def test_a_broker_that_misses_logs_registers_as_after_an_unclean_stop():
    async def work():
        world = Controllers(Registered(broker_epoch=41), Beat(is_caught_up=True))
        world.always = Beat(is_caught_up=True)
        broker = world.broker()
        broker.lost_records()
        task = asyncio.create_task(broker.run())
        await broker.caught_up.wait()
        assert [each.previous_broker_epoch for each in world.registrations] == [-1]
        task.cancel()

    run(work())


def test_from_registration_to_the_end():
    async def work():
        world = Controllers(Registered(broker_epoch=41), Beat(is_caught_up=False), Beat(is_caught_up=True))
        world.always = Beat(is_caught_up=True, is_fenced=True)
        broker = world.broker()
        task = asyncio.create_task(broker.run())
        await broker.caught_up.wait()
        (said,) = world.registrations
        assert (said.cluster_id, said.broker_id, said.previous_broker_epoch, said.rack) == (
            "abc",
            7,
            40,
            "r1",
        )
        assert said.log_dirs == sorted(DIRS) and said.listeners[0].host == "here"
        ranges = {
            each.name: (each.min_supported_version, each.max_supported_version) for each in said.features
        }
        assert ranges["group.version"] == (0, 1)  # finalized, or the controller would not take us
        assert ranges["share.version"] == (0, 0)
        assert broker.epoch == 41 and len(world.beats) == 2
        assert [beat.want_fence for beat in world.beats] == [True, True]
        assert world.beats[0].cordoned_log_dirs is None and world.beats[0].current_metadata_offset == 5

        world.image.offset = 9
        while len(world.beats) < 5:
            await asyncio.sleep(0.001)
        assert broker.state is State.RECOVERY and not broker.unfenced.is_set()
        assert world.beats[-1].want_fence and world.beats[-1].current_metadata_offset == 9
        assert world.beats[-1].cordoned_log_dirs == []

        world.always = Beat(is_caught_up=True, is_fenced=False)
        broker.ready_to_unfence()
        await broker.unfenced.wait()
        assert not world.beats[-1].want_fence and broker.state is State.RUNNING

        broker.directories_offline([DIRS[0]])
        while not world.beats[-1].offline_log_dirs:
            await asyncio.sleep(0.001)
        assert world.beats[-1].offline_log_dirs == [DIRS[0]]

        broker.begin_shutdown()
        while not world.beats[-1].want_shut_down:
            await asyncio.sleep(0.001)
        assert not broker.gone.is_set()
        world.always = Beat(is_fenced=False, should_shut_down=True)
        await broker.gone.wait()
        await task

    run(work())


def test_a_registration_is_tried_again_until_its_time_is_up():
    async def work():
        world = Controllers(
            Unreachable("nobody"),
            Registered(error_code=errors.DUPLICATE_BROKER_REGISTRATION),
            Registered(broker_epoch=3),
            always=Beat(),
        )
        broker = world.broker()
        task = asyncio.create_task(broker.run())
        while not world.beats:
            await asyncio.sleep(0.001)
        assert broker.epoch == 3 and len(world.registrations) == 3
        broker.begin_shutdown()  # fenced as it is, it leads nothing
        await task

        world = Controllers(always=Registered(error_code=errors.INCONSISTENT_CLUSTER_ID))
        with pytest.raises(NotRegistered, match=r"broker 7 within 0.1 s: .*INCONSISTENT_CLUSTER_ID"):
            await world.broker(initial_timeout_ms=100).run()
        assert len(world.registrations) > 3 and not world.beats

    run(work())


def test_a_heartbeat_that_fails_is_sent_again():
    async def work():
        world = Controllers(
            Registered(broker_epoch=3),
            Unreachable("nobody"),
            Beat(error_code=errors.STALE_BROKER_EPOCH, is_caught_up=True),
            always=Beat(is_caught_up=True),
        )
        broker = world.broker()
        task = asyncio.create_task(broker.run())
        await broker.caught_up.wait()
        assert len(world.beats) == 3
        broker.begin_shutdown()
        await task
        assert broker.state is State.GONE

    run(work())


def test_a_refused_heartbeat_is_logged_once_until_one_is_taken(caplog):
    refused, taken = Beat(error_code=errors.STALE_BROKER_EPOCH), Beat(is_caught_up=True)

    async def work():
        say = [Registered(broker_epoch=3), *[refused] * 10, Beat(), *[refused] * 10]
        broker = (world := Controllers(*say, always=taken)).broker()
        task = asyncio.create_task(broker.run())
        await broker.caught_up.wait()
        assert len(world.beats) == 22
        broker.begin_shutdown()
        await task

    run(work())
    assert sum("is refused its heartbeat" in each.getMessage() for each in caplog.records) == 2


def test_a_refused_registration_is_logged_once(caplog):
    """By a broker whose node.id another one has, for as long as it tries."""
    world = Controllers(always=Registered(error_code=errors.DUPLICATE_BROKER_REGISTRATION))
    with pytest.raises(NotRegistered):
        run(world.broker(initial_timeout_ms=100).run())
    assert len(world.registrations) > 3
    assert sum("is not registered" in each.getMessage() for each in caplog.records) == 1


def test_a_worker_forgets_tasks_that_have_ended():
    """Each change of an ISR is one, for as long as the broker runs."""

    async def work():
        worker = SimpleNamespace(loop=asyncio.get_running_loop(), _tasks=[])
        for _ in range(3):
            MemberWorker._run(worker, asyncio.sleep(0))
        assert len(worker._tasks) == 3
        await asyncio.wait(list(worker._tasks))
        await asyncio.sleep(0)
        assert worker._tasks == []

    run(work())


def test_an_answer_from_before_the_wish_to_leave_lets_nobody_go():
    async def work():
        world = Controllers(Registered(broker_epoch=3), always=Beat(is_caught_up=True, is_fenced=False))
        broker = world.broker(heartbeat_interval_ms=60_000)
        asks = world.ask
        held = asyncio.Event()

        async def ask(request, **options):
            answer = await asks(request, **options)
            if type(request) is messages.BrokerHeartbeatRequest and len(world.beats) == 3:
                await held.wait()
                return Beat(should_shut_down=True)
            return answer

        broker._ask = ask
        task = asyncio.create_task(broker.run())
        broker.ready_to_unfence()
        await broker.unfenced.wait()
        broker.directories_offline([DIRS[0]])  # a heartbeat that says nothing of leaving is under way
        while len(world.beats) < 3:
            await asyncio.sleep(0.001)
        broker.begin_shutdown()
        held.set()
        while len(world.beats) < 4:
            await asyncio.sleep(0.001)
        assert world.beats[3].want_shut_down and not broker.gone.is_set()
        world.always = Beat(should_shut_down=True)
        await broker.gone.wait()
        await task

    run(work())
