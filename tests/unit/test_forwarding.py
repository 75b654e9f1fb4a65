"""Produce across workers: real processes, real sockets, partitions of either."""

import os
import random
import socket
import struct
import time

import pytest
from reactor_world import NOW_MS, Appended, batch, produce, rows
from workers_world import Workers

from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from tests.readiness import readable, writable

TOPIC_ID = bytes(range(16))
PROMPT_S = 0.3  # nothing is to come within it


@pytest.fixture
def three(tmp_path):
    workers = Workers(3, tmp_path)
    yield workers
    workers.close()


def codes_of(answer):
    return [part.error_code for topic in answer.responses for part in topic.partition_responses]


def offsets_of(answer):
    return [part.base_offset for topic in answer.responses for part in topic.partition_responses]


def nothing_is_held(workers, worker):
    workers.ask_until(worker, "stats", want=lambda stats: stats["buffered_bytes"] == 0)


def without_base_offsets(log):
    """The batches of a log as their producers sent them."""
    at = 0
    parts = []
    while at < len(log):
        (size,) = struct.unpack_from(">i", log, at + 8)
        parts.append(bytes(8) + log[at + 8 : at + 12] + b"\xff\xff\xff\xff" + log[at + 16 : at + 12 + size])
        at += 12 + size
    return parts


def as_sent(data):
    return bytes(8) + data[8:12] + b"\xff\xff\xff\xff" + data[16:]


# -- what goes well ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 14))
def test_both_directions_in_every_version(workers, version):
    topic = TOPIC_ID if version >= 13 else "t"
    for owner in (0, 1):
        workers.partition("t", owner, owner, topic_id=TOPIC_ID)
    clients = [workers.connect(worker) for worker in (0, 1)]
    for base_offset in (0, 3, 6, 9):
        client = clients[base_offset % 2]
        for acks in (1, -1):
            answer = client.ask(produce(topic, {0: batch(1), 1: batch(2)}, acks), version)
            (answered,) = answer.responses
            assert (answered.topic_id if version >= 13 else answered.name) == topic
            for part in answered.partition_responses:
                assert (part.error_code, part.log_append_time_ms) == (0, -1)
                assert part.log_start_offset == (0 if version >= 5 else -1)
                assert (part.record_errors, part.error_message) == ([], None)
    assert [workers.ask(owner, "end_offset", "t", owner) for owner in (0, 1)] == [8, 16]


def test_own_foreign_and_unknown_partitions_in_one_request(three):
    for index in range(6):
        three.partition("t", index, index % 3)
    client = three.connect(1)
    request = produce("t", {5: batch(1), 9: batch(1), 1: batch(2), 0: batch(3), 4: batch(4)})
    request.topic_data += produce("nowhere", {0: batch()}).topic_data
    request.topic_data += produce("u", {0: batch(5)}).topic_data
    three.partition("u", 0, 2)
    for times in (0, 1):
        answer = client.ask(request, 9)
        unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
        assert codes_of(answer) == [0, unknown, 0, 0, 0, unknown, 0]
        assert offsets_of(answer) == [1 * times, -1, 2 * times, 3 * times, 4 * times, -1, 5 * times]
        indexes = [part.index for topic in answer.responses for part in topic.partition_responses]
        assert indexes == [5, 9, 1, 0, 4, 0, 0]
        assert [topic.name for topic in answer.responses] == ["t", "nowhere", "u"]


def test_pipelined_requests_take_effect_and_are_answered_in_order(workers):
    for index in range(4):
        workers.partition("t", index, index % 2)
    client = workers.connect(0)
    chosen = random.Random(7)
    sent = []
    for number in range(400):
        indexes = chosen.sample(range(4), chosen.randint(1, 4))
        batches = {i: batch(1, size=chosen.choice([10, 100, 3000]) + number) for i in indexes}
        sent.append((client.send_request(produce("t", batches, chosen.choice([1, -1])), 9), batches))
    expected = dict.fromkeys(range(4), 0)
    for correlation_id, batches in sent:
        answer = client.receive(messages.ProduceResponse, 9, correlation_id)
        assert codes_of(answer) == [0] * len(batches)
        assert offsets_of(answer) == [expected[index] for index in batches]
        for index in batches:
            expected[index] += 1
    for index in range(4):
        assert without_base_offsets(workers.log("t", index)) == [
            as_sent(batches[index]) for _, batches in sent if index in batches
        ]
    nothing_is_held(workers, 0)


