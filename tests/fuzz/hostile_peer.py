"""A client that sends what it likes, how it likes: bytes in fragments of any size, over TLS or not.

`Peer` is one connection of an attacker. It checks what holds whatever the attacker does:

- What comes from a TLS port is TLS records, and has nothing in it that only those who decrypt it may read.
- Who has not logged in is never told the name of a topic (`World.told`, as Metadata has it).
- The broker closes a connection whose client has ended its half. It may take long, but not for ever.

TLS is Python's, over two buffers in memory, so that an attack gets at each byte before it is sent."""

import contextlib
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from kafkad.protocol import codec, messages
from tests.tls_wire import trusting

PATIENCE_S = 60.0  # then the broker is taken for stopped
PAUSE_S = 0.02
HEADER = 5  # bytes of a record's header
RECORD_MAX = 16384 + 2048
RECORD_TYPES = (20, 21, 22, 23)
ALERT = 21
BYTEWISE_MAX = 3000
HEARD_MAX = 1 << 20  # that a peer keeps


class Ended(Exception):
    """The broker has closed the connection, or TLS refuses what it sent."""


class World:
    """What the attackers know: where the broker listens, its certificates, who has which password."""

    def __init__(self, stores: Path, ports: dict[str, int], told: str, users: dict[str, str]) -> None:
        self.stores, self.ports, self.told, self.users = stores, ports, told, users
        self.secrets = {f"{password}" for password in users.values()}  # none may be in the log
        self.counts: dict[str, int] = {}
        self.lock = threading.Lock()
        self.contexts = {
            own: trusting(stores, own or None) for own in ("", "client", "stranger", "expired")
        }  # fmt: skip
        self.old = trusting(stores, None, (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2))

    def wrong_password(self, chance: random.Random) -> str:
        secret = f"wrong-{chance.randbytes(6).hex()}"
        with self.lock:
            self.secrets.add(secret)
        return secret

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1


class Records:
    """Reads what comes from a TLS port, record by record."""

    def __init__(self, hidden: tuple[bytes, ...]) -> None:
        self.rest = bytearray()
        self.hidden = hidden

    def feed(self, data: bytes) -> None:
        self.rest += data
        while len(self.rest) >= HEADER:
            kind, version, size = struct.unpack_from(">BHH", self.rest)
            # an alert that refuses a version has that of the client, whatever it was
            known = version >> 8 == 3 or (kind == ALERT and size == 2)
            assert kind in RECORD_TYPES and known and 0 < size <= RECORD_MAX, (
                f"no TLS record came from a TLS port: {bytes(self.rest[:80])!r}"
            )
            if len(self.rest) < HEADER + size:
                return
            body = bytes(self.rest[HEADER : HEADER + size])
            for text in self.hidden:
                assert text not in body, f"{text!r} came in clear from a TLS port"
            del self.rest[: HEADER + size]


