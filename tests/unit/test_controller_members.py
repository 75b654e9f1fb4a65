"""Several brokers: what registration, heartbeats, AlterPartition and elections make of them."""

import random

import pytest
from controller_world import SESSION_MS, World, indexes_of, refused
from steps import finish

from kafkad.clock import ManualClock
from kafkad.controller.configs import SET, plan_incremental
from kafkad.controller.elections import Assignment, change_of
from kafkad.controller.feature_levels import SAFE_DOWNGRADE, UPGRADE, plan_update
from kafkad.controller.heartbeats import BrokerState, Heartbeats
from kafkad.controller.leadership import PREFERRED, UNCLEAN
from kafkad.controller.quorum_controller import QuorumController
from kafkad.metadata.image import BROKER, RECOVERED, RECOVERING, TOPIC, PartitionState
from kafkad.metadata.replay import applied
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from tests.registrations import CLUSTER, directory_of


@pytest.fixture
def world():
    return World(1, 2, 3)


def kinds(records):
    return [type(record).__name__ for record in records]


# -- registration ------------------------------------------------------------------------------------------


def test_a_new_broker_is_fenced_and_its_epoch_is_the_next_offset():
    world = World()
    before = world.image.offset
    plan = world.register(7)
    broker = world.image.brokers[7]
    assert (plan.epoch, broker.epoch, broker.fenced) == (before + 1, before + 1, True)


def test_the_epoch_is_the_first_records_offset_and_catching_up_counts_to_the_last(world):
    """T33: the record of the registration comes after those of the incarnation before."""
    world.create("t", [1, 2, 3], [1, 2, 3])
    world.now_ms = SESSION_MS + 1
    before = world.image.offset
    plan = world.register(1)
    assert kinds(plan.records) == ["PartitionChangeRecord"] * 2 + ["RegisterBrokerRecord"]
    assert plan.epoch == before + 1
    assert not world.beat(1, offset=before + 2).is_caught_up
    assert world.image.brokers[1].fenced
    assert world.beat(1, offset=before + 3).is_caught_up
    assert not world.image.brokers[1].fenced


def test_an_unclean_stop_leaves_isr_and_elr(world):
    """T34"""
    world.create("t", [1, 2], configs={"min.insync.replicas": "2"})
    world.fence(2)
    assert (world.state().isr, world.state().elr) == ((1,), (2,))
    world.register(2)
    assert (world.state().isr, world.state().elr) == ((1,), ())


def test_a_clean_stop_stays_eligible(world):
    world.create("t", [1, 2], configs={"min.insync.replicas": "2"})
    epoch = world.image.brokers[2].epoch
    world.fence(2)
    world.register(2, previous_broker_epoch=epoch)
    assert (world.state().isr, world.state().elr) == ((1,), (2,))


def test_before_version_3_no_stop_is_known_to_be_clean(world):
    world.create("t", [1, 2], configs={"min.insync.replicas": "2"})
    epoch = world.image.brokers[2].epoch
    world.fence(2)
    world.register(2, previous_broker_epoch=epoch, version=2)
    assert world.state().elr == ()


def test_another_incarnation_waits_for_the_session_of_the_first(world):
    assert refused(world.register, 1) == errors.DUPLICATE_BROKER_REGISTRATION
    world.now_ms = SESSION_MS
    assert refused(world.register, 1) == errors.DUPLICATE_BROKER_REGISTRATION
    world.now_ms = SESSION_MS + 1
    assert refused(world.register, 1) == 0


def test_the_same_incarnation_amends_its_registration():
    world = World()
    first = world.register(1, incarnation=1)
    world.beat(1)
    again = world.register(1, incarnation=1, rack="r")
    broker = world.image.brokers[1]
    assert (again.epoch, broker.fenced, broker.rack) == (first.epoch, False, "r")
    assert world.beat(1).is_fenced is False


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"log_dirs": []}, errors.INVALID_REGISTRATION),
        ({"log_dirs": [bytes(16)]}, errors.INVALID_REGISTRATION),
        ({"log_dirs": [directory_of(4)] * 2}, errors.INVALID_REGISTRATION),
        ({"log_dirs": [directory_of(1)]}, errors.INVALID_REGISTRATION),
        ({"is_migrating_zk_broker": True}, errors.BROKER_ID_NOT_REGISTERED),
    ],
)
def test_a_registration_that_cannot_be_is_refused(world, fields, code):
    before = world.image
    assert refused(world.register, 4, **fields) == code
    assert world.image is before


