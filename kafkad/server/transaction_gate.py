"""Asks the coordinator of a transaction whether a producer may write to a partition.

    the coordinator is another broker    asked there, in a cluster (server/remote_gate)
    it is in this worker                 asked at once
    it is in another worker              that worker is asked at once, and its coordinator lets it wait
    the same, and more than WIDE         one AddPartitionsToTxn for all such questions in a turn of the loop
      partitions

A worker that is gone or does not answer counts as NETWORK_EXCEPTION, which makes clients retry. A coordinator
that gets AddPartitionsToTxn does not let it wait while it is still busy with the transaction before: it is
asked again for a short time, soon at first. Use: the gate of coordinator/admission, which translates the
answers for clients.

Source: Kafka's AddPartitionsToTxnManager."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kafkad.api.context import OURSELVES, RequestContext, Services, present
from kafkad.coordinator.transaction import TopicPartition
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server.gate_messages import Question, pack_answer, pack_question, unpack_answer, unpack_question
from kafkad.server.routing import FORWARD, TIMEOUT_S, RemoteClient, pack
from kafkad.server.worker_links import Later, Outcome, PeerLost, PeerTrouble

logger = logging.getLogger(__name__)

GATE = 2  # kind of message between peers
FIRST_PAUSE_S = 0.002  # markers of most transactions take less
WIDE = 64  # partitions: more of them are asked for in a request that is served in steps

ADD_PARTITIONS_TO_TXN, VERSION = 24, 5
CLIENT_VERSION = 2  # transaction.version of a client whose writes add their partition
US = "kafkad-transactions"  # the client id of these requests

Request = messages.AddPartitionsToTxnRequest
Answered = Callable[[Sequence[int]], object]  # a code for each partition, in order


class TransactionGate:
    def __init__(
        self, services: Services, owner_of: Callable[[str], int], loop: asyncio.AbstractEventLoop
    ) -> None:
        """`owner_of`: the worker that coordinates a transactional id."""
        self._services = services
        self._owner_of = owner_of
        self._loop = loop
        self._asked: dict[int, list[tuple[Any, Answered]]] = {}  # wide ones by worker, for this turn
        if services.peers is not None:
            services.peers.handle(GATE, self._questioned)

    def admit(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partition: TopicPartition,
        *,
        adds: bool,
        done: Callable[[int], object],
    ) -> None:
        """See coordinator.admission.Gate."""

        def first(codes: Sequence[int]) -> None:
            done(codes[0])

        self.admit_all(transactional_id, producer_id, epoch, [partition], adds=adds, done=first)

    def admit_all(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
        done: Answered,
    ) -> None:
        """Like `admit`, for several partitions (each once): `done` gets a code for each."""
        remote = self._services.remote_gate
        broker_id = None if remote is None else remote.coordinator_of(transactional_id)
        if remote is not None and broker_id is not None:
            ask = partial(remote.ask, broker_id)
            entry = entry_of(transactional_id, producer_id, epoch, partitions, adds=adds)
            self._until_settled(lambda answered: ask(entry, answered), done)
            return
        worker = self._owner_of(transactional_id)
        if worker == self._services.me:
            self._decide(Question(transactional_id, producer_id, epoch, list(partitions), adds), done)
        elif len(partitions) <= WIDE:
            question = Question(transactional_id, producer_id, epoch, list(partitions), adds)
            self._until_settled(lambda answered: self._question(worker, question, answered), done)
        else:
            asked = entry_of(transactional_id, producer_id, epoch, partitions, adds=adds)
            self._until_settled(lambda answered: self._ask(worker, asked, answered), done)

    def _decide(self, question: Question, done: Answered) -> None:
        """Ask this worker's coordinator."""
        transactional_id, producer_id, epoch, partitions, adds = question
        transactions = present(self._services.transactions)
        if adds:
            transactions.add_partitions(
                transactional_id,
                producer_id,
                epoch,
                partitions,
                CLIENT_VERSION,
                lambda code: done([code] * len(partitions)),
            )
        else:
            transactions.verify_partitions(
                transactional_id,
                producer_id,
                epoch,
                partitions,
                lambda codes: done([codes[each] for each in partitions]),
            )

    def _question(self, worker: int, question: Question, answered: Answered) -> None:
        count = len(question.partitions)

        def told(outcome: Outcome) -> None:
            if isinstance(outcome, Exception):
                logger.warning("worker %d has not answered for a transaction: %s", worker, outcome)
                answered([errors.NETWORK_EXCEPTION] * count)
            else:
                answered(unpack_answer(outcome))

        present(self._services.peers).ask(worker, GATE, pack_question(question), TIMEOUT_S).then(told)

    def _questioned(self, _: int, payload: bytes) -> Later:
        """Answer another worker, possibly later."""
        question = unpack_question(payload)
        answer = Later()
        topics = self._services.metadata.image.topics
        known = [name in topics and index in topics[name].partitions for name, index in question.partitions]
        if all(known):
            self._decide(question, lambda codes: answer.arrive(pack_answer(codes)))
        else:  # this worker learns of a topic later than the one that has been written to
            refused = errors.OPERATION_NOT_ATTEMPTED, errors.UNKNOWN_TOPIC_OR_PARTITION
            answer.arrive(pack_answer([refused[not each] for each in known]))
        return answer

    def _until_settled(self, ask: Callable[[Answered], object], done: Answered) -> None:
        config = self._services.config
        longest_s = config.add_partitions_to_txn_retry_backoff_ms / 1000
        ends_s = self._loop.time() + config.add_partitions_to_txn_retry_backoff_max_ms / 1000
        pause_s = min(FIRST_PAUSE_S, longest_s)

        def answered(codes: Sequence[int]) -> None:
            nonlocal pause_s
            if errors.CONCURRENT_TRANSACTIONS in codes and self._loop.time() + pause_s <= ends_s:
                self._loop.call_later(pause_s, ask, answered)
                pause_s = min(2 * pause_s, longest_s)
            else:
                done(codes)

        ask(answered)

    def _ask(self, worker: int, entry: Any, answered: Answered) -> None:
        if not self._asked:
            self._loop.call_soon(self._flush)
        self._asked.setdefault(worker, []).append((entry, answered))

    def _flush(self) -> None:
        asked, self._asked = self._asked, {}
        for worker, its in asked.items():
            self._loop.create_task(self._send(worker, its)).add_done_callback(_raise)

    async def _send(self, worker: int, asked: list[tuple[Any, Answered]]) -> None:
        request = Request(transactions=[entry for entry, _ in asked])
        client = RemoteClient("", "", OURSELVES, "", "")
        context = RequestContext(ADD_PARTITIONS_TO_TXN, VERSION, 0, US, "", "", client, OURSELVES)
        frame = codec.encode_request(request, VERSION, 0, US)
        results: Sequence[Any] = ()
        try:
            answer = await present(self._services.peers).call(
                worker, FORWARD, pack(context, frame), TIMEOUT_S
            )
            if answer:
                _, response = codec.decode_response(messages.AddPartitionsToTxnResponse, VERSION, answer)
                results = response.results_by_transaction
        except (PeerLost, PeerTrouble, TimeoutError, KafkaError) as trouble:
            logger.warning("worker %d has not answered for %d transactions: %s", worker, len(asked), trouble)
        for number, (entry, done) in enumerate(asked):
            codes = _codes(results[number]) if number < len(results) else {}
            done(
                [
                    codes.get((topic.name, index), errors.NETWORK_EXCEPTION)
                    for topic in entry.topics
                    for index in topic.partitions
                ]
            )


def _raise(sent: "asyncio.Task[None]") -> None:
    if not sent.cancelled():
        sent.result()


def _codes(result: Any) -> dict[TopicPartition, int]:
    return {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in result.topic_results
        for each in topic.results_by_partition
    }


def entry_of(
    transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[TopicPartition], *, adds: bool
) -> Any:
    """Return a transaction for the request. Its partitions keep their order, and the answers have the same
    order."""
    Topic = Request.Transactions.Topics
    entry = Request.Transactions(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        verify_only=not adds,
    )
    for name, index in partitions:
        if not entry.topics or entry.topics[-1].name != name:
            entry.topics.append(Topic(name=name, partitions=[]))
        entry.topics[-1].partitions.append(index)
    return entry
