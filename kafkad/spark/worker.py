"""What the source and `kafkad ingest` do to the Python workers of Spark that run their tasks.

After each task PySpark has a worker collect all its garbage (pyspark/daemon.py). What a worker has imported,
PySpark, pandas and pyarrow, is then looked at object by object, which costs tens of milliseconds, most of a
small task:

    python -m timeit -s "import gc, pandas, pyarrow, pyspark.worker" "gc.collect()"

It is there for good, so the collector need not see it: gc.freeze.

Spark lets go of a worker that had nothing to do for a minute, and of all at its end, by closing its socket.
The worker takes that for trouble and tells it to the socket; over unix sockets that fails, and a traceback of
a broken pipe goes to stderr, as if something had gone wrong. So a broken pipe ends a worker in silence:
whoever closed the other end knows.
"""

import gc
import sys
from types import ModuleType
from typing import Any

_begun = 0


def task_begins() -> None:
    """To be called when a task begins. From the second on: what a task imports is imported by then, and the
    garbage of the first has been collected.
    """
    global _begun
    _begun += 1
    if _begun == 1:
        end_in_silence(sys.modules["__main__"])
    if _begun == 2:
        gc.freeze()


def end_in_silence(daemon: ModuleType) -> None:
    """`daemon`: pyspark.daemon, which forked this process, and calls its worker() for each task. Any other
    module is left alone.
    """
    if getattr(getattr(daemon, "__spec__", None), "name", None) != "pyspark.daemon":
        return
    work: Any = daemon.worker

    def worker(*arguments: Any) -> int:
        try:
            code: int = work(*arguments)
            return code
        except BrokenPipeError:
            return 1  # the daemon has the process end

    daemon.worker = worker  # type: ignore[attr-defined]
