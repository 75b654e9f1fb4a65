"""The guard of requests: what it does beside the answers that tests/integration/test_access.py compares."""

import asyncio
import inspect
from types import SimpleNamespace

import pytest

from kafkad.api import metadata
from kafkad.api.access import ACCESS
from kafkad.api.context import RequestContext
from kafkad.metadata.image import MetadataImage
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.security.acls import Acl
from kafkad.security.authorizer import Authorizer
from kafkad.server.guard import AT_ONCE, admit, finish

MANY = 10_000
NAMES = [f"t{number}" for number in range(MANY)]


@pytest.fixture
def authorizer():
    made = Authorizer(["User:root"], False, lambda: 0)
    made.change([Acl(2, "t1", 4, "User:alice", "*", 2, 3), Acl(3, "g", 3, "User:alice", "*", 2, 3)], ())
    return made


@pytest.fixture
def services():
    topics = {name: SimpleNamespace(name=name, topic_id=bytes(16), partitions={}) for name in NAMES}
    image = MetadataImage("cluster")
    image.topics.update(topics)
    config = SimpleNamespace(auto_create_topics_enable=False, node_id=1)
    return SimpleNamespace(
        metadata=SimpleNamespace(image=image), config=config, controller=None, is_controller=False
    )


def drive(steps):
    """What generators return, and how often they let others have their turn."""
    count = 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            return end.value, count


def at(authorizer, services, request, version, *, user="User:alice"):
    context = RequestContext(type(request).API_KEY, version, 0, "c", "10.0.0.1", "PLAINTEXT", None, user)
    return admit(authorizer.subject(user, "10.0.0.1"), services, context, request, "Name")


def big_requests():
    m = messages
    topics = m.ListOffsetsRequest.Topics
    yield m.ListOffsetsRequest(topics=[topics(name=name) for name in NAMES]), 7
    topics = m.OffsetCommitRequest.Topics
    yield m.OffsetCommitRequest(group_id="g", topics=[topics(name=name) for name in NAMES]), 9
    groups = m.OffsetFetchRequest.Groups
    topics = [groups.Topics(name=name) for name in NAMES]
    yield m.OffsetFetchRequest(groups=[groups(group_id="g", topics=topics)]), 8
    yield m.OffsetFetchRequest(groups=[groups(group_id=name, topics=[]) for name in NAMES]), 8
    yield m.FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES), 5
    yield m.DescribeGroupsRequest(groups=NAMES), 5
    yield m.CreateTopicsRequest(topics=[m.CreateTopicsRequest.Topics(name=name) for name in NAMES]), 7
    yield m.DeleteTopicsRequest(topic_names=NAMES), 5
    topics = m.AddPartitionsToTxnRequest.V3AndBelowTopics
    named = [topics(name=name, partitions=[0]) for name in NAMES]
    yield m.AddPartitionsToTxnRequest(v3_and_below_transactional_id="x", v3_and_below_topics=named), 3
    resources = m.DescribeConfigsRequest.Resources
    asked = [resources(resource_type=2, resource_name=name) for name in NAMES]
    yield m.DescribeConfigsRequest(resources=asked), 4
    yield m.DescribeTopicPartitionsRequest(topics=[]), 0
    topics = m.DescribeTopicPartitionsRequest.Topics
    yield m.DescribeTopicPartitionsRequest(topics=[topics(name=name) for name in NAMES]), 0


@pytest.mark.parametrize(
    ("request_", "version"), list(big_requests()), ids=lambda it: getattr(it, "API_KEY", "")
)
def test_much_to_decide_is_decided_in_steps(authorizer, services, request_, version):
    authorizer.change([Acl(5, "x", 3, "User:alice", "*", 2, 3)], ())
    _, turns = drive(at(authorizer, services, request_, version))
    assert turns >= MANY // AT_ONCE


