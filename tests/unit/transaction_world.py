"""A transaction coordinator alone in the world: clock, timers, log, producer ids, partitions are the test's.

`Partition` is a toy with Kafka's rules for producers and markers: who may append in which epoch, what a
marker may end (KIP-890, KAFKA-19999), and the guard that a first batch needs."""

import itertools

from coordinator_world import START_MS, ManualScheduler, MemoryStorage

from kafkad.clock import ManualClock
from kafkad.config.broker import BrokerConfig
from kafkad.coordinator.runtime import at_once
from kafkad.coordinator.transaction import State
from kafkad.coordinator.transactions import TransactionCoordinator
from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.records import read_batches

ID = "id"


class StateStorage(MemoryStorage):
    """`__transaction_state` in memory."""

    def __init__(self, partitions=3):
        super().__init__(partitions)
        self.epochs = {}
        self.failures = []  # error codes of the next appends
        self.timeouts_ms = []

    def leader_epoch(self, partition):
        return self.epochs.get(partition, 0)

    def append(self, partition, batch, callback, timeout_ms):
        self.timeouts_ms.append(timeout_ms)
        if self.failures:
            callback(self.failures.pop(0), -1)
        else:
            super().append(partition, batch, callback)

    def records(self):
        """(key, value) of every record, in the order of each partition's log."""
        for batches in self.logs.values():
            for data in batches:
                for batch in read_batches(data):
                    yield from ((record.key, record.value) for record in batch.records())


class Producer:
    def __init__(self):
        self.epoch = -1
        self.open_at = None
        self.coordinator_epoch = -1


class Partition:
    """One log: a list of ("data", producer id, epoch, value) and ("end", producer id, epoch, commit)."""

    def __init__(self):
        self.log = []
        self.producers = {}
        self.guards = {}  # producer id -> (epoch, guard)
        self._guards = itertools.count(1)

    def ask(self, producer_id, epoch):
        """The guard with which the first batch of a transaction is to be appended; 0 if one is open."""
        known = self.producers.get(producer_id)
        if known is not None and known.open_at is not None and known.epoch == epoch:
            return 0
        _, guard = self.guards.get(producer_id, (0, 0))
        guard = guard or next(self._guards)
        self.guards[producer_id] = (epoch, guard)
        return guard

    def append(self, producer_id, epoch, value, guard):
        """The error code."""
        known = self.producers.get(producer_id)
        if known is not None and epoch < known.epoch:
            return errors.INVALID_PRODUCER_EPOCH
        is_open = known is not None and known.open_at is not None and known.epoch == epoch
        if not is_open and (not guard or self.guards.get(producer_id) != (epoch, guard)):
            return errors.INVALID_TXN_STATE
        if known is None:
            known = self.producers[producer_id] = Producer()
        assert known.open_at is None or known.epoch == epoch, "a new epoch inside of a transaction"
        self.guards.pop(producer_id, None)
        known.epoch = epoch
        if known.open_at is None:
            known.open_at = len(self.log)
        self.log.append(("data", producer_id, epoch, value))
        return errors.NONE

    def end(self, marker):
        """The error code."""
        known = self.producers.setdefault(marker.producer_id, Producer())
        if marker.coordinator_epoch < known.coordinator_epoch:
            return errors.TRANSACTION_COORDINATOR_FENCED
        if marker.transaction_version >= 2:
            repeated = marker.producer_epoch == known.epoch and known.open_at is None
            if marker.producer_epoch <= known.epoch and not repeated:
                return errors.INVALID_PRODUCER_EPOCH
        elif marker.producer_epoch < known.epoch:
            return errors.INVALID_PRODUCER_EPOCH
        guard_epoch, _ = self.guards.get(marker.producer_id, (None, 0))
        if marker.transaction_version < 2 or guard_epoch != marker.producer_epoch:
            self.guards.pop(marker.producer_id, None)
        known.epoch = marker.producer_epoch
        known.coordinator_epoch = marker.coordinator_epoch
        known.open_at = None
        self.log.append(("end", marker.producer_id, marker.producer_epoch, marker.commit))
        return errors.NONE

    def committed(self):
        """The values that a reader of committed records gets."""
        found, held = [], {}
        for kind, producer_id, _, what in self.log:
            if kind == "data":
                held.setdefault(producer_id, []).append(what)
            else:
                values = held.pop(producer_id, [])
                found.extend(values if what else ())
        return found


