"""Show errors that a user can act on in Spark's driver as one error message, without PySpark's traceback.

PySpark's worker sends a formatted exception to the JVM, which puts all of it into its own message. It leaves
out the traceback if SPARK_HIDE_TRACEBACK is in the environment. So this module sets it when such an error
leaves the source while Spark creates or plans it, and removes it when the same process is used again. Any
other exception is a bug and keeps its traceback. So do errors of tasks, whose processes also run other
code."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kafkad.protocol.errors import KafkaError

HIDE = "SPARK_HIDE_TRACEBACK"
FOR_USERS = (ValueError, RuntimeError, OSError, KafkaError)

_ours = False  # whether this module set it


@contextmanager
def plain_errors() -> Iterator[None]:
    global _ours
    if _ours:
        os.environ.pop(HIDE, None)
        _ours = False
    try:
        yield
    except FOR_USERS as trouble:
        if is_worker() and HIDE not in os.environ and not isinstance(trouble, UnicodeError):
            os.environ[HIDE] = "1"
            _ours = True
        raise


def is_worker() -> bool:
    """Return whether this process is PySpark's: its daemon or one of its worker modules is the main
    module."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", "").startswith("pyspark.")
