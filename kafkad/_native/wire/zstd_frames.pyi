from typing_extensions import Buffer

def zstd_walk(
    data: Buffer, position: int, state: int, blocks: int, frames: int
) -> tuple[int, int, int, int]: ...
