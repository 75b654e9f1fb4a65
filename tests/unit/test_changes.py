"""Changes of metadata: in their order, in turns, and answered when they are applied."""

import asyncio

import pytest

from kafkad.server.changes import Changes
from kafkad.server.turns import Turns

LONG = 1_000  # steps: more than one turn of the World's clock


class World:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.loop = asyncio.get_running_loop()
        self.fatal: list[BaseException] = []
        turns = Turns(self.loop, lambda: self.now_s)
        self.changes = Changes(turns, self.loop, self.fatal.append)
        self.done: list[str] = []

    def work(self, name: str, steps: int, then=None):
        for _ in range(steps):
            self.now_s += 0.0001
            yield
        self.done.append(name)
        return then


def test_a_small_change_is_applied_at_once():
    async def main():
        world = World()
        world.changes.put(5, world.work("a", 3))
        assert (world.done, world.changes.applied) == (["a"], 5)

    asyncio.run(main())


def test_a_change_waits_for_the_one_before_it():
    async def main():
        world = World()
        applied = []
        world.changes.on_applied = lambda: applied.append(world.changes.applied)
        world.changes.put(5, world.work("long", LONG))
        world.changes.put(6, world.work("short", 1))
        assert world.done == [] and world.changes.applied == -1
        await world.changes.wait(6)
        assert (world.done, applied) == (["long", "short"], [5, 6])
        await world.changes.wait(6)

    asyncio.run(main())


def test_what_the_work_returns_is_waited_for():
    async def main():
        world = World()
        synced = asyncio.Event()
        world.changes.put(5, world.work("a", 1, synced.wait()))
        world.changes.put(6, world.work("b", 1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (world.done, world.changes.applied) == (["a"], -1)
        synced.set()
        await world.changes.wait(6)
        assert world.done == ["a", "b"]

    asyncio.run(main())


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_stop_applies_what_is_pending(turns):
    async def main():
        world = World()
        world.changes.put(5, world.work("long", LONG))
        world.changes.put(6, world.work("second", LONG))
        for _ in range(turns):
            await asyncio.sleep(0)
        world.changes.drain(for_good=True)
        assert (world.done, world.changes.applied) == (["long", "second"], 6)
        world.changes.put(7, world.work("third", LONG))
        assert (world.done[-1], world.changes.applied) == ("third", 7)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(world.done) == 3 and not world.fatal

    asyncio.run(main())


def test_a_stop_leaves_changes_that_it_has_no_time_to_begin():
    """The next start applies them. 10,000 topics that were requested before held a stop up for minutes."""

    async def main():
        world = World()
        world.changes.put(5, world.work("long", LONG))
        world.changes.put(6, world.work("second", LONG))
        await asyncio.sleep(0)
        world.changes.end_in(0)
        world.changes.drain(for_good=True)
        assert (world.done, world.changes.applied) == (["long"], 5)
        world.changes.put(7, world.work("third", 1))
        for _ in range(50):
            await asyncio.sleep(0)
        assert (world.done, world.changes.applied, world.fatal) == (["long"], 5, [])

    asyncio.run(main())


def test_nobody_waits_for_changes_that_a_stop_leaves():
    """A CreateTopics waited for its change, and the broker, which waited for the task, did not end."""

    async def main():
        world = World()
        world.changes.put(5, world.work("long", LONG))
        world.changes.put(6, world.work("second", LONG))
        before = asyncio.ensure_future(world.changes.wait(6))
        await asyncio.sleep(0)
        world.changes.end_in(0)
        world.changes.drain(for_good=True)
        after = asyncio.ensure_future(world.changes.wait(6))
        ended = await asyncio.wait_for(asyncio.gather(before, after, return_exceptions=True), 5)
        assert [type(each) for each in ended] == [asyncio.CancelledError] * 2
        await world.changes.wait(5)

    asyncio.run(main())


@pytest.mark.parametrize("steps", [1, LONG])
def test_a_change_that_cannot_be_applied_ends_the_worker(steps):
    async def main():
        world = World()

        def failing():
            yield from world.work("a", steps)
            raise ValueError("so")

        if steps == 1:
            with pytest.raises(ValueError, match="so"):
                world.changes.put(5, failing())
        else:
            world.changes.put(5, failing())
        for _ in range(50):
            await asyncio.sleep(0)
        assert [str(trouble) for trouble in world.fatal] == ["so"]
        assert world.changes.applied == -1

    asyncio.run(main())
