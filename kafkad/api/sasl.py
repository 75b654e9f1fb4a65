"""SaslHandshake (key 17), v0-1: refused as Kafka refuses it on a listener without SASL."""

from typing import Any

from kafkad.api.context import RequestContext, Services
from kafkad.protocol import errors, messages


def sasl_handshake(services: Services, context: RequestContext, request: Any) -> Any:
    """ILLEGAL_SASL_STATE: this listener does not authenticate; `mechanisms` is empty."""
    return messages.SaslHandshakeResponse(error_code=errors.ILLEGAL_SASL_STATE, mechanisms=[])
