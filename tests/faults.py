"""Functions of kafkad that fail when a test says so."""

from contextlib import contextmanager
from pathlib import Path

from tests.clients import python_path, wait_until

OBSERVED = Path(__file__).parent / "observed"


class Faults:
    """`points`: see tests/observed, which reads them in the processes that are started with `env`. Several
    in one text fail together."""

    def __init__(self, directory, points):
        self.directory = directory
        directory.mkdir()
        (directory / "points").write_text(
            "\n".join(sorted({each for name in points for each in name.split()}))
        )
        self.env = python_path(OBSERVED) | {"KAFKAD_FAULTS": str(directory)}

    @contextmanager
    def failing(self, names):
        for name in names.split():
            (self.directory / name).touch()
        try:
            yield
            for name in names.split():
                wait_until((self.directory / f"{name}.failed").exists, timeout=10)
        finally:
            for name in names.split():
                (self.directory / name).unlink()
