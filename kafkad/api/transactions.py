"""Transactions, as decided by their coordinator (coordinator/transactions).

AddPartitionsToTxn (key 24), v0-5.   v2 PRODUCER_FENCED. v3 flexible. v4 several transactions, from brokers,
  and checks whether a partition is in one. v5 for clients of transaction.version 2.
AddOffsetsToTxn (key 25), v0-4.   v2 PRODUCER_FENCED. v3 flexible.
EndTxn (key 26), v0-5.   v2 PRODUCER_FENCED. v3 flexible. v5 producer id and epoch of the next transaction
  (KIP-890).
TxnOffsetCommit (key 28), v0-5.   v2 leader epochs. v3 flexible; group metadata (KIP-447). v4
  TRANSACTION_ABORTABLE. v5 adds the group to the transaction by itself.
DescribeTransactions (key 65), v0.
ListTransactions (key 66), v0-2.   v1 by duration. v2 by a regular expression, which needs google-re2.

A partition that does not exist fails the whole request of its transaction: the others get
OPERATION_NOT_ATTEMPTED.
"""

import logging
from collections.abc import Callable, Generator, Iterable
from functools import cache, partial
from typing import Any

from kafkad.api.context import RequestContext, Services, present
from kafkad.api.groups import response_of
from kafkad.protocol import codec, errors, messages, wide
from kafkad.protocol.errors import KafkaError

try:
    import re2
except ImportError:  # the package is optional
    re2 = None

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
AT_ONCE = 64  # partitions per step
FENCED_FROM = 2  # older clients do not know PRODUCER_FENCED: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn
LOADING_FROM = 2  # TxnOffsetCommit: COORDINATOR_LOAD_IN_PROGRESS makes older clients fail
SEVERAL_FROM = 4  # AddPartitionsToTxn
VERSION_2_FROM = 5  # EndTxn
V2 = 2  # transaction.version of a client

Steps = Generator[None, None, Any]
Codes = dict[tuple[str, int], int]  # by topic and partition
Reply = Callable[[Any], object]


def known_fence(code: int, version: int) -> int:
    """Return the code for a client that may be too old to know PRODUCER_FENCED."""
    is_old = code == errors.PRODUCER_FENCED and version < FENCED_FROM
    return errors.INVALID_PRODUCER_EPOCH if is_old else code


# -- AddPartitionsToTxn, AddOffsetsToTxn -------------------------------------------------------------------


def add_partitions_to_txn(services: Services, context: RequestContext, request: Any) -> Steps:
    Asked = messages.AddPartitionsToTxnRequest.Transactions
    version = context.version
    if version < SEVERAL_FROM:
        asked = [
            Asked(
                transactional_id=request.v3_and_below_transactional_id,
                producer_id=request.v3_and_below_producer_id,
                producer_epoch=request.v3_and_below_producer_epoch,
                topics=request.v3_and_below_topics,
            )
        ]
    else:
        asked = request.transactions
    outcomes: list[Codes] = [{}] * len(asked)
    missing = len(asked)
    reply: Reply | None = None

    def answered(place: int, codes: Codes) -> None:
        nonlocal missing
        outcomes[place] = codes
        missing -= 1
        if not missing and reply is not None:
            reply(_response(asked, outcomes, version))

    for place, transaction in enumerate(asked):
        yield
        codes = yield from _unknown_partitions(services, transaction)
        if any(codes.values()):
            answered(place, codes)
            continue
        _ask(services, transaction, list(codes), version, partial(answered, place))
    if not missing:
        return (yield from _response(asked, outcomes, version))

    def start(when_all_are: Reply) -> None:
        nonlocal reply
        reply = when_all_are

    return response_of(start)


def _ask(
    services: Services,
    transaction: Any,
    partitions: list[tuple[str, int]],
    version: int,
    answered: Callable[[Codes], object],
) -> None:
    who = transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
    is_of_others = version >= SEVERAL_FROM  # whose clients would wait, too
    if is_of_others and transaction.verify_only:
        present(services.transactions).verify_partitions(*who, partitions, answered, waits=False)
        return
    client_version = V2 if is_of_others else 0

    def added(code: int) -> None:
        answered(dict.fromkeys(partitions, code))

    present(services.transactions).add_partitions(
        *who, partitions, client_version, added, waits=not is_of_others
    )


