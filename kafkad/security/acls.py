"""ACLs: one ACL, filters that find ACLs, and the index that decides.

The question is: may this principal, from this host, do this operation on the resource of this kind and name?
The ACLs that match the resource decide: those for its literal name, for each prefix of the name, and for the
literal name `*`. A DENY wins over every ALLOW. If no ACL decides, the answer is no; but if no ACL at all
matches the resource, it is allow.everyone.if.no.acl.found.

ACLs are indexed by kind, principal and name. A question costs one dict look-up for the name and one for each
length of prefix. `Rights` answer the questions of one principal, host and operation.

An ACL from a later Kafka may have values that are unknown here (an address range as host, an unknown
operation or pattern). It never allows anything, and denies everything that it might mean.

Source: StandardAuthorizerData, AclBindingFilter."""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple


class Kind(IntEnum):
    """The kind of a resource (ResourceType)."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Operation(IntEnum):
    """AclOperation."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Pattern(IntEnum):
    """How an ACL names its resource (PatternType)."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """AclPermissionType."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"  # name of the only resource of kind CLUSTER
ANYTHING: Final = "*"  # as a literal name: every resource; as a host: every host
ANYBODY: Final = "User:*"

# Operations of each kind of resource: the bits of "authorized operations" in answers
# (AclEntry.supportedOperations).
SUPPORTED: Final = {
    Kind.TOPIC: (3, 4, 5, 6, 7, 8, 10, 11),
    Kind.GROUP: (3, 6, 8, 10, 11),
    Kind.CLUSTER: (5, 7, 8, 9, 10, 11, 12),
    Kind.TRANSACTIONAL_ID: (4, 8, 15),
    Kind.DELEGATION_TOKEN: (8,),
    Kind.USER: (13, 14),
}
# An ALLOW of any of these operations also allows the key. A DENY denies only its own operation.
_IMPLY: Final[dict[int, frozenset[int]]] = {
    Operation.DESCRIBE: frozenset((Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.ALTER_CONFIGS,)),
}

# Bits of the ACLs for a name
THERE: Final = 1  # an ACL exists, for any principal
ALLOWED: Final = 2
DENIED: Final = 4


class Acl(NamedTuple):
    """One ACL. Numbers are as on the wire; a metadata log may hold numbers that are unknown here."""

    kind: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    @classmethod
    def of(cls, record: Any) -> "Acl":
        """Make one from an AccessControlEntryRecord."""
        return cls(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )

    def decides(self, host: str, operation: int) -> int:
        """Return ALLOWED or DENIED if it is for this host and operation, otherwise 0."""
        if self.permission == Permission.ALLOW:
            if self.host not in (ANYTHING, host) or self.pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
                return 0
            if self.operation in (operation, Operation.ALL) or self.operation in _IMPLY.get(operation, ()):
                return ALLOWED
            return 0
        if self.host not in (ANYTHING, host) and "/" not in self.host:
            return 0
        if self.operation in (operation, Operation.ALL) or self.operation not in _KNOWN:
            return DENIED
        return 0

    @property
    def is_of_all(self) -> bool:
        """Whether it matches every resource of its kind."""
        return self.name == ANYTHING and self.pattern != Pattern.PREFIXED

    @property
    def is_of_prefix(self) -> bool:
        """Whether it matches all names that begin with its own name. An unknown pattern might do so."""
        return self.pattern != Pattern.LITERAL and not self.is_of_all

    def __str__(self) -> str:
        """Return it as Kafka's audit log writes it."""
        return (
            f"StandardAcl[resourceType={_name(Kind, self.kind)}, resourceName={self.name},"
            f" patternType={_name(Pattern, self.pattern)}, principal={self.principal}, host={self.host},"
            f" operation={_name(Operation, self.operation)},"
            f" permissionType={_name(Permission, self.permission)}]"
        )


_KNOWN: Final = frozenset(int(operation) for operation in Operation if operation > Operation.ANY)


def _name(words: type[IntEnum], number: int) -> str:
    return words(number).name if number in words._value2member_map_ else "UNKNOWN"


