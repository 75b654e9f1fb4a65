"""CreateDelegationToken (key 38), v0-3, RenewDelegationToken (39), ExpireDelegationToken (40), v0-2, and
DescribeDelegationToken (41), v0-3.   v2 flexible. v3 another owner than the requester (KIP-373).

A client must be authenticated, and not by a token: otherwise DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. HMACs are
only in answers, never in the log."""

from typing import Any

from kafkad.api.context import ANONYMOUS, RequestContext, Services
from kafkad.controller.tokens import REQUESTER_VERSION, USER, create_response, owner_of
from kafkad.protocol import errors, messages
from kafkad.security.delegation import Principal, hmac_of

NO_TIME = -1


def is_allowed(services: Services, context: RequestContext) -> bool:
    """Return whether the client may send requests about tokens (KafkaApis.allowTokenRequests)."""
    if context.by_token:
        return False
    if context.connection is None:  # in an Envelope: the broker knows how the client is connected
        return True
    protocol = services.config.listener_protocols[context.listener]
    if protocol == "PLAINTEXT":
        return False
    return protocol != "SSL" or context.principal != ANONYMOUS


def create_delegation_token(services: Services, context: RequestContext, request: Any) -> Any:
    code = errors.NONE
    if not is_allowed(services, context):
        code = errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    elif any(renewer.principal_type != USER for renewer in request.renewers):
        code = errors.INVALID_PRINCIPAL_TYPE
    if code:
        requester = Principal.of(context.principal)
        return create_response(context.version, owner_of(requester, request), requester, code, NO_TIME)
    return services.controller.create_delegation_token(request, context)


def renew_delegation_token(services: Services, context: RequestContext, request: Any) -> Any:
    if not is_allowed(services, context):
        return messages.RenewDelegationTokenResponse(
            error_code=errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=NO_TIME
        )
    return services.controller.renew_delegation_token(request, context)


def expire_delegation_token(services: Services, context: RequestContext, request: Any) -> Any:
    if not is_allowed(services, context):
        return messages.ExpireDelegationTokenResponse(
            error_code=errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=NO_TIME
        )
    return services.controller.expire_delegation_token(request, context)


def describe_delegation_token(services: Services, context: RequestContext, request: Any) -> Any:
    """Return tokens that one of the owners owns, requested or may renew; without a list of owners: all. The
    guard removes those that the client may not see. A generator: there may be many."""
    answer = messages.DescribeDelegationTokenResponse
    secret = services.config.delegation_token_secret_key
    if not is_allowed(services, context):
        return answer(error_code=errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if not secret:
        return answer(error_code=errors.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = None
    if request.owners is not None:
        owners = {f"{it.principal_type}:{it.principal_name}" for it in request.owners}
        yield
    rows = []
    for number, token in enumerate(list(services.metadata.image.delegation_tokens.values()), 1):
        about = {token.owner, token.requester, *token.renewers}  # as security.delegation.concerns
        if owners is None or not owners.isdisjoint(about):
            rows.append(_row(context.version, token, hmac_of(secret, token.token_id)))
        if number % 64 == 0:
            yield
    return answer(error_code=errors.NONE, tokens=rows)


def _row(version: int, token: Any, hmac: bytes) -> Any:
    row = messages.DescribeDelegationTokenResponse.Tokens
    owner, requester = Principal.of(token.owner), Principal.of(token.requester)
    described = row(
        principal_type=owner.kind,
        principal_name=owner.name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=hmac,
        renewers=[
            row.Renewers(principal_type=it.kind, principal_name=it.name)
            for it in map(Principal.of, token.renewers)
        ],
    )
    if version >= REQUESTER_VERSION:
        described.token_requester_principal_type = requester.kind
        described.token_requester_principal_name = requester.name
    return described
