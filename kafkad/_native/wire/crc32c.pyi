from typing import Final

from typing_extensions import Buffer

IMPLEMENTATIONS: Final[tuple[str, ...]]

def checksum(data: Buffer, seed: int = 0) -> int: ...
def checksum_by(name: str, data: Buffer, seed: int = 0) -> int: ...
