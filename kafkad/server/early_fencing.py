"""Early fencing: fences brokers whose process has died, before broker.session.timeout.ms is over.

Two conditions are needed. Both come from the kernel of the broker's machine:

    gone       the broker's side has closed or reset the connection with its heartbeats, and there is no newer
               one; or this controller has just begun to lead, and has not heard from the broker
    refused    every listener of the broker that is known to accept refuses REFUSALS connections in a row

A listener is known to accept if this controller has reached it since the broker registered. Every controller
tries this once, so it knows when it begins to lead. Listeners that cannot be reached from here (NAT) do not
count. A load balancer that always accepts makes the broker look alive.

    silence, a stopped process, a cut network, a machine without power      the session decides, as in Kafka
    a connection that is idle or broken, one of several workers that died   another process accepts: it lives
    a heartbeat, or a new incarnation, during the check                     nothing is done

It is safe to fence a broker that lives: epochs prevent damage, and its next heartbeat unfences it. After
that, this process does not fence it early again.

kafkad.failover.on.refused=false turns this off. Kafka has nothing like it.

Use: server/controller_node."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from kafkad.controller.heartbeats import BrokerKey
from kafkad.net.reach import listens
from kafkad.protocol.errors import KafkaError

logger = logging.getLogger("kafkad")

Address = tuple[str, int]

LOOK_S: Final = 1.0  # between checks for brokers whose listeners were not tried yet
TRIES: Final = 3  # for listeners that do not answer
CONNECT_S: Final = 1.0
AT_ONCE: Final = 32  # our connections at the same time
REFUSALS: Final = 2
PAUSES_S: Final = (0.0, 0.02, 0.03, 0.05, 0.1, 0.2, 0.4)  # several processes do not die at the same moment


class EarlyFencing:
    """`controller`: the QuorumController. `do` runs its steps. `brokers`: those of the image."""

    def __init__(
        self,
        controller: Any,
        *,
        brokers: Callable[[], Iterable[Any]],
        do: Callable[[Any], Coroutine[Any, Any, Any]],
        run: Callable[[Coroutine[Any, Any, None]], Any],
        listens: Callable[[str, int, float], Coroutine[Any, Any, bool | None]] = listens,
    ) -> None:
        self._controller = controller
        self._brokers = brokers
        self._do = do
        self._run = run
        self._listens = listens
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._speaks: dict[int, Any] = {}  # broker id -> the connection with its last heartbeat
        self._accepts: dict[BrokerKey, set[Address]] = {}
        self._tried: dict[BrokerKey, int] = {}
        self._fenced: dict[int, int] = {}  # id -> epoch of brokers that were fenced early
        self._distrusted: set[int] = set()  # ids of brokers that were fenced by mistake

    # -- signs ---------------------------------------------------------------------------------------------

    def heard(self, connection: Any, request: Any) -> None:
        """Note a BrokerHeartbeat on this FrameConnection."""
        broker_id = request.broker_id
        connection.broker_id = broker_id
        self._speaks[broker_id] = connection
        if self._fenced and self._fenced.pop(broker_id, None) == request.broker_epoch:
            self._distrusted.add(broker_id)
            logger.warning(
                "broker %d lives, and was fenced because it refused connections; from now on only its session"
                " decides. kafkad.failover.on.refused=false turns this off", broker_id,
            )  # fmt: skip

    def ended(self, connection: Any, by_peer: bool) -> None:
        """Note the end of this FrameConnection. `by_peer`: the other side has closed or reset it."""
        broker_id = connection.broker_id
        if broker_id is None or self._speaks.get(broker_id) is not connection:
            return
        del self._speaks[broker_id]
        if not by_peer:
            return
        for broker in self._brokers():
            if broker.broker_id == broker_id and not broker.fenced:
                self._run(self._judge((broker_id, broker.epoch), patient=True))

    def begins(self) -> None:
        """This controller leads from now on: check for brokers that died with the previous one."""
        for broker in self._brokers():
            key = (broker.broker_id, broker.epoch)
            if not broker.fenced and key in self._accepts:
                self._run(self._judge(key, patient=False))

    # -- listeners that accept -----------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Try the listeners of brokers that are new or were not reached yet."""
        brokers = {(each.broker_id, each.epoch): each for each in self._brokers()}
        for known in (self._accepts, self._tried):
            for key in known.keys() - brokers.keys():
                del known[key]  # type: ignore[attr-defined]
        due = [key for key in brokers if key not in self._accepts and self._tried.get(key, 0) < TRIES]
        await asyncio.gather(*(self._try(key, brokers[key]) for key in due))

    async def _try(self, key: BrokerKey, broker: Any) -> None:
        self._tried[key] = self._tried.get(key, 0) + 1
        addresses = sorted({(each.host, each.port) for each in broker.listeners.values()})
        answers = await self._ask(addresses)
        accepting = {at for at, answer in zip(addresses, answers, strict=True) if answer}
        if accepting:
            self._accepts[key] = accepting
            logger.info("broker %d accepts connections of this controller", key[0])

    async def _ask(self, addresses: Iterable[Address]) -> list[bool | None]:
        async def one(host: str, port: int) -> bool | None:
            async with self._slots:
                return await self._listens(host, port, CONNECT_S)

        return list(await asyncio.gather(*(one(*at) for at in addresses)))

    # -- judgement -----------------------------------------------------------------------------------------

    def _is_suspect(self, key: BrokerKey) -> bool:
        return (
            self._controller.is_active
            and key[0] not in self._speaks
            and key[0] not in self._distrusted
            and bool(self._accepts.get(key))
        )

    async def _judge(self, key: BrokerKey, *, patient: bool) -> None:
        """Check a broker. `patient`: it may be about to die, so check again if a listener accepts."""
        refusals = 0
        for pause_s in PAUSES_S:
            await asyncio.sleep(pause_s)
            if not self._is_suspect(key):
                return
            answers = await self._ask(self._accepts[key])
            if all(answer is False for answer in answers):
                refusals += 1
            elif patient:
                refusals = 0
            else:
                return
            if refusals >= REFUSALS:
                await self._fence(key)
                return

    async def _fence(self, key: BrokerKey) -> None:
        try:
            if await self._do(self._controller.fence_dead(key, lambda: self._is_suspect(key))):
                self._fenced[key[0]] = key[1]
        except KafkaError as trouble:  # not active any more, or the log cannot be written
            logger.info("broker %d is not fenced: %s", key[0], trouble)
