"""The threads of a worker: lanes of work, each with its own threads, created at the start.

    flush     fsyncs that acks wait for
    work      checkpoints, log starts, files created ahead, groups that are loaded
    delete    files of deleted segments and partitions, one after the other
    cut       truncations of followers, one after the other
    login     what takes long in a login; there are none without a SASL listener
    move      copies of replicas that move between log directories; there are none with a single directory

A lane never waits for another one, so deleting a topic does not delay an ack. A thread that exists from the
start cannot be refused later, when the process is at its limit.

Beware: work in a lane must raise only what its caller expects; `done` gets the exception, in the lane's
thread."""

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from kafkad.config.broker import BrokerConfig

Job = tuple[Callable[[], Any], Callable[[BaseException | None], Any]]

LANES: Mapping[str, int] = {"flush": 2, "work": 2, "delete": 1, "cut": 1}
LOGIN: Mapping[str, int] = {"login": 2}
MOVE: Mapping[str, int] = {"move": 1}


def lanes_of(config: BrokerConfig) -> Mapping[str, int]:
    """Return the lanes of a worker with this configuration."""
    logins = any(endpoint.protocol.startswith("SASL_") for endpoint in config.broker_endpoints)
    moves = len(config.log_dirs) > 1
    return {**LANES, **(LOGIN if logins else {}), **(MOVE if moves else {})}


class Threads:
    """Call `begin`, then `submit`; `close` waits for all submitted work."""

    def __init__(self, lanes: Mapping[str, int] = LANES) -> None:
        self._lanes: dict[str, SimpleQueue[Job | None]] = {name: SimpleQueue() for name in lanes}
        self._counts = dict(lanes)
        self._threads: list[tuple[str, threading.Thread]] = []

    def begin(self) -> None:
        """Start the threads. Raises OSError if the system refuses one."""
        for lane, count in self._counts.items():
            for number in range(count):
                name = f"kafkad-{lane}-{number}"
                thread = threading.Thread(target=_run, args=(self._lanes[lane],), name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as refused:
                    self.close()
                    wanted = sum(self._counts.values())
                    raise OSError(
                        f"one of the {wanted} threads of a worker cannot be started ({refused}):"
                        " raise the limit of processes (ulimit -u, pids.max)"
                    ) from refused
                self._threads.append((lane, thread))

    def submit(self, lane: str, work: Callable[[], Any], done: Callable[[BaseException | None], Any]) -> None:
        """Run `work` in a thread of `lane`, then `done` there, with None or the exception."""
        self._lanes[lane].put((work, done))

    def close(self) -> None:
        threads, self._threads = self._threads, []
        for lane, _ in threads:
            self._lanes[lane].put(None)
        for _, thread in threads:
            thread.join()


def _run(lane: "SimpleQueue[Job | None]") -> None:
    while (job := lane.get()) is not None:
        work, done = job
        trouble: BaseException | None = None
        try:
            work()
        except BaseException as raised:
            trouble = raised
        done(trouble)
        del job, work, done, trouble  # an idle thread must not keep objects alive
