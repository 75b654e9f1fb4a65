"""Client quotas in the data plane: who is asked how often, what is charged, and what a muted connection still
does. The arithmetic is in test_quota_table.py; rates over time are in tests/integration/test_quotas.py."""

import time

import pytest
from reactor_world import World, batch, fetch, produce, rows

from kafkad._native.shared.quota_table import QuotaTable
from kafkad.protocol import codec, messages
from kafkad.quota import Kind

PRODUCE, FETCH = 1 << Kind.PRODUCE, 1 << Kind.FETCH
SECONDS = 10  # that a burst may have


class QuotaWorld(World):
    def __init__(self, directory, **limits):
        super().__init__(directory, **limits)
        self.table_of_quotas = QuotaTable(1)
        self.table_of_quotas.enter(0)
        self.limits = {}  # by client id
        self.asked = []
        self.reactor.count_quotas(self.table_of_quotas, self.resolve)

    def resolve(self, kind, principal, client_id):
        self.asked.append((kind, principal, client_id))
        limit = self.limits.get((kind, client_id))
        return None if limit is None else (hash((kind, client_id)) & (1 << 63) - 1 | 2, limit)

    def limit(self, limits):
        self.limits = limits
        self.reactor.quotas_changed(sum({1 << kind for kind, _ in limits}))


@pytest.fixture
def world(tmp_path):
    world = QuotaWorld(tmp_path)
    yield world
    world.close()


def size_of(message, version, client_id="test"):
    return len(codec.encode_request(message, version, 1, client_id))


def test_without_quotas_nobody_is_asked_and_nothing_is_told(world):
    world.partition("t")
    client = world.connect()
    assert client.ask(produce("t", {0: batch(1, 100_000)}), 9).throttle_time_ms == 0
    assert world.asked == []


def test_a_client_is_resolved_once_for_each_kind_until_something_changes(world):
    world.partition("t")
    world.limit({(Kind.PRODUCE, "test"): 1e9, (Kind.FETCH, "test"): 1e9})
    client = world.connect()
    for _ in range(5):
        client.produce("t", batch())
        client.fetch([("t", 0, 0)])
    assert world.asked == [(0, "User:ANONYMOUS", "test"), (1, "User:ANONYMOUS", "test")]
    world.limit(world.limits)
    client.produce("t", batch())
    client.ask(produce("t", {0: batch()}), 9, client_id="other")
    client.ask(produce("t", {0: batch()}), 9, client_id=None)
    assert world.asked[2:] == [(0, "User:ANONYMOUS", name) for name in ("test", "other", "")]


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_a_produce_over_the_quota_is_appended_and_answered_at_once_with_the_pause(world, version):
    partition = world.partition("t")
    request = produce("t", {0: batch(1, 10_000)})
    size = size_of(request, version)
    world.limit({(Kind.PRODUCE, "test"): size / SECONDS})
    client, other = world.connect(), world.connect()
    assert client.ask(request, version).throttle_time_ms == 0
    began = time.monotonic()
    answer = client.ask(request, version)
    assert time.monotonic() - began < 1
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert answer.throttle_time_ms == pytest.approx(
        SECONDS * 1000, abs=500
    )  # as much again as ten seconds allow
    assert partition.end_offset == 2
    client.send_request(request, version)
    other.ask(request, version, client_id="free")  # has no quota
    assert not client.has_answer()
    assert partition.end_offset == 3
    assert world.reactor.stats()["pauses"] == 1


def test_all_connections_of_a_bucket_count_and_each_pauses_for_itself(world):
    world.partition("t")
    request = produce("t", {0: batch(1, 10_000)})
    world.limit({(Kind.PRODUCE, "test"): size_of(request, 9) / SECONDS})
    first, second = world.connect(), world.connect()
    first.ask(request, 9)
    assert second.ask(request, 9).throttle_time_ms > 0
    assert first.ask(request, 9).throttle_time_ms > 0


def test_a_muted_connection_is_served_again_after_its_pause_what_it_sent_meanwhile_in_order(world):
    partition = world.partition("t")
    request = produce("t", {0: batch(1, 1000)})
    size = size_of(request, 9)
    world.limit({(Kind.PRODUCE, "test"): size * 5})  # 50 of them, then 200 ms for each
    client = world.connect()
    for _ in range(50):
        assert client.ask(request, 9).throttle_time_ms == 0
    began = time.monotonic()
    sent = [client.send_request(request, 9) for _ in range(3)]
    answers = [client.receive(messages.ProduceResponse, 9, correlation) for correlation in sent]
    assert time.monotonic() - began >= 0.3
    assert partition.end_offset == 53
    assert [answer.throttle_time_ms > 0 for answer in answers] == [True] * 3


def test_a_produce_without_an_answer_pauses_its_client_too(world):
    partition = world.partition("t")
    request = produce("t", {0: batch(1, 10_000)}, acks=0)
    world.limit({(Kind.PRODUCE, "test"): size_of(request, 9) / SECONDS})
    client = world.connect()
    for _ in range(4):
        client.send_request(request, 9)
    world.poll(20)
    assert partition.end_offset == 2
    assert not client.has_answer()


def test_the_largest_pause_is_told_as_what_the_field_holds(world):
    world.partition("t")
    world.limit({(Kind.PRODUCE, "test"): 1e-9})
    client = world.connect()
    assert client.ask(produce("t", {0: batch(1, 10_000)}), 9).throttle_time_ms == 2**31 - 1


def test_a_quota_that_is_removed_ends_the_counting_but_not_a_pause(world):
    world.partition("t")
    request = produce("t", {0: batch(1, 10_000)})
    world.limit({(Kind.PRODUCE, "test"): 1.0})
    client, other = world.connect(), world.connect()
    client.ask(request, 9)
    world.limit({})
    assert other.ask(request, 9).throttle_time_ms == 0
    client.send_request(request, 9)
    assert not client.has_answer()


def test_a_muted_connection_that_is_closed_leaves_nothing_behind(world):
    world.partition("t")
    world.limit({(Kind.PRODUCE, "test"): 1000.0})
    client = world.connect()
    client.ask(produce("t", {0: batch(1, 20_000)}), 9)
    world.calls.clear()
    [connection] = world.reactor.connections()
    client.socket.close()
    world.poll_until(lambda: world.reactor.next_deadline_ms() is not None, 1)
    world.reactor.close()
    assert connection[0]


def test_a_muted_connection_does_not_idle_while_its_peer_is_there(tmp_path):
    world = QuotaWorld(tmp_path, connections_max_idle_ms=50)
    world.partition("t")
    world.limit({(Kind.PRODUCE, "test"): 1000.0})
    client, gone = world.connect(), world.connect()
    for each in (client, gone):
        each.ask(produce("t", {0: batch(1, 20_000)}), 9)
    gone.socket.close()
    began = time.monotonic()
    world.poll_until(lambda: time.monotonic() - began > 0.3)
    assert len(world.reactor.connections()) == 1
    assert not client.has_answer()
    world.close()


# -- Fetch -------------------------------------------------------------------------------------------------


def filled(world, count, size):
    world.partition("t")
    client = world.connect()
    for _ in range(count):
        client.produce("t", batch(1, size))
    return client


def test_a_fetch_over_the_quota_gets_no_partitions_and_is_not_charged(world):
    client = filled(world, 4, 10_000)
    world.limit({(Kind.FETCH, "test"): 1500.0})
    first = client.fetch([("t", 0, 0, 10_100)])
    assert (first.throttle_time_ms, [row[4] > 10_000 for row in rows(first)]) == (0, [True])
    over = client.fetch([("t", 0, 1, 10_100)])
    assert over.throttle_time_ms > 3000
    assert (over.error_code, over.session_id, rows(over)) == (0, 0, [])
    other = world.connect()
    assert other.fetch([("t", 0, 1, 10_100)]).throttle_time_ms == pytest.approx(
        over.throttle_time_ms, abs=100
    )


def test_a_fetch_asks_for_no_more_than_a_window_holds(world):
    client = filled(world, 10, 10_000)
    world.limit({(Kind.FETCH, "test"): 2600.0})  # two batches in ten seconds
    [row] = rows(client.fetch([("t", 0, 0)]))
    assert 20_000 < row[4] <= 26_000


def test_a_batch_that_no_window_has_room_for_is_sent_once_and_paid_for(world):
    client = filled(world, 2, 50_000)
    world.limit({(Kind.FETCH, "test"): 1000.0})
    answer = client.fetch([("t", 0, 0)])
    assert [row[4] > 50_000 for row in rows(answer)] == [True]
    assert answer.throttle_time_ms == pytest.approx(40_000, abs=1000)  # 50 s worth, less the window's ten
    other = world.connect()
    assert rows(other.fetch([("t", 0, 1)])) == []
    client.send_request(fetch([("t", 0, 1)]), 12)
    assert not client.has_answer()


def test_the_session_of_a_throttled_fetch_misses_no_change(world):
    """The high watermark that a throttled answer did not tell is told by the next one."""
    client = filled(world, 1, 100)
    opened = client.fetch([("t", 0, 1)], session_id=0, session_epoch=0)
    assert rows(opened) == [("t", 0, 0, 1, 0)]
    for _ in range(2):
        client.produce("t", batch(1, 3000))
    world.limit({(Kind.FETCH, "test"): 0.5})
    session = {"session_id": opened.session_id, "max_bytes": 1}
    over = client.fetch([], session_epoch=1, **session)
    # the first is larger than a window: it is sent, since nothing was counted
    assert rows(over)[0][3] == 3
    client = world.connect()
    client.produce("t", batch(1, 100))
    over = client.fetch([], session_epoch=2, **session)
    assert (over.error_code, over.session_id, rows(over)) == (0, opened.session_id, [])
    world.limit({})
    client = world.connect()
    assert rows(client.fetch([], session_epoch=3, **session))[0][3] == 4


def test_a_throttled_full_fetch_makes_no_session(world):
    client = filled(world, 2, 1000)
    world.limit({(Kind.FETCH, "test"): 150.0})
    client.fetch([("t", 0, 0, 1100)])
    over = world.connect().fetch([("t", 0, 1, 1100)], session_id=0, session_epoch=0)
    assert (over.throttle_time_ms > 0, over.session_id, rows(over)) == (True, 0, [])
    assert world.reactor.stats()["sessions"] == 0


def test_a_replica_is_charged_to_no_client(world):
    filled(world, 1, 10_000)
    world.limit({(Kind.FETCH, "test"): 1.0})
    client = world.connect()
    for _ in range(3):
        assert client.fetch([("t", 0, 0)], replica_id=5).throttle_time_ms == 0
