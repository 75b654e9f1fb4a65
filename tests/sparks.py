"""Spark in the tests: a session at a time, in a JVM of its own.

Half of what a session costs is the loading of classes. `prepare_spark` makes an archive of them once, by a
session that does a little of everything; SPARK_JVM are the JVM options of every session. A JVM that finds the
archive missing or unfit goes on without it.

Of the rest half is compilation: by the JVM, of what runs a few hundred times, and by Spark, of Java for each
query. So the thresholds of the JVM are higher, and Spark interprets (INTERPRETED). Spark compiles, as it does
for its users, in `test_spark_demo.py`, `test_ingest_volumes.py` (spark-submit) and the killed drivers of
`test_spark_exactly_once.py`."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.jvm import FAST_JVM, JARS, ROOT, class_archive, java, java_version

ARCHIVE = JARS / f"spark-{version('pyspark')}-{java_version(java())}.jsa"
SPARK_JVM = (
    *FAST_JVM,
    "-XX:Tier3InvocationThreshold=2000",
    "-XX:Tier3MinInvocationThreshold=1000",
    "-XX:Tier3CompileThreshold=5000",
    f"-XX:SharedArchiveFile={ARCHIVE}",
    "-Xlog:cds=off",
    "-Xlog:cds+dynamic=off",
)
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
SETTINGS = {
    **INTERPRETED,
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": " ".join(SPARK_JVM),
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
}


@functools.cache
def prepare_spark() -> None:
    """To be called before any session starts."""

    def train(options: tuple[str, ...]) -> None:
        subprocess.run(
            [sys.executable, "-m", "tests.sparks", " ".join((*FAST_JVM, *options))],
            cwd=ROOT, capture_output=True, timeout=150,
        )  # fmt: skip

    class_archive(ARCHIVE, train)


@contextmanager
def spark_session(settings: dict[str, str] | None = None, *, cores: int = 2) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    prepare_spark()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder.master(f"local[{cores}]")
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")  # failures are wanted, and each is a page long
    try:
        yield spark
    finally:
        end(spark)


def end(spark: Any) -> None:
    """With its JVM: the next session of this process would get one with the class path, the memory and the
    PYSPARK_PYTHON of this one, whatever it asks for.
    """
    from pyspark import SparkContext

    spark.stop()
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()  # that is what it ends by
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


def _a_little_of_everything(java_options: str) -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder.master("local[2]")
    for key, value in {**SETTINGS, "spark.driver.extraJavaOptions": java_options}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        frame = spark.range(1_000).selectExpr("id", "cast(id as string) as text", "id % 7 as part")
        frame = frame.mapInArrow(lambda batches: batches, frame.schema)
        frame.write.parquet(str(path / "table"))
        spark.read.parquet(str(path / "table")).createOrReplaceTempView("rows")
        spark.sql(
            "select part, count(*), max(text) from rows where id > 10 group by part order by 1"
        ).collect()
        stream = spark.readStream.schema(frame.schema).parquet(str(path / "table"))
        sink = stream.writeStream.format("parquet").option("path", str(path / "copy"))
        sink.option("checkpointLocation", str(path / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()
    end(spark)


if __name__ == "__main__":
    _a_little_of_everything(sys.argv[1])