def _unknown_partitions(services: Services, transaction: Any) -> Generator[None, None, Codes]:
    """Return UNKNOWN_TOPIC_OR_PARTITION or NONE for each, in the order of the request."""
    topics = services.metadata.image.topics
    codes: Codes = {}
    for topic in transaction.topics:
        found = topics.get(topic.name)
        known: Iterable[int] = () if found is None else found.partitions
        for index in topic.partitions:
            is_known = index in known
            codes[topic.name, index] = errors.NONE if is_known else errors.UNKNOWN_TOPIC_OR_PARTITION
            if len(codes) % AT_ONCE == 0:
                yield
        yield
    return codes


def _response(asked: list[Any], outcomes: list[Codes], version: int) -> Steps:
    """Return AddPartitionsToTxnResponse."""
    results = []
    for number, (transaction, codes) in enumerate(zip(asked, outcomes, strict=True), 1):
        results.append((yield from _result(transaction.transactional_id, codes, version)))
        yield from wide.empty(codes)
        if number % AT_ONCE == 0:
            yield
    yield from wide.empty(outcomes)
    if version < SEVERAL_FROM:
        topics = results[0].topic_results
        return messages.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
    return messages.AddPartitionsToTxnResponse(results_by_transaction=results)


def _result(transactional_id: str, codes: Codes, version: int) -> Steps:
    """Return the result; with an unknown partition, the others were not attempted."""
    Response = messages.AddPartitionsToTxnResponse
    Result = Response.ResultsByTransaction
    Topic: Any = Response.ResultsByTopicV3AndBelow if version < SEVERAL_FROM else Result.TopicResults
    topics: dict[str, Any] = {}
    is_refused = errors.UNKNOWN_TOPIC_OR_PARTITION in codes.values()
    for number, ((name, index), code) in enumerate(codes.items(), 1):
        if name not in topics:
            topics[name] = Topic(name=name)
        if is_refused and not code:
            code = errors.OPERATION_NOT_ATTEMPTED
        topics[name].results_by_partition.append(
            Topic.ResultsByPartition(partition_index=index, partition_error_code=known_fence(code, version))
        )
        if number % AT_ONCE == 0:
            yield
    results = list(topics.values())
    yield from wide.empty(topics)
    return Result(transactional_id=transactional_id, topic_results=results)


def add_offsets_to_txn(services: Services, context: RequestContext, request: Any) -> Any:
    partition = OFFSETS_TOPIC, services.groups.partition_for(request.group_id)

    def start(reply: Reply) -> None:
        def added(code: int) -> None:
            code = known_fence(code, context.version)
            reply(messages.AddOffsetsToTxnResponse(error_code=code))

        present(services.transactions).add_partitions(
            request.transactional_id, request.producer_id, request.producer_epoch, [partition], 0, added
        )

    return response_of(start)


# -- EndTxn ------------------------------------------------------------------------------------------------


def end_txn(services: Services, context: RequestContext, request: Any) -> Any:
    def start(reply: Reply) -> None:
        def ended(code: int, producer_id: int, epoch: int) -> None:
            code = known_fence(code, context.version)
            reply(messages.EndTxnResponse(error_code=code, producer_id=producer_id, producer_epoch=epoch))

        present(services.transactions).end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            V2 if context.version >= VERSION_2_FROM else 0,
            ended,
        )

    return response_of(start)


# -- TxnOffsetCommit ---------------------------------------------------------------------------------------


def txn_offset_commit(services: Services, context: RequestContext, request: Any) -> Steps:
    refused = yield from _take_out_unknown(services.metadata.image, request)
    if not request.topics:
        return messages.TxnOffsetCommitResponse(topics=refused)
    arrived: list[Steps] = []
    reply: Reply | None = None

    def committed(outcome: Any) -> None:
        answer = _commit_answer(context.version, request, outcome, refused)
        if reply is None:
            arrived.append(answer)
        else:
            reply(answer)

    yield from services.groups.commit_in_transaction(
        request,
        context.version,
        present(services.transaction_gate),
        committed,
        verifies=services.config.transaction_partition_verification_enable,
    )
    if arrived:
        return (yield from arrived[0])

    def start(when_it_has: Reply) -> None:
        nonlocal reply
        reply = when_it_has

    return response_of(start)


