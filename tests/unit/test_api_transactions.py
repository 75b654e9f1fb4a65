"""The transaction APIs over their wire forms: every version from the lowest to the highest of the schemas."""

import asyncio
import inspect
from types import SimpleNamespace

import pytest
from coordinator_world import World
from transaction_world import ID, TransactionWorld

from kafkad.api import producer_ids, transactions
from kafkad.api.context import RequestContext
from kafkad.coordinator.runtime import at_once
from kafkad.coordinator.transaction import State
from kafkad.protocol import codec, errors, messages

NONE = errors.NONE
FENCED, OLD_FENCED = errors.PRODUCER_FENCED, errors.INVALID_PRODUCER_EPOCH
HANDLERS = {
    "InitProducerId": producer_ids.init_producer_id,
    "AddPartitionsToTxn": transactions.add_partitions_to_txn,
    "AddOffsetsToTxn": transactions.add_offsets_to_txn,
    "EndTxn": transactions.end_txn,
    "TxnOffsetCommit": transactions.txn_offset_commit,
    "DescribeTransactions": transactions.describe_transactions,
    "ListTransactions": transactions.list_transactions,
}


class Gate:
    code = NONE

    def admit(self, *_, adds, done):
        done(self.code)


class Handlers:
    """The services that these handlers use, with one topic `t` of four partitions."""

    def __init__(self):
        self.world = TransactionWorld()
        self.groups = World()
        self.gate = Gate()
        topics = {"t": SimpleNamespace(partitions=dict.fromkeys(range(4)))}
        self.services = SimpleNamespace(
            config=self.groups.config,
            groups=self.groups.coordinator,
            transactions=self.world.coordinator,
            transaction_gate=self.gate,
            producer_ids=SimpleNamespace(coming=lambda: None),
            metadata=SimpleNamespace(image=SimpleNamespace(topics=topics)),
        )

    def call(self, name, version, **fields):
        """Through the wire forms of both directions."""
        return asyncio.run(self.ask(name, version, **fields))

    async def ask(self, name, version, meanwhile=lambda: None, **fields):
        request = getattr(messages, f"{name}Request")(**fields)
        _, request = codec.decode_request(codec.encode_request(request, version, 7, "client"))
        context = RequestContext(request.API_KEY, version, 7, "client", "127.0.0.1", "PLAINTEXT", None)
        response = HANDLERS[name](self.services, context, request)
        while inspect.isgenerator(response) or inspect.isawaitable(response):
            if inspect.isgenerator(response):
                response = at_once(response)
            else:
                meanwhile()
                response = await response
        frame = codec.encode_response(response, version, 7)
        _, response = codec.decode_response(getattr(messages, f"{name}Response"), version, frame)
        return response

    def init(self, version=5, **fields):
        response = self.call(
            "InitProducerId", version, transactional_id=ID, transaction_timeout_ms=9_000, **fields
        )
        return response.error_code, response.producer_id, response.producer_epoch

    def add(self, version, who, *indexes, topic="t", **fields):
        Asked = messages.AddPartitionsToTxnRequest
        producer_id, epoch = who
        if version < 4:
            topics = [Asked.V3AndBelowTopics(name=topic, partitions=list(indexes))]
            fields = {
                "v3_and_below_transactional_id": ID,
                "v3_and_below_producer_id": producer_id,
                "v3_and_below_producer_epoch": epoch,
                "v3_and_below_topics": topics,
            }
        else:
            topics = [Asked.Transactions.Topics(name=topic, partitions=list(indexes))]
            one = Asked.Transactions(
                transactional_id=ID, producer_id=producer_id, producer_epoch=epoch, topics=topics, **fields
            )
            fields = {"transactions": [one]}
        response = self.call("AddPartitionsToTxn", version, **fields)
        results = response.results_by_topic_v3_and_below
        if version >= 4:
            assert response.error_code == NONE
            (result,) = response.results_by_transaction
            assert result.transactional_id == ID
            results = result.topic_results
        (topic,) = results
        return {each.partition_index: each.partition_error_code for each in topic.results_by_partition}

    def end(self, version, who, commit=True):
        producer_id, epoch = who
        response = self.call(
            "EndTxn",
            version,
            transactional_id=ID,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
        )
        return response.error_code, response.producer_id, response.producer_epoch


@pytest.fixture
def api():
    return Handlers()


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id(api, version):
    assert api.init(version) == (NONE, 1000, 0)
    assert api.init(version) == (NONE, 1000, 1)
    if version >= 3:
        assert api.init(version, producer_id=1000, producer_epoch=1) == (NONE, 1000, 2)
        fenced = FENCED if version >= 4 else OLD_FENCED
        assert api.init(version, producer_id=1000, producer_epoch=0) == (fenced, -1, -1)
        assert api.init(version, producer_id=1000) == (errors.INVALID_REQUEST, -1, -1)


