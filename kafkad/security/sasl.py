"""A connection of a SASL listener before it is authenticated, and when it authenticates again.

    HANDSHAKE_OR_VERSIONS   the first request: ApiVersions, once, or SaslHandshake
    HANDSHAKE               SaslHandshake
    AUTHENTICATE            tokens: raw frames after SaslHandshake v0, SaslAuthenticate after v1
    REAUTH_BAD_MECHANISM    like AUTHENTICATE, but the next token is refused: the mechanism has changed
    COMPLETE, FAILED

No other request is decoded before COMPLETE. There is no I/O here: `frame` returns an `Answer`, which has the
response and the fate of the connection. After a failure, the caller sends the response with a delay and
closes. If there is `Answer.later`, the caller runs it in a thread and passes the same frame again.
(SaslServerAuthenticator; KIP-43, KIP-152, KIP-255, KIP-368.)"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import Malformed
from kafkad.security.mechanisms import Later, Mechanism, Refused

SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36
HANDSHAKE_HIGH: Final = 1
AUTHENTICATE_HIGH: Final = 2
LOGGED_MAX: Final = 1_000  # characters of a reason, which may repeat what the client has sent
SHOWN_MAX: Final = 8_000  # characters of an answer's message: a string has at most 32,767 bytes


class State(Enum):
    HANDSHAKE_OR_VERSIONS = "handshake or versions"
    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    REAUTH_BAD_MECHANISM = "another mechanism than before"
    COMPLETE = "complete"
    FAILED = "failed"


class Answer(NamedTuple):
    """`response`: a frame without its size; b"" is an empty one, None is none. `failed`: why the connection
    ends. `versions`: an ApiVersions request to answer, as (header, request). `later`: nothing has happened
    yet; run this in a thread first."""

    response: bytes | None = None
    failed: str | None = None
    versions: tuple[Any, Any] | None = None
    later: Callable[[], None] | None = None


class Settings(NamedTuple):
    """The SASL settings of one listener."""

    mechanisms: dict[str, Callable[[], Mechanism]]  # the enabled ones
    max_reauth_ms: dict[str, int]  # by mechanism; 0: a session does not end


class Authenticator:
    """The state of one connection. `raw`: the next frames are tokens without a header."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._mechanism: Mechanism | None = None
        self._name = ""
        self._headers = False  # tokens come in SaslAuthenticate
        self._before: tuple[str, str] | None = (
            None  # previous mechanism and principal, if it authenticates again
        )
        self.state = State.HANDSHAKE_OR_VERSIONS
        self.principal = ""
        self.by_token = False  # the login used a delegation token
        self.session_ms: int | None = None  # how long the session is valid, once COMPLETE; None: for ever

    @property
    def raw(self) -> bool:
        return self.state in (State.AUTHENTICATE, State.REAUTH_BAD_MECHANISM) and not self._headers

    def again(self) -> "Authenticator":
        """Return a new one for a SaslHandshake on an authenticated connection (KIP-368)."""
        assert self.state is State.COMPLETE
        fresh = Authenticator(self._settings)
        fresh._before = (self._name, self.principal)
        fresh.state = State.HANDSHAKE
        return fresh

    def frame(self, frame: bytes) -> Answer:
        """Handle a frame of the client, without its size. After FAILED there is no answer."""
        if self.state in (State.COMPLETE, State.FAILED):
            return Answer()
        try:
            if self.raw:
                return self._raw_token(frame)
            return self._request(frame)
        except Later as later:
            return Answer(later=later.work)
        except Malformed as lie:
            return self._fail(f"a request does not parse: {lie}")

    def _request(self, frame: bytes) -> Answer:
        if len(frame) < 4:
            return self._fail("a request has no header")
        key = int.from_bytes(frame[:2], "big", signed=True)
        version = int.from_bytes(frame[2:4], "big", signed=True)
        if self.state in (State.AUTHENTICATE, State.REAUTH_BAD_MECHANISM):
            return self._token(frame, key, version)
        if key == SASL_HANDSHAKE and 0 <= version <= HANDSHAKE_HIGH:
            header, request = codec.decode_request(frame)
            return self._handshake(header, request, version)
        if key == API_VERSIONS and version >= 0:
            if self.state is not State.HANDSHAKE_OR_VERSIONS:
                return self._fail("ApiVersions came twice")
            return self._versions(frame, version)
        return self._fail(
            f"API key {key} version {version} came before authentication; does the client use this listener's"
            " security.protocol?"
        )

    def _versions(self, frame: bytes, version: int) -> Answer:
        if version > messages.ApiVersionsRequest.MAX_VERSION:
            header, _ = codec.decode_request_header(frame, 2)
            return Answer(versions=(header, None))
        header, request = codec.decode_request(frame)
        return Answer(versions=(header, request))

    def versions_answered(self) -> None:
        """The ApiVersions was answered without an error."""
        self.state = State.HANDSHAKE

    def _handshake(self, header: Any, request: Any, version: int) -> Answer:
        response = messages.SaslHandshakeResponse(error_code=0, mechanisms=list(self._settings.mechanisms))
        make = self._settings.mechanisms.get(request.mechanism)
        if make is None:
            response.error_code = errors.UNSUPPORTED_SASL_MECHANISM
            reason = f"SASL mechanism {request.mechanism[:100]} is not enabled"
            return self._fail(reason, codec.encode_response(response, version, header.correlation_id))
        self._name = request.mechanism
        self._mechanism = make()
        self._headers = version >= 1
        self.state = State.AUTHENTICATE
        if self._before is not None and self._before[0] != self._name:
            self.state = State.REAUTH_BAD_MECHANISM
        return Answer(codec.encode_response(response, version, header.correlation_id))

    def _token(self, frame: bytes, key: int, version: int) -> Answer:
        if key != SASL_AUTHENTICATE:
            # Kafka sends an error response of that API; here no other request is decoded before
            # authentication.
            return self._fail(f"API key {key} came in the middle of authentication")
        if not 0 <= version <= AUTHENTICATE_HIGH:
            return self._fail(f"SaslAuthenticate version {version} is not served")
        header, request = codec.decode_request(frame)
        response = messages.SaslAuthenticateResponse(error_code=0, error_message="", auth_bytes=b"")
        failed = None
        try:
            response.auth_bytes = self._step(bytes(request.auth_bytes))
            response.session_lifetime_ms = self.session_ms or 0
        except Refused as refused:
            failed = self._refused(refused)
            again = "re-authentication" if self._before is not None else "authentication"
            response.error_code = errors.SASL_AUTHENTICATION_FAILED
            shown = refused.shown or (
                f"Authentication failed during {again} due to invalid credentials with SASL mechanism"
                f" {self._name}"
            )
            response.error_message = shown[:SHOWN_MAX]
        return Answer(codec.encode_response(response, version, header.correlation_id), failed)

    def _raw_token(self, token: bytes) -> Answer:
        try:
            return Answer(self._step(token))
        except Refused as refused:
            return Answer(None, self._refused(refused))

    def _step(self, token: bytes) -> bytes:
        assert self._mechanism is not None
        if self.state is State.REAUTH_BAD_MECHANISM:
            assert self._before is not None
            reason = (
                f"SASL mechanism '{self._name}' requested by client is not supported for re-authentication of"
                f" mechanism '{self._before[0]}'"
            )
            raise Refused(reason, reason)
        answer = self._mechanism.step(token)
        if self._mechanism.done:
            principal = f"User:{self._mechanism.user}"
            if self._before is not None and self._before[1] != principal:
                old, new = self._before[1].replace(":", ".", 1), principal.replace(":", ".", 1)
                reason = f"Cannot change principals during re-authentication from {old}: {new}"
                raise Refused(reason, reason)
            self.principal = principal
            self.by_token = self._mechanism.by_token
            limits = [self._mechanism.lifetime_ms, self._settings.max_reauth_ms.get(self._name, 0) or None]
            self.session_ms = min((it for it in limits if it is not None and it >= 0), default=None)
            self.state = State.COMPLETE
            self._mechanism = None
        return answer

    def _refused(self, refused: Refused) -> str:
        self.state = State.FAILED
        self._mechanism = None
        return f"authentication by {self._name} failed: {str(refused)[:LOGGED_MAX]}"

    def _fail(self, reason: str, response: bytes | None = None) -> Answer:
        self.state = State.FAILED
        self._mechanism = None
        return Answer(response, reason)
