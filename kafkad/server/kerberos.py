"""The GSS library for GSSAPI: the broker's keytab, and the contexts that clients begin with it.

The package gssapi (the extra `gssapi`) is a layer over the system's Kerberos. The keytab is looked at when
the broker starts, and again by the library for each client, so new keys need no restart. The broker asks no
KDC. KRB5_CONFIG names the krb5.conf, where Java has java.security.krb5.conf."""

from collections.abc import Callable, Mapping
from typing import Any

from kafkad.config.definition import ConfigError
from kafkad.security.kerberos import Gssapi, ShortNames
from kafkad.security.listeners import TO_LOCAL, Kerberos, SaslListener
from kafkad.security.mechanisms import Refused


class _Context:
    def __init__(self, credentials: Any) -> None:
        import gssapi

        gss: Any = gssapi.SecurityContext
        self._gss = gss(creds=credentials, usage="accept")
        self._gss.__DEFER_STEP_ERRORS__ = False  # a step's trouble is its own, not the next one's
        self._trouble = gssapi.exceptions.GSSError
        self.established = False
        self.peer = ""

    def _told(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._trouble as trouble:
            raise Refused(" ".join(str(trouble).split())) from None

    def accept(self, token: bytes) -> bytes:
        answer = self._told(lambda: self._gss.step(token))
        if self._gss.complete:
            self.peer = str(self._told(lambda: self._gss.initiator_name))
            self.established = True
        return answer or b""

    def wrap(self, message: bytes) -> bytes:
        return bytes(self._told(lambda: self._gss.wrap(message, False)).message)

    def unwrap(self, token: bytes) -> bytes:
        return bytes(self._told(lambda: self._gss.unwrap(token)).message)


def check_keytabs(listeners: Mapping[str, SaslListener]) -> None:
    """Raises ConfigError."""
    for listener in listeners.values():
        if listener.kerberos is not None:
            gssapi_of(listener.kerberos)


def gssapi_of(kerberos: Kerberos) -> Callable[[], Gssapi]:
    """Makes a connection's mechanism. Raises ConfigError for a keytab that cannot be used."""
    import gssapi

    try:
        name = gssapi.Name(kerberos.principal, gssapi.NameType.kerberos_principal)
        credentials = gssapi.Credentials(
            name=name, usage="accept", mechs=[gssapi.MechType.kerberos], store={"keytab": kerberos.keytab}
        )
        sample = gssapi.Name("x", gssapi.NameType.kerberos_principal).canonicalize(gssapi.MechType.kerberos)
    except gssapi.exceptions.GSSError as trouble:
        said = " ".join(str(trouble).split())
        raise ConfigError(
            f"Invalid value [hidden] for configuration {kerberos.jaas}: the keytab {kerberos.keytab} cannot"
            f" be used for {kerberos.principal}: {said}"
        ) from None
    try:
        names = ShortNames(kerberos.rules, str(sample).rpartition("@")[2])
    except ValueError as wrong:
        raise ConfigError(
            f"Invalid value {','.join(kerberos.rules)} for configuration {TO_LOCAL}: {wrong}"
        ) from None
    return lambda: Gssapi(lambda: _Context(credentials), names.name_of)