def test_a_broker_must_do_every_finalized_level(world, monkeypatch):
    import controller_world

    real = controller_world.registration

    def without_elr(*arguments, **fields):
        request = real(*arguments, **fields)
        request.features = [f for f in request.features if f.name != "eligible.leader.replicas.version"]
        return request

    monkeypatch.setattr(controller_world, "registration", without_elr)
    assert refused(world.register, 4) == errors.UNSUPPORTED_VERSION


# -- heartbeats --------------------------------------------------------------------------------------------


def test_a_broker_with_a_stale_epoch_is_told_so(world):
    assert refused(world.beat, 1, epoch=0) == errors.STALE_BROKER_EPOCH


@pytest.mark.parametrize(
    ("start", "wants", "leads", "expected"),
    [
        ("fenced", {"want_fence": True}, False, BrokerState.FENCED),
        ("fenced", {}, False, BrokerState.UNFENCED),
        ("fenced", {"current_metadata_offset": 4}, False, BrokerState.FENCED),
        ("fenced", {"want_shut_down": True}, True, BrokerState.SHUTDOWN_NOW),
        ("unfenced", {}, True, BrokerState.UNFENCED),
        ("unfenced", {"want_fence": True}, True, BrokerState.FENCED),
        ("unfenced", {"want_fence": True, "want_shut_down": True}, True, BrokerState.SHUTDOWN_NOW),
        ("unfenced", {"want_shut_down": True}, True, BrokerState.CONTROLLED_SHUTDOWN),
        ("unfenced", {"want_shut_down": True}, False, BrokerState.SHUTDOWN_NOW),
        ("leaving", {"want_shut_down": True}, True, BrokerState.CONTROLLED_SHUTDOWN),
        ("leaving", {"want_shut_down": True}, False, BrokerState.SHUTDOWN_NOW),
    ],
)
def test_the_next_state_of_a_broker(start, wants, leads, expected):
    beats = Heartbeats(World().image, SESSION_MS, 0)
    beats.registered(1, fenced=True, offset=5)
    beats.touch(1, fenced=start == "fenced", metadata_offset=9)
    if start == "leaving":
        beats.leaves_at(1, 8)
    fields = {"broker_id": 1, "current_metadata_offset": 5} | wants
    assert beats.next_state(messages.BrokerHeartbeatRequest(**fields), lambda: leads) is expected


def test_a_controlled_shutdown_ends_when_every_active_broker_knows(world):
    """T42"""
    world.create("t", [1, 2, 3])
    assert not world.beat(1, want_shut_down=True).should_shut_down
    assert world.image.brokers[1].in_controlled_shutdown
    assert (world.state().leader, world.state().isr) == (2, (2, 3))
    told = world.image.offset
    world.beat(2, offset=told)
    world.beat(3, offset=told - 1)
    assert not world.beat(1, want_shut_down=True).should_shut_down
    world.beat(3, offset=told)
    assert world.beat(1, want_shut_down=True).should_shut_down
    assert world.image.brokers[1].fenced


def test_a_fenced_broker_keeps_its_registration_and_leads_nothing(world):
    """T35"""
    world.create("t", [1, 2, 3])
    records = world.fence(1)
    assert kinds(records) == ["PartitionChangeRecord", "BrokerRegistrationChangeRecord"]
    assert (world.state().leader, world.state().leader_epoch, world.state().isr) == (2, 1, (2, 3))
    assert world.image.brokers[1].fenced
    assert world.alter(2, [2, 3, 1]).error_code == errors.INELIGIBLE_REPLICA
    assert world.fence(1) == []


def test_unfencing_elects_only_where_nobody_leads(world):
    """T36"""
    world.create("t", [1, 2], [2, 1])
    world.create("alone", [1])
    world.fence(1)
    assert [world.state("t", 0).leader, world.state("t", 1).leader, world.state("alone").leader] == [2, 2, -1]
    world.beat(1)
    assert [world.state("t", 0).leader, world.state("t", 1).leader, world.state("alone").leader] == [2, 2, 1]
    assert world.state("t", 0).isr == (2,)


def test_who_is_being_unfenced_may_lead_and_who_is_being_fenced_may_not(world):
    """T43"""
    world.create("t", [1], configs={"unclean.leader.election.enable": "true"})
    world.fence(1)
    assert world.state().leader == -1
    world.beat(1)
    assert (world.state().leader, world.state().leader_recovery_state) == (1, RECOVERED)


def test_sessions_end_one_at_a_time_oldest_first():
    beats = Heartbeats(World(1, 2, 3).image, SESSION_MS, 1_000)
    keys = [(id, epoch.epoch) for id, epoch in World(1, 2, 3).image.brokers.items()]
    beats.contact(keys[0], 1_500)
    assert beats.expired(1_000 + SESSION_MS) is None
    assert beats.next_expiry_ms(1_000 + SESSION_MS) == 1
    later = 1_001 + SESSION_MS
    assert [beats.expired(later) for _ in range(3)] == [keys[1], keys[2], None]
    assert beats.has_session(keys[0], later)


