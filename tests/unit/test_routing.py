"""A client asks any worker for anything (world: routing_world.py).

test_routing_answers.py compares the answers with those of a broker with one worker."""

import asyncio
from types import SimpleNamespace

import pytest

from kafkad.api import table
from kafkad.api.context import RequestContext
from kafkad.api.table import Route
from kafkad.config import loggers
from kafkad.protocol import codec, errors, messages
from kafkad.server import routing
from kafkad.server.error_response import error_response
from kafkad.server.routing import pack, unpack
from kafkad.server.turns import Turns
from kafkad.server.worker_links import PeerTrouble
from tests.unit.coordinator_world import protocol, subscription
from tests.unit.metadata_world import new_topic
from tests.unit.routing_world import LEVEL, LOGGER
from tests.unit.steps import finish

pytestmark = pytest.mark.timeout(120)
m = messages


# -- groups ------------------------------------------------------------------------------------------------


async def join(client, group, version=9, member_id="", **fields):
    request = m.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[protocol("range", subscription("a"))],
        **fields,
    )
    response = await client.ask(request, version, client_id=f"client of {group}")
    if response.error_code == errors.MEMBER_ID_REQUIRED:
        return await join(client, group, version, response.member_id, **fields)
    return response


@pytest.mark.parametrize("me", [0, 1])
def test_members_of_one_group_meet_over_whatever_worker_they_are_connected_to(make_world, me):
    world = make_world(2, me)

    async def scenario():
        for owner in range(2):
            group = world.group_of(owner)
            one, two = await world.client(), await world.client()
            first = await join(one, group)
            assert (first.error_code, first.leader) == (errors.NONE, first.member_id)
            second = asyncio.ensure_future(join(two, group))
            await until_rebalancing(one, group)
            assert not second.done()  # it is held until the first has come back
            again = await join(one, group, member_id=first.member_id)
            joined = await second
            assert again.generation_id == joined.generation_id == first.generation_id + 1
            assert {member.member_id for member in again.members} == {first.member_id, joined.member_id}

            waiting = asyncio.ensure_future(two.ask(sync(group, joined)))
            assigned = [(first.member_id, b"one"), (joined.member_id, b"two")]
            assert (await one.ask(sync(group, again, assigned))).assignment == b"one"
            assert (await waiting).assignment == b"two"

            (described,) = (await one.ask(m.DescribeGroupsRequest(groups=[group]))).groups
            assert described.group_state == "Stable"
            assert {(each.client_id, each.client_host) for each in described.members} == {
                (f"client of {group}", "/127.0.0.1")
            }
            members = [m.LeaveGroupRequest.Members(member_id=first.member_id)]
            left = await two.ask(m.LeaveGroupRequest(group_id=group, members=members))
            assert [each.error_code for each in left.members] == [errors.NONE]

        listed = await one.ask(m.ListGroupsRequest())
        assert {each.group_id for each in listed.groups} == {world.group_of(0), world.group_of(1)}

    world.run(scenario())


async def until_rebalancing(client, group):
    state = ""
    while state != "PreparingRebalance":
        (described,) = (await client.ask(m.DescribeGroupsRequest(groups=[group]))).groups
        assert not described.error_code
        state = described.group_state


def sync(group, joined, assignments=()):
    return m.SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            m.SyncGroupRequest.Assignments(member_id=member_id, assignment=assignment)
            for member_id, assignment in assignments
        ],
    )


def test_a_held_request_holds_its_own_connection_only(make_world):
    world = make_world(2)

    async def scenario():
        group = world.group_of(1)
        one, two, three = [await world.client() for _ in range(3)]
        first = await join(one, group)
        held = asyncio.ensure_future(join(two, group))
        await until_rebalancing(three, group)
        again = await join(one, group, member_id=first.member_id)
        assert (await held).generation_id == again.generation_id

    world.run(scenario())


def test_pipelined_requests_to_several_workers_take_effect_and_are_answered_in_order(make_world):
    world = make_world(3)
    Topic = m.OffsetCommitRequest.Topics

    async def scenario():
        client = await world.client()
        sent = []
        for number in range(60):
            group = world.group_of(number % 3)
            partitions = [Topic.Partitions(partition_index=0, committed_offset=number)]
            commit = m.OffsetCommitRequest(
                group_id=group,
                topics=[Topic(name="a", partitions=partitions)],
                generation_id_or_member_epoch=-1,
            )
            fetch = m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.Groups(group_id=group, topics=None)])
            sent.append((number, commit, client.send(commit, 9), fetch, client.send(fetch, 9)))
        for number, commit, committed, fetch, fetched in sent:
            response = await client.receive(commit, 9, committed)
            assert response.topics[0].partitions[0].error_code == errors.NONE
            response = await client.receive(fetch, 9, fetched)
            assert response.groups[0].topics[0].partitions[0].committed_offset == number

    world.run(scenario())


# -- the controller ----------------------------------------------------------------------------------------


def test_topics_are_made_by_the_worker_of_the_controller(make_world):
    world = make_world(3, me=2)

    async def scenario():
        client = await world.client()
        for version in range(2, 8):
            name = f"new{version}"
            request = m.CreateTopicsRequest(topics=[new_topic(name, 2)])
            (made,) = (await client.ask(request, version)).topics
            assert (made.name, made.error_code) == (name, errors.NONE)
            (made,) = (await client.ask(request, version)).topics
            assert made.error_code == errors.TOPIC_ALREADY_EXISTS
            grow = m.CreatePartitionsRequest(
                topics=[m.CreatePartitionsRequest.Topics(name=name, count=3, assignments=None)]
            )
            assert [each.error_code for each in (await client.ask(grow)).results] == [errors.NONE]
            delete = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.Topics(name=name)])
            assert [each.error_code for each in (await client.ask(delete)).responses] == [errors.NONE]

    world.run(scenario())


def test_a_worker_gives_producer_ids_of_its_own_blocks(make_world):
    world = make_world(2, me=1)

    async def scenario():
        client = await world.client()
        found = [
            (await client.ask(m.InitProducerIdRequest(transactional_id=None))).producer_id for _ in range(5)
        ]
        assert found == list(range(1_000_000, 1_000_005))

    world.run(scenario())


@pytest.mark.parametrize("me", [0, 1])
def test_log_levels_are_set_in_every_worker_and_the_rest_by_the_controller(make_world, me):
    world = make_world(3, me)
    cls = m.IncrementalAlterConfigsRequest

    def resource(kind, name, key, operation, value=None):
        config = cls.Resources.Configs(name=key, config_operation=operation, value=value)
        return cls.Resources(resource_type=kind, resource_name=name, configs=[config])

    async def levels():
        others = [await world.peers.call(k, LEVEL) for k in sorted(world.peers.up)]
        return [loggers.levels()[LOGGER], *(level.decode() for level in others)]

    async def scenario():
        client = await world.client()
        before = await levels()
        request = cls(
            resources=[
                resource(2, "a", "retention.ms", 0, "1000"),
                resource(8, "1", LOGGER, 0, "DEBUG"),
                resource(2, "nowhere", "retention.ms", 0, "1000"),
            ]
        )
        response = await client.ask(request)
        assert [(each.resource_name, each.error_code) for each in response.responses] == [
            ("a", errors.NONE),
            ("1", errors.NONE),
            ("nowhere", errors.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert before != ["DEBUG"] * 3 == await levels()
        response = await client.ask(cls(resources=[resource(8, "1", LOGGER, 1)]))
        assert [each.error_code for each in response.responses] == [errors.NONE]
        assert await levels() == before
        response = await client.ask(cls(resources=[resource(8, "1", "no.such.logger", 0, "DEBUG")]))
        assert [each.error_code for each in response.responses] == [errors.INVALID_CONFIG]

    world.run(scenario())


# -- a worker that is gone ---------------------------------------------------------------------------------


def test_what_a_dead_worker_had_is_refused_so_that_clients_try_again(make_world):
    world = make_world(2)

    async def scenario():
        client = await world.client()
        dead = world.group_of(1)
        world.kill(1)
        while 1 in world.peers.up:
            await asyncio.sleep(0)

        owners = [world.owner("a", index) for index in range(6)]
        Topic = m.ListOffsetsRequest.Topics
        partitions = [Topic.Partitions(partition_index=index, timestamp=-1) for index in range(6)]
        listed = await client.ask(
            m.ListOffsetsRequest(replica_id=-1, topics=[Topic(name="a", partitions=partitions)])
        )
        assert [(each.error_code, each.offset) for each in listed.topics[0].partitions] == [
            (errors.NONE, 2 * index + 2) if owner == 0 else (errors.NOT_LEADER_OR_FOLLOWER, -1)
            for index, owner in enumerate(owners)
        ]
        for request in (
            m.JoinGroupRequest(group_id=dead, session_timeout_ms=10_000),
            m.SyncGroupRequest(group_id=dead, protocol_type="consumer", protocol_name="range"),
            m.HeartbeatRequest(group_id=dead),
            m.LeaveGroupRequest(group_id=dead),
            m.OffsetDeleteRequest(group_id=dead),
        ):
            assert (await client.ask(request)).error_code == errors.NOT_COORDINATOR, request.NAME
        alive = world.group_of(0)
        groups = (await client.ask(m.DescribeGroupsRequest(groups=[dead, alive, dead]))).groups
        assert [(each.group_id, each.error_code) for each in groups] == [
            (dead, errors.NOT_COORDINATOR),
            (alive, errors.GROUP_ID_NOT_FOUND),
            (dead, errors.NOT_COORDINATOR),
        ]
        results = (await client.ask(m.DeleteGroupsRequest(groups_names=[dead, alive, dead]))).results
        assert [(each.group_id, each.error_code) for each in results] == [
            (dead, errors.NOT_COORDINATOR),
            (alive, errors.GROUP_ID_NOT_FOUND),
        ]

    world.run(scenario())


@pytest.mark.parametrize("version", range(1, 11))
def test_offsets_of_a_dead_workers_group_are_refused_in_every_version(make_world, version):
    request = (
        m.OffsetFetchRequest(
            group_id="g", topics=[m.OffsetFetchRequest.Topics(name="a", partition_indexes=[1])]
        )
        if version < 8
        else m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.Groups(group_id="g", topics=None)])
    )
    response = finish(error_response(9, version, request, errors.NOT_COORDINATOR))
    _, read = codec.decode_response(
        m.OffsetFetchResponse, version, codec.encode_response(response, version, 1)
    )
    if version >= 8:
        assert [each.error_code for each in read.groups] == [errors.NOT_COORDINATOR]
    else:
        (partition,) = read.topics[0].partitions
        assert (partition.error_code, partition.committed_offset) == (errors.NOT_COORDINATOR, -1)


