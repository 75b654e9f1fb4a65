"""A worker's authorizer: made of the configuration and the ACLs of the first image, then changed with them.

Kafka has the same with one StandardAuthorizer for each process. A change of many ACLs is applied in steps,
and requests are decided in between, so the steps come in an order in which none of them allows what is
allowed neither before nor after the change:

    what denies is added; what allows is added; what allows is removed; what denies is removed

The client that asked for the change is answered when every worker has applied all of it (server/changes)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kafkad.clock import Clock
from kafkad.metadata.image import MetadataImage
from kafkad.security.acls import Acl, Permission
from kafkad.security.authorizer import Authorizer, authorizer_settings
from kafkad.server.turns import Steps

ACLS_A_STEP: Final = 50


def authorizer_of(config: Any, image: MetadataImage, clock: Clock) -> Authorizer | None:
    """None where `config` (BrokerConfig) names no authorizer. Raises ConfigError."""
    settings = authorizer_settings(config)
    if settings is None:
        return None
    authorizer = Authorizer(*settings, clock.monotonic_ms)
    authorizer.change(map(Acl.of, image.acls.values()), ())
    return authorizer


def follow_acls(
    authorizer: Authorizer, changed: Iterable[bytes], before: Mapping[bytes, Any], after: Mapping[bytes, Any]
) -> Steps:
    """Apply what differs between two images' ACLs. `changed`: their ids."""
    added: list[Acl] = []
    removed: list[Acl] = []
    for number, acl_id in enumerate(changed, 1):
        for records, acls in ((before, removed), (after, added)):
            record = records.get(acl_id)
            if record is not None:
                acls.append(Acl.of(record))
        if number % ACLS_A_STEP == 0:
            yield
    added.sort(key=_allows)
    removed.sort(key=_allows, reverse=True)
    for first in range(0, len(added), ACLS_A_STEP):
        authorizer.change(added[first : first + ACLS_A_STEP], ())
        yield
    for first in range(0, len(removed), ACLS_A_STEP):
        authorizer.change((), removed[first : first + ACLS_A_STEP])
        yield


def _allows(acl: Acl) -> bool:
    return acl.permission == Permission.ALLOW
