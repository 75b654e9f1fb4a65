"""Asks transaction coordinators for Produce, and translates the answer for its client.

The reactor asks once per request, for the partitions that are not in the transaction yet
(_native/serving/produce_gate). `server/transaction_gate` finds the coordinator. This module translates
between the two.

Source: Kafka's ReplicaManager.handleProduceAppend."""

from collections.abc import Callable, Sequence
from typing import Protocol

from kafkad.coordinator.admission import PRODUCE_ADDS_FROM, UNREACHED, produce_error
from kafkad.coordinator.transaction import TopicPartition
from kafkad.protocol import errors

Answers = Sequence[tuple[int, str | None]]  # an error code and a message for each partition
Gate = Callable[[str, int, int, int, list[TopicPartition], Callable[[Answers], object]], object]

NOT_ADDED = "Partition was not added to the transaction"
NOT_VERIFIED = "Unable to verify the partition has been added to the transaction. Underlying error: "


class WideGate(Protocol):
    """The part of server.TransactionGate that Produce needs."""

    def admit_all(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
        done: Callable[[Sequence[int]], object],
    ) -> None: ...


def produce_gate(gate: WideGate) -> Gate:
    """Return the gate for `Reactor.serve_transactions`."""

    def ask(
        transactional_id: str,
        producer_id: int,
        epoch: int,
        version: int,
        partitions: list[TopicPartition],
        done: Callable[[Answers], object],
    ) -> None:
        def answered(codes: Sequence[int]) -> None:
            done([answer_of(code, version) for code in codes])

        adds = version >= PRODUCE_ADDS_FROM
        gate.admit_all(transactional_id, producer_id, epoch, partitions, adds=adds, done=answered)

    return ask


def answer_of(code: int, version: int) -> tuple[int, str | None]:
    """Return a coordinator's answer about one partition, for a client of this version of Produce."""
    told = produce_error(code, version)
    if told == errors.INVALID_TXN_STATE:
        return told, NOT_ADDED
    if told != code and (code in UNREACHED or code == errors.CONCURRENT_TRANSACTIONS):
        return told, NOT_VERIFIED + errors.NAMES[code]
    return told, None