def test_an_answer_of_this_worker_does_not_wait_for_an_owner_that_stands_still(workers):
    """They leave together, but only if the owner is quick."""
    for owner in (0, 1):
        workers.partition("t", owner, owner, topic_id=TOPIC_ID)
    client = workers.connect(0)
    workers.stop(1)
    frames = [codec.encode_request(produce("t", {index: batch()}), 9, index, "me") for index in (0, 1)]
    client.send(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
    correlation_id, answer = codec.decode_response(messages.ProduceResponse, 9, client.receive_frame())
    assert (correlation_id, codes_of(answer)) == (0, [0])
    assert not readable([client.socket], PROMPT_S)
    workers.go(1)
    correlation_id, answer = codec.decode_response(messages.ProduceResponse, 9, client.receive_frame())
    assert (correlation_id, codes_of(answer)) == (1, [0])


def test_other_requests_wait_until_all_produces_before_them_are_answered(workers):
    workers.partition("t", 0, 1)
    client = workers.connect(0)
    workers.stop(1)
    produced = client.send_produce("t", batch())
    asked = client.send_request(messages.ApiVersionsRequest(), 0)
    assert not client.has_answer(PROMPT_S)
    assert workers.ask(0, "calls_seen") == []
    workers.go(1)
    assert codes_of(client.receive(messages.ProduceResponse, 9, produced)) == [0]
    assert client.receive_frame()[:4] == struct.pack(">i", asked)


@pytest.mark.parametrize("size", [100, 70_000, 300_000, 1_000_000])
def test_batches_of_all_sizes_arrive_whole(workers, size):
    workers.partition("t", 0, 1)
    workers.partition("t", 1, 0)
    clients = [workers.connect(0), workers.connect(0), workers.connect(1)]
    sent = {}
    for number in range(8):
        for client in clients:
            records = batch(1, size + number * 1000)
            sent.setdefault(client, []).append((client.send_produce("t", records, version=9), records))
    logs = {}
    for client, requests in sent.items():
        for correlation_id, records in requests:
            answer = client.receive(messages.ProduceResponse, 9, correlation_id)
            assert codes_of(answer) == [0]
            logs[offsets_of(answer)[0]] = as_sent(records)
    assert without_base_offsets(workers.log("t", 0)) == [logs[offset] for offset in range(len(logs))]
    nothing_is_held(workers, 0)


def test_what_was_forwarded_is_read_in_both_workers(workers):
    workers.partition("t", 0, 1)
    foreign, own = workers.connect(0), workers.connect(1)
    assert foreign.produce("t", batch(3, 100)).error_code == 0
    for client in (foreign, own):
        (row,) = rows(client.fetch([("t", 0, 0)]))
        assert row[:4] == ("t", 0, 0, 3)
        assert row[4] == len(batch(3, 100))


# -- acks --------------------------------------------------------------------------------------------------


def test_acks_0_gets_no_answer(workers):
    workers.partition("t", 0, 1)
    client = workers.connect(0)
    for _ in range(5):
        client.send_produce("t", batch(), acks=0)
    last = client.send_produce("t", batch())
    assert offsets_of(client.receive(messages.ProduceResponse, 9, last)) == [5]


def test_acks_0_with_an_error_of_the_owner_closes(workers):
    workers.partition("t", 0, 1)
    client = workers.connect(0)
    client.send_produce("t", batch()[:-1] + b"\xff", acks=0)
    client.wait_closed()
    assert "acks=0" in workers.ask(0, "told")[-1]
    nothing_is_held(workers, 0)


def test_acks_1_does_not_wait_for_the_owners_high_watermark(workers):
    workers.partition("t", 0, 1, follows_end=False)
    answer = workers.connect(0).ask(produce("t", {0: batch(3)}, 1), 9)
    assert codes_of(answer) == [0]


def test_what_the_owner_reaches_in_a_later_term_is_no_success(workers):
    workers.partition("t", 0, 1, follows_end=False)
    client = workers.connect(0)
    waiting = client.send_request(produce("t", {0: batch(3)}, -1), 9)
    workers.ask_until(1, "end_offset", "t", 0, want=lambda end: end == 3)
    workers.ask(1, "follow_and_lead", "t", 0, 4, 3)
    found = codes_of(client.receive(messages.ProduceResponse, 9, waiting))
    assert found == [errors.NOT_LEADER_OR_FOLLOWER]


def test_an_answer_waits_for_the_owners_high_watermark(workers):
    workers.partition("t", 0, 1, follows_end=False)
    workers.partition("t", 1, 0, follows_end=False)
    client = workers.connect(0)
    waiting = client.send_request(produce("t", {0: batch(3), 1: batch()}, -1), 9)
    workers.ask_until(1, "end_offset", "t", 0, want=lambda end: end == 3)
    workers.ask(0, "advance", "t", 1, 1)
    workers.ask(1, "advance", "t", 0, 2)
    assert not client.has_answer(PROMPT_S)
    workers.ask(1, "advance", "t", 0, 3)
    assert codes_of(client.receive(messages.ProduceResponse, 9, waiting)) == [0, 0]


def test_an_answer_does_not_wait_for_an_exchange_of_files(workers):
    """The cleaner's renames may take long on a busy disk. What was appended before them is appended."""
    workers.partition("t", 0, 1, follows_end=False)
    clients = [workers.connect(0) for _ in range(2)]
    waiting = []
    for number, client in enumerate(clients, 1):
        waiting.append(client.send_request(produce("t", {0: batch(3)}, -1), 9))
        workers.ask_until(1, "end_offset", "t", 0, want=lambda end, number=number: end == 3 * number)
    workers.ask(1, "advance_and_exchange", "t", 0, 3)
    assert codes_of(clients[0].receive(messages.ProduceResponse, 9, waiting[0])) == [0]
    assert not clients[1].has_answer(PROMPT_S)
    workers.ask(1, "end_exchange", "t", 0)
    assert not clients[1].has_answer(PROMPT_S)
    workers.ask(1, "advance", "t", 0, 6)
    assert codes_of(clients[1].receive(messages.ProduceResponse, 9, waiting[1])) == [0]


def test_an_answer_needs_no_list_of_the_segments(workers):
    workers.partition("t", 0, 1, follows_end=False)
    client = workers.connect(0)
    waiting = client.send_request(produce("t", {0: batch(3)}, -1), 9)
    workers.ask_until(1, "end_offset", "t", 0, want=lambda end: end == 3)
    directory = os.path.join(workers.directory, "t-0")
    os.rename(directory, directory + "-away")
    workers.ask(1, "advance_and_exchange", "t", 0, 1)
    workers.ask(1, "end_exchange", "t", 0)
    workers.ask(1, "advance", "t", 0, 2)
    assert not client.has_answer(PROMPT_S)
    workers.ask(1, "advance", "t", 0, 3)
    assert codes_of(client.receive(messages.ProduceResponse, 9, waiting)) == [0]


@pytest.mark.parametrize("seen", [False, True])
def test_an_owner_killed_in_an_exchange_of_files_is_no_leader(workers, seen):
    """`seen`: the other worker has seen all that was before the exchange."""
    workers.partition("t", 0, 1, follows_end=False)
    client = workers.connect(0)
    waiting = client.send_request(produce("t", {0: batch(3)}, -1), 9)
    workers.ask_until(1, "end_offset", "t", 0, want=lambda end: end == 3)
    if seen:
        workers.ask(1, "advance", "t", 0, 2)
        workers.ask_until(0, "high_watermark", "t", 0, want=lambda known: known == 2)
        workers.ask(1, "begin_exchange", "t", 0)
    else:
        workers.ask(1, "advance_and_exchange", "t", 0, 2)
    assert not client.has_answer(PROMPT_S)
    workers.kill(1)
    workers.ask(0, "peer_lost", 1)
    found = codes_of(client.receive(messages.ProduceResponse, 9, waiting))
    assert found == [errors.NOT_LEADER_OR_FOLLOWER]


def test_every_advance_answers_those_that_it_reaches(workers):
    workers.partition("t", 0, 1, follows_end=False)
    clients = [workers.connect(0) for _ in range(3)]
    for end in range(1, 31):
        clients[end % 3].send_produce("t", batch())
        workers.ask_until(1, "end_offset", "t", 0, want=lambda found, end=end: found == end)
    answers = dict.fromkeys(range(3), 0)
    for end in range(1, 31):
        workers.ask(1, "advance", "t", 0, end)
        answer = clients[end % 3].receive(messages.ProduceResponse, 9)
        assert (codes_of(answer), offsets_of(answer)) == ([0], [end - 1])
        answers[end % 3] += 1
    assert answers == {0: 10, 1: 10, 2: 10}


def test_a_request_that_was_held_is_answered_at_its_own_offset(workers):
    """It begins to wait for its partition here after those that were appended behind it."""
    workers.partition("t", 0, 0, follows_end=False)
    workers.partition("t", 1, 1)
    mixed, plain = workers.connect(0), workers.connect(0)
    workers.stop(1)
    mixed.send_request(produce("t", {0: batch(), 1: batch()}), 9)
    workers.ask_until(0, "end_offset", "t", 0, want=lambda end: end == 1)
    plain.send_produce("t", batch())
    workers.ask_until(0, "end_offset", "t", 0, want=lambda end: end == 2)
    workers.go(1)
    workers.ask_until(1, "end_offset", "t", 1, want=lambda end: end == 1)
    workers.ask_until(0, "stats", want=lambda stats: stats["produce_waits"] == 2)
    workers.ask(0, "advance", "t", 0, 1)
    assert codes_of(mixed.receive(messages.ProduceResponse, 9)) == [0, 0]
    assert not plain.has_answer(PROMPT_S)
    workers.ask(0, "advance", "t", 0, 2)
    assert codes_of(plain.receive(messages.ProduceResponse, 9)) == [0]


# -- what is refused ---------------------------------------------------------------------------------------


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
        (batch(producer_id=7, producer_epoch=0, base_sequence=5), errors.NOT_LEADER_OR_FOLLOWER),
    ],
)  # fmt: skip
def test_records_are_refused_as_by_an_owner(workers, records, code):
    for owner in (0, 1):
        workers.partition("t", owner, owner)
    client = workers.connect(0)
    answers = [client.produce("t", records, index=index) for index in (0, 1)]
    assert [answer.error_code for answer in answers] == [code, code]
    assert answers[0].error_message == answers[1].error_message
    assert answers[0].record_errors == answers[1].record_errors
    if code:
        assert workers.ask(1, "end_offset", "t", 1) == 0
    assert client.produce("t", batch(), index=1).error_code == 0


