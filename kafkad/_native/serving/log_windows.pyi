"""Mapped parts of log files. See log_windows.pyx."""

def set_idle_ms(ms: int) -> None:
    """Unmap windows that are not used for so long (for tests)."""
