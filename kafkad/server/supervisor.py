"""The supervisor locks the directories, binds the ports, forks the workers and restarts any that die.

    lock and identify the log directories → bind one listening socket per worker and endpoint → shared memory
    → import everything → fork → all are ready: the ready line → wait for a signal or a death
    → stop: all close their connections; then workers 1 and up stop, then worker 0; then the clean-shutdown
    files are written

It serves no requests and runs no loop. Everything that must outlive a worker is created here before the first
fork and is kept: the locks, the listening sockets (closing one resets its queued connections), the shared
memory.

A worker reports in lines of JSON through a pipe:

    {"ready": true}               it serves
    {"quiet": true}               it serves no more, and has everything open still
    {"trouble": message}          it cannot start

    {"log_level": [name, level]}  a client has set it: workers forked from now on use it, too

A worker that dies is forked again, at once the first time, with a growing delay if it dies repeatedly
(BACKOFF_S). For a delay of SHUT_S or more its listeners are shut, so that other workers accept in its place.
A fork that the system refuses is retried in the same way. This holds for every kind of death. A failed
assertion (exit code 70) is no worse than a segmentation fault or an OOM kill: the worker has stopped before
it wrote anything wrong, its successor checks the files, and the other workers' partitions stay online. Two
deaths end the broker: one during the broker's start, and one because no log directory is left (exit code
74). Workers die with the supervisor (PR_SET_PDEATHSIG).

A worker whose event loop hangs (server.heartbeat) gets no more connections, and is then killed: by SIGABRT,
upon which it prints its stack, and by SIGKILL if that does not help. Its loop is checked from "ready" to
"quiet". A start is not checked, because recovery may take long. A stop is: a worker that closes its logs is
killed if none of its threads has read or written for the same time, or after ten times that time.

Signals are bytes in a pipe (signal.set_wakeup_fd): none is lost, and none interrupts what is running. Workers
ignore the signals that end a broker, because a terminal's Ctrl-C and a service manager's SIGTERM reach them,
too. They stop when the supervisor sends SIGUSR1.

Beware: nothing here may start a thread before the last fork, and a worker may be forked again at any time.
"""

import faulthandler
import gc
import json
import logging
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from socket import SHUT_RD, socket
from typing import Any, NoReturn

from kafkad._native.shared import process
from kafkad._native.shared.connection_handover import Handover
from kafkad._native.shared.host_counts import HostCounts
from kafkad._native.shared.mailbox import Mailboxes
from kafkad._native.shared.watermarks import WatermarkTable
from kafkad.clock import Clock
from kafkad.config import loggers
from kafkad.config.broker import BrokerConfig
from kafkad.config.listeners import Endpoint
from kafkad.log.log_dirs import LogDirs
from kafkad.metadata.uuids import random_uuid
from kafkad.net import listener
from kafkad.replication.throttles import throttle_table
from kafkad.server import metadata_feed, worker_links
from kafkad.server.client_quotas import quota_table
from kafkad.server.heartbeat import (
    HANG_S,
    LOOKS,
    SUSPECT,
    Heartbeats,
    Vitals,
    vitals_of,
    vitals_of_threads,
)
from kafkad.server.stderr import STDERR
from kafkad.server.worker_context import BROKEN, ENDING, NO_DIRECTORY, STOP, WorkerContext

logger = logging.getLogger("kafkad")

BACKOFF_S = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
SHUT_S = 2.0  # too long for clients that wait in a backlog
ABORT_S = 2.0  # time to print its stack and end; then SIGKILL
SETTLED_S = 10.0  # after this lifetime, a death counts as the first


@dataclass(slots=True)
class Child:
    """One worker, as the supervisor sees it."""

    k: int
    pid: int = 0  # 0: not running
    pipe: int = -1  # its reports; open until read to the end
    heard: bytes = b""
    begun_s: float = 0.0
    deaths: int = 0  # consecutive deaths and failed forks
    due_s: float | None = None  # when to fork it again
    shut: bool = False  # its listeners are shut until then
    doomed_s: float | None = None  # it hangs: when to send SIGKILL
    ready: bool = False
    quiet: bool = False
    complained: bool = False  # it has reported why it cannot start
    was_there: bool = False
    closed: bool = False  # it served, and has closed everything


