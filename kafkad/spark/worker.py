"""What the source and `kafkad ingest` do to the Python workers of Spark that run their tasks.

After each task PySpark has a worker collect all its garbage (pyspark/daemon.py). What a worker has imported,
PySpark, pandas and pyarrow, is then looked at object by object, which costs tens of milliseconds, most of a
small task:

    python -m timeit -s "import gc, pandas, pyarrow, pyspark.worker" "gc.collect()"

It is there for good, so the collector need not see it: gc.freeze."""

import gc

_begun = 0


def task_begins() -> None:
    """To be called when a task begins. From the second on: what a task imports is imported by then, and the
    garbage of the first has been collected.
    """
    global _begun
    _begun += 1
    if _begun == 2:
        gc.freeze()
