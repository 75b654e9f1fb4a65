"""`kafkad` commands in a process that stays: Python's imports and Spark's JVM are paid for once.

`kafkad(...)` runs a command as its own process would: its code from `main` on, in the main thread, with files
as standard output and error; the answer is what it wrote and its exit code. Only the process is there before.
A Spark session is started and stopped by each command, in a JVM that stays.

What a test says about processes (signals, kills, another environment, spark-submit) needs one of its own:
`tests.ingest_world.Job`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from typing import IO, Any

from tests.jvm import ROOT, die_with_parent
from tests.sparks import prepare_spark


@functools.cache
def _resident(pid: int) -> subprocess.Popen[str]:
    """The process that runs the commands of this process; it ends when its standard input does."""
    prepare_spark()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.resident"], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=die_with_parent,
    )  # fmt: skip
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.wait(60)


def kafkad(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs `kafkad` with these arguments, in the working directory of this process."""
    process = _resident(os.getpid())
    assert process.stdin is not None and process.stdout is not None
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as errors:
        task = {"arguments": arguments, "directory": os.getcwd(), "out": out.name, "errors": errors.name}
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        said = process.stdout.readline()
        assert said, f"the process of the commands ended in {arguments}: {errors.read()[-3000:]!r}"
        done = subprocess.CompletedProcess(
            [*arguments], int(said), out.read().decode(), errors.read().decode()
        )
    if check:
        assert done.returncode == 0, done.stderr[-3000:]
    return done


# -- the process


def _run(arguments: list[str]) -> int:
    from kafkad.__main__ import main

    sys.argv = ["kafkad", *arguments]
    try:
        main()
    except SystemExit as left:
        code = left.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def _serve(tasks: IO[str], answers: IO[str]) -> None:
    for line in tasks:
        task: dict[str, Any] = json.loads(line)
        os.chdir(task["directory"])
        for name, number in (("out", 1), ("errors", 2)):
            with open(task[name], "wb") as file:
                os.dup2(file.fileno(), number)
        answers.write(f"{_run(task['arguments'])}\n")
        answers.flush()


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as ours:  # descriptor 1 is the command's
        _serve(sys.stdin, ours)
