from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

M = TypeVar("M", bound=Message)
Range = tuple[int, int]

KINDS: dict[str, int]

class Field:
    name: str
    type: str
    default: Any
    struct: Spec | None
    versions: Range
    nullable: Range
    tagged: Range
    tag: int
    ignorable: bool
    never_compact: bool
    def __init__(
        self,
        name: str,
        type: str,
        default: Any,
        struct: Spec | None,
        versions: Range,
        nullable: Range,
        tagged: Range,
        tag: int,
        ignorable: bool,
        never_compact: bool,
    ) -> None: ...

class Spec:
    path: str
    fields: tuple[Field, ...]
    versions: Range
    flexible: Range
    cls: type[Message]
    def __init__(self, path: str, fields: Iterable[Field], versions: Range, flexible: Range) -> None: ...
    def bind(self, cls: type[Message]) -> None: ...
    def prepare(self, version: int) -> None:
        """Build the plan of a version before its first use."""

class Message:
    SPEC: ClassVar[Spec]
    NAME: ClassVar[str]
    API_KEY: ClassVar[int | None]
    RECORD_TYPE: ClassVar[int | None]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    LATEST_VERSION: ClassVar[int]
    FLEXIBLE_VERSION: ClassVar[int]
    unknown_tags: dict[int, bytes] | None
    def __init__(self, **values: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...  # the schema's fields
    def __setattr__(self, name: str, value: Any) -> None: ...

class TooWide(Exception): ...

def encode(message: Message, version: int, prefix: bytes = b"", values_max: int = ...) -> bytes: ...
def decode(
    cls: type[M], version: int, buffer: Any, offset: int = 0, values_max: int = ...
) -> tuple[M, int]: ...
