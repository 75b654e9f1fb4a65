def shorten(microseconds: int) -> bool:
    """Slices of this thread, and of those that it starts from now on. False: somebody chose another policy
    for it, or the kernel refuses."""

def current(pid: int = 0) -> tuple[int, int, int]:
    """(policy, nice, microseconds of a slice) of this thread, or of another. 0 microseconds where the kernel
    does not tell."""
