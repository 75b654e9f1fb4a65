"""Fetch in C: every version, byte budgets (KIP-74), long polls, epochs, topic ids."""

import copy
import os
import socket
import time

import pytest
from reactor_world import World, batch, fetch, produce, rows

from kafkad.api.node_endpoints import node_endpoints, node_entry
from kafkad.metadata.image import Endpoint
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.records import read_batches

VERSIONS = range(4, 19)
TOPIC_ID = bytes(range(16))


@pytest.fixture
def world(tmp_path):
    world = World(str(tmp_path))
    yield world
    world.close()


def fill(world, topic="t", index=0, sizes=(100,)):
    client = world.connect()
    for size in sizes:
        assert client.produce(topic, batch(1, size), index=index).error_code == 0


def log_of(world, topic="t", index=0):
    with open(os.path.join(world.directory, f"{topic}-{index}", f"{0:020d}.log"), "rb") as file:
        return file.read()


def topic_of(version):
    return TOPIC_ID if version >= 13 else "t"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_every_version_answers_with_the_log(world, version, isolation_level):
    world.partition("t", topic_id=TOPIC_ID)
    sizes = (100, 40_000, 5)
    fill(world, sizes=sizes)
    client = world.connect()
    for offset in (0, 2, 3):
        answer = client.fetch(
            [(topic_of(version), 0, offset)], version=version, isolation_level=isolation_level
        )
        assert (answer.error_code, answer.session_id, answer.throttle_time_ms) == (0, 0, 0)
        (topic,) = answer.responses
        (part,) = topic.partitions
        assert (topic.topic_id if version >= 13 else topic.topic) == topic_of(version)
        assert (part.partition_index, part.error_code) == (0, 0)
        assert (part.high_watermark, part.last_stable_offset) == (3, 3)
        assert part.log_start_offset == (0 if version >= 5 else -1)
        assert part.preferred_read_replica == -1
        assert part.aborted_transactions == ([] if isolation_level else None)
        assert bytes(part.records) == log_of(world)[sum(len(batch(1, size)) for size in sizes[:offset]) :]


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
def test_what_is_not_here_is_unknown(world, version):
    world.partition("t", topic_id=TOPIC_ID)
    fill(world)
    nowhere = bytes(range(1, 17)) if version >= 13 else "nowhere"
    answer = world.connect().fetch(
        [(nowhere, 0, 0), (topic_of(version), 5, 0), (topic_of(version), 0, 0)], version=version
    )
    missing = errors.UNKNOWN_TOPIC_ID if version >= 13 else errors.UNKNOWN_TOPIC_OR_PARTITION
    size = len(log_of(world))
    assert rows(answer) == [
        (nowhere, 0, missing, -1, 0),
        (topic_of(version), 5, errors.UNKNOWN_TOPIC_OR_PARTITION, -1, 0),
        (topic_of(version), 0, 0, 1, size),
    ]


@pytest.mark.parametrize("offset", [-1, 2, 1 << 60, -(1 << 60)])
def test_an_offset_out_of_range_is_told_at_once(world, offset):
    world.partition("t")
    fill(world)
    answer = world.connect().fetch([("t", 0, offset)], max_wait_ms=60_000)
    assert rows(answer) == [("t", 0, errors.OFFSET_OUT_OF_RANGE, -1, 0)]


def test_a_partition_that_is_offline_is_a_storage_error_that_old_clients_know(world):
    world.partition("t").close_to_clients(errors.KAFKA_STORAGE_ERROR)
    client = world.connect()
    assert rows(client.fetch([("t", 0, 0)], version=6))[0][2] == errors.KAFKA_STORAGE_ERROR
    assert rows(client.fetch([("t", 0, 0)], version=5))[0][2] == errors.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("epoch", "code"), [(-1, 0), (4, 0), (3, errors.FENCED_LEADER_EPOCH), (5, errors.UNKNOWN_LEADER_EPOCH)]
)
def test_the_clients_leader_epoch_is_checked(world, epoch, code):
    world.partition("t").lead(4)
    fill(world)
    request = fetch([("t", 0, 0)])
    request.topics[0].partitions[0].current_leader_epoch = epoch
    assert rows(world.connect().ask(request, 12))[0][2] == code


