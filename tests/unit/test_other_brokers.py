"""The ways to other brokers of a cluster: connections, questions to coordinators, markers, and coordinators
that come and go with the leadership of their partitions."""

import asyncio
from collections import deque
from types import SimpleNamespace

import pytest

from kafkad._native.shared.watermarks import FOLLOWER, LEADER
from kafkad.coordinator.markers import Marker
from kafkad.net.channel import Unreachable
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server.broker_channels import BrokerChannels
from kafkad.server.coordinator_moves import CoordinatorMoves
from kafkad.server.marker_transport import Pending
from kafkad.server.remote_gate import RemoteGate
from kafkad.server.remote_markers import RemoteMarkers
from kafkad.server.transaction_gate import TransactionGate, entry_of
from kafkad.server.transaction_storage import TRANSACTION_TOPIC

ME, OTHER, THIRD = 1, 2, 3


def topic(*leaders):
    return SimpleNamespace(partitions={n: SimpleNamespace(leader=leader) for n, leader in enumerate(leaders)})


def broker(number, *, epoch=5, fenced=False, protocol=0):
    endpoint = SimpleNamespace(host="h", port=9000 + number, security_protocol=protocol)
    return SimpleNamespace(broker_id=number, epoch=epoch, fenced=fenced, listeners={"INTERNAL": endpoint})


class Asked:
    """Channels that note what is asked, and answer as `answer(broker id, request)` says; `hold` first."""

    def __init__(self, answer):
        self.answer = answer
        self.requests = []
        self.hold = None

    async def ask(self, broker_id, request, *, timeout_s, lowest=0):
        self.requests.append((broker_id, request))
        if self.hold is not None:
            await self.hold.wait()
        return self.answer(broker_id, request)


def fatal(trouble):
    raise trouble


def unreachable(broker_id, request):
    raise Unreachable("gone")


def too_old(broker_id, request):
    raise KafkaError(errors.UNSUPPORTED_VERSION)


def in_a_loop(scenario):
    async def run():
        async with asyncio.timeout(30):
            return await scenario(asyncio.get_running_loop())

    return asyncio.run(run())


# -- the gate ------------------------------------------------------------------------------------------------


def gate_of(loop, channels, *leaders):
    image = SimpleNamespace(topics={TRANSACTION_TOPIC: topic(*leaders)} if leaders else {})
    return RemoteGate(
        ME, channels, lambda: image, lambda name: int(name[-1]), loop, fatal, timeout_s=lambda: 30.0
    )


def agreed(broker_id, request, code_of=lambda name, index: index):
    """As a coordinator: each partition has its index as its code, to be told apart."""
    cls = messages.AddPartitionsToTxnResponse
    Result = cls.ResultsByTransaction
    Row = Result.TopicResults.ResultsByPartition
    return cls(
        results_by_transaction=[
            Result(
                transactional_id=entry.transactional_id,
                topic_results=[
                    Result.TopicResults(
                        name=each.name,
                        results_by_partition=[
                            Row(partition_index=i, partition_error_code=code_of(entry.transactional_id, i))
                            for i in each.partitions
                        ],
                    )
                    for each in entry.topics
                ],
            )
            for entry in request.transactions
        ]
    )


async def answers(loop, gate, *entries):
    waiting = []
    for entry in entries:
        waiting.append(loop.create_future())
        gate.ask(OTHER, entry, waiting[-1].set_result)
    return [list(codes) for codes in await asyncio.gather(*waiting)]


def entry(name, *indexes, adds=True):
    return entry_of(name, 7, 0, [("t", index) for index in indexes], adds=adds)


def test_the_coordinator_is_the_leader_of_the_ids_partition():
    async def scenario(loop):
        gate = gate_of(loop, Asked(agreed), ME, OTHER, -1)
        assert [gate.coordinator_of(name) for name in ("x0", "x1", "x2", "x3")] == [None, OTHER, -1, -1]
        assert gate_of(loop, Asked(agreed)).coordinator_of("x0") == -1
        nobody = loop.create_future()
        gate.ask(-1, entry("x2", 0, 1), nobody.set_result)
        assert await nobody == [errors.COORDINATOR_NOT_AVAILABLE] * 2

    in_a_loop(scenario)


def test_questions_gather_while_one_is_asked_and_an_id_is_in_a_request_once():
    async def scenario(loop):
        channels = Asked(agreed)
        channels.hold = asyncio.Event()
        gate = gate_of(loop, channels, OTHER)
        asked = loop.create_task(
            answers(loop, gate, entry("a", 3), entry("b", 5, 4), entry("c", 1), entry("b", 9))
        )
        await asyncio.sleep(0)
        channels.hold.set()
        assert await asked == [[3], [5, 4], [1], [9]]
        names = [[it.transactional_id for it in request.transactions] for _, request in channels.requests]
        assert [name for each in names for name in each] == ["a", "b", "c", "b"]
        assert all(len(set(each)) == len(each) for each in names) and len(names) == 2

    in_a_loop(scenario)


