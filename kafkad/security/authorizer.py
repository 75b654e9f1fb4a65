"""The authorizer: decides by the ACLs of the metadata (Kafka's StandardAuthorizer).

    index of ACLs ── rights of a Subject, computed on first use ── answer ── a line of the audit log

A Subject is a principal at a host. Its rights hold until the ACLs change (`Authorizer.version`).

The audit log is Kafka's logger `kafka.authorizer.logger`, with Kafka's text: denials at INFO, permissions at
DEBUG. The same line is written once a minute; the next one has the number of repetitions. A subject gets at
most DENIALS_MAX lines a minute: the last of them says so, and the first of a later minute has the number of
those that were left out. Otherwise a client could fill the log by requests that are denied. The lines about
other subjects are complete, so nobody can hide another one's."""

import logging
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, NamedTuple

from kafkad.config.definition import ConfigError, trimmed
from kafkad.security.acls import CLUSTER_NAME, SUPPORTED, Acl, AclIndex, Kind, Operation, Rights

AUTHORIZER: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"

audit = logging.getLogger("kafka.authorizer.logger")

SUBJECTS_MAX: Final = 10_000  # kept in memory
RIGHTS_MAX: Final = 100_000  # kept in memory
REPEATED_AFTER_MS: Final = 60_000
REMEMBERED_LINES: Final = 10_000
DENIALS_MAX: Final = 1_000
REMEMBERED_NAME: Final = 255  # characters; of a longer name the hash is remembered


