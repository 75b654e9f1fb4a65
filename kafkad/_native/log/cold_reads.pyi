def resident(fd: int, position: int, size: int) -> bool:
    """Whether these bytes of a file are in the page cache, as far as can be known. For tests."""
