"""Sends proposed ISRs to the controller: AlterPartition, one request at a time.

    waiting     the newest proposal of each partition; the next request carries all of them
    in flight   one request; proposals that it does not answer wait again
    failure     no controller, or an error of the whole request: everything is sent again after 50 ms, without
                end (Kafka: AlterPartitionManager)

Uses v3, which names the broker epochs of the members (KIP-903). Controllers serve it since Kafka 3.5.

Use: replication/replicas adds proposals, through server/member_worker."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from kafkad.net.channel import Unreachable
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.replication.isr import Answer, Proposal
from kafkad.replication.replicas import Done
from kafkad.seldom import Seldom
from kafkad.server.controller_channel import Ask

logger: Final = logging.getLogger("kafkad.replication")

RETRY_S: Final = 0.05
Key = tuple[bytes, int]


class AlterPartitions:
    def __init__(
        self,
        ask: Ask,
        run: Callable[[Coroutine[Any, Any, None]], None],
        *,
        broker_id: int,
        epoch: Callable[[], int],
    ) -> None:
        """`ask`: ControllerChannel.ask; `run` starts a task; `epoch` returns this broker's epoch."""
        self._ask = ask
        self._run = run
        self._broker_id = broker_id
        self._epoch = epoch
        self._waiting: dict[Key, tuple[Proposal, Done]] = {}
        self._sending = self._troubled = False
        self._seldom = Seldom()

    def send(self, topic_id: bytes, index: int, proposal: Proposal, done: Done) -> None:
        """Propose an ISR. `done` is called once, unless another proposal for the partition replaces this one
        before it is sent: then the metadata has changed, and the result does not matter."""
        self._waiting[topic_id, index] = proposal, done
        if not self._sending:
            self._sending = True
            self._run(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                sent, self._waiting = self._waiting, {}
                self._troubled = False
                for key in await self._send(sent):
                    self._waiting.setdefault(key, sent[key])
                if self._troubled:
                    await asyncio.sleep(RETRY_S)
        finally:
            self._sending = False

    async def _send(self, sent: dict[Key, tuple[Proposal, Done]]) -> list[Key]:
        """Send proposals. Return those that must be sent again."""
        try:
            response = await self._ask(self._request(sent), lowest=3)
            if response.error_code:
                raise KafkaError(response.error_code)
        except (Unreachable, KafkaError) as trouble:
            if self._seldom.due(str(trouble), int(asyncio.get_running_loop().time() * 1000)):
                logger.warning("the ISR of %d partitions could not be changed: %s", len(sent), trouble)
            self._troubled = True
            return list(sent)
        self._seldom.over()
        again = set(sent)
        for topic in response.topics:
            for row in topic.partitions:
                key = topic.topic_id, row.partition_index
                if key not in again:
                    continue
                self._troubled = self._troubled or row.error_code != errors.NONE
                again.discard(key)
                answer = Answer(
                    row.leader_id, row.leader_epoch, tuple(row.isr), row.partition_epoch,
                    row.leader_recovery_state,
                )  # fmt: skip
                sent[key][1](row.error_code, None if row.error_code else answer)
        self._troubled = self._troubled or bool(again)
        return sorted(again)

    def _request(self, sent: dict[Key, tuple[Proposal, Done]]) -> Any:
        cls = messages.AlterPartitionRequest
        topic = cls.Topics
        row = topic.Partitions
        by_topic: dict[bytes, list[Any]] = {}
        for (topic_id, index), (proposal, _) in sent.items():
            by_topic.setdefault(topic_id, []).append(
                row(
                    partition_index=index,
                    leader_epoch=proposal.leader_epoch,
                    new_isr_with_epochs=[
                        row.NewIsrWithEpochs(broker_id=broker, broker_epoch=epoch)
                        for broker, epoch in proposal.isr
                    ],
                    leader_recovery_state=proposal.recovery_state,
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return cls(
            broker_id=self._broker_id,
            broker_epoch=self._epoch(),
            topics=[topic(topic_id=topic_id, partitions=rows) for topic_id, rows in by_topic.items()],
        )
