"""Changes that the source and `kafkad ingest` make to Spark's Python workers that run their tasks.

After each task, PySpark makes a worker collect its garbage (pyspark/daemon.py). The collector scans every
object of the imported modules PySpark, pandas and pyarrow, which takes tens of milliseconds, most of a small
task:

    python -m timeit -s "import gc, pandas, pyarrow, pyspark.worker" "gc.collect()"

These objects are permanent, so gc.freeze hides them from the collector.

Spark ends a worker that was idle for a minute, and all workers at its end, by closing its socket. The worker
treats this as an error and reports it to the socket. Over Unix sockets this fails, and a traceback of a
broken pipe goes to stderr as if something were wrong. So a broken pipe ends a worker silently.
"""

import gc
import sys
from types import ModuleType
from typing import Any

_begun = 0


def task_begins() -> None:
    """Call when a task begins. From the second one on, everything that a task needs is imported, and the
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
    module is left unchanged.
    """
    if getattr(getattr(daemon, "__spec__", None), "name", None) != "pyspark.daemon":
        return
    work: Any = daemon.worker

    def worker(*arguments: Any) -> int:
        try:
            code: int = work(*arguments)
            return code
        except BrokenPipeError:
            return 1  # the daemon then ends the process

    daemon.worker = worker  # type: ignore[attr-defined]
