"""Transactions for tests/differential.py: producers that begin, write, commit offsets, end and are fenced.

A seed makes the requests, right and wrong ones. Kafka writes markers after it has answered, and answers
CONCURRENT_TRANSACTIONS to whom comes before that; kafkad lets them wait. So after each request that ends a
transaction the run waits until no transaction is ending, and an InitProducerId that Kafka sends away is asked
again. Both then are in one state, and everything else must be equal: codes, epochs, offsets, what readers at
both isolation levels see, and what is described."""

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

from kafkad.api.table import ROWS
from kafkad.protocol import errors, messages, records
from tests.differential import KAFKA_4_FROM, Request, Run, Side, Symbol, edges

SERVED = {row.key: (row.low, row.high) for row in ROWS}
APIS = {
    "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit", "DescribeTransactions",
    "ListTransactions", "WriteTxnMarkers",
}  # fmt: skip
PARTITIONS = 2
SECONDS = 20.0
TIMEOUT_MS = 900_000  # no transaction of a run may time out
INT16, INT32 = 1 << 15, 1 << 31
STRANGER = "nobody"  # a transactional id that is seldom used
ENDING = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
WEIGHTS = {
    "init": 3, "add": 5, "verify": 2, "add_offsets": 2, "produce": 14, "commit_offsets": 5, "end": 7,
    "describe": 2, "list": 1, "fetch": 5, "list_offsets": 3, "fetch_offsets": 3, "describe_producers": 3,
    "markers": 2, "find": 1,
}  # fmt: skip


