"""How a node connects to others of its cluster: refusals, new logins, and what a configuration must say."""

import asyncio
import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkad.api.access import AT_CONTROLLERS
from kafkad.config.broker import BrokerConfig
from kafkad.config.definition import ConfigError
from kafkad.metadata.image import MetadataImage
from kafkad.net.channel import Channel, Unreachable
from kafkad.net.frame_server import FrameServer
from kafkad.protocol import codec, messages
from kafkad.protocol.errors import SASL_AUTHENTICATION_FAILED, KafkaError
from kafkad.security.acls import Kind, Operation
from kafkad.server.authentication import read_bytes
from kafkad.server.authorization import FollowedAcls
from kafkad.server.controller_apis import BY_KEY
from kafkad.server.node_links import NodeLinks, _in_a_thread, broker_links, check_links
from tests.certificates import PASSWORD, make_stores

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
MEMBER = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.voters": "9@h:1",
    "controller.listener.names": "C",
    "listeners": "N://127.0.0.1:9092",
    "inter.broker.listener.name": "N",
    "listener.security.protocol.map": "C:PLAINTEXT,N:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.n.plain.sasl.jaas.config": f'{PLAIN} username="node" password="hush";',
}
VERSIONS = [(17, 0, 1), (18, 0, 4), (36, 0, 2), (60, 0, 2)]


class Peer:
    """A node that takes one password; `asked` are the API keys that came."""

    def __init__(self, lifetime_ms: int = 0) -> None:
        self.lifetime_ms = lifetime_ms
        self.password = b"hush"
        self.asked: list[int] = []
        self.server = FrameServer(self.serve, frame_size_max=1 << 20)

    async def open(self) -> int:
        import socket

        listening = socket.create_server(("127.0.0.1", 0))
        await self.server.open(listening, "N")
        return int(listening.getsockname()[1])

    async def serve(self, connection: Any, frame: bytes) -> bytes:
        header, request = codec.decode_request(frame)
        self.asked.append(header.request_api_key)
        await asyncio.sleep(0)
        return codec.encode_response(self.answer(request), header.request_api_version, header.correlation_id)

    def answer(self, request: Any) -> Any:
        if type(request) is messages.ApiVersionsRequest:
            row = messages.ApiVersionsResponse.ApiKeys
            keys = [row(api_key=key, min_version=low, max_version=high) for key, low, high in VERSIONS]
            return messages.ApiVersionsResponse(api_keys=keys)
        if type(request) is messages.SaslHandshakeRequest:
            return messages.SaslHandshakeResponse(mechanisms=["PLAIN"])
        if type(request) is messages.SaslAuthenticateRequest:
            if bytes(request.auth_bytes) != b"\0node\0" + self.password:
                return messages.SaslAuthenticateResponse(
                    error_code=SASL_AUTHENTICATION_FAILED, error_message="no"
                )
            return messages.SaslAuthenticateResponse(session_lifetime_ms=self.lifetime_ms)
        return messages.DescribeClusterResponse(cluster_id="c")


def links_of(config: BrokerConfig) -> NodeLinks:
    return NodeLinks(lambda: config, "N", "sasl.mechanism.inter.broker.protocol", "PLAIN", lambda path: b"")


