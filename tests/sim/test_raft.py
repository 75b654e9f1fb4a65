"""KRaft quorums in a simulated world: elections, logs and snapshots, whatever happens to nodes and links."""

import logging
import random

import pytest

from kafkad.raft.elections import Role
from tests.sim.raft_world import Quorum


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """A simulation has nothing to tell the log, and its nodes never say what cannot be."""
    caplog.set_level(logging.ERROR, "kafkad.raft")
    yield
    assert [record.message for record in caplog.get_records("call")] == []


def trouble(world: Quorum, chance: random.Random) -> None:
    """One accident, one piece of work, or a mend."""
    up, down = sorted(world.nodes), sorted(set(world.all) - set(world.nodes))
    what = chance.randrange(100)
    if what < 45:
        node = chance.choice(world.leaders or up) if up else None
        if node is not None:
            world.append(node, chance.randint(1, 5))
    elif what < 55 and up:
        world.crash(chance.choice(up), power=chance.random() < 0.7)
    elif what < 70 and down:
        world.start(chance.choice(down))
    elif what < 76:
        world.isolate(chance.choice(world.all))
        world.say(f"cut {sorted(world.cut)}")
    elif what < 80 and len(world.all) > 1:
        one, other = chance.sample(world.all, 2)
        kind = chance.choice((world.cut, world.refusing))
        kind.add((one, other))
        world.say(f"{'cut' if kind is world.cut else 'refusing'} {one} to {other}")
    elif what < 88:
        world.heal()
        world.say("healed")
    elif what < 91 and world.leaders:
        world.nodes[chance.choice(world.leaders)].resign()
    elif what < 96 and up:
        world.snapshot(chance.choice(up))
    elif what < 98:
        world.flush_ms = (1, chance.choice((8, 8, 400)))
    else:
        world.net_ms = (1, chance.choice((15, 15, 120, 900)))


def change(world: Quorum, chance: random.Random) -> None:
    """A voter is added or removed, at whoever leads, or thinks so."""
    for leader in world.leaders[-1:]:
        voters = sorted(world.nodes[leader].voters)
        others = sorted(set(world.all) - set(voters))
        if others and (len(voters) < 2 or chance.random() < 0.6):
            world.add(leader, chance.choice(others), acked=chance.random() < 0.8)
        elif len(voters) > 1:
            world.remove(leader, chance.choice(voters))


def live(seed: int, *, dynamic: bool = False) -> Quorum:
    chance = random.Random(seed)
    voters, observers = chance.choice((1, 2, 3, 3, 3, 4, 5)), chance.choice((0, 0, 1, 2))
    world = Quorum(seed, voters, observers + dynamic, dynamic=dynamic)
    try:
        world.run(chance.choice((0, 3_000)))
        for _ in range(60):
            trouble(world, chance)
            if dynamic and chance.random() < 0.3:
                change(world, chance)
            world.run(chance.choice((1, 20, 100, 500, 3_000)))
        world.flush_ms, world.net_ms = (1, 8), (1, 15)
        world.settle()
    except Exception as failure:
        failure.add_note(f"seed {seed}:\n" + "\n".join(world.told[-60:]))
        raise
    return world


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_whatever_happens_nothing_committed_is_lost(seeds):
    committed = 0
    for seed in seeds(440, 10_000):
        committed += live(seed).checks.end
    assert committed > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_voters_come_and_go_and_nothing_committed_is_lost(seeds):
    committed, sets = 0, set()
    for seed in seeds(60, 10_000):
        world = live(seed, dynamic=True)
        committed += world.checks.end
        sets |= {tuple(node.voters) for node in world.nodes.values()}
    assert committed > 0 and len(sets) > 8


@pytest.mark.parametrize("voters", [1, 2, 3, 4, 5])
def test_a_leader_is_elected_and_stays(voters):
    for seed in range(10):
        world = Quorum(seed, voters)
        world.run(10_000)
        (leader,) = world.leaders
        epoch = world.nodes[leader].epoch
        world.append(leader)
        world.run(60_000)
        assert world.leaders == [leader]
        assert {node.epoch for node in world.nodes.values()} == {epoch}