class Transactions:
    """The transactional ids of one run. `highest`: by API key the newest version of an older Kafka."""

    def __init__(self, run: Run, seed: int, highest: dict[int, int] | None = None) -> None:
        self.run = run
        self.highest = highest or {}
        # Kafka 3.9 takes a batch of a higher epoch into an open transaction, which then never ends, and a
        # TxnOffsetCommit that it refuses drops the one before it.
        self.is_older = highest is not None
        self.rng = random.Random(seed)
        self.ids = [f"x{seed}-{number}" for number in range(3)]
        self.topics = [f"tx{seed}-{number}" for number in range(2)]
        self.group = f"txg{seed}"
        self.sequences: dict[tuple[str, str, int], int] = {}
        self.lasts: dict[tuple[str, str, int], int] = {}  # of the open transaction: records of its last batch
        self.epochs: dict[str, Any] = {}

    def prepare(self) -> None:
        cls = messages.CreateTopicsRequest.Topics
        topics = [cls(name=name, num_partitions=PARTITIONS, replication_factor=1) for name in self.topics]
        self.run.step(
            Request(messages.CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7, changes="topics")
        )
        for side, name in itertools.product(self.run.sides, self.ids):
            find = messages.FindCoordinatorRequest(key=name, key_type=1)
            describe = messages.DescribeTransactionsRequest(transactional_ids=[name])
            _until(lambda side=side, find=find: side.ask(find, 2).error_code == 0)  # type: ignore[misc]
            _until(
                lambda side=side, describe=describe: (  # type: ignore[misc]
                    side.ask(describe, 0).transaction_states[0].error_code
                    == errors.TRANSACTIONAL_ID_NOT_FOUND
                )
            )
        for side in self.run.sides:
            _until(lambda side=side: self._leads(side))  # type: ignore[misc]
            _until(lambda side=side: self._coordinates(side))  # type: ignore[misc]

    def _leads(self, side: Side) -> bool:
        """Whether the broker leads all partitions. On a busy machine, Kafka's metadata may say so long
        before."""
        cls = messages.ListOffsetsRequest
        parts = [cls.Topics.Partitions(partition_index=index, timestamp=-1) for index in range(PARTITIONS)]
        topics = [cls.Topics(name=name, partitions=parts) for name in self.topics]
        found = side.ask(cls(replica_id=-1, topics=topics), 6).topics
        return not any(part.error_code for topic in found for part in topic.partitions)

    def _coordinates(self, side: Side) -> bool:
        """Whether the broker has loaded the group; to ask for its coordinator makes the topic of offsets."""
        if side.ask(messages.FindCoordinatorRequest(key=self.group, key_type=0), 2).error_code:
            return False
        return not side.ask(messages.OffsetFetchRequest(group_id=self.group, topics=[]), 5).error_code

    def steps(self, count: int) -> None:
        names, weights = list(WEIGHTS), list(WEIGHTS.values())
        for _ in range(count):
            getattr(self, self.rng.choices(names, weights)[0])()
            for name in self.ids:  # in a new epoch, sequences begin again
                epoch = self.run.kafkad.known.get(("txn epoch", name))
                if epoch != self.epochs.get(name):
                    self.epochs[name] = epoch
                    self.sequences = {place: due for place, due in self.sequences.items() if place[0] != name}

    # -- asking

    def version(self, key: int, low: int = 0) -> int:
        lowest, highest = SERVED[key]
        return self.rng.randint(
            max(lowest, low, KAFKA_4_FROM.get(key, 0)), min(highest, self.highest.get(key, highest))
        )

    def send(self, message: Any, version: int, capture: Callable[[Side, Any], None] | None = None) -> None:
        self.run.step(Request(message, version, capture=capture))

    def settle(self) -> None:
        """Until all markers are written."""
        request = messages.DescribeTransactionsRequest(transactional_ids=[*self.ids, STRANGER])
        for side in self.run.sides:
            deadline = time.monotonic() + SECONDS
            while True:
                found = side.ask(request, 0).transaction_states
                if not ENDING & {each.transaction_state for each in found}:
                    break
                assert time.monotonic() < deadline, f"{side.name} has not ended {found}"
                time.sleep(0.005)

    # -- choices

    def name(self) -> str:
        return edges(self.rng, *self.ids, rare=(STRANGER, ""))  # type: ignore[no-any-return]

    def producer(self, name: str) -> Any:
        other = self.rng.choice(self.ids)
        return edges(
            self.rng, *[Symbol("txn producer", name, 1 << 40)] * 3, rare=(Symbol("txn producer", other, -1),)
        )

    def epoch(self, name: str, *, above: bool = True) -> Any:
        known = Symbol("txn epoch", name, 0)
        rare: tuple[Any, ...] = (Symbol("txn epoch before", name, 0),)
        if above:
            rare = (*rare, Symbol("txn epoch after", name, 7), INT16 - 1)
        return edges(self.rng, *[known] * 4, rare=rare)

    def places(self, most: int = 3) -> list[tuple[str, int]]:
        """Some partitions."""
        every = list(itertools.product(self.topics, range(PARTITIONS)))
        found = self.rng.sample(every, self.rng.randint(1, most))
        return edges(self.rng, found, rare=([*found, (self.topics[0], PARTITIONS + 5)], [("gone", 0)], []))  # type: ignore[no-any-return]

    def wrong_sequences(self, place: tuple[str, str, int], due: int) -> tuple[int, ...]:
        """A gap, and a retry while its transaction is open (docs/differences.md)."""
        return (due + 1, due - self.lasts[place]) if place in self.lasts else (due,)

    # -- the requests

    def init(self) -> None:
        name = self.name()
        version = self.version(22)
        expects = version >= 3 and self.rng.random() < 0.4
        message = messages.InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=edges(self.rng, TIMEOUT_MS, rare=(-1, 0, TIMEOUT_MS + 1)),
            producer_id=self.producer(name) if expects else -1,
            producer_epoch=self.epoch(name) if expects else -1,
        )
        request = Request(message, version)
        answers = []
        for side in self.run.sides:
            answer = side.receive(request, side.send(request))
            for _ in range(500):
                if isinstance(answer, str) or answer.error_code != errors.CONCURRENT_TRANSACTIONS:
                    break
                time.sleep(0.01)
                answer = side.receive(request, side.send(request))
            answers.append(answer)
            if not isinstance(answer, str) and answer.error_code == 0:
                _learn(side, name, answer)
        self.run.result.requests += 1
        count = self.run.result.by_api
        count[request.api, version] = count.get((request.api, version), 0) + 1
        self.run.note(request, self.run.sides, answers)
        self.lasts = {place: count for place, count in self.lasts.items() if place[0] != name}
        self.settle()

    def add(self) -> None:
        self._add(verify_only=False, version=self.version(24))

    def verify(self) -> None:
        self._add(verify_only=True, version=self.version(24, low=4))

    def _add(self, *, verify_only: bool, version: int) -> None:
        cls = messages.AddPartitionsToTxnRequest
        name = self.name()
        places = self.places()
        if version < 4:
            topics = [cls.V3AndBelowTopics(name=topic, partitions=[index]) for topic, index in places]
            message = cls(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=self.producer(name),
                v3_and_below_producer_epoch=self.epoch(name),
                v3_and_below_topics=_together(topics),
            )
        else:
            its = cls.Transactions.Topics
            topics = [its(name=topic, partitions=[index]) for topic, index in places]
            transaction = cls.Transactions(
                transactional_id=name,
                producer_id=self.producer(name),
                producer_epoch=self.epoch(name),
                verify_only=verify_only,
                topics=_together(topics),
            )
            message = cls(transactions=[transaction])
        self.send(message, version)

    def add_offsets(self) -> None:
        name = self.name()
        message = messages.AddOffsetsToTxnRequest(
            transactional_id=name,
            producer_id=self.producer(name),
            producer_epoch=self.epoch(name),
            group_id=self.group,
        )
        self.send(message, self.version(25))

    def produce(self) -> None:
        rng, cls = self.rng, messages.ProduceRequest
        name = rng.choice(self.ids)
        version = self.version(0)
        of = edges(rng, *[name] * 6, rare=(rng.choice(self.ids),))
        epoch = self.epoch(of, above=not self.is_older)
        topics = []
        counts: dict[tuple[str, int], int] = {}
        for topic, index in dict.fromkeys(self.places(2)):
            place = of, topic, index
            due = self.sequences.get(place, 0)
            counts[topic, index] = count = rng.choice((1, 2, 5))
            data = records.build_batch(
                [
                    records.Record(key=None, value=b"t" * 10, timestamp=int(time.time() * 1000))
                    for _ in range(count)
                ],
                producer_id=1,
                producer_epoch=0,
                base_sequence=edges(rng, *[due] * 6, rare=self.wrong_sequences(place, due)),
                transactional=True,
            )
            part = cls.TopicData.PartitionData(
                index=index, records=Symbol("transactional batch", (of, epoch, bytes(data)))
            )
            topics.append(
                cls.TopicData(name=topic, topic_id=Symbol("topic", topic, b"\1" * 16), partition_data=[part])
            )

        def produced(side: Side, response: Any) -> None:
            if side is not self.run.kafkad:
                return
            for topic in response.responses:
                found = topic.name if version < 13 else side.symbols.get(topic.topic_id, "")[7:-1]
                for part in topic.partition_responses:
                    if part.error_code == 0 and (found, part.index) in counts:
                        place = (of, found, part.index)
                        self.sequences[place] = self.sequences.get(place, 0) + counts[found, part.index]
                        self.lasts[place] = counts[found, part.index]

        message = cls(
            transactional_id=edges(rng, *[name] * 8, rare=(None, "")),
            acks=edges(rng, *[-1] * 8, rare=(1,)),
            timeout_ms=5_000,
            topic_data=_of_names(topics),
        )
        self.send(message, version, produced)

    def commit_offsets(self) -> None:
        cls = messages.TxnOffsetCommitRequest
        name = self.name()
        version = self.version(28)
        topics = [
            cls.Topics(
                name=topic,
                partitions=[
                    cls.Topics.Partitions(
                        partition_index=index,
                        committed_offset=self.rng.randrange(100),
                        committed_leader_epoch=edges(self.rng, -1, rare=(0, 5)),
                        committed_metadata=edges(self.rng, "", "m", rare=(None,)),
                    )
                ],
            )
            for topic, index in self.places()
        ]
        message = cls(
            transactional_id=name,
            group_id=edges(self.rng, *[self.group] * 6, rare=("",)),
            producer_id=self.producer(name) if not self.is_older else Symbol("txn producer", name, 1 << 40),
            producer_epoch=self.epoch(name) if not self.is_older else Symbol("txn epoch", name, 0),
            generation_id=edges(self.rng, *[-1] * 6, rare=(4,)),
            member_id=edges(self.rng, *[""] * 6, rare=("nobody",)),
            topics=_together(topics),
        )
        self.send(message, version)

    def end(self) -> None:
        name = self.name()
        version = self.version(26)
        message = messages.EndTxnRequest(
            transactional_id=name,
            producer_id=self.producer(name),
            producer_epoch=self.epoch(name),
            committed=self.rng.random() < 0.5,
        )

        def ended(side: Side, response: Any) -> None:
            if version >= 5 and response.error_code == 0:
                _learn(side, name, response)

        self.send(message, version, ended)
        self.lasts = {place: count for place, count in self.lasts.items() if place[0] != name}
        self.settle()

    def markers(self) -> None:
        """By hand, as `kafka-transactions abort` writes them: also where nothing is open, in an old epoch,
        and of an old coordinator. None is of an epoch, or a coordinator, to come: then the coordinator's own
        markers would be refused, and the transaction would never end."""
        rng, cls = self.rng, messages.WriteTxnMarkersRequest
        name, version = self.name(), self.version(27)
        topics: dict[str, Any] = {}
        for topic, index in self.places():
            topics.setdefault(topic, cls.Markers.Topics(name=topic)).partition_indexes.append(index)
        epoch = self.epoch(name, above=False)
        if self.run.kafkad.known.get(("txn epoch before", name), -1) < 0:  # see docs/differences.md
            epoch = Symbol("txn epoch", name, 0)
        marker = cls.Markers(
            producer_id=Symbol("txn producer", name, 1 << 40),
            producer_epoch=epoch,
            transaction_result=rng.random() < 0.3,
            topics=list(topics.values()),
            coordinator_epoch=edges(rng, *[0] * 4, rare=(-1,)),
        )
        if version >= 2:
            marker.transaction_version = rng.choice((0, 1, 2))
        self.send(cls(markers=[marker]), version)
        self.lasts = {}

    def find(self) -> None:
        version = self.version(10, 1)
        message = messages.FindCoordinatorRequest(key_type=1)
        if version >= 4:
            message.coordinator_keys = [self.name() for _ in range(self.rng.randint(0, 3))]
        else:
            message.key = self.name()
        self.send(message, version)

    def describe(self) -> None:
        asked = self.rng.sample([*self.ids, STRANGER], self.rng.randint(0, 4))
        self.send(messages.DescribeTransactionsRequest(transactional_ids=asked), 0)

    def list(self) -> None:
        rng = self.rng
        version = self.version(66)
        message = messages.ListTransactionsRequest(
            state_filters=rng.choice(([], ["Ongoing"], ["Empty", "Dead"], ["CompleteCommit", "Nonsense"])),
            producer_id_filters=rng.choice(([], [Symbol("txn producer", rng.choice(self.ids), 5)])),
            duration_filter=rng.choice((-1, 800_000)) if version >= 1 else -1,
            transactional_id_pattern=rng.choice((None, "", "x.*", "nobody", "x[")) if version >= 2 else None,
        )
        self.send(message, version)

    def fetch(self) -> None:
        rng, cls = self.rng, messages.FetchRequest
        topics = [
            cls.Topics(
                topic=topic,
                topic_id=Symbol("topic", topic, b"\1" * 16),
                partitions=[
                    cls.Topics.Partitions(
                        partition=index, fetch_offset=rng.choice((0, 0, 3, 10)), partition_max_bytes=1 << 20
                    )
                ],
            )
            for topic in self.topics
            for index in range(PARTITIONS)
        ]
        message = cls(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 24,
            isolation_level=rng.choice((0, 1)),
            session_epoch=-1,
            topics=_together(topics),
        )
        self.send(message, self.version(1))

    def list_offsets(self) -> None:
        cls = messages.ListOffsetsRequest
        version = self.version(2, low=2)
        topics = [
            cls.Topics(
                name=topic,
                partitions=[
                    cls.Topics.Partitions(partition_index=index, timestamp=self.rng.choice((-1, -2, 0)))
                ],
            )
            for topic in self.topics
            for index in range(PARTITIONS)
        ]
        message = cls(replica_id=-1, isolation_level=self.rng.choice((0, 1)), topics=_together(topics))
        self.send(message, version)

    def fetch_offsets(self) -> None:
        version = self.version(9, low=7)
        message = messages.OffsetFetchRequest(require_stable=self.rng.random() < 0.5)
        if version >= 8:
            message.groups = [messages.OffsetFetchRequest.Groups(group_id=self.group, topics=None)]
        else:
            message.group_id, message.topics = self.group, None
        self.send(message, version)

    def describe_producers(self) -> None:
        cls = messages.DescribeProducersRequest.Topics
        topics = [cls(name=topic, partition_indexes=list(range(PARTITIONS))) for topic in self.topics]
        self.send(messages.DescribeProducersRequest(topics=topics), 0)


def _learn(side: Side, name: str, answer: Any) -> None:
    """A new producer id or epoch."""
    side.learn("txn producer", name, answer.producer_id)
    side.known["txn epoch", name] = answer.producer_epoch
    side.known["txn epoch before", name] = answer.producer_epoch - 1
    side.known["txn epoch after", name] = answer.producer_epoch + 1


def _together(topics: list[Any]) -> list[Any]:
    """Each topic once, with all of its partitions."""
    found: dict[str, Any] = {}
    for each in topics:
        name = each.name if hasattr(each, "name") else each.topic
        known = found.setdefault(name, each)
        if known is not each:
            known.partitions += each.partitions
    return list(found.values())


def _of_names(topics: list[Any]) -> list[Any]:
    found: dict[str, Any] = {}
    for each in topics:
        known = found.setdefault(each.name, each)
        if known is not each:
            known.partition_data += each.partition_data
    return list(found.values())


def _until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < deadline, "a broker did not get ready"
        time.sleep(0.005)