def in_a_loop(scenario: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


def test_a_node_that_refuses_us_is_left_alone_for_a_while_and_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        peer, links = Peer(), links_of(BrokerConfig(MEMBER))
        port = await peer.open()
        peer.password = b"another"
        for _ in range(3):
            links._refused.get(("127.0.0.1", port), links).until = 0.0  # type: ignore[union-attr]
            with pytest.raises(Unreachable, match="refused 'node': no"):
                await links.connect("127.0.0.1", port, "c", timeout_s=30)
        assert peer.asked == [18, 17, 36] * 3
        refused = links._refused["127.0.0.1", port]
        assert refused.failures == 3
        refused.until = math.inf
        with pytest.raises(Unreachable, match="refused 'node': no"):
            await links.connect("127.0.0.1", port, "c", timeout_s=30)
        assert len(peer.asked) == 9
        refused.until, peer.password = 0.0, b"hush"
        (await links.connect("127.0.0.1", port, "c", timeout_s=30)).close()
        assert not links._refused
        await peer.server.close()

    with caplog.at_level("INFO", "kafkad"):
        in_a_loop(scenario)
    told = [record.message for record in caplog.records if record.name == "kafkad"]
    assert len(told) == 2 and "will try again" in told[0] and "is connected to by SASL_PLAINTEXT" in told[1]
    assert "hush" not in "".join(told)


def test_a_session_that_ends_is_begun_anew_before_anything_else_is_sent() -> None:
    async def scenario() -> None:
        peer, links = Peer(lifetime_ms=3_600_000), links_of(BrokerConfig(MEMBER))
        port = await peer.open()
        channel: Channel = await links.connect("127.0.0.1", port, "c", timeout_s=30)
        request = messages.DescribeClusterRequest()
        await channel.ask(request, timeout_s=30)
        assert channel._login is not None and channel._login.renew_at is not None
        channel._login.renew_at = 0.0
        await asyncio.gather(*(channel.ask(request, timeout_s=30) for _ in range(4)))
        assert peer.asked == [18, 17, 36, 60, 17, 36, 60, 60, 60, 60]
        channel._login.renew_at, peer.password = 0.0, b"another"
        with pytest.raises(Unreachable, match=r"the new login on .* failed"):
            await channel.ask(request, timeout_s=30)
        assert channel.closed
        await peer.server.close()

    in_a_loop(scenario)


def test_what_may_wait_runs_in_a_thread_and_a_shortage_of_threads_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        here = threading.get_ident()
        assert await _in_a_thread(threading.get_ident) != here
        with pytest.raises(ZeroDivisionError):
            await _in_a_thread(divmod, 1, 0)
        monkeypatch.setattr(threading.Thread, "start", none_left)
        with pytest.raises(KafkaError, match="no thread for a login"):
            await _in_a_thread(threading.get_ident)

    in_a_loop(scenario)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"listener.name.n.plain.sasl.jaas.config": None},
         "Missing configuration listener.name.n.plain.sasl.jaas.config: this node logs in to others by it"),
        ({"listener.name.n.plain.sasl.jaas.config": f'{PLAIN} user_a="b";'},
         "username and password are missing"),
        ({"listener.name.n.plain.sasl.jaas.config": "x.Y required;"}, "the login module is x.Y"),
        ({"sasl.mechanism.inter.broker.protocol": "OAUTHBEARER", "sasl.enabled.mechanisms": "OAUTHBEARER"},
         "Missing configuration listener.name.n.oauthbearer.sasl.jaas.config: this node logs in to others"),
        ({"listener.security.protocol.map": "C:SASL_PLAINTEXT,N:SASL_PLAINTEXT"},
         "Missing configuration listener.name.c.gssapi.sasl.jaas.config: this node logs in to others"),
        ({"listener.security.protocol.map": "C:SSL,N:SASL_PLAINTEXT"},
         "Missing configuration ssl.truststore.location of listener C"),
        ({"listener.security.protocol.map": "C:SASL_PLAINTEXT,N:SASL_PLAINTEXT", "node.id": "9",
          "process.roles": "broker,controller", "listeners": "N://127.0.0.1:9092,C://127.0.0.1:9093",
          "sasl.mechanism.controller.protocol": "SCRAM-SHA-256"},
         "controllers have the users of SCRAM only when their quorum stands"),
    ],
)  # fmt: skip
def test_what_a_configuration_must_say(changes: dict[str, str | None], told: str) -> None:
    given = {key: text for key, text in (MEMBER | changes).items() if text is not None}
    with pytest.raises(ConfigError) as caught:
        check_links(BrokerConfig(given), lambda path: b"")
    assert told in str(caught.value) and "hush" not in str(caught.value)