class Transport:
    """Markers go straight into the toy partitions, unless they are held or fail."""

    def __init__(self):
        self.partitions = {("t", index): Partition() for index in range(4)}
        self.held = None
        self.failures = []  # error codes of the next markers
        self.sent = []

    def exists(self, partition):
        return partition in self.partitions

    def write_markers(self, marker, partitions, done):
        if self.held is not None:
            self.held.append((marker, partitions, done))
            return
        done({each: self.write(marker, each) for each in partitions})

    def write(self, marker, partition):
        self.sent.append((marker, partition))
        if self.failures:
            return self.failures.pop(0)
        if partition not in self.partitions:
            return errors.UNKNOWN_TOPIC_OR_PARTITION
        return self.partitions[partition].end(marker)

    def hold(self):
        self.held = []

    def release(self):
        waiting, self.held = self.held or [], None
        for marker, partitions, done in waiting:
            self.write_markers(marker, partitions, done)


class TransactionWorld:
    def __init__(self, version=2, **config):
        self.clock = ManualClock(START_MS, 5_000)
        self.scheduler = ManualScheduler(self.clock)
        self.storage = StateStorage()
        self.transport = Transport()
        self.version = version
        self.overrides = {key.replace("_", "."): str(value) for key, value in config.items()}
        self.ids = itertools.count(1000)
        self.start()

    def start(self):
        self.coordinator = TransactionCoordinator(
            BrokerConfig.load(None, self.overrides),
            self.clock,
            self.scheduler,
            self.storage,
            self.transport,
            self.new_producer_id,
            lambda: self.version,
        )
        for partition in range(self.storage.partitions):
            self.coordinator.load(partition, self.storage.logs.get(partition, []))

    def new_producer_id(self):
        if self.ids is None:
            raise KafkaError(errors.COORDINATOR_LOAD_IN_PROGRESS)
        return next(self.ids)

    def restart(self):
        """The coordinator dies, and another one reads its log."""
        self.coordinator.close()
        self.transport.held = None if self.transport.held is None else []
        self.storage.held = None
        self.storage.epochs = {index: self.storage.leader_epoch(index) + 1 for index in range(3)}
        self.start()

    def transaction(self, name=ID):
        shard = self.coordinator.shards[self.coordinator.partition_for(name)]
        return shard.transactions.get(name)

    @property
    def state(self):
        return self.transaction().state

    # -- requests: each gives a list that will hold the one answer

    def init(self, name=ID, timeout_ms=60_000, expected=None):
        heard = []
        self.coordinator.init_producer_id(name, timeout_ms, expected, lambda *answer: heard.append(answer))
        return heard

    def add(self, who, *indexes, name=ID, version=0, topic="t"):
        heard = []
        partitions = [(topic, index) for index in indexes or (0,)]
        self.coordinator.add_partitions(name, *who, partitions, version, heard.append)
        return heard

    def verify(self, who, *indexes, name=ID):
        heard = []
        self.coordinator.verify_partitions(name, *who, [("t", index) for index in indexes], heard.append)
        return heard

    def end(self, who, commit, name=ID, version=0):
        heard = []
        reply = lambda *answer: heard.append(answer)  # noqa: E731
        self.coordinator.end(name, *who, commit, version, reply)
        return heard

    def list(self, *arguments, **named):
        return at_once(self.coordinator.list(*arguments, **named))

    # -- states to begin a test in

    def began(self, version=0, name=ID):
        """(producer id, epoch) of an id with an open transaction in t-0."""
        ((code, *who),) = self.init(name)
        assert code == errors.NONE
        assert self.add(who, name=name, version=version) == [errors.NONE]
        return tuple(who)

    def ended(self, commit, version=0):
        """The producer id and epoch with which a transaction began, and those of the next one."""
        who = self.began(version)
        ((code, *after),) = self.end(who, commit, version=version)
        assert code == errors.NONE
        assert self.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
        return who, tuple(after) if version >= 2 else who

    def at_epoch(self, epoch, version=0):
        """(producer id, epoch) of an id at rest whose epochs have come this far."""
        ((_, producer_id, _),) = self.init()
        self.transaction().producer_epoch = epoch
        return producer_id, epoch
