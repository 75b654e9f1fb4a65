"""The same requests to a JVM controller and to a kafkad one give the same answers and the same records.

Ids that each side makes by itself (topic ids, broker epochs) are put into words before they are compared.

Kafka leaves removed replicas among the eligible ones, and may call -1 the last known leader; kafkad does not
(docs/differences.md). So changes are compared without these, and the topic is deleted then: both sides know
the same again."""

import asyncio
import contextlib
import itertools
import random
import shutil

import pytest

from kafkad.metadata.image import NO_LEADER, MetadataImage
from kafkad.metadata.records import Decoder, decode_record
from kafkad.metadata.replay import Loader
from kafkad.net.channel import Channel
from kafkad.protocol import messages
from kafkad.protocol.records import read_batches
from tests.controller_process import ControllerQuorum, formatted
from tests.jvm_cluster import JvmCluster
from tests.registrations import directory_of, registration

pytestmark = pytest.mark.java

CONFIG = {"broker.session.timeout.ms": 120_000, "leader.imbalance.check.interval.seconds": 3_600}
UNTOLD = (
    messages.NoOpRecord,
    messages.FeatureLevelRecord,
    messages.RegisterControllerRecord,
    messages.BeginTransactionRecord,
    messages.EndTransactionRecord,
)


class Side:
    """One controller, what it has written, and how it names things."""

    def __init__(self, name, cluster_id, port, directory):
        self.name, self.cluster_id, self.port = name, cluster_id, port
        self.directory = directory / "__cluster_metadata-0"
        self.channel = None
        self.read = 0  # offset

    async def connect(self):
        self.channel = await Channel.connect("127.0.0.1", self.port, "oracle", timeout_s=10)

    async def ask(self, request):
        return await self.channel.ask(request, timeout_s=20)

    def look(self):
        """(image, the records that came since the last look)"""
        content = b"".join(path.read_bytes() for path in sorted(self.directory.glob("*.log")))
        decoder, loader = Decoder(), Loader(MetadataImage(self.cluster_id))
        new = []
        for batch in read_batches(content):
            place = {"last_offset": batch.last_offset, "epoch": batch.leader_epoch, "timestamp_ms": 0}
            if not batch.is_control:
                records = [decoder.decode(record.value) for record in batch.records()]
                loader.feed(records, **place)
                if batch.base_offset >= self.read:
                    new += [decode_record(record.value) for record in batch.records()]
            loader.skip(**place)
            end = batch.last_offset + 1
        self.read = max(self.read, end)
        image, _ = loader.finish()
        return image, new


class Words:
    """What stands for an id: the how-manieth of its kind."""

    def __init__(self):
        self.known = {}
        self.names = {}  # of topics, by id

    def __call__(self, kind, value):
        return f"{kind} {self.known.setdefault((kind, value), len(self.known))}"

    def record(self, record, image):
        """`image`: after the request."""
        if type(record) in UNTOLD:
            return None
        if type(record) is messages.TopicRecord:
            self.names[bytes(record.topic_id)] = record.name
        text = {}
        for field in record.SPEC.fields:
            value = getattr(record, field.name)
            if field.name == "topic_id":
                value = self.names[bytes(value)]
            elif field.name == "broker_epoch" and value >= 0:
                value = self("epoch", value)
            text[field.name] = repr(value)
        if type(record) is messages.PartitionChangeRecord:
            state = image.topics[self.names[bytes(record.topic_id)]].partitions[record.partition_id]
            text["eligible_leader_replicas"] = repr([each for each in state.elr if each in state.replicas])
            if record.last_known_elr == [NO_LEADER]:
                text["last_known_elr"] = "None"
        return type(record).__name__, text


class JvmFailed(Exception):
    """The JVM controller answers UNKNOWN_SERVER_ERROR where kafkad does what was asked: an exception of its
    own, for instance over a last known leader that is no replica any more. The run ends there."""