def test_a_new_controller_gives_each_unfenced_broker_a_session(world):
    """T44"""
    world.fence(3)
    beats = Heartbeats(world.image, SESSION_MS, 50_000)
    alive = [id for id, each in world.image.brokers.items() if beats.has_session((id, each.epoch), 50_001)]
    assert alive == [1, 2]


def test_a_fenced_broker_must_reach_what_a_new_controller_began_with(world):
    world.register(4)
    world.create("t", [1])
    world.heartbeats = Heartbeats(world.image, SESSION_MS, 0)
    assert not world.beat(4, offset=world.image.offset - 1).is_caught_up
    assert world.beat(4).is_caught_up


def test_directories_that_fail_are_led_elsewhere(world):
    world.register(4, log_dirs=[directory_of(4), directory_of(4, 1)])
    world.beat(4)
    world.create("t", [4, 1], [4, 2])
    assert world.assign(4, directory_of(4, 1), index=0) == 0
    assert world.assign(4, directory_of(4), index=1) == 0
    world.beat(4, offline_log_dirs=[directory_of(4, 1)])
    assert [world.state("t", index).leader for index in (0, 1)] == [1, 4]
    assert world.image.brokers[4].directories == (directory_of(4),)
    assert world.alter(1, [1, 4], index=0).error_code == 0


def test_a_broker_that_comes_back_with_a_failed_directory_leads_nothing_there(world):
    world.register(4, log_dirs=[directory_of(4), directory_of(4, 1)])
    world.beat(4)
    world.create("t", [4], [4])
    assert world.assign(4, directory_of(4, 1), index=0) == 0
    assert world.assign(4, directory_of(4), index=1) == 0
    world.fence(4)
    world.beat(4, offline_log_dirs=[directory_of(4, 1)])
    assert [world.state("t", index).leader for index in (0, 1)] == [-1, 4]


def test_cordoned_directories_are_recorded_once(world):
    world.beat(1, cordoned_log_dirs=[directory_of(1)])
    assert kinds(world.records) == ["BrokerRegistrationChangeRecord"]
    assert not world.image.brokers[1].placeable
    world.beat(1, cordoned_log_dirs=[directory_of(1)])
    assert world.records == []


def test_an_assignment_to_an_unknown_directory_takes_the_leadership(world):
    world.create("t", [1, 2])
    assert world.assign(1, directory_of(1, 5)) == 0
    assert (world.state().leader, world.state().isr) == (2, (2,))
    assert world.state().directory(1) == directory_of(1, 5)


def test_assignments_of_others_are_refused(world):
    world.create("t", [1])
    assert world.assign(2, directory_of(2)) == errors.NOT_LEADER_OR_FOLLOWER
    assert world.assign(2, directory_of(2), index=7) == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert world.assign(2, directory_of(2), topic="?") == errors.UNKNOWN_TOPIC_ID


def test_unregistering_leaves_the_isr_and_registering_again_the_elr(world):
    world.create("t", [1, 2], [2, 1], configs={"min.insync.replicas": "2"})
    world.fence(1)
    assert world.state("t", 0).elr == (1,)
    world.unregister(1)
    assert 1 not in world.image.brokers
    assert [world.state("t", index).isr for index in (0, 1)] == [(2,), (2,)]
    assert refused(world.unregister, 1) == errors.BROKER_ID_NOT_REGISTERED
    assert world.state("t", 0).elr == (1,)  # as Kafka leaves it: nobody can elect who is not registered
    world.register(1)
    assert world.state("t", 0).elr == ()


# -- leaders -----------------------------------------------------------------------------------------------


def test_without_elr_the_last_member_stays_in_the_isr():
    """T37"""
    world = World(1, 2, elr=False)
    world.create("t", [1, 2])
    world.fence(1)
    world.fence(2)
    assert (world.state().leader, world.state().isr) == (-1, (2,))


def test_with_elr_the_last_member_becomes_eligible_and_is_remembered():
    """T37"""
    world = World(1, 2)
    world.create("t", [1, 2], configs={"min.insync.replicas": "2"})
    world.fence(1)
    world.fence(2)
    state = world.state()
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (-1, (), (1, 2), (2,))


