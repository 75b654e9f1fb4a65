"""Power loss, simulated: what a disk may hold when the power goes, from what a process did to its files.

    disk = Disk(tmp_path / "disk")                 an empty disk; data goes below `root`
    Broker(..., env=disk.env())                    a broker works, is killed, is started again, is killed
    disk.settle()                                  before it is started again
    left = disk.image(tmp_path / "left", chance)   power loss, now or at an earlier `at_ns`: another Disk

tests/disk_recorder.c, preloaded into the process, writes down every change. The rules, as strict as POSIX:

    a file        what was written before an fsync or fdatasync of it began is there once that has ended. Of
                  what came later each 4 KiB page may hold what any moment since then left in it, and the
                  size may be that of any moment since then, whatever its pages hold; what was never written
                  is zeros
    a directory   creations, renames and removals are there in their order, up to any point at or after the
                  last fsync of the directory. An fsync of a file does not save its name
    a mapping     the bytes of a mapped file are saved by an fsync of the file only; until then, each page
                  may or may not be as it was found at the end

A real file system is kinder, so what survives this survives that. `how`: "least" keeps only what was synced,
"most" everything (a kill, no power loss), "mixed" throws dice for every page, size and directory.

Beware: inodes name the files, and are used again by the file system; so the trace is replayed in order.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

PAGE = 4096
ZEROS = bytes(PAGE)
RECORD = struct.Struct("<IBqqqq")

(CREATE, MAKE_DIRECTORY, WRITE, TRUNCATE, RENAME, UNLINK, REMOVE_DIRECTORY, SYNC_BEGIN, SYNC_END, CONTENT,
 MAPPED, UNKNOWN, ROOT, NAMELESS) = range(1, 15)  # fmt: skip


@cache
def compiled(name: str) -> str:
    """The path of a library for LD_PRELOAD, made of tests/<name>.c."""
    source = Path(__file__).with_name(f"{name}.c")
    library = Path(tempfile.mkdtemp(prefix="kafkad-preload-")) / f"{name}.so"
    command = [
        os.environ.get("CC", "cc"),
        "-O2",
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(source),
        "-lpthread",
    ]
    subprocess.run(command, check=True)
    return str(library)


class Pages:
    """The content of a file: its size, and the pages that are not zeros."""

    def __init__(self, size: int = 0, pages: dict[int, bytes] | None = None) -> None:
        self.size = size
        self.pages = dict(pages or {})

    def copy(self) -> Pages:
        return Pages(self.size, self.pages)

    def write(self, position: int, data: bytes) -> range:
        """The numbers of the pages that it touched."""
        at, left = position, memoryview(data)
        while left:
            number, begin = divmod(at, PAGE)
            part = left[: PAGE - begin]
            page = self.pages.get(number, ZEROS)
            self.pages[number] = page[:begin] + bytes(part) + page[begin + len(part) :]
            at += len(part)
            left = left[len(part) :]
        self.size = max(self.size, position + len(data))
        return range(position // PAGE, (position + len(data) + PAGE - 1) // PAGE)

    def cut(self, size: int) -> list[int]:
        """Now `size` bytes long; the numbers of the pages that changed."""
        changed = []
        if size < self.size:
            last, kept = divmod(size, PAGE)
            for number in [number for number in self.pages if number >= last]:
                page = self.pages.pop(number)
                changed.append(number)
                if number == last and kept:
                    self.pages[number] = page[:kept] + bytes(PAGE - kept)
        self.size = size
        return changed

    def store(self, path: str) -> None:
        with open(path, "wb") as file:
            for number, page in self.pages.items():
                if number * PAGE < self.size:
                    os.pwrite(file.fileno(), page[: self.size - number * PAGE], number * PAGE)
            file.truncate(self.size)

    @classmethod
    def load(cls, path: str) -> Pages:
        self = cls(os.stat(path).st_size)
        with open(path, "rb") as file:
            at = 0
            while at < self.size:
                try:
                    at = os.lseek(file.fileno(), at, os.SEEK_DATA)
                except OSError:  # a hole to the end
                    break
                end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
                for position in range(at // PAGE * PAGE, end, PAGE):
                    page = os.pread(file.fileno(), PAGE, position)
                    if page.strip(b"\0"):
                        self.pages[position // PAGE] = page.ljust(PAGE, b"\0")
                at = end
        return self


class File:
    def __init__(self, durable: Pages | None = None) -> None:
        self.durable = durable or Pages()
        self.pending: list[Callable[[Pages], object]] = []  # changes since, in order
        self.settled = 0  # how many changes went before `pending`
        self.mapped = False

    def sync(self, upto: int) -> None:
        """The first `upto` changes are on the disk."""
        for change in self.pending[: max(0, upto - self.settled)]:
            change(self.durable)
        del self.pending[: max(0, upto - self.settled)]
        self.settled = max(self.settled, upto)

    def survivor(self, how: str, chance: random.Random, found: Pages | None) -> Pages:
        if how == "least":
            return self.durable.copy()
        now = self.durable.copy()
        versions: dict[int, list[bytes]] = {}
        sizes = [now.size]
        for change in self.pending:
            for number in change(now):
                versions.setdefault(number, [self.durable.pages.get(number, ZEROS)]).append(
                    now.pages.get(number, ZEROS)
                )
            sizes.append(now.size)
        if self.mapped and found is not None:
            for number in {*found.pages, *now.pages}:
                versions.setdefault(number, [now.pages.get(number, ZEROS)]).append(
                    found.pages.get(number, ZEROS)
                )
            if how == "most":
                sizes.append(found.size)
        if how == "most":
            left = now
            for number, pages in versions.items():
                left.pages[number] = pages[-1]
        else:
            left = self.durable.copy()
            for number, pages in versions.items():
                left.pages[number] = chance.choice(pages)
        size = sizes[-1] if how == "most" else chance.choice(sizes)
        left.size = max(left.size, *sizes)
        left.cut(size)
        return left


class Directory:
    def __init__(self) -> None:
        self.durable: dict[str, Node] = {}
        self.now: dict[str, Node] = {}
        self.pending: list[Callable[[dict[str, Node]], object]] = []
        self.settled = 0

    def change(self, change: Callable[[dict[str, Node]], object]) -> None:
        change(self.now)
        self.pending.append(change)

    def sync(self, upto: int) -> None:
        for change in self.pending[: max(0, upto - self.settled)]:
            change(self.durable)
        del self.pending[: max(0, upto - self.settled)]
        self.settled = max(self.settled, upto)

    def survivor(self, how: str, chance: random.Random) -> dict[str, Node]:
        left = dict(self.durable)
        count = {"least": 0, "most": len(self.pending)}.get(how)
        for change in self.pending[: chance.randint(0, len(self.pending)) if count is None else count]:
            change(left)
        return left


Node = File | Directory


class State:
    """A disk at one moment of a trace."""

    def __init__(self, inodes: dict[int, Node]) -> None:
        self.inodes = inodes
        self.begun: dict[int, tuple[Node, int]] = {}
        self.content: dict[int, Pages] = {}  # of mapped files whose sync is about to begin
        self.syncs = 0

    def replay(self, kind: int, a: int, b: int, c: int, data: bytes) -> None:
        nodes = self.inodes
        match kind:
            case 1 | 2:  # CREATE, MAKE_DIRECTORY
                directory, name = self._directory(a), data.decode()
                if c:
                    nodes[b] = made = File() if kind == CREATE else Directory()
                    directory.change(_adding(name, made))
                elif b not in nodes or directory.now.get(name) is not nodes[b]:
                    # a link, or there without our knowing: whoever made it was killed before it said so
                    node = self._file(b) if kind == CREATE else self._directory(b)
                    directory.change(_adding(name, node))
            case 3:  # WRITE
                self._file(a).pending.append(lambda pages: pages.write(b, data))
            case 4:  # TRUNCATE
                self._file(a).pending.append(lambda pages: pages.cut(b))
            case 5:  # RENAME
                assert a == b, "a rename from one directory to another: teach power.py"
                old, new = data.decode().split("\0")
                self._directory(a).change(_renaming(old, new))
            case 6 | 7:  # UNLINK, REMOVE_DIRECTORY
                self._directory(a).change(_removing(data.decode()))
            case 8:  # SYNC_BEGIN
                node = nodes[a]
                if a in self.content and isinstance(node, File):
                    node.pending.append(_becoming(self.content.pop(a)))
                self.begun[b] = (node, node.settled + len(node.pending))
            case 9:  # SYNC_END
                node, upto = self.begun.pop(b)
                node.sync(upto)
                self.syncs += 1
            case 10:  # CONTENT
                file = self._file(a)
                file.mapped = True
                if b < 0:
                    self.content[a] = Pages(c)
                else:
                    self.content[a].write(b, data)
            case 11:  # MAPPED
                self._file(a).mapped = True
            case 13:  # ROOT: another process
                self.begun.clear()
                self.content.clear()
            case 14:  # NAMELESS
                nodes[a] = File()
            case _:
                raise AssertionError(f"the recorder does not know what was done: {data.decode()}")

    def _file(self, inode: int) -> File:
        node = self.inodes.setdefault(inode, File())
        assert isinstance(node, File)
        return node

    def _directory(self, inode: int) -> Directory:
        node = self.inodes.setdefault(inode, Directory())
        assert isinstance(node, Directory)
        return node


def _adding(name: str, node: Node) -> Callable[[dict[str, Node]], object]:
    return lambda entries: entries.__setitem__(name, node)


def _removing(name: str) -> Callable[[dict[str, Node]], object]:
    return lambda entries: entries.pop(name, None)


def _renaming(old: str, new: str) -> Callable[[dict[str, Node]], object]:
    def change(entries: dict[str, Node]) -> None:
        if old in entries:
            entries[new] = entries.pop(old)

    return change


def _becoming(content: Pages) -> Callable[[Pages], object]:
    def change(pages: Pages) -> list[int]:
        numbers = {*pages.pages, *content.pages}
        changed = [n for n in numbers if pages.pages.get(n, ZEROS) != content.pages.get(n, ZEROS)]
        pages.pages, pages.size = dict(content.pages), content.size
        return changed

    return change


class Disk:
    """A directory whose whole content is on the disk now, and what is done to it from now on."""

    def __init__(self, root: Path, *, sync_us: int = 2000) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()
        self.trace = self.root.with_name(self.root.name + ".trace")
        self.trace.unlink(missing_ok=True)
        self.sync_us = sync_us
        self._start: dict[int, Node] = {}
        self._root_inode = os.stat(self.root).st_ino
        self._walk(str(self.root))

    def _walk(self, path: str) -> Node:
        inode = os.stat(path).st_ino
        if os.path.isdir(path):
            directory = Directory()
            for name in os.listdir(path):
                directory.durable[name] = self._walk(os.path.join(path, name))
            self._start[inode] = directory
        else:
            self._start[inode] = File(Pages.load(path))
        return self._start[inode]

    def env(self) -> dict[str, str]:
        """For the environment of the process to be recorded. Its syncs take up to `sync_us` µs."""
        return {
            "LD_PRELOAD": compiled("disk_recorder"),
            "DISK_RECORDER_ROOT": str(self.root),
            "DISK_RECORDER_TRACE": str(self.trace),
            "DISK_RECORDER_SYNC_US": str(self.sync_us),
        }

    def records(self) -> Iterator[tuple[int, int, int, int, int, bytes]]:
        """(kind, ns, a, b, c, bytes) of each; a last one that is cut short is left out."""
        data = self.trace.read_bytes() if self.trace.exists() else b""
        at = 0
        while at + RECORD.size <= len(data):
            size, kind, ns, a, b, c = RECORD.unpack_from(data, at)
            if at + 4 + size > len(data):
                break
            yield kind, ns, a, b, c, data[at + RECORD.size : at + 4 + size]
            at += 4 + size

    def settle(self) -> None:
        """Before another process goes on where one was killed: what that did and could no longer tell is
        added to the trace, as not synced."""
        whole = sum(RECORD.size + len(record[-1]) for record in self.records())
        if not self.trace.exists():
            return
        os.truncate(self.trace, whole)
        state = self.state()
        with open(self.trace, "ab") as trace:

            def tell(kind: int, a: int, b: int, c: int, data: bytes = b"") -> None:
                head = RECORD.pack(RECORD.size - 4 + len(data), kind, time.monotonic_ns(), a, b, c)
                trace.write(head + data)
                state.replay(kind, a, b, c, data)

            def compare(path: str, inode: int) -> None:
                node = state.inodes[inode]
                if isinstance(node, File):
                    real, told = Pages.load(path), node.survivor("most", random.Random(), None)
                    if real.size != told.size:
                        tell(TRUNCATE, inode, real.size, 0)
                    for number in {*real.pages, *told.pages}:
                        page = real.pages.get(number, ZEROS)[: real.size - number * PAGE]
                        if page and page != told.pages.get(number, ZEROS)[: len(page)]:
                            tell(WRITE, inode, number * PAGE, 0, page)
                    return
                with os.scandir(path) as entries:
                    there = {entry.name: (entry.inode(), entry.is_dir(), entry.path) for entry in entries}
                for name in [name for name in node.now if name not in there]:
                    tell(UNLINK, inode, 0, 0, name.encode())
                for name, (its, is_directory, full) in there.items():
                    if its not in state.inodes or node.now.get(name) is not state.inodes[its]:
                        made = (
                            its not in state.inodes
                            or isinstance(state.inodes[its], Directory) != is_directory
                        )
                        tell(MAKE_DIRECTORY if is_directory else CREATE, inode, its, int(made), name.encode())
                    compare(full, its)

            compare(str(self.root), self._root_inode)

    def state(self, at_ns: int | None = None) -> State:
        copies: dict[int, Node] = {}
        twin: dict[int, Node] = {}
        for inode, node in self._start.items():
            copies[inode] = twin[id(node)] = (
                File(node.durable.copy()) if isinstance(node, File) else Directory()
            )
        for node in self._start.values():
            if isinstance(node, Directory):
                copy = twin[id(node)]
                assert isinstance(copy, Directory)
                copy.durable = {name: twin[id(entry)] for name, entry in node.durable.items()}
                copy.now = dict(copy.durable)
        state = State(copies)
        for kind, ns, a, b, c, data in self.records():
            if at_ns is not None and ns > at_ns:
                break
            state.replay(kind, a, b, c, data)
        return state

    def image(
        self, root: Path, chance: random.Random, *, how: str = "mixed", at_ns: int | None = None
    ) -> Disk:
        """What the disk holds after the power went at `at_ns` (CLOCK_MONOTONIC), or at the end."""
        state = self.state(at_ns)
        found: dict[int, str] = {}  # where the mapped files are now
        for path, _, names in os.walk(self.root):
            for name in names:
                full = os.path.join(path, name)
                found[os.stat(full).st_ino] = full
        by_node = {id(node): inode for inode, node in state.inodes.items()}

        def put(node: Node, path: str) -> None:
            if isinstance(node, Directory):
                os.mkdir(path)
                for name, entry in node.survivor(how, chance).items():
                    put(entry, os.path.join(path, name))
                return
            now = found.get(by_node.get(id(node), -1)) if node.mapped else None
            node.survivor(how, chance, Pages.load(now) if now else None).store(path)

        put(state.inodes[self._root_inode], str(root))
        return Disk(root, sync_us=self.sync_us)
