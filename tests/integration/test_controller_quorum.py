"""Three kafkad controllers in processes: whatever is killed or stopped, what was answered is there."""

import asyncio
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest

from kafkad.net.channel import Unreachable
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.records import read_batches
from kafkad.raft.observer import TOPIC
from tests.controller_process import ControllerQuorum
from tests.faults import Faults
from tests.registrations import registration

QUICK = {
    "controller.quorum.election.timeout.ms": 300,
    "controller.quorum.election.backoff.max.ms": 200,
    "controller.quorum.fetch.timeout.ms": 700,
    "controller.quorum.request.timeout.ms": 700,
    "broker.heartbeat.interval.ms": 1000,
    "broker.session.timeout.ms": 30000,
}


class Client:
    """A broker that is registered and unfenced, and creates topics; `made` were answered."""

    def __init__(self, quorum):
        self.quorum = quorum
        self.made = []
        self.maybe = []  # not answered, or with an error that leaves it open
        self.blocks = []
        self.count = 0
        self.epoch = -1

    async def join(self):
        request = registration(1, 1)
        request.cluster_id = self.quorum.cluster_id
        response = await self.quorum.ask_leader(request)
        assert response.error_code == 0
        self.epoch = response.broker_epoch
        while (await self.beat()).is_fenced:
            await asyncio.sleep(0.02)

    async def beat(self):
        cls = messages.BrokerHeartbeatRequest
        response = await self.quorum.ask_leader(
            cls(broker_id=1, broker_epoch=self.epoch, current_metadata_offset=1 << 40)
        )
        assert response.error_code == 0, errors.KafkaError(response.error_code)
        return response

    async def create(self):
        self.count += 1
        name = f"t{self.count}"
        cls = messages.CreateTopicsRequest
        request = cls(topics=[cls.Topics(name=name, num_partitions=1, replication_factor=1)], timeout_ms=2000)
        for node in self.quorum.nodes:
            if not self.quorum.nodes[node].runs:
                continue
            try:
                response = await self.quorum.ask(node, request, timeout_s=2.5)
            except Unreachable:
                self.maybe.append(name)
                continue
            code = response.topics[0].error_code
            if code == 0:
                self.made.append(name)
                return
            if code not in (errors.NOT_CONTROLLER, errors.REQUEST_TIMED_OUT, errors.TOPIC_ALREADY_EXISTS):
                raise AssertionError(errors.KafkaError(code))
            self.maybe.append(name)

    async def take_ids(self):
        request = messages.AllocateProducerIdsRequest(broker_id=1, broker_epoch=self.epoch)
        response = await self.quorum.ask_leader(request)
        if response.error_code == 0:
            self.blocks.append(response.producer_id_start)

    async def lost(self):
        """Names that were answered and are not there."""
        cls = messages.CreateTopicsRequest
        topics = [cls.Topics(name=name, num_partitions=1, replication_factor=1) for name in self.made]
        for _ in range(50):
            node = await self.quorum.leader()
            response = await self.quorum.ask(node, cls(topics=topics, validate_only=True))
            codes = {row.name: row.error_code for row in response.topics}
            if errors.NOT_CONTROLLER not in codes.values():
                break
            await asyncio.sleep(0.1)
        return [name for name, code in codes.items() if code != errors.TOPIC_ALREADY_EXISTS]


async def work(client, seconds):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        await client.create()
        await asyncio.sleep(0.005)


async def until_made(client, more=3, timeout_s=20):
    """Until topics are created again."""
    wanted, ends = len(client.made) + more, time.monotonic() + timeout_s
    while len(client.made) < wanted:
        assert time.monotonic() < ends, "nothing is committed any more"
        await client.create()
        await asyncio.sleep(0.01)


def log_of(quorum, node_id):
    """The batches of its metadata log: (base offset, last offset, epoch, CRC)."""
    directory = Path(quorum.path) / f"controller-{node_id}" / "__cluster_metadata-0"
    content = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    return [(b.base_offset, b.last_offset, b.leader_epoch, b.crc) for b in read_batches(content)]