def test_a_request_that_is_with_a_worker_when_it_dies_is_refused(make_world):
    world = make_world(2)

    async def scenario():
        group = world.group_of(1)
        one, two = await world.client(), await world.client()
        await join(one, group)
        held = asyncio.ensure_future(join(two, group))
        await until_rebalancing(one, group)
        world.kill(1)
        assert (await held).error_code == errors.NOT_COORDINATOR

    world.run(scenario())


def test_the_controller_and_those_asked_together_are_waited_for(make_world):
    world = make_world(3, me=1)

    async def scenario():
        client, other = await world.client(), await world.client()
        world.kill(0)
        while 0 in world.peers.up:
            await asyncio.sleep(0)
        made = asyncio.ensure_future(client.ask(m.CreateTopicsRequest(topics=[new_topic("late")])))
        listed = asyncio.ensure_future(other.ask(m.ListGroupsRequest()))
        await asyncio.sleep(0.05)
        assert not made.done() and not listed.done()
        world.fork(0)
        assert [each.error_code for each in (await made).topics] == [errors.NONE]
        assert (await listed).error_code == errors.NONE

    world.run(scenario())


def test_but_not_for_ever(make_world, monkeypatch):
    monkeypatch.setattr(routing, "PATIENCE_S", 0.05)
    world = make_world(2, me=1)

    async def scenario():
        client = await world.client()
        world.kill(0)
        while 0 in world.peers.up:
            await asyncio.sleep(0)
        made = await client.ask(m.CreateTopicsRequest(topics=[new_topic("never")]))
        assert [(each.name, each.error_code) for each in made.topics] == [("never", errors.REQUEST_TIMED_OUT)]
        owner = world.site.services.transaction_owner
        name = next(name for name in map(str, range(100)) if owner(name) == 0)
        ids = await client.ask(m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1_000))
        assert ids.error_code == errors.COORDINATOR_LOAD_IN_PROGRESS
        groups = await client.ask(m.ListGroupsRequest())
        assert (groups.error_code, groups.groups) == (errors.COORDINATOR_NOT_AVAILABLE, [])
        assert (
            await client.ask(m.DescribeLogDirsRequest(topics=None))
        ).error_code == errors.REQUEST_TIMED_OUT

    world.run(scenario())


# -- trouble -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [0, 1])
def test_a_handler_that_fails_elsewhere_is_told_like_one_that_fails_here(make_world, owner):
    world = make_world(2)

    async def scenario():
        client = await world.client()
        group = world.group_of(owner, "broken")
        response = await client.ask(m.OffsetDeleteRequest(group_id=group))
        assert response.error_code == errors.UNKNOWN_SERVER_ERROR

    world.run(scenario())


def test_nonsense_between_workers_does_no_harm(make_world):
    world = make_world(2)

    async def scenario():
        for payload in (b"", b"\0" * 10, b"\xff" * 40):
            with pytest.raises(PeerTrouble):
                await world.peers.call(1, routing.FORWARD, payload)
        client = await world.client()
        response = await client.ask(m.HeartbeatRequest(group_id=world.group_of(1)))
        assert response.error_code == errors.UNKNOWN_MEMBER_ID

    world.run(scenario())


