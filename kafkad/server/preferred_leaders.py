"""Gives partitions back to their preferred leaders without a pause for producers.

After a restart of one broker the others lead its partitions. Kafka's controllers give them back by a clock
(leader.imbalance.check.interval.seconds), and what a producer sends at that moment is refused and sent again
after its retry.backoff.ms. Here the leader itself gives them back, before that:

    look      every LOOK_S, if the metadata has changed or something waits: which partitions are led here
              although their preferred replica is in sync and its broker active
    wait      until a partition has been in this state for kafkad.preferred.leader.delay.ms: by then clients
              have connected to that broker again (librdkafka waits up to 10 s before it does)
    move      hold the Produces of up to AT_ONCE partitions (server/produce_handover), then ask the controller
              for a preferred election of them (ElectLeaders), and pause for PAUSE_S

Nothing is held while the controllers do not accept this broker's heartbeats. If the logs are not drained in
time there is no election, and the held Produces are refused. After that, or an election that nobody won, the
wait is twice as long, up to DELAY_S_MAX. If the controllers do not allow this broker to ask for
elections (they want Alter on the cluster), they have to do it themselves. auto.leader.rebalance.enable=false
turns this off.

Use: server/member_worker; in worker 0."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final

from kafkad.metadata.image import MetadataImage, PartitionState
from kafkad.net.channel import Unreachable
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

logger = logging.getLogger("kafkad")

LOOK_S: Final = 1.0
AT_ONCE: Final = 100  # partitions whose Produces are held together
PAUSE_S: Final = 2.0  # longer than a hold
ASK_S: Final = 5.0
DELAY_S_MAX: Final = 600.0
SLICE: Final = 500  # partitions that are looked at in one turn
PREFERRED: Final = 0  # ElectLeaders' election_type

Key = tuple[str, int]  # topic, partition
DENIED: Final = (errors.CLUSTER_AUTHORIZATION_FAILED, errors.UNSUPPORTED_VERSION)


class PreferredLeaders:
    def __init__(
        self,
        me: int,
        image: Callable[[], MetadataImage],
        *,
        delay_s: float,
        heartbeats: Callable[[], int],
        hold: Callable[[list[Key]], Awaitable[bool]],
        ask: Callable[..., Awaitable[Any]],
    ) -> None:
        """`me`: this broker's id. `heartbeats`: how many the controllers have accepted. `hold`: lets all
        workers hold Produces, and returns whether the logs are drained. `ask`: ControllerChannel.ask."""
        self._me = me
        self._image = image
        self._delay_s = self._shortest_s = delay_s
        self._heartbeats = heartbeats
        self._hold = hold
        self._ask = ask
        self._since: dict[Key, float] = {}  # partitions that another broker should lead, and since when
        self._changed = True

    def metadata_changed(self) -> None:
        """Partitions or brokers have changed."""
        self._changed = True

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        accepted = self._heartbeats()
        self._changed = True  # an earlier run may have ended within its look
        while True:
            await asyncio.sleep(LOOK_S)
            if self._changed:
                self._changed = False
                await self._look(clock())
            before, accepted = accepted, self._heartbeats()
            due = clock() - self._delay_s
            ripe = [key for key, since in self._since.items() if since <= due]
            while ripe and accepted != before:
                moving, ripe = ripe[:AT_ONCE], ripe[AT_ONCE:]
                if not await self._move(moving):
                    return
                await asyncio.sleep(PAUSE_S)
                accepted, before = self._heartbeats(), accepted

    async def _look(self, now: float) -> None:
        """Renew `_since`, in slices."""
        keys, since = self._due_elsewhere(self._image()), {}
        while found := list(islice(keys, SLICE)):
            since.update({key: self._since.get(key, now) for key in found if key is not None})
            await asyncio.sleep(0)
        self._since = since

    def _due_elsewhere(self, image: MetadataImage) -> Iterator[Key | None]:
        """Yield something for each partition: its key if another broker should lead it, otherwise None."""
        for name, topic in image.topics.items():
            for index, state in topic.partitions.items():
                yield (name, index) if self._is_due(image, state) else None

    def _is_due(self, image: MetadataImage, state: PartitionState) -> bool:
        preferred = state.replicas[0]
        if state.leader != self._me or preferred == self._me or preferred not in state.isr:
            return False
        broker = image.brokers.get(preferred)
        return broker is not None and broker.active

    async def _move(self, moving: list[Key]) -> bool:
        """Return whether there may be another."""
        cls = messages.ElectLeadersRequest
        for key in moving:
            del self._since[key]  # if it fails, `_look` finds it again
        self._changed = True
        topics = [
            cls.TopicPartitions(topic=name, partitions=[index for _, index in keys])
            for name, keys in groupby(sorted(moving), key=itemgetter(0))
        ]
        if not await self._hold(moving):  # a later batch must not overtake one that may be lost
            self._later("the logs are not drained")
            return True
        try:
            request = cls(election_type=PREFERRED, topic_partitions=topics, timeout_ms=int(ASK_S * 1000))
            answer = await self._ask(request, timeout_s=ASK_S)
        except (Unreachable, KafkaError) as trouble:
            self._later(str(trouble))
            return not isinstance(trouble, KafkaError) or trouble.code not in DENIED
        if answer.error_code in DENIED:
            logger.info(
                "the controllers do not let this broker give partitions back to their preferred leaders (%s);"
                " they do it themselves, every leader.imbalance.check.interval.seconds",
                errors.NAMES.get(answer.error_code, answer.error_code),
            )
            return False
        codes = [
            part.error_code for topic in answer.replica_election_results for part in topic.partition_result
        ]
        if elected := codes.count(errors.NONE):
            self._delay_s = self._shortest_s
            logger.info("gave %d partitions back to their preferred leaders", elected)
        elif refused := {answer.error_code, *codes} - {errors.NONE, errors.ELECTION_NOT_NEEDED}:
            self._later(", ".join(errors.NAMES.get(code, str(code)) for code in sorted(refused)))
        return True

    def _later(self, why: str) -> None:
        self._delay_s = min(self._delay_s * 2, DELAY_S_MAX)
        logger.info(
            "could not give partitions back to their preferred leaders: %s; next in %g s", why, self._delay_s
        )
