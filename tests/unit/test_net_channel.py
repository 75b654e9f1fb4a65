"""A connection to another node, and the way to the active controller: answers, lies, silence."""

import asyncio

import pytest

from kafkad.net.channel import Channel, Unreachable
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.raft.observer import Leader
from kafkad.server.controller_channel import ControllerChannel

VERSIONS = [(18, 0, 4), (63, 0, 1)]
Heartbeat = messages.BrokerHeartbeatRequest


def beat(**fields):
    return Heartbeat(broker_id=7, broker_epoch=1, current_metadata_offset=0, **fields)


class Node:
    """A server that answers ApiVersions, and anything else as `answer(header, message)` says: a response,
    bytes, or None for silence."""

    def __init__(self, answer=None, versions=VERSIONS, oldest=False):
        self.answer = answer or (lambda header, message: messages.BrokerHeartbeatResponse())
        self.versions = versions
        self.oldest = oldest
        self.asked = []
        self.connections = 0

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                header, message = codec.decode_request(await reader.readexactly(size))
                said, version = self.respond(header, message), header.request_api_version
                if said is None:
                    continue
                if said == b"":
                    return
                if not isinstance(said, bytes):
                    if isinstance(said, tuple):
                        said, version = said
                    frame = codec.encode_response(said, version, header.correlation_id)
                    said = len(frame).to_bytes(4, "big") + frame
                writer.write(said)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    def respond(self, header, message):
        if type(message) is not messages.ApiVersionsRequest:
            self.asked.append((header.request_api_version, message))
            return self.answer(header, message)
        if self.oldest and header.request_api_version > 0:
            return messages.ApiVersionsResponse(error_code=errors.UNSUPPORTED_VERSION), 0
        cls = messages.ApiVersionsResponse
        keys = [
            cls.ApiKeys(api_key=key, min_version=low, max_version=high) for key, low, high in self.versions
        ]
        return cls(api_keys=keys)

    async def channel(self):
        return await Channel.connect("127.0.0.1", self.port, "us", timeout_s=5)


def run(work, *, within_s=20):
    async def bounded():
        async with asyncio.timeout(within_s):
            await work

    asyncio.run(bounded())


@pytest.mark.parametrize("oldest", [False, True])
def test_the_highest_version_of_both_is_spoken(oldest):
    async def work():
        async with Node(oldest=oldest) as node:
            channel = await node.channel()
            assert type(await channel.ask(beat(), timeout_s=5)) is messages.BrokerHeartbeatResponse
            assert node.asked[0][0] == 1
            with pytest.raises(KafkaError, match="at least 2"):
                await channel.ask(beat(), timeout_s=5, lowest=2)
            with pytest.raises(KafkaError, match="UNSUPPORTED_VERSION"):
                await channel.ask(messages.FetchRequest(), timeout_s=5)
            assert not channel.closed
            channel.close()

    run(work())


def test_many_requests_under_way_get_their_own_answers():
    def answer(header, message):
        return messages.BrokerHeartbeatResponse(throttle_time_ms=message.broker_epoch)

    async def work():
        async with Node(answer) as node:
            channel = await node.channel()
            asked = [
                channel.ask(Heartbeat(broker_id=7, broker_epoch=at, current_metadata_offset=0), timeout_s=5)
                for at in range(200)
            ]
            answers = await asyncio.gather(*asked)
            assert [each.throttle_time_ms for each in answers] == list(range(200))
            channel.close()

    run(work())


LIES = [
    b"",  # hangs up
    b"\0\0\0\2xx",  # too short for an answer
    b"\x7f\xff\xff\xff",  # 2 GB
    b"\xff\xff\xff\xff",
    b"\0\0\0\x05\0\0\0\x63\0",  # an answer to something else
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\0\0\0\x06\0\0\0\x02\0\xff",  # the right one, cut short
]


@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_lies_ends_the_channel_for_all_who_wait(lie):
    async def work():
        async with Node(lambda *_: lie) as node:
            channel = await node.channel()
            both = [channel.ask(beat(), timeout_s=10) for _ in range(2)]
            said = await asyncio.gather(*both, return_exceptions=True)
            assert [type(each) for each in said] == [Unreachable, Unreachable], said
            assert channel.closed
            with pytest.raises(Unreachable):
                await channel.ask(beat(), timeout_s=10)

    run(work())


def test_silence_ends_it_in_time():
    async def work():
        async with Node(lambda *_: None) as node:
            channel = await node.channel()
            with pytest.raises(Unreachable, match="has not answered for"):
                await channel.ask(beat(), timeout_s=0.2)
            assert channel.closed

    run(work())


def test_nobody_there_or_a_mute_one_is_unreachable():
    async def mute(reader, writer):
        await reader.read()
        writer.close()

    async def work():
        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match="nobody can be asked on"):
            await Channel.connect("127.0.0.1", port, "us", timeout_s=0.3)
        server.close()
        with pytest.raises(Unreachable):
            await Channel.connect("127.0.0.1", port, "us", timeout_s=5)

    run(work())


