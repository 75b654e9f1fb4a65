"""Log output to stderr, which may be a pipe that nobody reads. A line that would have to wait is dropped and
counted, because a broker that waits for the reader of its log does not serve.

A pipe or socket that is ready takes at least PIPE_BUF bytes at once, so output is cut into such pieces and
the descriptor is polled before each. It is not made non-blocking, because it is shared with the process that
passed it to us. Several workers write one after the other, under a lock that is released if its holder dies.
Without the lock another worker could fill the room that one has found.

A record is one line, and the stack of an exception behind it. Names that clients choose (users, mechanisms,
client ids) are part of many records, and must not forge others or control a terminal: OneLine escapes them.
Names may have 32,767 characters, and a client may make the broker log with every request. So that it does not
fill the disk, OneLine leaves out the middle of a long message, and Spates most repetitions of the same
message.
"""

import fcntl
import logging
import os
import select
import stat
from typing import Any, Final

PIPE_BUF = select.PIPE_BUF
STDERR = 2

HEAD_MAX: Final = 1_500  # characters of a message; names come first, the reason comes last
TAIL_MAX: Final = 500
BURST: Final = 1_000  # lines of one message
LINES_PER_S: Final = 5
MESSAGES_MAX: Final = 1_000  # remembered
CONNECTIONS: Final = "kafkad.net"  # the first value of its messages is the client's host, which counts alone
# what logs because of single requests, and has not written to a disk for each line; the audit log leaves out
# lines itself (security/authorizer)
BY_CLIENTS: Final = (
    CONNECTIONS,
    "kafkad.api.",
    "kafkad.controller.",
    "kafkad.coordinator.",
    "kafkad.server.dispatch",
)


def shortened(text: str) -> str:
    """Return a text without the middle, if it is long."""
    left_out = len(text) - HEAD_MAX - TAIL_MAX
    if left_out <= 0:
        return text
    return f"{text[:HEAD_MAX]} ... ({left_out} characters are left out) ... {text[-TAIL_MAX:]}"


class OneLine(logging.Formatter):
    """Escapes what is not printable in a message, and shortens it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = shortened(record.message)
        if not record.message.isprintable():
            record.message = "".join(
                it if it.isprintable() else it.encode("unicode_escape").decode("ascii")
                for it in record.message
            )
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(shortened, super().formatException(ei).split("\n")))


class Spates(logging.Filter):
    """Lets through BURST lines of a message at once, and later LINES_PER_S, of the loggers BY_CLIENTS. A
    message is known by its text without the values. The next line that passes is followed by the number of
    those that did not."""

    def __init__(self) -> None:
        super().__init__()
        self._rooms: dict[object, tuple[float, float]] = {}  # by message: room for lines, at which time
        self._left_out: dict[object, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO or not record.name.startswith(BY_CLIENTS):
            return True  # what is below INFO, somebody has asked for
        key: object = record.msg
        if record.name == CONNECTIONS and isinstance(record.args, tuple) and record.args:
            key = record.msg, record.args[0]
        room, since = self._rooms.pop(key, (BURST, record.created))
        room = min(room + max(record.created - since, 0.0) * LINES_PER_S, BURST)
        passes = room >= 1
        self._rooms[key] = room - passes, record.created  # the newest comes last
        if not passes:
            self._left_out[key] = self._left_out.get(key, 0) + 1
        elif left_out := self._left_out.pop(key, 0):
            record.msg = f"{record.msg} ({left_out} more lines like it were left out)"
        if len(self._rooms) > MESSAGES_MAX:
            oldest = next(iter(self._rooms))
            del self._rooms[oldest]
            self._left_out.pop(oldest, None)
        return passes


class StderrHandler(logging.Handler):
    """Writes whole lines or none, and reports how many were dropped once there is room again."""

    def __init__(self, fd: int = STDERR, *, shared: bool = False) -> None:
        """`shared`: with processes that are forked later."""
        super().__init__()
        self._turn = os.memfd_create("kafkad-stderr", os.MFD_CLOEXEC) if shared else -1
        self.addFilter(Spates())
        self.fd = fd
        self.lost = 0
        self._cut = False  # in the middle of a line
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        try:
            self._step = 1 << 20 if stat.S_ISREG(os.fstat(fd).st_mode) else PIPE_BUF
        except OSError:
            self._step = PIPE_BUF

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        if self.lost:
            note = f"({self.lost} lines were lost: stderr was not read in time)\n"
            if not self._write(("\n" if self._cut else "") + note):
                self.lost += 1
                return
            self.lost = 0
        if not self._write(line + "\n"):
            self.lost += 1

    def _write(self, text: str) -> bool:
        data = text.encode(errors="backslashreplace")
        written = 0
        if self._turn >= 0:
            fcntl.lockf(self._turn, fcntl.LOCK_EX)
        try:
            while written < len(data):
                if not self._poll.poll(0):
                    break
                written += os.write(self.fd, data[written : written + self._step])
        except OSError:
            pass  # the reader is gone, or the disk is full
        finally:
            if self._turn >= 0:
                fcntl.lockf(self._turn, fcntl.LOCK_UN)
        whole = written == len(data)
        if written:
            self._cut = not whole
        return whole
