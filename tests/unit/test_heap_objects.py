"""Python objects of long work in the C library's heap: `use_heap`, in processes of their own where memory is
measured."""

import os
import random
import subprocess
import sys
import tracemalloc

import pytest

from kafkad._native.serving.heap_objects import USABLE, use_heap

LEFT = """
import ctypes, sys
from kafkad._native.serving.heap_objects import use_heap

def private_mb():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss_Anon")) / 1024

before, stays = private_mb(), []
was = use_heap(sys.argv[1] == "heap")
many = []
for number in range(400_000):  # long work, and meanwhile 200 objects that stay
    many.append([number, str(number)])
    if number % 2_000 == 0:
        stays.append((number, number))
use_heap(was)
peak = private_mb()
del many
ctypes.CDLL(None).malloc_trim(0)
print(peak - before, private_mb() - before)
"""


def run(code, *arguments, **environment):
    told = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONMALLOC": "", "PYTHONTRACEMALLOC": "", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return told.stdout.split()


def test_what_stays_of_long_work_keeps_pages_and_not_arenas():
    peak, left = map(float, run(LEFT, "heap"))
    assert peak > 40 and left < 10, (peak, left)
    _, kept_by_arenas = map(float, run(LEFT, "arenas"))
    assert kept_by_arenas > 2 * left, (kept_by_arenas, left)


def test_objects_may_be_made_grown_and_freed_in_either_memory():
    chance = random.Random(5)
    living, expected = {}, {}
    assert use_heap(False) is False
    try:
        for number in range(60_000):
            if number % 50 == 0:
                use_heap(chance.random() < 0.5)
            place = chance.randrange(500)
            size = chance.choice((0, 1, 3, 20, 60, 200, 511, 512, 513, 5_000))
            what = chance.randrange(4)
            if what == 0 or place not in living:
                living[place] = [list(range(size % 70)), bytearray(size), {}]
                expected[place] = (list(range(size % 70)), bytes(size), {})
            elif what == 1:
                del living[place], expected[place]
            else:
                items, data, table = living[place]
                items.append(number)
                data += b"x" * (size % 40)
                table[number] = str(number)
                before = expected[place]
                expected[place] = (
                    [*before[0], number],
                    before[1] + b"x" * (size % 40),
                    {**before[2], number: str(number)},
                )
    finally:
        use_heap(False)
    assert {place: tuple(each) for place, each in living.items()} == expected


def test_it_says_what_was_in_use_before():
    assert use_heap(True) is False
    assert use_heap(True) is USABLE
    assert use_heap(False) is USABLE
    assert use_heap(False) is False


SAID = "from kafkad._native.serving.heap_objects import *; print(USABLE, use_heap(True), use_heap(False))"


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONMALLOC": "debug"},
        {"PYTHONMALLOC": "malloc"},
        {"PYTHONDEVMODE": "1"},
        {"PYTHONTRACEMALLOC": "1"},
    ],
    ids=str,
)
def test_another_allocator_is_left_alone(environment):
    assert run(SAID, **environment) == ["False", "False", "False"]


def test_tracemalloc_that_starts_later_is_left_alone():
    tracemalloc.start()
    try:
        assert use_heap(True) is False
        assert use_heap(True) is False
    finally:
        tracemalloc.stop()


UNMERGED = """
import ctypes, sys
from kafkad._native.serving.heap_objects import merge_freed_blocks, use_heap

class Heap(ctypes.Structure):  # struct mallinfo2
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ord sm hblk hblkhd usm fsm uord ford keep".split()]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Heap
use_heap(True)


def freed():
    before = mallinfo().fsm
    many = [str(number) for number in range(100_000)]
    while many:
        many.pop()
    return mallinfo().fsm - before


for at_once in (False, True, False):
    merge_freed_blocks(at_once)
    print(freed())
"""


def test_freed_blocks_do_not_wait_to_be_merged_all_together():
    before, at_once, after = map(int, run(UNMERGED))
    assert before > 1_000_000 and after > 1_000_000  # as the C library does by itself
    assert at_once <= 0