def test_plaintext_needs_nothing() -> None:
    plain = {"listener.security.protocol.map": "C:PLAINTEXT,N:PLAINTEXT"}
    check_links(BrokerConfig(MEMBER | plain), lambda path: b"")


def test_a_dynamic_store_that_is_gone_does_not_end_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The listener goes back to its static configuration, and so do the connections to other nodes."""
    stores = make_stores(tmp_path)
    file = {
        **MEMBER,
        "listener.security.protocol.map": "C:PLAINTEXT,N:SSL",
        "ssl.keystore.location": str(stores / "server.p12"),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": PASSWORD,
        "ssl.key.password": PASSWORD,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(stores / "ca.pem"),
    }
    gone = {"listener.name.n.ssl.keystore.location": str(stores / "gone.p12")}
    broker_links(lambda: BrokerConfig(file, {}, gone), read_bytes)
    [line] = caplog.messages
    assert line.startswith("connections to other nodes are made by the static configuration: ")
    assert "gone.p12" in line
    with pytest.raises(ConfigError, match=r"gone\.p12"):
        broker_links(lambda: BrokerConfig(file | gone), read_bytes)


def test_every_request_to_a_controller_needs_a_right() -> None:
    envelope = 58  # the dispatcher asks itself
    assert set(BY_KEY) - {envelope} <= set(AT_CONTROLLERS)
    open_to_all = {key for key in BY_KEY if key != envelope and AT_CONTROLLERS[key] == ((), None, "")}
    of_a_token = {39, 40}  # Renew and Expire: for who has its HMAC, and is its owner or renewer
    assert open_to_all == {17, 18, 36} | of_a_token


def test_a_controller_that_has_not_read_its_acls_lets_super_users_in_alone() -> None:
    from kafkad.clock import Clock

    config = BrokerConfig(
        MEMBER
        | {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:node",
            "allow.everyone.if.no.acl.found": "true",
        }
    )
    ran: list[Any] = []
    followed = FollowedAcls(config, Clock(), ran.append)
    assert followed.authorizer is not None
    node, other = (followed.authorizer.subject(f"User:{name}", "127.0.0.1") for name in ("node", "other"))

    def may(subject: Any) -> bool:
        return bool(subject.may(Operation.READ, Kind.TOPIC, "t", "Fetch"))

    image = MetadataImage("c")
    followed.look(image, caught_up=False)
    for steps in ran:
        assert list(steps) == []
    followed.look(image, caught_up=False)
    assert (may(node), may(other)) == (True, False)
    followed.look(image, caught_up=True)
    assert (may(node), may(other)) == (True, True)


def test_a_controller_follows_acls_that_change_while_it_follows_others() -> None:
    """Nothing may come after the last change, so nobody looks again."""
    from kafkad.clock import Clock

    config = BrokerConfig(
        MEMBER
        | {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:node",
        }
    )
    ran: list[Any] = []
    followed = FollowedAcls(config, Clock(), ran.append)
    assert followed.authorizer is not None
    anna = followed.authorizer.subject("User:anna", "127.0.0.1")
    allowed = messages.AccessControlEntryRecord(
        id=bytes(16), resource_type=2, resource_name="t", pattern_type=3, principal="User:anna", host="*",
        operation=3, permission_type=3,
    )  # fmt: skip

    def image(acls: dict[bytes, Any]) -> Any:
        return SimpleNamespace(acls=acls)

    followed.look(image({bytes(16): allowed}), caught_up=True)
    followed.look(image({}), caught_up=True)
    list(ran.pop())
    assert not ran
    assert not anna.may(Operation.READ, Kind.TOPIC, "t", "Fetch")

    followed.look(image({bytes(16): allowed}), caught_up=True)
    list(ran.pop())
    assert anna.may(Operation.READ, Kind.TOPIC, "t", "Fetch")
