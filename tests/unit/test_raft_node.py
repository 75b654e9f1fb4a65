"""A node of the quorum and the requests of others: what is refused, with which error, and what a vote leaves
on the disk. (What happens among nodes: tests/sim.)"""

import pytest

from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.raft import quorum_messages as wire
from kafkad.raft.election_state import ElectionState
from kafkad.raft.elections import Role
from kafkad.raft.metadata_replica import UnusableMetadata
from kafkad.raft.quorum_messages import InFlightRequest
from tests.sim.raft_world import CLUSTER, Quorum

OTHER = (2, bytes([2]) * 16)


@pytest.fixture
def world():
    """Three voters, of which the first is alone: nobody has been elected."""
    world = Quorum(1, 3)
    world.isolate(1)
    return world


@pytest.fixture
def led():
    world = Quorum(1, 3)
    world.run(10_000)
    return world


def ask(node, request):
    answers = []
    node.handle(request, answers.append)
    assert len(answers) <= 1
    return answers[0] if answers else None


def vote(epoch=5, last=(0, 0), *, pre_vote=False, candidate=OTHER, to=(1, bytes([1]) * 16), cluster=CLUSTER):
    return wire.vote(cluster, to, candidate, epoch, last, pre_vote=pre_vote)


def fetch(node, **changed):
    request = node.request()
    request.replica_state.replica_id = 9
    partition = request.topics[0].partitions[0]
    partition.replica_directory_id = b"9" * 16
    for name, value in changed.items():
        setattr(partition if hasattr(partition, name) else request, name, value)
    return request


def code_of(response):
    return response.error_code or wire.told(response).error_code


