"""Connections of SASL listeners, while they authenticate and re-authenticate.

`security.sasl` decides what is said; here is who says it when: the phase of the connection in the reactor,
its principal, the end of its session, and the pause before a refused client is told so and closed, which
slows down who guesses passwords (connection.failed.authentication.delay.ms).

What takes long in a login runs in a thread of the lane `login`: a connection has one such piece of work at a
time, and a frame that comes meanwhile closes it.

A login that fails in an unforeseen way ends its connection and nothing else, also by an AssertionError: it
has no state that others use."""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kafkad._native.serving.connection import Connection
from kafkad.api import versions
from kafkad.api.context import RequestContext, Services
from kafkad.clock import Clock
from kafkad.protocol import codec
from kafkad.security.certificates import subject_of
from kafkad.security.delegation import TokenLogins
from kafkad.security.kerberos import GSSAPI
from kafkad.security.listeners import SaslListener, SignedTokens, sasl_listeners
from kafkad.security.mechanisms import SCRAM_HASHES, SCRAM_TYPES, Credential, Mechanism, Plain, Scram
from kafkad.security.oauthbearer import OAUTHBEARER, Jwks, OAuthBearer, Validator
from kafkad.security.principal_rules import principal_rules
from kafkad.security.sasl import API_VERSIONS, SASL_HANDSHAKE, Answer, Authenticator, Settings, State
from kafkad.server.failures import REASON_MAX, Failures
from kafkad.server.kerberos import gssapi_of
from kafkad.server.oauth_keys import OAuthKeySets

PHASE_HANDSHAKE: Final = 0
PHASE_AUTHENTICATING: Final = 1
PHASE_READY: Final = 2
STORE_BYTES_MAX: Final = 4 << 20
REAUTH_MIN_MS: Final = 1_000  # a connection may not re-authenticate more often
NEVER_MS: Final = (1 << 63) - 1  # connections.max.reauth.ms may be this large


class Session:
    """The `Connection.state` of a connection on a SASL listener."""

    __slots__ = ("authenticator", "by_token", "reauth_ms", "working")

    def __init__(self, authenticator: Authenticator) -> None:
        self.authenticator = authenticator
        self.by_token = False  # the client proved by a delegation token who it is
        self.reauth_ms = 0  # monotonic, of the last beginning
        self.working = False  # a thread is at work for it


def is_by_token(connection: Any) -> bool:
    """Return whether the client of a connection logged in by a delegation token."""
    session = connection.state
    return isinstance(session, Session) and session.by_token


