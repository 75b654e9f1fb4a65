"""A worker that hangs is noticed, says where, and is replaced; one that only could not run is left alone."""

import os
import signal
import time
from contextlib import ExitStack
from functools import partial

from kafkad.protocol import messages
from kafkad.testing import Broker
from tests.clients import python_path, wait_until
from tests.integration.test_workers import read_values, retried, wires_to_all
from tests.wire import Wire, batch, create_topic, produce

LIMIT_S = 2.0
HANGS = {"KAFKAD_HANG_S": str(LIMIT_S)}
PARTITIONS = 8

# A worker 1 that is told to log more goes round and round.
LOOPING = """
import logging, os
set_level = logging.Logger.setLevel

def setLevel(self, level):
    if self.name == "kafkad.net" and open("/proc/self/comm").read() == "kafkad/1\\n":
        os.write(2, b"worker 1 loops\\n")
        while True:
            pass
    set_level(self, level)

logging.Logger.setLevel = setLevel
"""


# A worker 1 that was told to close its logs goes round and round.
NEVER_CLOSING = """
import os
from kafkad.log.log_dirs import LogDirs

def close(self, *, clean):
    if self.me == 1:
        os.write(2, b"worker 1 never closes\\n")
        while True:
            pass
    close_logs(self, clean=clean)

close_logs, LogDirs.close = LogDirs.close, close
"""


def fill(wire, count):
    create_topic(wire, "t", PARTITIONS)
    for partition in range(PARTITIONS):
        for number in range(count):
            assert produce(wire, "t", batch(b"%d" % number), partition).error_code == 0


def assert_serves(broker, count):
    """All partitions take and give, through whatever worker one meets."""
    with Wire(broker.bootstrap, timeout=30) as wire:
        for partition in range(PARTITIONS):
            answer = retried(partial(produce, wire, "t", batch(b"%d" % count), partition))
            assert (answer.error_code, answer.base_offset) == (0, count)
            assert read_values(wire, "t", partition, count + 1) == [b"%d" % n for n in range(count + 1)]


def set_level(wire, name, level):
    resources = messages.IncrementalAlterConfigsRequest.Resources
    wire.send(
        messages.IncrementalAlterConfigsRequest(
            resources=[
                resources(
                    resource_type=8,
                    resource_name="1",
                    configs=[resources.Configs(name=name, config_operation=0, value=level)],
                )
            ]
        ),
        1,
    )


def level_of(wire, name):
    resources = messages.DescribeConfigsRequest.Resources
    asked = messages.DescribeConfigsRequest(
        resources=[resources(resource_type=8, resource_name="1", configuration_keys=[name])]
    )
    [result] = wire.ask(asked, 4).results
    assert result.error_code == 0, result
    return [entry.value for entry in result.configs]


def test_a_stopped_worker_is_replaced_and_nothing_acknowledged_is_missing(tmp_path):
    with Broker(workers=2, data_dir=tmp_path / "data", env=HANGS) as broker:
        with Wire(broker.bootstrap) as wire:
            fill(wire, 3)
        for round_, victim in enumerate((1, 0)):
            hung = broker.worker_pids[victim]
            os.kill(hung, signal.SIGSTOP)
            wait_until(lambda k=victim, hung=hung: broker.worker_pids.get(k) not in (None, hung))
            assert_serves(broker, 3 + round_)
            assert f"worker {victim} has not moved for 2 s (its state: T)" in broker.log
            assert f"worker {victim} has died: signal SIGABRT" in broker.log
        assert "most recent call first" in broker.log, "it says where it stood"
        assert broker.stop() == 0
        assert (broker.data_dir / ".kafka_cleanshutdown").exists(), broker.log


def test_a_worker_in_an_endless_loop_says_where_and_is_replaced(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LOOPING)
    env = HANGS | python_path(tmp_path)
    with Broker(workers=2, data_dir=tmp_path / "data", env=env) as broker, ExitStack() as stack:
        wires = wires_to_all(broker, stack)
        fill(wires[0], 1)
        hung = broker.worker_pids[1]
        set_level(wires[0], "kafkad.net", "DEBUG")
        wait_until(lambda: broker.worker_pids.get(1) not in (None, hung))
        assert_serves(broker, 1)
        assert "in setLevel" in broker.log, broker.log
        assert "worker 0 has died" not in broker.log


