"""From `kafkad serve` to its exit code: the loop, the signals, the ready line, and one sentence for what
goes wrong.

Exit codes: 0 a clean stop, 1 the place is taken or the data cannot be served, 70 we found ourselves wrong.
"""

import asyncio
import logging
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from kafkad.config.definition import ConfigError
from kafkad.log.log_dirs import DirectoryTrouble
from kafkad.net.listener import ListenError
from kafkad.raft.single_voter import UnusableMetadata
from kafkad.server.worker import Worker

logger = logging.getLogger("kafkad")

BROKEN = 70  # EX_SOFTWARE


def serve(config: Any) -> int:
    """Runs a broker until SIGTERM or SIGINT; the exit code."""
    for note in config.notes:
        logger.warning("%s", note)
    raise_descriptor_limit()
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    ended: list[int] = []

    def fatal(trouble: BaseException) -> None:
        logger.critical("the broker is broken and stops at once", exc_info=trouble)
        sys.stderr.flush()
        os._exit(BROKEN)  # not one more byte is written by a broker that is wrong

    def on_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        fatal(context.get("exception") or RuntimeError(context["message"]))

    def stop() -> None:
        if not ended:
            ended.append(0)
            loop.stop()

    loop.set_exception_handler(on_exception)
    worker = Worker(config, loop, fatal)
    try:
        worker.start()
    except (ConfigError, DirectoryTrouble, ListenError, UnusableMetadata) as trouble:
        print(f"kafkad: {trouble}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    say_ready(worker)
    try:
        loop.run_forever()
    finally:
        begun = time.monotonic()
        worker.stop()
        loop.close()
    logger.info("stopped cleanly in %d ms", (time.monotonic() - begun) * 1000)
    return 0


def raise_descriptor_limit() -> None:
    """As many files and sockets as the system lets this process have without asking anybody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def say_ready(worker: Worker) -> None:
    """The line that scripts wait for, and what to try next."""
    first = worker.endpoints[0]
    host = f"[{first.host}]" if ":" in first.host else first.host or "0.0.0.0"
    address = f"{host}:{first.port}"
    milliseconds = int((time.time() - process_start()) * 1000)
    print(
        f"kafkad is ready on {address} (cluster {worker.cluster_id}, pid {os.getpid()}, {milliseconds} ms)",
        flush=True,
    )
    print(HINT.format(address=address.replace("0.0.0.0", "127.0.0.1"), kafkad=own_name()), flush=True)


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
