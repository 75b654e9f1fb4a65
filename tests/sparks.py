"""Spark in the tests: a session at a time, in a JVM of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.jvm import FAST_JVM

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": " ".join(FAST_JVM),
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
}


@contextmanager
def spark_session(settings: dict[str, str] | None = None, *, cores: int = 2) -> Iterator[Any]:
    from pyspark.sql import SparkSession

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
