"""What takes long in a login, and who waits for it."""

import base64
from types import SimpleNamespace
from unittest.mock import Mock

from kafkad.client.security import scram_conversation
from kafkad.config.broker import BrokerConfig
from kafkad.protocol import codec, messages
from kafkad.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from kafkad.security.delegation import hmac_of
from kafkad.security.sasl import State
from kafkad.server.authentication import Authentication
from tests.unit.test_delegation import NOW_MS, record

SECRET, LISTENER = "hush", "SASL_PLAINTEXT"


class Connection:
    def __init__(self) -> None:
        self.state, self.phase, self.listener = None, 0, LISTENER
        self.closed, self.answers, self.reason = False, [], None
        self.peer_host = "127.0.0.1"

    def respond(self, request_id, frame):
        self.answers.append(bytes(frame))

    def close(self, reason):
        self.closed, self.reason = True, reason


class Scheduler:
    """Its threads work when the test says so."""

    def __init__(self) -> None:
        self.waiting = []

    def run_in_thread(self, fn, callback, lane):
        assert lane == "login"
        self.waiting.append((fn, callback))

    def call_later(self, delay_ms, fn):
        self.waiting.append((fn, None))

    def run(self):
        fn, callback = self.waiting.pop(0)
        fn()
        callback(None)


def broker(delay_ms=0):
    config = BrokerConfig(
        {
            "listeners": f"{LISTENER}://127.0.0.1:0",
            "security.inter.broker.protocol": LISTENER,
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
            "delegation.token.secret.key": SECRET,
            "connection.failed.authentication.delay.ms": str(delay_ms),
            "log.dirs": "/nowhere",
        }
    )
    image = SimpleNamespace(delegation_tokens={"t": record()}, scram_credentials={})
    services = SimpleNamespace(
        config=config,
        static_config=config,
        clock=SimpleNamespace(now_ms=lambda: NOW_MS, monotonic_ms=lambda: 1),
        metadata=SimpleNamespace(image=image),
    )
    scheduler = Scheduler()
    return Authentication(services, scheduler, lambda: "nonce", None), scheduler


def handshake():
    return codec.encode_request(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1, 1, "c")


def token(said):
    return codec.encode_request(SaslAuthenticateRequest(auth_bytes=said), 2, 2, "c")


def begun(authentication):
    connection = Connection()
    authentication(connection, 1, handshake())
    assert len(connection.answers) == 1
    client = scram_conversation(
        "sha256", "t", base64.b64encode(hmac_of(SECRET, "t")).decode(), delegated=True
    )
    return connection, client, token(next(client))


def told(frame):
    return codec.decode_response(messages.SaslAuthenticateResponse, 2, frame)[1]


def test_the_loop_derives_no_credential():
    authentication, scheduler = broker()
    connection, client, first = begun(authentication)
    authentication(connection, 2, first)
    assert len(connection.answers) == 1 and len(scheduler.waiting) == 1
    begun(authentication)  # another one is answered meanwhile
    scheduler.run()
    assert len(connection.answers) == 2
    said = client.send(bytes(told(connection.answers[1]).auth_bytes))
    authentication(connection, 3, token(said))
    assert not scheduler.waiting and connection.principal == "User:anna" and connection.phase == 2
    another, _, first = begun(authentication)
    authentication(another, 2, first)
    assert len(another.answers) == 2 and not scheduler.waiting  # it is known now


def test_a_frame_that_comes_meanwhile_ends_it():
    authentication, scheduler = broker()
    connection, _, first = begun(authentication)
    authentication(connection, 2, first)
    authentication(connection, 3, first)
    assert connection.closed and "before the one before it was answered" in connection.reason
    assert len(scheduler.waiting) == 1  # one piece of work a connection
    scheduler.run()
    assert len(connection.answers) == 1


def test_a_login_that_is_refused_with_a_long_name_is_logged_in_a_short_line():
    authentication, _ = broker()
    connection, _, _ = begun(authentication)
    authentication(connection, 2, token(b"n,,n=" + b"a" * 400_000 + b",r=x"))
    assert connection.closed and len(connection.reason) < 1_200


def test_a_connection_that_fails_to_log_in_again_is_served_nothing_more():
    authentication, _ = broker(delay_ms=100)
    connection, _, _ = begun(authentication)
    connection.phase, connection.session_expires_ms = 2, 10
    connection.state.authenticator.state = State.COMPLETE
    connection.state.authenticator.session_ms = 10
    frame = codec.encode_request(SaslHandshakeRequest(mechanism="NONE"), 1, 2, "c")
    assert authentication.takes(connection, frame)
    authentication(connection, 2, frame)
    assert not connection.closed  # it waits for the delay
    metadata = codec.encode_request(messages.MetadataRequest(), 9, 3, "c")
    assert authentication.takes(connection, metadata)


def test_work_that_fails_closes_the_connection():
    authentication, scheduler = broker()
    connection, _, first = begun(authentication)
    authentication(connection, 2, first)
    _, callback = scheduler.waiting.pop()
    callback(ValueError("no memory"))
    assert connection.closed and connection.reason == "a login failed: ValueError('no memory')"


def test_a_login_that_nobody_has_foreseen_closes_its_connection(monkeypatch, caplog):
    """Also an AssertionError: a login has no state that others use."""
    authentication, _ = broker()

    kinds = (KeyError("x" * 10_000), AssertionError(), RecursionError())
    for trouble in kinds:
        fail = Mock(side_effect=trouble)
        monkeypatch.setattr("kafkad.security.sasl.Authenticator.frame", fail)
        for _ in range(10):
            connection = Connection()
            authentication(connection, 1, handshake())
            assert connection.closed and not connection.answers and len(connection.reason) <= 200
    assert len(caplog.records) == len(kinds), "a line for each place and kind, not for each client"
    monkeypatch.undo()
    assert begun(authentication)[0].answers
