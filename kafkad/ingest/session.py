"""The Spark session of a pipeline, with settings that avoid common problems.

    PYSPARK_PYTHON                        this Python; otherwise workers use the first python3 on the PATH
    Unix-domain sockets                   between the JVM and its Python workers: saves 25 to 45 ms per batch
    the checkpoint file manager           plain files for local checkpoints: saves 30 ms per batch
    shuffle partitions                    as many as cores instead of 200
    session time zone                     UTC: the rows do not depend on the driver's location
    web UI                                off, unless requested
    Arrow batches                         16,384 rows; larger ones leave the cache
    speculation                           off: a second attempt would only write files that nobody commits
    Spark's log                           fatal errors only, because a run prints its own error messages.
                                          conf."spark.log.level" = "WARN" shows more, with stack traces

[spark.conf] overrides these. Under spark-submit, its own flags override the master in [spark.conf].
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkad.ingest.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
CHECKPOINT_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
TASK_FAILURES = 4  # like spark.task.maxFailures
JARS_VARIABLE = "KAFKAD_SPARK_KAFKA_JARS"  # a directory with the connector's jars, for machines without Maven


class NoSpark(Exception):
    """Spark cannot be started; the message says what to install or set."""


def require(*modules: str, extra: str) -> None:
    """Raise NoSpark with the pip install command for missing modules."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        verb = "is" if len(missing) == 1 else "are"
        raise NoSpark(f"{names} {verb} missing: pip install 'kafkad[{extra}]'")


def settings(pipeline: Pipeline) -> dict[str, str]:
    """Return the session's settings except its master: defaults, then [spark.conf]."""
    cores = cores_of(pipeline.spark.master)
    chosen = {
        "spark.ui.enabled": str(pipeline.spark.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.speculation": "false",
        "spark.log.level": "FATAL",
    }
    if pipeline.source.engine == "kafka-jar":
        chosen.update(connector())
    chosen.update(pipeline.spark.conf)
    return chosen


def connector() -> dict[str, str]:
    """Return the source of Spark's own Kafka connector: a directory of jars, or Maven."""
    import pyspark

    directory = os.environ.get(JARS_VARIABLE)
    if directory:
        jars = sorted(str(path) for path in Path(directory).glob("*.jar"))
        if not jars:
            raise NoSpark(f"{JARS_VARIABLE}={directory} holds no jars")
        return {"spark.jars": ",".join(jars)}
    return {"spark.jars.packages": f"{CONNECTOR}:{pyspark.__version__}"}


def cores_of(master: str) -> int:
    """Return the cores of a local master; for a cluster ask the context."""
    if cluster := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", master):
        return int(cluster[1]) * int(cluster[2])
    inner = master.removeprefix("local").strip("[]").split(",")[0] if master.startswith("local") else ""
    return int(inner) if inner.isdigit() else len(os.sched_getaffinity(0)) if inner in ("", "*") else 2


def with_failures(master: str) -> str:
    """Allow task failures: local[2] retries no failed task; local[2,4] repeats a task that lost its
    worker."""
    if master == "local":
        return f"local[1,{TASK_FAILURES}]"
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},{TASK_FAILURES}]"
    return master


def submitted() -> bool:
    """Return whether spark-submit started us: then it set the master and the JVM's options."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def session(pipeline: Pipeline) -> SparkSession:
    """Start a session, or return the existing one. Raises NoSpark."""
    require("pyspark", "pyarrow", extra="ingest")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if pipeline.spark.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.appName(f"kafkad ingest {pipeline.name}")
    if not submitted():
        builder = builder.master(with_failures(pipeline.spark.master))
    chosen = settings(pipeline)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        with greetings_aside(chosen):
            spark: SparkSession = builder.getOrCreate()
    except Exception as trouble:
        if "JAVA_GATEWAY_EXITED" in str(trouble) or isinstance(trouble, FileNotFoundError):
            raise NoSpark(
                "Spark's Java did not start: it wants Java 17 or newer (java -version; JAVA_HOME names it)"
            ) from trouble
        raise
    spark.sparkContext.setLogLevel(chosen["spark.log.level"])
    return spark


@contextlib.contextmanager
def greetings_aside(chosen: dict[str, str]) -> Iterator[None]:
    """Redirect the JVM's stderr to an unnamed file, so that its long greeting does not break the bar on a
    terminal. Not if its log is wanted; if the JVM does not start, its output is shown.
    """
    if not sys.stderr.isatty() or chosen["spark.log.level"] != "FATAL" or submitted():
        yield
        return
    warnings.filterwarnings("ignore", message="(?s)PySpark does not.*pandas", category=FutureWarning)
    with tempfile.TemporaryFile() as words:
        sys.stderr.flush()
        ours = os.dup(2)
        os.dup2(words.fileno(), 2)
        try:
            yield
        except BaseException:
            words.seek(0)
            os.write(ours, words.read())
            raise
        finally:
            os.dup2(ours, 2)
            os.close(ours)