REFUSED = {
    "another cluster": (vote(cluster="another"), errors.INCONSISTENT_CLUSTER_ID),
    "an epoch below the candidate's log": (vote(5, (5, 3)), errors.INVALID_REQUEST),
    "a pre-vote of an epoch below the log": (vote(5, (6, 3), pre_vote=True), errors.INVALID_REQUEST),
    "a negative offset": (vote(5, (0, -1)), errors.INVALID_REQUEST),
    "a negative epoch": (vote(5, (-1, 0)), errors.INVALID_REQUEST),
    "no candidate": (vote(candidate=(-1, bytes(16))), errors.INVALID_REQUEST),
    "an old epoch": (vote(-1, (0, 0), pre_vote=True), errors.INVALID_REQUEST),
    "another voter": (vote(to=(2, bytes(16))), errors.INVALID_VOTER_KEY),
    "another disk of ours": (vote(to=(1, b"x" * 16)), errors.INVALID_VOTER_KEY),
    "a leader with another voter in mind": (
        wire.begin_epoch(CLUSTER, (2, bytes(16)), 2, 5, {"C": ("h", 1)}),
        errors.INVALID_VOTER_KEY,
    ),
    "no leader": (wire.begin_epoch(CLUSTER, (1, bytes(16)), -1, 5, {}), errors.INVALID_REQUEST),
    "the end of no leader": (wire.end_epoch(CLUSTER, -1, 5, [], {}), errors.INVALID_REQUEST),
    "a leader that is us": (
        wire.begin_epoch(CLUSTER, (1, bytes(16)), 1, 5, {"C": ("h", 1)}),
        errors.INVALID_REQUEST,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(world, name):
    request, code = REFUSED[name]
    assert code_of(ask(world.nodes[1], request)) == code
    assert world.nodes[1].role is not Role.LEADER


@pytest.mark.parametrize("name", ["topics", "partitions", "name", "index"])
def test_another_partition_is_refused(world, name):
    request = vote()
    if name == "topics":
        request.topics = []
    elif name == "partitions":
        request.topics[0].partitions *= 2
    elif name == "name":
        request.topics[0].topic_name = "orders"
    else:
        request.topics[0].partitions[0].partition_index = 1
    assert ask(world.nodes[1], request).error_code == errors.INVALID_REQUEST


def test_a_vote_is_on_the_disk_before_it_is_given(world):
    node = world.nodes[1]
    assert wire.told(ask(node, vote(5))).vote_granted
    kept = ElectionState.decode(world.disks[1].quorum_state)
    assert (kept.leader_epoch, kept.voted_id, kept.leader_id) == (5, 2, -1)
    assert not wire.told(ask(node, vote(5, candidate=(3, bytes([3]) * 16)))).vote_granted
    assert wire.told(ask(node, vote(5))).vote_granted
    assert code_of(ask(node, vote(4))) == errors.FENCED_LEADER_EPOCH
    world.crash(1)
    world.start(1)
    assert not wire.told(ask(world.nodes[1], vote(5, candidate=(3, bytes([3]) * 16)))).vote_granted
    assert wire.told(ask(world.nodes[1], vote(6, candidate=(3, bytes([3]) * 16)))).vote_granted


def test_a_voter_that_has_lost_its_vote_does_not_start(world):
    """It could vote for two candidates in one epoch, and both would lead. Kafka refuses, too."""
    ask(world.nodes[1], vote(5))
    world.crash(1)
    world.disks[1].quorum_state = b'{"leaderId":-1,"lea'
    with pytest.raises(UnusableMetadata, match="quorum-state is damaged"):
        world.start(1)


def test_the_only_voter_starts_without_its_vote():
    world = Quorum(1, 1)
    world.run(1_000)
    world.crash(1)
    world.disks[1].quorum_state = b"?"
    world.start(1)
    world.run(1_000)
    assert world.leaders == [1]


def test_a_pre_vote_leaves_nothing_behind(world):
    node = world.nodes[1]
    before = world.disks[1].quorum_state, node.epoch
    assert wire.told(ask(node, vote(node.epoch, pre_vote=True))).vote_granted
    assert (world.disks[1].quorum_state, node.epoch) == before


def test_only_the_leader_of_this_epoch_answers_a_fetch(led):
    (leader,) = led.leaders
    node, other = led.nodes[leader], led.nodes[leader % 3 + 1]
    told = wire.told(ask(other, fetch(other)))
    assert told.error_code == errors.NOT_LEADER_OR_FOLLOWER
    assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (leader, node.epoch)
    endpoints = ask(other, fetch(other)).node_endpoints
    assert [(each.node_id, each.host, each.port) for each in endpoints] == [(leader, f"node-{leader}", 9093)]
    epoch = node.epoch
    assert code_of(ask(node, fetch(node, current_leader_epoch=epoch - 1, last_fetched_epoch=0))) == (
        errors.FENCED_LEADER_EPOCH
    )
    assert code_of(ask(node, fetch(node, current_leader_epoch=epoch + 1))) == errors.UNKNOWN_LEADER_EPOCH
    for name, value in (("fetch_offset", -1), ("last_fetched_epoch", -1), ("last_fetched_epoch", epoch + 1)):
        assert code_of(ask(node, fetch(node, **{name: value}))) == errors.INVALID_REQUEST
    assert code_of(ask(node, fetch(node, max_wait_ms=-1))) == errors.INVALID_REQUEST


def test_a_fetch_waits_for_records_and_for_the_high_watermark(led):
    (leader,) = led.leaders
    node = led.nodes[leader]
    led.append(leader)
    led.run(1_000)
    answers = []
    node.handle(fetch(node), answers.append)
    node.handle(fetch(node, high_watermark=0, max_wait_ms=0), answers.append)
    assert [wire.told(each).high_watermark for each in answers] == [node.high_watermark]  # it need not wait
    led.append(leader)
    assert len(answers) == 2
    assert wire.told(answers[1]).records
    node.handle(fetch(node), answers.append)
    assert len(answers) == 2
    led.run(1_000)
    assert wire.told(answers[2]).high_watermark == node.end_offset
    node.handle(fetch(node), answers.append)
    node.resign()
    assert wire.told(answers[3]).error_code == errors.NOT_LEADER_OR_FOLLOWER


def test_where_the_logs_part_is_told(led):
    (leader,) = led.leaders
    node = led.nodes[leader]
    told = wire.told(ask(node, fetch(node, fetch_offset=99)))
    assert (told.diverging_epoch.epoch, told.diverging_epoch.end_offset) == (node.epoch, node.end_offset)
    assert not told.records
    assert wire.told(ask(node, fetch(node, fetch_offset=0, last_fetched_epoch=0))).records


def test_a_piece_of_a_snapshot_is_read_alone(led, monkeypatch):
    """A large snapshot is fetched in many pieces, and each is read while votes and heartbeats wait."""
    (leader,) = led.leaders
    node = led.nodes[leader]
    led.append(leader, 5)
    led.run(1_000)
    led.snapshot(leader)
    (snapshot,) = led.disks[leader].snapshots
    monkeypatch.setattr(type(node._files), "read_snapshot", None)
    cls = messages.FetchSnapshotRequest
    partition = cls.Topics.Partitions(
        partition=0, current_leader_epoch=node.epoch, position=7,
        snapshot_id=cls.Topics.Partitions.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1]),
    )  # fmt: skip
    topic = cls.Topics(name="__cluster_metadata", partitions=[partition])
    told = wire.told(ask(node, cls(cluster_id=CLUSTER, replica_id=9, max_bytes=11, topics=[topic])))
    assert told.unaligned_records == led.disks[leader].snapshots[snapshot][7:18]


