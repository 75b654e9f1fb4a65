"""The followers of the partitions that this worker leads: their state in the native partition, and the ISR.

    metadata        gives a partition its role, its followers (in the native partition) and its ISR
    Fetch           notes natively how far a follower is, and calls `joins` once when it may join the ISR
    `_join`         the same, when what kept a follower out has ended: it was fenced, another proposal was in
                    flight. Its next Fetch may come half a second later
    `tick`          every half replica.lag.time.max.ms: proposes to remove members that lag
    `send`          sends each proposal to the controller; `_answered` gets the answer

Nothing here waits or reads a clock; `now_ms` is the reactor's monotonic clock.

Use: server/member_worker."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

from kafkad._native.log.partition_reader import ReaderPartition
from kafkad._native.log.partition_watermarks import NEW_LEADER, RE_ELECTED, SAME_EPOCH
from kafkad._native.shared.watermarks import LEADER
from kafkad.log.log import Log
from kafkad.metadata.image import BrokerRegistration, MetadataImage, PartitionState
from kafkad.replication.isr import Answer, Isr, Proposal, Verdict
from kafkad.replication.low_watermarks import LowWatermarks

logger: Final = logging.getLogger("kafkad.replication")

A_STEP: Final = 32  # partitions per step, some microseconds each

Done = Callable[[int, Answer | None], None]  # (error code, the controller's answer)
Send = Callable[[bytes, int, Proposal, Done], None]  # (topic id, partition, …)


class Led:
    """A partition with followers that this broker leads."""

    __slots__ = ("inherited_ms", "isr", "led_since", "log", "replicas", "state")

    def __init__(self, log: Log, me: int, state: PartitionState) -> None:
        self.log = log
        self.state = state
        self.isr = Isr(me)
        self.replicas: tuple[int, ...] = ()  # the others
        self.led_since = -1
        self.inherited_ms = 0  # when it was taken over with a proposal in flight


class Replicas:
    def __init__(
        self, me: int, send: Send, image: Callable[[], MetadataImage], now_ms: Callable[[], int]
    ) -> None:
        self.me = me
        self.lag_ms_max = 30_000  # replica.lag.time.max.ms
        self.inherits = False  # another process led these partitions, and died
        self.on_new_leader: Callable[[], Any] = lambda: None  # followers will begin to fetch from us
        self.low_watermarks = LowWatermarks(image)
        self._send = send
        self._image = image
        self._now_ms = now_ms
        self._racks: dict[str, int] | None = None  # numbers by name; None: consumers read from leaders only
        self._listeners: frozenset[str] = frozenset()
        self._led: dict[tuple[str, int], Led] = {}
        self._readers: WeakKeyDictionary[ReaderPartition, PartitionState] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._led)

    def isr(self, topic: str, index: int) -> Isr | None:
        led = self._led.get((topic, index))
        return None if led is None else led.isr

    # -- racks (KIP-392) -------------------------------------------------------------------------------------

    def select_by_rack(self, listeners: frozenset[str]) -> None:
        """Let consumers read from replicas in their racks, at brokers that have these listeners."""
        self._racks = {}
        self._listeners = listeners

    def racks(self) -> list[str] | None:
        """Return the racks of all brokers, in the order of their numbers, which begin with 1; None if
        consumers read from leaders only."""
        if self._racks is None:
            return None
        for broker in self._image().brokers.values():
            if broker.rack is not None:
                self._racks.setdefault(broker.rack, len(self._racks) + 1)
        return list(self._racks)

    def _rack_of(self, broker: BrokerRegistration | None) -> int:
        if self._racks is None or broker is None or broker.rack is None or broker.fenced:
            return 0
        if not self._listeners <= broker.listeners.keys():
            return 0
        return self._racks.setdefault(broker.rack, len(self._racks) + 1)

    # -- roles ---------------------------------------------------------------------------------------------

    def on_role(self, log: Log, state: PartitionState) -> None:
        """Partitions.on_role: the metadata of a partition has changed."""
        key = log.topic, log.partition
        if state.leader != self.me or log.native.role != LEADER or len(state.replicas) == 1:
            self._led.pop(key, None)
            self.low_watermarks.look(log)
            return
        led = self._led.get(key)
        if led is None or led.log is not log:
            led = self._led[key] = Led(log, self.me, state)
            log.replica_joins = self.joins
        before = led.isr.leader_epoch
        if not led.isr.learn(state):
            return
        led.state = state
        led.replicas = tuple(each for each in state.replicas if each != self.me)
        reset = SAME_EPOCH
        if led.led_since != log.native.led_since:
            reset = NEW_LEADER
        elif before != state.leader_epoch:
            reset = RE_ELECTED
        led.led_since = log.native.led_since
        if reset == NEW_LEADER and self.inherits:
            proposal = self._inherit(led)
        else:
            self._trust_inactive(led)
            proposal = led.isr.verify(self._epoch_of(led))
        self._show(led, reset)
        if reset == NEW_LEADER:
            self.on_new_leader()
        if proposal is not None:
            self._propose(led, proposal)
        self._join(led)

    def on_reader(self, reader: ReaderPartition, state: PartitionState) -> None:
        """Partitions.on_reader: note which followers may fetch another worker's partition from this
        worker."""
        if state.leader != self.me or len(state.replicas) == 1:
            reader.know_replicas([])
            self._readers.pop(reader, None)
            return
        if reader not in self._readers:
            self.on_new_leader()
        self._readers[reader] = state
        self._show_reader(reader, state)

    def _show_reader(self, reader: ReaderPartition, state: PartitionState) -> None:
        brokers = self._image().brokers
        rows = []
        for each in state.replicas:
            if each != self.me:
                broker = brokers.get(each)
                epoch = -1 if broker is None else broker.epoch
                rows.append((each, each in state.isr, epoch, self._rack_of(broker)))
        reader.know_replicas(rows)

    def on_dropped(self, topic: str, index: int, topic_id: bytes) -> None:
        led = self._led.pop((topic, index), None)
        if led is not None:
            self.low_watermarks.look(led.log)

    def follow_brokers(self) -> Iterator[None]:
        """A broker was fenced, unfenced or registered again, so other replicas may be in the ISR. Takes a few
        partitions per step."""
        for number, key in enumerate(list(self._led)):
            led = self._led.get(key)
            if led is not None:
                self._show(led, SAME_EPOCH)
                self._join(led)
            if number % A_STEP == 0:
                yield
        for number, reader in enumerate(list(self._readers)):
            state = self._readers.get(reader)
            if state is not None:
                self._show_reader(reader, state)
            if number % A_STEP == 0:
                yield

    def _show(self, led: Led, reset: int) -> None:
        """Update the native partition."""
        brokers, isr = self._image().brokers, led.isr
        self._trust_inactive(led)
        maximal = isr.maximal
        rows = []
        for each in led.replicas:
            broker = brokers.get(each)
            rows.append(
                (
                    each,
                    each in isr.committed,
                    each in maximal,
                    # Kafka waits replica.lag.time.max.ms for one whose log directory has failed.
                    broker is not None and broker.active and broker.has_online(led.state.directory(each)),
                    -1 if broker is None else broker.epoch,
                    self._rack_of(broker),
                )
            )
        led.log.native.replicate(
            rows,
            isr_count=len(isr.committed),
            isr_count_max=len(maximal),
            reset=reset,
            now_ms=self._now_ms(),
            lag_ms_max=self.lag_ms_max,
        )
        self.low_watermarks.look(led.log)

    def _inherit(self, led: Led) -> Proposal | None:
        """Take over from the previous process, whose row says whether it has proposed to add a follower."""
        row = led.log.native.slot.values()
        brokers = self._image().brokers
        active = [each for each in led.replicas if each in brokers and brokers[each].active]
        led.inherited_ms = self._now_ms()
        return led.isr.inherit(active, self._epoch_of(led), in_flight=row.isr_count_max > row.isr_count)

    # -- the ISR -------------------------------------------------------------------------------------------

    def joins(self, log: Log, broker_id: int) -> None:
        """Propose to add a follower that has caught up."""
        led = self._led.get((log.topic, log.partition))
        if led is None or led.log is not log:
            return
        proposal = led.isr.expand(broker_id, self._epoch_of(led))
        if proposal is not None:
            logger.info(
                "%s-%d: broker %d joins the ISR %s", log.topic, log.partition, broker_id, led.isr.committed
            )
            self._propose(led, proposal)

    def _join(self, led: Led) -> None:
        """Propose to add a follower that has caught up before it could join."""
        if led.isr.pending is None:
            for broker_id in led.log.native.joining(self._now_ms())[:1]:
                self.joins(led.log, broker_id)

    def tick(self) -> Iterator[None]:
        """Propose to remove the members that lag. Takes a few partitions per step."""
        for number, key in enumerate(list(self._led)):
            led = self._led.get(key)
            if led is not None and led.isr.pending is None:
                self._trust(led)
                self._shrink(led)
            if number % A_STEP == 0:
                yield

    def _trust_inactive(self, led: Led) -> None:
        """The controller adds no broker that is not active."""
        if led.isr.suspected:
            brokers = self._image().brokers
            led.isr.trust(each for each in led.replicas if each not in brokers or not brokers[each].active)

    def _trust(self, led: Led) -> None:
        """A follower that may be in the ISR, and does not come, holds HW back as long as a member would."""
        isr = led.isr
        if isr.suspected and isr.is_confirmed and self._now_ms() - led.inherited_ms > self.lag_ms_max:
            isr.trust(isr.suspected)
            self._show(led, SAME_EPOCH)

    def _shrink(self, led: Led) -> None:
        lagging = led.log.native.lagging(self._now_ms())
        proposal = led.isr.shrink(lagging, self._epoch_of(led)) if lagging else None
        if proposal is not None:
            log = led.log
            logger.info(
                "%s-%d: brokers %s leave the ISR %s; %s",
                log.topic, log.partition, lagging, led.isr.committed, log.native.replica_rows(),
            )  # fmt: skip
            self._propose(led, proposal)

    def _epoch_of(self, led: Led) -> Callable[[int], int]:
        def epoch_of(broker_id: int) -> int:
            if broker_id != self.me:
                return led.log.native.replica_epoch(broker_id)
            own = self._image().brokers.get(self.me)
            return -1 if own is None else own.epoch

        return epoch_of

    def _propose(self, led: Led, proposal: Proposal) -> None:
        self._show(led, SAME_EPOCH)
        self._send(
            led.log.topic_id, led.log.partition, proposal, lambda *said: self._answered(led, proposal, *said)
        )

    def _answered(self, led: Led, proposal: Proposal, code: int, answer: Answer | None) -> None:
        if self._led.get((led.log.topic, led.log.partition)) is not led:
            return
        suspected = led.isr.suspected
        verdict = led.isr.answered(proposal, code, answer)
        if verdict is Verdict.AGAIN:
            self._propose(led, proposal)
        elif verdict is Verdict.COMMITTED or led.isr.suspected != suspected:
            self._show(led, SAME_EPOCH)
            if not code:  # the next Fetch asks again for one that was refused
                self._join(led)
        if code:
            logger.info("%s-%d: the ISR stays %s: error %d, %s",
                        led.log.topic, led.log.partition, led.isr.committed, code, verdict.name)  # fmt: skip