def _take_out_unknown(image: Any, request: Any) -> Generator[None, None, list[Any]]:
    """Keep the partitions that exist; return the others' part of the response."""
    Answer = messages.TxnOffsetCommitResponse.Topics
    refused: list[Any] = []
    known: list[Any] = []
    for topic in request.topics:
        found = image.topics.get(topic.name)
        indexes: Iterable[int] = () if found is None else found.partitions
        right: list[Any] = []
        wrong: list[Any] = []
        for number, each in enumerate(topic.partitions, 1):
            (right if each.partition_index in indexes else wrong).append(each)
            if number % AT_ONCE == 0:
                yield
        if wrong or found is None:
            code = errors.UNKNOWN_TOPIC_OR_PARTITION
            answer = Answer(name=topic.name)
            for number, each in enumerate(wrong, 1):
                answer.partitions.append(
                    Answer.Partitions(partition_index=each.partition_index, error_code=code)
                )
                if number % AT_ONCE == 0:
                    yield
            refused.append(answer)
        if right:
            before, topic.partitions = topic.partitions, right
            wrong.clear()
            yield from codec.free_in_steps(before)
            known.append(topic)
        yield
    before, request.topics = request.topics, known
    yield from codec.free_in_steps(before)
    return refused


def _commit_answer(version: int, request: Any, outcome: Any, refused: list[Any]) -> Steps:
    """Return the response: `outcome`, or this error code for all of the request, merged with `refused`.
    A topic is listed once, even if only some of its partitions exist."""
    Answer = messages.TxnOffsetCommitResponse.Topics
    if not isinstance(outcome, int):
        response = outcome
    else:
        hides = outcome == errors.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_FROM
        code = errors.COORDINATOR_NOT_AVAILABLE if hides else outcome
        response = messages.TxnOffsetCommitResponse()
        for topic in request.topics:
            answer = Answer(name=topic.name)
            response.topics.append(answer)
            for number, each in enumerate(topic.partitions):
                if number % AT_ONCE == 0:
                    yield
                answer.partitions.append(
                    Answer.Partitions(partition_index=each.partition_index, error_code=code)
                )
    if refused:
        topics = {}
        for number, topic in enumerate(response.topics):
            if number % AT_ONCE == 0:
                yield
            topics[topic.name] = topic
        for number, topic in enumerate(refused):
            if number % AT_ONCE == 0:
                yield
            if topic.name in topics:
                topics[topic.name].partitions.extend(topic.partitions)
            else:
                response.topics.append(topic)
        yield from wide.empty(topics)
    return response


# -- administration ----------------------------------------------------------------------------------------


def describe_transactions(services: Services, context: RequestContext, request: Any) -> Steps:
    response = messages.DescribeTransactionsResponse()
    for transactional_id in request.transactional_ids:
        response.transaction_states.append(present(services.transactions).describe(transactional_id))
        yield
    return response


def list_transactions(services: Services, context: RequestContext, request: Any) -> Steps:
    try:
        matches = _matcher(request.transactional_id_pattern)
    except KafkaError as refused:
        return messages.ListTransactionsResponse(error_code=refused.code)
    return (
        yield from present(services.transactions).list(
            request.state_filters, request.producer_id_filters, request.duration_filter, matches
        )
    )


@cache
def _warn_of_re2() -> None:
    """Log it once: any client may send such requests."""
    logger.warning("ListTransactions with a pattern needs the package google-re2; it is refused")


def _matcher(pattern: str | None) -> Callable[[str], object] | None:
    """Return a function that matches whole transactional ids. RE2 takes linear time, whatever the pattern:
    Java's and Python's expressions can keep a broker busy for ever."""
    if not pattern:
        return None
    if re2 is None:
        _warn_of_re2()
        raise KafkaError(errors.INVALID_REGULAR_EXPRESSION)
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options).fullmatch  # type: ignore[no-any-return]
    except re2.error as wrong:
        raise KafkaError(errors.INVALID_REGULAR_EXPRESSION, str(wrong)) from None
