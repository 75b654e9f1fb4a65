"""Tasks that run by the clock, on a real event loop."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

from kafkad.server.background import Background
from kafkad.server.lifecycle import finish
from kafkad.server.scheduler import LoopScheduler
from kafkad.server.turns import Turns


class World:
    """A loop with one background task, `run`, due every millisecond. `wrong` is what would end the worker."""

    def __init__(self, run) -> None:
        self.loop = asyncio.new_event_loop()
        self.wrong: list[object] = []
        self.loop.set_exception_handler(lambda _, context: self.wrong.append(context.get("exception")))
        self.background = Background(LoopScheduler(self.loop), self.wrong.append, Turns(self.loop))
        self.background.add("test", lambda: 1, run)

    def turn(self, until: asyncio.Event) -> None:
        self.loop.run_until_complete(asyncio.wait_for(until.wait(), 60))


def test_a_stop_cuts_a_task_short_and_ends_nothing_else():
    """A task that waits, or has turns left, is cancelled when the loop ends. That was taken for an error of
    our own: the stop ended with exit code 70, and with several workers without the clean-shutdown mark."""
    begun = asyncio.Event()

    def endless() -> Iterator[None]:
        begun.set()
        while True:
            yield

    world = World(endless)
    world.turn(begun)
    world.background.stop()
    assert asyncio.all_tasks(world.loop), "the task has no turns left: nothing is tested"
    finish(world.loop)
    world.loop.run_until_complete(asyncio.sleep(0))
    world.loop.close()
    assert world.wrong == []


def test_a_task_that_fails_in_a_later_turn_runs_again(caplog):
    seen = SimpleNamespace(runs=0, again=asyncio.Event())

    async def fails_later() -> None:
        await asyncio.sleep(0)
        raise OSError("the first run fails")

    def run():
        seen.runs += 1
        if seen.runs == 1:
            return fails_later()
        seen.again.set()
        return None

    world = World(run)
    world.turn(seen.again)
    world.background.stop()
    world.loop.close()
    assert world.wrong == []
    assert "test failed; it runs again in 1 ms" in caplog.text


def test_an_assertion_in_a_later_turn_ends_the_worker():
    begun = asyncio.Event()

    async def wrong() -> None:
        begun.set()
        raise AssertionError("ours")

    world = World(wrong)
    world.turn(begun)
    world.loop.run_until_complete(asyncio.sleep(0.01))
    world.background.stop()
    world.loop.close()
    assert {str(trouble) for trouble in world.wrong} == {"ours"}