def test_a_worker_that_is_long_at_it_does_not_hang(tmp_path):
    """On a slow or busy machine a worker makes files for longer than the limit; on others it proves less."""
    with Broker(workers=2, data_dir=tmp_path / "data", env=HANGS) as broker:
        pids = broker.worker_pids
        with Wire(broker.bootstrap, timeout=60) as wire:
            create_topic(wire, "many", 1000)
            assert broker.worker_pids == pids
            assert produce(wire, "many", batch(b"x"), 999).error_code == 0
        assert "has not moved" not in broker.log


def test_nobody_is_killed_when_all_were_stopped(tmp_path):
    """A machine that slept: however long, when it goes on everybody is there."""
    with Broker(workers=2, data_dir=tmp_path / "data", env=HANGS) as broker:
        with Wire(broker.bootstrap) as wire:
            fill(wire, 1)
            pids = [broker.pid, *broker.worker_pids.values()]
            for order in (pids, pids[::-1]):
                for pid in order:
                    os.kill(pid, signal.SIGSTOP)
                time.sleep(1.5 * LIMIT_S)
                for pid in order:
                    os.kill(pid, signal.SIGCONT)
                time.sleep(LIMIT_S)
            assert [broker.pid, *broker.worker_pids.values()] == pids
            assert produce(wire, "t", batch(b"x")).error_code == 0
        assert "has not moved" not in broker.log


def test_a_stop_ends_a_worker_that_is_stopped(tmp_path):
    with Broker(workers=2, data_dir=tmp_path / "data") as broker:
        with Wire(broker.bootstrap) as wire:
            fill(wire, 1)
        os.kill(broker.worker_pids[1], signal.SIGSTOP)
        assert broker.stop() == 0, broker.log
        assert (broker.data_dir / ".kafka_cleanshutdown").exists(), broker.log


def test_a_stop_ends_although_a_worker_loops(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LOOPING)
    env = HANGS | python_path(tmp_path)
    with Broker(workers=2, data_dir=tmp_path / "data", env=env) as broker, ExitStack() as stack:
        wires = wires_to_all(broker, stack)
        set_level(wires[0], "kafkad.net", "DEBUG")
        wait_until(lambda: "worker 1 loops" in broker.log)
        broker.stop()
        assert "worker 1 did not stop cleanly: signal SIGABRT" in broker.log, broker.log
        assert not (broker.data_dir / ".kafka_cleanshutdown").exists()


def test_a_stop_ends_although_a_worker_never_closes_its_logs(tmp_path):
    """HUNTS W9: nobody looked at a worker any more that had said `quiet`, and the stop never ended."""
    (tmp_path / "sitecustomize.py").write_text(NEVER_CLOSING)
    env = HANGS | python_path(tmp_path)
    with Broker(workers=2, data_dir=tmp_path / "data", env=env) as broker:
        with Wire(broker.bootstrap) as wire:
            fill(wire, 1)
        broker.stop()
        assert "worker 1 never closes" in broker.log
        assert "worker 1 did not stop cleanly: signal SIGABRT" in broker.log, broker.log
        assert "worker 0 did not stop cleanly" not in broker.log
        assert not (broker.data_dir / ".kafka_cleanshutdown").exists()
        broker.env = {}
        broker.restart()
        assert_serves(broker, 1)


def test_log_levels_that_were_set_outlive_a_worker(tmp_path):
    with Broker(workers=2, data_dir=tmp_path / "data") as broker, ExitStack() as stack:
        wires = wires_to_all(broker, stack)
        set_level(wires[0], "kafkad.net", "TRACE")
        wires[0].read_frame()
        assert [level_of(wire, "kafkad.net") for wire in wires.values()] == [["TRACE"]] * 2
        for victim in (0, 1):
            killed = broker.kill_worker(victim)
            wait_until(lambda k=victim, killed=killed: broker.worker_pids.get(k) not in (None, killed))
        with ExitStack() as again:
            wires = wires_to_all(broker, again)
            assert [level_of(wire, "kafkad.net") for wire in wires.values()] == [["TRACE"]] * 2
