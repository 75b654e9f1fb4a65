"""A broker's part in a quorum of JVM controllers: it follows the metadata, and JVM Kafka reads what it wrote.

No worker serves process.roles=broker yet; here the parts run by themselves against the real thing."""

import asyncio
import contextlib
import json
import re
import time

import pytest

from kafkad.clock import Clock
from kafkad.config.broker import BrokerConfig
from kafkad.config.topic import TopicConfig
from kafkad.controller.brokers import Registration
from kafkad.log.log import Log
from kafkad.log.metadata_files import METADATA_TOPIC, METADATA_TOPIC_ID, MetadataFiles
from kafkad.metadata.image import TOPIC, Endpoint
from kafkad.metadata.uuids import uuid_bytes
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.raft.observer import Observer
from kafkad.server.broker_lifecycle import BrokerLifecycle
from kafkad.server.controller_channel import ControllerChannel
from kafkad.server.controller_requests import ControllerRequests
from kafkad.server.metadata_client import MetadataClient
from tests.jvm import NEWEST, run_tool
from tests.jvm_cluster import JvmCluster
from tests.unit.log_world import ManualScheduler, topic_config

WAIT_S = 40


class Member:
    """The observer of broker `node_id`, in a directory that kafka-storage has formatted."""

    def __init__(self, cluster, node, *, snapshot_bytes_max=1 << 20):
        meta = (node.data_dir / "meta.properties").read_text()
        directory_id = uuid_bytes(re.search(r"directory.id=(\S+)", meta)[1])
        config: TopicConfig = topic_config(cleanup_policy=(), retention_ms=-1)
        log = Log.open(
            str(node.metadata_dir), METADATA_TOPIC, 0, config, now_ms=Clock().now_ms(), clean=False,
            scheduler=ManualScheduler(), topic_id=METADATA_TOPIC_ID,
        )  # fmt: skip
        addresses = {id: ("127.0.0.1", port) for id, port in cluster.controller_ports.items()}
        self.observer = Observer(
            node_id=node.node_id, directory_id=directory_id, cluster_id=cluster.cluster_id, log=log,
            files=MetadataFiles(str(node.data_dir)), clock=Clock(), snapshot_bytes_max=snapshot_bytes_max,
            static_voters=addresses if cluster.static else {},
        )  # fmt: skip
        self.observer.open()
        self.client = MetadataClient(self.observer, list(addresses.values()), client_id="kafkad-test")

    @property
    def image(self):
        return self.observer.image

    @contextlib.asynccontextmanager
    async def running(self):
        task = asyncio.create_task(self.client.run())
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self.observer.close()

    async def until(self, condition):
        async with asyncio.timeout(WAIT_S):
            await self.client.until(lambda _: condition(self.image))


async def tool(name, *arguments):
    return await asyncio.to_thread(run_tool, NEWEST, name, *arguments)