async def same_everywhere(quorum):
    """Once idle, the logs of all nodes are one."""
    for _ in range(100):
        logs = [log_of(quorum, node) for node in quorum.nodes]
        shortest = min(map(len, logs))
        if shortest > 10 and all(log[: shortest - 5] == logs[0][: shortest - 5] for log in logs):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"logs differ: {[log[-3:] for log in logs]}")


@pytest.mark.soak
def test_nothing_that_was_answered_is_lost(tmp_path, rounds):
    chance = random.Random(4)

    async def run(quorum):
        client = Client(quorum)
        await client.join()
        await client.take_ids()
        for number in range(rounds(4, 80)):
            await work(client, 0.3)
            leader = await quorum.leader()
            others = [node for node in quorum.nodes if node != leader]
            event = number % 4 if number < 4 else chance.randrange(4)
            if event == 0:  # the leader dies
                quorum.nodes[leader].kill()
                await until_made(client)
                quorum.nodes[leader].start()
            elif event == 1:  # a follower hangs, and comes back far behind
                with quorum.stopped(chance.choice(others)):
                    await work(client, 1.0)
            elif event == 2:  # the leader hangs until the others have another
                with quorum.stopped(leader):
                    await asyncio.sleep(1.0)
                    await until_made(client)
            else:  # all die at once
                for node in quorum.nodes.values():
                    node.kill()
                quorum.start()
            await until_made(client)
            await client.beat()
            await client.take_ids()
        assert await client.lost() == []
        assert client.blocks == sorted(set(client.blocks))
        await same_everywhere(quorum)

    with ControllerQuorum(tmp_path, 3, QUICK) as quorum:
        asyncio.run(run(quorum))
        for node in quorum.nodes.values():
            assert node.stop() == 0, node.log[-3000:]
            assert "Traceback" not in node.log, node.log[-3000:]


def test_a_leader_that_stops_hands_over_at_once(tmp_path):
    async def run(quorum):
        leader = await quorum.leader()
        epoch = (await quorum.describe(leader)).leader_epoch
        assert quorum.nodes[leader].stop() == 0
        successor = await quorum.leader()
        assert successor != leader
        told = await quorum.describe(successor)
        assert told.leader_epoch == epoch + 1  # nobody had to wait for a time-out and try twice

    slow = QUICK | {"controller.quorum.fetch.timeout.ms": 30000, "controller.quorum.request.timeout.ms": 2000}
    with ControllerQuorum(tmp_path, 3, slow) as quorum:
        asyncio.run(run(quorum))


def test_a_controller_of_one_is_active_at_once_and_after_a_kill(tmp_path):
    async def run(quorum):
        client = Client(quorum)
        await client.join()
        await until_made(client)
        quorum.nodes[100].kill()
        quorum.nodes[100].start()
        await client.beat()
        await until_made(client)
        assert await client.lost() == []

    with ControllerQuorum(tmp_path, 1, QUICK) as quorum:
        asyncio.run(run(quorum))


def test_a_controller_without_an_idle_time_serves(tmp_path):
    """connections.max.idle.ms=-1 is for ever; it closed each connection at once."""
    with ControllerQuorum(tmp_path, 3, {**QUICK, "connections.max.idle.ms": -1}) as quorum:
        assert asyncio.run(quorum.leader()) in quorum.nodes


