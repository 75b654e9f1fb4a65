"""Changes of the voters as their leader answers them: what is refused, with which error, what counts when.
(Under crashes: tests/sim.)"""

import pytest

from kafkad.protocol import codec, errors, messages
from kafkad.protocol.records import read_batches
from kafkad.raft.control_records import Voter, control_batch, voters_record
from kafkad.raft.elections import Role
from kafkad.raft.observer import FETCH_WAIT_MS
from kafkad.raft.quorum_log import QuorumLog
from kafkad.raft.reconfigure import update_request
from kafkad.raft.voters import VoterHistory
from tests.sim.raft_world import CLUSTER, Quorum


@pytest.fixture
def world():
    """Voters 1 and 2 in the log, and 3, which follows."""
    world = Quorum(1, 2, observers=1, dynamic=True)
    world.run(10_000)
    world.append(world.leaders[0])
    world.run(1_000)
    return world


def leader_of(world):
    (leader,) = world.leaders
    return leader


def code_of(answers):
    (answer,) = answers
    version = max(0, answer.MAX_VERSION)
    codec.encode(answer, version)
    return answer.error_code


def update(
    world, leader, voter, *, directory=None, epoch=None, port=9999, name="CONTROLLER", versions=(0, 1)
):
    request = update_request(
        CLUSTER,
        world.nodes[leader].epoch if epoch is None else epoch,
        (voter, directory or bytes([voter]) * 16),
        {name: (f"node-{voter}", 9999)},
    )
    request.k_raft_version_feature.min_supported_version = versions[0]
    request.k_raft_version_feature.max_supported_version = versions[1]
    return world.ask(leader, request)


def test_a_voter_is_added_and_one_is_removed(world):
    leader = leader_of(world)
    answers = world.add(leader, 3)
    assert not answers  # it is asked for its versions first
    world.run(3_000)
    assert code_of(answers) == errors.NONE
    assert {tuple(node.voters) for node in world.nodes.values()} == {(1, 2, 3)}
    assert world.nodes[3].is_voter and sorted(world.nodes[leader].leadership.voters) == [1, 2, 3]
    other = 3 - leader
    answers = world.remove(leader, other)
    assert not answers  # nor before its commit
    world.run(3_000)
    assert code_of(answers) == errors.NONE
    assert {tuple(node.voters) for node in world.nodes.values()} == {tuple(sorted((leader, 3)))}
    assert (other, bytes([other]) * 16) in world.nodes[leader].leadership.observers
    world.settle()


def test_a_voter_is_added_without_waiting_for_the_end_of_its_fetch():
    """The Fetch with which it has caught up makes it a voter. The answer has to have the record of that: the
    only voter of before is no majority any more."""
    world = Quorum(1, 1, observers=1, dynamic=True)
    world.crash(2)
    world.run(10_000)
    world.append(1, 5)
    world.run(1_000)
    world.start(2)
    answers = world.add(1, 2)
    while len(world.nodes[1].voters) < 2:
        world.run(1)
    begun = world.now
    while not answers:
        world.run(1)
    assert code_of(answers) == errors.NONE
    assert world.now - begun < FETCH_WAIT_MS / 2


def test_a_leader_that_removes_itself_goes_when_that_is_committed(world):
    leader = leader_of(world)
    answers = world.remove(leader, leader)
    assert world.nodes[leader].role is Role.LEADER and not world.nodes[leader].is_voter
    world.run(5_000)
    assert code_of(answers) == errors.NONE
    assert leader_of(world) == 3 - leader
    assert world.nodes[leader].role is Role.FOLLOWER
    world.settle()
    answers = world.remove(3 - leader, 3 - leader)
    assert code_of(answers) == errors.INVALID_REQUEST  # the last one