class Filter(NamedTuple):
    """Selects ACLs (AclBindingFilter). None and ANY match everything."""

    kind: int = Kind.ANY
    name: str | None = None
    pattern: int = Pattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    @property
    def error(self) -> str | None:
        """Return Kafka's error message if a field has an unknown value, otherwise None."""
        if not Kind.ANY <= self.kind <= Kind.USER or not Pattern.ANY <= self.pattern <= Pattern.PREFIXED:
            return "Unknown patternFilter."
        if not Operation.ANY <= self.operation <= Operation.TWO_PHASE_COMMIT:
            return "Unknown entryFilter."
        if not Permission.ANY <= self.permission <= Permission.ALLOW:
            return "Unknown entryFilter."
        return None

    def finds(self, acl: Acl) -> bool:
        return (
            self.kind in (Kind.ANY, acl.kind)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._names(acl)
        )

    def _names(self, acl: Acl) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern != Pattern.MATCH:
            return self.name == acl.name
        if acl.pattern == Pattern.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in (self.name, ANYTHING)


class _Names:
    """The names and prefixes that have ACLs, of one kind, with the number of ACLs."""

    __slots__ = ("everywhere", "literals", "prefixes")

    def __init__(self) -> None:
        self.literals: Counter[str] = Counter()
        self.prefixes: dict[int, Counter[str]] = {}
        self.everywhere = 0

    def add(self, acl: Acl, number: int) -> None:
        if acl.is_of_all:
            self.everywhere += number
        elif acl.is_of_prefix:
            same = self.prefixes.setdefault(len(acl.name), Counter())
            _count(same, acl.name, number)
            if not same:
                del self.prefixes[len(acl.name)]
        else:
            _count(self.literals, acl.name, number)

    def are_about(self, name: str) -> bool:
        if self.everywhere or name in self.literals:
            return True
        return any(length <= len(name) and name[:length] in same for length, same in self.prefixes.items())


def _count(numbers: "Counter[Any]", what: Any, number: int) -> None:
    numbers[what] += number
    if not numbers[what]:
        del numbers[what]


class _Acls:
    """The ACLs of one kind for one principal, by name. The same ACL may exist more than once."""

    __slots__ = ("denials", "everywhere", "literals", "prefixes")

    def __init__(self) -> None:
        self.everywhere: Counter[Acl] = Counter()  # for `*`
        self.literals: dict[str, Counter[Acl]] = {}
        self.prefixes: dict[int, dict[str, Counter[Acl]]] = {}  # by length
        self.denials = 0  # of the last two

    def add(self, acl: Acl, number: int) -> None:
        if acl.is_of_all:
            _count(self.everywhere, acl, number)
            return
        if acl.permission != Permission.ALLOW:
            self.denials += number
        same = self.prefixes.setdefault(len(acl.name), {}) if acl.is_of_prefix else self.literals
        acls = same.setdefault(acl.name, Counter())
        _count(acls, acl, number)
        if not acls:
            del same[acl.name]
            if not same and same is not self.literals:
                del self.prefixes[len(acl.name)]

    def __bool__(self) -> bool:
        return bool(self.everywhere or self.literals or self.prefixes)

    def __contains__(self, acl: Acl) -> bool:
        if acl.is_of_all:
            return acl in self.everywhere
        same = self.prefixes.get(len(acl.name), {}) if acl.is_of_prefix else self.literals
        return acl in same.get(acl.name, ())

    def of_names(self) -> Iterator[tuple[str, bool, Iterable[Acl]]]:
        """Return (name, whether it is a prefix, its ACLs) of all ACLs except those for `*`."""
        yield from ((name, False, acls) for name, acls in self.literals.items())
        yield from ((name, True, acls) for same in self.prefixes.values() for name, acls in same.items())

    def about(self, name: str, *, all_under: bool = False) -> Iterator[Acl]:
        """Return the ACLs that match `name`, or with `all_under` all names that begin with it; without those
        for `*`."""
        if not all_under:
            yield from self.literals.get(name, ())
        for length, same in self.prefixes.items():
            if length <= len(name):
                yield from same.get(name[:length], ())