@pytest.mark.parametrize(
    ("answer", "added", "verified"),
    [
        (unreachable, errors.NETWORK_EXCEPTION, errors.NETWORK_EXCEPTION),
        (too_old, errors.INVALID_TXN_STATE, errors.NONE),  # as Kafka: such a broker cannot be asked
        (
            lambda *_: messages.AddPartitionsToTxnResponse(),
            errors.NETWORK_EXCEPTION, errors.NETWORK_EXCEPTION,
        ),
        (
            lambda *_: messages.AddPartitionsToTxnResponse(error_code=errors.CLUSTER_AUTHORIZATION_FAILED),
            errors.INVALID_TXN_STATE, errors.INVALID_TXN_STATE,
        ),
    ],
)  # fmt: skip
def test_what_counts_when_the_coordinator_says_nothing(answer, added, verified):
    async def scenario(loop):
        gate = gate_of(loop, Asked(answer), OTHER)
        found = await answers(loop, gate, entry("a", 0, 1), entry("b", 0, adds=False))
        assert found == [[added] * 2, [verified]]

    in_a_loop(scenario)


@pytest.mark.parametrize("settles", [True, False])
def test_a_busy_coordinator_is_asked_again_for_a_short_time(settles):
    async def scenario(loop):
        busy = deque([errors.CONCURRENT_TRANSACTIONS] * (2 if settles else 1000))
        channels = Asked(lambda *told: agreed(*told, lambda *_: busy.popleft() if busy else errors.NONE))
        config = SimpleNamespace(
            add_partitions_to_txn_retry_backoff_ms=1,
            add_partitions_to_txn_retry_backoff_max_ms=30_000 if settles else 20,
        )
        services = SimpleNamespace(
            config=config, remote_gate=gate_of(loop, channels, OTHER), me=0, peers=None
        )
        done = loop.create_future()
        gate = TransactionGate(services, lambda name: 0, loop)
        gate.admit("x0", 7, 0, ("t", 0), adds=True, done=done.set_result)
        assert await done == (errors.NONE if settles else errors.CONCURRENT_TRANSACTIONS)
        assert len(channels.requests) == 3 or not settles

    in_a_loop(scenario)


def test_a_busy_coordinator_is_asked_again_soon():
    """The markers of the transaction before are usually written in less than the configured pause."""

    async def scenario(loop):
        busy = deque([errors.CONCURRENT_TRANSACTIONS])
        channels = Asked(lambda *told: agreed(*told, lambda *_: busy.popleft() if busy else errors.NONE))
        config = SimpleNamespace(
            add_partitions_to_txn_retry_backoff_ms=60_000, add_partitions_to_txn_retry_backoff_max_ms=300_000
        )
        services = SimpleNamespace(
            config=config, remote_gate=gate_of(loop, channels, OTHER), me=0, peers=None
        )
        done = loop.create_future()
        TransactionGate(services, lambda name: 0, loop).admit(
            "x0", 7, 0, ("t", 0), adds=True, done=done.set_result
        )
        assert await asyncio.wait_for(done, 10) == errors.NONE

    in_a_loop(scenario)


# -- markers -------------------------------------------------------------------------------------------------


