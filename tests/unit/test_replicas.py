"""Led partitions with followers: from the metadata and Fetches to AlterPartition, and back."""

import asyncio

import pytest

from kafkad.metadata.image import MetadataImage
from kafkad.metadata.replay import applied
from kafkad.net.channel import Unreachable
from kafkad.protocol import codec, errors, messages
from kafkad.replication.isr import Answer, Proposal
from kafkad.replication.replicas import Replicas
from kafkad.server.alter_partition import AlterPartitions
from tests.sim.replication_world import run_through
from tests.unit.log_world import batch
from tests.unit.test_assignments import change, placed
from tests.unit.test_metadata_image import DIR, broker
from tests.unit.test_partitions import BROKER, World, topic, topic_id

LAG_MS = 1000


class Leading(World):
    def __init__(self, root):
        super().__init__(root)
        self.now_ms = 10_000
        self.sent = []  # (partition, proposal, done)
        self.replicas = Replicas(BROKER, self.send, lambda: self.image, lambda: self.now_ms)
        self.replicas.lag_ms_max = LAG_MS
        self.partitions.on_role = self.replicas.on_role
        self.partitions.on_dropped = self.replicas.on_dropped
        self.commit(*(broker(each, epoch=10 + each, fenced=False) for each in (1, 2, 3)))

    def send(self, topic_id, index, proposal, done):
        self.sent.append((index, proposal, done))

    def commit(self, *records):
        self.image, delta = applied(self.image, records)
        self.partitions.apply_delta(delta, self.image)
        if delta.brokers_changed:
            run_through(self.replicas.follow_brokers())

    def create(self, *, isr=(1, 2, 3)):
        record = placed("t", 0, [1, 2, 3], 1)
        record.isr = list(isr)
        self.commit(*topic("t")[:1], record)
        self.log = self.partitions.get("t", 0)
        return self.log

    def fetch(self, broker_id, offset):
        return self.log.native.note_fetch(broker_id, 10 + broker_id, offset, 0, self.now_ms)

    @property
    def isr(self):
        return self.replicas.isr("t", 0)


@pytest.fixture
def world(tmp_path):
    return Leading(tmp_path)


def test_a_follower_that_caught_up_is_proposed_and_added_when_the_controller_says_so(world):
    log = world.create(isr=(1, 2))
    log.append_client(batch(2), 1_000)
    world.fetch(2, 2)
    world.fetch(3, 2)
    ((index, proposal, done),) = world.sent
    assert (index, proposal.isr) == (0, ((1, 11), (2, 12), (3, 13)))
    assert (world.isr.committed, world.isr.maximal) == ((1, 2), (1, 2, 3))
    log.append_client(batch(1), 1_000)
    world.fetch(2, 3)
    assert log.high_watermark == 2  # it binds already
    done(0, Answer(1, 0, (1, 2, 3), 1))
    assert world.isr.committed == (1, 2, 3)
    world.fetch(3, 3)
    assert log.high_watermark == 3
    assert len(world.sent) == 1


def test_one_that_lags_is_proposed_to_leave_and_hw_moves_when_it_has_left(world):
    log = world.create()
    log.append_client(batch(2), 1_000)
    world.now_ms += LAG_MS + 1
    world.fetch(2, 2)
    run_through(world.replicas.tick())
    ((_, proposal, done),) = world.sent
    assert proposal.isr == ((1, 11), (2, 12))
    assert log.high_watermark == 0
    run_through(world.replicas.tick())
    assert len(world.sent) == 1  # one in flight
    done(0, Answer(1, 0, (1, 2), 1))
    assert log.high_watermark == 2


def test_what_the_controller_refuses_is_proposed_anew_by_a_later_fetch(world):
    log = world.create(isr=(1, 2))
    log.append_client(batch(2), 1_000)
    world.fetch(3, 2)
    world.sent.pop()[2](errors.INELIGIBLE_REPLICA, None)
    assert world.isr.maximal == (1, 2)
    world.fetch(3, 2)
    assert len(world.sent) == 1