@pytest.mark.parametrize("resource", [(TOPIC, "t"), (BROKER, "")])
def test_another_min_isr_leaves_partitions_that_nobody_leads_their_elr(resource):
    world = World(1, 2, 3)
    world.create("t", [1, 2], [3, 2], configs={"min.insync.replicas": "2"})
    for broker in (2, 1):
        world.fence(broker)
    assert (world.state().isr, world.state().elr, world.state().last_known_elr) == ((), (1, 2), (1,))
    assert (world.state(index=1).isr, world.state(index=1).elr) == ((3,), (2,))
    changes = {resource: {"min.insync.replicas": (SET, "1")}}
    records, outcome = finish(plan_incremental(world.image, world.config, changes))
    assert outcome == {resource: None}
    world.commit(records)
    assert (world.state().isr, world.state().elr, world.state().last_known_elr) == ((), (1, 2), (1,))
    assert (world.state(index=1).isr, world.state(index=1).elr) == ((3,), ())  # 3 may be alone with a record
    assert world.indexes == indexes_of(world.image)
    world.beat(2)
    left = () if resource[0] == TOPIC else (1,)  # 2 may commit alone, unless the topic's own minimum is 2
    assert (world.state().leader, world.state().isr, world.state().elr) == (2, (2,), left)


@pytest.mark.parametrize("again", [False, True])
def test_nobody_is_eligible_to_lead_because_of_an_elr_from_before_a_downgrade(again):
    """With level 0, another min.insync.replicas does not clear it: the leader may be alone with records."""
    world = World(1, 2)
    world.create("t", [1, 2], configs={"min.insync.replicas": "2"})
    world.fence(2)
    assert (world.state().isr, world.state().elr) == ((1,), (2,))

    def update(level):
        cls = messages.UpdateFeaturesRequest
        wanted = cls.FeatureUpdates(
            feature="eligible.leader.replicas.version",
            max_version_level=level,
            upgrade_type=UPGRADE if level else SAFE_DOWNGRADE,
        )
        plan = plan_update(world.image, 9, (9,), 1, cls(feature_updates=[wanted]), print, 1)
        records, response = finish(plan)
        assert not response.error_code
        world.commit(records)

    update(0)
    world.configure("t", min_insync_replicas="1")
    if again:
        update(1)
    world.beat(2)
    world.fence(1)
    assert (world.state().leader, world.state().isr) == (-1, () if again else (1,))
    assert world.indexes == indexes_of(world.image)
    world.beat(1)
    assert (world.state().leader, world.state().isr) == (1, (1,))


def test_an_eligible_leader_is_alone_in_sync():
    """T38"""
    world = World(1, 2)
    world.create("t", [1, 2], configs={"min.insync.replicas": "2"})
    world.fence(1)
    world.fence(2)
    world.beat(1)
    state = world.state()
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (1, (1,), (2,), ())
    assert state.leader_recovery_state == RECOVERED


def test_an_unclean_leader_recovers_alone():
    """T38"""
    world = World(1, 2, elr=False)
    world.create("t", [1, 2])
    world.fence(1)
    world.fence(2)
    world.configure("t", unclean_leader_election_enable="true")
    world.beat(1)
    state = world.state()
    assert (state.leader, state.isr, state.leader_recovery_state) == (1, (1,), RECOVERING)
    world.beat(2)
    wrong = world.alter(1, [1, 2], leader_recovery_state=RECOVERING)
    assert wrong.error_code == errors.INVALID_REQUEST
    assert world.alter(1, [1, 2], leader_recovery_state=RECOVERED).error_code == 0
    assert world.state().leader_recovery_state == RECOVERED


def test_an_unclean_leader_out_of_the_elr_clears_it():
    """A member of the ISR may not lead: the election is unclean, though the ELR knows who leads."""
    before = PartitionState(1, 4, (1, 2), (1,), (bytes(16),) * 2, 9, elr=(2,))
    record = change_of(
        b"t" * 16, 0, before, target_isr=(1,), acceptable=(2,).__contains__, elr_enabled=True,
        min_insync_replicas=2, unclean_allowed=True,
    )  # fmt: skip
    assert (record.leader, record.isr, record.eligible_leader_replicas) == (2, [2], [])
    assert record.leader_recovery_state == RECOVERING


def state_of(replicas, isr, leader, **fields):
    return PartitionState(leader, 4, replicas, isr, (b"x" * 16,) * len(replicas), 9, **fields)


def change(before, isr, up, **settings):
    settings = {"elr_enabled": False, "default_directory": lambda broker: bytes([broker]) * 16} | settings
    return change_of(b"t" * 16, 0, before, target_isr=isr, acceptable=up.__contains__, **settings)


def test_a_reassignment_is_completed_with_any_change():
    """T39: its last adding replica comes into the ISR, and the leader has to go."""
    before = state_of((3, 2, 1), (1, 2), 1, adding_replicas=(3,), removing_replicas=(1,))
    record = change(before, (1, 2, 3), {1, 2, 3})
    assert (record.leader, record.isr, record.replicas) == (3, [2, 3], [3, 2])
    assert (record.adding_replicas, record.removing_replicas) == ([], [])
    assert record.directories == [b"x" * 16] * 2


