"""Independent jobs in several threads, including the calling thread.

Starts and stops use it. If the system refuses a thread, the existing threads do the work; the calling thread
alone is enough."""

import itertools
import threading
from collections.abc import Callable, Sequence


def run_all(jobs: Sequence[Callable[[], None]], threads: int, name: str) -> list[Exception | None]:
    """Run every job. Return what each job raised, or None, in the order of `jobs`.

    If the calling thread is interrupted (KeyboardInterrupt, a signal's exception), no further job begins, and
    that exception is raised when the other threads have finished their current job."""
    errors: list[Exception | None] = [None] * len(jobs)
    numbers = itertools.count()
    interrupted = False

    def run() -> None:
        while not interrupted and (number := next(numbers)) < len(jobs):
            try:
                jobs[number]()
            except Exception as trouble:
                errors[number] = trouble

    others: list[threading.Thread] = []
    try:
        for number in range(1, min(threads, len(jobs))):
            thread = threading.Thread(target=run, name=f"{name}-{number}")
            try:
                thread.start()
            except RuntimeError:
                break
            others.append(thread)
        run()
        for thread in others:
            thread.join()
    except BaseException:
        interrupted = True
        for thread in others:
            thread.join()
        raise
    return errors