def test_other_errors_send_the_same_again(world):
    log = world.create(isr=(1, 2))
    log.append_client(batch(2), 1_000)
    world.fetch(3, 2)
    _, proposal, done = world.sent.pop()
    done(errors.NOT_CONTROLLER, None)
    assert world.sent[0][1] is proposal


def test_metadata_in_between_makes_an_answer_void(world):
    log = world.create(isr=(1, 2))
    log.append_client(batch(2), 1_000)
    world.fetch(3, 2)
    world.commit(change("t", 0, isr=[1]))
    assert [proposal.isr for _, proposal, _ in world.sent[1:]] == [((1, 11), (3, 13))]  # it is still in sync
    world.sent[0][2](0, Answer(1, 0, (1, 2, 3), 2))
    assert world.isr.committed == (1,)
    assert world.isr.pending is world.sent[1][1]


def test_a_fenced_broker_may_not_join_until_it_is_unfenced(world):
    log = world.create(isr=(1, 2))
    world.commit(messages.FenceBrokerRecord(id=3, epoch=13))
    log.append_client(batch(1), 1_000)
    world.fetch(3, 1)
    assert world.sent == []
    world.commit(messages.UnfenceBrokerRecord(id=3, epoch=13))
    assert len(world.sent) == 1  # what it fetched a moment ago is enough
    world.fetch(3, 1)
    assert len(world.sent) == 1


@pytest.mark.parametrize("metadata_first", [True, False])
def test_a_second_follower_that_caught_up_is_proposed_when_the_first_is_added(world, metadata_first):
    """It does not wait for its next Fetch, which may be half a second away."""
    log = world.create(isr=(1,))
    log.append_client(batch(2), 1_000)
    world.fetch(2, 2)
    world.fetch(3, 2)
    ((_, proposal, done),) = world.sent
    assert proposal.isr == ((1, 11), (2, 12))
    if metadata_first:
        world.commit(change("t", 0, isr=[1, 2]))
    done(0, Answer(1, 0, (1, 2), 1))
    assert [proposal.isr for _, proposal, _ in world.sent[1:]] == [((1, 11), (2, 12), (3, 13))]
    world.sent[-1][2](0, Answer(1, 0, (1, 2, 3), 2))
    assert len(world.sent) == 2 and world.isr.committed == (1, 2, 3)


def test_a_follower_that_has_not_fetched_for_long_is_not_proposed(world):
    log = world.create(isr=(1,))
    log.append_client(batch(2), 1_000)
    world.fetch(2, 2)
    world.fetch(3, 2)
    world.now_ms += LAG_MS + 1
    world.sent[0][2](0, Answer(1, 0, (1, 2), 1))
    assert len(world.sent) == 1
    world.fetch(3, 2)
    assert len(world.sent) == 2


def test_hw_does_not_wait_for_a_follower_whose_log_directory_has_failed(world):
    """The controller removes it from the ISR at once. It was caught up a moment ago."""
    good, bad = b"g" * 16, b"b" * 16
    log = world.create()
    world.commit(
        broker(3, epoch=13, fenced=False, log_dirs=[good, bad]),
        change("t", 0, replicas=[1, 2, 3], directories=[DIR, DIR, bad]),
    )
    log.append_client(batch(2), 1_000)
    world.fetch(2, 2)
    world.fetch(3, 2)
    assert log.high_watermark == 2
    log.append_client(batch(1), 1_000)
    world.fetch(2, 3)
    assert log.high_watermark == 2
    world.commit(
        change("t", 0, isr=[1, 2]),
        messages.BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=13, log_dirs=[good]),
    )
    assert log.high_watermark == 3
    world.fetch(3, 3)
    assert world.sent == []  # it may not join


def test_who_does_not_lead_proposes_nothing(world):
    world.create()
    world.commit(change("t", 0, leader=2))
    world.now_ms += 100 * LAG_MS
    run_through(world.replicas.tick())
    assert (world.sent, len(world.replicas)) == ([], 0)
    world.commit(change("t", 0, leader=1))
    assert len(world.replicas) == 1
    world.commit(change("t", 0, replicas=[2, 3], isr=[2], leader=2, directories=[bytes(16)] * 2))
    assert len(world.replicas) == 0


