"""The APIs of transactions at every version (see test_apis.py)."""

import time

import pytest

from kafkad.protocol import errors, messages
from tests.api_calls import api_broker as api_broker
from tests.api_calls import api_wire as api_wire
from tests.api_calls import every_version, filled, fresh, ready_coordinator, ready_transactions
from tests.wire import Wire

pytestmark = pytest.mark.workers(2, 4)


def transactional_id(wire: Wire) -> tuple[str, int, int]:
    """(transactional id, producer id, epoch) of a new producer."""
    name = fresh("id")
    ready_transactions(wire, name)
    request = messages.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    begun = wire.ask(request, 4)
    assert begun.error_code == 0
    return name, begun.producer_id, begun.producer_epoch


def add_partitions(wire: Wire, version: int, who: tuple[str, int, int], topic: str, *indexes: int):
    cls = messages.AddPartitionsToTxnRequest
    name, producer_id, epoch = who
    if version < 4:
        request = cls(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[cls.V3AndBelowTopics(name=topic, partitions=list(indexes))],
        )
        (answer,) = wire.ask(request, version).results_by_topic_v3_and_below
    else:
        its = cls.Transactions(transactional_id=name, producer_id=producer_id, producer_epoch=epoch)
        its.topics = [cls.Transactions.Topics(name=topic, partitions=list(indexes))]
        (result,) = wire.ask(cls(transactions=[its]), version).results_by_transaction
        assert result.transactional_id == name
        (answer,) = result.topic_results
    assert answer.name == topic
    return {each.partition_index: each.partition_error_code for each in answer.results_by_partition}


def state_of(wire: Wire, name: str) -> str:
    request = messages.DescribeTransactionsRequest(transactional_ids=[name])
    return wire.ask(request, 0).transaction_states[0].transaction_state


def until_state(wire: Wire, name: str, wanted: str) -> None:
    """Markers are written after the answer."""
    for _ in range(200):
        if state_of(wire, name) == wanted:
            return
        time.sleep(0.02)
    raise AssertionError(state_of(wire, name))


def end_transaction(wire: Wire, version: int, who: tuple[str, int, int], *, commit: bool):
    name, producer_id, epoch = who
    return wire.ask(
        messages.EndTxnRequest(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=commit
        ),
        version,
    )


@every_version("AddPartitionsToTxn")
def test_add_partitions_to_txn(wire, version):
    topic, _ = filled(wire, 1)
    who = transactional_id(wire)
    unknown, left_out = errors.UNKNOWN_TOPIC_OR_PARTITION, errors.OPERATION_NOT_ATTEMPTED
    assert add_partitions(wire, version, who, topic, 0, 9) == {0: left_out, 9: unknown}
    assert state_of(wire, who[0]) == "Empty"
    fenced = errors.PRODUCER_FENCED if version >= 2 else errors.INVALID_PRODUCER_EPOCH
    assert add_partitions(wire, version, (who[0], who[1], 7), topic, 0) == {0: fenced}
    assert add_partitions(wire, version, who, topic, 0) == {0: 0}
    assert state_of(wire, who[0]) == "Ongoing"


@every_version("AddOffsetsToTxn")
def test_add_offsets_to_txn(wire, version):
    who = name, producer_id, epoch = transactional_id(wire)
    ready_coordinator(wire, "g")
    request = messages.AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id="g"
    )
    assert wire.ask(request, version).error_code == 0
    assert state_of(wire, name) == "Ongoing"
    assert end_transaction(wire, 3, who, commit=False).error_code == 0
    until_state(wire, name, "CompleteAbort")


@every_version("EndTxn")
@pytest.mark.parametrize("commit", [True, False])
def test_end_txn(wire, version, commit):
    topic, _ = filled(wire, 1)
    who = name, producer_id, epoch = transactional_id(wire)
    assert end_transaction(wire, version, who, commit=True).error_code == errors.INVALID_TXN_STATE
    assert add_partitions(wire, 3, who, topic, 0) == {0: 0}
    ended = end_transaction(wire, version, who, commit=commit)
    assert ended.error_code == 0
    if version >= 5:
        assert (ended.producer_id, ended.producer_epoch) == (producer_id, epoch + 1)
    until_state(wire, name, "CompleteCommit" if commit else "CompleteAbort")


@every_version("TxnOffsetCommit")
def test_txn_offset_commit(wire, version):
    """The offset counts once the transaction is committed."""
    topic, _ = filled(wire, 1)
    group = fresh("group")
    ready_coordinator(wire, group)
    who = name, producer_id, epoch = transactional_id(wire)
    if version < 5:
        asked = messages.AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id=group
        )
        assert wire.ask(asked, 3).error_code == 0
    cls = messages.TxnOffsetCommitRequest
    part = cls.Topics.Partitions(partition_index=0, committed_offset=41)
    request = cls(
        transactional_id=name, group_id=group, producer_id=producer_id, producer_epoch=epoch,
        topics=[cls.Topics(name=topic, partitions=[part])],
    )  # fmt: skip
    (answer,) = wire.ask(request, version).topics
    assert (answer.name, answer.partitions[0].error_code) == (topic, 0)

    def fetched(*, require_stable):
        struct = messages.OffsetFetchRequest.Groups
        asked = struct(group_id=group, topics=[struct.Topics(name=topic, partition_indexes=[0])])
        asking = messages.OffsetFetchRequest(groups=[asked], require_stable=require_stable)
        found = wire.ask(asking, 8).groups[0].topics[0].partitions[0]
        return found.error_code, found.committed_offset

    assert fetched(require_stable=False) == (0, -1)
    assert fetched(require_stable=True) == (errors.UNSTABLE_OFFSET_COMMIT, -1)
    assert end_transaction(wire, 5 if version >= 5 else 3, who, commit=True).error_code == 0
    until_state(wire, name, "CompleteCommit")
    assert fetched(require_stable=True) == (0, 41)


@every_version("DescribeTransactions")
def test_describe_transactions(wire, version):
    topic, _ = filled(wire, 1)
    who = name, producer_id, epoch = transactional_id(wire)
    assert add_partitions(wire, 3, who, topic, 0) == {0: 0}
    request = messages.DescribeTransactionsRequest(transactional_ids=[name, fresh("id")])
    known, unknown = wire.ask(request, version).transaction_states
    assert (known.transaction_state, known.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert (known.producer_id, known.producer_epoch) == (producer_id, epoch)
    assert abs(known.transaction_start_time_ms - time.time() * 1000) < 60_000
    assert [(each.topic, each.partitions) for each in known.topics] == [(topic, [0])]
    assert unknown.error_code == errors.TRANSACTIONAL_ID_NOT_FOUND


@every_version("ListTransactions")
def test_list_transactions(wire, version):
    name, producer_id, _ = transactional_id(wire)
    request = messages.ListTransactionsRequest(
        producer_id_filters=[producer_id], state_filters=["Empty", "No such"]
    )
    answer = wire.ask(request, version)
    assert (answer.error_code, answer.unknown_state_filters) == (0, ["No such"])
    (state,) = answer.transaction_states
    assert (state.transactional_id, state.producer_id, state.transaction_state) == (
        name,
        producer_id,
        "Empty",
    )
    if version >= 2:
        request.transactional_id_pattern = name[:-1] + "."
        assert len(wire.ask(request, version).transaction_states) == 1
        request.transactional_id_pattern = name[:-1]
        assert wire.ask(request, version).transaction_states == []