def test_a_gap_in_a_producers_sequence_is_the_owners_to_refuse(workers):
    workers.partition("t", 0, 1)
    client = workers.connect(0)
    for base_sequence, code in ((0, 0), (2, errors.OUT_OF_ORDER_SEQUENCE_NUMBER), (1, 0)):
        records = batch(producer_id=7, producer_epoch=0, base_sequence=base_sequence)
        assert client.produce("t", records).error_code == code
    again = client.produce("t", records)  # a retry
    assert (again.error_code, again.base_offset) == (0, 1)


def test_internal_topics_are_for_the_admin_client_only(workers):
    workers.partition("__consumer_offsets", 0, 1)
    client = workers.connect(0)
    request = produce("__consumer_offsets", {0: batch()})
    assert codes_of(client.ask(request, 9)) == [errors.INVALID_TOPIC_EXCEPTION]
    assert codes_of(client.ask(request, 9, client_id="__admin_client")) == [0]


def test_other_acks_are_refused(workers):
    workers.partition("t", 0, 1)
    client = workers.connect(0)
    assert client.produce("t", batch(), acks=2).error_code == errors.INVALID_REQUIRED_ACKS
    assert workers.ask(1, "end_offset", "t", 0) == 0


def takes_it(data, now_ms):
    return Appended(41, 0, NOW_MS, 7)