def test_topics_and_configs_appear_and_a_restart_reads_on(tmp_path):
    async def follow(cluster, node):
        at = ("--bootstrap-server", cluster.brokers[0].bootstrap)
        async with Member(cluster, node).running() as member:
            await tool("kafka-topics", *at, "--create", "--topic", "first", "--partitions", 3)
            await member.until(lambda image: "first" in image.topics)
            assert sorted(member.image.topics["first"].partitions) == [0, 1, 2]
            change = ("--alter", "--add-config", "retention.ms=1234")
            await tool("kafka-configs", *at, "--entity-type", "topics", "--entity-name", "first", *change)
            await member.until(lambda image: image.configs.get((TOPIC, "first")) == {"retention.ms": "1234"})
            # a controller that is killed, and comes back in a later epoch
            epoch = member.observer.epoch
            cluster.controllers[0].kill()
            await asyncio.sleep(0.5)
            cluster.controllers[0].start()  # here: a JVM ends with the thread that started it
            await member.until(lambda image: image.epoch > epoch)
            reached = member.observer.end_offset
        state = json.loads((node.metadata_dir / "quorum-state").read_bytes())
        assert (state["leaderId"], state["leaderEpoch"]) == (100, member.observer.epoch)

        again = Member(cluster, node)
        assert again.observer.end_offset >= reached and not again.image.topics  # nothing known committed
        async with again.running():
            await again.until(lambda image: image.offset >= reached - 1)
            assert again.image.configs[TOPIC, "first"] == {"retention.ms": "1234"}
            await tool("kafka-topics", *at, "--delete", "--topic", "first")
            await again.until(lambda image: not image.topics)

    with JvmCluster(tmp_path, brokers=1) as cluster:
        node = cluster.new_broker(2)
        node.format()
        asyncio.run(follow(cluster, node))
        # and now JVM Kafka goes on with that directory
        with node:
            said = run_tool(
                NEWEST, "kafka-topics", "--bootstrap-server", node.bootstrap, "--create", "--topic", "jvm"
            )
            assert "Created" in said.stdout
            files = sorted(path.name for path in node.metadata_dir.glob("*.log"))
            assert files[0] == f"{0:020d}.log"
        assert "truncat" not in node.log.lower() and "ERROR" not in node.log, node.log


def test_a_snapshot_is_fetched_in_pieces_where_voters_stand_in_the_log(tmp_path):
    config = {"metadata.log.max.record.bytes.between.snapshots": 400}

    async def follow(cluster, node):
        async with Member(cluster, node, snapshot_bytes_max=500).running() as member:
            await member.until(lambda image: len(image.topics) == 12)
            assert member.observer.last_snapshot > (0, 0)
            assert member.image.kraft_version == 1
            size = MetadataFiles(str(node.data_dir)).size(member.observer.last_snapshot)
            assert size > 1500  # several pieces
            assert not list(node.metadata_dir.glob("*.part"))
        again = Member(cluster, node)
        assert len(again.image.topics) > 0  # a snapshot is committed
        again.observer.close()

    with JvmCluster(tmp_path, brokers=1, static=False, config=config) as cluster:
        at = ("--bootstrap-server", cluster.brokers[0].bootstrap)
        for number in range(12):
            run_tool(NEWEST, "kafka-topics", *at, "--create", "--topic", f"topic-{number}", "--partitions", 4)
        node = cluster.new_broker(2)
        node.format()
        asyncio.run(follow(cluster, node))
        with node:
            said = run_tool(NEWEST, "kafka-topics", "--bootstrap-server", node.bootstrap, "--list")
            assert len(said.lines) == 12
        assert "ERROR" not in node.log, node.log


def registration_of(member, node, incarnation, directories=(), **more):
    return Registration(
        node.node_id,
        incarnation,
        {"PLAINTEXT": Endpoint("127.0.0.1", node.port, 0)},
        directories or (member.observer.directory_id,),
        **more,
    )


@contextlib.asynccontextmanager
async def alive(member, node, incarnation, **more):
    """Register, and send heartbeats; what the controllers take away is taken from this one too."""
    channel = ControllerChannel(lambda: member.client.leader, client_id="kafkad-test")
    broker = BrokerLifecycle(
        registration_of(member, node, incarnation, **more),
        cluster_id=member.observer.cluster_id,
        ask=channel.ask,
        image=lambda: member.image,
        heartbeat_interval_ms=200,
        session_timeout_ms=3000,
    )
    task = asyncio.create_task(broker.run())
    try:
        async with asyncio.timeout(WAIT_S):
            yield broker
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        channel.close()


async def brokers(cluster):
    """Broker ids by state, as Kafka's own tool has them from a JVM broker."""
    at = ("--bootstrap-server", cluster.brokers[0].bootstrap, "--include-fenced-brokers")
    said = await tool("kafka-cluster", "list-endpoints", *at)
    found = {}
    for line in said.lines[1:]:
        words = line.split()
        found[int(words[0])] = next(word for word in words if word in ("fenced", "unfenced"))
    return found


