"""How the coordinator's costs grow with groups, members, offsets and topics: counted in calls of functions,
Python's and native ones, at N, 4 N and 16 N, so that a busy machine changes nothing.

Each row is linear or constant; and what works in steps never does much in one of them (HUNTS S3, S4, S7)."""

import inspect
import itertools
import sys
from types import SimpleNamespace

import pytest
from coordinator_world import World, protocol, subscription

from bench import growth_kinds
from kafkad.api import coordinators, groups, offsets
from kafkad.api.context import RequestContext
from kafkad.metadata.image import MetadataImage
from kafkad.protocol import codec, errors, messages

N = 40
STEP_CALLS_MAX = 20_000  # about 5 ms

TOPIC_ID = bytes(range(16))


class Calls:
    """Counts calls while it is entered; `largest` of those between two `mark`s."""

    def __init__(self):
        self.count = self.largest = self._marked = 0

    def __enter__(self):
        sys.setprofile(self._called)
        return self

    def __exit__(self, *exception):
        sys.setprofile(None)
        self.mark()

    def _called(self, frame, event, argument):
        if event in ("call", "c_call"):
            self.count += 1

    def mark(self):
        self.largest = max(self.largest, self.count - self._marked)
        self._marked = self.count


class Scene:
    """A coordinator with one partition; its slices end after each step, so that each can be counted."""

    def __init__(self):
        self.world = World(group_initial_rebalance_delay_ms=0)
        self.world.storage.partitions = 1
        self.world.start()
        ticks = itertools.count()
        ticking = SimpleNamespace(monotonic_ms=lambda: next(ticks))
        self.slices = self.world.coordinator._slices, self.world.coordinator._unloads
        for slices in self.slices:
            slices._clock = ticking
        self.image = MetadataImage()
        self.services = SimpleNamespace(
            config=self.world.config, groups=self.world.coordinator, metadata=self, controller=self
        )
        self.calls = Calls()

    def auto_create(self, names):
        return {}

    @property
    def coordinator(self):
        return self.world.coordinator

    def commit(self, group, topics=("t",), partitions=1, topic_id=TOPIC_ID):
        Topics = messages.OffsetCommitRequest.Topics
        request = messages.OffsetCommitRequest(
            group_id=group,
            topics=[
                Topics(
                    name=topic,
                    topic_id=topic_id,
                    partitions=[
                        Topics.Partitions(partition_index=index, committed_offset=5)
                        for index in range(partitions)
                    ],
                )
                for topic in topics
            ],
        )
        outcome = []
        self.coordinator.commit(request, 8, outcome.append)
        assert outcome[0].topics[0].partitions[0].error_code == errors.NONE

    def commit_held(self, groups):
        """Commits that are not durable before `refuse`."""
        self.world.storage.held = []
        Topics = messages.OffsetCommitRequest.Topics
        for group in groups:
            partition = Topics.Partitions(partition_index=0, committed_offset=5)
            request = messages.OffsetCommitRequest(
                group_id=group, topics=[Topics(name="t", partitions=[partition])]
            )
            self.coordinator.commit(request, 8, lambda _: None)

    def refuse(self):
        held, self.world.storage.held = self.world.storage.held, None
        for _, _, callback in held:
            callback(errors.NOT_LEADER_OR_FOLLOWER, -1)
            self.calls.mark()

    def join(self, group, members):
        """A group of dynamic members that have joined and are synced."""
        answers = {}

        def join(member_id, client_id):
            request = messages.JoinGroupRequest(
                group_id=group, member_id=member_id, protocol_type="consumer",
                session_timeout_ms=30_000, rebalance_timeout_ms=60_000,
                protocols=[protocol("range", subscription("t"))],
            )  # fmt: skip
            self.coordinator.join(
                request, 9, client_id, "/host", lambda it: answers.__setitem__(client_id, it)
            )

        for number in range(members):
            join("", f"c{number}")
        for number in range(members):
            join(answers[f"c{number}"].member_id, f"c{number}")
        self.world.scheduler.advance(0)
        assert {answer.error_code for answer in answers.values()} == {errors.NONE}
        return answers

    def settle(self):
        """Run what waits for its next turn, step by step."""
        for slices in self.slices:
            while slices._queue:
                self.calls.mark()
                slices._advance()

    def handle(self, handler, version, request):
        """A handler as Turns runs it."""
        context = RequestContext(request.API_KEY, version, 7, "client", "127.0.0.1", "PLAINTEXT", None)
        steps = handler(self.services, context, request)
        while inspect.isgenerator(steps):
            self.calls.mark()
            try:
                next(steps)
            except StopIteration as end:
                steps = end.value
        assert not inspect.isawaitable(steps)
        return steps


