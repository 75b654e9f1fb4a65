"""The clock of one node of a cluster of three is an hour off, and so is that of each node that is started
again meanwhile. Clients write and read with acks=all and min.insync.replicas=2, and all checks of
cluster_checker hold."""

import pytest

from tests.cluster_checker import Cluster, Story
from tests.cluster_faults import Faults
from tests.cluster_transactions import PipelineStory
from tests.shifted_clock import HOUR_MS, ShiftedClock

ODD = 2  # the node
MINUTE_MS = 60_000  # behind by a whole hour, it refuses timestamps (message.timestamp.after.max.ms)


@pytest.mark.parametrize("shift_ms", [MINUTE_MS - HOUR_MS, HOUR_MS])
@pytest.mark.parametrize("kind", [Story, PipelineStory])
@pytest.mark.timeout(600)
def test_nothing_is_lost_when_the_clock_of_a_node_is_an_hour_off(tmp_path, monkeypatch, kind, shift_ms):
    clock = ShiftedClock(tmp_path / "clock")

    def jump(faults):
        faults.tell(f"the clock of {ODD} jumps")
        clock.set_wall(shift_ms)
        faults.pause(1, 3)

    def jump_back(faults):
        faults.tell(f"the clock of {ODD} is set right")
        clock.set_wall(0)
        faults.pause(1, 3)

    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        cluster.stop([ODD])
        with monkeypatch.context() as odd:
            for name, value in clock.environment().items():
                odd.setenv(name, value)
            cluster.start([ODD])
            told = [
                jump,
                Faults.stop_the_active_controller,
                Faults.kill_one,
                Faults.kill_a_worker,
                jump_back,
                jump,
            ]
            assert kind(cluster, 1).tell(told) > 60