async def become(cluster, wanted):
    """Until the JVM broker, which is asked, says so: it may learn of a change after this member."""
    ends = time.monotonic() + 30
    while (found := await brokers(cluster)) != wanted:
        assert time.monotonic() < ends, found


def test_the_controllers_register_unfence_fence_and_let_go(tmp_path):
    async def live(cluster, node):
        async with Member(cluster, node).running() as member:
            await member.until(lambda image: image.metadata_version > 0)
            async with alive(member, node, b"first incarnatio") as broker:
                await broker.caught_up.wait()
                await become(cluster, {1: "unfenced", 2: "fenced"})
                broker.ready_to_unfence()
                await broker.unfenced.wait()
                await become(cluster, {1: "unfenced", 2: "unfenced"})
                await member.until(lambda image: not image.brokers[2].fenced)
                assert member.image.brokers[2].epoch == broker.epoch
                assert member.image.brokers[2].directories == (member.observer.directory_id,)
                at = ("--bootstrap-server", cluster.brokers[0].bootstrap)
                quorum = await tool("kafka-metadata-quorum", *at, "describe", "--replication")
                rows = {line.split()[0]: line.split()[-1] for line in quorum.lines[1:] if line.strip()}
                assert rows == {"100": "Leader", "1": "Observer", "2": "Observer"}
            first = broker.epoch
            # silence, as of a broker that was killed: its session ends, and the next one may register
            async with alive(member, node, b"second incarnati") as broker:
                broker.ready_to_unfence()
                await broker.unfenced.wait()
                assert broker.epoch > first
                # a partition that nobody else has: when this broker goes, nobody leads it
                create = ("--create", "--topic", "here", "--replica-assignment", "2")
                await tool("kafka-topics", *at, *create)
                await member.until(lambda image: "here" in image.topics)
                assert member.image.topics["here"].partitions[0].leader == 2
                broker.begin_shutdown()
                await broker.gone.wait()
                await member.until(lambda image: image.topics["here"].partitions[0].leader == -1)
                await become(cluster, {1: "unfenced", 2: "fenced"})
            # a clean stop: the next incarnation names the epoch of this one, and leads again at once
            async with alive(member, node, b"third incarnatio", previous_epoch=broker.epoch) as again:
                again.ready_to_unfence()
                await again.unfenced.wait()
                await member.until(lambda image: image.topics["here"].partitions[0].leader == 2)

    with JvmCluster(tmp_path, brokers=1) as cluster:
        node = cluster.new_broker(2)
        node.format()
        asyncio.run(live(cluster, node))


def test_heartbeats_go_on_at_the_next_controller(tmp_path):
    async def live(cluster, node):
        async with Member(cluster, node).running() as member:
            await member.until(lambda image: image.metadata_version > 0)
            async with alive(member, node, b"first incarnatio") as broker:
                broker.ready_to_unfence()
                await broker.unfenced.wait()
                await member.until(lambda image: not image.brokers[2].fenced)
                leader, epoch = member.client.leader.node_id, broker.epoch
                next(node for node in cluster.controllers if node.node_id == leader).kill()
                await member.until(
                    lambda image: (
                        image.epoch > 0
                        and member.client.leader is not None
                        and member.client.leader.node_id != leader
                    )
                )
                await asyncio.sleep(5)  # more than a session: it is kept alive
                assert not member.image.brokers[2].fenced and member.image.brokers[2].epoch == epoch

    with JvmCluster(tmp_path, controllers=3, static=False) as cluster:
        node = cluster.new_broker(2)
        node.format()
        asyncio.run(live(cluster, node))


USER = "User:alice"
SECOND_DIRECTORY = b"second directory"


