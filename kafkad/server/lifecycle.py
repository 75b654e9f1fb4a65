"""From `kafkad serve` to its exit code: the loop, the signals, the ready line, and one error message if
something goes wrong. With several workers there is a supervisor in between (server.supervisor), and each
worker goes through the same steps.

Exit codes: 0 a clean stop, 1 a port or directory is in use or the data cannot be served, 70 a failed
assertion, 74 the last log directory has failed. If one of several workers exits with 70, it is restarted.

SIGTERM, SIGINT and SIGHUP end a broker, as they end Kafka. A signal that was ignored at the start (nohup)
stays ignored. Signals during the stop have no effect.
"""

import asyncio
import errno
import gc
import logging
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from kafkad._native.shared import process, timeslice
from kafkad.config.broker import BrokerConfig
from kafkad.config.definition import ConfigError
from kafkad.config.listeners import Endpoint
from kafkad.config.served import is_alone
from kafkad.controller.brokers import NotRegistered
from kafkad.log.log_dirs import DirectoryTrouble
from kafkad.net.hosts import is_loopback
from kafkad.net.listener import ListenError
from kafkad.raft.single_voter import UnusableMetadata
from kafkad.security import exposure
from kafkad.server.event_loop import EventLoop
from kafkad.server.preload import preload
from kafkad.server.worker import Worker

if TYPE_CHECKING:
    from kafkad.server.controller_node import ControllerNode
from kafkad.server.worker_context import BROKEN, ENDING, NO_DIRECTORY, STOP, WorkerContext

logger = logging.getLogger("kafkad")

SLICE_US = 100  # Linux's minimum
FINISH_S = 5.0  # how long a stop waits for handlers that it has cancelled
SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))  # asyncio accepts later


class Node(Protocol):
    """What runs in a process of its own: a Worker, or a ControllerNode."""

    endpoints: list[Endpoint]
    cluster_id: str

    def start(self) -> None:
        """Raise one of TROUBLES if the node cannot serve."""

    def stop(self) -> None: ...


class Interrupted(BaseException):
    """A signal arrived before the broker was ready."""


# exceptions whose message is enough, without a traceback
TROUBLES = (ConfigError, DirectoryTrouble, ListenError, NotRegistered, UnusableMetadata)


def serve(config: BrokerConfig, workers: int = 1) -> int:
    """Run a broker until a signal ends it. Return the exit code."""
    for note in (*config.notes, *exposure.warnings(config, is_loopback)):
        logger.warning("%s", note)
    raise_descriptor_limit()
    preload()
    gc.freeze()
    gc.enable()
    if workers == 1:
        return serve_alone(config, node_class(config))
    from kafkad.server.supervisor import Supervisor

    work = partial(serve_as_worker, config, worker_class(config))
    supervisor = Supervisor(config, workers, work, partial(say_ready, config), say_trouble)
    try:
        if not is_alone(config):
            from kafkad.server.controller_node import check_formatted

            check_formatted(config)
        supervisor.open()
    except TROUBLES as trouble:
        say_trouble(trouble)
        return 1
    except (OSError, MemoryError) as trouble:  # shared objects take descriptors and address space
        say_trouble(f"what {workers} workers share cannot be made: {trouble}")
        return 1
    return supervisor.run()


def node_class(config: BrokerConfig) -> "type[Worker | ControllerNode]":
    """Return the class of a node that is one process."""
    if "broker" in config.process_roles:
        return worker_class(config)
    from kafkad.server.controller_node import ControllerNode

    return ControllerNode


def worker_class(config: BrokerConfig) -> type[Worker]:
    """Return the class that runs in each process of a node that is a broker."""
    if is_alone(config):
        return Worker
    from kafkad.server.member_worker import MemberWorker

    return MemberWorker