class Rights:
    """The decisions for one kind of resource, principal, host and operation, until the ACLs change. A
    question reads only the ACLs that match its name."""

    __slots__ = ("_acls", "_host", "_operation", "_there", "always", "default", "everywhere")

    def __init__(
        self, acls: tuple[_Acls, ...], host: str, operation: int, default: bool, there: _Names | None
    ) -> None:
        """`there`: the names that have ACLs; None if the default does not depend on them."""
        self._acls = acls
        self._host = host
        self._operation = operation
        self._there = there
        self.default = default
        self.everywhere = 0  # bits of the ACLs for `*`
        for each in acls:
            self.everywhere |= self._bits(each.everywhere)
        self.always: bool | None = None  # the answer, if it is the same for every name
        if self.everywhere & DENIED:
            self.always = False
        elif self.everywhere & ALLOWED and not any(each.denials for each in acls):
            self.always = True
        elif not any(acls) and there is None:
            self.always = default

    def _bits(self, acls: Iterable[Acl]) -> int:
        bits = 0
        for acl in acls:
            bits |= acl.decides(self._host, self._operation)
        return bits

    def bits(self, name: str) -> int:
        """Return the bits of the ACLs that match a name."""
        bits = self.everywhere
        for each in self._acls:
            bits |= self._bits(each.about(name))
        return bits

    def allow(self, name: str) -> bool:
        if self.always is not None:
            return self.always
        bits = self.bits(name)
        if bits & DENIED:
            return False
        if bits & ALLOWED:
            return True
        if not self.default:
            return False
        return self._there is None or not self._there.are_about(name)

    def entries(self) -> Iterator[tuple[str, bool, int]]:
        """Return (name, whether it is a prefix, bits) of everything that `allow` reads, except `*`. A name
        may come twice."""
        for each in self._acls:
            for name, is_prefix, acls in each.of_names():
                bits = self._bits(acls)
                if bits:
                    yield name, is_prefix, bits
        there = self._there
        if there is not None:
            yield from ((name, False, THERE) for name in there.literals)
            yield from ((name, True, THERE) for same in there.prefixes.values() for name in same)

    @property
    def about_all(self) -> int:
        """The bits that hold for every name."""
        return self.everywhere | (THERE if self._there is not None and self._there.everywhere else 0)


class AclIndex:
    """All ACLs. Belongs to one thread."""

    def __init__(self) -> None:
        self._by_principal: dict[tuple[int, str], _Acls] = {}
        self._names: dict[int, _Names] = {}
        self._hosts: Counter[str] = Counter()
        self.count = 0

    def add(self, acl: Acl) -> None:
        self._by_principal.setdefault((acl.kind, acl.principal), _Acls()).add(acl, 1)
        self._count(acl, 1)

    def remove(self, acl: Acl) -> None:
        key = acl.kind, acl.principal
        same = self._by_principal.get(key)
        if same is None or acl not in same:
            return
        same.add(acl, -1)
        if not same:
            del self._by_principal[key]
        self._count(acl, -1)

    def _count(self, acl: Acl, number: int) -> None:
        self._names.setdefault(acl.kind, _Names()).add(acl, number)
        _count(self._hosts, acl.host, number)
        self.count += number

    def named(self, principal: str, host: str, kind: int) -> tuple[str, str]:
        """Return a principal and a host for which the ACLs of this kind decide the same: those that no ACL
        names are treated as one."""
        who = principal if (kind, principal) in self._by_principal else ANYBODY
        return who, host if host in self._hosts else ANYTHING

    def of(self, principal: str, kind: int) -> tuple[_Acls, ...]:
        """Return the ACLs for `principal`."""
        found = (self._by_principal.get((kind, who)) for who in dict.fromkeys((principal, ANYBODY)))
        return tuple(acls for acls in found if acls is not None)

    def rights(self, principal: str, host: str, kind: int, operation: int, default: bool) -> Rights:
        there = self._names.get(kind) if default else None
        return Rights(self.of(principal, kind), host, operation, default, there)

    def reason(self, principal: str, host: str, kind: int, operation: int, name: str) -> Acl | None:
        """Return the ACL that decides: a DENY if there is one."""
        found = None
        for each in self.of(principal, kind):
            for acl in (*each.everywhere, *each.about(name)):
                bits = acl.decides(host, operation)
                if bits == DENIED:
                    return acl
                if bits:
                    found = acl
        return found

    def on_any(self, principal: str, host: str, kind: int, operation: int) -> bool:
        """Return whether at least one resource of this kind is allowed. Implied operations do not count
        (Authorizer.authorizeByResourceType)."""
        named = self.of(principal, kind)

        def allows(acl: Acl) -> bool:
            return acl.decides(host, operation) == ALLOWED and acl.operation in (operation, Operation.ALL)

        about_all = [acl for each in named for acl in each.everywhere]
        if any(acl.decides(host, operation) == DENIED for acl in about_all):
            return False
        if any(map(allows, about_all)):
            return True
        for each in named:
            for name, is_prefix, acls in each.of_names():
                if any(map(allows, acls)) and not any(
                    acl.decides(host, operation) == DENIED
                    for other in named
                    if other.denials
                    for acl in other.about(name, all_under=is_prefix)
                ):
                    return True
        return False
