from collections.abc import Sequence
from typing import Any

from kafkad._native.values.text_patterns import Pattern
from kafkad._native.values.value_columns import ValueColumns

class CsvColumns(ValueColumns):
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
        words: Sequence[str] = ("NaN", "Inf", "-Inf"),
        patterns: tuple[Pattern | None, ...] = (None, None, None),
    ) -> None: ...