def java_address(host: str) -> str:
    """Return an address as Java's InetAddress.getHostAddress writes it, and ACLs have it: an IPv6 address
    with all groups, without leading zeros; an IPv4-mapped IPv6 address as IPv4."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))


class Subject:
    """A principal at a host. Its methods take `api`, the API of the request, for the audit log."""

    __slots__ = ("_authorizer", "_rights", "_version", "host", "is_super", "principal")

    def __init__(self, authorizer: "Authorizer", principal: str, host: str) -> None:
        self._authorizer = authorizer
        self.principal = principal
        self.host = java_address(host)
        self.is_super = principal in authorizer.super_users
        self._version = -1
        self._rights: dict[tuple[int, int], Rights] = {}

    def rights(self, kind: int, operation: int) -> Rights:
        """Return the rights. Not for super users."""
        if self._version != self._authorizer.version:
            self._rights.clear()
            self._version = self._authorizer.version
        rights = self._rights.get((kind, operation))
        if rights is None:
            rights = self._authorizer.rights(self.principal, self.host, kind, operation)
            self._rights[(kind, operation)] = rights
        return rights

    def may(self, operation: int, kind: int, name: str, api: str, *, logged: bool = True) -> bool:
        """Return whether it is allowed. `logged`: log a denial (Kafka: logIfDenied)."""
        allowed = self.is_super or self.rights(kind, operation).allow(name)
        if allowed:
            if audit.isEnabledFor(logging.DEBUG):
                self.write(True, operation, kind, name, api)
        elif logged:
            self.write(False, operation, kind, name, api)
        return allowed

    def may_cluster(self, operation: int, api: str, *, logged: bool = True) -> bool:
        return self.may(operation, Kind.CLUSTER, CLUSTER_NAME, api, logged=logged)

    def may_any(self, operation: int, kind: int, api: str) -> bool:
        """Return whether it is allowed for at least one resource of a kind. As in Kafka, the first check is
        for a fixed name: it is for super users, and for allow.everyone.if.no.acl.found."""
        if self.may(operation, kind, "hardcode", api, logged=False):
            return True
        return self._authorizer.on_any(self.principal, self.host, kind, operation)

    def operations(self, kind: Kind, name: str) -> int:
        """Return the bits of "authorized operations"."""
        if self.is_super:
            return all_operations(kind)
        return sum(
            1 << operation for operation in SUPPORTED[kind] if self.rights(kind, operation).allow(name)
        )

    def write(self, allowed: bool, operation: int, kind: int, name: str, api: str) -> None:
        """Write a line to the audit log."""
        self._authorizer.write(self, allowed, operation, kind, name, api)


def all_operations(kind: Kind) -> int:
    """Return the bits of "authorized operations" of a super user."""
    return sum(1 << operation for operation in SUPPORTED[kind])


_KIND_NAMES: Final = {
    Kind.TOPIC: "Topic",
    Kind.GROUP: "Group",
    Kind.CLUSTER: "Cluster",
    Kind.TRANSACTIONAL_ID: "TransactionalId",
    Kind.DELEGATION_TOKEN: "DelegationToken",
    Kind.USER: "User",
}


class Authorizer:
    """One per worker. `now_ms`: a monotonic clock."""

    def __init__(
        self,
        super_users: Iterable[str],
        allows_without_acls: bool,
        now_ms: Callable[[], int],
    ) -> None:
        self.super_users = frozenset(super_users)
        self.allows_without_acls = allows_without_acls
        self.index = AclIndex()
        self.version = 0  # raised by every change
        self.on_change: Callable[[], object] = lambda: None
        self._now_ms = now_ms
        self._subjects: dict[tuple[str, str], Subject] = {}
        self._rights: dict[tuple[str, str, int, int], Rights] = {}
        self._on_any: dict[tuple[str, str, int, int], bool] = {}
        self._written: dict[tuple[object, ...], tuple[int, int]] = {}  # time, and repetitions since
        # principal and host -> when its minute began, and how many denials there were
        self._denials: dict[tuple[str, str], tuple[int, int]] = {}

    def change(self, added: Iterable[Acl], removed: Iterable[Acl]) -> None:
        for acl in removed:
            self.index.remove(acl)
        for acl in added:
            self.index.add(acl)
        self._forget()
        self.on_change()

    def _forget(self) -> None:
        """Forget all rights, also those that existing subjects hold."""
        self.version += 1
        self._rights.clear()
        self._on_any.clear()

    def rights(self, principal: str, host: str, kind: int, operation: int) -> Rights:
        """Return rights, which are shared by all principals and hosts with the same ACLs: clients can often
        choose their host address, and so make many of them."""
        who, where = self.index.named(principal, host, kind)
        key = who, where, kind, operation
        rights = self._rights.get(key)
        if rights is None:
            if len(self._rights) >= RIGHTS_MAX:
                self._forget()
            rights = self.index.rights(who, where, kind, operation, self.allows_without_acls)
            self._rights[key] = rights
        return rights

    def on_any(self, principal: str, host: str, kind: int, operation: int) -> bool:
        """Do AclIndex.on_any, with a cache: it may read all ACLs of the principal."""
        key = *self.index.named(principal, host, kind), kind, operation
        allowed = self._on_any.get(key)
        if allowed is None:
            if len(self._on_any) >= RIGHTS_MAX:
                self._on_any.clear()
            allowed = self._on_any[key] = self.index.on_any(*key)
        return allowed

    def subject(self, principal: str, host: str) -> Subject:
        subject = self._subjects.get((principal, host))
        if subject is None:
            if len(self._subjects) >= SUBJECTS_MAX:
                self._subjects.clear()
            subject = self._subjects[(principal, host)] = Subject(self, principal, host)
        return subject

    def write(self, subject: Subject, allowed: bool, operation: int, kind: int, name: str, api: str) -> None:
        now_ms = self._now_ms()
        known = name if len(name) <= REMEMBERED_NAME else hash(name)
        line = subject.principal, subject.host, allowed, operation, kind, known, api
        before = self._written.get(line)
        if before is not None and now_ms - before[0] < REPEATED_AFTER_MS:
            self._written[line] = before[0], before[1] + 1
            return
        if not allowed and not self._has_room(subject, now_ms):
            return
        if len(self._written) >= REMEMBERED_LINES:
            self._written.clear()
        self._written[line] = now_ms, 0
        again = f" ({before[1]} more like it since the last line)" if before is not None and before[1] else ""
        audit.log(
            logging.DEBUG if allowed else logging.INFO,
            "Principal = %s is %s operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s"
            " with resourceRefCount = 1 based on rule %s%s",
            _printable(subject.principal),
            "Allowed" if allowed else "Denied",
            Operation(operation).name,
            subject.host,
            _KIND_NAMES[Kind(kind)],
            _printable(name),
            api,
            self._rule(subject, operation, kind, name),
            again,
        )

    def _has_room(self, subject: Subject, now_ms: int) -> bool:
        """Count a line about a denial. Return whether it may be written."""
        who = _printable(subject.principal[:REMEMBERED_NAME]), subject.host
        begin_ms, number = self._denials.get(who, (now_ms, 0))
        if now_ms - begin_ms >= REPEATED_AFTER_MS:
            if number > DENIALS_MAX:
                audit.info(
                    "Principal = %s from host = %s: %d more denials in a minute were left out",
                    *who,
                    number - DENIALS_MAX,
                )
            begin_ms, number = now_ms, 0
        if len(self._denials) >= SUBJECTS_MAX and who not in self._denials:
            self._denials.clear()
        self._denials[who] = begin_ms, number + 1
        if number == DENIALS_MAX:
            audit.info("Principal = %s from host = %s: further denials in this minute are left out", *who)
        return number < DENIALS_MAX

    def _rule(self, subject: Subject, operation: int, kind: int, name: str) -> str:
        if subject.is_super:
            return "SuperUser"
        rights = subject.rights(kind, operation)
        if rights.bits(name):
            acl = self.index.reason(subject.principal, subject.host, kind, operation, name)
            return f"MatchingAcl(acl={_printable(str(acl))})"
        return "DefaultAllow" if rights.allow(name) else "DefaultDeny"


def _printable(text: str) -> str:
    """Escape characters that could forge a line of the log."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


class Settings(NamedTuple):
    super_users: frozenset[str]
    allows_without_acls: bool


def authorizer_settings(config: Any) -> Settings | None:
    """Return the settings of a BrokerConfig's authorizer; None if it has none. Raises ConfigError.

    Only the file counts, as in Kafka: a client that may alter the broker's configuration could otherwise make
    itself a super user."""
    given = config.static
    if not trimmed(given.get(AUTHORIZER, "")):
        return None
    users = given.get(SUPER_USERS, "")
    try:
        super_users = parse_super_users(users)
    except ValueError as wrong:
        raise ConfigError(f"Invalid value {users} for configuration {SUPER_USERS}: {wrong}") from None
    return Settings(super_users, trimmed(given.get(ALLOW_EVERYONE, "")).lower() == "true")


def parse_super_users(text: str) -> frozenset[str]:
    """Parse super.users: `User:alice;User:bob`. Raises ValueError."""
    users = [trimmed(user) for user in text.split(";")]
    for user in users:
        if user and ":" not in user:
            raise ValueError(f"{user} has no type: write User:{user}")
    return frozenset(user for user in users if user)
