"""Client quotas: which limit holds for a client, and the bucket that its use is counted in.

A quota belongs to an entity: a user, a client id, or both together, each by name or by default. The most
specific one holds (ClientQuotaManager):

    user and client id > user, any client id > user > any user, client id > any user and client id > any user
        > client id > any client id

All clients of a bucket share its limit. While quotas of one shape only exist (say, of users), a bucket is
what that shape says; with several shapes it depends on the quota that holds for the client.

Pure: `server/client_quotas` follows the metadata, and `_native/serving/quota` counts."""

from collections import Counter
from enum import IntEnum
from typing import Any, Final, NamedTuple

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"


class Kind(IntEnum):
    """What a quota of users and client ids limits; `_native/serving/quota` has the numbers of COUNTED."""

    PRODUCE = 0
    FETCH = 1
    REQUEST = 2
    MUTATION = 3


KINDS: Final = {
    PRODUCER_BYTE_RATE: Kind.PRODUCE,
    CONSUMER_BYTE_RATE: Kind.FETCH,
    REQUEST_PERCENTAGE: Kind.REQUEST,
    CONTROLLER_MUTATION_RATE: Kind.MUTATION,
}
COUNTED: Final = (Kind.PRODUCE, Kind.FETCH, Kind.REQUEST)  # in the data plane

# Which shapes of entities have quotas of a kind: bits, as in Kafka
CLIENT_IDS: Final = 1
USERS: Final = 2
USERS_AND_CLIENT_IDS: Final = 4


class Name(NamedTuple):
    """One part of an entity. `text` is "" for the default, which no name is."""

    is_default: bool
    text: str = ""


DEFAULT: Final = Name(True)
Entity = tuple[Name | None, Name | None]  # user, client id; None: it says nothing of that


class Bucket(NamedTuple):
    user: str
    client_id: str
    limit: float


class ClientQuotas:
    """The quotas of users and client ids, by kind."""

    def __init__(self) -> None:
        self._limits: dict[Kind, dict[Entity, float]] = {kind: {} for kind in Kind}
        self._shapes: dict[Kind, Counter[int]] = {kind: Counter() for kind in Kind}

    def set(self, parts: Any, key: str, limit: float | None) -> Kind | None:
        """Set one quota, or remove it. `parts`: ((type, is default, name), ...), as in the metadata image.
        Return the kind that has changed; None for a quota that is none of these."""
        kind = KINDS.get(key)
        names = {kind_of_part: Name(is_default, text) for kind_of_part, is_default, text in parts}
        if kind is None or not names or names.keys() - {USER, CLIENT_ID}:
            return None
        entity = (names.get(USER), names.get(CLIENT_ID))
        limits, shapes, shape = self._limits[kind], self._shapes[kind], _shape(entity)
        if limit is not None:
            shapes[shape] += entity not in limits
            limits[entity] = limit
        elif limits.pop(entity, None) is not None:
            shapes[shape] -= 1
            if not shapes[shape]:
                del shapes[shape]
        return kind

    def has(self, kind: Kind) -> bool:
        return bool(self._limits[kind])

    def bucket(self, kind: Kind, user: str, client_id: str) -> Bucket | None:
        """None: nothing limits this client."""
        limits = self._limits[kind]
        match sum(self._shapes[kind]):
            case 0:
                return None
            case shape if shape == CLIENT_IDS:
                tags = "", client_id
            case shape if shape == USERS:
                tags = user, ""
            case shape if shape == USERS_AND_CLIENT_IDS:
                tags = user, client_id
            case _:
                tags = self._tags(limits, user, client_id)
        limit = _limit(limits, *tags)
        return None if limit is None else Bucket(*tags, limit)

    @staticmethod
    def _tags(limits: dict[Entity, float], user: str, client_id: str) -> tuple[str, str]:
        """Where quotas of several shapes exist."""
        u, c = Name(False, user), Name(False, client_id)
        if (u, c) in limits or (u, DEFAULT) in limits:
            return user, client_id
        if (u, None) in limits:
            return user, ""
        if (DEFAULT, c) in limits or (DEFAULT, DEFAULT) in limits:
            return user, client_id
        if (DEFAULT, None) in limits:
            return user, ""
        return "", client_id


def _shape(entity: Entity) -> int:
    user, client_id = entity
    if client_id is None:
        return USERS
    return CLIENT_IDS if user is None else USERS_AND_CLIENT_IDS


def _limit(limits: dict[Entity, float], user: str, client_id: str) -> float | None:
    """Of a bucket. As with Kafka, no quota of client ids holds for an empty one, not even the default."""
    u, c = Name(False, user), Name(False, client_id)
    if user and client_id:
        wanted: tuple[Entity, ...] = ((u, c), (u, DEFAULT), (DEFAULT, c), (DEFAULT, DEFAULT))
    elif user:
        wanted = ((u, None), (DEFAULT, None))
    elif client_id:
        wanted = ((None, c), (None, DEFAULT))
    else:
        return None
    return next((limits[entity] for entity in wanted if entity in limits), None)