@pytest.mark.parametrize("version", range(6))
def test_add_partitions(api, version):
    _, *who = api.init()
    assert api.add(version, who, 0, 3) == {0: NONE, 3: NONE}
    assert api.world.transaction().client_version == (2 if version >= 4 else 0)
    fenced = FENCED if version >= 2 else OLD_FENCED
    assert api.add(version, (who[0], 9), 0, 1) == {0: fenced, 1: fenced}


@pytest.mark.parametrize("version", range(6))
def test_a_partition_that_does_not_exist_fails_all_of_its_transaction(api, version):
    _, *who = api.init()
    unknown, not_tried = errors.UNKNOWN_TOPIC_OR_PARTITION, errors.OPERATION_NOT_ATTEMPTED
    assert api.add(version, who, 0, 4, 1) == {0: not_tried, 4: unknown, 1: not_tried}
    assert api.add(version, who, 0, topic="nowhere") == {0: unknown}
    assert api.world.state is State.EMPTY


@pytest.mark.parametrize("version", [0, 3, 5])
def test_many_unknown_partitions_are_told_in_steps(api, version):
    """The answer about 200,000 of them took 0.15 s in one go."""
    Asked, indexes = messages.AddPartitionsToTxnRequest, list(range(20_000))
    if version < 4:
        request = Asked(v3_and_below_topics=[Asked.V3AndBelowTopics(name="t", partitions=indexes)])
    else:
        topics = [Asked.Transactions.Topics(name="t", partitions=indexes)]
        request = Asked(transactions=[Asked.Transactions(topics=topics)])
    context = RequestContext(request.API_KEY, version, 7, "client", "127.0.0.1", "PLAINTEXT", None)
    steps = transactions.add_partitions_to_txn(api.services, context, request)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            response = end.value
            break
        count += 1
    assert count >= 2 * (len(indexes) // transactions.AT_ONCE)  # to look for each, and to tell of each
    topics = response.results_by_topic_v3_and_below
    if version >= 4:
        topics = response.results_by_transaction[0].topic_results
    told = [each.partition_error_code for each in topics[0].results_by_partition]
    unknown, not_tried = errors.UNKNOWN_TOPIC_OR_PARTITION, errors.OPERATION_NOT_ATTEMPTED
    assert told == [not_tried] * 4 + [unknown] * (len(indexes) - 4)


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_ask_whether_partitions_are_in_the_transaction(api, version):
    _, *who = api.init()
    api.add(3, who, 0)
    expected = {0: NONE, 1: errors.TRANSACTION_ABORTABLE}
    assert api.add(version, who, 0, 1, verify_only=True) == expected


def test_several_transactions_are_answered_each_by_itself_in_their_order(api):
    _, *who = api.init()
    Asked = messages.AddPartitionsToTxnRequest.Transactions
    topics = [Asked.Topics(name="t", partitions=[0])]
    asked = [
        Asked(transactional_id=name, producer_id=who[0], producer_epoch=who[1], topics=topics)
        for name in ("unknown", ID)
    ]
    response = api.call("AddPartitionsToTxn", 5, transactions=asked)
    found = {
        result.transactional_id: result.topic_results[0].results_by_partition[0].partition_error_code
        for result in response.results_by_transaction
    }
    assert list(found.items()) == [("unknown", errors.INVALID_PRODUCER_ID_MAPPING), (ID, NONE)]
    assert api.call("AddPartitionsToTxn", 5, transactions=[]).results_by_transaction == []


@pytest.mark.parametrize("version", range(5))
def test_add_offsets_adds_the_partition_of_the_group(api, version):
    _, producer_id, epoch = api.init()
    fields = {"transactional_id": ID, "producer_id": producer_id, "group_id": "g"}
    assert api.call("AddOffsetsToTxn", version, producer_epoch=epoch, **fields).error_code == NONE
    partition = "__consumer_offsets", api.services.groups.partition_for("g")
    assert api.world.transaction().partitions == {partition}
    fenced = FENCED if version >= 2 else OLD_FENCED
    assert api.call("AddOffsetsToTxn", version, producer_epoch=7, **fields).error_code == fenced


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False])
def test_end(api, version, commit):
    _, *who = api.init()
    api.add(5 if version >= 5 else 3, who, 0)
    told = (who[0], 1) if version >= 5 else (-1, -1)
    assert api.end(version, who, commit) == (NONE, *told)
    assert api.world.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    fenced = FENCED if version >= 2 else OLD_FENCED
    assert api.end(version, (who[0], 9), commit)[0] == fenced


