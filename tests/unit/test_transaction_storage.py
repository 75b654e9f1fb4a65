"""`__transaction_state` in a real log: what is answered is durable, and what was answered is loaded."""

from types import SimpleNamespace

import pytest
from log_world import LogWorld, ManualScheduler, topic_config
from transaction_world import Transport

from kafkad.clock import ManualClock
from kafkad.config.broker import BrokerConfig
from kafkad.coordinator.transaction import State
from kafkad.coordinator.transactions import TransactionCoordinator
from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from kafkad.server.group_loader import GroupLoader
from kafkad.server.transaction_storage import TRANSACTION_TOPIC, TransactionStorage

ID = "id"


class World:
    """A coordinator with one partition, which is `log`, and toy partitions for the data."""

    def __init__(self, path, **config):
        self.scheduler = ManualScheduler()
        self.log_world = LogWorld(path, topic_config(**config), self.scheduler, epoch=4)
        self.transport = Transport()
        self.start()

    @property
    def log(self):
        return self.log_world.log

    def find(self, topic, index):
        return self.log if (topic, index) == (TRANSACTION_TOPIC, 0) else None

    def get(self, topic, index):
        found = self.find(topic, index)
        if found is None:
            raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER)
        return found

    def start(self):
        image = SimpleNamespace(topics={TRANSACTION_TOPIC: SimpleNamespace(partitions={0: None})})
        clock = ManualClock(1_700_000_000_000, 5_000)
        self.storage = TransactionStorage(self, SimpleNamespace(image=image), clock, self.scheduler)
        self.coordinator = TransactionCoordinator(
            BrokerConfig(), clock, self.scheduler, self.storage, self.transport, lambda: 1000, lambda: 2
        )
        loader = GroupLoader(self.coordinator, self, self.scheduler, TRANSACTION_TOPIC)
        loader.load(0)
        loader.load(1)  # is not here
        self.scheduler.run()

    def restart(self):
        self.coordinator.close()
        self.log_world.crash()
        self.scheduler = self.log_world.scheduler
        self.start()

    def init(self):
        heard = []
        self.coordinator.init_producer_id(ID, 9_000, None, lambda *answer: heard.append(answer))
        return heard

    def add(self, who):
        heard = []
        self.coordinator.add_partitions(ID, *who, [("t", 0)], 2, heard.append)
        return heard

    def end(self, who):
        heard = []
        self.coordinator.end(ID, *who, True, 2, lambda *answer: heard.append(answer))
        return heard

    @property
    def transaction(self):
        return self.coordinator.shards[0].transactions.get(ID)


def test_a_transaction_is_found_in_the_log_after_a_crash(tmp_path):
    world = World(tmp_path)
    assert world.init() == [(errors.NONE, 1000, 0)]
    assert world.add((1000, 0)) == [errors.NONE]
    world.restart()
    assert (world.transaction.state, world.transaction.partitions) == (State.ONGOING, {("t", 0)})
    assert world.end((1000, 0)) == [(errors.NONE, 1000, 1)]
    world.restart()
    assert (world.transaction.state, world.transaction.producer_epoch) == (State.COMPLETE_COMMIT, 1)


def test_markers_carry_the_epoch_of_the_partitions_leader(tmp_path):
    world = World(tmp_path)
    world.init()
    world.add((1000, 0))
    world.end((1000, 0))
    assert [marker.coordinator_epoch for marker, _ in world.transport.sent] == [4]


def test_a_coordinator_of_another_leader_epoch_writes_nothing(tmp_path):
    world = World(tmp_path)
    world.coordinator.lead(0, 4)
    assert world.init() == [(errors.NONE, 1000, 0)]
    end_offset = world.log.end_offset
    world.coordinator.lead(0, 3)
    assert world.add((1000, 0)) == [errors.NOT_COORDINATOR]
    assert world.log.end_offset == end_offset
    world.coordinator.lead(0, 4)
    assert world.add((1000, 0)) == [errors.NONE]


def test_markers_carry_an_epoch_in_which_the_leader_stayed(tmp_path):
    world = World(tmp_path)
    world.init()
    world.add((1000, 0))
    world.coordinator.shards[0].epoch = 3  # as of its load
    world.coordinator.lead(0, 4)
    world.end((1000, 0))
    assert [marker.coordinator_epoch for marker, _ in world.transport.sent] == [4]


def test_nothing_is_answered_before_it_is_on_the_disk(tmp_path):
    world = World(tmp_path, flush_messages=1)
    heard = world.init()
    assert heard == []
    world.scheduler.settle()
    assert heard == [(errors.NONE, 1000, 0)]


def test_a_disk_that_takes_longer_than_the_transaction_may_is_not_waited_for(tmp_path):
    world = World(tmp_path, flush_messages=1)
    heard = world.init()
    world.scheduler.run(8_999)
    assert heard == []
    world.scheduler.run(1)
    assert heard == [(errors.COORDINATOR_NOT_AVAILABLE, -1, -1)]
    world.scheduler.settle()
    assert len(heard) == 1
    world.restart()
    assert world.transaction.producer_epoch == 0  # it was written all the same


def test_what_is_too_large_for_the_topic_is_refused_with_a_log_line(tmp_path, caplog):
    world = World(tmp_path, max_message_bytes=100)
    assert world.init() == [(errors.UNKNOWN_SERVER_ERROR, -1, -1)]
    assert "max.message.bytes is 100" in caplog.text


def test_a_log_that_is_closed_is_no_longer_coordinated(tmp_path):
    world = World(tmp_path)
    world.init()
    world.log.close()
    assert world.init() == [(errors.NOT_COORDINATOR, -1, -1)]


def test_the_storage_knows_its_topic(tmp_path):
    world = World(tmp_path)
    assert (world.storage.partition_count(), world.storage.leader_epoch(0)) == (1, 4)
    assert world.storage.batch_size_max(0) == world.log.config.max_message_bytes
    with pytest.raises(KafkaError):
        world.storage.leader_epoch(1)