class Oracle:
    """Random operations, each of them on both sides."""

    BROKERS = (1, 2, 3, 4)

    def __init__(self, sides, seed):
        self.sides = sides
        self.words = {side.name: Words() for side in sides}
        self.chance = random.Random(seed)
        self.incarnations = dict.fromkeys(self.BROKERS, 0)
        self.topics = 0
        self.told = []
        self.trace = []

    async def start(self):
        for side in self.sides:
            await side.connect()
            while side.look()[0].metadata_version == 0:
                await asyncio.sleep(0.05)
        self.images = [side.look()[0] for side in self.sides]

    async def both(self, what, make):
        """`make(image)` is the request; the answers and the records are the same."""
        answers, told = [], []
        for side, image in zip(self.sides, self.images, strict=True):
            answers.append(await side.ask(make(image)))
        if getattr(answers[1], "error_code", 0) == -1 and getattr(answers[0], "error_code", 0) != -1:
            raise JvmFailed(what)
        self.images = []
        for side in self.sides:
            image, records = side.look()
            self.images.append(image)
            words = self.words[side.name]
            texts = (words.record(each, image) for each in records)
            told.append(in_any_order(text for text in texts if text is not None))
        self.trace.append(what)
        last = "\n".join(map(str, self.trace[-15:]))
        assert told[0] == told[1], f"{what}\n{self._difference(*told)}\nafter\n{last}"
        assert codes(answers[0]) == codes(answers[1]), f"{what}: {answers}\nafter\n{last}"
        while (stale := stale_topic(self.images[1])) is not None:
            assert stale_topic(self.images[0]) is None
            await self._delete("stale", stale)
        self.told = told[0]
        return answers

    def _difference(self, ours, theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            if one != other:
                return f"record {number}:\n{self.sides[0].name} {one}\n{self.sides[1].name} {other}"
        return f"{self.sides[0].name}: {ours}\n{self.sides[1].name}: {theirs}"

    # -- operations ----------------------------------------------------------------------------------------

    async def run(self, count):
        for broker in self.BROKERS[:3]:
            await self.register(broker)
            await self.beat(broker)
        for _ in range(count):
            await getattr(self, self.chance.choice(self.OPERATIONS))()

    OPERATIONS = (
        "register", "beat", "beat", "beat", "beat", "leave", "fence", "create", "create", "alter", "alter",
        "alter", "alter", "elect", "elect", "reassign", "reassign", "cancel", "assign", "offline",
        "unregister", "ids", "delete", "grow",
    )  # fmt: skip

    @property
    def image(self):
        return self.images[0]

    def partition(self):
        topics = [topic for topic in self.image.topics.values() if topic.partitions]
        if not topics:
            return None
        topic = self.chance.choice(topics)
        return topic.name, self.chance.choice(list(topic.partitions))

    def known(self):
        return self.chance.choice(list(self.image.brokers)) if self.image.brokers else None

    async def register(self, broker=None):
        broker = broker or self.chance.choice(self.BROKERS)
        clean, again = self.chance.random() < 0.5, self.chance.random() < 0.2
        if not again or not self.incarnations[broker]:
            self.incarnations[broker] += 1
        incarnation = broker * 40 + self.incarnations[broker]

        def make(image):
            known = image.brokers.get(broker)
            request = registration(
                broker, incarnation, rack=f"r{broker % 2}",
                previous_broker_epoch=known.epoch if known is not None and clean else -1,
                log_dirs=[directory_of(broker), directory_of(broker, 1)],
            )  # fmt: skip
            request.cluster_id = image.cluster_id
            return request

        await self.both(("register", broker, clean), make)

    async def _heartbeat(self, what, broker, **fields):
        if broker is None:
            return

        def make(image):
            return messages.BrokerHeartbeatRequest(
                broker_id=broker,
                broker_epoch=image.brokers[broker].epoch,
                current_metadata_offset=image.offset,
                **fields,
            )

        await self.both((what, broker), make)
        # Kafka forgets how far a broker is with every change of its registration, until its next heartbeat
        # (BrokerHeartbeatManager.register): a controlled shutdown of another waits for it. kafkad does not.
        if "want_shut_down" not in fields and "want_fence" not in fields:
            while self.told:
                await self.both((what, broker, "again"), make)
            await self.both((what, broker, "again"), make)

    async def beat(self, broker=None):
        await self._heartbeat("beat", broker or self.known(), cordoned_log_dirs=[])

    async def leave(self):
        await self._heartbeat("leave", self.known(), want_shut_down=True)

    async def fence(self):
        await self._heartbeat("fence", self.known(), want_fence=True)

    async def offline(self):
        broker = self.known()
        if broker is not None:
            await self._heartbeat("offline", broker, offline_log_dirs=[directory_of(broker, 1)])

    async def unregister(self):
        if (broker := self.known()) is not None and self.chance.random() < 0.3:
            request = messages.UnregisterBrokerRequest(broker_id=broker)
            await self.both(("unregister", broker), lambda image: request)

    async def create(self):
        brokers = list(self.image.brokers)
        if not brokers:
            return
        self.topics += 1
        name = f"t{self.topics}"
        size = self.chance.randint(1, min(3, len(brokers)))
        lists = [self.chance.sample(brokers, size) for _ in range(2)]
        settings = {"min.insync.replicas": str(self.chance.randint(1, 2))}
        if self.chance.random() < 0.3:
            settings["unclean.leader.election.enable"] = "true"
        cls = messages.CreateTopicsRequest
        topic = cls.Topics(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                cls.Topics.Assignments(partition_index=index, broker_ids=ids)
                for index, ids in enumerate(lists)
            ],
            configs=[cls.Topics.Configs(name=key, value=value) for key, value in settings.items()],
        )
        await self.both(("create", name, lists, settings), lambda image: cls(topics=[topic]))

    async def grow(self):
        if (found := self.partition()) is None:
            return
        cls = messages.CreatePartitionsRequest
        replicas = self.image.topics[found[0]].partitions[0].replicas
        brokers = list(self.image.brokers)
        if len(brokers) < len(replicas):
            return
        ids = self.chance.sample(brokers, len(replicas))
        count = len(self.image.topics[found[0]].partitions) + 1
        topic = cls.Topics(name=found[0], count=count, assignments=[cls.Topics.Assignments(broker_ids=ids)])
        await self.both(("grow", found[0], ids), lambda image: cls(topics=[topic], timeout_ms=10_000))

    async def delete(self):
        if (found := self.partition()) is not None and self.chance.random() < 0.3:
            await self._delete("delete", found[0])

    async def _delete(self, what, name):
        cls = messages.DeleteTopicsRequest
        request = cls(topics=[cls.Topics(name=name)], timeout_ms=10_000)
        await self.both((what, name), lambda image: request)

    async def alter(self):
        if (found := self.partition()) is None:
            return
        name, index = found
        state = self.image.topics[name].partitions[index]
        if state.leader < 0:
            return
        isr = [each for each in state.replicas if each == state.leader or self.chance.random() < 0.8]
        with_epochs, stale = self.chance.random() < 0.5, self.chance.choice((0, 0, 0, 0, -1, 1))
        recovery = self.chance.choice((0, 0, 0, 1))

        def make(image):
            cls = messages.AlterPartitionRequest
            row = cls.Topics.Partitions
            topic = image.topics[name]
            state = topic.partitions[index]

            def epoch(member):
                return image.brokers[member].epoch if with_epochs and member in image.brokers else -1

            proposal = row(
                partition_index=index,
                leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch + stale,
                leader_recovery_state=recovery,
                new_isr_with_epochs=[
                    row.NewIsrWithEpochs(broker_id=each, broker_epoch=epoch(each)) for each in isr
                ],
            )
            return cls(
                broker_id=state.leader,
                broker_epoch=image.brokers[state.leader].epoch,
                topics=[cls.Topics(topic_id=topic.topic_id, partitions=[proposal])],
            )

        await self.both(("alter", name, index, isr, stale, recovery), make)

    async def elect(self):
        kind = self.chance.choice((0, 0, 1))
        found = self.partition() if self.chance.random() < 0.7 else None
        cls = messages.ElectLeadersRequest
        named = None
        if found is not None:
            named = [cls.TopicPartitions(topic=found[0], partitions=[found[1]])]
        request = cls(election_type=kind, topic_partitions=named)
        await self.both(("elect", kind, found), lambda image: request)

    async def _reassignment(self, what, found, target):
        cls = messages.AlterPartitionReassignmentsRequest
        row = cls.Topics.Partitions(partition_index=found[1], replicas=target)
        request = cls(topics=[cls.Topics(name=found[0], partitions=[row])])
        await self.both((what, found, target), lambda image: request)
        await self.both("list", lambda image: messages.ListPartitionReassignmentsRequest(topics=None))

    async def reassign(self):
        brokers = list(self.image.brokers)
        if (found := self.partition()) is not None and brokers:
            target = self.chance.sample(brokers, self.chance.randint(1, min(3, len(brokers))))
            await self._reassignment("reassign", found, target)

    async def cancel(self):
        if (found := self.partition()) is not None:
            await self._reassignment("cancel", found, None)

    async def assign(self):
        if (found := self.partition()) is None:
            return
        state = self.image.topics[found[0]].partitions[found[1]]
        broker, number = self.chance.choice(state.replicas), self.chance.randint(0, 2)
        if broker not in self.image.brokers:
            return

        def make(image):
            cls = messages.AssignReplicasToDirsRequest
            row = cls.Directories.Topics
            topic = row(
                topic_id=image.topics[found[0]].topic_id,
                partitions=[row.Partitions(partition_index=found[1])],
            )
            return cls(
                broker_id=broker,
                broker_epoch=image.brokers[broker].epoch,
                directories=[cls.Directories(id=directory_of(broker, number), topics=[topic])],
            )

        await self.both(("assign", found, broker, number), make)

    async def ids(self):
        if (broker := self.known()) is not None:
            await self.both(
                ("ids", broker),
                lambda image: messages.AllocateProducerIdsRequest(
                    broker_id=broker, broker_epoch=image.brokers[broker].epoch
                ),
            )


