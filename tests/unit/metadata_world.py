"""A metadata log in memory, and one broker with its controller on it: what the tests of metadata start and
stop."""

import inspect
import random

from kafkad.clock import ManualClock
from kafkad.config.broker import BrokerConfig
from kafkad.controller.brokers import Registration
from kafkad.controller.controller import Controller
from kafkad.log.metadata_files import MetadataFiles
from kafkad.metadata.image import Endpoint
from kafkad.metadata.uuids import random_uuid
from kafkad.protocol import messages
from kafkad.protocol.records import read_batches
from kafkad.raft.single_voter import SingleVoter
from kafkad.server.metadata_snapshots import MetadataSnapshots

DIR = b"d" * 16
LISTENERS = {"PLAINTEXT": Endpoint("127.0.0.1", 9092, 0)}


class MemoryLog:
    """A log in memory that loses on `crash` what was not flushed, and fails when told to."""

    def __init__(self, directory="memory", batches=()):
        self.directory = directory
        self.stored = [bytes(batch) for batch in batches]
        self.synced = len(self.stored)
        self.log_start_offset = 0
        self.empty_at = 0  # where it goes on when it has no batch
        self.leader_epoch = 0
        self.failing = None
        self.holding = False  # flushes that were asked for do not end
        self.awaited = []

    @property
    def recovery_point(self):
        for batch in read_batches(self.stored[self.synced - 1] if self.synced else b""):
            return batch.last_offset + 1
        return self.empty_at

    @property
    def end_offset(self):
        for batch in read_batches(self.stored[-1] if self.stored else b""):
            return batch.last_offset + 1
        return self.empty_at

    @property
    def size(self):
        return sum(map(len, self.stored))

    def append(self, batch, now_ms, *, origin="coordinator", epoch=None):
        assert origin == "raft"
        if self.failing == "append":
            raise OSError(28, "No space left on device")
        (header,) = read_batches(batch)
        assert header.base_offset == self.end_offset
        assert header.leader_epoch == epoch == self.leader_epoch
        assert header.is_intact()
        self.stored.append(bytes(batch))
        return header.base_offset

    def flush(self):
        if self.failing == "flush":
            raise OSError(5, "Input/output error")
        self.synced = len(self.stored)

    def await_flushed(self, offset, callback):
        self.awaited.append(callback)
        if not self.holding:
            self.release()

    def release(self):
        """Flush, for all that wait."""
        self.holding = False
        awaited, self.awaited = self.awaited, []
        trouble = None
        try:
            self.flush()
        except OSError as e:
            trouble = e
        for callback in awaited:
            callback(trouble)

    def batches(self, start, end):
        for raw in list(self.stored):
            (batch,) = read_batches(raw)
            if batch.last_offset >= start:
                yield raw

    def set_leader_epoch(self, epoch):
        assert epoch >= self.leader_epoch
        self.leader_epoch = epoch

    def delete_records(self, before_offset):
        self.log_start_offset = max(self.log_start_offset, before_offset)
        return self.log_start_offset

    def apply_retention(self, now_ms):
        kept = [raw for raw in self.stored if next(read_batches(raw)).last_offset >= self.log_start_offset]
        dropped = len(self.stored) - len(kept)
        if not kept:
            self.empty_at = self.end_offset
        self.stored, self.synced = kept, len(kept)
        return dropped

    def truncate_fully_and_start_at(self, offset):
        self.stored, self.synced = [], 0
        self.log_start_offset = self.empty_at = offset

    def close(self):
        pass

    def crash(self):
        again = MemoryLog(self.directory, self.stored[: self.synced])
        again.log_start_offset, again.empty_at = self.log_start_offset, self.empty_at
        return again


class Now:
    """A scheduler whose threads have done their work when it is given to them."""

    def run_in_thread(self, fn, callback, lane="work"):
        trouble = None
        try:
            fn()
        except Exception as e:
            trouble = e
        callback(trouble)


def maybe_snapshot(voter):
    """Make a snapshot if one is due; was one made?"""
    before = voter.last_snapshot
    MetadataSnapshots(voter, Now()).make_if_due()
    return voter.last_snapshot != before


class AtOnce:
    """A Controller whose requests are done when the call returns. Where the log fails they raise."""

    def __init__(self, controller):
        object.__setattr__(self, "in_turns", controller)

    def __setattr__(self, name, value):
        setattr(self.in_turns, name, value)

    def auto_create(self, names, context=None):
        return self.__getattr__("auto_create")(names)

    def __getattr__(self, name):
        value = getattr(self.in_turns, name)
        if not inspect.isgeneratorfunction(value):
            return value

        def at_once(*arguments, **options):
            answer = self.in_turns.at_once(value(*arguments, **options))
            troubles = []
            self.in_turns.await_committed(self.in_turns.head.offset, troubles.append)
            if troubles != [None]:
                raise troubles[0]
            return answer

        return at_once


class Cluster:
    """One broker and its controller on a log in memory, that can be stopped and started again."""

    def __init__(self, path, **keys):
        self.config = BrokerConfig({key.replace("_", "."): str(value) for key, value in keys.items()})
        self.path = path
        self.clock = ManualClock(now_ms=1_700_000_000_000)
        self.random = random.Random(7)
        self.log = MemoryLog()
        self.heard = []
        self.previous_epoch = -1
        self.start()

    def start(self, directories=(DIR,)):
        self.voter = SingleVoter(
            node_id=1, directory_id=DIR, cluster_id="abc", log=self.log, files=MetadataFiles(str(self.path)),
            clock=self.clock,
        )  # fmt: skip
        self.voter.open()
        self.voter.lead()
        self.controller = AtOnce(Controller(self.voter, self.clock, self.random, self.config))
        self.controller.subscribe(lambda delta, image: self.heard.append((delta, image)))
        self.controller.register_broker(
            Registration(
                1, random_uuid(self.random), LISTENERS, directories, previous_epoch=self.previous_epoch
            )
        )

    def stop(self):
        self.controller.fence_broker()
        self.previous_epoch = self.controller.broker_epoch
        self.log = self.log.crash()

    def kill(self):
        self.previous_epoch = -1
        self.log = self.log.crash()

    @property
    def image(self):
        return self.controller.image

    def state(self, topic, index=0):
        return self.image.topics[topic].partitions[index]

    def append(self, *records):
        self.voter.append(list(records))


def new_topic(name, partitions=1, factor=1, configs=(), assignments=()):
    cls = messages.CreateTopicsRequest.Topics
    return cls(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[cls.Configs(name=key, value=value) for key, value in configs],
        assignments=[cls.Assignments(partition_index=i, broker_ids=ids) for i, ids in assignments],
    )


def create(cluster, *topics, validate_only=False):
    request = messages.CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return {result.name: result for result in cluster.controller.create_topics(request).topics}
