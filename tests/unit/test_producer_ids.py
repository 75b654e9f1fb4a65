"""Producer ids out of blocks: the next block is there before the last one is used up."""

import asyncio

import pytest

from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from kafkad.server.producer_ids import ProducerIds


class Controller:
    """Gives blocks of 20, at once or when it is told to."""

    def __init__(self, *, waits=False):
        self.waits = waits
        self.blocks = 0
        self.asked = []
        self.refuses = False

    def allocate_producer_ids(self):
        if self.refuses:
            raise KafkaError(errors.REQUEST_TIMED_OUT)
        self.blocks += 1
        block = (self.blocks * 1000, 20)
        if not self.waits:
            return block
        self.asked.append((asyncio.get_running_loop().create_future(), block))
        return self.asked[-1][0]

    async def answer(self):
        for future, block in self.asked:
            future.set_result(block)
        self.asked = []
        await asyncio.sleep(0)


EXPECTED = [*range(1000, 1020), *range(2000, 2020), *range(3000, 3005)]


def test_all_ids_of_all_blocks_are_given_once():
    ids = ProducerIds(Controller())
    assert [ids.take() if number % 2 else ids.generate() for number in range(45)] == EXPECTED


def test_the_next_block_is_asked_for_when_a_tenth_is_left():
    controller = Controller()
    ids = ProducerIds(controller)
    counts = []
    for _ in range(20):
        ids.take()
        counts.append(controller.blocks)
    assert counts == [1] * 17 + [2] * 3


def test_who_cannot_wait_is_told_to_come_back_and_finds_an_id_then():
    async def scenario():
        controller = Controller(waits=True)
        ids = ProducerIds(controller)
        for _ in range(3):
            with pytest.raises(KafkaError) as refused:
                ids.take()
            assert refused.value.code == errors.COORDINATOR_LOAD_IN_PROGRESS
        assert len(controller.asked) == 1
        await controller.answer()
        taken = [ids.take() for _ in range(20)]
        with pytest.raises(KafkaError):
            ids.take()
        waiting = ids.generate()
        await controller.answer()
        return [*taken, await waiting]

    assert asyncio.run(scenario()) == EXPECTED[:21]


@pytest.mark.timeout(20)
def test_one_who_asks_between_the_end_of_a_block_and_its_callback_gets_an_id():
    """Awaiting what is done gives the loop no turn: the broker awaited it again, for ever, and served nobody.
    Two producers that started together were enough."""

    async def scenario():
        controller = Controller(waits=True)
        ids = ProducerIds(controller)
        first = asyncio.ensure_future(ids.generate())
        late = asyncio.ensure_future(ids.generate())  # its task begins behind the block, before the callback
        asyncio.get_running_loop().call_soon(controller.asked[0][0].set_result, controller.asked[0][1])
        third = asyncio.ensure_future(ids.generate())
        found = sorted([await first, await late, await third])
        return found, controller.blocks

    assert asyncio.run(scenario()) == ([1000, 1001, 1002], 1)


@pytest.mark.parametrize("ask", ["take", "generate"])
def test_a_block_that_is_there_is_found_before_its_callback(ask):
    async def scenario():
        controller = Controller(waits=True)
        ids = ProducerIds(controller)
        with pytest.raises(KafkaError):
            ids.take()
        [(future, block)] = controller.asked
        future.set_result(block)
        taken = getattr(ids, ask)()
        assert (taken, ids.coming(), controller.blocks) == (1000, None, 1)
        await asyncio.sleep(0)
        return [taken, *(ids.take() for _ in range(16))]

    assert asyncio.run(scenario()) == EXPECTED[:17]


def test_who_can_wait_a_little_finds_one():
    async def scenario():
        controller = Controller(waits=True)
        ids = ProducerIds(controller)
        coming = ids.coming()
        assert coming is not None
        await controller.answer()
        await coming
        taken = ids.take()
        assert ids.coming() is None
        return taken

    assert asyncio.run(scenario()) == 1000
    assert ProducerIds(Controller()).coming() is None


def test_a_block_that_cannot_be_had_makes_nobody_wait_for_ever():
    async def scenario():
        controller = Controller(waits=True)
        ids = ProducerIds(controller)
        coming = ids.coming()
        controller.asked[0][0].set_exception(KafkaError(errors.REQUEST_TIMED_OUT))
        await coming
        with pytest.raises(KafkaError) as refused:
            ids.take()
        assert refused.value.code == errors.COORDINATOR_LOAD_IN_PROGRESS

    asyncio.run(scenario())


def test_a_block_that_comes_in_time_makes_nobody_wait():
    async def scenario():
        controller = Controller(waits=True)
        ids = ProducerIds(controller)
        first = ids.generate()
        await controller.answer()
        taken = [await first]
        for _ in range(44):
            taken.append(ids.take())
            await controller.answer()
        return taken

    assert asyncio.run(scenario()) == EXPECTED


def test_a_controller_that_refuses_the_next_block_does_not_take_back_this_one():
    controller = Controller()
    ids = ProducerIds(controller)
    ids.take()
    controller.refuses = True
    assert [ids.take() for _ in range(19)] == EXPECTED[1:20]
    with pytest.raises(KafkaError):
        ids.take()
    controller.refuses = False
    assert ids.take() == 2000
