"""The PySpark data source `kafkad`: reads and writes topics of any Kafka broker, without a jar.

import kafkad.spark
kafkad.spark.register(spark)            # only where PySpark does not find it by itself
spark.read.format("kafkad").option("kafka.bootstrap.servers", "…").option("subscribe", "flights").load()
"""

import shutil
import subprocess
import sys
from typing import Any

PROBE = "import kafkad, pyarrow, pyspark_kafkad"
PROBE_SECONDS = 30


def register(spark: Any) -> None:
    """Register format("kafkad") in this session. Needed if another pyspark_* module breaks PySpark's own
    search, and harmless otherwise. Raises ImportError with one message if the Python that Spark starts for
    its workers is on this machine and lacks kafkad or pyarrow.
    """
    from pyspark_kafkad import DefaultSource

    context = getattr(spark, "_sc", None)  # None: Spark Connect, whose server has its own Python
    if context is not None:
        check_worker_python(context.pythonExec)
    try:
        spark.dataSource.register(DefaultSource)
    except Exception as trouble:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(trouble):  # PySpark 4.0, which has found it by itself
            raise


def check_worker_python(python: str) -> None:
    """Raise ImportError if `python`, started like the workers, cannot import what is needed."""
    found = shutil.which(python)
    if found is None or found == sys.executable:  # do not resolve links: environments are links
        return
    try:
        run = subprocess.run([found, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return  # Spark reports it better
    if run.returncode:
        said = run.stderr.strip().splitlines()
        raise ImportError(
            f"Spark's Python workers run {found}, where this fails: {said[-1] if said else 'no word'}; set "
            f"PYSPARK_PYTHON={sys.executable} before the SparkSession starts (kafkad doctor spark tells more)"
        )