def test_what_a_broker_asks_of_the_controllers_is_done(tmp_path):
    def create(name, *, version=7, correlation=9):
        cls = messages.CreateTopicsRequest
        topic = cls.Topics(name=name, num_partitions=2, replication_factor=1)
        return codec.encode_request(cls(topics=[topic], timeout_ms=20_000), version, correlation, "a client")

    async def live(cluster, node):
        async with Member(cluster, node).running() as member:
            await member.until(lambda image: image.metadata_version > 0)
            channel = ControllerChannel(lambda: member.client.leader, client_id="kafkad-test")
            directories = (member.observer.directory_id, SECOND_DIRECTORY)
            async with alive(member, node, b"first incarnatio", directories=directories) as broker:
                broker.ready_to_unfence()
                await broker.unfenced.wait()
                requests = ControllerRequests(
                    channel.ask, broker_id=2, epoch=lambda: broker.epoch, image=lambda: member.image
                )
                # a client's request comes back with its own correlation id, in its own version
                for name, version in (("forwarded", 7), ("older", 5)):
                    answer = await requests.forward(create(name, version=version), USER, "10.1.2.3")
                    correlation, response = codec.decode_response(
                        messages.CreateTopicsResponse, version, answer
                    )
                    assert correlation == 9
                    assert [(row.name, row.error_code) for row in response.topics] == [(name, 0)]
                answer = await requests.forward(create("forwarded"), USER, "::1")
                _, response = codec.decode_response(messages.CreateTopicsResponse, 7, answer)
                assert response.topics[0].error_code == errors.TOPIC_ALREADY_EXISTS
                await member.until(lambda image: {"forwarded", "older"} <= image.topics.keys())
                # what no controller forwards, and what is no request
                produce = codec.encode_request(messages.ProduceRequest(acks=1, timeout_ms=1), 9, 1, "c")
                with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
                    await requests.forward(produce, USER, "10.1.2.3")
                with pytest.raises(KafkaError, match="UNSUPPORTED_VERSION"):
                    await requests.forward(b"\0\x13\0\x07\0\0\0\x09\0\x01c\0\xff", USER, "10.1.2.3")

                created = await requests.create_topics_in_passing(
                    ["passing", "older", "no/name"], BrokerConfig()
                )
                assert (
                    created["passing"] is None and created["no/name"].code == errors.INVALID_TOPIC_EXCEPTION
                )
                assert "older" not in created
                await member.until(lambda image: "passing" in image.topics)

                first, count = await requests.allocate_producer_ids()
                second, _ = await requests.allocate_producer_ids()
                assert count == 1000 and second >= first + count
                await member.until(lambda image: image.next_producer_id >= second + count)

                topic = member.image.topics["forwarded"]
                ours = [index for index, state in topic.partitions.items() if 2 in state.replicas]
                assert ours == [0, 1]  # the only broker
                placed = {(topic.topic_id, index): SECOND_DIRECTORY for index in ours}
                gone = (b"no such topic id", 0)
                refused = await requests.assign_directories({**placed, gone: SECOND_DIRECTORY})
                assert {each: trouble.code for each, trouble in refused.items()} == {
                    gone: errors.UNKNOWN_TOPIC_ID
                }
                await member.until(
                    lambda image: all(
                        state.directory(2) == SECOND_DIRECTORY
                        for state in image.topics["forwarded"].partitions.values()
                    )
                )
                # another broker's epoch
                stale = ControllerRequests(
                    channel.ask, broker_id=2, epoch=lambda: broker.epoch - 1, image=lambda: member.image
                )
                with pytest.raises(KafkaError, match="COORDINATOR_LOAD_IN_PROGRESS"):
                    await stale.allocate_producer_ids()
                with pytest.raises(KafkaError, match="STALE_BROKER_EPOCH"):
                    await stale.assign_directories(placed)
                cluster.controllers[0].kill()
                quick = ControllerRequests(
                    channel.ask,
                    broker_id=2,
                    epoch=lambda: broker.epoch,
                    image=lambda: member.image,
                    timeout_s=1,
                )
                with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT"):
                    await quick.forward(create("late"), USER, "10.1.2.3")
            channel.close()

    with JvmCluster(tmp_path) as cluster:
        node = cluster.new_broker(2)
        node.format()
        asyncio.run(live(cluster, node))
