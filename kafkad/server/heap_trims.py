"""When free memory of the heap is returned to the system: after long work, and a few more times.

Memory of long work may be freed later: a deleted partition's objects after file.delete.delay.ms, a client's
answer when it has been read. So the heap is trimmed when the work ends, and then at each of the next LOOKS
runs of a background task. A trim takes a few microseconds if nothing was freed, a millisecond for 10 MB."""

from collections.abc import Callable

LOOK_MS = 15_000
LOOKS = 8  # two minutes: twice Kafka's default of file.delete.delay.ms


class HeapTrims:
    """`trim` returns memory that is free now, or will be soon."""

    def __init__(self, trim: Callable[[], object]) -> None:
        self._trim = trim
        self._left = 0  # remaining background runs that trim

    def work_ended(self) -> None:
        self._left = LOOKS
        self._trim()

    def look(self) -> None:
        if self._left > 0:
            self._left -= 1
            self._trim()
