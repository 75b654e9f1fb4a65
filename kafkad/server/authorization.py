"""A worker's authorizer: built from the configuration and the first image's ACLs, then updated with them.

Kafka has one StandardAuthorizer for each process. A change of many ACLs is applied in steps, and requests are
authorized in between. So the steps are ordered such that no step allows anything that is allowed neither
before nor after the change:

    add what denies; add what allows; remove what allows; remove what denies

The client that requested the change is answered when every worker has applied all of it (server/changes)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kafkad.clock import Clock
from kafkad.config.broker import BrokerConfig
from kafkad.metadata.image import MetadataImage
from kafkad.security.acls import Acl, Permission
from kafkad.security.authorizer import Authorizer, authorizer_settings
from kafkad.server.turns import Steps

ACLS_A_STEP: Final = 50
LOOKED_AT_A_STEP: Final = 1_000


def authorizer_of(config: BrokerConfig, image: MetadataImage, clock: Clock) -> Authorizer | None:
    """Return None if `config` (BrokerConfig) names no authorizer. Raises ConfigError."""
    settings = authorizer_settings(config)
    if settings is None:
        return None
    authorizer = Authorizer(*settings, clock.monotonic_ms)
    authorizer.change(map(Acl.of, image.acls.values()), ())
    return authorizer


def follow_acls(
    authorizer: Authorizer, changed: Iterable[bytes], before: Mapping[bytes, Any], after: Mapping[bytes, Any]
) -> Steps:
    """Apply the differences between two images' ACLs. `changed`: the ids of the changed ACLs."""
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


class FollowedAcls:
    """The authorizer of a controller, which follows the ACLs of its image. Before it has read what the quorum
    has committed only super users are let in."""

    def __init__(self, config: Any, clock: Clock, run: Callable[[Steps], Any]) -> None:
        """Raises ConfigError."""
        self._settings = authorizer_settings(config)
        self._run = run
        self._acls: Mapping[bytes, Any] = {}
        self._wanted: Mapping[bytes, Any] = {}  # of the newest image
        self._at_work = False
        self._caught_up = False  # as `look` was told
        self.authorizer: Authorizer | None = None
        if self._settings is not None:
            self.authorizer = Authorizer(self._settings.super_users, False, clock.monotonic_ms)

    def look(self, image: MetadataImage, *, caught_up: bool) -> None:
        """Follow an image. `caught_up`: nothing that was committed when this node started is missing."""
        if self.authorizer is None:
            return
        self._wanted = image.acls
        self._caught_up = self._caught_up or caught_up
        if self._at_work:
            return
        if self._wanted is self._acls:
            self._open(self.authorizer)
        else:
            self._at_work = True
            self._run(self._follow(self.authorizer))

    def _follow(self, authorizer: Authorizer) -> Steps:
        """Apply changes until the newest image is reached: no later call may be needed for the last one."""
        try:
            while self._wanted is not self._acls:
                before, acls = self._acls, self._wanted
                self._acls = acls
                changed = []
                for number, acl_id in enumerate({**before, **acls}, 1):
                    if before.get(acl_id) is not acls.get(acl_id):
                        changed.append(acl_id)
                    if number % LOOKED_AT_A_STEP == 0:
                        yield
                yield from follow_acls(authorizer, changed, before, acls)
        finally:
            self._at_work = False
        self._open(authorizer)

    def _open(self, authorizer: Authorizer) -> None:
        """What no ACL names is as the configuration says, once all ACLs are known."""
        settings = self._settings
        if self._caught_up and settings is not None:
            allows = settings.allows_without_acls
            if authorizer.allows_without_acls != allows:
                authorizer.allows_without_acls = allows
                authorizer.change((), ())


def _allows(acl: Acl) -> bool:
    return acl.permission == Permission.ALLOW
