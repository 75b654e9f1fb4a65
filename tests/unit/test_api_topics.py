"""CreateTopics, DeleteTopics, CreatePartitions: each version's answer can be sent and means the same."""

from types import SimpleNamespace

import pytest
from metadata_world import Cluster, new_topic

from kafkad.api.context import RequestContext
from kafkad.api.topics import create_partitions, create_topics, delete_topics
from kafkad.protocol import codec, errors, messages


@pytest.fixture
def services(tmp_path):
    cluster = Cluster(tmp_path)
    return SimpleNamespace(controller=cluster.controller, image=lambda: cluster.image)


def call(handler, services, version, request):
    """Through the wire format, both ways."""
    sent, _ = codec.decode(type(request), version, codec.encode(request, version))
    context = RequestContext(request.API_KEY, version, 1, None, "127.0.0.1", "PLAINTEXT", None)
    response = handler(services, context, sent)
    return codec.decode(type(response), version, codec.encode(response, version))[0]


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics_in_every_version(services, version):
    request = messages.CreateTopicsRequest(
        topics=[new_topic("a", 2, 1, [("retention.ms", "5")]), new_topic("#")]
    )
    good, bad = call(create_topics, services, version, request).topics
    assert (good.name, good.error_code, good.error_message) == ("a", 0, None)
    assert (bad.error_code, "Topic name is invalid" in bad.error_message) == (
        errors.INVALID_TOPIC_EXCEPTION,
        True,
    )
    if version >= 5:
        assert (good.num_partitions, good.replication_factor, bad.num_partitions) == (2, 1, -1)
        assert {c.name: c.value for c in good.configs}["retention.ms"] == "5"
    if version >= 7:
        assert good.topic_id == services.image().topics["a"].topic_id
    assert len(services.image().topics["a"].partitions) == 2


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics_in_every_version(services, version):
    call(create_topics, services, 7, messages.CreateTopicsRequest(topics=[new_topic("a")]))
    cls = messages.DeleteTopicsRequest
    if version < 6:
        request = cls(topic_names=["a", "x"])
    else:
        request = cls(topics=[cls.Topics(name="a"), cls.Topics(name="x")])
    response = call(delete_topics, services, version, request)
    assert {r.name: r.error_code for r in response.responses} == {
        "a": 0,
        "x": errors.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert not services.image().topics


@pytest.mark.parametrize("version", range(4))
def test_create_partitions_in_every_version(services, version):
    call(create_topics, services, 7, messages.CreateTopicsRequest(topics=[new_topic("a")]))
    cls = messages.CreatePartitionsRequest
    request = cls(topics=[cls.Topics(name="a", count=3, assignments=None), cls.Topics(name="x", count=3)])
    response = call(create_partitions, services, version, request)
    assert {r.name: r.error_code for r in response.results} == {
        "a": 0,
        "x": errors.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert len(services.image().topics["a"].partitions) == 3


def test_a_topic_named_twice_is_not_grown(services):
    call(create_topics, services, 7, messages.CreateTopicsRequest(topics=[new_topic("a")]))
    cls = messages.CreatePartitionsRequest
    topic = cls.Topics(name="a", count=3, assignments=None)
    (result,) = call(create_partitions, services, 3, cls(topics=[topic, topic])).results
    assert result.error_code == errors.INVALID_REQUEST
    assert len(services.image().topics["a"].partitions) == 1