def refuses(data, now_ms):
    error = KafkaError(errors.INVALID_RECORD, "a compacted topic needs kéys")
    error.bad_record = 3
    raise error


def explains(data, now_ms):
    raise KafkaError(errors.POLICY_VIOLATION, "x" + "é" * 100)


def fails(data, now_ms):
    raise ZeroDivisionError


def test_what_needs_python_goes_to_the_owners_log(workers):
    workers.partition("t", 0, 1, append=takes_it)
    part = workers.connect(0).produce("t", batch(10, compression=1))
    assert (part.error_code, part.base_offset) == (0, 41)
    assert (part.log_append_time_ms, part.log_start_offset) == (NOW_MS, 7)
    assert workers.ask(1, "stats")["python_appends"] == 1
    assert workers.ask(0, "stats")["python_appends"] == 0


def test_a_refusal_of_the_owners_log_comes_with_its_sentence(workers):
    for index, append in enumerate((refuses, explains, fails)):
        workers.partition("t", index, 1, append=append)
    client = workers.connect(0)
    answer = client.ask(produce("t", dict.fromkeys(range(3), batch(compression=1))), 9)
    refused, explained, failed = answer.responses[0].partition_responses
    assert (refused.error_code, refused.error_message) == (
        errors.INVALID_RECORD,
        "a compacted topic needs kéys",
    )
    assert [error.batch_index for error in refused.record_errors] == [3]
    assert explained.error_code == errors.POLICY_VIOLATION
    assert explained.error_message == "x" + "é" * 63  # 127 bytes: whole characters of the first 128
    assert (failed.error_code, failed.error_message) == (errors.UNKNOWN_SERVER_ERROR, None)


