"""SaslHandshake (key 17), v0-1, and SaslAuthenticate (key 36), v0-2, from a client that does not need them:
its listener has no SASL, or it is authenticated and its session does not end. `server.authentication` serves
all others."""

from typing import Any

from kafkad.api.context import RequestContext, Services
from kafkad.protocol import errors, messages


def sasl_handshake(services: Services, context: RequestContext, request: Any) -> Any:
    """ILLEGAL_SASL_STATE; `mechanisms` is empty."""
    return messages.SaslHandshakeResponse(error_code=errors.ILLEGAL_SASL_STATE, mechanisms=[])


def sasl_authenticate(services: Services, context: RequestContext, request: Any) -> Any:
    """ILLEGAL_SASL_STATE."""
    return messages.SaslAuthenticateResponse(
        error_code=errors.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )
