from collections.abc import Sequence
from typing import Any

from kafkad._native.arrow_build import Finished

class JsonColumns:
    def __init__(
        self, fields: Sequence[tuple[Any, ...]], skipped: Sequence[str] = (), zone: str = "UTC"
    ) -> None: ...
    def __arrow_c_schema__(self) -> object: ...
    def decode(self, array: object) -> tuple[Finished, list[int], list[str]]: ...