def test_an_answer_that_has_to_wait_comes_when_the_log_has_it(api):
    _, producer_id, epoch = api.init()
    api.add(3, (producer_id, epoch), 0)
    api.world.storage.hold()
    fields = {"transactional_id": ID, "producer_id": producer_id, "producer_epoch": epoch}
    answer = asyncio.run(api.ask("EndTxn", 4, api.world.storage.release, committed=True, **fields))
    assert answer.error_code == NONE


# -- TxnOffsetCommit


def commit(api, version, *indexes, topic="t", **fields):
    Topic = messages.TxnOffsetCommitRequest.Topics
    partitions = [Topic.Partitions(partition_index=index, committed_offset=5) for index in indexes]
    response = api.call(
        "TxnOffsetCommit",
        version,
        transactional_id=ID,
        group_id="g",
        producer_id=1,
        producer_epoch=0,
        topics=[Topic(name=topic, partitions=partitions)],
        **fields,
    )
    (topic,) = response.topics
    return {each.partition_index: each.error_code for each in topic.partitions}


@pytest.mark.parametrize("version", range(6))
def test_commits_of_partitions_that_exist_go_on_without_the_others(api, version):
    unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(api, version, 0, 9) == {0: NONE, 9: unknown}
    assert commit(api, version, 9) == {9: unknown}
    assert commit(api, version, 0, topic="nowhere") == {0: unknown}
    assert api.groups.shard.offsets.is_unstable(("g", "t", 0))


@pytest.mark.parametrize("version", range(6))
def test_clients_of_old_versions_do_not_hear_that_groups_are_loading(api, version):
    api.groups.coordinator.begin_load(api.groups.shard.index)
    known = errors.COORDINATOR_LOAD_IN_PROGRESS if version >= 2 else errors.COORDINATOR_NOT_AVAILABLE
    assert commit(api, version, 0) == {0: known}


@pytest.mark.parametrize("version", range(6))
def test_the_transactions_coordinator_may_refuse_a_commit(api, version):
    api.gate.code = errors.TRANSACTION_ABORTABLE
    code = errors.TRANSACTION_ABORTABLE if version >= 4 else errors.INVALID_TXN_STATE
    assert commit(api, version, 0) == {0: code}


# -- administration


def test_describe_answers_each_id_by_itself(api):
    _, *who = api.init()
    api.add(3, who, 2)
    response = api.call("DescribeTransactions", 0, transactional_ids=[ID, "other", ""])
    found = [(each.transactional_id, each.error_code) for each in response.transaction_states]
    assert found == [
        (ID, NONE),
        ("other", errors.TRANSACTIONAL_ID_NOT_FOUND),
        ("", errors.INVALID_REQUEST),
    ]
    assert response.transaction_states[0].transaction_state == "Ongoing"


def listed(api, version, **fields):
    response = api.call("ListTransactions", version, **fields)
    return response.error_code, sorted(each.transactional_id for each in response.transaction_states)


@pytest.mark.parametrize("version", range(3))
def test_list(api, version):
    api.world.init("one")
    api.world.began(name="two")
    assert listed(api, version) == (NONE, ["one", "two"])
    assert listed(api, version, state_filters=["Ongoing"]) == (NONE, ["two"])
    assert listed(api, version, producer_id_filters=[1000]) == (NONE, ["one"])
    if version >= 1:
        assert listed(api, version, duration_filter=60_000) == (NONE, ["one"])


def test_list_by_pattern_matches_whole_ids(api):
    api.world.init("one")
    api.world.init("one-more")
    assert listed(api, 2, transactional_id_pattern="one") == (NONE, ["one"])
    assert listed(api, 2, transactional_id_pattern="o.*") == (NONE, ["one", "one-more"])
    assert listed(api, 2, transactional_id_pattern="") == (NONE, ["one", "one-more"])
    for wrong in ("(", "(?=a)", "(a)\\1"):
        assert listed(api, 2, transactional_id_pattern=wrong) == (errors.INVALID_REGULAR_EXPRESSION, [])


def test_list_by_pattern_without_re2_is_refused_with_the_packages_name(api, monkeypatch, caplog):
    monkeypatch.setattr(transactions, "re2", None)
    transactions._warn_of_re2.cache_clear()
    for _ in range(3):  # any client may ask: its requests must not fill the log
        assert listed(api, 2, transactional_id_pattern="a") == (errors.INVALID_REGULAR_EXPRESSION, [])
    assert caplog.text.count("google-re2") == 1
    assert listed(api, 2) == (NONE, [])
