"""The end of a stop: handlers that still wait are cancelled, and one that does not end is left."""

import asyncio
from contextlib import suppress

from kafkad.server import lifecycle


async def goes_on(until):
    while not until:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


async def fails():
    try:
        await asyncio.sleep(60)
    finally:
        raise OSError("gone")


def test_a_stop_leaves_a_handler_that_does_not_end(monkeypatch, caplog):
    monkeypatch.setattr(lifecycle, "FINISH_S", 0.05)
    loop = asyncio.new_event_loop()
    until = []
    stuck = loop.create_task(goes_on(until))
    others = [loop.create_task(asyncio.sleep(60)), loop.create_task(fails())]
    loop.run_until_complete(asyncio.sleep(0))
    lifecycle.finish(loop)
    assert [stuck.done(), *(task.done() for task in others)] == [False, True, True]
    (left,) = caplog.records
    assert "goes_on" in left.getMessage() and "sleep" not in left.getMessage()
    until.append(True)
    stuck.cancel()
    loop.run_until_complete(stuck)
    loop.close()
