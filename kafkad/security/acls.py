"""ACLs: what one says, which of them a filter finds, and the index that answers questions.

A question is: may this principal, from this host, do this operation on the resource of this kind and name?
Every ACL that is about the resource is looked at: those of its literal name, of each prefix of it, and of the
literal name `*`. One that denies wins over all that allow. If none decides, the answer is no, unless no ACL
at all is about the resource: then it is the default, allow.everyone.if.no.acl.found.
(StandardAuthorizerData, AclBindingFilter.)

ACLs are kept by kind, principal and name, so a question is one look into a dict, and one more for each length
of prefix, and then at the ACLs that it finds. `Rights` are what one principal at one host needs to ask.

What an ACL of a later Kafka says in words that are not known here (an address range as its host, an unknown
operation or pattern) never allows anything, and denies all that it might mean.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple


class Kind(IntEnum):
    """Of a resource (ResourceType)."""

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


CLUSTER_NAME: Final = "kafka-cluster"  # of the one resource of kind CLUSTER
ANYTHING: Final = "*"  # as a literal name: every resource; as a host: every host
ANYBODY: Final = "User:*"

# What a kind of resource knows: the bits of "authorized operations" in answers (Kafka:
# AclEntry.supportedOperations).
SUPPORTED: Final = {
    Kind.TOPIC: (3, 4, 5, 6, 7, 8, 10, 11),
    Kind.GROUP: (3, 6, 8, 10, 11),
    Kind.CLUSTER: (5, 7, 8, 9, 10, 11, 12),
    Kind.TRANSACTIONAL_ID: (4, 8, 15),
    Kind.DELEGATION_TOKEN: (8,),
    Kind.USER: (13, 14),
}
# An ALLOW of one of these allows this, too; a DENY denies nothing else.
_IMPLY: Final[dict[int, frozenset[int]]] = {
    Operation.DESCRIBE: frozenset((Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.ALTER_CONFIGS,)),
}

# What ACLs about a name say, as bits
THERE: Final = 1  # there is one, of anybody
ALLOWED: Final = 2
DENIED: Final = 4


class Acl(NamedTuple):
    """One ACL. The numbers are those of the wire: a metadata log may hold ones that have no name here."""

    kind: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    @classmethod
    def of(cls, record: Any) -> "Acl":
        """Of an AccessControlEntryRecord."""
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
        """ALLOWED or DENIED where it is about this host and operation, else 0."""
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
        """Whether it is about every resource of its kind."""
        return self.name == ANYTHING and self.pattern != Pattern.PREFIXED

    @property
    def is_of_prefix(self) -> bool:
        """Whether it is about all names that begin with its own; a pattern that has no name here might be."""
        return self.pattern != Pattern.LITERAL and not self.is_of_all

    def __str__(self) -> str:
        """As Kafka's audit log writes it."""
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
    """Which ACLs are meant (AclBindingFilter). None, and ANY, is everything."""

    kind: int = Kind.ANY
    name: str | None = None
    pattern: int = Pattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    @property
    def is_unknown(self) -> str | None:
        """What of it has no meaning, in Kafka's words; None: it is sound."""
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
    """The names that ACLs of one kind are about, with their numbers."""

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
    """The ACLs of one kind about one principal, by their names. An ACL may be there more than once."""

    __slots__ = ("denials", "everywhere", "literals", "prefixes")

    def __init__(self) -> None:
        self.everywhere: Counter[Acl] = Counter()  # about `*`
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
        """(name, whether it is a prefix, its ACLs) of all but those about `*`."""
        yield from ((name, False, acls) for name, acls in self.literals.items())
        yield from ((name, True, acls) for same in self.prefixes.values() for name, acls in same.items())

    def about(self, name: str, *, all_under: bool = False) -> Iterator[Acl]:
        """Those about a name, or about all that begin with it; without those about `*`."""
        if not all_under:
            yield from self.literals.get(name, ())
        for length, same in self.prefixes.items():
            if length <= len(name):
                yield from same.get(name[:length], ())


class Rights:
    """What ACLs say of one kind of resource to one principal, host and operation, until they change. A
    question looks at the ACLs about its name alone, however many there are."""

    __slots__ = ("_acls", "_host", "_operation", "_there", "always", "default", "everywhere")

    def __init__(
        self, acls: tuple[_Acls, ...], host: str, operation: int, default: bool, there: _Names | None
    ) -> None:
        """`there`: the names that any ACL is about; None: it makes no difference."""
        self._acls = acls
        self._host = host
        self._operation = operation
        self._there = there
        self.default = default
        self.everywhere = 0  # bits of ACLs about `*`
        for each in acls:
            self.everywhere |= self._bits(each.everywhere)
        self.always: bool | None = None  # the answer, where the name does not matter
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
        """What the ACLs that decide say of a name."""
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
        """(name, whether a prefix, bits) of all that `allow` looks at but `*`; a name may come twice."""
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
        """What is said of every name."""
        return self.everywhere | (THERE if self._there is not None and self._there.everywhere else 0)


class AclIndex:
    """All ACLs, for questions. It belongs to one thread."""

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
        """Principal and host about whom the ACLs of this kind say the same; all that no ACL names are one."""
        who = principal if (kind, principal) in self._by_principal else ANYBODY
        return who, host if host in self._hosts else ANYTHING

    def of(self, principal: str, kind: int) -> tuple[_Acls, ...]:
        """Those that are about `principal`."""
        found = (self._by_principal.get((kind, who)) for who in dict.fromkeys((principal, ANYBODY)))
        return tuple(acls for acls in found if acls is not None)

    def rights(self, principal: str, host: str, kind: int, operation: int, default: bool) -> Rights:
        there = self._names.get(kind) if default else None
        return Rights(self.of(principal, kind), host, operation, default, there)

    def reason(self, principal: str, host: str, kind: int, operation: int, name: str) -> Acl | None:
        """The ACL that decides, one that denies before one that allows."""
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
        """Whether at least one resource of this kind, whatever its name, is allowed by name. Implied
        operations do not count (Authorizer.authorizeByResourceType)."""
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
