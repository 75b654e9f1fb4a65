"""RangeReader against brokers that follow a script: what a good one does seldom and a bad one always."""

import random
import socket
import struct
import threading

import pytest

from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.protocol.messages import FetchRequest, ListOffsetsRequest, MetadataRequest
from kafkad.protocol.records import Record, build_batch
from kafkad.spark.range_reader import DataLoss, FetchTimeout, RangeReader

NOW = 1_790_000_000_000
TOPIC, TOPIC_ID = "t", bytes(range(16))
NEWEST = {1: (4, 16), 2: (1, 9), 3: (1, 12), 18: (0, 4)}
OF_2_1 = {1: (0, 10), 2: (0, 4), 3: (0, 7), 18: (0, 2)}


def batch(base, *values, **how):
    return bytes(build_batch([Record(None, v, timestamp=NOW) for v in values], base_offset=base, **how))


LOG = [batch(3 * i, b"a%d" % i, b"b%d" % i, b"c%d" % i) for i in range(4)]
VALUES = [b"%s%d" % (letter, i) for i in range(4) for letter in (b"a", b"b", b"c")]


class Scripted:
    """A listening socket. `fetches`: what to answer to each Fetch, one after the other, the last again and
    again: records, an error code, fields of the partition's answer, or None to hang up."""

    def __init__(self, *fetches, versions=NEWEST, node=1):
        self.fetches, self.versions, self.node = list(fetches), versions, node
        self.leader = self
        self.asked = []  # (version, offset) of each Fetch
        self.metadata_error = 0
        self.topic_id = TOPIC_ID
        self.start, self.latest = 0, 12
        self.received = threading.Semaphore(0)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self.port}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            self.serve_until_it_ends(connection)
        except ConnectionError:
            pass

    def serve_until_it_ends(self, connection):
        file = connection.makefile("rb")
        while head := file.read(4):
            header, request = codec.decode_request(file.read(struct.unpack(">i", head)[0]))
            version = header.request_api_version
            low, high = self.versions[header.request_api_key]
            if not low <= version <= high:
                assert header.request_api_key == 18
                answer = messages.ApiVersionsResponse(error_code=errors.UNSUPPORTED_VERSION)
                data = codec.encode_response(answer, 0, header.correlation_id)
            else:
                data = self.answer(request, version, header.correlation_id)
            if data is None:
                connection.shutdown(socket.SHUT_RDWR)
                return
            connection.sendall(struct.pack(">i", len(data)) + data)

    def answer(self, request, version, correlation_id):
        if isinstance(request, FetchRequest):
            return self.fetched(request, version, correlation_id)
        if isinstance(request, MetadataRequest):
            row = messages.MetadataResponse.Topics
            brokers = [
                messages.MetadataResponse.Brokers(node_id=b.node, host="127.0.0.1", port=b.port)
                for b in {self, self.leader}
            ]
            found = row(name=TOPIC, error_code=self.metadata_error)
            if not self.metadata_error:
                found.partitions = [row.Partitions(partition_index=0, leader_id=self.leader.node)]
            if version >= 10:
                found.topic_id = self.topic_id
            made = messages.MetadataResponse(brokers=brokers, topics=[found])
        elif isinstance(request, ListOffsetsRequest):
            row = messages.ListOffsetsResponse.Topics
            earliest = request.topics[0].partitions[0].timestamp == -2
            offset = self.start if earliest else self.latest
            told = row(name=TOPIC, partitions=[row.Partitions(partition_index=0, offset=offset)])
            made = messages.ListOffsetsResponse(topics=[told])
        else:
            row = messages.ApiVersionsResponse.ApiKeys
            keys = [row(api_key=k, min_version=a, max_version=b) for k, (a, b) in self.versions.items()]
            made = messages.ApiVersionsResponse(api_keys=keys)
        return codec.encode_response(made, version, correlation_id)

    def fetched(self, request, version, correlation_id):
        told = self.fetches.pop(0) if len(self.fetches) > 1 else self.fetches[0]
        self.asked.append((version, request.topics[0].partitions[0].fetch_offset))
        self.received.release()
        if told is None:
            return None
        if isinstance(told, int):
            told = {"error_code": told}
        fields = {"high_watermark": 12, "log_start_offset": 0}
        fields |= told if isinstance(told, dict) else {"records": told}
        if version < 5:
            del fields["log_start_offset"]
        response = messages.FetchResponse
        partition = response.Responses.Partitions(partition_index=0, **fields)
        topic = response.Responses(partitions=[partition])
        if version > 12:
            topic.topic_id = self.topic_id
        else:
            topic.topic = TOPIC
        return codec.encode_response(response(responses=[topic]), version, correlation_id)


def values(reader):
    return [value for batch in reader for value in batch["value"].to_pylist()]


def reading(broker, start=0, end=12, **how):
    return RangeReader(broker.bootstrap, {}, TOPIC, 0, start, end, **{"timeout_s": 5, **how})


