from collections.abc import Sequence
from typing import Any

from kafkad._native.values.value_columns import ValueColumns

class ProtoColumns(ValueColumns):
    def __init__(
        self, fields: Sequence[tuple[Any, ...]], plan: dict[str, Any], has_header: bool = False
    ) -> None: ...
