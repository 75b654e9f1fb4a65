"""Changes of ACLs, planned as records.

Some ACLs of a request may be created while others are refused. An ACL that exists already, or is repeated in
the request, succeeds and writes nothing. A request that would write more than RECORDS_MAX records writes
none. (AclApis, AclControlManager.)

`AclCounts` indexes the ACLs of an image by their contents, so that a request for one ACL does not read
all of them."""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Final

from kafkad.metadata.image import MetadataImage
from kafkad.metadata.uuids import random_uuid
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.strings import shown
from kafkad.security.acls import ANYTHING, CLUSTER_NAME, Acl, Filter, Kind, Operation, Pattern, Permission

RECORDS_MAX: Final = 10_000  # per request; Kafka: MAX_RECORDS_PER_USER_OP
LISTED_MAX: Final = 100_000  # ACLs per answer, which lists an ACL once for each filter that finds it
A_STEP: Final = 50  # ACLs per step

TOO_MANY_NEW: Final = "Unable to perform excessively large batch operation."
TOO_MANY_GONE: Final = f"Cannot remove more than {RECORDS_MAX} acls in a single delete operation."
TOO_MANY_LISTED: Final = f"The answer would list more than {LISTED_MAX} acls."

Steps = Generator[None, None, Any]


class AclCounts:
    """The ACLs of the newest image, with the number of ids of each. `of` counts them again unless the image
    is the last one that `follow` got."""

    def __init__(self) -> None:
        self._counts: Counter[Acl] = Counter()
        self._acls: Mapping[bytes, Any] | None = None  # of the image that was counted

    def of(self, image: MetadataImage) -> Steps:
        """Return a Counter[Acl], in steps."""
        acls = image.acls
        if self._acls is not acls:
            self._acls, self._counts = None, Counter()
            for number, record in enumerate(acls.values(), 1):
                self._counts[Acl.of(record)] += 1
                if number % A_STEP == 0:
                    yield
            self._acls = acls
        return self._counts

    def follow(self, before: MetadataImage, records: list[Any], image: MetadataImage) -> Steps:
        """Follow a change: `records` led from the image `before` to `image`."""
        if self._acls is not before.acls:
            return
        self._acls = None
        for number, record in enumerate(records, 1):
            if type(record) is messages.AccessControlEntryRecord:
                self._counts[Acl.of(record)] += 1
            else:
                gone = Acl.of(before.acls[record.id])
                self._counts[gone] -= 1
                if not self._counts[gone]:
                    del self._counts[gone]
            if number % A_STEP == 0:
                yield
        self._acls = image.acls


def plan_create(image: MetadataImage, counts: AclCounts, random: Any, request: Any) -> Steps:
    """Return (records, CreateAclsResponse)."""
    known = yield from counts.of(image)
    records: dict[Acl, Any] = {}
    result = messages.CreateAclsResponse.Results
    results = []
    fits = True
    for wanted in request.creations:
        yield
        acl = Acl(
            wanted.resource_type,
            wanted.resource_name,
            wanted.resource_pattern_type,
            wanted.principal,
            wanted.host,
            wanted.operation,
            wanted.permission_type,
        )
        wrong = what_is_wrong(acl)
        results.append(
            result(error_code=errors.INVALID_REQUEST if wrong else errors.NONE, error_message=wrong or "")
        )
        if wrong or acl in known or acl in records:
            continue
        if len(records) == RECORDS_MAX:
            fits = False
            break
        records[acl] = _record(acl, _new_id(image, random))
    if not fits:
        results = []
        for wanted in request.creations:
            yield
            wrong = _wrong_name(wanted.resource_type, wanted.resource_name)
            code = errors.INVALID_REQUEST if wrong else errors.POLICY_VIOLATION
            results.append(result(error_code=code, error_message=wrong or TOO_MANY_NEW))
        records.clear()
    return list(records.values()), messages.CreateAclsResponse(results=results)