def test_alter_partition_that_completes_a_reassignment_may_depose_who_asks(world):
    """T39"""
    world.create("t", [1, 2])
    topic_id = world.image.topics["t"].topic_id
    world.commit(
        [
            messages.PartitionChangeRecord(
                partition_id=0, topic_id=topic_id, replicas=[3, 2, 1], adding_replicas=[3],
                removing_replicas=[1], directories=[directory_of(each) for each in (3, 2, 1)],
            )
        ]
    )  # fmt: skip
    assert list(world.indexes.reassigning) == [(topic_id, 0)]
    assert world.alter(1, [1, 2, 3]).error_code == errors.NEW_LEADER_ELECTED
    assert (world.state().leader, world.state().replicas, world.state().isr) == (3, (3, 2), (2, 3))
    assert not world.indexes.reassigning


def test_a_reassignment_to_fewer_replicas_waits_for_all_that_stay():
    before = state_of((4, 3, 2, 1, 0), (0, 1), 0, adding_replicas=(4,), removing_replicas=(0, 1))
    record = change(before, (0, 1, 4), {0, 1, 4})
    assert (record.replicas, record.isr) == (None, [0, 1, 4])


def test_a_dropped_replica_raises_the_leader_epoch():
    """T40"""
    before = state_of((1, 2, 3), (1, 2, 3), 1)
    record = change(before, (1, 2), {1, 2, 3}, assignment=Assignment((1, 2), (), ()))
    assert record.leader == 1
    added = change(before, (1, 2, 3), {1, 2, 3}, assignment=Assignment((1, 2, 3, 4), (4,), ()))
    assert (added.leader, added.directories[-1]) == (-2, bytes([4]) * 16)


def test_a_shrinking_isr_raises_the_leader_epoch_before_3_6_only():
    before = state_of((1, 2), (1, 2), 1)
    assert change(before, (1,), {1}).leader == -2
    assert change(before, (1,), {1}, level=11).leader == 1


# -- AlterPartition ----------------------------------------------------------------------------------------


def test_the_leader_shrinks_and_expands_the_isr(world):
    world.create("t", [1, 2, 3])
    row = world.alter(1, [1, 2])
    assert (row.error_code, row.isr, row.partition_epoch, row.leader_epoch) == (0, [1, 2], 1, 0)
    again = world.alter(1, [1, 2])
    assert (again.error_code, again.isr, again.partition_epoch) == (0, [1, 2], 1)
    assert world.records == []
    assert world.alter(1, [1, 2, 3]).isr == [1, 2, 3]


@pytest.mark.parametrize(
    ("broker", "isr", "fields", "code"),
    [
        (1, [1], {"topic_id": b"?" * 16}, errors.UNKNOWN_TOPIC_ID),
        (1, [1], {"index": 5}, errors.UNKNOWN_TOPIC_OR_PARTITION),
        (1, [1], {"leader_epoch": 2}, errors.NOT_CONTROLLER),  # T41
        (1, [1], {"partition_epoch": 2}, errors.NOT_CONTROLLER),  # T41
        (1, [1], {"leader_epoch": -1}, errors.FENCED_LEADER_EPOCH),
        (2, [1, 2], {}, errors.INVALID_REQUEST),
        (1, [1], {"partition_epoch": -1}, errors.INVALID_UPDATE_VERSION),
        (1, [1, 1], {}, errors.INVALID_REQUEST),
        (1, [1, 4], {}, errors.INVALID_REQUEST),
        (1, [2, 3], {}, errors.INVALID_REQUEST),
        (1, [], {}, errors.INVALID_REQUEST),
        (1, [1], {"leader_recovery_state": RECOVERING}, errors.INVALID_REQUEST),
        (1, [1], {"leader_recovery_state": 7}, errors.INVALID_REQUEST),
        (1, [(1, -1), (2, 99)], {}, errors.INELIGIBLE_REPLICA),  # T6
    ],
)
def test_what_cannot_be_is_refused(world, broker, isr, fields, code):
    world.create("t", [1, 2, 3])
    before = world.image
    assert world.alter(broker, isr, **fields).error_code == code
    assert world.state() == before.topics["t"].partitions[0]


def test_a_member_that_has_registered_again_is_not_eligible_by_its_old_epoch(world):
    """T6: it may have lost what it had fetched."""
    world.create("t", [1, 2])
    old = world.image.brokers[2].epoch
    world.now_ms = SESSION_MS + 1
    world.register(2)
    world.beat(2)
    assert world.alter(1, [(1, -1), (2, old)]).error_code == errors.INELIGIBLE_REPLICA
    assert world.alter(1, [(1, -1), (2, world.image.brokers[2].epoch)]).error_code == 0


