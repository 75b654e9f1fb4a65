"""Kerberos: the server's side of the SASL mechanism GSSAPI, and the short names of principals.

GSSAPI (RFC 4752) has two phases. First GSS tokens are exchanged until a context is established, which proves
the client's identity. Then client and server agree on a layer of protection; as in Kafka, only "none" is
offered. Calls of a context may wait for the disk, so each step runs in a thread (mechanisms.Later).

    RULE:[2:$1@$0](.*@EXAMPLE\\.COM)s/@.*///L, DEFAULT

sasl.kerberos.principal.to.local.rules: the first rule that fits determines the user's name. `[2:$1@$0]` is
for principals with two parts and builds a text from them ($0 is the realm). The text must match the
expression in parentheses. s/from/to/ replaces the first match, or with g every match. L and U change the
case. DEFAULT takes the first part of a principal of the default realm. (GssKrb5Server, KerberosShortNamer,
KerberosRule, KerberosName.)"""

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from kafkad.security import java_regex
from kafkad.security.mechanisms import Later, Refused
from kafkad.security.time_limit import SHOWN, LimitedNames

GSSAPI: Final = "GSSAPI"
MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"
NO_LAYER: Final = 1  # the bit for "no layer of protection"
_NAME: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE: Final = re.compile(
    r"(DEFAULT)|RULE:\[([0-9]*):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?/?([LU])?"
)
_PARAMETER: Final = re.compile(r"([^$]*)(?:\$([0-9]*))?")
_EVERY: Final = "g"


class Context(Protocol):
    """A GSS context of a server. Each method raises Refused."""

    established: bool
    peer: str  # the client's principal, once established

    def accept(self, token: bytes) -> bytes: ...
    def wrap(self, message: bytes) -> bytes: ...
    def unwrap(self, token: bytes) -> bytes: ...


class Gssapi:
    """`context()` makes a context; `name_of(principal)` returns the short name, and raises ValueError if
    there is none."""

    def __init__(self, context: Callable[[], Context], name_of: Callable[[str], str]) -> None:
        self._make = context
        self._name_of = name_of
        self._context: Context | None = None
        self._offered = False
        self._result: bytes | Refused | None = None  # of the work in the thread
        self._finished = False
        self._peer = ""  # the principal that the client has proved
        self.done = False
        self.user = ""
        self.lifetime_ms: int | None = None  # Kafka ignores the ticket's lifetime
        self.by_token = False

    def step(self, token: bytes) -> bytes:
        result, self._result = self._result, None
        if result is None:
            raise Later(lambda: self._work(token))
        if isinstance(result, Refused):
            raise result
        if self._finished:
            self.user = self._named(self._peer)
        self.done = self._finished
        return result

    def _named(self, principal: str) -> str:
        """Return the short name. Here and not in the thread: the time limit works in the main thread only."""
        try:
            return self._name_of(principal)
        except ValueError as none:
            raise Refused(str(none)) from None

    def _work(self, token: bytes) -> None:
        """Runs in a thread."""
        try:
            self._result = self._answer(token)
        except Refused as refused:
            self._result = refused

    def _answer(self, token: bytes) -> bytes:
        if self._context is None:
            self._context = self._make()
        context = self._context
        if not context.established:
            if not token:
                raise Refused("its token is empty")
            answer = context.accept(token)
            return answer if answer or not context.established else self._offer(context)
        if not self._offered:
            if token:
                raise Refused("it says something where the broker has to offer the layers of protection")
            return self._offer(context)
        chosen = context.unwrap(token)
        if len(chosen) < 4 or chosen[0] != NO_LAYER:
            raise Refused("it chooses a layer of protection that was not offered")
        # An authorization id may follow. Kafka takes the principal that was proved, whatever it says.
        self._peer = context.peer
        self._finished = True
        return b""

    def _offer(self, context: Context) -> bytes:
        self._offered = True
        return context.wrap(bytes((NO_LAYER, 0, 0, 0)))


class Rule(NamedTuple):
    text: str
    parts: int = 0  # number of parts of its principals; 0: DEFAULT
    format: str = ""
    match: java_regex.Pattern | None = None
    source: java_regex.Pattern | None = None
    target: str = ""
    every: bool = False
    case: str = ""

    def apply(self, parts: Sequence[str], default_realm: str) -> str | None:
        """Return the name, or None if the rule does not fit. Raises ValueError."""
        if self.text == "DEFAULT":
            name = parts[1] if parts[0] == default_realm else None
        elif len(parts) - 1 != self.parts:
            return None
        else:
            name = self._name(_filled(self.format, parts))
        if name is None:
            return None
        if "/" in name or "@" in name:
            raise ValueError(f"Non-simple name {name} after auth_to_local rule {self.text}")
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    def _name(self, base: str) -> str | None:
        if self.match is not None and not self.match.matches(base):
            return None
        if self.source is None:
            return base
        return self.source.replace_all(base, self.target, 0 if self.every else 1)


class ShortNames(LimitedNames):
    """`name_of` takes a principal, and returns its short name. Raises ValueError with Kafka's message if a
    rule is wrong."""

    def __init__(self, rules: Sequence[str], default_realm: str) -> None:
        self._all = [_parsed(rule) for rule in rules]
        self._texts = f"[{', '.join(rule.text for rule in self._all)}]"
        self._default_realm = default_realm
        super().__init__(self._short_name, self._texts)

    def _short_name(self, principal: str) -> str:
        found = _NAME.fullmatch(principal)
        if found is None:
            if "@" in principal:
                raise ValueError(f"Malformed Kerberos name: {principal[:SHOWN]}")
            return principal
        first, host, realm = found.groups()
        parts = (realm, first) if host is None else (realm, first, host)
        for rule in self._all:
            name = rule.apply(parts, self._default_realm)
            if name is not None:
                return name
        raise ValueError(f"No rules apply to {principal[:SHOWN]}, rules {self._texts}")


def _parsed(text: str) -> Rule:
    found = _RULE.match(text)
    if found is None:
        raise ValueError(f"Invalid rule: {text}")
    if found.end() != len(text):
        raise ValueError(f"Invalid rule: `{text}`, unmatched substring: `{text[found.end() :]}`")
    if found[1] is not None:
        return Rule("DEFAULT")
    if not found[2]:
        raise ValueError(f'Invalid rule: `{text}`: For input string: ""')
    match, source = (None if it is None else java_regex.Pattern(it) for it in (found[4], found[5]))
    return Rule(
        text, int(found[2]), found[3], match, source, found[6] or "", found[7] == _EVERY, found[8] or ""
    )


def _filled(text: str, parts: Sequence[str]) -> str:
    """Replace each $n by the part. Raises ValueError."""
    found, at = [], 0
    while at < len(text):
        match = _PARAMETER.match(text, at)
        assert match is not None and match.end() > at
        found.append(match[1])
        number = match[2]
        if number is not None:
            if not number or int(number) >= len(parts):
                raise ValueError(
                    f"index {number} from {text} is outside of the valid range 0 to {len(parts) - 1}"
                )
            found.append(parts[int(number)])
        at = match.end()
    return "".join(found)