def stale_topic(image):
    """One of which a removed replica is eligible, or nobody is called the last known leader; or None."""
    for topic in image.topics.values():
        for state in topic.partitions.values():
            if not {*state.elr} <= {*state.replicas} or state.last_known_elr == (NO_LEADER,):
                return topic.name
    return None


def in_any_order(records):
    """Changes of partitions that follow each other are sorted: no side promises which comes first."""
    ordered = []
    for kind, run in itertools.groupby(records, lambda record: record[0]):
        group = list(run)
        ordered += sorted(group, key=repr) if kind == "PartitionChangeRecord" else group
    return ordered


def codes(message):
    """All error codes and flags of an answer, in their places."""
    found = []
    for field in message.SPEC.fields:
        value = getattr(message, field.name)
        if field.struct is not None:
            parts = value if isinstance(value, list) else [] if value is None else [value]
            found.append((field.name, sorted(repr(codes(part)) for part in parts)))
        elif field.name.endswith("error_code") or field.name in NAMED:
            found.append((field.name, value))
    return found


NAMED = (
    "is_caught_up", "is_fenced", "should_shut_down", "name", "topic", "partition_index", "partition_id",
    "isr", "leader_id", "leader_epoch", "partition_epoch", "leader_recovery_state", "replicas",
    "adding_replicas", "removing_replicas", "producer_id_start", "producer_id_len",
)  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_same_requests_give_the_same_records(tmp_path, rounds):
    cluster = JvmCluster(tmp_path / "jvm", controllers=1, config=CONFIG)
    jvm = cluster.controllers[0]
    jvm.format()
    quorum = ControllerQuorum(tmp_path / "kafkad", 1, CONFIG)
    ours = quorum.path / "controller-100"
    quorum.cluster_id = cluster.cluster_id
    formatted(ours, cluster.cluster_id, 100)
    shutil.copy(jvm.data_dir / "bootstrap.checkpoint", ours)

    async def run():
        sides = [
            Side("kafkad", cluster.cluster_id, quorum.ports[100], ours),
            Side("jvm", cluster.cluster_id, jvm.port, jvm.data_dir),
        ]
        oracle = Oracle(sides, 1)
        await oracle.start()
        with contextlib.suppress(JvmFailed):
            await oracle.run(rounds(200, 5_000))
        assert len(oracle.trace) > 200

    try:
        with quorum:
            jvm.start()
            asyncio.run(run())
    finally:
        jvm.kill()
