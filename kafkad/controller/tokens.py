"""Changes of delegation tokens, planned as records (KIP-48, KIP-373). Times are the controller's wall clock.
(DelegationTokenControlManager.)"""

from collections.abc import Generator
from typing import Any, Final

from kafkad.config.broker import BrokerConfig
from kafkad.metadata import features
from kafkad.metadata.image import MetadataImage
from kafkad.metadata.uuids import random_uuid, uuid_text
from kafkad.protocol import errors, messages, strings
from kafkad.protocol.errors import KafkaError
from kafkad.security.delegation import Hmacs, Principal, has_expired, hmac_of

USER: Final = "User"
REQUESTER_VERSION: Final = 3  # first version whose answers name the requester
LONG_MAX: Final = (1 << 63) - 1
REMOVED_AT_ONCE: Final = 1_000  # tokens

Planned = Generator[None, None, tuple[list[Any], Any]]  # records, response


class Tokens:
    """`secret`: None if delegation tokens are disabled; then every request is refused."""

    def __init__(self, secret: str | None, max_lifetime_ms: int, expiry_ms: int) -> None:
        self._secret = secret
        self._max_lifetime_ms = max_lifetime_ms
        self._expiry_ms = expiry_ms
        self._hmacs = Hmacs(secret or "")

    @classmethod
    def configured(cls, config: BrokerConfig) -> "Tokens":
        return cls(
            config.delegation_token_secret_key or None,
            config.delegation_token_max_lifetime_ms,
            config.delegation_token_expiry_time_ms,
        )

    def plan_create(
        self,
        image: MetadataImage,
        random: Any,
        now_ms: int,
        requester: Principal,
        request: Any,
        version: int,
    ) -> Planned:
        """Return a CreateDelegationTokenResponse of a version. The guard has checked the requester's right to
        ask for another owner."""
        owner = owner_of(requester, request)
        response = create_response(version, owner, requester)
        response.error_code = self._unavailable(image)
        if response.error_code:
            return [], response
        if any(renewer.principal_type != USER for renewer in request.renewers):
            response.error_code = errors.INVALID_PRINCIPAL_TYPE
            return [], response
        renewers = [f"{it.principal_type}:{it.principal_name}" for it in request.renewers]
        if not all(map(strings.fits, (str(owner), *renewers))):  # a name may be as long, without its type
            response.error_code = errors.INVALID_REQUEST
            return [], response
        yield
        lifetime_ms = self._max_lifetime_ms
        if request.max_lifetime_ms > 0:
            lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
        response.issue_timestamp_ms = now_ms
        response.max_timestamp_ms = min(now_ms + lifetime_ms, LONG_MAX)
        response.expiry_timestamp_ms = min(response.max_timestamp_ms, now_ms + self._expiry_ms)
        response.token_id = uuid_text(random_uuid(random))
        assert self._secret is not None
        response.hmac = hmac_of(self._secret, response.token_id)
        record = messages.DelegationTokenRecord(
            owner=str(owner),
            requester=str(requester),
            renewers=renewers,
            issue_timestamp=now_ms,
            max_timestamp=response.max_timestamp_ms,
            expiration_timestamp=response.expiry_timestamp_ms,
            token_id=response.token_id,
        )
        return [record], response

    def plan_renew(self, image: MetadataImage, now_ms: int, requester: Principal, request: Any) -> Planned:
        """Return a RenewDelegationTokenResponse."""
        response = messages.RenewDelegationTokenResponse()
        try:
            token = yield from self._found(image, bytes(request.hmac))
            if has_expired(token, now_ms):
                raise KafkaError(errors.DELEGATION_TOKEN_EXPIRED)
            _check_renewer(token, requester)
        except KafkaError as trouble:
            response.error_code = trouble.code
            return [], response
        period_ms = self._expiry_ms
        if request.renew_period_ms > 0:
            period_ms = min(period_ms, request.renew_period_ms)
        response.expiry_timestamp_ms = min(token.max_timestamp, now_ms + period_ms)
        return [_changed(token, response.expiry_timestamp_ms)], response

    def plan_expire(self, image: MetadataImage, now_ms: int, requester: Principal, request: Any) -> Planned:
        """Return an ExpireDelegationTokenResponse. A negative period removes the token."""
        response = messages.ExpireDelegationTokenResponse()
        try:
            token = yield from self._found(image, bytes(request.hmac))
            _check_renewer(token, requester)
            if request.expiry_time_period_ms < 0:
                response.expiry_timestamp_ms = now_ms
                return [messages.RemoveDelegationTokenRecord(token_id=token.token_id)], response
            if has_expired(token, now_ms):
                raise KafkaError(errors.DELEGATION_TOKEN_EXPIRED)
        except KafkaError as trouble:
            response.error_code = trouble.code
            return [], response
        response.expiry_timestamp_ms = min(token.max_timestamp, now_ms + request.expiry_time_period_ms)
        return [_changed(token, response.expiry_timestamp_ms)], response

    def plan_sweep(self, image: MetadataImage, now_ms: int) -> Generator[None, None, list[Any]]:
        """Return the removals of expired tokens, at most REMOVED_AT_ONCE."""
        records: list[Any] = []
        for number, token in enumerate(image.delegation_tokens.values(), 1):
            if has_expired(token, now_ms):
                records.append(messages.RemoveDelegationTokenRecord(token_id=token.token_id))
                if len(records) >= REMOVED_AT_ONCE:
                    break
            if number % 1_000 == 0:
                yield
        return records

    def _unavailable(self, image: MetadataImage) -> int:
        if self._secret is None:
            return errors.DELEGATION_TOKEN_AUTH_DISABLED
        if image.metadata_version < features.DELEGATION_TOKENS:
            return errors.UNSUPPORTED_VERSION
        return errors.NONE

    def _found(self, image: MetadataImage, hmac: bytes) -> Generator[None, None, Any]:
        """Raises KafkaError."""
        if code := self._unavailable(image):
            raise KafkaError(code)
        token = yield from self._hmacs.find(image.delegation_tokens, hmac)
        if token is None:
            raise KafkaError(errors.DELEGATION_TOKEN_NOT_FOUND)
        return token


def owner_of(requester: Principal, request: Any) -> Principal:
    """Return the owner in a CreateDelegationTokenRequest."""
    if not request.owner_principal_name:
        return requester
    return Principal(request.owner_principal_type or "", request.owner_principal_name)


def create_response(
    version: int, owner: Principal, requester: Principal, code: int = errors.NONE, time_ms: int = 0
) -> Any:
    """Return a CreateDelegationTokenResponse of a version, without a token; `time_ms` in all its times."""
    response = messages.CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner.kind,
        principal_name=owner.name,
        issue_timestamp_ms=time_ms,
        expiry_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
        token_id="",
        hmac=b"",
    )
    if version >= REQUESTER_VERSION:
        response.token_requester_principal_type = requester.kind
        response.token_requester_principal_name = requester.name
    return response


def _check_renewer(token: Any, requester: Principal) -> None:
    """Raises KafkaError."""
    if str(requester) != token.owner and str(requester) not in token.renewers:
        raise KafkaError(errors.DELEGATION_TOKEN_OWNER_MISMATCH)


def _changed(token: Any, expires_ms: int) -> Any:
    return messages.DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=list(token.renewers),
        issue_timestamp=token.issue_timestamp,
        max_timestamp=token.max_timestamp,
        expiration_timestamp=expires_ms,
        token_id=token.token_id,
    )
