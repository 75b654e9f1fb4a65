"""With this directory in PYTHONPATH every process that serves tells what memory Python has in it.

Who connects to the abstract AF_UNIX socket `kafkad-observed-<pid>` is sent one line of JSON: the allocated
blocks after a garbage collection, and the reactor's counters. A thread answers, started when the broker has
forked its workers, or at once when it has none (KAFKAD_OBSERVED=1)."""

import json
import os
import socket
import threading


def observe() -> None:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(f"\0kafkad-observed-{os.getpid()}")
    listening.listen()
    threading.Thread(target=answer, args=(listening,), daemon=True).start()


def answer(listening: socket.socket) -> None:
    import gc
    import sys

    from kafkad._native.reactor import Reactor

    reactor = None
    while True:
        asking, _ = listening.accept()
        with asking:
            gc.unfreeze()  # what a start made is not among the objects otherwise
            gc.collect()
            blocks = sys.getallocatedblocks()
            if reactor is None:
                reactor = next((each for each in gc.get_objects() if isinstance(each, Reactor)), None)
            stats = reactor.stats() if reactor is not None else {}
            asking.sendall(json.dumps({"blocks": blocks, **stats}).encode())


if os.environ.get("KAFKAD_OBSERVED") == "1":
    observe()
elif "KAFKAD_OBSERVED" in os.environ:
    os.register_at_fork(after_in_child=observe)
