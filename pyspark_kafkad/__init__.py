"""What makes `spark.read.format("kafkad")` work after `pip install kafkad` alone.

PySpark imports every top-level module named pyspark_* when it meets a format that it does not know, and
registers its `DefaultSource`. That happens in a Python worker for every such format, ours or not, and one
module that fails there hides all Python sources; so this one imports nothing but PySpark's base class, and
each method fetches what it needs when it is called.
"""

import sys
from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """format("kafkad"): see kafkad/spark/source.py and docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "kafkad"

    def schema(self) -> Any:
        return _source().read_schema(self.options)

    def reader(self, schema: Any) -> Any:
        return _source().batch_reader(self.options, schema)

    def streamReader(self, schema: Any) -> Any:
        return _source().stream_reader(self.options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return _source().batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return _source().stream_writer(self.options, schema, overwrite)


def _source() -> Any:
    try:
        import pyarrow  # noqa: F401

        from kafkad.spark import source
    except ImportError as missing:
        version = ".".join(map(str, sys.version_info[:2]))
        raise ImportError(
            f"Spark runs its Python code with {sys.executable} (Python {version}), which cannot import "
            f"{missing.name or missing}: set PYSPARK_PYTHON to a Python that has kafkad and pyarrow before "
            'Spark starts (pip install "kafkad[spark]"; kafkad doctor spark shows what is wrong)'
        ) from missing
    return source
