"""Records of TLS 1.3 that are encrypted without SSL_write. See tls_sealing.pyx."""

def sealed() -> int:
    """Return how many records this process has sealed."""

def set_records_of_a_key(count: int) -> None: ...
