"""When a leader gives partitions back to their preferred leader, and what it does when that does not work."""

import asyncio

import pytest

from kafkad.metadata.image import BrokerRegistration, MetadataImage, PartitionState, Topic
from kafkad.net.channel import Unreachable
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server import preferred_leaders
from kafkad.server.preferred_leaders import PreferredLeaders

ME, OTHER = 1, 2
DELAY_S = 0.02
Answer = messages.ElectLeadersResponse


class World:
    """Partitions 0 to 2 of "t": broker 2 should lead the first two, and only the first has it in sync."""

    def __init__(self):
        self.image = MetadataImage()
        self.image.brokers = {broker: registration(broker) for broker in (ME, OTHER)}
        parts = {
            0: part((OTHER, ME), (OTHER, ME)),
            1: part((OTHER, ME), (ME,)),
            2: part((ME, OTHER), (ME, OTHER)),
        }
        self.image.topics = {"t": Topic("t", bytes(16), parts)}
        self.accepted = 0
        self.accepts = True
        self.drains = True
        self.answers = []  # of the controller; afterwards it elects
        self.refuses = errors.NONE  # each partition
        self.held, self.asked = [], []
        self.leaders = PreferredLeaders(
            ME, lambda: self.image, delay_s=DELAY_S, heartbeats=self.heartbeats, hold=self.hold, ask=self.ask
        )

    def heartbeats(self):
        self.accepted += self.accepts
        return self.accepted

    async def hold(self, moving):
        self.held.append(moving)
        return self.drains

    async def ask(self, request, *, timeout_s):
        self.asked.append({topic.topic: topic.partitions for topic in request.topic_partitions})
        assert request.election_type == 0
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, Exception):
            raise answer
        cls = Answer.ReplicaElectionResults
        part, each = cls.PartitionResult, self.refuses
        rows = [
            cls(topic=name, partition_result=[part(partition_id=at, error_code=each) for at in indexes])
            for name, indexes in self.asked[-1].items()
        ]
        return Answer(error_code=answer, replica_election_results=[] if answer else rows)

    async def run(self, until, seconds=20):
        """Whether it has ended by itself when `until()` holds."""
        task = asyncio.create_task(self.leaders.run())
        async with asyncio.timeout(seconds):
            while not until() and not task.done():
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        ended = task.done()
        if ended:
            task.result()
        task.cancel()
        await asyncio.wait([task])
        return ended


def registration(broker):
    return BrokerRegistration(
        broker, 1, bytes(16), {}, {}, None, fenced=False, in_controlled_shutdown=False,
        migrating_from_zk=False, directories=(), cordoned_directories=None,
    )  # fmt: skip


def part(replicas, isr):
    return PartitionState(ME, 3, replicas, isr, (bytes(16),) * 2, 7)


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(preferred_leaders, "LOOK_S", 0.005)
    monkeypatch.setattr(preferred_leaders, "PAUSE_S", 0.01)
    return World()


def delays(caplog):
    return [
        float(line.rpartition(" next in ")[2].split()[0]) for line in caplog.messages if " next in " in line
    ]


def test_only_what_another_should_lead_and_can_is_given_back(world):
    assert not asyncio.run(world.run(lambda: world.asked))
    assert world.held[0] == [("t", 0)]
    assert world.asked[0] == {"t": [0]}


def test_logs_that_are_not_drained_are_not_given_back(world, caplog):
    """A batch that the new leader takes would overtake one that is not replicated yet."""
    caplog.set_level("INFO", "kafkad")
    world.drains = False
    assert not asyncio.run(world.run(lambda: len(world.held) >= 3))
    assert world.asked == []
    assert delays(caplog)[:3] == [DELAY_S * 2, DELAY_S * 4, DELAY_S * 8]
    world.drains = True
    assert not asyncio.run(world.run(lambda: world.asked))
    assert world.asked[0] == {"t": [0]}


@pytest.mark.parametrize(
    "trouble", [Unreachable("no controller"), KafkaError(errors.REQUEST_TIMED_OUT), errors.NOT_CONTROLLER]
)
def test_an_election_that_fails_is_asked_again_later(world, trouble, caplog):
    caplog.set_level("INFO", "kafkad")
    world.answers = [trouble, trouble]
    assert not asyncio.run(world.run(lambda: len(world.asked) >= 4))
    assert delays(caplog) == [DELAY_S * 2, DELAY_S * 4]  # and after an election the first delay again


def test_partitions_whose_election_is_refused_are_held_ever_more_rarely(world, caplog):
    caplog.set_level("INFO", "kafkad")
    world.refuses = errors.PREFERRED_LEADER_NOT_AVAILABLE
    assert not asyncio.run(world.run(lambda: len(world.asked) >= 3))
    assert delays(caplog)[:2] == [DELAY_S * 2, DELAY_S * 4]
    assert "PREFERRED_LEADER_NOT_AVAILABLE" in caplog.text


def test_a_partition_that_has_been_given_back_meanwhile_is_no_trouble(world, caplog):
    caplog.set_level("INFO", "kafkad")
    world.refuses = errors.ELECTION_NOT_NEEDED
    assert not asyncio.run(world.run(lambda: len(world.asked) >= 2))
    assert delays(caplog) == []


@pytest.mark.parametrize("denied", [errors.CLUSTER_AUTHORIZATION_FAILED, errors.UNSUPPORTED_VERSION])
def test_who_may_not_elect_leaves_it_to_the_controllers(world, denied):
    world.answers = [KafkaError(denied) if denied == errors.UNSUPPORTED_VERSION else denied]
    assert asyncio.run(world.run(lambda: world.asked))
    assert len(world.asked) == 1


def test_nothing_is_held_while_heartbeats_are_not_accepted(world):
    world.accepts = False
    asked = []  # each look asks twice
    heartbeats = world.leaders._heartbeats
    world.leaders._heartbeats = lambda: asked.append(heartbeats()) or asked[-1]
    assert not asyncio.run(world.run(lambda: len(asked) > 20))
    assert world.held == []
    world.accepts = True
    assert not asyncio.run(world.run(lambda: world.held))
