"""Connections over TLS: as Python's ssl makes them, and by libssl itself for what Python's ssl has not."""

import ctypes
import ctypes.util
import socket
import ssl
from pathlib import Path

from tests.wire import Wire

SET_MAX_PROTO_VERSION, TLS_1_2 = 124, 0x0303
HEADER, INNER_TYPE = 256, 257  # what a callback is told of each record
HANDSHAKE, DATA = 22, 23
ON_MESSAGE = ctypes.CFUNCTYPE(None, *[ctypes.c_int] * 3, *[ctypes.c_void_p, ctypes.c_size_t] * 2)


class TlsWire(Wire):
    def __init__(self, port: int, context: ssl.SSLContext, timeout: float = 10.0) -> None:
        super().__init__(f"127.0.0.1:{port}", timeout)
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")


def trusting(stores: Path, own: str | None = None, versions: tuple = ()) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=stores / "ca.pem")
    if own:
        context.load_cert_chain(stores / f"{own}.pem")
    if versions:
        context.minimum_version, context.maximum_version = versions
    return context


class KeyUpdates:
    """A client by libssl itself, since Python's ssl has neither the KeyUpdate of TLS 1.3 nor the
    renegotiation of TLS 1.2 (`old`), nor a limit of the records that it takes (`most`: 512, 1024, 2048 or
    4096 bytes). What it says goes into `said` first, so that thousands can be sent at once. `kinds` and
    `sizes` are those of the encrypted records that it has read."""

    def __init__(self, port: int, *, old: bool = False, most: int = 0) -> None:
        self.lib = ctypes.CDLL(ctypes.util.find_library("ssl") or "libssl.so.3")
        for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new", "BIO_s_mem", "BIO_new"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.lib.SSL_CTX_new(ctypes.c_void_p(self.lib.TLS_client_method())))
        if old:
            self.lib.SSL_CTX_ctrl(self.context, SET_MAX_PROTO_VERSION, ctypes.c_long(TLS_1_2), None)
        if most:
            number = (512, 1024, 2048, 4096).index(most) + 1
            assert self.lib.SSL_CTX_set_tlsext_max_fragment_length(self.context, number) == 1
        self.kinds: list[int] = []
        self.sizes: list[int] = []
        self.on_message = ON_MESSAGE(self.note)
        self.lib.SSL_CTX_set_msg_callback(self.context, self.on_message)
        self.ssl = ctypes.c_void_p(self.lib.SSL_new(self.context))
        self.heard, self.said = (
            ctypes.c_void_p(self.lib.BIO_new(ctypes.c_void_p(self.lib.BIO_s_mem()))) for _ in range(2)
        )
        self.lib.SSL_set_bio(self.ssl, self.heard, self.said)
        self.lib.SSL_set_connect_state(self.ssl)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        while self.lib.SSL_do_handshake(self.ssl) != 1:
            self.send()
            self.hear()
        self.send()

    def note(self, written: int, _: int, kind: int, data: int, size: int, *__: int) -> None:
        if kind == INNER_TYPE and not written:
            self.kinds.append(ctypes.string_at(data, size)[0])
        elif kind == HEADER and not written and ctypes.string_at(data, 1)[0] == DATA:
            self.sizes.append(int.from_bytes(ctypes.string_at(data + 3, 2), "big"))

    def send(self) -> None:
        buffer = ctypes.create_string_buffer(1 << 16)
        text = b""
        while (count := self.lib.BIO_read(self.said, buffer, len(buffer))) > 0:
            text += buffer.raw[:count]
        self.socket.sendall(text)

    def hear(self) -> None:
        text = self.socket.recv(65536)
        if not text:
            raise ConnectionError
        self.lib.BIO_write(self.heard, text, len(text))

    def update(self, count: int, asking: bool) -> None:
        for _ in range(count):
            assert self.lib.SSL_key_update(self.ssl, int(asking)) == 1
            assert self.lib.SSL_do_handshake(self.ssl) == 1

    def renegotiate(self) -> None:
        """Says hello once more, over the connection that there is."""
        self.lib.SSL_renegotiate(self.ssl)
        self.lib.SSL_do_handshake(self.ssl)

    def ask(self, frame: bytes = bytes.fromhex("0000000a0012000000000001ffff")) -> bytes:
        """The answer to a frame, without its size; the default is an ApiVersions."""
        assert self.lib.SSL_write(self.ssl, frame, len(frame)) == len(frame)
        self.send()
        buffer = ctypes.create_string_buffer(1 << 16)
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
            if (count := self.lib.SSL_read(self.ssl, buffer, len(buffer))) > 0:
                answer += buffer.raw[:count]
            else:
                self.hear()
        return answer[4:]

    def close(self) -> None:
        self.socket.close()
        self.lib.SSL_free(self.ssl)
        self.lib.SSL_CTX_free(self.context)
