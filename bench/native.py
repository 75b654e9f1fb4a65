"""The C programs of the benchmark, compiled at their first use."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "native"
BUILT = Path(__file__).parent.parent / ".cache" / "bench"


def build(name: str) -> Path:
    """`bench/native/<name>.c` compiled; built again when a source is newer."""
    target = BUILT / name
    sources = [HERE / f"{name}.c", *HERE.glob("*.h")]
    if not target.exists() or target.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        BUILT.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", "-Wall", "-o", str(target), str(sources[0])], check=True)
    return target


def command(mode: str, options: dict[str, object]) -> list[str]:
    return [str(build("load")), mode, *(f"{name}={value}" for name, value in options.items())]


def load(*, timeout: float = 600, **options: object) -> dict[str, Any]:
    """One run of the load generator (its options are in load.c); its JSON. Raises RuntimeError with what it
    said when it fails.
    """
    return told_by(command("run", options), timeout)


def logins(*, timeout: float = 600, **options: object) -> dict[str, Any]:
    """One run of those who connect again and again (logins.c); its JSON."""
    return told_by(login_command(options), timeout)


def login_command(options: dict[str, object]) -> list[str]:
    return [str(build("logins")), *(f"{name}={value}" for name, value in options.items())]


def told_by(started: list[str], timeout: float) -> dict[str, Any]:
    done = subprocess.run(started, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"{' '.join(started)}: {done.stderr.strip() or done.stdout.strip()}")
    if done.stderr:
        sys.stderr.write(done.stderr)
    return json.loads(done.stdout)


@contextmanager
def idle_connections(port: int, count: int, **options: object) -> Iterator[None]:
    """`count` connections that said hello, open as long as the block runs; none may have been closed."""
    process = subprocess.Popen(
        command("idle", {"port": port, "connections": count, **options}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"{count} connections: {process.communicate()[1].strip()}")
        yield
        told, _ = process.communicate("")
        if json.loads(told)["closed"]:
            raise RuntimeError(f"the broker closed idle connections: {told.strip()}")
    finally:
        process.kill()
        process.wait()
