def resident(fd: int, position: int, size: int) -> bool:
    """Whether these bytes of a file are in the page cache, if the kernel can report it. For tests."""