def serve_alone(config: BrokerConfig, kind: "type[Worker | ControllerNode]" = Worker) -> int:
    """Run the whole node in one process."""
    loop, fatal = new_loop()
    worker: Node = kind(config, loop, fatal)
    signals = Signals(loop, ENDING)
    try:
        signals.catch()
        worker.start()
        signals.started()
    except TROUBLES as trouble:
        if not signals.came:
            say_trouble(trouble)
            return 1
        return 0
    except (Interrupted, RuntimeError):
        if not signals.came:
            raise
        worker.stop()  # undo what a failed start has left
        finish(loop)
        logger.info("stopped before it was ready")
        return 0
    process.forget_code()
    if not signals.came:  # a callback may have swallowed the exception
        say_ready(config, worker.endpoints, worker.cluster_id)
    signals.run_until(1)
    begun = time.monotonic()
    worker.stop()
    finish(loop)
    for number in ENDING:
        # The interpreter removes the handlers when it ends, while some threads may still run: a signal mask
        # of this thread would not be enough.
        signal.signal(number, signal.SIG_IGN)
    loop.close()
    logger.info("stopped cleanly in %d ms", (time.monotonic() - begun) * 1000)
    return 0


def serve_as_worker(config: BrokerConfig, kind: type[Worker], context: WorkerContext) -> int:
    """Run one of several workers, from the fork on. Return its exit code."""
    loop, fatal = new_loop()
    worker = kind(config, loop, fatal, context)
    signals = Signals(loop, (STOP,))
    try:
        signals.catch()
        worker.start()
        signals.started()
    except TROUBLES as trouble:
        signals.started()  # the supervisor's STOP must not interrupt this: another worker may have failed
        context.tell(trouble=str(trouble))
        return 1
    except (Interrupted, RuntimeError):
        if not signals.came:
            raise
        worker.stop()
        return 0
    joining = loop.create_task(worker.join())
    joining.add_done_callback(joined)
    signals.run_until(1)
    joining.cancel()
    loop.run_until_complete(asyncio.wait([joining]))  # it accepts no connections any more
    worker.hang_up()
    context.tell(quiet=True)
    signals.run_until(2)  # when all others have closed their connections, too
    worker.stop()
    finish(loop)
    return 0 if worker.stopped_cleanly else 1


def joined(task: asyncio.Task[None]) -> None:
    """A worker serves, or could not: an exception ends it."""
    if not task.cancelled():
        task.result()
        process.forget_code()


def new_loop() -> tuple[EventLoop, Callable[[BaseException], None]]:
    """Return an event loop, and the function to call when an invariant is broken, also by an exception of a
    callback. This thread, and all threads that it starts, have short time slices from now on."""
    timeslice.shorten(SLICE_US)
    loop = EventLoop()
    asyncio.set_event_loop(loop)

    def fatal(trouble: BaseException) -> None:
        if isinstance(trouble, DirectoryTrouble):
            logger.critical("%s; the broker ends", trouble)
            os._exit(NO_DIRECTORY)
        logger.critical("this process found an error of its own and exits at once", exc_info=trouble)
        os._exit(BROKEN)  # before it writes another byte

    def on_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        trouble = context.get("exception")
        if isinstance(trouble, OSError) and trouble.errno in SHORTAGES and "socket" in context:
            reason = f"accepting a connection of a controller or a broker failed: {trouble.strerror}"
            logger.warning("%s; new connections wait in the backlog", reason)  # asyncio tries again after 1 s
            return
        fatal(trouble or RuntimeError(context["message"]))

    loop.set_exception_handler(on_exception)
    return loop, fatal


def say_trouble(trouble: object) -> None:
    print(f"kafkad: {trouble}", file=sys.stderr)