def test_who_gives_up_waiting_leaves_the_others_their_answers():
    async def work():
        release = []

        def answer(header, message):
            if message.broker_epoch == 0:
                release.append(header)
                return None
            # both answers now, in order
            frames = [
                codec.encode_response(
                    messages.BrokerHeartbeatResponse(throttle_time_ms=at), 1, one.correlation_id
                )
                for at, one in enumerate([*release, header])
            ]
            return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)

        async with Node(answer) as node:
            channel = await node.channel()
            first = Heartbeat(broker_id=7, broker_epoch=0, current_metadata_offset=0)
            gone = asyncio.create_task(channel.ask(first, timeout_s=5))
            await asyncio.sleep(0.05)
            gone.cancel()
            assert (await channel.ask(beat(), timeout_s=5)).throttle_time_ms == 1
            channel.close()

    run(work())


def test_the_controller_is_followed_where_it_moves():
    async def work():
        async with Node() as right, Node() as wrong:
            refusing = Leader(1, "127.0.0.1", 1)
            asked_before, refused = [], []
            wrong.answer = lambda *_: messages.BrokerHeartbeatResponse(error_code=errors.NOT_CONTROLLER)

            async def connect(host, port, *others, **options):
                try:
                    return await Channel.connect(host, port, *others, **options)
                except Unreachable:
                    refused.append(port)
                    raise

            def leader():
                """Another one when the last one was of no use. A request may ask for it many times."""
                if wrong.asked:
                    return Leader(3, "127.0.0.1", right.port)
                if refused:
                    return Leader(2, "127.0.0.1", wrong.port)
                return refusing if asked_before else asked_before.append(True)

            channel = ControllerChannel(leader, client_id="us", retry_backoff_ms=1, connect=connect)
            answer = await channel.ask(beat(), timeout_s=10)
            assert answer.error_code == 0 and len(wrong.asked) == 1 and len(right.asked) == 1
            assert refused == [refusing.port]
            await channel.ask(beat(), timeout_s=10)
            assert right.connections == 1
            channel.close()

    run(work())


def test_without_a_controller_the_wait_ends():
    async def work():
        async with Node(
            lambda *_: messages.BrokerHeartbeatResponse(error_code=errors.NOT_CONTROLLER)
        ) as node:
            leader = Leader(3, "127.0.0.1", node.port)
            for known, said in ((None, "no controller is known"), (leader, "is not the active controller")):
                channel = ControllerChannel(lambda known=known: known, client_id="us", retry_backoff_ms=1)
                with pytest.raises(Unreachable, match=said):
                    await channel.ask(beat(), timeout_s=0.2)
                channel.close()

    run(work())


def test_topics_are_created_by_the_next_controller_if_the_first_one_leads_no_more():
    """A broker that needed __consumer_offsets during an election logged an ERROR: CreateTopics has no error
    code of its own, and that of each topic did not count."""
    cls = messages.CreateTopicsResponse
    codes = [errors.NOT_CONTROLLER, errors.NONE]

    async def work():
        def answer(*_):
            return cls(topics=[cls.Topics(name="t", error_code=codes.pop(0))])

        async with Node(answer, [*VERSIONS, (cls.API_KEY, 2, 7)]) as node:
            leader = Leader(3, "127.0.0.1", node.port)
            channel = ControllerChannel(lambda: leader, client_id="us", retry_backoff_ms=1)
            asked = messages.CreateTopicsRequest(topics=[messages.CreateTopicsRequest.Topics(name="t")])
            answer = await channel.ask(asked, timeout_s=10)
            assert [topic.error_code for topic in answer.topics] == [errors.NONE] and not codes
            channel.close()

    run(work())


async def never(*_, **__):
    """Connect to a machine without power."""
    await asyncio.Event().wait()


@pytest.mark.parametrize("connected", [True, False])
def test_requests_that_wait_for_a_dead_controller_go_to_its_successor(connected):
    """A heartbeat must not wait for the time-out of another request."""

    async def work():
        async with Node(lambda *_: None) as dead, Node() as successor:
            leaders = [Leader(1, "127.0.0.1", dead.port)]

            async def connect(host, port, *others, **options):
                if port == dead.port and not connected:
                    await never()
                return await Channel.connect(host, port, *others, **options)

            channel = ControllerChannel(
                lambda: leaders[-1], client_id="us", retry_backoff_ms=10, connect=connect
            )
            asked = [asyncio.create_task(channel.ask(beat(), timeout_s=60)) for _ in range(3)]
            await asyncio.sleep(0.1)
            assert not any(each.done() for each in asked)
            leaders.append(Leader(2, "127.0.0.1", successor.port))
            async with asyncio.timeout(5):
                answers = await asyncio.gather(*asked)
            assert [answer.error_code for answer in answers] == [0, 0, 0] and successor.connections == 1
            channel.close()

    run(work())


def test_a_request_does_not_wait_longer_for_a_connection_than_it_may():
    async def work():
        channel = ControllerChannel(lambda: Leader(1, "h", 9), client_id="us", connect=never)
        patient = asyncio.create_task(channel.ask(beat(), timeout_s=60))
        await asyncio.sleep(0)
        with pytest.raises(Unreachable, match="h:9 has not answered"):
            async with asyncio.timeout(5):
                await channel.ask(beat(), timeout_s=0.2)
        patient.cancel()

    run(work())