def read_bytes(path: str) -> bytes:
    """Read a store, which must be a file: anything else that the path names (a pipe, for example) must not
    block the loop. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a file", path)
        if found.st_size > STORE_BYTES_MAX:
            raise OSError(errno.EFBIG, f"it is larger than {STORE_BYTES_MAX} bytes", path)
        return os.read(file, STORE_BYTES_MAX)
    finally:
        os.close(file)


class CertificateNames:
    """Sets the principal of a client from its verified certificate. With SASL, SASL sets it instead."""

    def __init__(self, config: Any, endpoints: Iterable[Any] | None = None) -> None:
        """`endpoints`: other ones than those that serve clients."""
        self._rules = principal_rules(config, endpoints)
        self._failures = Failures(Clock().monotonic_ms)

    def __call__(self, connection: Any, certificate: bytes) -> None:
        """Raise ValueError if the client gets no name; then the connection is closed."""
        if connection.phase != PHASE_READY:
            return
        try:
            name = self._rules[connection.listener].name_of(subject_of(certificate))
        except ValueError:
            raise
        except Exception as trouble:
            self._failures.log(trouble, "a certificate from %s could not be read", connection.peer_host)
            raise ValueError(f"its certificate could not be read: {trouble!r}"[:REASON_MAX]) from trouble
        connection.principal = f"User:{name}"


class Authentication:
    """`scheduler`: a LoopScheduler with the lane `login`. `nonce()` is fresh, random text without commas.
    `keys` of the providers whose tokens are taken."""

    def __init__(
        self,
        services: Services,
        scheduler: Any,
        nonce: Callable[[], str],
        keys: OAuthKeySets | None,
        listeners: Mapping[str, SaslListener] | None = None,
    ) -> None:
        """`listeners`: other ones than those that serve clients."""
        self._services = services
        self._scheduler = scheduler
        self._nonce = nonce
        self._keys = keys
        self._token_logins = TokenLogins(
            services.static_config.delegation_token_secret_key or "",
            self._tokens,
            services.clock.now_ms,
            os.urandom,
        )
        config = services.config
        self._failures = Failures(services.clock.monotonic_ms)
        self._delay_ms: int = config.connection_failed_authentication_delay_ms
        self._listeners = {
            name: Settings({it: self._maker(it, found) for it in found.mechanisms}, found.max_reauth_ms)
            for name, found in (sasl_listeners(config) if listeners is None else listeners).items()
        }

    def _maker(self, name: str, listener: SaslListener) -> Callable[[], Mechanism]:
        if name == OAUTHBEARER:
            validator = self._validator(listener)
            return lambda: OAuthBearer(validator, self._services.clock.now_ms)
        if name == GSSAPI:
            assert listener.kerberos is not None
            return gssapi_of(listener.kerberos)
        if name not in SCRAM_HASHES:
            return lambda: Plain(listener.passwords)
        number = SCRAM_TYPES[name]
        return lambda: Scram(
            name,
            lambda user: self._credential(number, user),
            self._nonce,
            lambda token_id: self._token_logins.find(name, token_id),
        )

    def _validator(self, listener: SaslListener) -> Validator:
        tokens = listener.tokens
        assert tokens is not None
        if not isinstance(tokens, SignedTokens):
            return tokens
        assert self._keys is not None
        keys = self._keys.of(tokens.keys)
        return Jwks(tokens.expected, lambda: keys.current, keys.missing)

    def _tokens(self) -> Mapping[str, Any]:
        """The known delegation tokens; empty while delegation tokens are off."""
        if not self._services.static_config.delegation_token_secret_key:
            return {}
        return self._services.metadata.image.delegation_tokens

    def _credential(self, mechanism: int, user: str) -> Credential | None:
        record = self._services.metadata.image.scram_credentials.get((mechanism, user))
        if record is None:
            return None
        salt, stored, server = (bytes(it) for it in (record.salt, record.stored_key, record.server_key))
        return Credential(salt, stored, server, record.iterations)

    def takes(self, connection: Connection, frame: bytes) -> bool:
        """Return whether the frame belongs to authentication. A SaslHandshake of an authenticated client
        begins it again, if its session ends at all."""
        if connection.phase != PHASE_READY:
            return True
        if int.from_bytes(frame[:2], "big", signed=True) != SASL_HANDSHAKE:
            return False
        session = connection.state
        if not isinstance(session, Session) or session.authenticator.session_ms is None:
            return False
        now_ms = self._services.clock.monotonic_ms()
        if session.reauth_ms and now_ms - session.reauth_ms < REAUTH_MIN_MS:
            return False
        session.reauth_ms = now_ms
        session.authenticator = session.authenticator.again()
        connection.session_expires_ms = 0
        return True

    def __call__(self, connection: Connection, request_id: int, frame: bytes) -> None:
        try:
            self._serve(connection, request_id, frame)
        except MemoryError:
            connection.close("no memory was left for its login")
        except Exception as trouble:
            self._failures.close(connection, "a login", trouble)

    def _serve(self, connection: Connection, request_id: int, frame: bytes) -> None:
        session = connection.state
        if not isinstance(session, Session):
            session = connection.state = Session(Authenticator(self._listeners[connection.listener]))
        authenticator = session.authenticator
        if authenticator.state is State.FAILED:
            return  # it is told so in a moment, and closed
        if session.working:
            connection.close("a frame came before the one before it was answered, during its login")
            return
        answer = authenticator.frame(frame)
        if answer.later is not None:
            self._work(session, connection, request_id, frame, answer.later)
            return
        if answer.versions is not None:
            answer = Answer(self._versions(connection, authenticator, *answer.versions))
        if answer.failed is not None:
            if connection.phase == PHASE_READY:  # re-authentication: nothing is served until it closes
                connection.phase = PHASE_HANDSHAKE
            self._fail(connection, request_id, answer)
            return
        if authenticator.state is State.COMPLETE:
            connection.principal = authenticator.principal
            session.by_token = authenticator.by_token
            connection.phase = PHASE_READY
            if authenticator.session_ms is not None:
                now_ms = self._services.clock.monotonic_ms()
                connection.session_expires_ms = min(now_ms + authenticator.session_ms, NEVER_MS)
        else:
            connection.phase = PHASE_AUTHENTICATING if authenticator.raw else PHASE_HANDSHAKE
        if answer.response is None:
            connection.no_response(request_id)
        else:
            connection.respond(request_id, answer.response)

    def _work(
        self, session: Session, connection: Any, request_id: int, frame: bytes, work: Callable[[], None]
    ) -> None:
        def done(trouble: BaseException | None) -> None:
            session.working = False
            if connection.closed:
                return
            if trouble is not None:
                self._failures.close(connection, "a login", trouble)
                return
            self(connection, request_id, frame)

        session.working = True
        self._scheduler.run_in_thread(work, done, "login")

    def _versions(self, connection: Any, authenticator: Authenticator, header: Any, request: Any) -> bytes:
        if request is None:
            return codec.encode_response(versions.unsupported(self._services), 0, header.correlation_id)
        context = RequestContext(
            api_key=API_VERSIONS,
            version=header.request_api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            client_host=connection.peer_host,
            listener=connection.listener,
            connection=connection,
        )
        response = versions.api_versions(self._services, context, request)
        if not response.error_code:
            authenticator.versions_answered()
        return codec.encode_response(response, context.version, header.correlation_id)

    def _fail(self, connection: Connection, request_id: int, answer: Answer) -> None:
        def end() -> None:
            if not connection.closed:
                if answer.response is not None:
                    connection.respond(request_id, answer.response)
                connection.close(answer.failed)

        if self._delay_ms > 0:
            self._scheduler.call_later(self._delay_ms, end)
        else:
            end()
