from collections.abc import Callable, Sequence
from typing import Any

from kafkad._native.arrow_build import Finished

class AvroColumns:
    def __init__(
        self,
        fields: Sequence[tuple[Any, ...]],
        plan: dict[str, Any] | None = None,
        plan_of: Callable[[int], dict[str, Any] | str] | None = None,
    ) -> None: ...
    def __arrow_c_schema__(self) -> object: ...
    def decode(self, array: object) -> tuple[Finished, list[int], list[str]]: ...
