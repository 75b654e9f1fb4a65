from collections.abc import Sequence
from typing import Any

from kafkad._native.arrow_build import Finished

class CsvColumns:
    def __init__(
        self,
        fields: Sequence[tuple[Any, ...]],
        places: Sequence[int],
        names: Sequence[str],
        delimiter: str = ",",
        quote: str = '"',
        escape: str = "\\",
        null_value: str = "",
        zone: str = "UTC",
    ) -> None: ...
    def __arrow_c_schema__(self) -> object: ...
    def decode(self, array: object) -> tuple[Finished, list[int], list[str]]: ...