def test_before_version_3_epochs_are_not_checked(world):
    world.create("t", [1, 2, 3])
    assert world.alter(1, [(1, 77), (2, 77)], version=2).isr == [1, 2]


def test_a_request_of_an_old_registration_is_refused_whole(world):
    world.create("t", [1, 2])
    assert refused(world.alter, 1, [1], broker_epoch=0) == errors.STALE_BROKER_EPOCH


def test_a_member_in_controlled_shutdown_is_not_eligible(world):
    world.create("t", [1, 2, 3])
    world.create("led", [2])
    world.beat(2, want_shut_down=True)
    assert world.state().isr == (1, 3)
    assert world.alter(1, [1, 2, 3]).error_code == errors.INELIGIBLE_REPLICA


# -- elections ---------------------------------------------------------------------------------------------


def test_preferred_leaders_lead_again(world):
    world.create("t", [1, 2], [2, 1])
    world.fence(1)
    world.beat(1)
    assert world.elect(PREFERRED, ("t", 0)) == {("t", 0): errors.PREFERRED_LEADER_NOT_AVAILABLE}
    world.alter(2, [2, 1])
    assert world.elect(PREFERRED, ("t", 0), ("t", 1), ("t", 9), ("u", 0)) == {
        ("t", 0): 0,
        ("t", 1): errors.ELECTION_NOT_NEEDED,
        ("t", 9): errors.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): errors.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert world.state().leader == 1
    assert world.elect(PREFERRED) == {}
    long = "u" * 32_767  # which the message cannot repeat
    assert world.elect(PREFERRED, (long, 0)) == {(long, 0): errors.UNKNOWN_TOPIC_OR_PARTITION}


def test_the_clock_brings_preferred_leaders_back(world):
    world.create("t", *[[1, 2]] * 3)
    world.fence(1)
    world.beat(1)
    assert world.balance() is False
    assert {world.state("t", index).leader for index in range(3)} == {2}
    for index in range(3):
        world.alter(2, [2, 1], index=index)
    world.balance()
    assert {world.state("t", index).leader for index in range(3)} == {1}
    assert not world.indexes.imbalanced


