"""A question to a web server is bounded in time, whatever the server does."""

import socket
import threading
import time

import pytest

from kafkad.net.https import Failed, ask

LIMIT_S = 0.4
BODY = b'{"keys": []}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(BODY)


class Dripping:
    """A server on a free port that sends the pieces of its answer, one after each pause, and then waits."""

    def __init__(self, pieces: list[bytes], pause_s: float) -> None:
        self._pieces, self._pause_s = pieces, pause_s
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/keys"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._over.set()
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        taken, _ = self._listening.accept()
        with taken:
            taken.recv(4096)
            for piece in self._pieces:
                if self._over.wait(self._pause_s):
                    return
                try:
                    taken.sendall(piece)
                except OSError:
                    return
            self._over.wait(30)


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [HEAD[:20]],
        [HEAD, *[b"X: y\r\n"] * 100],
        [bytes([byte]) for byte in HEAD + b"\r\n" + BODY],
        [HEAD + b"\r\n", *[bytes([byte]) for byte in BODY]],
    ],
    ids=["nothing", "half a head", "many headers", "a byte at a time", "a slow body"],
)
def test_an_answer_that_takes_too_long_is_given_up(pieces):
    with Dripping(pieces, pause_s=0.1) as server:
        begun = time.monotonic()
        with pytest.raises(Failed, match=r"timed out|too long"):
            ask(server.url, read_timeout_s=LIMIT_S)
        assert time.monotonic() - begun < 3 * LIMIT_S


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
def test_an_answer_in_pieces_is_read_whole(more):
    whole = HEAD + more + b"\r\n" + BODY
    with Dripping([whole[at : at + 7] for at in range(0, len(whole), 7)], pause_s=0.001) as server:
        assert ask(server.url, read_timeout_s=10) == (200, BODY)
