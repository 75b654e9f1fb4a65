"""Log output to stderr, which may be a pipe that nobody reads. A line that would have to wait is dropped and
counted, because a broker that waits for the reader of its log does not serve.

A pipe or socket that is ready takes at least PIPE_BUF bytes at once, so output is cut into such pieces and
the descriptor is polled before each. It is not made non-blocking, because it is shared with the process that
passed it to us. Several workers write one after the other, under a lock that is released if its holder dies.
Without the lock another worker could fill the room that one has found.

A record is one line, and the stack of an exception behind it. Names that clients choose (users, mechanisms,
client ids) are part of many records, and must not forge others or control a terminal: OneLine escapes them.
"""

import fcntl
import logging
import os
import select
import stat

PIPE_BUF = select.PIPE_BUF
STDERR = 2


def open_standard_streams() -> None:
    """Open /dev/null for descriptors 0 to 2 that are closed. Otherwise the next opened file would get such a
    number, and output would be written to it.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)


class OneLine(logging.Formatter):
    """Escapes what is not printable in a message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        if not record.message.isprintable():
            record.message = "".join(
                it if it.isprintable() else it.encode("unicode_escape").decode("ascii")
                for it in record.message
            )
        return super().formatMessage(record)


class StderrHandler(logging.Handler):
    """Writes whole lines or none, and reports how many were dropped once there is room again."""

    def __init__(self, fd: int = STDERR, *, shared: bool = False) -> None:
        """`shared`: with processes that are forked later."""
        super().__init__()
        self._turn = os.memfd_create("kafkad-stderr", os.MFD_CLOEXEC) if shared else -1
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