def test_unclean_elections_are_for_partitions_without_a_leader():
    world = World(1, 2, elr=False)
    world.create("t", [1, 2])
    assert world.elect(UNCLEAN, ("t", 0)) == {("t", 0): errors.ELECTION_NOT_NEEDED}
    world.fence(1)
    world.fence(2)
    assert world.elect(UNCLEAN, ("t", 0)) == {("t", 0): errors.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    world.beat(1)
    assert world.state().leader == -1
    world.elect_uncleanly()
    assert world.state().leader == -1  # the topic does not allow it
    assert world.elect(UNCLEAN, ("t", 0)) == {("t", 0): 0}
    assert (world.state().leader, world.state().leader_recovery_state) == (1, RECOVERING)


@pytest.mark.parametrize("elr", [True, False])
def test_a_partition_whose_disk_is_lost_is_led_from_another_directory_if_it_is_named(elr):
    """The election for all partitions does not do it, nor does the topic's configuration."""
    world = World(elr=elr)
    world.join(1, log_dirs=[directory_of(1, number) for number in (0, 1)])
    world.create("t", [1], configs={"unclean.leader.election.enable": "true"})
    world.assign(1, directory_of(1, 1))
    world.fence(1)
    world.join(1, log_dirs=[directory_of(1, number) for number in (0, 2)])
    world.elect_uncleanly()
    assert world.state().leader == -1
    assert world.elect(UNCLEAN) == {("t", 0): errors.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    before = world.image
    assert world.elect(UNCLEAN, ("t", 0)) == {("t", 0): 0}
    world.check(before)
    state = world.state()
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (1, (1,), (), ())
    assert state.leader_recovery_state == RECOVERING
    assert state.directories == (directory_of(1, 0),)
    assert world.elect(UNCLEAN, ("t", 0)) == {("t", 0): errors.ELECTION_NOT_NEEDED}


@pytest.mark.parametrize("others", [[], [directory_of(1, 2)]])
def test_a_lost_partition_goes_to_a_cordoned_directory_only_if_there_is_no_other(others):
    world = World()
    world.join(1, log_dirs=[directory_of(1, 0), directory_of(1, 1)])
    world.create("t", [1])
    world.assign(1, directory_of(1, 1))
    world.fence(1)
    cordoned = directory_of(1, 0)
    world.join(1, log_dirs=[cordoned, *others])
    world.beat(1, cordoned_log_dirs=[cordoned])
    world.elect(UNCLEAN, ("t", 0))
    assert world.state().directories == ((*others, cordoned)[0],)


def test_no_broker_begins_empty_while_another_may_have_the_log():
    world = World(1, 2)
    world.create("t", [1, 2])
    world.fence(2)
    world.fence(1)
    world.join(1, log_dirs=[directory_of(1, 1)])
    refusal = {("t", 0): errors.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    assert world.elect(UNCLEAN, ("t", 0)) == refusal
    world.fence(1)
    world.unregister(2)
    assert world.elect(UNCLEAN, ("t", 0)) == refusal  # nobody is up
    world.beat(1)
    assert world.elect(UNCLEAN, ("t", 0)) == {("t", 0): 0}
    assert (world.state().leader, world.state().isr) == (1, (1,))


def test_the_clock_elects_uncleanly_where_the_topic_allows_it():
    world = World(1, 2, elr=False)
    world.create("t", [1, 2])
    world.fence(1)
    world.fence(2)
    world.beat(1)
    world.configure("t", unclean_leader_election_enable="true")
    world.elect_uncleanly()
    assert world.state().leader == 1


def test_a_partition_that_is_named_twice_is_elected_once(world):
    world.create("t", [1, 2])
    world.fence(1)
    world.beat(1)
    world.alter(2, [2, 1])
    world.elect(PREFERRED, ("t", 0), ("t", 0))
    assert len(world.records) == 1


# -- placement ---------------------------------------------------------------------------------------------


def test_replicas_are_spread_over_racks():
    world = World()
    for broker in range(6):
        world.join(broker, rack=f"r{broker % 3}")
    world.create("t", partitions=12, factor=3)
    for state in world.image.topics["t"].partitions.values():
        assert {replica % 3 for replica in state.replicas} == {0, 1, 2}
    leaders = [state.leader for state in world.image.topics["t"].partitions.values()]
    assert {leaders.count(broker) for broker in range(6)} == {2}


def test_a_broker_in_controlled_shutdown_takes_no_new_replicas(world):
    world.create("t", [1])
    world.beat(1, want_shut_down=True)
    assert world.create("u", partitions=1, factor=3) == errors.INVALID_REPLICATION_FACTOR
    assert world.create("u", partitions=4, factor=2) == 0
    assert all(1 not in state.replicas for state in world.image.topics["u"].partitions.values())


def test_fenced_brokers_count_for_replicas_and_lead_nothing(world):
    world.fence(1)
    assert world.create("t", partitions=6, factor=3) == 0
    for state in world.image.topics["t"].partitions.values():
        assert 1 in state.replicas
        assert 1 not in state.isr
        assert state.leader != 1


# -- anything, in any order --------------------------------------------------------------------------------


class Chance:
    """Random operations of brokers, leaders and administrators on one world."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.world = World(elr=self.random.random() < 0.7)
        self.count = 0

    def run(self, steps):
        for _ in range(steps):
            before = self.world.image
            self.world.now_ms += self.random.choice((0, 0, 10, SESSION_MS // 2, SESSION_MS + 1))
            getattr(self, self.random.choice(self.OPERATIONS))()
            self.world.check(before)

    OPERATIONS = (
        "register", "register", "beat", "beat", "beat", "beat", "leave", "fence", "create", "alter", "alter",
        "alter", "elect", "balance", "unclean", "assign", "configure", "delete", "unregister", "offline",
        "reassign",
    )  # fmt: skip

    @property
    def brokers(self):
        return list(self.world.image.brokers)

    def one(self, some):
        return self.random.choice(list(some)) if some else None

    def register(self):
        broker = self.random.randint(1, 5)
        known = self.world.image.brokers.get(broker)
        previous = known.epoch if known is not None and self.random.random() < 0.5 else -1
        refused(
            self.world.register, broker, previous_broker_epoch=previous,
            log_dirs=[directory_of(broker, number) for number in range(self.random.randint(1, 2))],
        )  # fmt: skip

    def beat(self):
        if (broker := self.one(self.brokers)) is not None:
            offset = self.world.image.offset - self.random.choice((0, 0, 0, 1, 30))
            self.world.beat(broker, offset=offset, want_fence=self.random.random() < 0.1)

    def leave(self):
        if (broker := self.one(self.brokers)) is not None:
            self.world.beat(broker, want_shut_down=True)

    def offline(self):
        if (broker := self.one(self.brokers)) is not None and self.random.random() < 0.3:
            self.world.beat(broker, offline_log_dirs=[directory_of(broker, 1)])

    def fence(self):
        expired = self.world.heartbeats.expired(self.world.now_ms)
        known = self.world.image.brokers.get(expired[0]) if expired is not None else None
        if known is not None and known.epoch == expired[1]:
            self.world.fence(known.broker_id)

    def create(self):
        self.count += 1
        settings = {"min.insync.replicas": str(self.random.randint(1, 3))}
        if self.random.random() < 0.3:
            settings["unclean.leader.election.enable"] = "true"
        self.world.create(
            f"t{self.count}", partitions=self.random.randint(1, 4), factor=self.random.randint(1, 3),
            configs=settings,
        )  # fmt: skip

    def delete(self):
        if (name := self.one(self.world.image.topics)) is not None and self.random.random() < 0.3:
            self.world.delete(name)

    def partition(self):
        name = self.one(self.world.image.topics)
        if name is None:
            return None
        index = self.one(self.world.image.topics[name].partitions)
        return name, index, self.world.state(name, index)

    def alter(self):
        if (found := self.partition()) is None or found[2].leader < 0:
            return
        name, index, state = found
        isr = [each for each in state.replicas if each == state.leader or self.random.random() < 0.7]
        recovery = RECOVERED if self.random.random() < 0.9 else RECOVERING
        self.world.alter(state.leader, isr, topic=name, index=index, leader_recovery_state=recovery)

    def elect(self):
        if (found := self.partition()) is not None:
            self.world.elect(self.random.choice((PREFERRED, UNCLEAN)), found[:2])

    def balance(self):
        self.world.balance()

    def unclean(self):
        self.world.elect_uncleanly()

    def assign(self):
        if (found := self.partition()) is not None:
            broker = self.random.choice(found[2].replicas)
            if broker in self.world.image.brokers:
                number = self.random.randint(0, 2)
                self.world.assign(broker, directory_of(broker, number), topic=found[0], index=found[1])

    def configure(self):
        if (name := self.one(self.world.image.topics)) is not None:
            value = self.random.choice(("true", "false"))
            self.world.configure(name, unclean_leader_election_enable=value)

    def unregister(self):
        broker = self.one(self.brokers)
        if broker is not None and self.world.image.brokers[broker].fenced and self.random.random() < 0.2:
            self.world.unregister(broker)

    def reassign(self):
        """As AlterPartitionReassignments would: replicas = target + removing."""
        if (found := self.partition()) is None or not self.brokers:
            return
        name, index, state = found
        target = self.random.sample(self.brokers, min(len(self.brokers), self.random.randint(1, 3)))
        adding = tuple(each for each in target if each not in state.replicas)
        removing = tuple(each for each in state.replicas if each not in target)
        if state.adding_replicas or state.removing_replicas:
            return
        from kafkad.controller.leadership import change_in

        wanted = Assignment((*target, *removing), adding, removing)
        topic = self.world.image.topics[name]
        record = change_in(self.world.image, self.world.settings, topic, index, assignment=wanted)
        self.world.commit([record] if record is not None else [])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_every_leader_is_in_sync_and_every_index_right(seed, rounds):
    for number in range(rounds(3, 500)):
        Chance(seed * 1_000 + number).run(120)


def test_indexes_that_follow_are_those_that_are_built(world):
    world.create("t", [1, 2], [2, 3])
    world.fence(2)
    assert world.indexes == indexes_of(world.image)


class FullLog:
    """A QuorumLog of one voter, which leads on. `room`: whether its disk has room."""

    node_id, term, room = 9, 1, True

    def __init__(self, world):
        self.world = world

    @property
    def head(self):
        return self.world.image

    image = head

    def append_steps(self, records, *, atomic=True):
        yield
        if not self.room:
            raise KafkaError(errors.KAFKA_STORAGE_ERROR, "no space left")
        before = self.world.image
        self.world.image, _ = applied(before, records, offset=before.offset + len(records))


@pytest.mark.parametrize("early", [False, True])
def test_a_broker_that_could_not_be_fenced_is_fenced_when_the_disk_has_room(world, early):
    world.create("t", [1, 2])
    log, clock = FullLog(world), ManualClock()
    controller = QuorumController(log, clock, world.random, world.config, CLUSTER)
    controller._begin()
    log.room = False
    dead = (1, world.image.brokers[1].epoch)
    if early:
        assert refused(finish, controller.fence_dead(dead, lambda: True)) == errors.KAFKA_STORAGE_ERROR
    else:
        clock.advance(SESSION_MS + 1)
        assert refused(finish, controller.fence_stale()) == errors.KAFKA_STORAGE_ERROR
    assert not world.image.brokers[1].fenced
    log.room = True
    finish(controller.fence_stale())
    assert world.image.brokers[1].fenced and world.state().leader == 2