def test_surroundings_travel_with_a_request():
    connection = SimpleNamespace(
        client_software_name="librdkafka", client_software_version="2.6", hung_up=False
    )
    context = RequestContext(11, 9, 7, "c", "::1", "INSIDE", connection, "User:ÄÖ")
    client, frame = unpack(pack(context, b"the frame"))
    assert frame == b"the frame"
    assert (client.peer_host, client.listener, client.principal) == ("::1", "INSIDE", "User:ÄÖ")
    assert (client.client_software_name, client.client_software_version) == ("librdkafka", "2.6")
    connection.client_software_name = "a" * 100_000  # as in an ApiVersions
    client, frame = unpack(pack(context, b"the frame"))
    assert (len(client.client_software_name), frame) == (100_000, b"the frame")
    connection.client_software_name = connection.client_software_version = None
    client, _ = unpack(pack(context, b""))
    assert (client.client_software_name, client.client_software_version) == (None, None)
    assert not client.hung_up
    connection.hung_up = True  # it has closed its side
    assert unpack(pack(context, b""))[0].hung_up


# -- the table, and one worker alone -----------------------------------------------------------------------


def test_every_api_has_a_route():
    by_route = {route: {row.key for row in table.ROWS if row.route is route} for route in Route}
    assert by_route == {
        Route.LOCAL: {0, 1, 3, 10, 17, 18, 29, 32, 36, 41, 46, 48, 50, 60, 74, 75},
        Route.CONTROLLER: {19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 49, 51, 55, 57},
        Route.GROUP: {8, 9, 11, 12, 13, 14, 15, 28, 42, 47},
        Route.TRANSACTION: {22, 24, 25, 26, 65},
        Route.PARTITIONS: {2, 21, 23, 27, 61},
        Route.EVERY: {16, 34, 35, 66},
    }
    markers = {routing.WRITE_TXN_MARKERS}  # they are split by server/marker_routing
    assert routing.BY_PARTITION.keys() == by_route[Route.PARTITIONS] - markers
    assert routing.MERGE_ALL.keys() == by_route[Route.EVERY]


def test_one_worker_alone_answers_before_dispatch_returns(make_world):
    world = make_world(1)
    world.site.dispatcher.turns = Turns(world.loop, lambda: 0.0)  # a busy machine ends no turn
    answers = []
    connection = SimpleNamespace(
        peer_host="127.0.0.1",
        listener="PLAINTEXT",
        principal=None,
        state=None,
        respond=lambda *answer: answers.append(answer),
        close=pytest.fail,
    )
    for request in (
        m.HeartbeatRequest(group_id="g"),
        m.ListGroupsRequest(),
        m.CreateTopicsRequest(topics=[new_topic("d")]),
        m.InitProducerIdRequest(transactional_id=None),
        m.ListOffsetsRequest(replica_id=-1),
        m.FindCoordinatorRequest(coordinator_keys=["g"]),
    ):
        frame = codec.encode_request(request, table.BY_KEY[request.API_KEY].high, 1, None)
        world.site.dispatcher(connection, len(answers), frame)
    assert [request_id for request_id, _ in answers] == list(range(6))
    assert world.site.dispatcher.router is None


def test_what_is_coordinated_here_is_found_without_routing(make_world):
    """`is_here` says what `route` finds out, for every request to one coordinator."""
    world = make_world(2)
    router, me = world.site.dispatcher.router, world.site.services.me
    here, elsewhere = set(), set()
    for row in table.ROWS:
        for version in range(row.low, row.high + 1) if row.route in (Route.GROUP, Route.TRANSACTION) else ():
            for number in range(20):
                request = codec.request_class(row.key)()
                for field in ("group_id", "transactional_id", "v3_and_below_transactional_id"):
                    if hasattr(request, field):
                        setattr(request, field, f"name-{number}")
                context = RequestContext(row.key, version, 1, "test", "127.0.0.1", "PLAINTEXT", None)
                if router.is_here(row, context, request):
                    assert finish(router.route(row, context, request, b"")) is None
                    here.add((row.name, version))
                elif (owner := router._coordinator_of(row, context, request)) is not None:
                    assert owner == 1 - me
                    elsewhere.add((row.name, version))
    several = {("AddPartitionsToTxn", 4), ("AddPartitionsToTxn", 5), ("DescribeTransactions", 0)}
    several |= {("OffsetFetch", version) for version in range(8, 11)}
    several |= {("DescribeGroups", version) for version in range(7)}
    several |= {("DeleteGroups", version) for version in range(3)}
    rows = [row for row in table.ROWS if row.route in (Route.GROUP, Route.TRANSACTION)]
    every = {(row.name, version) for row in rows for version in range(row.low, row.high + 1)}
    assert here == elsewhere == every - several
