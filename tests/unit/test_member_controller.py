"""What a broker of a cluster tells its controllers on its own."""

import asyncio

from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from kafkad.server import member_worker
from kafkad.server.member_worker import MemberController

TOPIC, FIRST, SECOND = b"t" * 16, b"1" * 16, b"2" * 16


class Controllers:
    """Answers `assign_directories` when the test lets it."""

    def __init__(self):
        self.asked = []
        self.troubles = []  # of the next requests
        self.answers = asyncio.Event()

    async def assign_directories(self, placed):
        self.asked.append(dict(placed))
        trouble = self.troubles.pop(0) if self.troubles else None
        await self.answers.wait()
        if trouble:
            raise trouble
        return {}


async def settle():
    for _ in range(20):
        await asyncio.sleep(0.001)


def test_no_older_place_of_a_partition_is_told_after_a_newer_one(monkeypatch):
    monkeypatch.setattr(member_worker, "RETRY_S", 0.001)

    async def scenario():
        controllers = Controllers()
        member = MemberController(controllers, None, None, None, None)
        controllers.troubles = [KafkaError(errors.REQUEST_TIMED_OUT)]
        member.assign_directories({(TOPIC, 0): FIRST, (TOPIC, 1): FIRST})
        await settle()
        member.assign_directories({(TOPIC, 0): SECOND})
        await settle()
        assert len(controllers.asked) == 1  # one request at a time
        controllers.answers.set()
        await settle()
        assert controllers.asked[1:] == [{(TOPIC, 0): SECOND, (TOPIC, 1): FIRST}]

        controllers.answers.clear()
        member.assign_directories({(TOPIC, 0): FIRST})
        await settle()
        member.assign_directories({(TOPIC, 0): SECOND})
        controllers.answers.set()
        await settle()
        assert controllers.asked[2:] == [{(TOPIC, 0): FIRST}, {(TOPIC, 0): SECOND}]

    asyncio.run(scenario())
