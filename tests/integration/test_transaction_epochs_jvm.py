"""Transactional ids that a broker finds in its log, beside JVM Kafka 4.3.1: states that a client reaches only
after 32,766 epochs, or when a broker dies between two records.

The same records go into `__transaction_state` of both brokers. Both start again, and get the same requests.
Producer ids are numbered in the order in which an answer first names them."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kafkad.coordinator.runtime import partition_of
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.records import Record, build_batch
from kafkad.testing import Broker
from tests.clients import WAIT_S, wait_until
from tests.jvm import TEST_CONFIG, JvmKafka
from tests.wire import Wire, batch, create_topic, produce_request

pytestmark = pytest.mark.java

STATE, TOPIC, PARTITIONS = "__transaction_state", "data", 8
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
ID, NEXT_ID = 700_000, 800_000  # of the first transactional id; the others count on
MAX = 32_767
TV1, TV2 = 0, 2
RETRIED = {
    errors.CONCURRENT_TRANSACTIONS, errors.COORDINATOR_LOAD_IN_PROGRESS, errors.NOT_COORDINATOR,
    errors.COORDINATOR_NOT_AVAILABLE,
}  # fmt: skip

# what is found (state, epoch, transaction.version of the client), and the steps that follow (see Story)
STORIES = {
    "init up to the end": (EMPTY, 32_763, TV1, "init, init, init, init, init"),
    "init with ids up to the end": (
        EMPTY, 32_763, TV1,
        "init mine, init mine, init mine, init mine, init mine, init mine",
    ),
    "the last epoch by the old protocol": (
        COMPLETE_COMMIT, 32_766, TV1,
        "add 0, write 0, commit 4, commit 4, abort 4, write 0, init mine",
    ),
    "the last epoch, and a new producer": (
        COMPLETE_COMMIT, 32_766, TV1,
        "init, add 0, write 0, commit 4, old, add 0, commit 4, init mine",
    ),
    "the last epoch by the new protocol": (
        COMPLETE_ABORT, 32_766, TV2,
        "write 0 12, write 0 12, commit 5, write 0 12, commit 5, old, write 0 12, commit 5",
    ),
    "a retry of the last commit": (
        EMPTY, 32_766, TV2,
        "write 0 12, commit 5, old, commit 5, abort 5, new, commit 5, abort 5",
    ),
    "a retry of the last abort": (
        EMPTY, 32_766, TV2,
        "write 0 12, abort 5, old, abort 5, commit 5, new, abort 5, commit 5",
    ),
    "an abort of nothing in the last epoch": (EMPTY, 32_766, TV2, "abort 5, abort 5, old, abort 5"),
    "the epoch before the last": (
        EMPTY, 32_765, TV2,
        "write 0 12, commit 5, write 0 12, abort 5, write 0 12, commit 5, old, commit 5",
    ),
    "fenced in the last epoch, new protocol": (
        EMPTY, 32_766, TV2,
        "write 0 12, init, write 1 12, old, write 0 12, commit 5, abort 4",
    ),
    "fenced in the last epoch, old protocol": (
        EMPTY, 32_766, TV1,
        "add 0, write 0, init, old, write 0, commit 4, add 1, new, add 0",
    ),
    "init with its own ids while it writes": (
        EMPTY, 32_765, TV1,
        "add 0, write 0, init mine, old, init mine",
    ),
    "both protocols": (EMPTY, 7, TV2, "add 0, write 0, commit 5, add 0, write 0 12, commit 4, init mine"),
    "found ongoing": (ONGOING, 4, TV2, "commit 5, old, commit 5, abort 5"),
    "found ongoing, old protocol": (ONGOING, 4, TV1, "write 0, commit 4, commit 4, abort 4"),
    "found ongoing and fenced": (ONGOING, 4, TV1, "init, old, commit 4"),
    "found prepared to commit": (PREPARE_COMMIT, 9, TV1, "commit 4, abort 4, init mine"),
    "found prepared to abort": (PREPARE_ABORT, 9, TV2, "abort 5, old, abort 5, commit 5"),
    "found prepared behind the last epoch": (PREPARE_COMMIT, MAX, TV2, "new, commit 5, init mine, init"),
    "found aborting behind the last epoch": (PREPARE_ABORT, MAX, TV2, "init, init mine"),
    "found complete": (COMPLETE_COMMIT, 9, TV2, "commit 5, abort 5, old, abort 5, commit 5"),
    "found complete, old protocol": (COMPLETE_ABORT, 9, TV1, "abort 4, commit 4, init mine"),
    "an expected epoch that is not": (COMPLETE_ABORT, 9, TV1, "old, init mine, init other, init mine"),
}  # fmt: skip


def records():
    """By partition of __transaction_state."""
    found, now = {}, int(time.time() * 1000)
    cls = messages.TransactionLogValue
    for number, (name, (state, epoch, version, _)) in enumerate(STORIES.items()):
        topic = cls.TransactionPartitions(topic=TOPIC, partition_ids=[number % PARTITIONS])
        value = cls(
            producer_id=ID + number,
            producer_epoch=epoch,
            transaction_timeout_ms=60_000,
            transaction_status=state,
            transaction_partitions={EMPTY: None, COMPLETE_COMMIT: [], COMPLETE_ABORT: []}.get(state, [topic]),
            transaction_last_update_timestamp_ms=now,
            transaction_start_timestamp_ms=now if state != EMPTY else -1,
            next_producer_id=NEXT_ID + number if epoch == MAX else -1,
            client_transaction_version=version,
        )
        key = b"\0\0" + codec.encode(messages.TransactionLogKey(transactional_id=name), 0)
        row = Record(key=key, value=b"\0\1" + codec.encode(value, 1), timestamp=now)
        count = int(TEST_CONFIG["transaction.state.log.num.partitions"])
        found.setdefault(partition_of(name, count), []).append(row)
    return found


def find(wire, name):
    request = messages.FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
    return wire.ask(request, 4).coordinators[0].error_code == 0


def prepare(broker):
    """Write the records as Kafka's admin client may, and start again."""
    with Wire(broker.bootstrap) as wire:
        wait_until(lambda: find(wire, "anybody"))
        create_topic(wire, TOPIC, PARTITIONS)
        for index, rows in records().items():
            request = produce_request(STATE, build_batch(rows), index, acks=-1)

            def written(request=request):
                wire.correlation += 1
                wire.send_frame(codec.encode_request(request, 9, wire.correlation, "__admin_client"))
                _, answer = codec.decode_response(messages.ProduceResponse, 9, wire.read_frame())
                (part,) = answer.responses[0].partition_responses
                assert part.error_code in (0, errors.NOT_LEADER_OR_FOLLOWER)
                return part.error_code == 0

            wait_until(written)
    broker.restart()


