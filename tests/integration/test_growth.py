"""How does each cost grow, and who waits meanwhile?"""

import threading

import pytest

from kafkad.protocol import codec, messages
from kafkad.testing import Broker
from tests.wire import Wire

TOPICS = 1_500


@pytest.fixture(scope="module")
def broker():
    with Broker(workers=2) as running:
        with Wire(running.bootstrap, 60) as wire:
            create(wire, [f"topic-{i:05}" for i in range(TOPICS)])
        yield running


def create(wire, names, partitions=1):
    struct = messages.CreateTopicsRequest.Topics
    topics = [struct(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    answer = wire.ask(messages.CreateTopicsRequest(topics=topics, timeout_ms=60_000), 7)
    assert {topic.error_code for topic in answer.topics} == {0}


@pytest.mark.parametrize("version", [1, 8, 12, 13])
def test_the_shared_answer_about_all_topics_arrives_whole(broker, version):
    """HUNTS S6. Many clients are sent the same pages, each with its own correlation id."""
    request = messages.MetadataRequest(topics=None)
    names = [f"topic-{i:05}" for i in range(TOPICS)]
    kind = messages.MetadataResponse
    trouble = []

    def poll():
        try:
            with Wire(broker.bootstrap, 60) as wire:
                for _ in range(5):
                    sent = [wire.send(request, version) for _ in range(3)]
                    for correlation in sent:
                        found, answer = codec.decode_response(kind, version, wire.read_frame())
                        assert found == correlation
                        assert sorted(topic.name for topic in answer.topics) == names
        except Exception as e:
            trouble.append(e)

    threads = [threading.Thread(target=poll) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trouble == []
