"""Long work in short turns: what is small is done at once, what is long leaves room for the others."""

import asyncio
import inspect

import pytest

from kafkad.server import turns
from kafkad.server.turns import QUANTUM_S, TURN_S, Turns

STEP_S = 0.0001


class World:
    """A clock that only the work moves, and turns on a real loop."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns = Turns(asyncio.get_running_loop(), lambda: self.now_s)
        self.log: list[str] = []

    def work(self, name: str, steps: int, result=None):
        for _ in range(steps):
            self.now_s += STEP_S
            self.log.append(name)
            yield
        return name if result is None else result


def test_small_work_is_done_at_once():
    async def main():
        world = World()
        assert world.turns.run(world.work("a", 10)) == "a"
        assert len(world.turns) == 0

    asyncio.run(main())


def test_long_work_gives_the_loop_back_after_each_turn():
    async def main():
        world = World()
        begun, longest = [0.0], [0.0]

        def other_turns():
            longest[0] = max(longest[0], world.now_s - begun[0])
            begun[0] = world.now_s
            asyncio.get_running_loop().call_soon(other_turns)

        other_turns()
        answer = world.turns.run(world.work("a", 1_000))
        assert inspect.isawaitable(answer)
        assert await answer == "a"
        assert TURN_S <= longest[0] <= TURN_S + 2 * STEP_S

    asyncio.run(main())


def test_the_budget_of_a_turn_is_shared_by_all_who_ask():
    """40 clients that ask at once do not get 40 turns before the next round of the reactor."""

    async def main():
        world = World()
        answers = [world.turns.run(world.work(str(i), 200)) for i in range(40)]
        assert world.now_s <= TURN_S + STEP_S
        assert await asyncio.gather(*answers) == [str(i) for i in range(40)]

    asyncio.run(main())


def test_many_small_pieces_share_it_too():
    async def main():
        world = World()
        answers = [world.turns.run(world.work(str(i), 20)) for i in range(40)]
        assert world.now_s <= TURN_S + 20 * STEP_S
        waiting = [answer for answer in answers if inspect.isawaitable(answer)]
        assert waiting
        await asyncio.gather(*waiting)
        assert world.turns.run(world.work("later", 1)) == "later"

    asyncio.run(main())


def test_short_work_does_not_wait_for_the_end_of_long_work():
    async def main():
        world = World()
        long = asyncio.ensure_future(world.turns.run(world.work("long", 10_000)))
        short = await world.turns.run(world.work("short", 1))
        assert short == "short" and not long.done()
        assert world.log.count("long") * STEP_S <= 2 * TURN_S + 2 * QUANTUM_S
        await long

    asyncio.run(main())


@pytest.mark.parametrize("steps", [1, 500])
def test_what_the_work_raises_is_raised(steps):
    async def main():
        world = World()

        def failing():
            yield from world.work("a", steps)
            raise ValueError("so")

        with pytest.raises(ValueError, match="so"):
            answer = world.turns.run(failing())
            assert steps > 100
            await answer

    asyncio.run(main())


@pytest.mark.parametrize("steps", [1, 500])
def test_a_result_that_must_be_waited_for(steps):
    async def main():
        world = World()

        async def slow():
            await asyncio.sleep(0)
            return "there"

        assert await world.turns.run(world.work("a", steps, slow())) == "there"

    asyncio.run(main())


def test_work_that_nobody_waits_for_any_more():
    async def main():
        world = World()
        task = asyncio.ensure_future(world.turns.run(world.work("a", 500)))
        await asyncio.sleep(0)
        task.cancel()
        assert await world.turns.run(world.work("b", 500)) == "b"

    asyncio.run(main())


def test_the_heap_is_trimmed_once_behind_much_work():
    async def main():
        world = World()
        trims = []
        world.turns.on_idle = lambda: trims.append(len(world.turns))
        assert world.turns.run(world.work("small", 10)) == "small"
        await world.turns.run(world.work("two turns", 80))
        await asyncio.sleep(0)
        assert trims == []
        both = [world.turns.run(world.work(name, 1000)) for name in ("a", "b")]
        assert await asyncio.gather(*both) == ["a", "b"]
        await asyncio.sleep(0)
        assert trims == [0]

    asyncio.run(main())


def test_only_long_work_makes_its_objects_in_the_heap(monkeypatch):
    """Work that fits into the turn at hand is short: its objects come from CPython's arenas."""

    async def main():
        world = World()
        assert world.turns.run(world.work("short", 40)) == "short"
        assert not used
        assert await world.turns.run(world.work("long", 10_000)) == "long"
        assert used == [True, False] * (len(used) // 2)
        with pytest.raises(ZeroDivisionError):
            await world.turns.run(failing(world))
        assert now == [False]

    def failing(world):
        yield from world.work("a", 10_000)
        raise ZeroDivisionError

    def use_heap(wanted):
        before = now.pop()
        now.append(wanted)
        used.append(wanted)
        return before

    now, used = [False], []
    monkeypatch.setattr(turns, "use_heap", use_heap)
    asyncio.run(main())


def test_freed_blocks_are_merged_at_once_during_much_work_and_for_a_while_after_it(monkeypatch):
    async def main():
        world = World()
        assert await world.turns.run(world.work("a little", 100)) == "a little"
        assert not told
        for _ in range(2):
            assert await world.turns.run(world.work("much", 40_000)) == "much"
            assert told == [True]
        while told == [True]:
            await asyncio.sleep(0.01)
        assert await world.turns.run(world.work("much", 40_000)) == "much"
        assert told == [True, False, True]

    told = []
    monkeypatch.setattr(turns, "MERGE_S", 0.2)
    monkeypatch.setattr(turns, "merge_freed_blocks", told.append)
    asyncio.run(main())
