"""Requests to the controller: one after the other, answered when they are committed and applied."""

import asyncio
import inspect
import time
from types import SimpleNamespace

import pytest

from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server.changes import Changes
from kafkad.server.controller_apis import says
from kafkad.server.controller_queue import AnsweringController, Serial
from kafkad.server.producer_ids import ProducerIds
from kafkad.server.turns import Turns
from tests.unit.metadata_world import Cluster, new_topic


class World:
    """A controller on a log whose flushes end when the test says so, and one worker that applies changes."""

    def __init__(self, path):
        self.cluster = Cluster(path)
        self.log = self.cluster.log
        loop = asyncio.get_running_loop()
        turns = Turns(loop)
        self.changes = Changes(turns, loop, self.raised)
        self.changes.applied = self.cluster.image.offset
        controller = self.cluster.controller.in_turns
        controller.subscribe(lambda delta, image: self.changes.put(image.offset, self.work()))
        self.controller = AnsweringController(controller, turns, loop, self.changes)
        self.applying = asyncio.Event()
        self.applying.set()
        self.log.holding = True

    def raised(self, trouble):
        raise trouble

    def work(self):
        yield
        return self.applying.wait()

    def create(self, *names, timeout_ms=0):
        request = messages.CreateTopicsRequest(topics=[new_topic(name) for name in names])
        request.timeout_ms = timeout_ms
        return asyncio.ensure_future(self.controller.create_topics(request))

    @property
    def topics(self):
        return set(self.cluster.image.topics)


def scenario(tmp_path, steps):
    async def run():
        await asyncio.wait_for(steps(World(tmp_path)), 30)

    asyncio.run(run())


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


def code(created):
    return created.result().topics[0].error_code


def test_nothing_is_answered_before_the_flush_and_all_that_wait_share_one(tmp_path):
    """REVIEW D5(d): worker 0 waited for an fsync of each change."""

    async def steps(world):
        created = [world.create(f"t{number}") for number in range(20)]
        await turns()
        assert not any(each.done() for each in created) and not world.topics
        assert len(world.log.awaited) == 1
        flushes = []
        flush = world.log.flush
        world.log.flush = lambda: (flushes.append(1), flush())
        world.log.release()
        await asyncio.wait(created)
        assert [code(each) for each in created] == [0] * 20
        assert len(world.topics) == 20
        assert len(flushes) <= 2  # the first was asked for by one change, the second by all others
        again = world.log.crash()  # what was acknowledged is on the disk
        assert again.end_offset == world.log.end_offset

    scenario(tmp_path, steps)


def test_an_answer_waits_until_the_change_is_applied(tmp_path):
    async def steps(world):
        world.applying.clear()
        created = world.create("t")
        await turns()
        world.log.release()
        await turns()
        assert world.topics == {"t"} and not created.done()
        world.applying.set()
        await created

    scenario(tmp_path, steps)


def test_a_refusal_that_rests_on_a_change_waits_for_that_change(tmp_path):
    async def steps(world):
        first, second = world.create("t"), world.create("t")
        await turns()
        assert not second.done()
        world.log.release()
        await asyncio.wait([first, second])
        assert (code(first), code(second)) == (0, errors.TOPIC_ALREADY_EXISTS)
        refused = world.controller.create_topics(messages.CreateTopicsRequest(topics=[new_topic("t")]))
        assert not inspect.isawaitable(refused)  # nothing is left to wait for

    scenario(tmp_path, steps)


def test_a_flush_that_takes_long_is_a_timeout_and_the_change_comes_later(tmp_path):
    """A shortage of more than 75 ms refused every change until the restart."""

    async def steps(world):
        await asyncio.wait([created := world.create("t", timeout_ms=20)])
        assert code(created) == errors.REQUEST_TIMED_OUT
        assert "takes effect as soon as it is" in created.result().topics[0].error_message
        assert not world.topics
        world.log.release()
        await turns()
        assert world.topics == {"t"}
        await asyncio.wait([created := world.create("u", timeout_ms=20)])
        assert code(created) == 0

    scenario(tmp_path, steps)


def test_who_asks_in_passing_is_told_to_try_again(tmp_path, monkeypatch):
    """A Metadata request that makes topics, and InitProducerId: with the codes that their clients retry."""
    monkeypatch.setattr("kafkad.server.controller_queue.IN_PASSING_S", 0.02)

    async def steps(world):
        created = world.controller.auto_create(["t"])
        ids = ProducerIds(world.controller).generate()
        assert (await created)["t"].code == errors.LEADER_NOT_AVAILABLE
        with pytest.raises(KafkaError) as late:
            await ids
        assert late.value.code == errors.COORDINATOR_LOAD_IN_PROGRESS
        world.log.release()
        await turns()
        assert world.topics == {"t"}

    scenario(tmp_path, steps)


def test_a_refusal_waits_for_no_worker(tmp_path):
    """It has changed nothing, so there is nothing that a slow worker has to know."""

    async def steps(world):
        created = world.create("t")
        await turns()
        world.applying.clear()
        world.log.release()
        await turns()
        assert not created.done()
        request = messages.CreateTopicsRequest(topics=[new_topic("t")])
        refused = world.controller.create_topics(request)
        assert refused.topics[0].error_code == errors.TOPIC_ALREADY_EXISTS
        world.applying.set()
        await created

    scenario(tmp_path, steps)


