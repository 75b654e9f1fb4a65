"""A Produce that waits for the new leader: answers of that leader that nobody expects, and a leader that
does not move."""

import asyncio
from types import SimpleNamespace

import pytest

from kafkad.metadata.image import MetadataImage, PartitionState, Topic
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server import produce_handover
from kafkad.server.produce_handover import ProduceHandover, Waiting
from tests.unit.log_world import LogWorld, idempotent

ID = b"t" * 16


def handover_of(leader, ask=None, offer=lambda take, moving: None):
    """Of broker 1. The partition t-0 has this leader."""
    state = PartitionState(leader, 5, (1, 2), (1, 2), (bytes(16), bytes(16)), 5)
    image = MetadataImage("abc")
    image.topics["t"] = image.topics_by_id[ID] = Topic("t", ID, {0: state})
    channels = SimpleNamespace(ask=ask)
    return ProduceHandover(
        1,
        lambda: image,
        channels,
        offer,
        asyncio.get_running_loop(),
        lambda trouble: pytest.fail(str(trouble)),
    )


def test_an_answer_without_the_partition_does_not_end_this_broker():
    """The records may have arrived, so the client may send them again."""

    async def ask(leader, request, *, timeout_s):
        return messages.ProduceResponse()

    async def work():
        handover = handover_of(2, ask)
        waiting = Waiting(None, 1, 12, 1, -1, 1000, None, b"t", 0, b"records")
        found = await handover._forward(waiting, 2)
        assert (found.index, found.error_code) == (0, errors.REQUEST_TIMED_OUT)

    asyncio.run(work())


@pytest.mark.parametrize("moving", [None, [("t", 0)]])
def test_what_overtakes_a_refused_produce_is_to_come_again_where_the_leader_does_not_move(
    tmp_path, monkeypatch, moving
):
    """Otherwise librdkafka takes a new producer epoch, and repeats what is in the log already."""
    monkeypatch.setattr(produce_handover, "HOLD_S", 0.2)
    monkeypatch.setattr(produce_handover, "HOLD_SOME_S", 0.1)
    world, offers = LogWorld(tmp_path), []
    world.log.append_client(idempotent(0, 1), world.now_ms)

    async def work():
        handover = handover_of(1, offer=lambda take, moving: offers.append(take))
        assert await handover.begin([world.log], moving)
        waiting = Waiting(SimpleNamespace(listener="L"), 1, 12, 1, -1, 1000, None, b"t", 0, b"records")
        answer = asyncio.create_task(handover._answer(waiting))
        while offers[-1] is not None:
            await asyncio.sleep(0.01)
        with pytest.raises(KafkaError) as refused:
            world.log.append_client(idempotent(2, 1), world.now_ms)
        assert refused.value.code == errors.NOT_LEADER_OR_FOLLOWER
        (topic,) = (await answer).responses
        assert topic.partition_responses[0].error_code == errors.NOT_LEADER_OR_FOLLOWER
        world.log.append_client(idempotent(1, 1), world.now_ms)
        world.log.append_client(idempotent(2, 1), world.now_ms)

    asyncio.run(work())


@pytest.mark.parametrize("message", ["earlier batches of the producer have to come first", None])
def test_a_produce_that_has_to_wait_for_earlier_ones_is_not_forwarded_all_the_time(monkeypatch, message):
    """They may be lost: the new leader refuses it until the client has sent them again. A leader that does
    not know yet that it leads is asked often: otherwise later Produces would overtake this one."""
    monkeypatch.setattr(produce_handover, "HOLD_SOME_S", 0.5)
    asked = []

    async def ask(broker, request, **how):
        asked.append(request)
        answer = messages.ProduceResponse.Responses.PartitionResponses(
            index=0, error_code=errors.NOT_LEADER_OR_FOLLOWER, error_message=message
        )
        return messages.ProduceResponse(
            responses=[messages.ProduceResponse.Responses(name="t", partition_responses=[answer])]
        )

    async def work():
        handover = handover_of(2, ask)
        assert await handover.begin([], [("t", 0)])
        waiting = Waiting(SimpleNamespace(listener="L"), 1, 12, 1, -1, 1000, None, b"t", 0, b"records")
        (topic,) = (await handover._answer(waiting)).responses
        assert topic.partition_responses[0].error_code == errors.NOT_LEADER_OR_FOLLOWER
        assert len(asked) >= 2
        assert message is None or len(asked) <= 25

    asyncio.run(work())
