"""A Produce that waits for the new leader: answers of that leader that nobody expects."""

import asyncio
from types import SimpleNamespace

from kafkad.metadata.image import MetadataImage, PartitionState, Topic
from kafkad.protocol import errors, messages
from kafkad.server.produce_handover import ProduceHandover, Waiting

ID = b"t" * 16


def test_an_answer_without_the_partition_does_not_end_this_broker():
    """The records may have arrived, so the client may send them again."""

    async def ask(leader, request, *, timeout_s):
        return messages.ProduceResponse()

    async def work():
        state = PartitionState(2, 5, (1, 2), (1, 2), (bytes(16), bytes(16)), 5)
        image = MetadataImage("abc")
        image.topics["t"] = image.topics_by_id[ID] = Topic("t", ID, {0: state})
        handover = ProduceHandover(
            1,
            lambda: image,
            SimpleNamespace(ask=ask),
            lambda take, moving: None,
            asyncio.get_running_loop(),
            lambda trouble: None,
        )
        waiting = Waiting(None, 1, 12, 1, -1, 1000, None, b"t", 0, b"records")
        found = await handover._forward(waiting, 2)
        assert (found.index, found.error_code) == (0, errors.REQUEST_TIMED_OUT)

    asyncio.run(work())
