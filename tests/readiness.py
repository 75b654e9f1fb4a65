"""Wait for descriptors whatever their numbers: select() knows none above 1,023, which a long run opens."""

import select
from collections.abc import Sequence
from typing import Any


def readable(things: Sequence[Any], seconds: float | None = None) -> list:
    """Those of `things` (descriptors, or what has a fileno) that can be read, or ended, within `seconds`."""
    return _ready(things, select.POLLIN, seconds)


def writable(thing: Any, seconds: float | None = None) -> bool:
    return bool(_ready([thing], select.POLLOUT, seconds))


def _ready(things: Sequence[Any], event: int, seconds: float | None) -> list:
    poll = select.poll()
    by_number = {thing if isinstance(thing, int) else thing.fileno(): thing for thing in things}
    for number in by_number:
        poll.register(number, event)
    return [by_number[number] for number, _ in poll.poll(None if seconds is None else seconds * 1000)]