@pytest.mark.parametrize(
    ("versions", "used"),
    [(NEWEST, 16), (OF_2_1, 10), ({**NEWEST, 3: (1, 9)}, 12), ({**OF_2_1, 1: (0, 4)}, 4)],
)
def test_the_versions_of_old_and_new_brokers(versions, used):
    with Scripted(*LOG, versions=versions) as broker:
        assert values(reading(broker)) == VALUES
        assert broker.asked == [(used, 0), (used, 3), (used, 6), (used, 9)]


def test_a_broker_too_old_is_told():
    with Scripted(*LOG, versions={**OF_2_1, 1: (0, 3)}) as broker, pytest.raises(KafkaError, match="Fetch"):
        values(reading(broker))


def test_the_next_fetch_is_under_way_before_a_batch_is_handed_out():
    with Scripted(*LOG) as broker:
        batches = iter(reading(broker, batch_bytes=1))
        first = next(batches)
        assert first["value"].to_pylist() == [b"a0"]
        assert all(broker.received.acquire(timeout=5) for _ in range(2)) and len(broker.asked) == 2
        assert [v for b in batches for v in b["value"].to_pylist()] == VALUES[1:]
        assert len(broker.asked) == 4  # and none behind the end


def test_a_leader_that_moves_is_followed():
    with Scripted(LOG[2], LOG[3], node=2) as new, Scripted(*LOG[:2], 6) as old:

        class Moves(list):
            def pop(self, at):
                if len(self) == 2:
                    old.leader = new
                return super().pop(at)

        old.fetches = Moves(old.fetches)
        assert values(reading(old)) == VALUES
        assert old.asked[-1][1] == 6 and [offset for _, offset in new.asked] == [6, 9]


PASSING = [
    errors.NOT_LEADER_OR_FOLLOWER,
    errors.LEADER_NOT_AVAILABLE,
    errors.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UNKNOWN_TOPIC_ID,
    errors.OFFSET_NOT_AVAILABLE,
    errors.KAFKA_STORAGE_ERROR,
    errors.FENCED_LEADER_EPOCH,
    None,  # hangs up
]


@pytest.mark.parametrize("trouble", PASSING)
def test_trouble_that_passes_is_waited_out(trouble):
    with Scripted(LOG[0], trouble, trouble, *LOG[1:]) as broker:
        reader = reading(broker)
        assert values(reader) == VALUES and not reader.lost


@pytest.mark.parametrize("trouble", PASSING)
def test_trouble_that_does_not_pass_is_spark_s_timeout(trouble):
    wanted = "Cannot fetch record for offset 3 in 300 milliseconds"
    expected = DataLoss if trouble in (3, 100) else FetchTimeout
    with (
        Scripted(LOG[0], trouble) as broker,
        pytest.raises(expected, match="does not exist" if expected is DataLoss else wanted),
    ):
        values(reading(broker, timeout_s=0.3))


@pytest.mark.parametrize("trouble", [errors.TOPIC_AUTHORIZATION_FAILED, errors.UNKNOWN_SERVER_ERROR])
def test_what_no_patience_mends_is_told_at_once(trouble):
    with Scripted(LOG[0], trouble) as broker, pytest.raises(KafkaError) as refused:
        values(reading(broker, timeout_s=60))
    assert refused.value.code == trouble


def test_an_empty_log_is_waited_for_and_an_open_transaction_named():
    stuck = {"records": b"", "high_watermark": 12, "last_stable_offset": 5}
    with Scripted(stuck) as broker, pytest.raises(FetchTimeout, match="began at 5 has not ended"):
        values(reading(broker, timeout_s=1, isolation="read_committed"))
    with Scripted(b"", b"", *LOG) as broker:
        assert values(reading(broker)) == VALUES


def test_a_batch_cut_by_an_old_broker_is_asked_for_again():
    with Scripted(LOG[0][:40], *LOG) as broker:
        assert values(reading(broker)) == VALUES


@pytest.mark.parametrize("cut", range(1, len(LOG[0]), 7))
def test_an_answer_that_ends_in_a_cut_batch(cut):
    with Scripted(LOG[0] + LOG[1][:cut], LOG[1] + LOG[2] + LOG[3]) as broker:
        assert values(reading(broker)) == VALUES


@pytest.mark.parametrize(
    "lie", [b"\0" * 40, b"\xff" * 80, LOG[0][:60] + b"x" + LOG[0][61:], LOG[0][:16] + b"\3" + LOG[0][17:]]
)
def test_damaged_batches_are_told(lie):
    with Scripted(lie) as broker, pytest.raises(Malformed, match="t-0"):
        values(reading(broker))


def test_batches_of_before_the_position_are_no_endless_loop():
    with Scripted(LOG[0]) as broker, pytest.raises(Malformed, match="end before offset 3"):
        values(reading(broker))


