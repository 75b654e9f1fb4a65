"""Controllers of a simulated quorum: what was answered stays, whatever fails."""

import logging
import random

import pytest

from kafkad.controller import quorum_controller
from tests.sim.controller_world import SESSION_MS, Controllers


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """A simulation has nothing to tell the log."""
    caplog.set_level(logging.CRITICAL, "kafkad")


def trouble(world: Controllers, chance: random.Random) -> None:
    up, down = sorted(world.nodes), sorted(set(world.all) - set(world.nodes))
    broker = chance.choice(list(world.brokers))
    what = chance.randrange(100)
    if what < 18:
        world.create_topic()
    elif what < 45:
        world.propose()
    elif what < 48:
        world.delete_topic()
    elif what < 53:
        world.take_ids()
    elif what < 60:
        world.kill_broker(broker)
    elif what < 69:
        world.start_broker(broker)
    elif what < 70:
        world.refuses(broker)
    elif what < 74:
        world.brokers[broker].leaving = True
    elif what < 80 and up:
        world.crash(chance.choice(up))
    elif what < 88 and down:
        world.start(chance.choice(down))
    elif what < 91:
        world.isolate(chance.choice(world.all))
    elif what < 95:
        world.heal()
    elif what < 97 and world.leaders:
        world.nodes[chance.choice(world.leaders)].resign()
    elif what < 99 and up:
        world.snapshot(chance.choice(up))
    else:
        world.flush_ms = (1, chance.choice((8, 8, 400)))


def live(seed: int) -> Controllers:
    chance = random.Random(seed)
    world = Controllers(seed, voters=chance.choice((1, 3, 3, 3, 5)), brokers=chance.randint(2, 5))
    try:
        world.run(chance.choice((0, 4_000)))
        for _ in range(50):
            trouble(world, chance)
            world.run(chance.choice((1, 20, 100, 500, 3_000)))
        world.flush_ms, world.net_ms = (1, 8), (1, 15)
        world.settle()
    except Exception as failure:
        failure.add_note(f"seed {seed}:\n" + "\n".join(world.told[-60:]))
        raise
    return world


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_whatever_happens_what_was_answered_stays(seeds):
    answered = 0
    for seed in seeds(45, 1_000):
        answered += live(seed).answered
    assert answered > 0


def test_the_same_holds_where_what_a_dead_broker_leads_comes_first(rounds, monkeypatch):
    monkeypatch.setattr(quorum_controller, "MANY", 0)
    assert sum(live(seed).answered for seed in range(10_000, 10_000 + rounds(5, 100))) > 0


def test_brokers_and_topics_survive_every_leader_in_turn():
    world = Controllers(1, voters=3, brokers=3)
    world.run(8_000)
    for _ in range(4):
        for _ in range(5):
            world.create_topic()
        world.run(1_000)
        (leader,) = world.leaders
        world.crash(leader)
        world.run(6_000)
        world.start(leader)
        world.run(2_000)
    world.settle()
    assert world.answered >= 15
    epochs = {broker.epoch for broker in world.brokers.values()}
    assert len(epochs) == 3  # nobody had to register again
    assert all(broker.incarnation == 0 for broker in world.brokers.values())


def test_a_broker_that_died_is_fenced_before_its_session_ends_and_comes_back():
    world = Controllers(1, voters=3, brokers=3)
    world.run(8_000)
    (leader,) = world.leaders
    controller = world.controllers[leader]
    epoch = world.brokers[1].epoch
    world.brokers[1].alive = False
    world.run(100)  # its last heartbeat arrives
    world.refuses(1)
    world.run(200)
    assert controller.image.brokers[1].fenced
    world.start_broker(1)  # which is no duplicate of the one before
    world.run(2_000)
    assert not controller.image.brokers[1].fenced and world.brokers[1].epoch > epoch


def test_a_broker_that_is_fenced_by_mistake_is_unfenced_by_its_next_heartbeat():
    world = Controllers(2, voters=3, brokers=3)
    world.run(8_000)
    (leader,) = world.leaders
    controller = world.controllers[leader]
    epoch = world.brokers[1].epoch
    world.refuses(1)
    assert controller.head.brokers[1].fenced
    world.run(2_000)
    assert not controller.image.brokers[1].fenced and world.brokers[1].epoch == epoch


def test_a_broker_that_was_told_to_stop_may_register_before_its_session_would_have_ended():
    world = Controllers(1, voters=1, brokers=3)
    world.run(8_000)
    broker = world.brokers[1]
    before = broker.epoch
    assert before >= 0
    broker.leaving = True
    while broker.alive:
        world.run(10)
        assert world.now < 60_000
    world.start_broker(1)
    world.run(SESSION_MS // 2)
    assert broker.epoch > before