def test_what_is_refused(world):
    leader = leader_of(world)
    other = 3 - leader
    assert code_of(world.add(leader, other)) == errors.DUPLICATE_VOTER
    assert code_of(world.remove(leader, 3)) == errors.VOTER_NOT_FOUND
    assert code_of(world.add(other, 3)) == errors.NOT_LEADER_OR_FOLLOWER
    assert code_of(world.remove(3, leader)) == errors.NOT_LEADER_OR_FOLLOWER
    add, remove = messages.AddRaftVoterRequest, messages.RemoveRaftVoterRequest
    some = bytes([7]) * 16
    here = [add.Listeners(name="CONTROLLER", host="node-3", port=9093)]
    elsewhere = [add.Listeners(name="OTHER", host="node-3", port=9093)]
    wrong = add(cluster_id=None, voter_id=3, voter_directory_id=some, listeners=elsewhere)
    for request, code in (
        (add(cluster_id="another", voter_id=3, voter_directory_id=some), errors.INCONSISTENT_CLUSTER_ID),
        (add(cluster_id=None, voter_id=-1, voter_directory_id=some, listeners=here), errors.INVALID_REQUEST),
        (add(cluster_id=None, voter_id=3, listeners=here), errors.INVALID_REQUEST),
        (add(cluster_id=None, voter_id=3, voter_directory_id=some), errors.INVALID_REQUEST),
        (wrong, errors.INVALID_REQUEST),
        (remove(cluster_id=None, voter_id=other), errors.INVALID_REQUEST),
        (remove(cluster_id=None, voter_id=other, voter_directory_id=some), errors.VOTER_NOT_FOUND),
    ):  # fmt: skip
        assert code_of(world.ask(leader, request)) == code
    assert code_of(update(world, leader, other, epoch=0)) == errors.FENCED_LEADER_EPOCH
    assert code_of(update(world, leader, other, epoch=99)) == errors.UNKNOWN_LEADER_EPOCH
    assert code_of(update(world, leader, other, name="OTHER")) == errors.INVALID_REQUEST
    assert code_of(update(world, leader, other, versions=(0, 0))) == errors.INVALID_REQUEST
    assert code_of(update(world, leader, other, directory=some)) == errors.VOTER_NOT_FOUND
    (answer,) = update(world, other, leader)
    assert answer.error_code == errors.NOT_LEADER_OR_FOLLOWER
    assert (answer.current_leader.leader_id, answer.current_leader.port) == (leader, 9093)
    assert set(world.nodes[leader].voters) == {1, 2}


def test_one_change_at_a_time(world):
    leader = leader_of(world)
    first = world.add(leader, 3)
    assert code_of(world.remove(leader, 3 - leader)) == errors.REQUEST_TIMED_OUT
    world.run(3_000)
    assert code_of(first) == errors.NONE
    world.isolate(leader)
    stuck = world.remove(leader, 3)
    assert code_of(update(world, leader, 3 - leader)) == errors.REQUEST_TIMED_OUT
    world.run(2_500)
    assert code_of(stuck) == errors.REQUEST_TIMED_OUT  # and its record is still not committed
    assert code_of(world.remove(leader, 3 - leader)) == errors.REQUEST_TIMED_OUT
    world.settle()


def test_a_new_voter_that_does_not_answer_or_lags_is_not_added(world):
    leader = leader_of(world)
    world.crash(3)
    silent = world.add(leader, 3)
    world.run(3_000)
    assert code_of(silent) == errors.REQUEST_TIMED_OUT
    world.start(3)
    world.run(2_000)
    world.cut |= {(3, leader)}  # it hears, and nobody hears of it
    deaf = world.add(leader, 3, timeout_ms=4_000)
    world.run(4_500)
    assert code_of(deaf) == errors.REQUEST_TIMED_OUT
    assert set(world.nodes[leader].voters) == {1, 2}
    world.settle()


def test_a_change_that_its_leader_could_not_commit_is_taken_back():
    world = Quorum(2, 3, dynamic=True)
    world.run(10_000)
    leader = leader_of(world)
    world.append(leader)
    world.run(1_000)
    world.isolate(leader)
    lost = world.remove(leader, leader % 3 + 1)
    assert len(world.nodes[leader].voters) == 2
    world.run(8_000)
    assert code_of(lost) in (errors.NOT_LEADER_OR_FOLLOWER, errors.REQUEST_TIMED_OUT)
    world.append(leader_of(world))
    world.settle()
    assert {tuple(node.voters) for node in world.nodes.values()} == {(1, 2, 3)}


