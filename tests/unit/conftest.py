"""Fixtures that several files of unit tests share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from workers_world import Workers

    from tests.unit.routing_world import World


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files and directories that were synced, by name, in order."""
    names: list[str] = []

    def recorder(call: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            names.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
            call(fd)

        return sync

    monkeypatch.setattr(os, "fdatasync", recorder(os.fdatasync))
    monkeypatch.setattr(os, "fsync", recorder(os.fsync))
    return names


@pytest.fixture
def workers(tmp_path: Path) -> "Iterator[Workers]":
    from workers_world import Workers

    workers = Workers(2, tmp_path)
    yield workers
    workers.close()


@pytest.fixture
def make_world(tmp_path: Path) -> "Iterator[Callable[..., World]]":
    """`make_world(3, 1)`: three workers, of which this process is worker 1."""
    from tests.unit.routing_world import World

    made: list[World] = []

    def make(count: int, me: int = 0) -> World:
        made.append(World(tmp_path, count, me))
        return made[-1]

    yield make
    for world in made:
        world.close()