def succeed(world):
    """The worker that owns the log is killed. What it has sent may still arrive."""
    world.replicas = Replicas(BROKER, world.send, lambda: world.image, lambda: world.now_ms)
    world.replicas.lag_ms_max = LAG_MS
    world.replicas.inherits = True
    world.partitions.on_role = world.replicas.on_role
    world.replicas.on_role(world.log, world.image.topics["t"].partitions[0])
    world.replicas.inherits = False


def test_who_takes_a_dead_process_place_has_its_last_proposal_refused(world):
    """HW stands for every active replica until the partition epoch has changed."""
    log = world.create(isr=(1, 2))
    log.append_client(batch(1), 1_000)
    world.fetch(3, 0)
    assert len(world.sent) == 1
    succeed(world)
    index, proposal, done = world.sent[1]
    assert (index, proposal.isr, proposal.partition_epoch) == (0, ((2, -1), (1, 11)), 0)
    world.fetch(2, 1)
    assert log.high_watermark == 0
    done(0, Answer(1, 0, (2, 1), 1))
    assert log.high_watermark == 1
    world.fetch(3, 1)
    assert world.sent[2][1].isr == ((2, 12), (1, 11), (3, 13))


def test_who_takes_a_dead_process_place_is_answered_after_the_metadata(world):
    """HW waited for a follower that does not come, and the ISR changed its order again and again."""
    log = world.create(isr=(1, 2))
    log.append_client(batch(1), 1_000)
    world.fetch(3, 0)
    succeed(world)
    world.fetch(2, 1)
    world.commit(change("t", 0, isr=[2, 1]))
    assert (world.isr.maximal, log.high_watermark) == ((2, 1, 3), 0)
    world.sent[1][2](0, Answer(1, 0, (2, 1), 1))
    assert (world.isr.maximal, log.high_watermark) == ((2, 1), 1)
    world.commit(change("t", 0, isr=[1, 2]))
    world.sent[2][2](0, Answer(1, 0, (1, 2), 2))
    assert (len(world.sent), world.isr.pending) == (3, None)


def test_one_that_takes_the_place_of_a_leader_alone_waits_for_who_may_have_been_added(world):
    log = world.create(isr=(1,))
    log.append_client(batch(1), 1_000)
    world.fetch(3, 1)
    log.append_client(batch(1), 1_000)
    succeed(world)
    _, proposal, done = world.sent[1]
    assert proposal.isr == ((1, 11),)
    done(0, Answer(1, 0, (1,), 0))
    assert (world.isr.maximal, log.high_watermark) == ((1, 2, 3), 1)
    world.fetch(3, 2)
    _, proposal, done = world.sent[2]
    assert proposal.isr == ((1, 11), (3, 13))
    assert log.high_watermark == 1
    done(0, Answer(1, 0, (1, 3), 1))
    assert (world.isr.maximal, log.high_watermark) == ((1, 3), 2)


@pytest.mark.parametrize("then", ["lags", "is fenced"])
def test_one_that_may_have_been_added_and_does_not_come_is_not_waited_for_for_long(world, then):
    log = world.create(isr=(1,))
    world.fetch(3, 0)
    log.append_client(batch(1), 1_000)
    succeed(world)
    world.now_ms += LAG_MS + 1
    run_through(world.replicas.tick())
    assert log.high_watermark == 0  # the controller has not answered
    world.now_ms -= LAG_MS + 1
    world.sent[1][2](0, Answer(1, 0, (1,), 0))
    run_through(world.replicas.tick())
    assert log.high_watermark == 0
    if then == "lags":
        world.now_ms += LAG_MS + 1
        run_through(world.replicas.tick())
    else:
        world.commit(*(broker(each, epoch=10 + each, fenced=True) for each in (2, 3)))
    assert (world.isr.maximal, log.high_watermark) == ((1,), 1)