def written(broker_id, request):
    cls = messages.WriteTxnMarkersResponse
    return cls(
        markers=[
            cls.Markers(
                producer_id=marker.producer_id,
                topics=[
                    cls.Markers.Topics(
                        name=each.name,
                        partitions=[
                            cls.Markers.Topics.Partitions(partition_index=i, error_code=errors.NONE)
                            for i in each.partition_indexes
                        ],
                    )
                    for each in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def marker(producer_id):
    return Marker(producer_id, 3, 11, True, 2)


@pytest.mark.parametrize("answer", [written, unreachable])
def test_markers_go_to_the_leaders_and_a_partition_without_one_is_tried_again(answer):
    async def scenario(loop):
        channels = Asked(answer)
        image = SimpleNamespace(topics={"t": topic(ME, OTHER, THIRD, -1, OTHER)})
        remote = RemoteMarkers(ME, channels, lambda: image, loop, fatal, timeout_s=lambda: 30.0)
        done = loop.create_future()
        pending = Pending(5, done.set_result)
        assert remote.take(marker(7), [("t", index) for index in range(5)], pending) == [("t", 0)]
        pending.put(("t", 0), errors.NONE)
        code = errors.NONE if answer is written else errors.NOT_LEADER_OR_FOLLOWER
        again = errors.NOT_LEADER_OR_FOLLOWER
        assert await done == {("t", 0): 0, ("t", 1): code, ("t", 2): code, ("t", 3): again, ("t", 4): code}
        sent = {
            broker_id: [(it.topics[0].partition_indexes, it.coordinator_epoch) for it in request.markers]
            for broker_id, request in channels.requests
        }
        assert sent == {OTHER: [([1, 4], 11)], THIRD: [([2], 11)]}

    in_a_loop(scenario)


def test_two_markers_of_a_producer_go_in_two_requests():
    async def scenario(loop):
        channels = Asked(written)
        image = SimpleNamespace(topics={"t": topic(OTHER, OTHER)})
        remote = RemoteMarkers(ME, channels, lambda: image, loop, fatal, timeout_s=lambda: 30.0)
        waiting = [loop.create_future() for _ in range(3)]
        for producer_id, index, done in zip((7, 8, 7), (0, 0, 1), waiting, strict=True):
            remote.take(marker(producer_id), [("t", index)], Pending(1, done.set_result))
        assert await asyncio.gather(*waiting) == [{("t", 0): 0}, {("t", 0): 0}, {("t", 1): 0}]
        assert [[it.producer_id for it in request.markers] for _, request in channels.requests] == [
            [7, 8],
            [7],
        ]

    in_a_loop(scenario)


# -- connections ---------------------------------------------------------------------------------------------


class Line:
    """A connection that answers when it is told to, or when it is closed."""

    def __init__(self):
        self.closed = False
        self.waiting = []

    async def ask(self, request, *, timeout_s, lowest=0):
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append(answer)
        return await answer

    def close(self):
        self.closed = True
        for answer in self.waiting:
            if not answer.done():
                answer.set_exception(Unreachable("closed"))


def test_who_waits_for_a_broker_that_is_fenced_or_registered_anew_hears_at_once():
    async def scenario(loop):
        image = SimpleNamespace(brokers={OTHER: broker(OTHER)})
        lines = []

        async def connect(host, port, client_id, *, timeout_s):
            assert (host, port) == ("h", 9000 + OTHER)
            lines.append(Line())
            return lines[-1]

        channels = BrokerChannels("INTERNAL", lambda: image, client_id="c", connect=connect)
        for number, change in enumerate(({"fenced": True}, {"epoch": 6}), 1):
            image.brokers[OTHER] = broker(OTHER)
            asked = loop.create_task(channels.ask(OTHER, "request", timeout_s=30))
            while len(lines) < number or not lines[-1].waiting:
                await asyncio.sleep(0)
            channels.follow_brokers()
            assert not lines[-1].closed
            image.brokers[OTHER] = broker(OTHER, **change)
            channels.follow_brokers()
            with pytest.raises(Unreachable):
                await asked
        assert len(lines) == 2 and all(line.closed for line in lines)

    in_a_loop(scenario)


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (None, "is unknown"),
        (broker(OTHER, fenced=True), "is fenced"),
        (SimpleNamespace(fenced=False, listeners={}), "has no listener INTERNAL"),
    ],
)
def test_which_brokers_cannot_be_asked(known, told):
    async def scenario(loop):
        image = SimpleNamespace(brokers={OTHER: known})
        channels = BrokerChannels("INTERNAL", lambda: image, client_id="c")
        with pytest.raises(Unreachable, match=told):
            await channels.ask(OTHER, "request", timeout_s=30)

    in_a_loop(scenario)


def test_after_a_failed_try_nothing_is_tried_for_a_moment():
    async def scenario(loop):
        image = SimpleNamespace(brokers={OTHER: broker(OTHER)})
        tries = []

        async def connect(*where, timeout_s):
            tries.append(where)
            raise Unreachable("refused")

        channels = BrokerChannels("INTERNAL", lambda: image, client_id="c", connect=connect)
        for _ in range(100):
            with pytest.raises(Unreachable):
                await channels.ask(OTHER, "request", timeout_s=30)
        assert 1 <= len(tries) < 100

    in_a_loop(scenario)


# -- coordinators that move ----------------------------------------------------------------------------------


class Coordinator:
    def __init__(self):
        self.shards = {4: "shard"}
        self.heard = []
        self.storage = SimpleNamespace(resign=lambda index: self.heard.append(("resign", index)))

    def lead(self, index, epoch):
        self.heard.append(("lead", index, epoch))

    def unload(self, index):
        del self.shards[index]
        self.heard.append(("unload", index))


def log(index, role, epoch, *, name=TRANSACTION_TOPIC, closed=False):
    native = SimpleNamespace(role=role, leader_epoch=epoch)
    return SimpleNamespace(topic=name, partition=index, native=native, closed=closed)


def test_a_coordinator_learns_each_epoch_and_goes_with_the_leadership():
    coordinator, moves = Coordinator(), CoordinatorMoves()
    moves.on_role(log(4, LEADER, 1))  # before anything is coordinated
    moves.begin({TRANSACTION_TOPIC: coordinator}, [log(4, LEADER, 1), log(5, FOLLOWER, 3)])
    moves.on_role(log(4, LEADER, 2))
    moves.on_role(log(4, LEADER, 2, name="another topic"))
    assert coordinator.heard == [("lead", 4, 1), ("resign", 5), ("lead", 4, 2)]
    assert coordinator.shards
    moves.on_role(log(4, FOLLOWER, 3))
    assert coordinator.heard[3:] == [("unload", 4), ("resign", 4)]
    moves.on_dropped(TRANSACTION_TOPIC, 4)
    moves.on_dropped("another topic", 4)
    assert coordinator.heard[5:] == [("resign", 4)]
