"""Leaders with followers under every order of events that a seed makes (replication_world)."""

import shutil
import tempfile

import pytest

from tests.sim.replication_world import BROKERS, World, run
from tests.unit.log_world import batch

STEPS = 600


def ran(seed, steps=STEPS):
    directory = tempfile.mkdtemp(dir="/dev/shm")
    try:
        return run(seed, directory, steps)
    finally:
        shutil.rmtree(directory)


@pytest.mark.soak
def test_what_all_acknowledged_is_never_lost_and_all_catch_up(seeds):
    acked, wanted = 0, seeds(100, 5_000)
    for seed in wanted:
        try:
            acked += len(ran(seed).acked)
        except AssertionError as trouble:
            raise AssertionError(f"seed {seed}: {trouble}") from trouble
    assert acked > 2.4 * len(wanted)


class Order:
    """A world's `chance` in which everything arrives, and the first of several goes first."""

    def random(self):
        return 0.8

    def randrange(self, low, high=1):
        return 399 if high > 1 else 0


@pytest.mark.parametrize("isr", [(1, 2), (1,)], ids=str)
def test_a_proposal_of_a_dead_worker_comes_after_its_successor_has_asked(tmp_path, isr):
    """The successor asked for the ISR as it was, which changes nothing, and took the answer for the end of
    all earlier proposals. The old one came later, and added a replica without the records that were
    acknowledged in between."""
    world = World(1, str(tmp_path))
    world.chance = Order()
    one, two, three = (world.brokers[each] for each in BROKERS)
    world.change(leader=1, isr=isr)

    def learn():
        for broker in world.brokers.values():
            while broker.metadata:
                broker.learn()

    def fetch(*brokers):
        for broker in (*brokers, *brokers):
            world.fetch(broker)
            world.take_answer(broker)

    learn()
    fetch(three)
    (old,) = world.proposals
    assert [broker for broker, _ in old[3].isr] == [*isr, 3]
    one.succeed()
    world.proposals.remove(old)
    while world.proposals:
        world.judge()
    learn()
    base = one.log.append_client(batch(1), 1_000).base_offset
    fetch(two)
    if len(isr) > 1:
        assert one.log.high_watermark == base + 1
    world.proposals.append(old)
    world.judge()
    world.check()
    learn()
    fetch(two, three)
    while world.proposals:
        world.judge()
        learn()
        fetch(two, three)
    assert one.log.high_watermark == base + 1
    assert set(world.state.isr) == set(BROKERS)
    world.check()
