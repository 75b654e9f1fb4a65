"""With this directory in PYTHONPATH the processes of a broker tell about themselves.

KAFKAD_OBSERVED: who connects to the abstract AF_UNIX socket `kafkad-observed-<pid>` is sent one line of
JSON: the allocated blocks after a garbage collection, and the reactor's counters. A thread answers,
started when the broker has forked its workers, or at once when it has none (KAFKAD_OBSERVED=1).

KAFKAD_WATCHED=<directory>: from the moment that the file `now` is in that directory, each process writes
there, into a file named after its pid, every module that it imports and every file and library that
Python opens.

KAFKAD_FAULTS=<directory>: functions of kafkad that fail. The file `points` in that directory names them, one
a line: `module:function` or `module:Class.method`. A function raises RuntimeError while the directory has a
file of its name, and notes that by a letter in `<name>.failed`."""

import json
import os
import socket
import sys
import threading


def observe() -> None:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(f"\0kafkad-observed-{os.getpid()}")
    listening.listen()
    threading.Thread(target=answer, args=(listening,), daemon=True).start()


def answer(listening: socket.socket) -> None:
    import gc

    from kafkad._native.serving.reactor import Reactor

    reactor = None
    while True:
        asking, _ = listening.accept()
        with asking:
            gc.unfreeze()  # what a start made is not among the objects otherwise
            if reactor is None:
                reactor = next((each for each in gc.get_objects() if isinstance(each, Reactor)), None)
            gc.collect()
            blocks = sys.getallocatedblocks()
            stats = reactor.stats() if reactor is not None else {}
            asking.sendall(json.dumps({"blocks": blocks, **stats}).encode())


def watch(directory: str) -> None:
    watching = threading.local()  # writing down what was opened opens a file

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event not in ("import", "open", "ctypes.dlopen") or getattr(watching, "notes", False):
            return
        watching.notes = True
        try:
            if os.path.exists(f"{directory}/now"):
                with open(f"{directory}/{os.getpid()}", "a") as notes:
                    notes.write(f"{event} {arguments[0]}\n")
        finally:
            watching.notes = False

    sys.addaudithook(note)


def fail(directory: str) -> None:
    import functools
    import importlib
    from typing import Any

    def failing(name: str, function: Any) -> Any:
        @functools.wraps(function)
        def called(*args: object, **kwargs: object) -> object:
            if os.path.exists(f"{directory}/{name}"):
                with open(f"{directory}/{name}.failed", "a") as noted:
                    noted.write("x")
                raise RuntimeError(f"{name} fails")
            return function(*args, **kwargs)

        return called

    with open(f"{directory}/points") as points:
        for name in points.read().split():
            module, _, path = name.partition(":")
            owner: Any = importlib.import_module(module)
            *classes, last = path.split(".")
            for each in classes:
                owner = getattr(owner, each)
            setattr(owner, last, failing(name, getattr(owner, last)))


if os.environ.get("KAFKAD_OBSERVED") == "1":
    observe()
elif "KAFKAD_OBSERVED" in os.environ:
    os.register_at_fork(after_in_child=observe)
if "KAFKAD_WATCHED" in os.environ:
    watch(os.environ["KAFKAD_WATCHED"])
if "KAFKAD_FAULTS" in os.environ:
    fail(os.environ["KAFKAD_FAULTS"])
