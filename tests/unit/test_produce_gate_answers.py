"""What a coordinator's answers become for clients of Produce."""

import pytest

from kafkad.protocol import errors
from kafkad.server.produce_gate import answer_of, produce_gate

NOT_ADDED = "Partition was not added to the transaction"
NOT_VERIFIED = "Unable to verify the partition has been added to the transaction. Underlying error: "


class Coordinator:
    def __init__(self, *codes):
        self.codes = codes
        self.asked = []

    def admit_all(self, transactional_id, producer_id, epoch, partitions, *, adds, done):
        self.asked.append((transactional_id, producer_id, epoch, partitions, adds))
        done(self.codes)


@pytest.mark.parametrize(("version", "adds"), [(3, False), (11, False), (12, True), (13, True)])
def test_clients_from_v12_on_add_by_producing(version, adds):
    coordinator = Coordinator(0, errors.INVALID_PRODUCER_ID_MAPPING)
    answers = []
    partitions = [("t", 0), ("u", 3)]
    produce_gate(coordinator)("tx", 7, 1, version, partitions, answers.extend)
    assert coordinator.asked == [("tx", 7, 1, partitions, adds)]
    assert answers == [(0, None), (errors.INVALID_PRODUCER_ID_MAPPING, None)]


@pytest.mark.parametrize(
    ("code", "version", "told", "message"),
    [
        (errors.NONE, 9, errors.NONE, None),
        (errors.PRODUCER_FENCED, 9, errors.INVALID_PRODUCER_EPOCH, None),
        (errors.INVALID_PRODUCER_EPOCH, 12, errors.INVALID_PRODUCER_EPOCH, None),
        (errors.INVALID_TXN_STATE, 12, errors.INVALID_TXN_STATE, NOT_ADDED),
        (errors.TRANSACTION_ABORTABLE, 10, errors.INVALID_TXN_STATE, NOT_ADDED),
        (errors.TRANSACTION_ABORTABLE, 11, errors.TRANSACTION_ABORTABLE, None),
        (errors.NETWORK_EXCEPTION, 9, errors.NOT_ENOUGH_REPLICAS, NOT_VERIFIED + "NETWORK_EXCEPTION"),
        (errors.NOT_COORDINATOR, 12, errors.NOT_ENOUGH_REPLICAS, NOT_VERIFIED + "NOT_COORDINATOR"),
        (errors.COORDINATOR_NOT_AVAILABLE, 3, errors.NOT_ENOUGH_REPLICAS,
         NOT_VERIFIED + "COORDINATOR_NOT_AVAILABLE"),
        (errors.COORDINATOR_LOAD_IN_PROGRESS, 13, errors.NOT_ENOUGH_REPLICAS,
         NOT_VERIFIED + "COORDINATOR_LOAD_IN_PROGRESS"),
        (errors.CONCURRENT_TRANSACTIONS, 11, errors.NOT_ENOUGH_REPLICAS,
         NOT_VERIFIED + "CONCURRENT_TRANSACTIONS"),
        (errors.CONCURRENT_TRANSACTIONS, 12, errors.CONCURRENT_TRANSACTIONS, None),
    ],
)  # fmt: skip
def test_errors_by_version(code, version, told, message):
    assert answer_of(code, version) == (told, message)
