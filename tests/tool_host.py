"""Kafka's administrative tools in a JVM that stays, one for each version: most of what a tool costs is its
start.

`ToolHost(version).run(tool, arguments)` calls the `main` of the tool's class. System.out and System.err are
files, the same for all calls, because Scala's Console keeps the first System.out that it sees. Kafka's tools
end by `Exit.exit(code)`, whose procedure can be set. Ours keeps the first code and the size of each file, and
ends the thread by an error; what is written afterwards is dropped, as if the process had ended there. The
procedure is put together from method handles: there may be no Java compiler here, and a call that throws
nothing is not affected by what Spark does with py4j's exceptions.

Tools that finish their work in a shutdown hook, that read System.in, that have static state or that run until
they are stopped are not in TOOLS: they have a process of their own (tests/jvm.py).
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path

from tests.jvm import FAST_JVM, QUIET, die_with_parent, jars, java, main_class, tool_archive

TOOLS = {
    "kafka-acls",
    "kafka-broker-api-versions",
    "kafka-cluster",
    "kafka-configs",
    "kafka-consumer-groups",
    "kafka-delegation-tokens",
    "kafka-delete-records",
    "kafka-dump-log",
    "kafka-features",
    "kafka-get-offsets",
    "kafka-groups",
    "kafka-leader-election",
    "kafka-log-dirs",
    "kafka-metadata-quorum",
    "kafka-reassign-partitions",
    "kafka-storage",
    "kafka-topics",
    "kafka-transactions",
}


class ToolHost:
    def __init__(self, version: str) -> None:
        self.version = version
        self.busy = threading.Lock()
        path = f"{jars(version)}:{find_jar_path()}"
        self.process = subprocess.Popen(
            [
                java(), *FAST_JVM, *tool_archive(version), "-Xmx512m", *QUIET,
                "-cp", path, "py4j.GatewayServer", "--die-on-broken-pipe", "0",
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            preexec_fn=die_with_parent,
        )  # fmt: skip
        assert self.process.stdout is not None
        port = int(self.process.stdout.readline())
        self.gateway: Any = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        self.lang = self.gateway.jvm.java.lang
        self._keep_what_is_said()
        self._hold_exits()

    def run(self, tool: str, arguments: tuple[str, ...], timeout: float) -> tuple[str, str, int]:
        """What it wrote to stdout and stderr, and its exit code. Ends the JVM and raises
        subprocess.TimeoutExpired if that takes too long."""
        for kept in (self.codes, self.thrown, *self.sizes):
            kept.clear()
        for file in self.files:
            os.truncate(file, 0)
        thread = self.lang.Thread(self._call_of_main(tool, arguments))
        thread.start()
        thread.join(int(timeout * 1000))
        if thread.isAlive():
            self.process.kill()
            raise subprocess.TimeoutExpired([tool, *arguments], timeout)
        if not self.codes.isEmpty():
            said = [
                file.read_bytes()[: sizes.peek()] for file, sizes in zip(self.files, self.sizes, strict=True)
            ]
            return said[0].decode(errors="replace"), said[1].decode(errors="replace"), self.codes.peek()
        if not self.thrown.isEmpty():
            self.lang.System.err.print('Exception in thread "main" ')
            self.thrown.peek().printStackTrace()
        out, errors = (file.read_text(errors="replace") for file in self.files)
        return out, errors, int(not self.thrown.isEmpty())

    def _keep_what_is_said(self) -> None:
        """Before a class of Kafka or Scala is loaded."""
        io, system = self.gateway.jvm.java.io, self.lang.System
        self.directory = tempfile.TemporaryDirectory()
        self.files = [Path(self.directory.name) / name for name in ("out", "errors")]
        system.setOut(io.PrintStream(io.FileOutputStream(str(self.files[0]), True), True))
        system.setErr(io.PrintStream(io.FileOutputStream(str(self.files[1]), True), True))

    def _hold_exits(self) -> None:
        """Has `Exit.exit` keep the code and the sizes of the files, and throw."""
        jvm, lang = self.gateway.jvm, self.lang
        self.handles = handles = lang.invoke.MethodHandles
        self.proxies = lang.invoke.MethodHandleProxies
        self.lookup = handles.publicLookup()
        self.void = lang.Void.TYPE
        queue = jvm.java.util.concurrent.ConcurrentLinkedQueue
        self.codes, self.thrown, self.sizes = queue(), queue(), [queue(), queue()]
        self.keeps_thrown = self._adding_to(self.thrown, self._class("java.lang.Throwable"))

        number, text = lang.Integer.TYPE, self._class("java.lang.String")
        keeps = handles.dropArguments(self._adding_to(self.codes, number), 1, self._array("Class", text))
        end = handles.throwException(self.void, self._class("java.lang.Error")).bindTo(
            lang.Error("the tool has ended")
        )
        for path, sizes in zip(self.files, self.sizes, strict=True):
            long = lang.Long.TYPE
            file = self._class("java.io.File")
            length = self.lookup.findVirtual(file, "length", lang.invoke.MethodType.methodType(long))
            length = length.bindTo(jvm.java.io.File(str(path)))
            end = handles.foldArguments(end, handles.filterReturnValue(length, self._adding_to(sizes, long)))
        ends = handles.dropArguments(end, 0, self._array("Class", number, text))
        exits = handles.foldArguments(ends, keeps)
        self.exits = self.proxies.asInterfaceInstance(
            self._class("org.apache.kafka.common.utils.Exit$Procedure"), exits
        )
        kafka_exit = jvm.org.apache.kafka.common.utils.Exit
        kafka_exit.setExitProcedure(self.exits)
        kafka_exit.setHaltProcedure(self.exits)

    def _call_of_main(self, tool: str, arguments: tuple[str, ...]) -> Any:
        """A Runnable that keeps what `main` throws."""
        given = self._array("String", *arguments)
        main = self.lookup.findStatic(
            self._class(main_class(self.version, tool)), "main", self._type(given.getClass())
        ).asFixedArity()
        guarded = self.handles.catchException(
            main.bindTo(given), self._class("java.lang.Throwable"), self.keeps_thrown
        )
        return self.proxies.asInterfaceInstance(self._class("java.lang.Runnable"), guarded)

    def _adding_to(self, queue: Any, what: Any) -> Any:
        """A method handle of (what)void."""
        add = self.lookup.findVirtual(
            queue.getClass(),
            "add",
            self.lang.invoke.MethodType.methodType(self.lang.Boolean.TYPE, self._class("java.lang.Object")),
        )
        return add.bindTo(queue).asType(self._type(what))

    def _type(self, *parameters: Any) -> Any:
        return self.lang.invoke.MethodType.methodType(self.void, self._array("Class", *parameters))

    def _array(self, kind: str, *elements: Any) -> Any:
        array = self.gateway.new_array(getattr(self.lang, kind), len(elements))
        for place, element in enumerate(elements):
            array[place] = element
        return array

    def _class(self, name: str) -> Any:
        return self.lang.Class.forName(name)


@functools.cache
def _host(version: str, pid: int) -> ToolHost:
    return ToolHost(version)


_making = threading.Lock()


def run_hosted(
    version: str, tool: str, arguments: tuple[str, ...], timeout: float
) -> tuple[str, str, int] | None:
    """None if the host of this version is busy: System.out is one."""
    with _making:
        host = _host(version, os.getpid())
        if host.process.poll() is not None:
            _host.cache_clear()
            host = _host(version, os.getpid())
    if not host.busy.acquire(blocking=False):
        return None
    try:
        return host.run(tool, arguments, timeout)
    finally:
        host.busy.release()