def test_an_owner_that_has_it_no_longer_says_so(workers):
    workers.partition("t", 0, 1)
    workers.partition("t", 1, 1)
    workers.partition("t", 2, 1)
    workers.ask(1, "remove", "t", 0)
    workers.ask(1, "close_to_clients", "t", 1)
    answer = workers.connect(0).ask(produce("t", dict.fromkeys(range(3), batch())), 9)
    assert codes_of(answer) == [errors.NOT_LEADER_OR_FOLLOWER, errors.NOT_LEADER_OR_FOLLOWER, 0]


def test_a_row_that_is_another_topics_by_now_is_not_appended_to(workers):
    row = workers.partition("old", 0, 1)
    workers.ask(1, "remove", "old", 0)
    assert workers.ask_until(
        1, "own", "new", 0, TOPIC_ID, want=lambda number: number == row or workers.ask(1, "remove", "new", 0)
    ) == row  # fmt: skip
    part = workers.connect(0).produce("old", batch())
    assert part.error_code == errors.NOT_LEADER_OR_FOLLOWER
    assert workers.ask(1, "end_offset", "new", 0) == 0


# -- owners that do not answer -----------------------------------------------------------------------------


def test_an_owner_that_says_nothing_is_not_waited_for_longer_than_the_timeout(workers):
    workers.partition("t", 0, 1)
    workers.partition("t", 1, 0)
    client = workers.connect(0)
    workers.stop(1)
    began = time.monotonic()
    answer = client.ask(produce("t", {0: batch(), 1: batch(2)}, timeout_ms=1200), 9)
    assert 1 < time.monotonic() - began < 10
    assert codes_of(answer) == [errors.REQUEST_TIMED_OUT, 0]
    assert workers.ask(0, "stats")["buffered_bytes"] > 0  # the owner may still append from there
    workers.go(1)
    workers.ask_until(1, "end_offset", "t", 0, want=lambda end: end == 1)
    nothing_is_held(workers, 0)
    assert client.produce("t", batch()).base_offset == 1


def test_a_short_timeout_is_not_the_appends(workers):
    workers.partition("t", 0, 1)
    assert workers.connect(0).produce("t", batch(), acks=1, timeout_ms=0).error_code == 0


@pytest.mark.parametrize("acks", [0, 1])
def test_a_connection_closed_in_flight_leaves_nothing(workers, acks):
    workers.partition("t", 0, 1)
    workers.partition("t", 1, 0)
    client = workers.connect(0)
    workers.stop(1)
    for _ in range(3):
        client.send_request(produce("t", {0: batch(1, 100_000), 1: batch()}, acks), 9)
    workers.ask_until(0, "end_offset", "t", 1, want=lambda end: end == 3)
    client.socket.close()
    workers.go(1)
    workers.ask_until(1, "end_offset", "t", 0, want=lambda end: end == 3)
    nothing_is_held(workers, 0)
    workers.ask_until(0, "stats", want=lambda stats: stats["connections"] == 0)
    assert without_base_offsets(workers.log("t", 0)) == [as_sent(batch(1, 100_000))] * 3