def test_pieces_of_snapshots(led):
    (leader,) = led.leaders
    node = led.nodes[leader]
    led.append(leader, 5)
    led.run(1_000)
    led.snapshot(leader)
    (snapshot,) = led.disks[leader].snapshots
    cls = messages.FetchSnapshotRequest

    def piece(position=0, of=snapshot, epoch=node.epoch, max_bytes=100):
        partition = cls.Topics.Partitions(
            partition=0, current_leader_epoch=epoch, position=position,
            snapshot_id=cls.Topics.Partitions.SnapshotId(end_offset=of[0], epoch=of[1]),
        )  # fmt: skip
        topic = cls.Topics(name="__cluster_metadata", partitions=[partition])
        return wire.told(
            ask(node, cls(cluster_id=CLUSTER, replica_id=9, max_bytes=max_bytes, topics=[topic]))
        )

    content = led.disks[leader].snapshots[snapshot]
    assert (piece().unaligned_records, piece().size) == (content[:100], len(content))
    assert piece(100).unaligned_records == content[100:200]
    assert piece(len(content)).error_code == errors.POSITION_OUT_OF_RANGE
    assert piece(-1).error_code == errors.POSITION_OUT_OF_RANGE
    assert piece(of=(1, 1)).error_code == errors.SNAPSHOT_NOT_FOUND
    assert piece(of=(0, 0)).error_code == errors.SNAPSHOT_NOT_FOUND
    assert piece(epoch=0).error_code == errors.FENCED_LEADER_EPOCH
    told = wire.told(ask(node, fetch(node, fetch_offset=0, last_fetched_epoch=0)))
    assert (told.snapshot_id.end_offset, told.snapshot_id.epoch) == snapshot


def test_a_disk_that_cannot_flush_ends_it_all(led):
    (leader,) = led.leaders
    node = led.nodes[leader]
    led.append(leader)
    node._flushed(OSError(5, "Input/output error"))
    assert node.is_broken and node.role is not Role.LEADER
    assert ask(node, vote(node.epoch + 1, (1, 99))).error_code == errors.KAFKA_STORAGE_ERROR
    assert node.poll() > 1 << 60
    led.run(10_000)
    (other,) = led.leaders
    assert other != leader


