def shorten(microseconds: int) -> bool:
    """Shorten the time slices of this thread, and of threads that it starts later. Return False if the thread
    has another scheduling policy, or if the kernel refuses."""

def current(pid: int = 0) -> tuple[int, int, int]:
    """Return (policy, nice, microseconds of a slice) of this thread, or of another one. The microseconds are
    0 if the kernel does not report them."""