class Wakeups:
    """Signals, and deaths of children, as bytes of a pipe."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (*ENDING, signal.SIGCHLD):
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
                signal.siginterrupt(number, False)

    def take(self) -> set[int]:
        """Return the signals since the last call."""
        try:
            return set(os.read(self.fd, 4096))
        except BlockingIOError:
            return set()

    def leave(self) -> None:
        """Call in a child: later signals are its own, and those that end a broker are ignored."""
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)


class Supervisor:
    """Call `open`, then `run`, which returns the exit code. `work(context)` runs a worker in its process."""

    def __init__(
        self,
        config: BrokerConfig,
        count: int,
        work: Callable[[WorkerContext], int],
        say_ready: Callable[[list[Endpoint], str], None],
        say_trouble: Callable[[object], None],
    ) -> None:
        assert count > 1
        self.config = config
        self.count = count
        self._work = work
        self._say_ready = say_ready
        self._say_trouble = say_trouble
        self._wakeups = Wakeups()
        self._children = [Child(k) for k in range(count)]
        self._told_ready = False
        self._stopping = False
        self._asked: set[int] = set()  # pids that were told to stop, after all had closed their connections
        self._look_s = 0.0  # when to check next whether they make progress
        self._code: int | None = None  # the exit code, once something has failed

    # -- before the fork -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Raise ConfigError, DirectoryTrouble, ListenError."""
        self.table = WatermarkTable(shared=True)
        self.log_dirs = LogDirs(self.config, clock=Clock(), scheduler=None, table=self.table)
        self.log_dirs.open()
        try:
            self._bind()
        except BaseException:
            self.log_dirs.finish(clean=False)
            raise
        self.mailboxes = Mailboxes(self.count)
        self.hosts = HostCounts(self.count)
        self.handover = Handover(self.count)
        self.quotas = quota_table(self.config, self.count)
        self.throttles = throttle_table(self.config, self.count)
        self.heartbeats = Heartbeats(self.count, float(os.environ.get("KAFKAD_HANG_S") or HANG_S))
        self.peer_sockets, self.peer_addresses = worker_links.make_sockets(self.count)
        self.first_image = metadata_feed.FirstImage()
        self.incarnation_id = random_uuid(random.SystemRandom())

    def _bind(self) -> None:
        self.sockets: list[list[tuple[socket, str]]] = [[] for _ in range(self.count)]
        self.endpoints: list[Endpoint] = []
        for endpoint in self.config.broker_endpoints:
            bound = listener.bind(endpoint, backlog=self.config.socket_listen_backlog_size, count=self.count)
            for mine, each in zip(self.sockets, bound, strict=True):
                mine.append((each, endpoint.listener))
            self.endpoints.append(endpoint._replace(port=bound[0].getsockname()[1]))

    # -- the main loop -------------------------------------------------------------------------------------

    def run(self) -> int:
        begun = time.monotonic()
        if self._heed_signals():
            self._stop()
        else:
            # A page that a worker writes to is no longer shared. So its garbage collector must leave alone
            # what is there now. The type cache holds references to the names of all look-ups of the start,
            # and would drop them one by one.
            gc.freeze()
            sys._clear_type_cache()
            for child in self._children:
                try:
                    self._fork(child)
                except OSError as trouble:
                    self._say_trouble(f"worker {child.k} of {self.count} cannot be started: {trouble}")
                    self._code = 1
                    self._stop()
                    break
        while not self._is_over():
            self._wait()
            signalled = self._heed_signals()
            for child in self._children:
                if child.pipe >= 0:
                    self._hear(child)
            self._bury()
            if signalled and not self._stopping:
                begun = time.monotonic()
                self._stop()
            if self._stopping:
                self._stop_next()
            else:
                self._fork_due()
                self._look_ready()
            self._look_for_hung()
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # the interpreter removes the handlers when it ends
        code = self._code or 0
        # A start that was interrupted has not checked all logs: write no clean-shutdown file.
        clean = code == 0 and all(child.closed for child in self._children)
        self.log_dirs.finish(clean=clean)
        if code == 0:
            how = "stopped cleanly" if clean else "stopped, not cleanly,"
            how = how if self._told_ready else "stopped before it was ready,"
            logger.info("%s in %d ms", how, (time.monotonic() - begun) * 1000)
        return code

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._wakeups.fd, select.POLLIN)
        for child in self._children:
            if child.pipe >= 0:
                poll.register(child.pipe, select.POLLIN)
        dues = [child.doomed_s for child in self._children if child.doomed_s is not None]
        if not self._stopping:
            dues += [child.due_s for child in self._children if child.due_s is not None]
        if any(self._may_hang(child) for child in self._children):
            dues.append(self._look_s)
        poll.poll(max((min(dues) - time.monotonic()) * 1000, 0) + 1 if dues else None)

    def _heed_signals(self) -> bool:
        return not self._wakeups.take().isdisjoint(ENDING)

    def _is_over(self) -> bool:
        return self._stopping and not any(child.pid for child in self._children)

    # -- forking -------------------------------------------------------------------------------------------

    def _fork(self, child: Child) -> None:
        """Fork a worker. Raises OSError if the system has no process, memory or descriptor left."""
        assert child.pid == 0
        assert child.pipe < 0
        child.pipe, theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(child.pipe, False)
        signal.pthread_sigmask(signal.SIG_BLOCK, (*ENDING, STOP))
        us = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(child.pipe)
            child.pipe = -1
            raise
        else:
            if pid == 0:
                self._live(child, theirs, us)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (*ENDING, STOP))
            os.close(theirs)
        if child.was_there:
            logger.info("worker %d is started again, pid %d", child.k, pid)
        else:
            logger.info("worker %d of %d started, pid %d", child.k, self.count, pid)
        child.pid, child.heard, child.begun_s = pid, b"", time.monotonic()
        child.due_s, child.ready, child.complained, child.was_there = None, False, False, True
        child.doomed_s = None

    def _live(self, child: Child, pipe: int, parent: int) -> NoReturn:
        """Run the child's side of the fork; never return. STOP is blocked until the worker has a handler for
        it."""
        code = 1
        try:
            self._wakeups.leave()
            process.die_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)  # the supervisor died before
            process.set_name(f"kafkad/{child.k}".encode())
            faulthandler.enable(STDERR)  # SIGABRT prints the stack of each thread
            for other in self._children:
                if other.pipe >= 0:
                    os.close(other.pipe)
                if other.k != child.k:
                    self.peer_sockets[other.k].close()
                    for each, _ in self.sockets[other.k]:
                        each.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            code = self._work(self._context_of(child, pipe))
        except BaseException:
            traceback.print_exc()
        finally:
            logging.shutdown()
            os._exit(code)

    def _context_of(self, child: Child, pipe: int) -> WorkerContext:
        def tell(**what: Any) -> None:
            os.write(pipe, json.dumps(what).encode() + b"\n")

        return WorkerContext(
            me=child.k,
            count=self.count,
            restarted=child.was_there,
            incarnation_id=self.incarnation_id,
            log_dirs=self.log_dirs,
            mailboxes=self.mailboxes,
            hosts=self.hosts,
            handover=self.handover,
            quotas=self.quotas,
            throttles=self.throttles,
            heartbeats=self.heartbeats,
            sockets=self.sockets[child.k],
            endpoints=self.endpoints,
            peer_sockets=self.peer_sockets,
            peer_addresses=self.peer_addresses,
            first_image=self.first_image,
            tell=tell,
        )

    def _fork_due(self) -> None:
        now_s = time.monotonic()
        for child in self._children:
            if child.due_s is not None and child.due_s <= now_s:
                try:
                    self._listen_again(child)
                    self._fork(child)
                except OSError as trouble:
                    wait_s = self._postpone(child)
                    logger.error(
                        "worker %d cannot be started: %s; next attempt in %g s", child.k, trouble, wait_s
                    )

    def _postpone(self, child: Child) -> float:
        """Fork it again after a delay. Return the seconds until then."""
        child.deaths += 1
        wait_s = BACKOFF_S[min(child.deaths, len(BACKOFF_S)) - 1]
        child.due_s = time.monotonic() + wait_s
        if wait_s >= SHUT_S and self.count > 1:
            self._shut(child)
        return wait_s

    def _shut(self, child: Child) -> None:
        """Reset the connections that wait for a dead worker, and let the other workers have later ones. The
        ports stay ours."""
        child.shut = True
        for each, _ in self.sockets[child.k]:
            with suppress(OSError):  # it listens no more
                each.shutdown(SHUT_RD)

    def _listen_again(self, child: Child) -> None:
        """Undo `_shut`. Raises OSError."""
        if child.shut:
            for each, _ in self.sockets[child.k]:
                each.listen(self.config.socket_listen_backlog_size)
            child.shut = False

    # -- reports and deaths --------------------------------------------------------------------------------

    def _hear(self, child: Child) -> None:
        """Read all reports of the worker so far."""
        while True:
            try:
                data = os.read(child.pipe, 65536)
            except BlockingIOError:
                return
            if not data:
                os.close(child.pipe)
                child.pipe = -1
                return
            *lines, child.heard = (child.heard + data).split(b"\n")
            for line in lines:
                self._heard(child, json.loads(line))

    def _heard(self, child: Child, said: dict[str, Any]) -> None:
        if "ready" in said:
            child.ready = True
            self.heartbeats.begin(child.k)
            if self._told_ready:
                logger.info("worker %d serves again", child.k)
        if "log_level" in said:
            loggers.set_level(*said["log_level"])
        if "quiet" in said:
            child.quiet = True
        if "trouble" in said:
            child.complained = True
            if self._told_ready:
                logger.error("worker %d cannot start: %s", child.k, said["trouble"])
            elif self._code is None:
                self._say_trouble(said["trouble"])
                self._code = 1

    def _bury(self) -> None:
        """Reap all dead children; as pid 1 of a container, also orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children:
                if child.pid == pid:
                    self._died(child, os.waitstatus_to_exitcode(status))

    def _died(self, child: Child, code: int) -> None:
        if child.pipe >= 0:
            self._hear(child)  # its last reports, and the end
        assert child.pipe < 0
        child.pid, was_ready, child.ready, child.doomed_s = 0, child.ready, False, None
        self.handover.bury(child.k)
        self.hosts.forget(child.k)
        if self._stopping or self._code is not None:
            child.closed = code == 0 and was_ready
            if code != 0:
                if code == BROKEN:
                    self._code = BROKEN
                if not child.complained:
                    logger.error("worker %d did not stop cleanly: %s", child.k, _how(code))
            return
        logger.error("worker %d has died: %s", child.k, _how(code))
        if code == NO_DIRECTORY or (not was_ready and not self._told_ready and code > 0):
            self._code = code
            self._stop()
            return
        if time.monotonic() - child.begun_s >= SETTLED_S:
            child.deaths = 0
        wait_s = self._postpone(child)
        if child.deaths > 1:
            logger.error(
                "worker %d has died %d times in a row; next start in %g s", child.k, child.deaths, wait_s
            )

    def _look_ready(self) -> None:
        if self._code is not None and not self._stopping:
            self._stop()
        elif not self._told_ready and all(child.ready for child in self._children):
            self._told_ready = True
            self._say_ready(self.endpoints, self.log_dirs.cluster_id)
            process.forget_code()

    # -- hanging workers -----------------------------------------------------------------------------------

    def _may_hang(self, child: Child) -> bool:
        if child.pid == 0 or child.doomed_s is not None:
            return False
        if child.quiet:
            return child.pid in self._asked  # before that, it waits for the others
        return child.ready or self._stopping

    def _vitals(self, child: Child) -> Vitals:
        turning = child.ready and not child.quiet
        return vitals_of(child.pid) if turning else vitals_of_threads(child.pid)

    def _look_for_hung(self) -> None:
        now_s = time.monotonic()
        for child in self._children:
            if child.doomed_s is not None and child.doomed_s <= now_s:
                os.kill(child.pid, signal.SIGKILL)
                child.doomed_s = now_s + ABORT_S
        if now_s < self._look_s:
            return
        self._look_s = now_s + self.heartbeats.look_s  # from now: we may have been stopped
        for child in self._children:
            if self._may_hang(child):
                still = self.heartbeats.look(child.k, partial(self._vitals, child))
                if still >= SUSPECT:
                    self.handover.shut(child.k)  # until it beats again
                if still >= LOOKS:
                    self._doom(child, now_s)

    def _doom(self, child: Child, now_s: float) -> None:
        """Kill before logging: the hung worker may hold the lock that the log line needs."""
        state = vitals_of(child.pid).state
        os.kill(child.pid, signal.SIGABRT)
        os.kill(child.pid, signal.SIGCONT)  # a stopped process does not get SIGABRT
        child.doomed_s = now_s + ABORT_S
        logger.error(
            "worker %d has not moved for %g s (its state: %s) and is killed",
            child.k,
            self.heartbeats.limit_s,
            state,
        )

    # -- stopping ------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._stopping = True
        for child in self._children:
            child.due_s = None
            for each, _ in self.sockets[child.k]:
                each.close()  # later connections are refused
            if child.pid:
                os.kill(child.pid, STOP)
                os.kill(child.pid, signal.SIGCONT)  # a stopped process could not end
        for child in self._children:
            if not child.ready:
                self.heartbeats.begin(child.k)  # its progress is checked from now on
        self._stop_next()

    def _stop_next(self) -> None:
        """Stop the next workers, when none serves any more: 1 and up first, since worker 0 leads the
        metadata."""
        living = [child for child in self._children if child.pid]
        if not all(child.quiet for child in living):
            return
        for child in [child for child in living if child.k > 0] or living:
            if child.pid not in self._asked:
                self._asked.add(child.pid)
                self.heartbeats.begin(child.k)
                os.kill(child.pid, STOP)
                os.kill(child.pid, signal.SIGCONT)


def _how(code: int) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