def test_who_takes_a_dead_process_place_asks_the_controller_for_its_isr(world):
    """The dead process may have known an answer that is not in the metadata yet."""
    log = world.create(isr=(1, 2))
    succeed(world)
    ((_, proposal, done),) = world.sent
    assert proposal.isr == ((1, 11), (2, -1))
    log.append_client(batch(1), 1_000)
    world.fetch(2, 1)
    assert (world.isr.maximal, log.high_watermark) == ((1, 2, 3), 0)
    done(errors.INVALID_UPDATE_VERSION, None)
    world.commit(change("t", 0, isr=[1]))
    assert (world.isr.maximal, log.high_watermark) == ((1, 2, 3), 0)
    _, proposal, done = world.sent[1]
    assert (proposal.isr, proposal.partition_epoch) == (((1, 11),), 1)
    done(0, Answer(1, 0, (1,), 1))
    assert (world.isr.maximal, log.high_watermark) == ((1, 2), 1)  # 3 is not waited for, and 2 joins


def test_who_takes_a_dead_process_place_asks_nothing_where_all_are_in_sync(world):
    world.create()
    succeed(world)
    assert world.sent == []


# -- AlterPartition on its way -----------------------------------------------------------------------------


class Controller:
    """Answers AlterPartition with `answers`, one after the other; the requests in `asked`."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def ask(self, request, *, lowest):
        assert lowest == 3
        codec.encode_request(request, 3, 1, "t")
        rows = [(t.topic_id, p.partition_index) for t in request.topics for p in t.partitions]
        self.asked.append(rows)
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, Exception):
            raise answer
        cls = messages.AlterPartitionResponse
        if answer is None:
            return cls(error_code=errors.STALE_BROKER_EPOCH)
        codes = answer if isinstance(answer, dict) else dict.fromkeys(rows, answer)
        topics = [
            cls.Topics(
                topic_id=topic_id,
                partitions=[
                    cls.Topics.Partitions(
                        partition_index=index, error_code=codes[topic_id, index], leader_id=1, isr=[1, 2]
                    )
                ],
            )
            for topic_id, index in rows
            if (topic_id, index) in codes
        ]
        return cls(topics=topics)


def run(controller, *partitions, until):
    """Sends a proposal for each of `partitions`; (partition, code) of what was told."""

    async def scenario():
        told, tasks = [], set()
        queue = AlterPartitions(
            controller.ask, lambda work: tasks.add(asyncio.ensure_future(work)), broker_id=1, epoch=lambda: 5
        )
        for index in partitions:
            queue.send(T, index, PROPOSAL, lambda code, answer, index=index: told.append((index, code)))
        async with asyncio.timeout(10):
            while len(told) < until:
                await asyncio.sleep(0.01)
        return told

    return asyncio.run(scenario())


T = topic_id("t")
PROPOSAL = Proposal(((1, 5), (2, -1)), 0, 0)


def test_all_that_wait_go_with_one_request():
    controller = Controller()
    assert run(controller, 0, 1, 2, until=3) == [(0, 0), (1, 0), (2, 0)]
    assert controller.asked == [[(T, 0), (T, 1), (T, 2)]]


def test_a_request_that_fails_is_sent_again_until_a_controller_answers():
    controller = Controller(Unreachable("nobody"), None)
    assert run(controller, 0, until=1) == [(0, 0)]
    assert len(controller.asked) == 3


def test_controllers_that_refuse_every_request_are_logged_once(caplog):
    """It is sent again every 50 ms. For example, the broker has been unregistered."""
    controller = Controller(*[None] * 4)
    assert run(controller, 0, until=1) == [(0, 0)]
    assert len(controller.asked) == 5
    assert sum("could not be changed" in each.getMessage() for each in caplog.records) == 1


def test_a_partition_that_is_missing_in_the_answer_is_asked_again():
    controller = Controller({(T, 0): 0})
    assert run(controller, 0, 1, until=2) == [(0, 0), (1, 0)]
    assert controller.asked == [[(T, 0), (T, 1)], [(T, 1)]]


def test_an_error_of_one_partition_is_told():
    controller = Controller({(T, 0): errors.FENCED_LEADER_EPOCH})
    assert run(controller, 0, until=1) == [(0, errors.FENCED_LEADER_EPOCH)]


def test_a_world_without_brokers_has_no_eligible_follower(tmp_path):
    world = Leading(tmp_path)
    world.image = MetadataImage("cluster", BROKER)
    log = world.create(isr=(1,))
    log.append_client(batch(1), 1_000)
    world.fetch(3, 1)
    assert world.sent == []