class Story:
    """One transactional id. `steps` are carried out one by one, each until nothing of it is under way:

    init              a producer without ids                  init mine    with what it has
    init other        with an epoch that it never had         add P        AddPartitionsToTxn v3
    write P [v]       one record, by this version of Produce  commit v, abort v    EndTxn
    old, new          the ids before the last change, or the newest, are used from now on
    """

    def __init__(self, wire, number, name):
        self.wire, self.name, self.number = wire, name, number
        self.current = (ID + number, STORIES[name][1])
        self.before = self.newest = self.current
        self.sequences = {}
        self.names = {-1: -1, ID + number: "first", NEXT_ID + number: "reserved"}
        self.told = []

    def play(self):
        self.settle()
        self.describe()
        for step in STORIES[self.name][3].split(", "):
            what, *arguments = step.split()
            getattr(self, what)(*arguments)
            self.describe()
        return self.told

    def tell(self, what, *answer):
        self.told.append((what, *answer))

    def producer(self, producer_id):
        return self.names.setdefault(producer_id, f"new {len(self.names)}")

    def described(self):
        request = messages.DescribeTransactionsRequest(transactional_ids=[self.name])
        (found,) = self.wire.ask(request, 0).transaction_states
        return found

    def settle(self):
        """Until the log is read and no marker is to be written."""

        def rests():
            found = self.described()
            return found.error_code not in RETRIED and not found.transaction_state.startswith("Prepare")

        wait_until(rests)

    def describe(self):
        its = self.described()
        topics = [(each.topic, each.partitions) for each in its.topics]
        self.tell("is", its.transaction_state, self.producer(its.producer_id), its.producer_epoch, topics)

    def ask(self, request, version):
        """The answer, at last: Kafka sends clients away while it writes markers."""
        deadline = time.monotonic() + WAIT_S
        while (answer := self.wire.ask(request, version)).error_code in RETRIED:
            assert time.monotonic() < deadline, answer
            time.sleep(0.01)
        return answer

    def change(self, producer_id, epoch):
        if (producer_id, epoch) != self.newest:
            self.before, self.newest = self.newest, (producer_id, epoch)
            self.sequences = {}
        self.current = self.newest

    def old(self):
        self.current = self.before

    def new(self):
        self.current = self.newest

    def init(self, whose=None):
        producer_id, epoch = (-1, -1) if whose is None else self.current
        request = messages.InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=60_000,
            producer_id=producer_id,
            producer_epoch=epoch if whose != "other" else epoch - 3,
        )
        answer = self.ask(request, 5)
        self.tell("init", answer.error_code, self.producer(answer.producer_id), answer.producer_epoch)
        if answer.error_code == 0:
            self.change(answer.producer_id, answer.producer_epoch)
        self.settle()

    def add(self, index):
        cls = messages.AddPartitionsToTxnRequest
        request = cls(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.current[0],
            v3_and_below_producer_epoch=self.current[1],
            v3_and_below_topics=[cls.V3AndBelowTopics(name=TOPIC, partitions=[self.place(index)])],
        )
        answer = self.wire.ask(request, 3)
        (part,) = answer.results_by_topic_v3_and_below[0].results_by_partition
        self.tell("add", part.partition_error_code)

    def write(self, index, version="9"):
        place = self.place(index)
        producer_id, epoch = self.current
        sequence = self.sequences.get((self.current, place), 0)
        data = batch(
            b"v", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )
        request = produce_request(TOPIC, data, place, acks=-1)
        request.transactional_id = self.name
        (part,) = self.wire.ask(request, int(version)).responses[0].partition_responses
        self.tell("write", part.error_code)
        if part.error_code == 0:
            self.sequences[self.current, place] = sequence + 1

    def place(self, index):
        return (self.number + int(index)) % PARTITIONS

    def commit(self, version):
        self.end(int(version), True)

    def abort(self, version):
        self.end(int(version), False)

    def end(self, version, commits):
        request = messages.EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.current[0],
            producer_epoch=self.current[1],
            committed=commits,
        )
        answer = self.ask(request, version)
        self.tell("end", answer.error_code, self.producer(answer.producer_id), answer.producer_epoch)
        if version >= 5 and answer.error_code == 0:
            self.change(answer.producer_id, answer.producer_epoch)
        self.settle()


