"""Produce in C: every version decoded by the codec, every refusal, waiting for the high watermark."""

import contextlib
import os
import random
import struct
import time

import pytest
from reactor_world import NOW_MS, Appended, SlowLog, World, batch, produce, rows

from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError

VERSIONS = range(3, 14)
TOPIC_ID = bytes(range(16))


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path))
    yield world
    world.close()


def topic_of(version):
    return TOPIC_ID if version >= 13 else "t"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_every_version_appends_and_answers(world, version, acks):
    partition = world.partition("t", topic_id=TOPIC_ID)
    client = world.connect()
    for base_offset in (0, 3):
        request = produce(topic_of(version), {0: batch(3)}, acks)
        answer = client.ask(request, version)
        (topic,) = answer.responses
        (part,) = topic.partition_responses
        assert (topic.topic_id if version >= 13 else topic.name) == topic_of(version)
        assert (part.index, part.error_code, part.base_offset) == (0, 0, base_offset)
        assert part.log_append_time_ms == -1
        assert part.log_start_offset == (0 if version >= 5 else -1)
        assert (part.record_errors, part.error_message, answer.throttle_time_ms) == ([], None, 0)
    assert partition.end_offset == 6


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_what_is_not_here_is_unknown_and_the_rest_is_appended(world, version):
    partition = world.partition("t", topic_id=TOPIC_ID)
    request = produce(topic_of(version), {7: batch(), 0: batch(2), -1: batch()})
    unknown = produce(bytes(16) if version >= 13 else "nowhere", {0: batch()})
    request.topic_data += unknown.topic_data
    answer = world.connect().ask(request, version)
    codes = [
        (part.index, part.error_code) for topic in answer.responses for part in topic.partition_responses
    ]
    missing = errors.UNKNOWN_TOPIC_ID if version >= 13 else errors.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [
        (7, errors.UNKNOWN_TOPIC_OR_PARTITION),
        (0, 0),
        (-1, errors.UNKNOWN_TOPIC_OR_PARTITION),
        (0, missing),
    ]
    assert partition.end_offset == 2


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, errors.INVALID_RECORD),
        (b"", errors.INVALID_RECORD),
        (bytes(60), errors.INVALID_RECORD),
        (bytes(100), errors.INVALID_RECORD),
        (batch()[:-1] + b"\xff", errors.CORRUPT_MESSAGE),
        (batch() + batch(), errors.INVALID_RECORD),
        (batch(transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
         errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)  # fmt: skip
def test_records_that_are_wrong_are_refused(world, records, code):
    partition = world.partition("t")
    client = world.connect()
    assert client.produce("t", records).error_code == code
    assert partition.end_offset == 0
    assert client.produce("t", batch()).error_code == 0


def test_zstd_needs_version_7(world):
    world.partition("t", log=SlowLog(lambda data, now_ms: Appended(0, 0)))
    client = world.connect()
    compressed = batch(10, compression=4)
    assert client.produce("t", compressed, version=6).error_code == errors.UNSUPPORTED_COMPRESSION_TYPE
    assert client.produce("t", compressed, version=7).error_code == 0


def test_acks_0_gets_no_answer(world):
    partition = world.partition("t")
    client = world.connect()
    for _ in range(3):
        client.send_produce("t", batch(), acks=0)
    last = client.send_produce("t", batch())
    answer = client.receive(messages.ProduceResponse, 9, last)
    assert answer.responses[0].partition_responses[0].base_offset == 3
    assert partition.end_offset == 4


def test_acks_0_with_an_error_closes(world):
    client = world.connect()
    client.send_produce("nowhere", batch(), acks=0)
    client.wait_closed()
    assert "acks=0" in world.lines[-1]


def test_other_acks_are_refused(world):
    partition = world.partition("t")
    client = world.connect()
    for acks in (2, -2, 32767):
        assert client.produce("t", batch(), acks=acks).error_code == errors.INVALID_REQUIRED_ACKS
    assert partition.end_offset == 0


def test_a_transactional_id_is_refused(world):
    partition = world.partition("t")
    part = world.connect().produce("t", batch(), transactional_id="tx")
    assert part.error_code == errors.INVALID_REQUEST
    assert partition.end_offset == 0


def test_internal_topics_are_for_the_admin_client_only(world):
    partition = world.partition("__consumer_offsets")
    client = world.connect()
    request = produce("__consumer_offsets", {0: batch()})
    answer = client.ask(request, 9)
    assert answer.responses[0].partition_responses[0].error_code == errors.INVALID_TOPIC_EXCEPTION
    answer = client.ask(request, 9, client_id="__admin_client")
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert partition.end_offset == 1


@pytest.mark.parametrize("version", [3, 9])
def test_a_frame_with_its_tail_missing_appends_nothing(world, version):
    from kafkad.protocol import codec

    partition = world.partition("t")
    good = codec.encode_request(produce("t", {0: batch(), 1: batch()}), version, 1, "c")
    for frame in (good[:-1], good[: len(good) // 2]):
        client = world.connect()
        client.send_frame(frame)
        client.wait_closed()
    assert partition.end_offset == 0
    assert world.lines[-1].endswith("a Produce does not parse")


@pytest.mark.parametrize("count", [2**31 - 1, 10**6, -1, -(2**31)])
def test_more_elements_claimed_than_bytes_remain_close(world, count):
    import struct

    body = struct.pack(">hhih1s hhii", 0, 3, 1, 1, b"c", -1, -1, 1000, count) + bytes(100)
    client = world.connect()
    client.send_frame(body)
    client.wait_closed()
    assert world.reactor.stats()["bad_frames"] == 1


# -- waiting -----------------------------------------------------------------------------------------------


def test_acks_1_does_not_wait_for_the_high_watermark(world):
    partition = world.partition("t", follows_end=False)
    answer = world.connect().ask(produce("t", {0: batch(3)}, acks=1), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert (partition.high_watermark, partition.durable_offset) == (0, 3)


def refused_with(client, waiting):
    return client.receive(messages.ProduceResponse, 9, waiting).responses[0].partition_responses[0].error_code


def test_who_waits_is_refused_when_another_broker_leads(world):
    partition = world.partition("t", follows_end=False)
    client = world.connect()
    waiting = client.send_produce("t", batch(3), acks=-1)
    world.poll()
    partition.follow(1, 2)
    assert refused_with(client, waiting) == errors.NOT_LEADER_OR_FOLLOWER
    answer = client.ask(produce("t", {0: batch(3)}, acks=1), 9)
    assert answer.responses[0].partition_responses[0].error_code == errors.NOT_LEADER_OR_FOLLOWER


def test_what_is_reached_in_a_later_term_is_no_success(world):
    """Resigned and elected again before the reactor looks: other records may stand at the offsets."""
    partition = world.partition("t", follows_end=False)
    client = world.connect()
    waiting = client.send_produce("t", batch(3), acks=-1)
    world.poll()
    partition.follow(1, 2)
    partition.lead(2)
    partition.advance_high_watermark(3)
    assert refused_with(client, waiting) == errors.NOT_LEADER_OR_FOLLOWER


def test_an_epoch_more_of_the_same_leader_ends_no_wait(world):
    partition = world.partition("t", follows_end=False)
    client = world.connect()
    waiting = client.send_produce("t", batch(3), acks=-1)
    world.poll()
    partition.lead(1)
    assert (partition.leader_epoch, partition.led_since, partition.epoch_start) == (1, 0, 3)
    world.poll()
    assert not client.has_answer()
    partition.advance_high_watermark(3)
    assert refused_with(client, waiting) == 0


def test_an_answer_of_acks_all_waits_for_the_high_watermark(world):
    partition = world.partition("t", follows_end=False)
    client = world.connect()
    waiting = client.send_produce("t", batch(3), acks=-1)
    world.poll()
    partition.advance_high_watermark(2)
    assert not client.has_answer()
    partition.advance_high_watermark(3)
    answer = client.receive(messages.ProduceResponse, 9, waiting)
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert world.reactor.stats()["produce_waits"] == 1


def test_all_partitions_of_a_request_are_waited_for(world):
    parts = [world.partition("t", i, follows_end=False) for i in range(3)]
    client = world.connect()
    waiting = client.send_request(produce("t", {0: batch(), 1: batch(), 2: batch()}), 9)
    world.poll()
    for partition in parts:
        assert not client.has_answer()
        partition.advance_high_watermark(1)
    client.receive(messages.ProduceResponse, 9, waiting)


def test_a_timeout_answers_with_its_code_for_what_is_late(world):
    late, quick = world.partition("t", 0, follows_end=False), world.partition("t", 1)
    client = world.connect()
    began = time.monotonic()
    answer = client.ask(produce("t", {0: batch(), 1: batch()}, timeout_ms=100), 9)
    assert 0.09 < time.monotonic() - began < 2
    first, second = answer.responses[0].partition_responses
    assert (first.error_code, first.base_offset) == (errors.REQUEST_TIMED_OUT, 0)
    assert (second.error_code, second.base_offset) == (0, 0)
    late.advance_high_watermark(1)  # nobody waits any more
    assert quick.end_offset == 1
    assert client.produce("t", batch(), index=1).base_offset == 1


def test_a_deleted_partition_answers_who_waits(world):
    world.partition("t", follows_end=False)
    client = world.connect()
    waiting = client.send_produce("t", batch())
    world.poll()
    world.table.remove("t", 0)
    answer = client.receive(messages.ProduceResponse, 9, waiting)
    assert answer.responses[0].partition_responses[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce("t", batch()).error_code == errors.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_led_no_longer_answers_who_waits(world):
    partition = world.partition("t", follows_end=False)
    client = world.connect()
    waiting = client.send_produce("t", batch())
    world.poll()
    partition.close_to_clients()
    answer = client.receive(messages.ProduceResponse, 9, waiting)
    assert answer.responses[0].partition_responses[0].error_code == errors.NOT_LEADER_OR_FOLLOWER


def test_a_client_that_leaves_while_it_waits_is_forgotten(world):
    partition = world.partition("t", follows_end=False)
    client = world.connect()
    client.send_produce("t", batch())
    world.poll()
    client.socket.close()
    world.poll()
    partition.advance_high_watermark(1)
    other = world.connect()
    other.send_produce("t", batch(), timeout_ms=0)
    answer = other.receive(messages.ProduceResponse, 9)
    assert answer.responses[0].partition_responses[0].error_code == errors.REQUEST_TIMED_OUT


# -- the slow path -----------------------------------------------------------------------------------------


def test_what_needs_python_goes_to_the_log(world):
    seen = []

    def append(data, now_ms):
        seen.append(data)
        assert abs(now_ms - time.time() * 1000) < 5000
        return Appended(41, 0, NOW_MS, 7)

    world.partition("t", log=SlowLog(append))
    compressed = batch(10, compression=1)
    part = world.connect().produce("t", compressed)
    assert (part.error_code, part.base_offset) == (0, 41)
    assert (part.log_append_time_ms, part.log_start_offset) == (NOW_MS, 7)
    assert seen == [compressed]
    assert world.reactor.stats()["python_appends"] == 1


@pytest.mark.parametrize("version", [7, 8, 9])
def test_a_refusal_of_the_log_is_an_error_code_with_its_sentence(world, version):
    def append(data, now_ms):
        raise KafkaError(errors.INVALID_RECORD, "a compacted topic needs kéys")

    world.partition("t", log=SlowLog(append))
    part = world.connect().produce("t", batch(compression=1), version=version)
    assert (part.error_code, part.base_offset) == (errors.INVALID_RECORD, -1)
    assert part.error_message == ("a compacted topic needs kéys" if version >= 8 else None)
    assert part.record_errors == []


def test_a_refused_record_is_named(world):
    def append(data, now_ms):
        error = KafkaError(errors.INVALID_RECORD, "no key")
        error.bad_record = 3
        raise error

    world.partition("t", log=SlowLog(append))
    for version in (8, 9, 13):
        part = world.connect().produce("t", batch(compression=1), version=min(version, 12))
        assert [(e.batch_index, e.batch_index_error_message) for e in part.record_errors] == [(3, "no key")]


@pytest.mark.parametrize(
    ("records", "code", "log_start"),
    [
        (batch()[:-1] + b"\xff", errors.CORRUPT_MESSAGE, -1),
        (batch(size=2 << 20), errors.MESSAGE_TOO_LARGE, -1),
        (b"", errors.INVALID_RECORD, -1),
        (batch(base_offset=1), errors.INVALID_RECORD, 2),
        (batch(producer_id=7, producer_epoch=0, base_sequence=5), errors.OUT_OF_ORDER_SEQUENCE_NUMBER, 2),
        (batch(producer_id=8, producer_epoch=-2, base_sequence=0), errors.INVALID_PRODUCER_EPOCH, 2),
    ],
)
def test_an_error_comes_with_the_log_start_where_kafkas_does(world, records, code, log_start):
    """HUNTS N7: ReplicaManager knows it once the append has begun, but not of errors that it expects."""
    partition = world.partition("t")
    client = world.connect()
    client.produce("t", batch(3, producer_id=7, producer_epoch=0, base_sequence=0))
    partition.set_log_start(2)
    part = client.produce("t", records)
    assert (part.error_code, part.base_offset, part.log_start_offset) == (code, -1, log_start)
    assert client.produce("nope", batch()).log_start_offset == -1


def test_an_unforeseen_failure_of_the_log_is_an_error_of_that_partition_only(world):
    def append(data, now_ms):
        raise ZeroDivisionError

    world.partition("t", 0, log=SlowLog(append))
    world.partition("t", 1)
    answer = world.connect().ask(produce("t", {0: batch(compression=1), 1: batch()}), 9)
    codes = [part.error_code for part in answer.responses[0].partition_responses]
    assert codes == [errors.UNKNOWN_SERVER_ERROR, 0]


def test_a_broken_invariant_of_the_log_ends_the_worker(world):
    def append(data, now_ms):
        assert data is None

    world.partition("t", log=SlowLog(append))
    assert world.connect().produce("t", batch(compression=1)).error_code == errors.UNKNOWN_SERVER_ERROR
    assert [type(error) for error in world.fatal] == [AssertionError]
    world.fatal.clear()


def test_the_log_may_remove_partitions_in_the_middle_of_a_request(world):
    def append(data, now_ms):
        world.table.remove("t", 0)
        world.table.remove("t", 1)
        world.table.remove("t", 2)
        return Appended(0, 1)

    world.partition("t", 0, follows_end=False)
    world.partition("t", 1, log=SlowLog(append))
    world.partition("t", 2)
    answer = world.connect().ask(produce("t", {0: batch(), 1: batch(compression=1), 2: batch()}), 9)
    codes = [part.error_code for part in answer.responses[0].partition_responses]
    assert codes == [errors.UNKNOWN_TOPIC_OR_PARTITION] * 3


def test_the_log_may_close_the_connection(world):
    def append(data, now_ms):
        world.reactor.close()
        return Appended(0, 1)

    world.partition("t", log=SlowLog(append))
    client = world.connect()
    client.send_produce("t", batch(compression=1))
    client.wait_closed()


# -- what was written --------------------------------------------------------------------------------------


def test_produced_bytes_are_on_disk_and_come_back(world):
    world.partition("t")
    client = world.connect()
    sizes = [1, 100, 20_000, 300_000]
    for size in sizes:
        assert client.produce("t", batch(2, size)).error_code == 0
    with open(os.path.join(world.directory, "t-0", f"{0:020d}.log"), "rb") as file:
        log = file.read()
    answer = client.fetch([("t", 0, 0)])
    assert bytes(answer.responses[0].partitions[0].records) == log
    assert rows(answer)[0][3] == 2 * len(sizes)


# -- big frames --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_big_and_small_frames_in_one_stream_are_cut_right(world, seed):
    """Big ones are read into a buffer of their own, together with the first bytes of what follows."""
    chance = random.Random(seed)
    world.partition("t")
    client = world.connect()
    sizes = [chance.choice([10, 20_000, 131_000, 131_072, 300_000, 1_000_000]) for _ in range(25)]
    batches = [batch(1, size) for size in sizes]
    sent = bytearray()
    for number, data in enumerate(batches):
        frame = codec.encode_request(produce("t", {0: data}), 9, number, "me")
        sent += struct.pack(">i", len(frame)) + frame
    at = 0
    while at < len(sent):
        size = chance.choice([1, 4, 1000, 16_384, 200_000, 3_000_000])
        client.send(sent[at : at + size])
        at += size
        if chance.random() < 0.5:
            world.reactor.poll()
    for number in range(len(batches)):
        got, answer = codec.decode_response(messages.ProduceResponse, 9, client.receive_frame())
        part = answer.responses[0].partition_responses[0]
        assert (got, part.error_code, part.base_offset) == (number, 0, number)
    with open(os.path.join(world.directory, "t-0", f"{0:020d}.log"), "rb") as file:
        log = file.read()
    for data in batches:  # base offset and leader epoch are the broker's
        assert log[8:12] + log[16 : len(data)] == data[8:12] + data[16:]
        log = log[len(data) :]
    assert log == b""
    assert world.reactor.stats()["buffered_bytes"] == 0


def test_a_stream_of_big_frames_leaves_the_others_their_turn(tmp_path):
    """What one connection has sent may be far more than a turn takes."""
    world = World(str(tmp_path), receive_buffer_bytes=1 << 23)
    try:
        world.partition("t")
        flood, other = world.connect(), world.connect()
        flood.produce("t", batch(1, 1_000_000))  # so it is known to send big ones
        frame = codec.encode_request(produce("t", {0: batch(1, 1_000_000)}), 9, 1, "me")
        left = memoryview((struct.pack(">i", len(frame)) + frame) * 8)
        with contextlib.suppress(BlockingIOError):
            while left:
                left = left[flood.socket.send(left) :]
        waiting = len(frame) * 8 - len(left)
        if waiting < 5_000_000:
            pytest.skip(f"this kernel keeps {waiting} bytes for a socket at most")
        offset = other.produce("t", batch()).base_offset
        assert offset <= 1 + 3
        flood.send(left)
        for _ in range(8):
            flood.receive_frame()
    finally:
        world.close()