def test_with_static_voters_nothing_is_changed():
    world = Quorum(1, 2)
    world.run(10_000)
    leader = leader_of(world)
    world.append(leader)
    world.run(1_000)
    assert code_of(world.add(leader, 3)) == errors.UNSUPPORTED_VERSION
    assert code_of(world.remove(leader, 3 - leader)) == errors.UNSUPPORTED_VERSION
    other = 3 - leader
    end = world.nodes[leader].end_offset
    assert code_of(update(world, leader, other)) == errors.NONE  # Kafka: in memory, for an upgrade
    assert code_of(update(world, leader, 9)) == errors.VOTER_NOT_FOUND
    assert code_of(update(world, leader, other, versions=(1, 1))) == errors.INVALID_REQUEST
    assert world.nodes[leader].end_offset == end


def test_a_voter_that_listens_elsewhere_says_so(world):
    """A follower tells its leader; a leader writes it with its first record."""
    leader = leader_of(world)
    for moved in (3 - leader, leader):
        world.crash(moved)
        world.moved[moved] = 19_000 + moved
        world.start(moved)
        world.run(20_000)
        for node in world.nodes.values():
            assert node.voters[moved].port == 19_000 + moved
    world.settle()


def test_a_name_is_not_given_up_for_localhost(world):
    node = world.nodes[leader_of(world)]
    changes, name = node._changes, f"node-{node.node_id}"
    assert changes.update_of_ours({"CONTROLLER": ("localhost", 9093)}) is None
    assert changes.update_of_ours({"CONTROLLER": (name, 9093)}) is None
    assert changes.update_of_ours({"CONTROLLER": (name, 9094)}) is not None


def test_snapshots_have_the_voters_of_their_offset(world):
    leader = leader_of(world)
    node = world.nodes[leader]
    image = node.image
    made = node.begin_snapshot(image)
    world.add(leader, 3)
    world.run(3_000)
    assert set(node.voters) == {1, 2, 3}
    node.write_snapshot(image)
    batches = read_batches(world.disks[leader].snapshots[made])
    history = VoterHistory()
    for batch in batches:
        history.note(batch)
    assert [each.voter_id for each in history.newest.voters] == [1, 2]


def test_a_set_counts_until_it_is_cut_off():
    history = VoterHistory()
    sets = [
        tuple(Voter(n, bytes([n]) * 16, {"C": ("h", n)}) for n in range(1, 1 + size)) for size in (1, 2, 3)
    ]
    history.begin(-1, 1, sets[0])
    for offset, voters in ((5, sets[1]), (9, sets[2])):
        raw = control_batch([voters_record(voters)], base_offset=offset, epoch=1, now_ms=0)
        for batch in read_batches(bytes(raw)):
            history.note(batch)
    assert history.newest == (9, 1, sets[2])
    assert history.may_vote((1, bytes([1]) * 16), 0)
    history.truncate(9)
    assert history.newest == (5, 1, sets[1])
    history.forget(5)
    history.truncate(5)
    assert history.newest == (-1, 1, sets[0])
    assert not history.may_vote((2, bytes([2]) * 16), 0)


def test_a_controller_joins_by_itself_also_with_a_new_disk(world):
    """controller.quorum.auto.join.enable: what was its directory before is removed first."""
    world.joining = {3}
    world.crash(3)
    world.start(3)
    world.run(20_000)
    assert {tuple(node.voters) for node in world.nodes.values()} == {(1, 2, 3)}
    world.crash(3)
    world.disks[3], world.directories[3] = type(world.disks[3])(), bytes([33]) * 16
    world.checks.epochs.pop(3)
    world.start(3)
    world.run(20_000)
    for node in world.nodes.values():
        assert node.voters[3].directory_id == bytes([33]) * 16
    assert world.nodes[3].is_voter
    world.settle()


def test_new_voters_between_the_steps_of_an_append(world):
    """The controller's batch then stands behind them, and both are committed."""
    leader = leader_of(world)
    node = world.nodes[leader]
    log = QuorumLog(node, world.clock)
    log.look()
    topic = messages.TopicRecord(name="between", topic_id=bytes([5]) * 16)
    steps = log.append_steps([topic])
    next(steps)
    next(steps)
    base = node.end_offset
    assert world.remove(leader, 3 - leader) == []
    assert node.end_offset == base + 1
    for _ in steps:
        pass
    assert log.head.offset == node.end_offset - 1 == base + 1
    world.run(2_000)
    assert "between" in str(node.image.topics) and tuple(node.voters) == (leader,)
    assert log.head.topics == node.image.topics
    world.settle()
