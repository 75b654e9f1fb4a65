from collections.abc import Iterable, Sequence

VERSIONS: dict[str, int]

class TlsContext:
    """Certificate, key and rules of a listener. Connections keep the one that they began with. With `client`
    they are those of this node where it connects to others; `authorities` say who signs their certificates.
    """

    is_client: bool
    def __init__(
        self,
        *,
        key: bytes,  # DER; of a client that shows no certificate, empty
        chain: Sequence[bytes],  # DER, the key's own certificate first
        authorities: Iterable[bytes] = (),  # DER; the authorities for client certificates
        client_auth: str = "none",  # or requested, required
        versions: Iterable[str] = ...,  # of VERSIONS
        suites: Iterable[str] = (),  # by IANA's names; none: OpenSSL's own choice
        client: bool = False,
    ) -> None: ...

def load_openssl() -> None: ...
