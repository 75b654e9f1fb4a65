"""Heartbeats: which brokers are in contact with the active controller, and the state of each.

    session    a broker without a heartbeat for broker.session.timeout.ms must be fenced, one at a time, so
               that the change for the first is known when the second is planned
    state      next_state: fenced, unfenced, in controlled shutdown, may shut down
    offsets    how far each broker has read the metadata: a controlled shutdown ends when every active broker
               knows the leaders that were moved

Everything is in memory, and each active controller begins anew: every broker that is not fenced gets a new
session. So a broker that dies together with the controller is fenced one session after the failover.

Time is an argument, monotonic ms. (Kafka: BrokerHeartbeatManager, BrokerHeartbeatTracker.)"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kafkad.metadata.image import MetadataImage

UNKNOWN = -1  # offset
NEVER = -(1 << 62)  # ms: a session that begins then has ended
BrokerKey = tuple[int, int]  # id and epoch


class BrokerState(Enum):
    """The state of a broker after a heartbeat."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "in controlled shutdown"
    SHUTDOWN_NOW = "may shut down"

    @property
    def is_fenced(self) -> bool:
        return self in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW)


@dataclass(slots=True)
class Tracked:
    """One broker. `shutdown_offset`: of the metadata that moves its leaders away; UNKNOWN if it is not
    shutting down."""

    fenced: bool
    metadata_offset: int = UNKNOWN
    shutdown_offset: int = UNKNOWN
    registered_offset: int = UNKNOWN  # of its RegisterBroker record: caught up from there on

    @property
    def is_leaving(self) -> bool:
        return self.shutdown_offset >= 0

    @property
    def is_active(self) -> bool:
        return not self.fenced and not self.is_leaving


class Heartbeats:
    """The brokers' heartbeats at the active controller, starting from an image."""

    def __init__(self, image: MetadataImage, session_ms: int, now_ms: int) -> None:
        self._session_ms = session_ms
        self._contacts: dict[BrokerKey, int] = {}  # in the order of their last contact
        # The image does not have the offset of a registration. So a fenced broker must reach the end of the
        # metadata at the beginning of the term.
        self.brokers = {
            each.broker_id: Tracked(each.fenced, registered_offset=image.offset)
            for each in image.brokers.values()
        }
        for each in image.brokers.values():
            if not each.fenced:
                self.contact((each.broker_id, each.epoch), now_ms)

    # -- sessions ------------------------------------------------------------------------------------------

    def contact(self, broker: BrokerKey, now_ms: int) -> None:
        """Note a heartbeat of a broker, even if its epoch is wrong."""
        self._contacts.pop(broker, None)
        self._contacts[broker] = now_ms

    def has_session(self, broker: BrokerKey, now_ms: int) -> bool:
        at = self._contacts.get(broker)
        return at is not None and now_ms - at <= self._session_ms

    def expired(self, now_ms: int) -> BrokerKey | None:
        """Return, and forget, the broker whose session ended first, with its epoch; or None."""
        for broker, at in self._contacts.items():
            if now_ms - at <= self._session_ms:
                return None
            del self._contacts[broker]
            return broker
        return None

    def extend(self, ms: int, now_ms: int) -> None:
        """Give every broker this much time more: the controller was halted for so long, and heartbeats of the
        meantime wait in its sockets."""
        self._contacts = {
            broker: at if at == NEVER else min(at + ms, now_ms) for broker, at in self._contacts.items()
        }

    def not_fenced(self, broker: BrokerKey) -> None:
        """The change that fences a broker whose session has ended could not be written: it expires again."""
        if broker not in self._contacts:  # else it has sent a heartbeat meanwhile
            self._contacts = {broker: NEVER, **self._contacts}

    def end_session(self, broker: BrokerKey) -> None:
        """End the session of a broker that is dead or has been let go, so that another incarnation may
        register."""
        self._contacts.pop(broker, None)

    def next_expiry_ms(self, now_ms: int) -> int | None:
        """Return in how many ms the next session may end; None without sessions."""
        for at in self._contacts.values():
            return max(at + self._session_ms + 1 - now_ms, 0)
        return None

    # -- brokers -------------------------------------------------------------------------------------------

    def registered(self, broker_id: int, *, fenced: bool, offset: int) -> None:
        """Note the offset of a broker's RegisterBroker record, and forget its earlier state, even if the same
        incarnation has registered again."""
        self.brokers[broker_id] = Tracked(fenced, registered_offset=offset)

    def touch(self, broker_id: int, *, fenced: bool, metadata_offset: int) -> None:
        """Note the content and the outcome of a heartbeat. A fenced broker leaves its controlled shutdown:
        its next heartbeat lets it stop."""
        tracked = self.brokers[broker_id]
        tracked.fenced, tracked.metadata_offset = fenced, metadata_offset
        if fenced:
            tracked.shutdown_offset = UNKNOWN

    def fence(self, broker_id: int) -> None:
        tracked = self.brokers.get(broker_id)
        if tracked is not None:
            tracked.fenced, tracked.shutdown_offset = True, UNKNOWN

    def remove(self, broker_id: int) -> None:
        self.brokers.pop(broker_id, None)

    def leaves_at(self, broker_id: int, offset: int) -> None:
        """Note that a broker is in controlled shutdown since the metadata offset. Only the first call
        counts."""
        tracked = self.brokers[broker_id]
        assert not tracked.fenced, "a fenced broker has nothing to shut down"
        if not tracked.is_leaving:
            tracked.shutdown_offset = offset

    @property
    def lowest_active_offset(self) -> int | None:
        """Return the offset that every active broker has reached; None without active brokers."""
        return min((each.metadata_offset for each in self.brokers.values() if each.is_active), default=None)

    def state(self, broker_id: int) -> BrokerState:
        tracked = self.brokers[broker_id]
        if tracked.is_leaving:
            return BrokerState.CONTROLLED_SHUTDOWN
        return BrokerState.FENCED if tracked.fenced else BrokerState.UNFENCED

    def next_state(self, request: Any, leads: Callable[[], bool]) -> BrokerState:
        """After this BrokerHeartbeatRequest of a known broker (Kafka: calculateNextBrokerState). `leads`: is
        it the leader of anything?"""
        state, tracked = self.state(request.broker_id), self.brokers[request.broker_id]
        if state is BrokerState.FENCED:
            if request.want_shut_down:
                return BrokerState.SHUTDOWN_NOW
            caught_up = request.current_metadata_offset >= tracked.registered_offset
            return BrokerState.UNFENCED if caught_up and not request.want_fence else state
        if state is BrokerState.UNFENCED:
            if request.want_fence:
                return BrokerState.SHUTDOWN_NOW if request.want_shut_down else BrokerState.FENCED
            if request.want_shut_down:
                return BrokerState.CONTROLLED_SHUTDOWN if leads() else BrokerState.SHUTDOWN_NOW
            return state
        if leads():
            return state
        lowest = self.lowest_active_offset
        is_known = lowest is None or tracked.shutdown_offset <= lowest
        return BrokerState.SHUTDOWN_NOW if is_known else state
