"""Groups that are deleted or let go of are freed at once. Objects that were loaded, or that a slow collection
has seen, are frozen: the garbage collector never looks at them (server/group_loader, full_collections)."""

import gc
import weakref

from coordinator_world import STABLE, play


def test_what_a_partition_held_is_given_back_without_the_collector():
    """What is loaded is frozen, so the collector never looks at it (server/group_loader)."""
    world = play(STABLE)
    shard, group = weakref.ref(world.shard), weakref.ref(world.group)
    gc.collect()
    gc.disable()
    try:
        world.coordinator.unload(world.shard.index)
        world.scheduler.advance(0)
        assert group() is None and shard() is None
    finally:
        gc.enable()


def test_a_deleted_group_is_given_back_without_the_collector():
    world = play("commit A t_0=1\n  A: NONE\nleave A\n  A: left, NONE", play(STABLE))
    group = weakref.ref(world.group)
    gc.collect()
    gc.disable()
    try:
        world.delete()
        assert world.take_heard() == ["deleted: NONE"]
        assert group() is None
    finally:
        gc.enable()
