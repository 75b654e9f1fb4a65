"""A function in a process of its own, as a forked worker is, which may be killed at any moment.

The two sides talk in lines of JSON. What the function raises ends the process and is raised again by `wait`
and `hear`."""

import json
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any


class Child:
    """What the function is given: its end of the line."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._in = os.fdopen(incoming, "r")
        self._out = os.fdopen(outgoing, "w")

    def tell(self, what: Any = None) -> None:
        self._out.write(json.dumps(what) + "\n")
        self._out.flush()

    def hear(self) -> Any:
        """Blocks. EOFError when the other side has gone."""
        line = self._in.readline()
        if not line:
            raise EOFError("the other process is gone")
        return json.loads(line)


class Forked(Child):
    """`function(child, *arguments)`, forked. `kill` or `wait` ends it."""

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        down, to_child = os.pipe()
        from_child, up = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(to_child)
                os.close(from_child)
                child = Child(down, up)
                try:
                    function(child, *arguments)
                    code = 0
                except EOFError:
                    pass
                except BaseException:
                    child.tell({"failed": traceback.format_exc()})
            finally:
                os._exit(code)
        os.close(down)
        os.close(up)
        super().__init__(from_child, to_child)

    def hear(self) -> Any:
        said = super().hear()
        if isinstance(said, dict) and "failed" in said:
            self._bury()
            raise AssertionError(said["failed"])
        return said

    def ask(self, what: Any = None) -> Any:
        self.tell(what)
        return self.hear()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._bury()

    def wait(self) -> None:
        """Until the function has returned."""
        try:
            while True:
                self.hear()
        except EOFError:
            assert self._bury() == 0

    def _bury(self) -> int:
        pid, self.pid = self.pid, 0
        if pid == 0:
            return 0
        _, status = os.waitpid(pid, 0)
        self._in.close()
        self._out.close()
        return os.waitstatus_to_exitcode(status)
