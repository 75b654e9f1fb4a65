"""Sync files that pyiceberg writes when they are closed.

pyiceberg leaves manifests and metadata in the page cache, while the catalog's pointer to them (SQLite) is on
disk at once. After a power loss, the pointer could name missing files, and the table would be lost. DurableIO
is pyiceberg's own file reader and writer, with an fsync of the file and its folder at the end. Tables use it
unless [sink] catalog sets another `py-io-impl`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from kafkad.ingest.table import make_folder, sync_file, sync_folder


class DurableIO(PyArrowFileIO):
    """See the module docstring."""

    def new_output(self, location: str) -> PyArrowFile:
        output = super().new_output(location)
        if self.parse_location(location, self.properties)[0] != "file":
            return output
        return DurableFile(
            location=output.location,
            path=output._path,
            fs=output._filesystem,
            buffer_size=output._buffer_size,
        )


class DurableFile(PyArrowFile):
    """A file that is on disk when its stream is closed."""

    def create(self, overwrite: bool = False) -> Any:
        make_folder(Path(self._path).parent)
        return DurableStream(super().create(overwrite), self._path)


class DurableStream:
    """An output stream of pyarrow's."""

    def __init__(self, stream: Any, path: str) -> None:
        self.stream = stream
        self.path = path

    def __enter__(self) -> DurableStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def close(self) -> None:
        if self.stream.closed:
            return
        self.stream.close()
        sync_file(Path(self.path))
        sync_folder(Path(self.path).parent)
