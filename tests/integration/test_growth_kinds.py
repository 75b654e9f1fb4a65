"""How does each cost grow, and who waits meanwhile? The kinds of `python -m bench.growth`, held to bounds.

Each kind is measured at N, 4 N and 16 N. The cost of an action is the CPU time that the broker takes for it,
which does not depend on the load of the machine. At 16 N it is at most LINEAR times that at 4 N. While an
action runs, the others wait at most WAIT_MAX, without the time in which they or the broker's event loops
are ready to run but have no core."""

import pytest

from bench.brokers import Kafkad
from bench.growth import FACTORS, measure
from bench.growth_kinds import KINDS

LINEAR = 8  # half-way between 4 and 16, as factors go
FIXED_S = 0.08  # CPU time that says nothing yet: the rest of a broker works, too
WAIT_MAX = 0.1
TRIES = 3  # the disk, too, is shared with whatever runs beside the tests

SHORT = {
    "topics": 40,
    "partitions": 60,
    "groups": 120,
    "members": 10,
    "segments": 20,
    "connections": 100,
    "producer ids": 300,
}


def complaints(rows, sizes):
    for row, figures in rows.items():
        _, some, many = (figure.cpu for figure in figures)
        if many > LINEAR * max(some, FIXED_S / LINEAR):
            yield f"{row}: {many:.2f} s of CPU for {sizes[2]}, {some:.2f} s for {sizes[1]}"
        for size, figure in zip(sizes, figures, strict=True):
            if figure.held_up > WAIT_MAX:
                yield f"{row}: others waited {figure.held_up:.2f} s beside {size} ({figure.waited:.2f} s)"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", KINDS)
def test_a_cost_grows_no_faster_than_what_it_is_for(tmp_path, name, rounds):
    kind = KINDS[name]
    sizes = [rounds(SHORT[name], kind.first) * factor for factor in FACTORS]
    found = []
    for number in range(TRIES):
        broker = Kafkad(tmp_path / f"data-{number}", 2, dict(kind.config))
        broker.start()
        try:
            found = list(complaints(measure(broker, kind, sizes), sizes))
        finally:
            broker.kill()
        if not found:
            return
    pytest.fail("\n".join(found))