def test_a_log_start_that_passes_the_position_between_look_and_read():
    late = {"records": LOG[2], "log_start_offset": 6}
    with Scripted(LOG[0], late, LOG[3]) as broker, pytest.raises(DataLoss, match=r"\[3, 12\)"):
        values(reading(broker))
    with Scripted(LOG[0], late, LOG[3]) as broker:
        reader = reading(broker, fail_on_data_loss=False)
        assert values(reader) == VALUES[:3] + VALUES[6:] and [lost[:2] for lost in reader.lost] == [(3, 6)]
    compacted = {"records": LOG[2], "log_start_offset": 3}  # the same hole, and the log begins before it
    with Scripted(LOG[0], compacted, LOG[3]) as broker:
        assert values(reading(broker)) == VALUES[:3] + VALUES[6:]


def test_an_offset_that_is_gone_and_there_again():
    gone = errors.OFFSET_OUT_OF_RANGE
    with Scripted(LOG[0], gone, *LOG[1:]) as broker, pytest.raises(DataLoss, match="did not a moment ago"):
        values(reading(broker))
    with Scripted(LOG[0], errors.OFFSET_OUT_OF_RANGE, *LOG[1:]) as broker:
        assert values(reading(broker, fail_on_data_loss=False)) == VALUES


def test_the_topic_that_the_range_was_planned_for():
    with Scripted(*LOG) as broker:
        assert values(reading(broker, topic_id=TOPIC_ID)) == VALUES
    with Scripted(*LOG) as broker, pytest.raises(DataLoss, match="one of the same name was created"):
        values(reading(broker, topic_id=bytes(16)[:15] + b"x"))


def test_no_broker_at_all():
    with Scripted(*LOG) as broker:
        pass
    with pytest.raises(
        FetchTimeout, match=r"Cannot fetch record for offset 0 in 200 milliseconds.*no broker"
    ):
        values(reading(broker, timeout_s=0.2))


def test_options_that_cannot_be():
    with pytest.raises(ValueError, match=r"isolation\.level"):
        RangeReader("h:1", {}, TOPIC, 0, 0, 1, isolation="snapshot")
    with pytest.raises(ValueError, match="no offsets from 2 to 1"):
        RangeReader("h:1", {}, TOPIC, 0, 2, 1)
    with pytest.raises(ValueError, match=r"security\.protocol"):
        list(RangeReader("h:1", {"security.protocol": "TLS"}, TOPIC, 0, 0, 1))


class Whimsical(Scripted):
    """A broker with a log, to whose answers all may happen that does happen: cut anywhere, nothing yet, an
    error, a hang-up, retention."""

    def __init__(self, seed):
        chance = self.chance = random.Random(seed)
        self.batches, offset = [], 0
        while offset < 1000:
            count = chance.randrange(1, 8)
            made = [
                Record(None, b"%d" % (offset + i), timestamp=NOW, offset=offset + i) for i in range(count)
            ]
            if count > 2 and chance.random() < 0.3:
                del made[chance.randrange(1, count - 1)]  # compaction
            made[-1].offset = offset + count - 1
            data = bytes(build_batch(made, base_offset=offset, compression=chance.randrange(5)))
            self.batches.append((offset + count - 1, data, made))
            offset += count + chance.choice((0, 0, 0, 4))
        self.behind = offset = self.batches[-1][0] + 1  # a log does not end in a hole
        super().__init__(0, versions={**NEWEST, 1: (4, chance.randrange(4, 17))})
        self.latest = offset

    def fetched(self, request, version, correlation_id):
        chance, asked = self.chance, request.topics[0].partitions[0].fetch_offset
        whim = chance.random()
        if whim < 0.1:
            self.fetches = [chance.choice(PASSING)]
        elif whim < 0.15:
            self.fetches = [b""]
        elif asked < self.start:
            self.fetches = [errors.OFFSET_OUT_OF_RANGE]
        else:
            data = b"".join(data for last, data, _ in self.batches if last >= asked)
            data = data[: max(chance.randrange(500), chance.choice((0, 30, 1000)))]
            self.fetches = [{"records": data, "log_start_offset": self.start}]
        if chance.random() < 0.03:
            self.start = max(self.start, chance.randrange(self.behind))
        return super().fetched(request, version, correlation_id)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_each_record_comes_once_or_is_told_to_be_lost(seed):
    with Whimsical(seed) as broker:
        first, behind = sorted(broker.chance.sample(range(broker.behind), 2))
        reader = reading(broker, first, behind, timeout_s=20, fail_on_data_loss=False, batch_bytes=50)
        got = [offset for batch in reader for offset in batch["offset"].to_pylist()]
    there = [r.offset for *_, made in broker.batches for r in made if first <= r.offset < behind]
    lost = {offset for a, b, _ in reader.lost for offset in range(a, b)}
    assert got == sorted(set(got)) and not lost & set(got)
    assert [offset for offset in there if offset not in lost] == got
    assert reader.position == behind