def test_bytes_that_are_no_request_close_the_connection_and_nothing_else(tmp_path):
    async def send(port, content):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(content)
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
        return answer

    async def run(quorum):
        port = quorum.ports[100]
        for content in (
            b"\xff" * 64,  # a negative size
            (7).to_bytes(4, "big") + b"short!!",
            (1 << 30).to_bytes(4, "big") + b"huge",
            (12).to_bytes(4, "big") + b"\0\x63\0\0" + bytes(8),  # key 99
            (12).to_bytes(4, "big") + b"\0\x34\0\x63" + bytes(8),  # Vote version 99
            (12).to_bytes(4, "big") + b"\0\x34\0\x02" + b"\xff" * 8,  # Vote that does not parse
            (12).to_bytes(4, "big") + b"\0\0\0\x09" + bytes(8),  # Produce: no data plane here
        ):
            assert await send(port, content) == b"", content
        assert await quorum.leader() == 100

    with ControllerQuorum(tmp_path, 1, QUICK) as quorum:
        asyncio.run(run(quorum))
        log = quorum.nodes[100].log
    assert "API key 99 is not served" in log
    assert "Vote version 99 is not served" in log


def test_envelopes_that_lie_are_answered_with_an_error(tmp_path, monkeypatch):
    points = (
        "kafkad.server.controller_apis:says",
        "kafkad.server.controller_apis:_host",
        "kafkad.server.controller_apis:is_by_token",
        "kafkad.protocol.codec:encode_response_in_steps",
    )
    faults = Faults(tmp_path / "faults", points)
    for key, value in faults.env.items():
        monkeypatch.setenv(key, value)
    chance = random.Random(7)
    principal = b"\0\0" + codec.encode(messages.DefaultPrincipalData(type="User", name="a"), 0)
    topics = messages.CreateTopicsRequest(topics=[], timeout_ms=100)
    whole = codec.encode_request(topics, 7, 5, "c")

    def envelope(data, principal=principal, host=bytes(4)):
        return messages.EnvelopeRequest(
            request_data=data, request_principal=principal, client_host_address=host
        )

    async def run(quorum):
        await quorum.leader()
        good = await quorum.ask(100, envelope(whole))
        assert good.error_code == 0
        assert codec.decode_response(messages.CreateTopicsResponse, 7, good.response_data)[0] == 5
        cases = [
            (envelope(b""), errors.INVALID_REQUEST),
            (envelope(b"\0\x12\0\0" + bytes(8)), errors.INVALID_REQUEST),  # ApiVersions is not forwarded
            (envelope(b"\0\x3a\0\0" + bytes(8)), errors.INVALID_REQUEST),  # an Envelope in an Envelope
            (envelope(b"\0\x13\0\x63" + bytes(8)), errors.UNSUPPORTED_VERSION),
            (envelope(whole, principal=b""), errors.PRINCIPAL_DESERIALIZATION_FAILURE),
            (envelope(whole, principal=b"\0\0\xff"), errors.PRINCIPAL_DESERIALIZATION_FAILURE),
            (envelope(whole, principal=b"\0\x07" + principal[2:]), errors.PRINCIPAL_DESERIALIZATION_FAILURE),
            (envelope(whole, host=b"abc"), errors.INVALID_REQUEST),
        ]
        cases += [(envelope(whole[:size]), errors.UNSUPPORTED_VERSION) for size in range(4, len(whole))]
        for request, code in cases:
            answer = await quorum.ask(100, request)
            assert (answer.error_code, answer.response_data) == (code, None), request
        for _ in range(200):
            key = chance.choice((19, 20, 29, 30, 31, 33, 37, 43, 44, 45, 46, 49, 51, 55, 57, 64))
            frame = key.to_bytes(2, "big") + bytes([0, chance.randrange(4)])
            frame += bytes(
                chance.choice((0, 1, 255, chance.randrange(256))) for _ in range(chance.randrange(60))
            )
            await quorum.ask(100, envelope(frame))
        assert await quorum.leader() == 100
        for name in points:  # failures that nobody has foreseen: an error, or the end of that connection
            with faults.failing(name):
                for request in (envelope(whole), topics, registration(9, 1)):
                    with suppress(Unreachable):
                        await quorum.ask(100, request)
        assert await quorum.leader() == 100
        assert (await quorum.ask(100, envelope(whole))).error_code == 0

    with ControllerQuorum(tmp_path, 1, QUICK) as quorum:
        asyncio.run(run(quorum))
        assert quorum.nodes[100].runs