@pytest.mark.parametrize("version", [11, 15])
def test_followers_are_refused(world, version):
    world.partition("t", topic_id=TOPIC_ID)
    fill(world)
    request = fetch([(topic_of(version), 0, 0)])
    if version >= 15:
        request.replica_state.replica_id = 1
    else:
        request.replica_id = 1
    assert rows(world.connect().ask(request, version))[0][2] == errors.NOT_LEADER_OR_FOLLOWER


def test_only_committed_data_is_read(world):
    partition = world.partition("t", follows_end=False)
    client = world.connect()
    for _ in range(4):
        client.send_produce("t", batch())
    world.poll()
    partition.advance_high_watermark(2)
    reader = world.connect()
    one = len(batch())
    assert rows(reader.fetch([("t", 0, 0)])) == [("t", 0, 0, 2, 2 * one)]
    assert rows(reader.fetch([("t", 0, 2)])) == [("t", 0, 0, 2, 0)]


def abort(log, producer_id, sizes=(10,)):
    """A transaction of so many batches that is aborted; its first offset."""
    first = log.end_offset
    for sequence, size in enumerate(sizes, len(log.segments)):
        data = batch(
            1, size, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        log.append(bytearray(data), 1_000)
    log.append_marker(producer_id, 0, 0, commit=False, version=0, now_ms=1_000)
    return first


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_aborted_transactions_are_told_to_readers_of_committed_data(world, version):
    log = world.log("t", topic_id=TOPIC_ID)
    world.partition("u", topic_id=TOPIC_ID[::-1])
    firsts = [abort(log, 7, (20_000,)), abort(log, 1 << 40)]
    fill(world, topic="u", sizes=(20_000,))
    other = TOPIC_ID[::-1] if version >= 13 else "u"
    for isolation_level, offset, expected in [
        (1, 0, [(7, firsts[0]), (1 << 40, firsts[1])]),
        (1, firsts[1], [(1 << 40, firsts[1])]),
        (0, 0, None),
    ]:
        answer = world.connect().fetch(
            [(topic_of(version), 0, offset), (other, 0, 0)], version=version, isolation_level=isolation_level
        )
        first, second = (topic.partitions[0] for topic in answer.responses)
        told = first.aborted_transactions
        assert (told and [(txn.producer_id, txn.first_offset) for txn in told]) == expected
        assert bytes(first.records) == log.read(offset, 1 << 20)
        assert second.aborted_transactions == (None if expected is None else [])
        assert bytes(second.records) == log_of(world, "u")


def test_only_the_aborted_transactions_of_what_is_sent_are_told(world):
    """A reader that caught up over 100,000 aborts was told of all of them in every answer."""
    log = world.log("t", index_interval_bytes=1_000, segment_bytes=100_000)
    firsts = [abort(log, producer, (500,)) for producer in range(300)]
    assert len(log.segments) == 2
    told, offset = [], 0
    client = world.connect()
    while offset < log.end_offset:
        answer = client.fetch([("t", 0, offset, 10_000)], isolation_level=1)
        (part,) = answer.responses[0].partitions
        batches = list(read_batches(bytes(part.records)))
        within = [first for first in firsts if offset <= first <= batches[-1].last_offset]
        aborted = [txn.first_offset for txn in part.aborted_transactions]
        assert aborted[: len(within)] == within
        assert len(aborted) <= len(within) + 3  # up to the next index entry
        told += within
        offset = batches[-1].last_offset + 1
    assert told == firsts


def test_a_reader_that_waits_at_an_open_transaction_is_told_when_its_records_are_deleted(world):
    log = world.log("t")
    data = batch(1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.append(bytearray(data), 1_000)
    reader = world.connect()
    waiting = reader.send_request(fetch([("t", 0, 0)], max_wait_ms=60_000, isolation_level=1), 12)
    world.poll()
    log.delete_records(1)
    world.poll()
    (part,) = reader.receive(messages.FetchResponse, 12, waiting).responses[0].partitions
    assert part.error_code == errors.OFFSET_OUT_OF_RANGE


def test_readers_look_at_no_index_of_aborted_transactions_beyond_the_last_abort(world):
    """Every commit made each reader read all of them."""
    log = world.log("t")
    abort(log, 7)
    path = os.path.join(world.directory, "t-0", f"{0:020d}.txnindex")
    os.unlink(path)
    os.mkdir(path)  # who reads it fails
    for sequence in range(3):
        data = batch(1, producer_id=8, producer_epoch=0, base_sequence=sequence, transactional=True)
        log.append(bytearray(data), 1_000)
        log.append_marker(8, 0, 0, commit=True, version=0, now_ms=1_000)
        (part,) = world.connect().fetch([("t", 0, 2)], isolation_level=1).responses[0].partitions
        assert (part.error_code, part.aborted_transactions) == (0, [])
        assert len(list(read_batches(bytes(part.records)))) == 2 * (sequence + 1)
    (part,) = world.connect().fetch([("t", 0, 1)], isolation_level=1).responses[0].partitions
    assert (part.error_code, part.records) == (errors.KAFKA_STORAGE_ERROR, b"")


# -- bytes -------------------------------------------------------------------------------------------------


def test_the_first_partition_with_data_gives_at_least_one_batch(world):
    for index in range(3):
        world.partition("t", index)
    fill(world, index=1, sizes=(5000, 5000))
    fill(world, index=2, sizes=(50,))
    one = len(batch(1, 5000))
    for limits in ({"max_bytes": 1}, {"max_bytes": 0}):
        answer = world.connect().fetch([("t", 0, 0, 10), ("t", 1, 0, 10), ("t", 2, 0, 10)], **limits)
        assert [row[4] for row in rows(answer)] == [0, one, 0]
    answer = world.connect().fetch(
        [("t", 0, 0, 10), ("t", 1, 0, 10), ("t", 2, 0, 1000)], max_bytes=one + 1000
    )
    assert [row[4] for row in rows(answer)] == [0, one, len(batch(1, 50))]


def test_the_answer_is_bounded_by_max_bytes(world):
    for index in range(4):
        world.partition("t", index)
        fill(world, index=index, sizes=[1000] * 10)
    one = len(batch(1, 1000))
    answer = world.connect().fetch([("t", i, 0) for i in range(4)], max_bytes=15 * one)
    assert [row[4] for row in rows(answer)] == [10 * one, 5 * one, 0, 0]


def test_the_brokers_fetch_max_bytes_wins(world):
    world.reactor.set_limits(fetch_max_bytes=3000)
    world.partition("t")
    fill(world, sizes=[1000] * 10)
    answer = world.connect().fetch([("t", 0, 0)], min_bytes=1 << 30, max_wait_ms=60_000)
    assert 2000 < rows(answer)[0][4] <= 3000


def test_negative_limits_are_none(world):
    world.partition("t")
    fill(world, sizes=(10, 10))
    answer = world.connect().fetch([("t", 0, 0, -5)], max_bytes=-1)
    assert rows(answer)[0][4] == len(batch(1, 10))


@pytest.mark.parametrize("size", [10, 16_000, 17_000, 200_000])
@pytest.mark.parametrize("version", [11, 12])
def test_small_and_big_regions_of_many_partitions_interleave(world, size, version):
    for topic in ("a", "b"):
        for index in range(3):
            world.partition(topic, index)
            fill(world, topic, index, sizes=(size, size // 2, 7))
    partitions = [("a", 0, 0), ("a", 2, 1), ("b", 1, 0), ("a", 1, 3), ("b", 0, 2), ("b", 2, 0)]
    answer = world.connect().fetch(partitions, version=version)
    got = [(t.topic, p.partition_index, bytes(p.records)) for t in answer.responses for p in t.partitions]
    assert [(topic, index) for topic, index, _ in got] == [(topic, index) for topic, index, _ in partitions]
    sizes = [len(batch(1, s)) for s in (size, size // 2, 7)]
    for (topic, index, records), (_, _, offset) in zip(got, partitions, strict=True):
        assert records == log_of(world, topic, index)[sum(sizes[:offset]) :]
    assert len(answer.responses) == 4  # neighbours of one topic share an element


@pytest.mark.parametrize("version", [11, 12])
def test_big_answers_take_turns(world, version):
    """However fast its client reads, one connection has 256 KiB of files sent in a turn."""
    world.partition("t")
    fill(world, sizes=(900_000,) * 3)
    client = world.connect()
    before = world.reactor.stats()
    for _ in range(2):
        answer = client.fetch([("t", 0, 0, 1 << 22)], version=version)
        assert bytes(answer.responses[0].partitions[0].records) == log_of(world)
    after = world.reactor.stats()
    sent = after["bytes_out"] - before["bytes_out"]
    assert sent <= (after["rounds"] - before["rounds"]) * 270_000
    assert after["sendfiles"] - before["sendfiles"] >= 20


def test_the_small_rest_of_an_answer_is_sent_in_the_same_turn(world):
    """It was copied and sent alone, in a turn of its own: a part of most answers of 1 MB."""
    world.partition("t")
    fill(world, sizes=(270_000,))
    client = world.connect()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    writes = []
    for _ in range(30):  # a socket whose buffer is full leaves a rest, too; the buffers grow
        before = world.reactor.stats()
        answer = client.fetch([("t", 0, 0, 1 << 20)], version=11)
        assert bytes(answer.responses[0].partitions[0].records) == log_of(world)
        writes.append(world.reactor.stats()["writes"] - before["writes"])
    assert min(writes) == 1, writes  # the header; the records leave by sendfile


def test_hundreds_of_partitions_in_one_answer(world):
    for index in range(300):
        world.partition("t", index)
        fill(world, index=index, sizes=(index,))
    answer = world.connect().fetch([("t", i, 0) for i in range(300)])
    assert [row[4] for row in rows(answer)] == [len(batch(1, i)) for i in range(300)]


# -- long polls --------------------------------------------------------------------------------------------


def test_a_long_poll_ends_when_data_comes(world):
    world.partition("t")
    reader = world.connect()
    began = time.monotonic()
    waiting = reader.send_request(fetch([("t", 0, 0)], max_wait_ms=60_000), 12)
    assert not reader.has_answer()
    fill(world)
    answer = reader.receive(messages.FetchResponse, 12, waiting)
    assert rows(answer) == [("t", 0, 0, 1, len(batch()))]
    assert time.monotonic() - began < 5


def test_a_long_poll_ends_at_its_deadline_by_the_reactors_timer(world):
    world.partition("t")
    began = time.monotonic()
    answer = world.connect().fetch([("t", 0, 0)], max_wait_ms=150)
    assert 0.14 < time.monotonic() - began < 2
    assert rows(answer) == [("t", 0, 0, 0, 0)]
    assert world.reactor.stats()["fetch_timeouts"] == 1


def test_many_deadlines_come_in_order(world):
    world.partition("t")
    waits = [300, 50, 200, 100, 250, 150]
    clients = {wait: world.connect() for wait in waits}
    for wait, client in clients.items():
        client.send_request(fetch([("t", 0, 0)], max_wait_ms=wait), 12)
    world.poll()
    order = []

    def look():
        for wait in sorted(clients):  # two may be there by now
            if wait not in order and clients[wait].pull():
                order.append(wait)
        return len(order) == len(waits)

    world.poll_until(look)
    assert order == sorted(waits)


def test_min_bytes_are_gathered_over_partitions(world):
    for index in range(3):
        world.partition("t", index)
    one = len(batch(1, 1000))
    reader = world.connect()
    waiting = reader.send_request(
        fetch([("t", i, 0) for i in range(3)], min_bytes=3 * one, max_wait_ms=60_000), 12
    )
    fill(world, index=0, sizes=(1000,))
    assert not reader.has_answer()
    fill(world, index=2, sizes=(1000,))
    assert not reader.has_answer()
    fill(world, index=0, sizes=(1000,))
    answer = reader.receive(messages.FetchResponse, 12, waiting)
    assert [row[4] for row in rows(answer)] == [2 * one, 0, one]


def test_bytes_beyond_a_partitions_own_limit_do_not_count(world):
    world.partition("t")
    one = len(batch(1, 1000))
    reader = world.connect()
    waiting = reader.send_request(fetch([("t", 0, 0, one)], min_bytes=3 * one, max_wait_ms=1000), 12)
    fill(world, sizes=[1000] * 5)
    assert not reader.has_answer()
    answer = reader.receive(messages.FetchResponse, 12, waiting)
    assert rows(answer)[0][4] == one


def test_a_batch_that_would_be_cut_behind_a_large_one_stays_away_and_counts_for_min_bytes(world):
    world.partition("t")
    one = len(batch(1, 1000))
    limit = one + one // 2
    reader = world.connect()
    asked = fetch([("t", 0, 0, limit)], min_bytes=limit, max_wait_ms=60_000)
    waiting = reader.send_request(asked, 12)
    fill(world, sizes=(1000,))
    assert not reader.has_answer()
    fill(world, sizes=(1000,))
    assert rows(reader.receive(messages.FetchResponse, 12, waiting))[0][4] == one
    assert rows(reader.ask(asked, 12))[0][4] == one
    fill(world, sizes=(10,))
    assert rows(reader.fetch([("t", 0, 1, limit)]))[0][4] == one + len(batch(1, 10))
    assert rows(reader.fetch([("t", 0, 0, 2 * one + 1)]))[0][4] == 2 * one + 1


def test_min_bytes_are_no_more_than_max_bytes(world):
    world.partition("t")
    one = len(batch(1, 1000))
    reader = world.connect()
    waiting = reader.send_request(
        fetch([("t", 0, 0)], min_bytes=100 * one, max_bytes=one, max_wait_ms=60_000), 12
    )
    assert not reader.has_answer()
    fill(world, sizes=(1000,))
    assert rows(reader.receive(messages.FetchResponse, 12, waiting))[0][4] == one


def test_a_long_poll_waits_beside_a_partition_that_is_unknown(world):
    """As in Kafka: only a Fetch of nothing but unknown partitions is answered at once."""
    world.partition("t")
    reader = world.connect()
    waiting = reader.send_request(fetch([("gone", 0, 0), ("t", 0, 0)], max_wait_ms=60_000), 12)
    assert not reader.has_answer()
    fill(world)
    answer = reader.receive(messages.FetchResponse, 12, waiting)
    assert [row[2] for row in rows(answer)] == [errors.UNKNOWN_TOPIC_OR_PARTITION, 0]
    assert reader.fetch([("gone", 0, 0)], max_wait_ms=60_000).responses


def test_a_deleted_partition_ends_the_long_poll(world):
    world.partition("t")
    reader = world.connect()
    waiting = reader.send_request(fetch([("t", 0, 0)], max_wait_ms=60_000), 12)
    world.poll()
    world.table.remove("t", 0)
    answer = reader.receive(messages.FetchResponse, 12, waiting)
    assert rows(answer)[0][2] == errors.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_led_no_longer_ends_the_long_poll(world):
    partition = world.partition("t")
    reader = world.connect()
    waiting = reader.send_request(fetch([("t", 0, 0)], max_wait_ms=60_000), 12)
    world.poll()
    partition.close_to_clients()
    assert rows(reader.receive(messages.FetchResponse, 12, waiting))[0][2] == errors.NOT_LEADER_OR_FOLLOWER


def test_one_append_wakes_all_who_wait(world):
    world.partition("t")
    readers = [world.connect() for _ in range(50)]
    for reader in readers:
        reader.send_request(fetch([("t", 0, 0)], max_wait_ms=60_000), 12)
    world.poll()
    fill(world)
    for reader in readers:
        assert rows(reader.receive(messages.FetchResponse, 12))[0][4] == len(batch())
    assert world.reactor.stats()["fetch_waits"] == 50


def test_who_waited_for_the_same_batches_is_sent_one_copy(world):
    for index in range(2):
        world.partition("t", index)
        fill(world, index=index, sizes=(9,))
    readers = [world.connect() for _ in range(10)]
    for reader in readers:
        reader.send_request(fetch([("t", index, 1) for index in range(2)], max_wait_ms=60_000), 12)
    assert not any(reader.has_answer() for reader in readers)
    before = world.reactor.stats()["copies"]
    world.connect().send_request(produce("t", {index: batch(1, 5_000) for index in range(2)}), 9)
    for reader in readers:
        answer = reader.receive(messages.FetchResponse, 12)
        got = [bytes(p.records) for t in answer.responses for p in t.partitions]
        assert got == [log_of(world, index=index)[len(batch(1, 9)) :] for index in range(2)]
    assert world.reactor.stats()["copies"] - before == 2


def test_small_regions_of_more_files_and_bytes_than_copies_are_kept(world):
    sizes = [(each * 977) % 16_000 for each in range(40)]
    for index, size in enumerate(sizes):
        world.partition("t", index)
        fill(world, index=index, sizes=(size, 3))
    readers = [world.connect() for _ in range(6)]
    for shift, reader in enumerate(readers):
        order = [(index * 7 + shift * 11) % 40 for index in range(40)]
        reader.send_request(fetch([("t", index, index % 2) for index in order]), 12)
    for shift, reader in enumerate(readers):
        answer = reader.receive(messages.FetchResponse, 12)
        got = {p.partition_index: bytes(p.records) for t in answer.responses for p in t.partitions}
        assert got == {
            index: log_of(world, index=index)[index % 2 * len(batch(1, size)) :]
            for index, size in enumerate(sizes)
        }, shift


def test_an_advance_from_outside_of_a_poll_wakes_the_loop(world):
    partition = world.partition("t", follows_end=False)
    world.connect().send_produce("t", batch())
    reader = world.connect()
    waiting = reader.send_request(fetch([("t", 0, 0)], max_wait_ms=60_000), 12)
    world.poll()
    partition.advance_high_watermark(1)
    world.poll_until(lambda: reader.pull())
    assert rows(reader.receive(messages.FetchResponse, 12, waiting))[0][4] == len(batch())


# -- bad requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 7, 11, 12, 13, 18])
def test_a_body_that_is_cut_closes(world, version):
    good = codec.encode_request(fetch([(topic_of(version), 0, 0)] * 3), version, 1, "c")
    for frame in (good[:-1], good[:-9], good[: len(good) // 2]):
        client = world.connect()
        client.send_frame(frame)
        client.wait_closed()
        assert world.lines[-1].endswith("a Fetch does not parse")


def test_an_isolation_level_that_does_not_exist_is_an_error(world):
    world.partition("t")
    answer = world.connect().fetch([("t", 0, 0)], isolation_level=2)
    assert (answer.error_code, answer.responses) == (errors.UNKNOWN_SERVER_ERROR, [])


def test_a_partition_named_twice_is_read_once_as_last_named(world):
    world.partition("t")
    fill(world, sizes=(10, 10))
    answer = world.connect().fetch([("t", 0, 99), ("t", 0, 1)])
    assert rows(answer) == [("t", 0, 0, 2, len(batch(1, 10)))]


def test_tags_of_unknown_kinds_are_skipped(world):
    world.partition("t", topic_id=TOPIC_ID)
    fill(world)
    request = fetch([(TOPIC_ID, 0, 0)], cluster_id="some")
    request.unknown_tags = {7: b"later"}
    request.topics[0].partitions[0].unknown_tags = {9: b"x" * 300}
    request.topics[0].partitions[0].replica_directory_id = bytes(range(16))
    request.topics[0].partitions[0].high_watermark = 12
    assert rows(world.connect().ask(request, 18))[0][4] == len(batch())


def fetch_after(offset, last_epoch, *, version=12, current_epoch=-1, **fields):
    """A Fetch of "t"-0 by a client whose last batch is of `last_epoch`."""
    request = fetch([(topic_of(version), 0, offset)], **fields)
    part = request.topics[0].partitions[0]
    part.last_fetched_epoch = last_epoch
    part.current_leader_epoch = current_epoch
    return request


def log_of_epochs(world):
    """Epoch 2 begins at 0, 5 at 3, 6 at 5; the log ends at 6."""
    log = world.log("t", topic_id=TOPIC_ID)
    client = world.connect()
    for epoch, count in ((2, 3), (5, 2), (6, 1)):
        log.set_leader_epoch(epoch)
        for _ in range(count):
            assert client.produce("t", batch()).error_code == 0
    assert log.leader_epochs.entries == [(2, 0), (5, 3), (6, 5)]
    assert (log.native.log_start_offset, log.end_offset) == (0, 6)
    return client


OUT, READ = errors.OFFSET_OUT_OF_RANGE, None


@pytest.mark.parametrize("version", [12, 13, 18])
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize(
    ("offset", "last_epoch", "expected"),
    [
        (0, -1, READ),
        (4, -9, READ),  # not an epoch
        (6, 6, READ),
        (4, 6, READ),
        (7, 6, (6, 6)),  # beyond the end: not out of range, but where the logs part
        (5, 5, READ),
        (6, 5, (5, 5)),
        (3, 2, READ),
        (4, 2, (2, 3)),
        (2, 3, (2, 3)),  # an epoch that never was here: the one before it, wherever the client stands
        (6, 4, (2, 3)),
        (0, 1, READ),  # before the first epoch, which begins at 0
        (1, 1, (1, 0)),
        (2, 7, OUT),  # an epoch of the future
        (9, 1000, OUT),
        (-1, 6, OUT),  # before the log's start, whatever the epoch says
        (-5, 3, OUT),
    ],
)
def test_the_last_fetched_epoch_finds_where_the_logs_part(
    world, version, isolation_level, offset, last_epoch, expected
):
    """Partition.readRecords, KIP-595. `expected`: data, an error or the diverging (epoch, end offset)."""
    client = log_of_epochs(world)
    request = fetch_after(
        offset, last_epoch, version=version, isolation_level=isolation_level, max_wait_ms=60_000, min_bytes=0
    )
    part = client.ask(request, version).responses[0].partitions[0]
    diverging = (part.diverging_epoch.epoch, part.diverging_epoch.end_offset)
    if expected is READ:
        assert (part.error_code, diverging) == (0, (-1, -1))
        assert bool(part.records) == (offset < 6)
    elif expected == OUT:
        assert (part.error_code, diverging, part.high_watermark) == (OUT, (-1, -1), -1)
    else:
        assert (part.error_code, diverging) == (0, expected)
        assert (part.high_watermark, part.log_start_offset, bytes(part.records or b"")) == (6, 0, b"")
        assert part.aborted_transactions is None


def test_a_diverging_epoch_is_answered_at_once(world):
    client = log_of_epochs(world)
    request = fetch_after(7, 6, max_wait_ms=60_000, min_bytes=1 << 20)
    began = time.monotonic()
    client.ask(request, 12)
    assert time.monotonic() - began < 30


def test_the_leader_epoch_is_checked_before_the_last_fetched_one(world):
    client = log_of_epochs(world)
    for current, code in ((5, errors.FENCED_LEADER_EPOCH), (7, errors.UNKNOWN_LEADER_EPOCH), (6, OUT)):
        request = fetch_after(0, 9, current_epoch=current)
        assert rows(client.ask(request, 12))[0][2] == code


def test_a_session_tells_of_a_divergence_each_time_until_the_client_has_cut_its_log(world):
    client = log_of_epochs(world)
    first = client.ask(fetch_after(7, 6, session_epoch=0), 12)
    assert first.responses[0].partitions[0].diverging_epoch.end_offset == 6
    fields = {"session_id": first.session_id, "max_wait_ms": 0}
    again = client.fetch([], session_epoch=1, **fields)
    assert again.responses[0].partitions[0].diverging_epoch.end_offset == 6
    cut = client.ask(fetch_after(6, 6, session_epoch=2, session_id=first.session_id), 12)
    assert cut.responses == []


def test_an_old_version_does_not_compare_logs(world):
    client = log_of_epochs(world)
    part = client.fetch([("t", 0, 4)], version=11).responses[0].partitions[0]
    assert part.error_code == 0 and part.records


# -- who leads ---------------------------------------------------------------------------------------------


def leaders(answer):
    """(partition, error, leader id, its epoch) of each, and the nodes."""
    found = [
        (
            part.partition_index,
            part.error_code,
            part.current_leader.leader_id,
            part.current_leader.leader_epoch,
        )
        for topic in answer.responses
        for part in topic.partitions
    ]
    return found, [(node.node_id, node.host, node.port, node.rack) for node in answer.node_endpoints]


@pytest.mark.parametrize("rack", [None, "r" * 200])
@pytest.mark.parametrize("version", [15, 16, 18])
def test_an_old_leader_epoch_is_answered_with_the_leader_and_where_it_is(world, version, rack):
    """KIP-951: Kafka 4.3 names them with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH; we did not."""
    endpoint = Endpoint("host.example", 9092, 0)
    world.reactor.name_leader(7, {"PLAINTEXT": node_endpoints(7, endpoint, rack)})
    for index in range(3):
        world.partition("t", index, topic_id=TOPIC_ID).lead(4)
    request = fetch([(TOPIC_ID, index, 0) for index in range(3)])
    asked = [part for topic in request.topics for part in topic.partitions]
    asked[1].current_leader_epoch, asked[2].current_leader_epoch = 3, 5
    parts, nodes = leaders(world.connect().ask(request, version))
    named = version >= 16
    assert parts == [
        (0, 0, -1, -1),
        (1, errors.FENCED_LEADER_EPOCH, 7 if named else -1, 4 if named else -1),
        (2, errors.UNKNOWN_LEADER_EPOCH, -1, -1),
    ]
    assert nodes == ([(7, "host.example", 9092, rack)] if named else [])


def test_a_follower_is_told_who_leads(world):
    world.reactor.name_leader(7, {"PLAINTEXT": node_endpoints(7, Endpoint("h", 1, 0), None)})
    world.partition("t", topic_id=TOPIC_ID).lead(4)
    request = fetch([(TOPIC_ID, 0, 0)])
    request.replica_state.replica_id = 1
    expected = [(0, errors.NOT_LEADER_OR_FOLLOWER, 7, 4)], [(7, "h", 1, None)]
    assert leaders(world.connect().ask(request, 16)) == expected


def test_a_replica_names_the_broker_that_leads_now(world):
    entries = {
        ("PLAINTEXT", each): node_entry(each, Endpoint(f"h{each}" * 40, each, 0), None) for each in (7, 8, 9)
    }
    world.reactor.name_leader(7, {"PLAINTEXT": node_endpoints(7, Endpoint("h", 1, 0), None)})
    world.reactor.name_leaders(entries)
    for index, leader in enumerate((8, 9, -1)):
        world.partition("t", index, topic_id=TOPIC_ID).follow(5, leader)
    request = fetch([(TOPIC_ID, index, 0) for index in range(3)])
    for topic in request.topics:
        topic.partitions[0].current_leader_epoch = 4
    code = errors.FENCED_LEADER_EPOCH
    assert leaders(world.connect().ask(request, 17)) == (
        [(0, code, 8, 5), (1, code, 9, 5), (2, code, -1, 5)],
        [(8, "h8" * 40, 8, None), (9, "h9" * 40, 9, None)],
    )
    request = fetch([(TOPIC_ID, 0, 0)])
    request.replica_state.replica_id = 1
    assert leaders(world.connect().ask(request, 17))[0] == [(0, errors.NOT_LEADER_OR_FOLLOWER, 8, 5)]


def test_a_listener_that_is_not_advertised_names_no_node(world):
    world.reactor.name_leader(7, {"OTHER": node_endpoints(7, Endpoint("h", 1, 0), None)})
    world.partition("t", topic_id=TOPIC_ID).lead(4)
    request = fetch([(TOPIC_ID, 0, 0)])
    request.topics[0].partitions[0].current_leader_epoch = 3
    expected = [(0, errors.FENCED_LEADER_EPOCH, 7, 4)], []
    assert leaders(world.connect().ask(request, 18)) == expected


@pytest.mark.parametrize("repeats", [1, 8])
def test_a_long_topic_name_costs_no_more_for_each_of_its_partitions(world, repeats):
    """A Fetch of 64,000 partitions of a name of 32 KB stopped the others for 0.46 s: the name was hashed for
    each of them. So did one that gives the name several times, with the same partitions."""
    client = world.connect()

    def seconds(name):
        request = fetch([(name, 0, 0)])
        topic = request.topics[0]
        (one,) = topic.partitions
        topic.partitions = []
        for index in range(64_000 // repeats):
            part = copy.copy(one)
            part.partition = index
            topic.partitions.append(part)
        request.topics = [topic] * repeats
        taken = []
        for _ in range(3):
            begun = time.process_time()  # the reactor is in this process
            client.send_request(request, 4)
            client.receive_frame()
            taken.append(time.process_time() - begun)
        return min(taken)

    assert seconds("n" * 32_000) < 6 * seconds("n" * 100)
