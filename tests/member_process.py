"""A kafkad broker between JVM controllers, as a process of its own: `python tests/member_process.py FILE`.

The command line refuses process.roles=broker until all of it is there; this runs what is. `Member` starts
and stops it for a test."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READY = "kafkad is ready on"


class MemberProcess:
    """kafkad on the directory and the properties of `node` (tests.jvm_cluster), which is formatted."""

    def __init__(self, node):
        self.node = node
        self.bootstrap = node.bootstrap
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self.node.log_file.read_text(errors="replace")

    def start(self, timeout: float = 40) -> MemberProcess:
        from tests.jvm import die_with_parent

        with open(self.node.log_file, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.member_process", str(self.node.properties)],
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


def main(path: str) -> int:
    from kafkad.config.broker import BrokerConfig
    from kafkad.server.lifecycle import serve_alone
    from kafkad.server.member_worker import MemberWorker

    logging.basicConfig(level="INFO", stream=sys.stderr)
    return serve_alone(BrokerConfig.load(path, {}), MemberWorker)


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)