@pytest.mark.parametrize(
    "trouble", [OSError(2, "No such file"), KafkaError(errors.KAFKA_STORAGE_ERROR, "no space left")]
)
def test_a_leader_whose_disk_is_full_lets_another_lead(led, trouble, monkeypatch):
    (leader,) = led.leaders
    node = led.nodes[leader]

    def full(*_, **__):
        raise trouble

    monkeypatch.setattr(node._log, "append", full)
    end = node._log.end_offset
    with pytest.raises(type(trouble)):
        node.append(bytearray)
    assert node._log.end_offset == end
    monkeypatch.undo()
    led.run(10_000)
    (other,) = led.leaders
    assert other != leader and node.role is Role.FOLLOWER
    led.append(other)


def test_a_leader_goes_on_whose_batch_is_refused(led, monkeypatch):
    (leader,) = led.leaders

    def refuses(*_, **__):
        raise KafkaError(errors.MESSAGE_TOO_LARGE)

    monkeypatch.setattr(led.nodes[leader]._log, "append", refuses)
    with pytest.raises(KafkaError):
        led.nodes[leader].append(bytearray)
    monkeypatch.undo()
    led.run(10_000)
    assert led.leaders == [leader]


def test_the_only_voter_leads_on_when_its_disk_has_room_again(monkeypatch):
    alone = Quorum(1, 1)
    alone.run(10_000)
    (leader,) = alone.leaders

    def full(*_, **__):
        raise KafkaError(errors.KAFKA_STORAGE_ERROR)

    monkeypatch.setattr(alone.nodes[leader]._log, "append", full)
    with pytest.raises(KafkaError):
        alone.nodes[leader].append(bytearray)
    monkeypatch.undo()
    alone.run(10_000)
    assert alone.leaders == [leader] and alone.nodes[leader].epoch == 1
    alone.append(leader)


def test_a_node_that_waits_for_its_quorum_says_so_seldom(world, caplog):
    caplog.set_level("INFO", logger="kafkad")
    world.run(100_000)
    said = [each.getMessage() for each in caplog.records]
    said = [each for each in said if each.startswith("node 1 of the metadata quorum is")]
    assert any("prospective" in each for each in said)
    assert all(said.count(each) <= 4 for each in said)  # at once, and after each 30 s


def test_a_snapshot_of_before_takes_back_nothing_that_was_fetched_since(led):
    """A node that does not know the leader asks another voter for the same. Found by the simulator: a
    snapshot that the leader had offered began the log again below what the other answer had brought."""
    (leader,) = led.leaders
    behind = next(each for each in led.nodes if each != leader)
    node, there = led.nodes[behind], led.nodes[leader]
    node._fetch_bytes_max = node._snapshot_bytes_max = 1 << 20
    led.isolate(behind)
    led.append(leader, 2)
    led.run(500)
    snapshot = there.begin_snapshot(there.image)
    there.write_snapshot(there.image)
    led.append(leader, 3)
    led.run(500)
    assert node.end_offset < snapshot[0] < there.high_watermark
    records, offer = ask(there, node.request()), ask(there, node.request())
    partition = offer.responses[0].partitions[0]
    partition.records = None
    partition.snapshot_id.end_offset, partition.snapshot_id.epoch = snapshot
    whole = ask(there, node._snapshot_request(snapshot))
    assert whole.topics[0].partitions[0].size == len(whole.topics[0].partitions[0].unaligned_records)
    node._in_flight = {
        number: InFlightRequest(asked, kind, node.epoch, led.now + 10_000, node.end_offset)
        for number, (asked, kind) in enumerate(
            [(leader, wire.Fetch), (9, wire.Fetch), (leader, wire.FetchSnapshot)]
        )
    }
    for number, answer in enumerate([offer, records, whole]):
        node.response(number, answer)
        while node.apply():
            assert node.end_offset >= node.high_watermark
    assert node.end_offset == there.end_offset and node.high_watermark > snapshot[0]
    request = node.request()  # what it asks now goes on from there
    assert type(request) is wire.Fetch
    assert request.topics[0].partitions[0].fetch_offset == there.end_offset
