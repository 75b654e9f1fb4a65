"""The life cycle of a broker whose controllers are other nodes: registered, unfenced, controlled shutdown.

    STARTING     registers, then reports by heartbeats how far it has read the metadata; fenced
    RECOVERY     caught up: `caught_up` is set, logs may be loaded; fenced until `ready_to_unfence`
    RUNNING      the controller has unfenced it: `unfenced` is set, it may lead
    LEAVING      `begin_shutdown`: the controller moves its leaders away, and reports when it may stop
    GONE         `gone` is set

(Kafka: BrokerLifecycleManager, BrokerState; KIP-631.) Heartbeats are sent in every state, every
broker.heartbeat.interval.ms, and at once after a change. A failed one is sent again after the interval. A
controller that gets none for broker.session.timeout.ms fences the broker, and unfences it at its next
heartbeat.

Beware: the registered features depend on the features that the cluster has finalized (`supported_features`),
so the image must be available before `run`.

Use: server/member_worker."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final

from kafkad.controller.brokers import NO_EPOCH, NotRegistered, Registration, supported_features
from kafkad.metadata import features
from kafkad.metadata.image import MetadataImage
from kafkad.net.channel import Unreachable
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.seldom import Seldom
from kafkad.server.controller_channel import Ask

logger = logging.getLogger("kafkad")

OLDEST_REGISTRATION: Final = 4  # features may begin at level 0
SOON_S: Final = 0.01  # until the next heartbeat, while the broker starts
HINTS: Final = {
    errors.DUPLICATE_BROKER_REGISTRATION: ": another broker with this node.id is running, or has been within"
    " broker.session.timeout.ms",
    errors.UNSUPPORTED_VERSION: ": the cluster has a feature level that this release does not support",
}
LEAVING_SOON_S: Final = 0.05  # the same, after the broker has asked to leave


class State(Enum):
    STARTING = "starting"
    RECOVERY = "in recovery"
    RUNNING = "running"
    LEAVING = "leaving"
    GONE = "gone"


class BrokerLifecycle:
    """`run` ends when the broker is gone. `epoch` is the broker's epoch, -1 until it is registered."""

    def __init__(
        self,
        registration: Registration,
        *,
        cluster_id: str,
        ask: Ask,
        image: Callable[[], MetadataImage],
        heartbeat_interval_ms: int = 2000,
        session_timeout_ms: int = 9000,
        initial_timeout_ms: int = 60_000,
    ) -> None:
        """`ask`: ControllerChannel.ask; `image` returns the image that is applied here."""
        self.state = State.STARTING
        self.epoch = NO_EPOCH
        self.heartbeats = 0  # that a controller accepted
        self.caught_up = asyncio.Event()
        self.unfenced = asyncio.Event()
        self.gone = asyncio.Event()
        self._registration = registration
        self._cluster_id = cluster_id
        self._ask = ask
        self._image = image
        self._interval_s = heartbeat_interval_ms / 1000
        self._timeout_s = session_timeout_ms / 1000
        self._initial_timeout_s = initial_timeout_ms / 1000
        self._ready = False
        self._asked_to_leave = False  # a heartbeat has requested it
        self._offline: set[bytes] = set()
        self._changed = asyncio.Event()
        self._seldom = Seldom()

    # -- state that the broker reports ---------------------------------------------------------------------

    def ready_to_unfence(self) -> None:
        """Logs are loaded: the broker may lead."""
        self._ready = True
        self._changed.set()

    def directories_offline(self, directories: Iterable[bytes]) -> None:
        """Log directories that have failed, by directory.id; their partitions get other leaders."""
        self._offline.update(directories)
        self._changed.set()

    def begin_shutdown(self) -> None:
        """Ask the controller to move leaders away. A broker that is not running yet is gone at once."""
        if self.state is State.RUNNING:
            logger.info("broker %d asks the controller to let it go", self._registration.broker_id)
            self.state = State.LEAVING
        elif self.state is not State.LEAVING:
            self._end()
        self._changed.set()

    def resume(self, epoch: int, *, fenced: bool) -> None:
        """Call before `run`, if the broker is registered: the process that registered it has died, and other
        workers of the broker kept running. Its session may have ended meanwhile."""
        logger.info("broker %d goes on in epoch %d", self._registration.broker_id, epoch)
        self.epoch, self._ready = epoch, not fenced
        self.state = State.RECOVERY if fenced else State.RUNNING
        self.caught_up.set()
        if not fenced:
            self.unfenced.set()

    # -- requests ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Register and send heartbeats until the broker is gone. Raises NotRegistered."""
        if self.epoch == NO_EPOCH:
            await self._register()
        while self.state is not State.GONE:
            self._changed.clear()
            pause_s = await self._beat()
            if self.state is State.GONE:
                return
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _register(self) -> None:
        clock = asyncio.get_running_loop().time
        end, reason = clock() + self._initial_timeout_s, ""
        while self.state is not State.GONE and (left := end - clock()) > 0:
            try:
                request = self._registration_request()
                response = await self._ask(
                    request, timeout_s=min(left, self._timeout_s), lowest=OLDEST_REGISTRATION
                )
            except (Unreachable, KafkaError) as trouble:
                reason = str(trouble)
            else:
                if not response.error_code:
                    self.epoch = response.broker_epoch
                    logger.info(
                        "broker %d is registered in epoch %d", self._registration.broker_id, self.epoch
                    )
                    return
                reason = f"the controller answers {KafkaError(response.error_code)}"
                reason += HINTS.get(response.error_code, "")
            if self._seldom.due(reason, int(clock() * 1000)):
                logger.warning("broker %d is not registered: %s", self._registration.broker_id, reason)
            await asyncio.sleep(min(self._interval_s, max(end - clock(), 0)))
        if self.state is not State.GONE:
            raise NotRegistered(
                f"the controllers have not registered broker {self._registration.broker_id} within"
                f" {self._initial_timeout_s:g} s: {reason}"
            )

    def lost_records(self) -> None:
        """Register as after an unclean stop: with ELR the broker leaves all ISRs. Call it before `run`."""
        logger.warning(
            "broker %d registers as after an unclean stop: logs are gone, or shorter than they were",
            self._registration.broker_id,
        )
        self._registration = self._registration._replace(previous_epoch=NO_EPOCH)

    def _registration_request(self) -> Any:
        us, cls = self._registration, messages.BrokerRegistrationRequest
        return cls(
            broker_id=us.broker_id,
            cluster_id=self._cluster_id,
            incarnation_id=us.incarnation_id,
            listeners=[
                cls.Listeners(name=name, host=at.host, port=at.port, security_protocol=at.security_protocol)
                for name, at in us.listeners.items()
            ],
            features=[
                cls.Features(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in supported_features(self._image()).items()
            ],
            rack=us.rack,
            log_dirs=sorted(us.directories),
            previous_broker_epoch=us.previous_epoch,
        )

    async def _beat(self) -> float:
        """Send one heartbeat; return the seconds until the next."""
        leaving, image = self.state is State.LEAVING, self._image()
        request = messages.BrokerHeartbeatRequest(
            broker_id=self._registration.broker_id,
            broker_epoch=self.epoch,
            current_metadata_offset=image.offset,
            want_fence=not self._ready,
            want_shut_down=leaving,
            offline_log_dirs=sorted(self._offline),
        )
        if self.state is not State.STARTING and image.metadata_version >= features.CORDONED_LOG_DIRS:
            request.cordoned_log_dirs = sorted(self._registration.cordoned_directories)
        try:
            response = await self._ask(request, timeout_s=self._timeout_s)
        except (Unreachable, KafkaError) as trouble:
            self._no_heartbeat(f"has no heartbeat: {trouble}")
            return self._interval_s
        if response.error_code:
            self._no_heartbeat(f"is refused its heartbeat: {KafkaError(response.error_code)}")
            return self._interval_s
        self._seldom.over()
        self.heartbeats += 1
        return self._heard(response, leaving)

    def _no_heartbeat(self, trouble: str) -> None:
        """Log a failed heartbeat, from time to time while it lasts."""
        if self._seldom.due(trouble, int(asyncio.get_running_loop().time() * 1000)):
            logger.warning("broker %d %s", self._registration.broker_id, trouble)

    def _heard(self, response: Any, leaving: bool) -> float:
        if self.state is State.STARTING:
            if response.is_caught_up:
                self.state = State.RECOVERY
                self.caught_up.set()
            return SOON_S
        if self.state is State.RECOVERY:
            if not response.is_fenced:
                self.state = State.RUNNING
                self.unfenced.set()
                logger.info("broker %d is unfenced", self._registration.broker_id)
        elif self.state is State.LEAVING and leaving:
            if response.should_shut_down:
                logger.info("the controller lets broker %d go", self._registration.broker_id)
                self._end()
            elif not self._asked_to_leave:
                self._asked_to_leave = True
                return LEAVING_SOON_S
        return self._interval_s

    def _end(self) -> None:
        self.state = State.GONE
        self.gone.set()
