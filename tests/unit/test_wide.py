"""Sets and dicts of a wide request: the same as in one go, and no step is long."""

from collections import Counter
from itertools import pairwise

from kafkad.protocol import wide

MANY = 2 * wide.AT_ONCE + 1


def finish(steps):
    """(result, number of steps)."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def test_a_set_is_made_in_steps():
    assert finish(wide.set_of(number % 7 for number in range(MANY))) == (set(range(7)), 3)
    assert finish(wide.set_of(())) == (set(), 0)


def test_elements_are_given_in_their_order():
    asked = [str(number * 7 % MANY) for number in range(MANY)]
    found, steps = finish(wide.in_order(iter(asked)))
    assert list(found) == sorted(asked)
    assert steps == 3
    assert list(finish(wide.in_order(()))[0]) == []


def test_elements_are_counted_in_the_order_of_the_request():
    asked = [str(number % 7) for number in reversed(range(MANY))]
    found, steps = finish(wide.count(asked))
    assert list(found.items()) == list(Counter(asked).items())
    assert steps == MANY // wide.AT_ONCE


def test_containers_are_emptied_one_after_the_other_in_steps():
    some = [dict.fromkeys(range(MANY)), set(range(MANY)), list(range(MANY)), {}]
    sizes = [sum(map(len, some)) for _ in wide.empty(*some)]
    assert sizes[-1] == 0 and not any(some)
    assert all(before - after <= wide.AT_ONCE for before, after in pairwise([3 * MANY, *sizes]))