def test_a_connection_reset_in_flight_leaves_nothing(workers):
    workers.partition("t", 0, 1)
    workers.partition("t", 1, 0)
    client = workers.connect(0)
    workers.stop(1)
    client.send_request(produce("t", {1: batch(), 0: batch(1, 100_000)}), 9)
    workers.ask_until(0, "end_offset", "t", 1, want=lambda end: end == 1)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    workers.ask_until(0, "stats", want=lambda stats: stats["connections"] == 0)
    assert workers.ask(0, "stats")["buffered_bytes"] > 0
    workers.go(1)
    nothing_is_held(workers, 0)
    assert without_base_offsets(workers.log("t", 0)) == [as_sent(batch(1, 100_000))]


def test_an_owner_killed_in_flight_is_no_leader(three):
    three.partition("t", 0, 1)
    three.partition("t", 1, 2)
    client, silent = three.connect(0), three.connect(0)
    three.stop(1)
    waiting = [client.send_request(produce("t", {0: batch(), 1: batch()}), 9) for _ in range(3)]
    silent.send_produce("t", batch(), acks=0)
    three.ask_until(2, "end_offset", "t", 1, want=lambda end: end == 3)
    three.kill(1)
    assert not client.has_answer()
    three.ask(0, "peer_lost", 1)
    for number, correlation_id in enumerate(waiting):
        answer = client.receive(messages.ProduceResponse, 9, correlation_id)
        assert codes_of(answer) == [errors.NOT_LEADER_OR_FOLLOWER, 0]
        assert offsets_of(answer) == [-1, number]
    silent.wait_closed()
    nothing_is_held(three, 0)
    began = time.monotonic()
    assert client.produce("t", batch()).error_code == errors.NOT_LEADER_OR_FOLLOWER
    assert time.monotonic() - began < 5  # it was not even sent


def test_a_successor_serves_and_hears_nothing_of_the_life_before(workers):
    workers.partition("t", 0, 1)
    client = workers.connect(0)
    workers.stop(1)
    lost = [client.send_produce("t", batch()) for _ in range(5)]
    workers.ask_until(0, "stats", want=lambda stats: stats["requests"].get(0) == 5)
    workers.kill(1)
    workers.start(1)  # nobody has told worker 0
    for correlation_id in lost:
        answer = client.receive(messages.ProduceResponse, 9, correlation_id)
        assert codes_of(answer) == [errors.NOT_LEADER_OR_FOLLOWER]
    workers.ask(0, "peer_lost", 1)  # late news, of the life before
    workers.partition("u", 0, 1)
    assert client.produce("u", batch()).base_offset == 0
    assert workers.connect(1).produce("u", batch()).base_offset == 1
    workers.partition("v", 0, 0)
    assert workers.connect(1).produce("v", batch()).base_offset == 0
    nothing_is_held(workers, 0)


def test_a_sender_killed_in_flight_leaves_whole_batches_only(workers):
    row = workers.partition("t", 0, 1, topic_id=TOPIC_ID)
    for life in range(4):
        clients = [workers.connect(0) for _ in range(4)]
        for client in clients:
            for _ in range(10):
                client.send_produce("t", batch(1, 50_000))
        workers.ask_until(1, "end_offset", "t", 0, want=lambda end, life=life: end > life * 20)
        workers.kill(0)
        workers.ask(1, "peer_lost", 0)
        workers.start(0)
        workers.ask(0, "read", "t", 0, TOPIC_ID, row, 1)
    own = workers.connect(1)
    assert own.produce("t", batch(1, 50_000)).error_code == 0
    kept = without_base_offsets(workers.log("t", 0))
    assert len(kept) == workers.ask(1, "end_offset", "t", 0)
    assert kept == [as_sent(batch(1, 50_000))] * len(kept)


def test_a_worker_that_stops_with_records_in_flight_stops(workers):
    workers.partition("t", 0, 1)
    workers.partition("t", 1, 0)
    client = workers.connect(0)
    workers.stop(1)
    client.send_request(produce("t", {1: batch(), 0: batch(1, 100_000)}), 9)
    workers.ask_until(0, "end_offset", "t", 1, want=lambda end: end == 1)
    workers.lines[0].close()
    client.wait_closed()
    assert workers.bury(0) == 0
    workers.go(1)
    workers.ask_until(1, "end_offset", "t", 0, want=lambda end: end == 1)
    assert without_base_offsets(workers.log("t", 0)) == [as_sent(batch(1, 100_000))]


