"""Records of TLS 1.3 that are encrypted without SSL_write. See tls_sealing.pyx."""

def sealed() -> int:
    """Return how many records this process has sealed."""
