"""A slow full collection is followed by a freeze, unless many logs would stay in memory."""

import gc

import pytest

from kafkad.server.full_collections import LOGS_MAX, SLOW_S, FullCollections


class World:
    def __init__(self):
        self.now, self.opened, self.soon = 0.0, 0, []
        self.collections = FullCollections(self.soon.append, lambda: self.opened, lambda: self.now)

    def collects(self, seconds, generation=2):
        """Whether a freeze follows a collection that takes `seconds`."""
        before = len(self.soon)
        self.collections._looks("start", {"generation": generation})
        self.now += seconds
        self.collections._looks("stop", {"generation": generation, "collected": 0, "uncollectable": 0})
        for freeze in self.soon[before:]:
            freeze()
        return len(self.soon) > before


@pytest.fixture(scope="module", autouse=True)
def tests_that_are_frozen_again():
    """See conftest.pytest_collection_finish: each gc.collect() of later tests would look at them."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def world():
    gc.unfreeze()
    yield World()
    gc.unfreeze()


def test_only_slow_full_collections_count(world):
    assert not world.collects(SLOW_S / 2)
    assert not world.collects(SLOW_S * 2, generation=1)
    assert gc.get_freeze_count() == 0
    assert world.collects(SLOW_S * 2)
    assert gc.get_freeze_count() > 0


def test_nothing_is_frozen_while_many_logs_are_opened(world):
    world.opened = LOGS_MAX + 1
    assert not world.collects(1.0)
    world.collections._freeze()
    assert world.collects(1.0)
    world.opened += LOGS_MAX
    assert world.collects(1.0)
    world.opened += LOGS_MAX + 1
    assert not world.collects(1.0)


def test_it_looks_until_its_end():
    collections = FullCollections(lambda freeze: None, lambda: 0)
    before = list(gc.callbacks)
    collections.begin()
    try:
        gc.collect()
        assert len(gc.callbacks) == len(before) + 1
    finally:
        collections.end()
        gc.unfreeze()
    assert gc.callbacks == before