def test_more_in_flight_than_a_ring_holds_stays_in_order(workers):
    workers.partition("t", 0, 1)
    workers.partition("t", 1, 0)
    clients = [workers.connect(0) for _ in range(5)]
    workers.stop(1)
    for number, client in enumerate(clients):
        for turn in range(200):
            records = batch(producer_id=number, producer_epoch=0, base_sequence=turn)
            client.send_request(produce("t", {0: records, 1: records}), 9)
    workers.ask_until(0, "end_offset", "t", 1, want=lambda end: end == 1000)
    workers.go(1)
    for client in clients:
        for _ in range(200):
            assert codes_of(client.receive(messages.ProduceResponse, 9)) == [0, 0]
    assert workers.ask(1, "end_offset", "t", 0) == 1000
    nothing_is_held(workers, 0)


def test_an_owner_that_stalls_costs_no_more_memory_than_there_may_be(tmp_path):
    bytes_max = 8 << 20
    workers = Workers(2, tmp_path, buffered_bytes_max=bytes_max)
    try:
        workers.partition("t", 0, 1)
        big, small = workers.connect(0), [workers.connect(0) for _ in range(20)]
        workers.stop(1)
        for client in small:
            for _ in range(50):
                client.send_produce("t", batch())
        data = codec.encode_request(produce("t", {0: batch(1, 1_000_000)}), 9, 1, "test")
        frames = memoryview((struct.pack(">i", len(data)) + data) * 40)
        big.socket.setblocking(False)
        while frames and writable(big.socket, 1):
            frames = frames[big.socket.send(frames) :]
        assert len(frames) > 40 * 1_000_000 - 2 * bytes_max
        assert workers.ask(0, "stats")["buffered_bytes"] < bytes_max + 2_000_000
        workers.go(1)
        big.socket.settimeout(30)
        big.send(frames)
        for client, count in [(big, 40), *((client, 50) for client in small)]:
            for _ in range(count):
                assert codes_of(client.receive(messages.ProduceResponse, 9)) == [0]
        assert workers.ask(1, "end_offset", "t", 0) == 40 + 20 * 50
        nothing_is_held(workers, 0)
    finally:
        workers.close()


# -- load --------------------------------------------------------------------------------------------------


def test_many_connections_of_both_workers_keep_their_own_order(workers):
    """Every record says which connection sent it, and as which: each partition has them all, once."""
    for index in range(4):
        workers.partition("t", index, index % 2)
    chosen = random.Random(3)
    clients = [workers.connect(number % 2) for number in range(8)]
    sent = {client: [] for client in clients}
    for turn in range(60):
        for number, client in enumerate(clients):
            batches = {
                index: batch(
                    1, size, producer_id=number * 4 + index + 1, producer_epoch=0, base_sequence=turn
                )
                for index in range(4)
                for size in (chosen.choice([20, 200, 5000]),)
            }
            sent[client].append((client.send_request(produce("t", batches), 9), 4))
        if turn % 20 == 19:
            for client in clients:
                for correlation_id, count in sent[client]:
                    answer = client.receive(messages.ProduceResponse, 9, correlation_id)
                    assert codes_of(answer) == [0] * count  # a gap, or a double, would be an error
                sent[client].clear()
    assert [workers.ask(index % 2, "end_offset", "t", index) for index in range(4)] == [480] * 4
    for worker in (0, 1):
        nothing_is_held(workers, worker)
        assert workers.ask(worker, "stats")["mail_in"] >= 60 * 4 * 2


def test_a_forwarding_load_makes_no_python_objects(workers):
    workers.partition("t", 0, 1)
    client = workers.connect(0)
    data = codec.encode_request(produce("t", {0: batch(1, 100)}), 9, 1, "load")
    frames = (struct.pack(">i", len(data)) + data) * 50
    blocks = []
    for _ in range(6):
        for _ in range(40):
            client.send(frames)
            for _ in range(50):
                client.receive_frame()
        blocks.append([workers.ask(worker, "allocated_blocks") for worker in (0, 1)])
    for worker in (0, 1):
        assert blocks[-1][worker] - blocks[2][worker] < 50
    assert workers.ask(1, "end_offset", "t", 0) == 12_000
    nothing_is_held(workers, 0)