def test_who_follows_refers_an_envelope_to_the_active_controller(tmp_path):
    """Also where the answer to the client has no NOT_CONTROLLER: a broker would ask it again and again."""
    principal = b"\0\0" + codec.encode(messages.DefaultPrincipalData(type="User", name="a"), 0)
    describe = messages.DescribeQuorumRequest
    topics = [describe.Topics(topic_name=TOPIC, partitions=[describe.Topics.Partitions()])]
    requests = [
        (2, describe(topics=topics)),
        (0, messages.RemoveRaftVoterRequest(cluster_id=None, voter_id=102)),
        (0, messages.AddRaftVoterRequest(cluster_id=None, voter_id=103, timeout_ms=1000)),
        (7, messages.CreateTopicsRequest(topics=[messages.CreateTopicsRequest.Topics(name="a")])),
    ]

    async def run(quorum):
        leader = await quorum.leader()
        follower = next(node for node in quorum.nodes if node != leader)
        for version, request in requests:
            envelope = messages.EnvelopeRequest(
                request_data=codec.encode_request(request, version, 5, "c"),
                request_principal=principal,
                client_host_address=bytes(4),
            )
            answer = await quorum.ask(follower, envelope)
            assert (answer.error_code, answer.response_data) == (errors.NOT_CONTROLLER, None), request
        # directly, the error is the partition's
        answer = await quorum.ask(follower, describe(topics=topics))
        (partition,) = answer.topics[0].partitions
        assert (answer.error_code, partition.error_code) == (errors.NONE, errors.NOT_LEADER_OR_FOLLOWER)

    with ControllerQuorum(tmp_path, 3, QUICK) as quorum:
        asyncio.run(run(quorum))


def test_a_directory_that_is_not_formatted_is_refused(tmp_path):
    quorum = ControllerQuorum(tmp_path, 1, QUICK)
    (tmp_path / "controller-100" / "meta.properties").unlink()
    with pytest.raises(RuntimeError, match="is not formatted"):
        quorum.nodes[100].start()


def test_a_node_that_lost_its_log_fetches_a_snapshot(tmp_path):
    def snapshots(node):
        directory = tmp_path / f"controller-{node}" / "__cluster_metadata-0"
        return sorted(path.name for path in directory.glob("*-*.checkpoint"))

    async def run(quorum):
        client = Client(quorum)
        await client.join()
        await until_made(client, more=100, timeout_s=60)
        leader = await quorum.leader()
        ends = time.monotonic() + 20
        while not snapshots(leader):
            assert time.monotonic() < ends, quorum.nodes[leader].log
            await asyncio.sleep(0.1)
        victim = next(node for node in quorum.nodes if node != leader)
        quorum.nodes[victim].kill()
        shutil.rmtree(tmp_path / f"controller-{victim}" / "__cluster_metadata-0")
        quorum.nodes[victim].start()
        ends = time.monotonic() + 20
        while "fetching the metadata snapshot" not in quorum.nodes[victim].log or not snapshots(victim):
            assert time.monotonic() < ends, quorum.nodes[victim].log
            await asyncio.sleep(0.1)
        # it has all of it, and can lead
        for node in list(quorum.nodes):
            if node != victim:
                quorum.nodes[node].kill()
                await asyncio.sleep(1.5)
                quorum.nodes[node].start()
        await until_made(client)
        assert await client.lost() == []

    config = QUICK | {"metadata.log.max.record.bytes.between.snapshots": 4_000}
    with ControllerQuorum(tmp_path, 3, config) as quorum:
        asyncio.run(run(quorum))
        for node in quorum.nodes.values():
            assert "Traceback" not in node.log, node.log[-3000:]
