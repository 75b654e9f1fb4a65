"""A kafkad broker between controllers: `kafkad serve` on a directory that is formatted."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
READY = "kafkad is ready on"


def workers_of(pid: int) -> dict[int, psutil.Process]:
    """The workers of a supervisor that live, by index."""
    found = {}
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            kind, _, index = child.name().partition("/")
            if kind == "kafkad" and child.status() != psutil.STATUS_ZOMBIE:
                found[int(index)] = child
    return found


class MemberProcess:
    """kafkad on the directory and the properties of `node` (tests.jvm_cluster), which is formatted."""

    def __init__(self, node, workers=1):
        self.node = node
        self.workers = workers
        self.bootstrap = node.bootstrap
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self.node.log_file.read_text(errors="replace")

    @property
    def worker_pids(self) -> dict[int, int]:
        """Of those that live, by index."""
        assert self.process is not None
        return {index: worker.pid for index, worker in workers_of(self.process.pid).items()}

    def kill_worker(self, index: int) -> None:
        """SIGKILL."""
        worker = psutil.Process(self.worker_pids[index])
        worker.kill()
        psutil.wait_procs([worker], 10)

    def start(self, timeout: float = 40) -> MemberProcess:
        from tests.jvm import die_with_parent

        with open(self.node.log_file, "wb") as out:
            workers = ("--workers", str(self.workers))
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kafkad", "serve", *workers, str(self.node.properties)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=die_with_parent,
            )  # fmt: skip
        deadline = time.monotonic() + timeout
        while READY not in self.log:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"kafkad was not ready: {self.process.returncode}\n{self.log}")
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self, timeout: float = 40) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout)

    def __enter__(self) -> MemberProcess:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()