class Signals:
    """What SIGTERM, SIGINT and SIGHUP do, from the moment a start begins: the first ends the broker, and
    none is lost between the start, the ready line and the loop. (A worker of several has STOP in their
    place.)

    The handlers are Python's own throughout, not the loop's, which know only what comes while it runs. A
    running loop is woken by the descriptor that it gives to signal.set_wakeup_fd.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, numbers: Iterable[int]) -> None:
        self.numbers = tuple(numbers)
        self.came: list[int] = []
        self._loop = loop
        self._starting = True
        self._wanted = 1
        self._stopped = True  # the loop does not run

    def catch(self) -> None:
        sys.unraisablehook = unless_interrupted
        for number in self.numbers:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)
                signal.siginterrupt(number, False)  # no system call of the native code is cut short
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.numbers)  # the supervisor keeps STOP back until now

    def started(self) -> None:
        self._starting = False

    def run_until(self, count: int) -> None:
        """Runs the loop until so many have come; those after them change nothing."""
        self._wanted, self._stopped = count, False
        # a signal of before the wakeup descriptor was set is handled when this, a Python function, is called
        self._loop.call_soon(self._look)
        self._loop.run_forever()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.came.append(number)
        if self._starting and len(self.came) == 1:
            if not self._loop.is_running():
                raise Interrupted
            self._loop.stop()  # a task would take the exception; so run_until_complete raises RuntimeError
            return
        self._look()

    def _look(self) -> None:
        if len(self.came) >= self._wanted and not self._stopped:
            self._stopped = True  # once a run: a second stop would end what the loop is used for next
            self._loop.stop()


def unless_interrupted(unraisable: "sys.UnraisableHookArgs") -> None:
    """A finalizer that a signal cut short is nothing to tell: the start that it ran in is given up."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)


def finish(loop: asyncio.AbstractEventLoop) -> None:
    """Ends the handlers that still wait: their connections are closed, and nobody is left to answer. All is
    on the disk already, so one that does not end by that is left after FINISH_S."""
    waiting = asyncio.all_tasks(loop)
    for task in waiting:
        task.cancel()
    if not waiting:
        return
    ended, left = loop.run_until_complete(asyncio.wait(waiting, timeout=FINISH_S))
    for task in ended:
        if not task.cancelled():
            task.exception()  # of interest to nobody
    if left:
        logger.error("the stop does not wait for %s", ", ".join(repr(task.get_coro()) for task in left))


def raise_descriptor_limit() -> None:
    """As many files and sockets as the system lets this process have without asking anybody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def say_ready(config: BrokerConfig, endpoints: list[Endpoint], cluster_id: str) -> None:
    """The line that scripts wait for, with the listeners that ask nobody who they are; on a terminal also
    what to try next. The reader may leave after the first line."""
    first = endpoints[0]
    host = f"[{first.host}]" if ":" in first.host else first.host or "0.0.0.0"
    address = f"{host}:{first.port}"
    milliseconds = int((time.time() - process_start()) * 1000)
    try:
        about = f"cluster {cluster_id}, pid {os.getpid()}, {milliseconds} ms"
        if anyone := exposure.open_to_anyone(config, endpoints):
            about += f"; open to anyone{exposure.whom(config)}: {', '.join(map(str, anyone))}"
        print(f"kafkad is ready on {address} ({about})", flush=True)
        is_broker = "broker" in config.process_roles
        if is_broker and sys.stdout is not None and sys.stdout.isatty():  # None: it was closed at the start
            address = address.replace("0.0.0.0", "127.0.0.1")
            print(HINT.format(address=address, kafkad=own_name()), flush=True)
    except OSError as trouble:
        logger.warning("stdout takes nothing: %s", trouble)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else what it holds back fails again at the end


HINT = """
  Try, in another terminal:
    {kafkad} topics --create --topic greetings --partitions 3 --bootstrap-server {address}
    echo hello | {kafkad} produce --topic greetings --bootstrap-server {address}
    {kafkad} consume --topic greetings --from-beginning --bootstrap-server {address}
  kcat:    kcat -b {address} -t greetings -C
  Python:  confluent_kafka.Producer({{"bootstrap.servers": "{address}"}})
  Java:    kafka-console-consumer.sh --bootstrap-server {address} --topic greetings --from-beginning
  Spark:   spark.readStream.format("kafka").option("kafka.bootstrap.servers", "{address}")
  Ctrl-C stops it cleanly.
"""


def own_name() -> str:
    """What to type to call us again: `kafkad` where the shell finds it."""
    if shutil.which("kafkad"):
        return "kafkad"
    beside = Path(sys.executable).with_name("kafkad")
    if not beside.exists():
        return f"{sys.executable} -m kafkad"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


def process_start() -> float:
    """Seconds since 1970 at which this process began, by the kernel."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + ticks / os.sysconf("SC_CLK_TCK")
