"""Ask a transaction's coordinator whether a client may write, and translate its answer for the client.

The first batch of a transaction in a partition needs the coordinator's permission (log/admission.py). A
client of Produce or TxnOffsetCommit did not send a request to the coordinator itself, and older clients do
not know all of its errors.

Source: Kafka's AddPartitionsToTxnManager, ReplicaManager.handleProduceAppend and
CoordinatorOperationExceptionHelper; KIP-890, KIP-1050."""

from collections.abc import Callable
from typing import Protocol

from kafkad.coordinator.transaction import TopicPartition
from kafkad.protocol import errors

PRODUCE_ADDS_FROM = 12  # Produce: its first batch adds the partition to the transaction
PRODUCE_ABORTABLE_FROM = 11  # Produce: TRANSACTION_ABORTABLE is known
COMMIT_ADDS_FROM = 5  # TxnOffsetCommit
COMMIT_ABORTABLE_FROM = 4

UNREACHED = frozenset(
    {
        errors.NETWORK_EXCEPTION,
        errors.COORDINATOR_LOAD_IN_PROGRESS,
        errors.COORDINATOR_NOT_AVAILABLE,
        errors.NOT_COORDINATOR,
    }
)


class Gate(Protocol):
    """Access to the coordinator of a transactional id."""

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
        """Ask whether the partition is in the transaction, or add it (`adds`). Call `done(the
        coordinator's error code)` once, NETWORK_EXCEPTION if it cannot be reached; possibly before this
        returns."""


def produce_error(code: int, version: int) -> int:
    """Translate a coordinator's error code for a client of this version of Produce. NOT_ENOUGH_REPLICAS makes
    every client try again without a new Metadata request."""
    code = _of_any(code, knows_abortable=version >= PRODUCE_ABORTABLE_FROM)
    waits = code == errors.CONCURRENT_TRANSACTIONS and version < PRODUCE_ADDS_FROM
    return errors.NOT_ENOUGH_REPLICAS if waits or code in UNREACHED else code


def commit_error(code: int, version: int) -> int:
    """Translate a coordinator's error code for a client of this version of TxnOffsetCommit."""
    code = _of_any(code, knows_abortable=version >= COMMIT_ABORTABLE_FROM)
    return errors.COORDINATOR_LOAD_IN_PROGRESS if code == errors.NETWORK_EXCEPTION else code


def _of_any(code: int, *, knows_abortable: bool) -> int:
    if code == errors.PRODUCER_FENCED:
        return errors.INVALID_PRODUCER_EPOCH
    if code == errors.TRANSACTION_ABORTABLE and not knows_abortable:
        return errors.INVALID_TXN_STATE
    return code
