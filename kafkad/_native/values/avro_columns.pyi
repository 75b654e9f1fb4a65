from collections.abc import Callable, Sequence
from typing import Any

from kafkad._native.values.value_columns import ValueColumns

class AvroColumns(ValueColumns):
    def __init__(
        self,
        fields: Sequence[tuple[Any, ...]],
        plan: dict[str, Any] | None = None,
        plan_of: Callable[[int], dict[str, Any] | str] | None = None,
    ) -> None: ...