def play(broker):
    with broker:
        prepare(broker)
        told = {}
        with Wire(broker.bootstrap) as wire:
            wait_until(lambda: find(wire, "anybody"))
            for number, name in enumerate(STORIES):
                told[name] = Story(wire, number, name).play()
        return told


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What both brokers say to all stories."""
    directory = tmp_path_factory.mktemp("epochs")
    ours = Broker(config={**TEST_CONFIG, "node.id": "1"}, data_dir=directory / "kafkad", workers=2)
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(play, broker) for broker in (ours, JvmKafka(directory / "kafka"))]
        return [run.result() for run in runs]


@pytest.mark.parametrize("name", STORIES)
def test_the_same_steps_get_the_same_answers(told, name):
    ours, theirs = told
    assert ours[name] == theirs[name]


def test_the_stories_reach_what_they_are_for(told):
    """New producer ids, fences, refusals, and the epoch that only a marker has."""
    theirs = [each for steps in told[1].values() for each in steps]
    codes = {each[1] for each in theirs if each[0] != "is"}
    assert codes >= {0, errors.INVALID_PRODUCER_EPOCH, errors.PRODUCER_FENCED, errors.INVALID_TXN_STATE}
    assert {each[3] for each in theirs if each[0] == "is"} >= {0, 1, 32_766}
    assert {each[2] for each in theirs if each[0] == "is"} >= {"first", "reserved", "new 3"}