def what_is_wrong(acl: Acl) -> str | None:
    """Return Kafka's error message if an ACL cannot be created, otherwise None."""
    wrong = _wrong_name(acl.kind, acl.name)
    if wrong is not None:
        return wrong
    for number, low, high, words, what in (
        (acl.kind, Kind.TOPIC, Kind.USER, Kind, "resourceType"),
        (acl.pattern, Pattern.LITERAL, Pattern.PREFIXED, Pattern, "patternType"),
        (acl.operation, Operation.ALL, Operation.TWO_PHASE_COMMIT, Operation, "operation"),
        (acl.permission, Permission.DENY, Permission.ALLOW, Permission, "permissionType"),
    ):
        if not low <= number <= high:
            name = words(number).name if 0 <= number < low else "UNKNOWN"
            return f"Invalid {what} {name}"
    if ":" not in acl.principal:
        return (
            f"Could not parse principal from `{shown(acl.principal)}` (no colon is present separating the"
            " principal type from the principal name)"
        )
    return None


def _wrong_name(kind: int, name: str) -> str | None:
    if kind == Kind.CLUSTER and name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    return None if name else "Invalid empty resource name"


def _new_id(image: MetadataImage, random: Any) -> bytes:
    while (acl_id := random_uuid(random)) in image.acls:
        pass
    return acl_id


def _record(acl: Acl, acl_id: bytes) -> Any:
    return messages.AccessControlEntryRecord(id=acl_id, **_fields(acl))


def filter_of(asked: Any) -> Filter:
    """Return the filter of a DescribeAclsRequest, or of one filter in a DeleteAclsRequest."""
    return Filter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


class _ByName:
    """The ACLs of an image, by name: a request may have thousands of filters."""

    def __init__(self) -> None:
        self._acls: dict[str, list[tuple[bytes, Acl]]] = {}
        self._lengths: set[int] = set()

    def fill(self, image: MetadataImage) -> Steps:
        for number, (acl_id, record) in enumerate(image.acls.items(), 1):
            acl = Acl.of(record)
            self._acls.setdefault(acl.name, []).append((acl_id, acl))
            self._lengths.add(len(acl.name))
            if number % A_STEP == 0:
                yield

    def candidates(self, wanted: Filter) -> Iterator[tuple[bytes, Acl]]:
        """Return all ACLs that a filter may find; some may not match."""
        names: Iterable[str] = self._acls
        if wanted.name is not None:
            names = {wanted.name}
            if wanted.pattern == Pattern.MATCH:
                longest = len(wanted.name)
                names |= {ANYTHING, *(wanted.name[:length] for length in self._lengths if length <= longest)}
        for name in names:
            yield from self._acls.get(name, ())


def plan_delete(image: MetadataImage, request: Any) -> Steps:
    """Return (records, DeleteAclsResponse). Raises KafkaError(INVALID_REQUEST) if they are too many."""
    records: dict[bytes, Any] = {}
    listed = 0
    results = []
    response = messages.DeleteAclsResponse
    acls = _ByName()
    yield from acls.fill(image)
    for asked in request.filters:
        yield
        wanted = filter_of(asked)
        result = response.FilterResults(error_code=errors.NONE, error_message=None)
        results.append(result)
        if wrong := wanted.error:
            result.error_code, result.error_message = errors.INVALID_REQUEST, wrong
            continue
        for number, (acl_id, acl) in enumerate(acls.candidates(wanted), 1):
            if number % A_STEP == 0:
                yield
            if not wanted.finds(acl):
                continue
            if len(records) >= RECORDS_MAX:
                raise KafkaError(errors.INVALID_REQUEST, TOO_MANY_GONE)
            if listed >= LISTED_MAX:
                raise KafkaError(errors.INVALID_REQUEST, TOO_MANY_LISTED)
            records.setdefault(acl_id, messages.RemoveAccessControlEntryRecord(id=acl_id))
            result.matching_acls.append(_matching(acl))
            listed += 1
    return list(records.values()), response(filter_results=results)


def _matching(acl: Acl) -> Any:
    return messages.DeleteAclsResponse.FilterResults.MatchingAcls(
        error_code=errors.NONE, error_message=None, **_fields(acl)
    )


def _fields(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type": acl.kind,
        "resource_name": acl.name,
        "pattern_type": acl.pattern,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }
