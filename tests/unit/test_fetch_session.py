"""Fetch sessions (KIP-227): what Kafka's FetchSession tests promise, over real sockets."""

import itertools
import os
import random
import shutil
import time

import pytest
from reactor_world import World, batch, fetch, rows

from kafkad.protocol import errors, messages

TOPIC_ID = bytes(range(16))


@pytest.fixture
def make(tmp_path):
    worlds = []

    def build(**options):
        directory = tmp_path / str(len(worlds))
        directory.mkdir()
        worlds.append(World(str(directory), **options))
        return worlds[-1]

    yield build
    for world in worlds:
        world.close()


@pytest.fixture
def world(make):
    return make()


def fill(world, topic="t", index=0, count=1):
    client = world.connect()
    for _ in range(count):
        client.produce(topic, batch(), index=index)


def start(client, partitions, version=12):
    answer = client.fetch(partitions, session_epoch=0, version=version)
    assert answer.error_code == 0
    return answer.session_id


def told(answer):
    return [row[:2] for row in rows(answer)]


def test_a_session_tells_only_what_changed(world):
    for index in range(3):
        world.partition("t", index)
    client = world.connect()
    answer = client.fetch([("t", i, 0) for i in range(3)], session_epoch=0)
    session = answer.session_id
    assert session > 0
    assert told(answer) == [("t", 0), ("t", 1), ("t", 2)]
    answer = client.fetch([], session_id=session, session_epoch=1)
    assert (answer.session_id, answer.error_code, told(answer)) == (session, 0, [])
    fill(world, index=1)
    answer = client.fetch([], session_id=session, session_epoch=2)
    assert rows(answer) == [("t", 1, 0, 1, len(batch()))]
    answer = client.fetch([("t", 1, 1)], session_id=session, session_epoch=3)
    assert told(answer) == []
    assert world.reactor.stats()["sessions"] == 1
    assert world.reactor.stats()["session_partitions"] == 3


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
def test_sessions_by_name_and_by_id(world, version):
    world.partition("t", topic_id=TOPIC_ID)
    topic = TOPIC_ID if version >= 13 else "t"
    client = world.connect()
    session = start(client, [(topic, 0, 0)], version)
    fill(world)
    answer = client.fetch([], session_id=session, session_epoch=1, version=version)
    assert rows(answer) == [(topic, 0, 0, 1, len(batch()))]


def test_a_session_that_is_not_there(world):
    answer = world.connect().fetch([], session_id=123, session_epoch=1)
    assert (answer.error_code, answer.session_id, answer.responses) == (
        errors.FETCH_SESSION_ID_NOT_FOUND,
        0,
        [],
    )


@pytest.mark.parametrize("epoch", [2, 5, 2**31 - 1])
def test_a_wrong_epoch_is_refused_and_changes_nothing(world, epoch):
    world.partition("t")
    client = world.connect()
    session = start(client, [("t", 0, 0)])
    answer = client.fetch([], session_id=session, session_epoch=epoch)
    assert (answer.error_code, answer.session_id) == (errors.INVALID_FETCH_SESSION_EPOCH, 0)
    assert client.fetch([], session_id=session, session_epoch=1).error_code == 0


def test_names_and_ids_do_not_mix_in_a_session(world):
    world.partition("t", topic_id=TOPIC_ID)
    client = world.connect()
    by_name, by_id = start(client, [("t", 0, 0)]), start(client, [(TOPIC_ID, 0, 0)], 13)
    for session, version in ((by_name, 13), (by_id, 12)):
        answer = client.fetch([], session_id=session, session_epoch=1, version=version)
        assert answer.error_code == errors.FETCH_SESSION_TOPIC_ID_ERROR


def test_partitions_are_added_and_forgotten(world):
    for index in range(3):
        world.partition("t", index)
        fill(world, index=index)
    client = world.connect()
    session = start(client, [("t", 0, 0)])
    answer = client.fetch([("t", 1, 0), ("t", 2, 0)], session_id=session, session_epoch=1)
    assert sorted(told(answer)) == [("t", 0), ("t", 1), ("t", 2)]
    answer = client.fetch(
        [], forgotten=[("t", 0), ("t", 2), ("other", 5)], session_id=session, session_epoch=2
    )
    assert told(answer) == [("t", 1)]
    assert world.reactor.stats()["session_partitions"] == 1


def test_a_session_without_partitions_is_closed(world):
    world.partition("t")
    client = world.connect()
    session = start(client, [("t", 0, 0)])
    answer = client.fetch([], forgotten=[("t", 0)], session_id=session, session_epoch=1)
    assert (answer.error_code, answer.session_id, answer.responses) == (0, 0, [])
    assert world.reactor.stats()["sessions"] == 0


def test_the_final_epoch_closes_the_session_and_still_fetches(world):
    world.partition("t")
    fill(world)
    client = world.connect()
    session = start(client, [("t", 0, 0)])
    answer = client.fetch([("t", 0, 0)], session_id=session, session_epoch=-1)
    assert (answer.session_id, rows(answer)[0][4]) == (0, len(batch()))
    assert world.reactor.stats()["sessions"] == 0


def test_a_full_fetch_replaces_the_session_it_names(world):
    world.partition("t")
    client = world.connect()
    session = start(client, [("t", 0, 0)])
    answer = client.fetch([("t", 0, 0)], session_id=session, session_epoch=0)
    assert answer.session_id not in (0, session)
    assert world.reactor.stats()["sessions"] == 1


def test_no_partition_starves(world):
    """What gave data goes to the end, so with room for one batch an answer each has its turn."""
    for index in range(4):
        world.partition("t", index)
        fill(world, index=index, count=5)
    client = world.connect()
    session = client.fetch([("t", i, 0) for i in range(4)], session_epoch=0, max_bytes=1).session_id
    order = []
    offsets = dict.fromkeys(range(4), 0)
    for epoch in range(1, 9):
        answer = client.fetch(
            [("t", i, offset) for i, offset in offsets.items()],
            session_id=session,
            session_epoch=epoch,
            max_bytes=1,
        )
        (index,) = [row[1] for row in rows(answer) if row[4]]
        order.append(index)
        offsets[index] += 1
    assert order == [0, 1, 2, 3] * 2


def test_an_error_is_told_again_and_its_end_too(world):
    world.partition("t")
    client = world.connect()
    session = start(client, [("t", 0, 0), ("later", 0, 0)])
    for epoch in (1, 2):
        answer = client.fetch([], session_id=session, session_epoch=epoch)
        assert rows(answer) == [("later", 0, errors.UNKNOWN_TOPIC_OR_PARTITION, -1, 0)]
    world.partition("later")
    answer = client.fetch([], session_id=session, session_epoch=3)
    assert rows(answer) == [("later", 0, 0, 0, 0)]
    assert told(client.fetch([], session_id=session, session_epoch=4)) == []
    world.table.remove("later", 0)
    answer = client.fetch([], session_id=session, session_epoch=5)
    assert rows(answer) == [("later", 0, errors.UNKNOWN_TOPIC_OR_PARTITION, -1, 0)]


def test_a_moved_log_start_is_told(world):
    partition = world.partition("t")
    fill(world, count=3)
    client = world.connect()
    session = start(client, [("t", 0, 3)])
    partition.set_log_start(2)
    answer = client.fetch([], session_id=session, session_epoch=1)
    assert [part.log_start_offset for topic in answer.responses for part in topic.partitions] == [2]


def test_a_recreated_topic_is_unknown_by_its_old_id(world):
    world.partition("t", topic_id=TOPIC_ID)
    client = world.connect()
    session = start(client, [(TOPIC_ID, 0, 0)], 13)
    world.table.remove("t", 0)
    other = bytes(range(1, 17))
    shutil.rmtree(f"{world.directory}/t-0")
    world.partition("t", topic_id=other)
    answer = client.fetch([], session_id=session, session_epoch=1, version=13)
    assert rows(answer) == [(TOPIC_ID, 0, errors.UNKNOWN_TOPIC_ID, -1, 0)]


# -- waiting -----------------------------------------------------------------------------------------------


def test_a_session_waits_for_any_of_its_partitions(world):
    for index in range(10):
        world.partition("t", index)
    client = world.connect()
    session = start(client, [("t", i, 0) for i in range(10)])
    caught_up = []
    for epoch, index in enumerate([7, 3, 9], 1):
        moved = [("t", i, 1) for i in caught_up]
        waiting = client.send_request(
            fetch(moved, session_id=session, session_epoch=epoch, max_wait_ms=60_000), 12
        )
        assert not client.has_answer()
        fill(world, index=index)
        answer = client.receive(messages.FetchResponse, 12, waiting)
        assert rows(answer) == [("t", index, 0, 1, len(batch()))]
        caught_up.append(index)


def test_the_same_session_on_two_connections_ends_the_first_wait(world):
    world.partition("t")
    first, second = world.connect(), world.connect()
    session = start(first, [("t", 0, 0)])
    waiting = first.send_request(fetch([], session_id=session, session_epoch=1, max_wait_ms=60_000), 12)
    assert not first.has_answer()
    answer = second.fetch([], session_id=session, session_epoch=2)
    assert answer.error_code == 0
    answer = first.receive(messages.FetchResponse, 12, waiting)
    assert (answer.error_code, answer.session_id) == (errors.INVALID_FETCH_SESSION_EPOCH, session)


def test_a_session_closed_by_another_lets_the_wait_end_well(world):
    world.partition("t")
    first, second = world.connect(), world.connect()
    session = start(first, [("t", 0, 0)])
    waiting = first.send_request(fetch([], session_id=session, session_epoch=1, max_wait_ms=60_000), 12)
    world.poll()
    second.fetch([], session_id=session, session_epoch=-1)
    fill(world)
    answer = first.receive(messages.FetchResponse, 12, waiting)
    assert rows(answer) == [("t", 0, 0, 1, len(batch()))]
    answer = first.fetch([], session_id=session, session_epoch=2)
    assert answer.error_code == errors.FETCH_SESSION_ID_NOT_FOUND


def test_a_connection_that_ends_leaves_its_session_usable(world):
    world.partition("t")
    first = world.connect()
    session = start(first, [("t", 0, 0)])
    first.send_request(fetch([], session_id=session, session_epoch=1, max_wait_ms=60_000), 12)
    world.poll()
    first.socket.close()
    world.poll()
    fill(world)
    answer = world.connect().fetch([], session_id=session, session_epoch=2)
    assert rows(answer) == [("t", 0, 0, 1, len(batch()))]


# -- the cache ---------------------------------------------------------------------------------------------


def test_a_full_cache_gives_no_session(make):
    world = make(fetch_session_slots=2)
    world.partition("t")
    client = world.connect()
    sessions = [client.fetch([("t", 0, 0)], session_epoch=0).session_id for _ in range(3)]
    assert sessions[2] == 0
    assert all(sessions[:2])
    for session in sessions[:2]:
        assert client.fetch([], session_id=session, session_epoch=1).error_code == 0


def test_no_slots_mean_no_sessions(make):
    world = make(fetch_session_slots=0)
    world.partition("t")
    assert world.connect().fetch([("t", 0, 0)], session_epoch=0).session_id == 0


def test_a_stale_session_makes_room(make):
    world = make(fetch_session_slots=2, fetch_session_eviction_ms=50)
    world.partition("t")
    client = world.connect()
    stale, used = start(client, [("t", 0, 0)]), start(client, [("t", 0, 0)])
    time.sleep(0.1)
    client.fetch([], session_id=used, session_epoch=1)
    assert start(client, [("t", 0, 0)]) != 0
    assert client.fetch([], session_id=stale, session_epoch=1).error_code == errors.FETCH_SESSION_ID_NOT_FOUND
    assert client.fetch([], session_id=used, session_epoch=2).error_code == 0
    assert world.reactor.stats()["session_evictions"] == 1


def test_a_bigger_session_takes_the_place_of_an_older_smaller_one(make):
    world = make(fetch_session_slots=2, fetch_session_eviction_ms=50)
    for index in range(4):
        world.partition("t", index)
    client = world.connect()
    small, middle = start(client, [("t", 0, 0)]), start(client, [("t", 0, 0), ("t", 1, 0)])
    time.sleep(0.1)
    client.fetch([], session_id=small, session_epoch=1)
    client.fetch([], session_id=middle, session_epoch=1)  # both in use, both old
    assert start(client, [("t", 3, 0)]) == 0  # not bigger than the smallest
    big = start(client, [("t", i, 0) for i in range(3)])
    assert big != 0
    assert client.fetch([], session_id=small, session_epoch=2).error_code == errors.FETCH_SESSION_ID_NOT_FOUND
    assert client.fetch([], session_id=middle, session_epoch=2).error_code == 0


def test_cached_partitions_are_bounded(make):
    world = make(fetch_session_partitions_max=100)
    client = world.connect()
    first = start(client, [("t", i, 0) for i in range(60)])
    assert first != 0
    assert client.fetch([("t", i, 0) for i in range(60)], session_epoch=0).session_id == 0
    answer = client.fetch([("t", i, 0) for i in range(60, 120)], session_id=first, session_epoch=1)
    assert answer.error_code == errors.FETCH_SESSION_ID_NOT_FOUND
    assert world.reactor.stats()["session_partitions"] == 0


@pytest.mark.parametrize("seed", range(10))
def test_any_course_of_sessions_tells_a_client_what_a_full_fetch_would(world, seed):
    """A client that applies incremental answers always knows what a sessionless Fetch tells."""
    chance = random.Random(seed)
    here = set()
    clients = [
        {"client": world.connect(), "session": 0, "epoch": 0, "wanted": {}, "known": {}} for _ in range(3)
    ]
    plain = world.connect()
    for _ in range(150):
        what = chance.random()
        index = chance.randrange(8)
        if what < 0.15 and index not in here:
            shutil.rmtree(os.path.join(world.directory, f"t-{index}"), ignore_errors=True)
            world.partition("t", index)
            here.add(index)
        elif what < 0.2 and index in here:
            world.table.remove("t", index)
            here.discard(index)
        elif what < 0.5 and index in here:
            plain.produce("t", batch(chance.randrange(1, 4)), index=index)
        else:
            one = chance.choice(clients)
            added = {chance.randrange(8): 0 for _ in range(chance.randrange(3))}
            dropped = [i for i in one["wanted"] if chance.random() < 0.1 and i not in added]
            if one["session"] == 0:
                dropped = []
                added = {**one["wanted"], **added} or {index: 0}
                one["known"] = {}
            for i in dropped:
                del one["wanted"][i]
                one["known"].pop(i, None)
            one["wanted"].update(added)
            answer = one["client"].fetch(
                [("t", i, offset) for i, offset in added.items()],
                forgotten=[("t", i) for i in dropped],
                session_id=one["session"],
                session_epoch=one["epoch"],
            )
            assert answer.error_code == 0
            if answer.session_id == 0:
                one.update(session=0, epoch=0)
            else:
                one.update(session=answer.session_id, epoch=one["epoch"] + 1)
            for row in rows(answer):
                one["known"][row[1]] = row[2:4]
            if answer.session_id and one["wanted"]:
                full = rows(plain.fetch([("t", i, offset) for i, offset in one["wanted"].items()]))
                assert {row[1]: row[2:4] for row in full} == one["known"]


def test_a_session_that_ends_empty_is_answered_what_its_last_request_names(world):
    """FetchManager.newContext: a partition named and forgotten at once is read, without a session."""
    world.partition("t")
    client = world.connect()
    assert client.produce("t", batch()).error_code == 0
    first = client.fetch([("t", 0, 0)], session_epoch=0)
    fields = {"session_id": first.session_id}
    both = client.fetch([("t", 0, 0)], forgotten=[("t", 0)], session_epoch=1, **fields)
    assert (both.error_code, both.session_id) == (0, 0)
    assert rows(both) == [("t", 0, 0, 1, len(batch()))]
    gone = client.fetch([], session_epoch=2, **fields)
    assert gone.error_code == errors.FETCH_SESSION_ID_NOT_FOUND


# -- sessions that no connection has -----------------------------------------------------------------------


def test_a_session_is_dropped_some_time_after_its_connection_has_closed(make):
    """They stayed until somebody wanted the place: 51 MB after a soak of 1,200 wide requests."""
    world = make(fetch_session_orphan_ms=100)
    world.partition("t")
    stays, leaves = world.connect(), world.connect()
    kept = start(stays, [("t", 0, 0)])
    for _ in range(3):  # of which it leaves two behind when it begins the next
        start(leaves, [("t", index, 0) for index in range(5)])
    assert world.reactor.stats()["sessions"] == 4
    leaves.socket.close()
    begun = time.monotonic()
    world.poll_until(lambda: world.reactor.stats()["sessions"] == 1)
    assert time.monotonic() - begun >= 0.05
    assert world.reactor.stats()["session_partitions"] == 1
    assert stays.fetch([], session_id=kept, session_epoch=1).error_code == 0
    assert world.reactor.next_deadline_ms() is None or world.reactor.stats()["sessions"] == 1


def test_a_session_that_another_connection_goes_on_with_stays(make):
    world = make(fetch_session_orphan_ms=300)
    world.partition("t")
    first, second = world.connect(), world.connect()
    session = start(first, [("t", 0, 0)])
    first.socket.close()
    world.poll()
    for epoch in range(1, 9):
        assert second.fetch([], session_id=session, session_epoch=epoch).error_code == 0
        time.sleep(0.1)
        world.poll()
    second.socket.close()
    world.poll_until(lambda: world.reactor.stats()["sessions"] == 0)


def test_many_large_sessions_are_freed_a_bounded_number_at_a_time(make):
    world = make(fetch_session_orphan_ms=100)
    client = world.connect()
    for _ in range(6):
        start(client, [("t", index, 0) for index in range(6_000)])
    client.socket.close()
    world.poll()
    left = [world.reactor.stats()["session_partitions"]]
    deadline = time.monotonic() + 10
    while left[-1]:
        assert time.monotonic() < deadline
        time.sleep(0.005)
        world.reactor.poll()
        left.append(world.reactor.stats()["session_partitions"])
    assert max(before - after for before, after in itertools.pairwise(left)) <= 12_000


def test_a_connection_that_closes_behind_its_session_does_no_harm(make):
    world = make(fetch_session_orphan_ms=100)
    world.partition("t")
    client = world.connect()
    session = start(client, [("t", 0, 0)])
    assert client.fetch([], session_id=session, session_epoch=-1).error_code == 0  # the session ends
    assert world.reactor.stats()["sessions"] == 0
    client.socket.close()
    world.poll()
    other = world.connect()
    assert start(other, [("t", 0, 0)])
    time.sleep(0.2)
    world.poll()
    assert world.reactor.stats()["sessions"] == 1