def test_another_leads_when_the_leader_is_gone():
    for seed in range(10):
        world = Quorum(seed, 3)
        world.run(10_000)
        (leader,) = world.leaders
        world.append(leader)
        world.run(1_000)
        world.crash(leader)
        world.run(10_000)
        (other,) = world.leaders
        assert other != leader
        world.settle()


def test_a_leader_that_resigns_is_followed_at_once():
    for seed in range(10):
        world = Quorum(seed, 3)
        world.run(10_000)
        (leader,) = world.leaders
        world.append(leader)
        world.run(1_000)
        world.nodes[leader].resign()
        world.run(600)
        assert world.leaders
        assert leader not in world.leaders
        world.settle()


def test_one_that_was_cut_off_disturbs_nobody_when_it_comes_back():
    """KIP-996: without a pre-vote its higher epoch would end the leader's."""
    for seed in range(10):
        world = Quorum(seed, 3)
        world.run(10_000)
        (leader,) = world.leaders
        epoch = world.nodes[leader].epoch
        cut_off = next(each for each in world.voters if each != leader)
        world.isolate(cut_off)
        world.run(60_000)
        world.append(leader)
        world.heal()
        world.run(20_000)
        assert world.leaders == [leader]
        assert world.nodes[leader].epoch == epoch
        assert world.nodes[cut_off].role is Role.FOLLOWER
        world.settle()


def test_a_leader_without_a_majority_resigns():
    """KIP-996 and check quorum: clients are not kept by one that can commit nothing."""
    world = Quorum(7, 3)
    world.run(10_000)
    (leader,) = world.leaders
    world.isolate(leader)
    world.run(3_200)
    assert world.nodes[leader].role is not Role.LEADER
    world.run(5_000)
    assert len(world.leaders) == 1
    world.settle()


def test_one_that_lost_its_disk_fetches_a_snapshot():
    world = Quorum(3, 3, observers=1)
    world.run(10_000)
    (leader,) = world.leaders
    for _ in range(30):
        world.append(leader, 3)
        world.run(50)
    world.run(2_000)
    world.snapshot(leader)
    newcomer = 4
    world.crash(newcomer)
    world.disks[newcomer] = type(world.disks[newcomer])()
    world.checks.epochs.pop(newcomer)
    world.start(newcomer)
    world.run(5_000)
    assert world.disks[newcomer].snapshots.keys() == world.disks[leader].snapshots.keys()
    world.settle()


@pytest.mark.parametrize("voters", [3, 5])
def test_a_leader_whose_process_died_has_a_successor_long_before_its_time_out(voters):
    for seed in range(20):
        world = Quorum(seed, voters)
        world.run(10_000)
        (leader,) = world.leaders
        epoch = world.nodes[leader].epoch
        world.crash(leader)
        world.run(600)  # of 2,000, the fetch time-out
        (successor,) = world.leaders
        assert world.nodes[successor].epoch == epoch + 1
        world.settle()


def test_a_leader_without_power_has_a_successor_after_its_time_out():
    world = Quorum(1, 3)
    world.run(10_000)
    (leader,) = world.leaders
    world.crash(leader, power=False)
    world.run(1_000)
    assert not world.leaders
    world.run(10_000)
    assert world.leaders


def test_a_leader_that_refuses_one_follower_stays():
    for seed in range(20):
        world = Quorum(seed, 3)
        world.run(10_000)
        (leader,) = world.leaders
        epoch = world.nodes[leader].epoch
        world.refusing.add((world.chance.choice([each for each in world.all if each != leader]), leader))
        world.run(30_000)
        assert world.leaders == [leader] and world.nodes[leader].epoch == epoch
        world.settle()
        assert world.leaders == [leader]