@pytest.mark.parametrize("topics", [None, NAMES])
def test_metadata_is_decided_in_steps(authorizer, services, topics):
    named = None if topics is None else [messages.MetadataRequest.Topics(name=name) for name in topics]
    request = messages.MetadataRequest(topics=named)
    context = RequestContext(3, 12, 0, "c", "10.0.0.1", "PLAINTEXT", None, "User:alice")
    subject = authorizer.subject("User:alice", "10.0.0.1")
    response, turns = drive(metadata.permitted(services, context, request, subject))
    seen = [topic.name for topic in response.topics if not topic.error_code]
    assert seen == [name for name in NAMES if name.startswith("t1")]
    assert len(response.topics) == (len(seen) if topics is None else MANY)
    assert turns >= MANY // AT_ONCE


def test_what_a_filter_leaves_out_is_left_out_in_steps(authorizer, services):
    gate, _ = drive(at(authorizer, services, messages.ListGroupsRequest(), 4))
    Group = messages.ListGroupsResponse.Groups
    response = messages.ListGroupsResponse(groups=[Group(group_id=name) for name in (*NAMES, "g")])
    finished, turns = drive(finish(gate, response))
    assert [group.group_id for group in finished.groups] == ["g"]
    assert turns >= MANY // AT_ONCE


def test_a_name_is_looked_up_once_and_the_order_stays(authorizer, services, caplog):
    caplog.set_level("INFO", "kafka.authorizer.logger")
    topics = messages.ListOffsetsRequest.Topics
    request = messages.ListOffsetsRequest(topics=[topics(name=name) for name in ("t1", "u", "t10", "u", "v")])
    drive(at(authorizer, services, request, 7))
    assert [topic.name for topic in request.topics] == ["t1", "t10"]
    denied = [record.getMessage() for record in caplog.records]
    assert ["Topic:LITERAL:u" in line for line in denied] == [True, False]


def test_an_api_that_was_forgotten_is_refused(authorizer, services, monkeypatch):
    monkeypatch.delitem(ACCESS, 12)
    beat = messages.HeartbeatRequest(group_id="g")
    gate, _ = drive(at(authorizer, services, beat, 4))
    assert gate.refused.error_code == 31
    gate, _ = drive(at(authorizer, services, beat, 4, user="User:root"))
    assert gate.refused is None


async def failing():
    raise KafkaError(errors.NOT_CONTROLLER)


def failing_in_steps():
    yield
    raise KafkaError(errors.NOT_CONTROLLER)


@pytest.mark.parametrize("made", [failing, failing_in_steps])
def test_an_error_of_the_handler_is_for_every_element(authorizer, services, made):
    Topic = messages.CreateTopicsRequest.Topics
    request = messages.CreateTopicsRequest(topics=[Topic(name="t1"), Topic(name="t2")])
    authorizer.change([Acl(2, "t1", 3, "User:alice", "*", 5, 3)], ())
    gate, _ = drive(at(authorizer, services, request, 7))
    assert [topic.name for topic in request.topics] == ["t1"]
    finished = finish(gate, made())
    with pytest.raises(KafkaError):
        asyncio.run(finished) if inspect.isawaitable(finished) else drive(finished)
    assert [topic.name for topic in request.topics] == ["t1", "t2"]


def test_a_controller_names_the_controllers_only_to_who_may_alter_the_cluster(authorizer, services):
    services.is_controller = True
    request = messages.DescribeClusterRequest(endpoint_type=2)
    gate, _ = drive(at(authorizer, services, request, 2))
    assert gate.refused.error_code == errors.CLUSTER_AUTHORIZATION_FAILED
    authorizer.change([Acl(4, "kafka-cluster", 3, "User:alice", "*", 7, 3)], ())
    gate, _ = drive(at(authorizer, services, request, 2))
    assert gate.refused is None


def test_nothing_is_done_to_an_answer_that_needs_nothing(authorizer, services):
    gate, _ = drive(at(authorizer, services, messages.HeartbeatRequest(group_id="g"), 4))
    answer = object()
    assert finish(gate, answer) is answer
