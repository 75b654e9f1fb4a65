"""What the tests of handlers that work in steps share."""

from collections.abc import Generator
from typing import Any


def finish(answer: Any) -> Any:
    """The result of a handler: of all its steps, if it is a generator, and of those that these return."""
    while isinstance(answer, Generator):
        try:
            next(answer)
        except StopIteration as end:
            answer = end.value
    return answer
