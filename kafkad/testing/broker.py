"""`Broker`: a kafkad process that a test controls.

It runs `kafkad serve` on port 0 of 127.0.0.1 with its own data directory, and reads the port from the ready
line. A test may kill the broker (`kill`, SIGKILL), stop it (`stop`, SIGTERM) and start it again with the same
data on the same port (`restart`).

Without `data_dir`, the data is in a temporary directory that is deleted at the end. `log` has the broker's
stderr, and so has the message of `BrokerFailed` if the broker does not start.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

WORKER = re.compile(r"\d+ \(kafkad/(\d+)\) (\w)")  # in /proc/<pid>/stat: name and state
READY = re.compile(r"^kafkad is ready on (\S+):(\d+)", re.MULTILINE)
TEST_CONFIG: dict[str, object] = {"group.initial.rebalance.delay.ms": 0}
POLL_S = 0.005  # pause between looks for the ready line
LOG_TAIL_BYTES = 16_384  # how much of the log a failure quotes

# A child dies with the thread that started it (see launch.py). So one thread, which lives as long as the
# process, starts all of them.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafkad-spawner")


class BrokerFailed(Exception):
    """The broker exited or hung. The message quotes its stderr."""


class Broker:
    """A kafkad broker process, as a context manager.

    workers       number of worker processes; default: $KAFKAD_WORKERS, else 1
    config        Kafka's keys and values, as in server.properties (`{"num.partitions": 4}`); values may be
                  bool or int. Without `properties`, group.initial.rebalance.delay.ms is 0 instead of Kafka's
                  3000, so the first rebalance of a group does not wait for more members
    data_dir      directory for the data, kept afterwards; default: a temporary directory
    properties    a server.properties file; its listeners and log.dirs apply unless given here
    listen        "host:port"; port 0 picks a free port
    timeout       seconds to wait until the broker is ready, and for a clean stop
    """

    kind = "kafkad"

    def __init__(
        self,
        workers: int | None = None,
        config: Mapping[str, object] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        properties: str | os.PathLike[str] | None = None,
        listen: str | None = None,
        timeout: float = 30.0,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
    ):
        self.workers = workers if workers is not None else int(os.environ.get("KAFKAD_WORKERS") or 1)
        self.config = {**({} if properties is not None else TEST_CONFIG), **(config or {})}
        self.properties = Path(properties) if properties is not None else None
        self.timeout = timeout
        self.python = python
        self.env = dict(env or {})
        self.host = ""
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._listen = listen if listen is not None or properties is not None else "127.0.0.1:0"
        self._listeners: str | None = None
        self._scratch: Path | None = None
        self._data_dir = Path(data_dir) if data_dir is not None else None

    # -- queries

    @property
    def bootstrap(self) -> str:
        """`host:port` for a client's bootstrap.servers."""
        if not self.port:
            raise BrokerFailed("the broker has not been started: use `with Broker() as broker:`")
        return f"{self.host}:{self.port}"

    @property
    def data_dir(self) -> Path:
        return self._data_dir if self._data_dir is not None else self._scratch_directory() / "data"

    @property
    def pid(self) -> int:
        if self.process is None:
            raise BrokerFailed("the broker has not been started")
        return self.process.pid

    @property
    def worker_pids(self) -> dict[int, int]:
        """The pids of the workers, by index. With one worker, this is the broker itself."""
        if self.workers == 1:
            return {0: self.pid}
        found = {}
        for pid in _children(self.pid):
            named = WORKER.match(_read(f"/proc/{pid}/stat"))
            if named and named[2] not in "ZX":  # not dead
                found[int(named[1])] = pid
        return found

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> str:
        """The end of the broker's stderr, over all its starts."""
        return _tail(self.log_file)

    @property
    def log_file(self) -> Path:
        """The file that has the broker's stderr, over all its starts."""
        return self._scratch_directory() / "stderr"

    @property
    def output(self) -> str:
        """The broker's stdout since its last start."""
        return _tail(self._scratch_directory() / "stdout")

    # -- actions

    def start(self) -> Self:
        """Start the process, and return when it is ready. Raise BrokerFailed."""
        assert not self.running, "the broker is running already"
        scratch = self._scratch_directory()
        with open(scratch / "stdout", "wb") as out, open(scratch / "stderr", "ab") as err:
            self.process = spawn(
                lambda: subprocess.Popen(
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env={**os.environ, **self.env},
                )
            )
        ready = self._wait_until_ready(scratch / "stdout")
        self.host, self.port = ready[1].strip("[]"), int(ready[2])
        return self

    def kill(self) -> None:
        """Kill the broker by SIGKILL, so that it flushes nothing. Return when all its processes are gone."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)  # otherwise it may fork a worker that we do not know of
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            workers = [_watched(pid) for pid in _children(self.pid)]
            self.process.kill()
            self.process.wait()
            for worker in workers:
                _wait_gone(worker)

    def kill_worker(self, index: int) -> int:
        """Kill one of several workers by SIGKILL. The broker starts it again. Return the old pid when the
        process is gone."""
        assert self.workers > 1
        deadline = time.monotonic() + self.timeout
        while (pid := self.worker_pids.get(index)) is None:  # its successor is not forked yet
            if time.monotonic() > deadline:
                raise BrokerFailed(f"there is no worker {index}\n{self.log}")
            time.sleep(POLL_S)
        worker = _watched(pid)
        os.kill(pid, signal.SIGKILL)
        _wait_gone(worker)
        return pid

    def stop(self) -> int:
        """Stop the broker cleanly by SIGTERM. Return the exit code. Raise BrokerFailed if it takes too
        long."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"the broker did not stop within {self.timeout:g} s of SIGTERM\n{self.log}")

    def restart(self) -> None:
        """Stop the broker if it runs, and start it again with the same data on the same port."""
        if self.running:
            self.stop()
        if self.port and self._listen is not None:
            self._listen = self.bootstrap
        elif self.port:
            self._listeners = self._listeners_on_this_port()
        self.start()

    def close(self) -> None:
        """End the process, by SIGKILL if necessary, and remove temporary files."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- internals

    def _listeners_on_this_port(self) -> str | None:
        """Return the listeners of `properties` with the port that was picked in place of port 0, or None if
        none was picked. `--listen` would replace them by one PLAINTEXT listener."""
        from kafkad.config.properties import read_properties

        assert self.properties is not None
        given = str({**read_properties(self.properties), **self.config}.get("listeners", ""))
        picked = re.sub(r":0(?=\s*(,|$))", f":{self.port}", given, count=1)
        return picked if picked != given else None

    def _command(self) -> list[str]:
        command = [self.python, "-m", "kafkad.testing.launch", str(os.getpid()), "serve"]
        if self.properties is not None:
            command.append(str(self.properties))
        if self.properties is None or self._data_dir is not None:
            command += ["--data-dir", str(self.data_dir)]
        if self._listen is not None:
            command += ["--listen", self._listen]
        command += ["--workers", str(self.workers)]
        listeners = {"listeners": self._listeners} if self._listeners else {}
        for key, value in {**self.config, **listeners}.items():
            command += ["--override", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        return command

    def _wait_until_ready(self, stdout: Path) -> re.Match[str]:
        assert self.process is not None
        deadline = time.monotonic() + self.timeout
        while True:
            code = self.process.poll()  # before reading, so that no output of a dead process is missed
            ready = READY.search(stdout.read_text(errors="replace"))
            if ready:
                return ready
            if code is not None:
                raise BrokerFailed(f"the broker exited with {code} before it was ready\n{self.log}")
            if time.monotonic() > deadline:
                log = self.log
                self.kill()
                raise BrokerFailed(f"the broker was not ready within {self.timeout:g} s\n{log}")
            time.sleep(POLL_S)

    def _scratch_directory(self) -> Path:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="kafkad-test-"))
        return self._scratch


def spawn(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    return _spawner.submit(start).result()


def _children(pid: int) -> list[int]:
    return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # the process is gone
        return ""


def _watched(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends, or None if it has ended."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _wait_gone(process: int | None) -> None:
    if process is not None:
        gone = select.poll()  # select() takes no descriptor above 1023
        gone.register(process, select.POLLIN)
        gone.poll()
        os.close(process)


def _tail(path: Path) -> str:
    if not path.exists():
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")