class Peer:
    """`encrypted`: the port speaks TLS. `trusted`: it logs in as it should, and may be told of topics."""

    def __init__(self, chance: random.Random, world: World, listener: str) -> None:
        self.chance, self.world, self.listener = chance, world, listener
        self.encrypted = "SASL_PLAINTEXT" != listener != "BEARER"
        self.trusted = "SASL" not in listener
        self.socket = socket.create_connection(("127.0.0.1", world.ports[listener]), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.records = Records((world.told.encode(), b"SCRAM-SHA", b"Authentication failed"))
        self.cut = chance.choice(("whole", "whole", "random", "bytes"))
        self.said = self.heard_of = 0  # bytes
        self.answers = bytearray()  # what came, decrypted
        self.correlation = 0
        self.tls: ssl.SSLObject | None = None
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    # -- bytes

    def put(self, data: bytes) -> None:
        """Into the socket, in fragments."""
        chance, place = self.chance, 0
        while place < len(data):
            size = len(data)
            if self.cut == "bytes" and len(data) <= BYTEWISE_MAX:
                size = 1
            elif self.cut == "random":
                size = chance.randrange(1, chance.choice((8, 200, 20_000)))
                if chance.random() < 0.05:
                    time.sleep(chance.random() * PAUSE_S)
            try:
                self.socket.sendall(data[place : place + size])
            except (ConnectionError, TimeoutError) as error:
                if isinstance(error, TimeoutError):
                    raise AssertionError("the broker neither reads nor closes") from error
                raise Ended from error
            place += size
        self.said += len(data)

    def get(self, timeout: float = PATIENCE_S) -> bool:
        """Hears something; False: nothing came in time, which is an error only without a `timeout`."""
        self.socket.settimeout(timeout)
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            assert timeout < PATIENCE_S, f"the broker says nothing for {timeout} s"
            return False
        except ConnectionError as error:
            self.ended = True
            raise Ended from error
        finally:
            self.socket.settimeout(PATIENCE_S)
        if not data:
            self.ended = True
            raise Ended
        self.heard_of += len(data)
        if self.encrypted:
            self.records.feed(data)
            if self.tls is not None:
                self.incoming.write(data)
        else:
            self.told(data)
        return True

    def told(self, data: bytes) -> None:
        """Something in clear, or decrypted."""
        self.answers += data
        if not self.trusted:
            assert self.world.told.encode() not in self.answers, "who has not logged in is told of a topic"
        if len(self.answers) > HEARD_MAX:
            del self.answers[: HEARD_MAX // 2]

    # -- TLS

    def begin_tls(self, context: ssl.SSLContext | None = None) -> bytes:
        """The ClientHello, which is not sent."""
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = context or self.world.contexts[""]
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    def shake(
        self, context: ssl.SSLContext | None = None, spoil: Callable[[bytes], bytes] = lambda data: data
    ) -> None:
        """To the end of the handshake; `spoil` may change each flight."""
        self.put(spoil(self.begin_tls(context)))
        while True:
            try:
                assert self.tls is not None
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.flush(spoil)
                self.get()
            except ssl.SSLError as error:
                raise Ended from error
        self.flush(spoil)

    def flush(self, spoil: Callable[[bytes], bytes] = lambda data: data) -> None:
        if data := self.outgoing.read():
            self.put(spoil(data))

    def decrypt(self) -> None:
        if self.tls is None:
            return
        try:
            while data := self.tls.read(1 << 16):
                self.told(data)
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise Ended from error
        raise Ended

    # -- requests

    def write(self, data: bytes) -> None:
        if self.tls is None:
            self.put(data)
            return
        size = len(data)
        if self.cut != "whole":
            size = self.chance.choice((1, 7, 300, 20_000)) if size <= BYTEWISE_MAX else 20_000
        with contextlib.suppress(ssl.SSLWantReadError):
            for place in range(0, len(data), max(size, 1)):
                self.tls.write(data[place : place + size])
        self.flush()

    def send_frame(self, frame: bytes) -> None:
        self.write(len(frame).to_bytes(4, "big") + frame)

    def frame(self, request: Any, version: int) -> bytes:
        self.correlation += 1
        return codec.encode_request(request, version, self.correlation, "hostile")

    def read_frame(self) -> bytes:
        """The next answer; Ended when there is none."""
        while True:
            if len(self.answers) >= 4:
                end = 4 + int.from_bytes(self.answers[:4], "big")
                if len(self.answers) >= end:
                    frame = bytes(self.answers[4:end])
                    del self.answers[:end]
                    return frame
            try:
                self.get()
            except Ended:
                self.decrypt()
                if len(self.answers) < 4:
                    raise
                continue
            self.decrypt()

    def ask(self, request: Any, version: int) -> Any:
        self.send_frame(self.frame(request, version))
        answer = self.read_frame()
        correlation, response = codec.decode_response(
            codec.response_class(type(request).API_KEY), version, answer
        )
        assert correlation == self.correlation
        return response

    def topics(self) -> list[str]:
        return [topic.name for topic in self.ask(messages.MetadataRequest(topics=None), 9).topics]

    # -- the end

    def leave(self, how: str = "") -> None:
        """Closes, resets, or ends its half and waits until the broker does the same."""
        how = how or self.chance.choice(("close", "reset", "half", "half"))
        if how == "reset":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how != "half":
            self.socket.close()
            return
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        self.until_closed()

    def until_closed(self) -> None:
        """By the broker."""
        deadline = time.monotonic() + PATIENCE_S
        with contextlib.suppress(Ended):
            while not self.ended:
                assert time.monotonic() < deadline, "the broker keeps a connection that has ended"
                self.get()
                with contextlib.suppress(Ended):
                    self.decrypt()