def test_a_disk_that_is_broken_is_the_answer_of_each_topic(tmp_path):
    async def steps(world):
        created = [world.create("t", "#"), world.create("u")]
        altered = world.controller.incremental_alter_configs({(2, "t"): {"retention.ms": (0, "5")}})
        ids = world.controller.allocate_producer_ids()
        await turns()
        world.log.failing = "flush"
        world.log.release()
        answer = (await created[0]).topics
        assert [each.error_code for each in answer] == [
            errors.KAFKA_STORAGE_ERROR,
            errors.INVALID_TOPIC_EXCEPTION,
        ]
        assert "may or may not be there" in answer[0].error_message
        await created[1]
        assert code(created[1]) == errors.KAFKA_STORAGE_ERROR
        assert (await altered)[2, "t"].code == errors.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError):
            await ids
        assert not world.topics

    scenario(tmp_path, steps)


def test_a_stop_appends_what_is_queued_and_waits_for_the_disk(tmp_path):
    async def steps(world):
        created = [world.create(f"t{number}") for number in range(3)]
        world.controller.drain()
        assert world.topics == {"t0", "t1", "t2"}
        assert world.log.crash().end_offset == world.log.end_offset
        await asyncio.wait(created)
        assert [code(each) for each in created] == [0] * 3

    scenario(tmp_path, steps)


def test_directories_of_a_change_that_came_with_the_stop_are_not_assigned_to_a_closed_log(tmp_path):
    """A broker ended with status 70 after SIGTERM: they were planned on the closed metadata log."""

    async def steps(world):
        tries = []

        def assign(placed):
            tries.append(placed)
            yield

        world.controller.drain()
        world.log.close()
        world.controller._controller = SimpleNamespace(assign_directories=assign)
        world.controller.assign_directories({})
        await turns()
        assert tries == []

    scenario(tmp_path, steps)


def test_all_who_ask_for_producer_ids_wait_for_one_block(tmp_path):
    async def steps(world):
        ids = ProducerIds(world.controller)
        asked = [asyncio.ensure_future(ids.generate()) for _ in range(1_500)]
        await turns()
        assert not any(each.done() for each in asked)
        world.log.release()
        assert sorted([await each for each in asked]) == list(range(1_500))
        assert world.cluster.image.next_producer_id == 2_000
        assert isinstance(ids.generate(), int)

    scenario(tmp_path, steps)


def test_a_block_that_cannot_be_had_is_the_trouble_of_all_who_wait_for_it(tmp_path):
    async def steps(world):
        ids = ProducerIds(world.controller)
        world.log.failing = "append"
        with pytest.raises(KafkaError):
            await ids.generate()
        world.log.failing = None
        asked = asyncio.ensure_future(ids.generate())
        await turns()
        world.log.release()
        assert await asked == 0

    scenario(tmp_path, steps)


@pytest.mark.parametrize("steps", [1, 3_000])
def test_work_runs_in_its_order_however_long_it_is(steps):
    async def main():
        loop = asyncio.get_running_loop()
        serial, done = Serial(Turns(loop), loop), []

        def work(name, count):
            for _ in range(count):
                yield
            done.append(name)
            return name

        results = [serial.run(work(name, steps * (5 - name) ** 2)) for name in range(5)]
        answers = [await each if inspect.isawaitable(each) else each for each in results]
        assert answers == done == list(range(5))
        await turns()
        assert serial.run(work(7, 1)) == 7
        with pytest.raises(RuntimeError):  # its trouble is the caller's
            serial.run(failing())
        assert serial.run(work(8, 1)) == 8

    def failing():
        yield
        raise RuntimeError

    asyncio.run(main())


@pytest.mark.parametrize("trouble", [AssertionError("we are wrong"), KafkaError(errors.KAFKA_STORAGE_ERROR)])
@pytest.mark.parametrize("later", [False, True])
def test_an_error_of_our_own_while_directories_are_assigned_ends_the_worker(tmp_path, caplog, trouble, later):
    """It was taken for a shortage, and tried again every five seconds for ever."""

    async def steps(world):
        loop = asyncio.get_running_loop()
        fatal, tries = [], []
        loop.set_exception_handler(lambda _loop, context: fatal.append(context["exception"]))

        def assign(placed):
            tries.append(placed)
            for _ in range(20 if later else 1):  # more than one turn
                time.sleep(0.001)
                yield
            raise trouble

        world.controller._controller = SimpleNamespace(assign_directories=assign)
        loop.call_soon(world.controller.assign_directories, {})
        while not tries or len(fatal) + caplog.text.count("will try again") == 0:
            await asyncio.sleep(0.001)
        is_ours = isinstance(trouble, AssertionError)
        assert fatal == ([trouble] if is_ours else [])
        assert ("will try again" in caplog.text) == (not is_ours)

    scenario(tmp_path, steps)


@pytest.mark.parametrize("code", [errors.NONE, errors.NOT_CONTROLLER])
def test_a_wide_answer_to_a_broker_is_looked_through_in_steps(code):
    """Votes and heartbeats wait for one turn, not for 100,000 topics."""
    cls = messages.CreateTopicsResponse
    answer = cls(topics=[cls.Topics(name=f"t{number}") for number in range(1_000)])
    answer.topics[-1].error_code = code
    steps, count = says(answer, errors.NOT_CONTROLLER), 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            assert end.value is (code == errors.NOT_CONTROLLER)
            break
    assert count >= 999


def test_a_stop_ends_what_has_begun_and_drops_what_it_has_no_time_for():
    """10,000 topics that were requested before held a stop up for minutes."""

    async def main():
        loop, done, now = asyncio.get_running_loop(), [], [0.0]
        serial = Serial(Turns(loop, lambda: now[0]), loop)

        def work(number):
            for _ in range(100):
                now[0] += 0.001
                yield
            done.append(number)

        asked = [serial.run(work(number)) for number in range(3)]
        assert serial.drain(0) == 2
        await turns()
        assert (done, [each.done() for each in asked]) == ([0], [True, False, False])

    asyncio.run(main())
