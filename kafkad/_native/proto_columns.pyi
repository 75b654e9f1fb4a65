from collections.abc import Sequence
from typing import Any

from kafkad._native.arrow_build import Finished

class ProtoColumns:
    def __init__(
        self, fields: Sequence[tuple[Any, ...]], plan: dict[str, Any], has_header: bool = False
    ) -> None: ...
    def __arrow_c_schema__(self) -> object: ...
    def decode(self, array: object) -> tuple[Finished, list[int], list[str]]: ...