def load(scene, n):
    for number in range(n * 5):
        scene.commit(f"g{number}", partitions=4)
    for number in range(n // 10):
        scene.join(f"with members {number}", 10)
    coordinator = scene.coordinator
    coordinator.unload(0)
    scene.settle()

    def act():
        shard = coordinator.begin_load(0)
        for batch in scene.world.storage.logs[0]:
            shard.replay.feed(batch)
            scene.calls.mark()
        coordinator.end_load(shard)
        scene.settle()
        assert not shard.loading and len(shard.groups) == n * 5 + n // 10

    return act


def unload(scene, n):
    for number in range(n * 5):
        scene.commit(f"g{number}", partitions=4)
    for number in range(n // 10):
        scene.join(f"with members {number}", 10)
    shard = scene.coordinator.shards[0]

    def act():
        scene.coordinator.unload(0)
        scene.settle()
        assert not shard.groups and not shard.offsets.group_ids() and not shard.offsets.topics()

    return act


def list_groups(scene, n):
    for number in range(n * 5):
        scene.commit(f"g{number}")
    return lambda: scene.handle(groups.list_groups, 4, messages.ListGroupsRequest())


def named(n):
    return [f"g{number}" for number in range(n * 5)]


def describe_groups(scene, n):
    list_groups(scene, n)
    request = messages.DescribeGroupsRequest(groups=named(n))
    return lambda: scene.handle(groups.describe_groups, 5, request)


def describe_members(scene, n):
    scene.join("g", n)
    return lambda: scene.handle(groups.describe_groups, 5, messages.DescribeGroupsRequest(groups=["g"]))


def delete_groups(scene, n):
    list_groups(scene, n)
    return lambda: scene.handle(groups.delete_groups, 2, messages.DeleteGroupsRequest(groups_names=named(n)))


def find_coordinator(scene, n):
    request = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=named(n))
    return lambda: scene.handle(coordinators.find_coordinator, 4, request)


def fetch_of_groups(scene, n):
    list_groups(scene, n)
    Groups = messages.OffsetFetchRequest.Groups
    request = messages.OffsetFetchRequest(groups=[Groups(group_id=name, topics=None) for name in named(n)])
    return lambda: scene.handle(offsets.offset_fetch, 8, request)


def fetch_of_partitions(scene, n):
    scene.commit("g", [f"t{number}" for number in range(5)], n)
    request = messages.OffsetFetchRequest(group_id="g", topics=None)
    return lambda: scene.handle(offsets.offset_fetch, 7, request)


def commit_of_partitions(scene, n):
    return lambda: scene.commit("g", partitions=n * 5)


def commit_beside_groups(scene, n):
    list_groups(scene, n)
    return lambda: scene.commit("one more")


def heartbeat_beside_members(scene, n):
    answer = scene.join("g", n)["c0"]
    return lambda: scene.coordinator.heartbeat("g", answer.member_id, None, answer.generation_id)


def rebalance(scene, n):
    return lambda: scene.join("g", n)


def deletion_of_topics(scene, n):
    topics = [f"t{number}" for number in range(n)]
    for number in range(5):
        scene.commit(f"g{number}", topics)

    def act():
        scene.coordinator.on_topics_deleted([(topic, TOPIC_ID) for topic in topics])
        scene.settle()
        assert not scene.coordinator.shards[0].offsets.topics()

    return act


def deletion_of_a_topic_beside_groups(scene, n):
    list_groups(scene, n)
    scene.commit("g0", ["gone"])

    def act():
        scene.coordinator.on_topics_deleted([("gone", TOPIC_ID)])
        scene.settle()

    return act


def deletion_of_a_topic_of_many_groups(scene, n):
    list_groups(scene, n)

    def act():
        scene.coordinator.on_topics_deleted([("t", TOPIC_ID)])
        scene.settle()
        assert not scene.coordinator.shards[0].offsets.topics()

    return act


def expiry(scene, n):
    list_groups(scene, n)
    scene.world.clock.advance(8 * 24 * 60 * 60 * 1000)

    def act():
        scene.coordinator.shards[0].expire()
        scene.settle()
        assert not scene.coordinator.shards[0].groups

    return act


def refusal_of_first_commits(scene, n):
    scene.commit_held(named(n))

    def act():
        scene.refuse()
        assert not scene.coordinator.shards[0].groups

    return act


def deletion_behind_commits(scene, n):
    list_groups(scene, n)
    scene.commit_held([f"h{number}" for number in range(n * 5)])

    def act():
        for name in named(n):
            scene.coordinator.delete_group(name, lambda _: None)
            scene.calls.mark()

    return act


def expiry_behind_commits(scene, n):
    list_groups(scene, n)
    scene.commit_held([f"h{number}" for number in range(n * 5)])
    return lambda: scene.coordinator.shards[0].expire() or scene.settle()


def leaving(scene, n):
    answers = scene.join("g", n)
    Members = messages.LeaveGroupRequest.Members
    members = [Members(member_id=answer.member_id) for answer in answers.values()]

    def act():
        scene.handle(groups.leave_group, 5, messages.LeaveGroupRequest(group_id="g", members=members))
        assert scene.coordinator.shards[0].groups["g"].is_empty

    return act


LINEAR = [
    load, unload, list_groups, describe_groups, describe_members, delete_groups, find_coordinator,
    fetch_of_groups, fetch_of_partitions, commit_of_partitions, rebalance, deletion_of_topics,
    deletion_of_a_topic_of_many_groups, expiry, refusal_of_first_commits, deletion_behind_commits,
    expiry_behind_commits, leaving,
]  # fmt: skip
CONSTANT = [commit_beside_groups, heartbeat_beside_members, deletion_of_a_topic_beside_groups]
AT_ONCE = [commit_of_partitions, rebalance, describe_members]  # in one piece; bounded by max.message.bytes


def measured(row, n):
    scene = Scene()
    act = row(scene, n)
    with scene.calls:
        act()
    return scene.calls


@pytest.mark.parametrize("row", LINEAR, ids=lambda row: row.__name__)
def test_what_is_linear(row):
    counts = [measured(row, n).count for n in (N, 4 * N, 16 * N)]
    assert counts[1] <= 4.5 * counts[0] and counts[2] <= 4.5 * counts[1], counts


@pytest.mark.parametrize("row", CONSTANT, ids=lambda row: row.__name__)
def test_what_is_constant(row):
    counts = [measured(row, n).count for n in (N, 4 * N, 16 * N)]
    assert max(counts) <= 1.2 * min(counts) + 20, counts


@pytest.mark.parametrize("row", [row for row in LINEAR if row not in AT_ONCE], ids=lambda row: row.__name__)
def test_no_step_does_much(row):
    assert measured(row, 16 * N).largest < STEP_CALLS_MAX


class LoadingCoordinator:
    """A coordinator that begins to serve in the middle of the first joins."""

    def __init__(self) -> None:
        self.refused = 3  # requests of the first member, fewer of the others
        self.given: list[str] = []

    def wire(self):
        self.refused -= self.refused > 0
        return LoadingWire(self)

    def each(self, requests, version, code_of):
        pass


class LoadingWire:
    def __init__(self, coordinator: LoadingCoordinator) -> None:
        self.coordinator = coordinator
        self.refused = coordinator.refused
        self.sent = 0

    def send(self, request, version) -> None:
        self.sent += 1

    def read_frame(self) -> bytes:
        answer = messages.JoinGroupResponse(error_code=14)
        if self.sent > self.refused:
            self.coordinator.given.append(f"member-{len(self.coordinator.given)}")
            answer = messages.JoinGroupResponse(error_code=79, member_id=self.coordinator.given[-1])
        return b"\0\0\0\0" + codec.encode(answer, 5)


def test_the_bench_asks_for_one_member_id_a_member_while_the_coordinator_loads():
    """Beside Kafka the kind `members` did not end: members that had an id already asked for another one, and
    the rebalance waited for the first one's owner."""

    coordinator = LoadingCoordinator()
    members = growth_kinds.Members(coordinator, "g", 5)
    assert members.ids == coordinator.given


@pytest.mark.parametrize(("topics", "partitions"), [(30_000, 1), (1, 30_000)])
def test_a_refused_commit_is_answered_in_steps(topics, partitions):
    """The answer was made in one piece: 64,000 topics made the others wait for 0.1 s."""
    scene = Scene()
    Topics = messages.OffsetCommitRequest.Topics
    parts = [Topics.Partitions(partition_index=index) for index in range(partitions)]
    request = messages.OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=5,
        member_id="m",
        topics=[Topics(name="t", partitions=parts) for _ in range(topics)],
    )
    answers = []
    steps = scene.coordinator.commit_steps(request, 8, answers.append)
    with scene.calls:
        for _ in steps:
            scene.calls.mark()
    (answer,) = answers
    codes = {it.error_code for topic in answer.topics for it in topic.partitions}
    assert codes == {errors.ILLEGAL_GENERATION} and len(answer.topics) == topics
    assert scene.calls.largest < STEP_CALLS_MAX
