from collections.abc import Sequence
from typing import Any

from kafkad._native.values.text_patterns import Pattern
from kafkad._native.values.value_columns import ValueColumns

class JsonColumns(ValueColumns):
    def __init__(
        self,
        fields: Sequence[tuple[Any, ...]],
        skipped: Sequence[str] = (),
        zone: str = "UTC",
        patterns: tuple[Pattern | None, ...] = (None, None, None),
    ) -> None: ...
