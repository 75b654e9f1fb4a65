"""New connections are spread evenly over the workers of a real broker, and no death loses or leaks one."""

import os
import threading
import time
from contextlib import ExitStack

import psutil
import pytest

from kafkad.protocol import messages
from kafkad.testing import Broker
from tests.clients import wait_until
from tests.wire import Wire

PROMPT_S = 20


def counts_of(broker):
    """Client connections of each worker, by the kernel."""
    counts = {}
    for k, pid in sorted(broker.worker_pids.items()):
        try:
            connections = psutil.Process(pid).net_connections("tcp")
        except psutil.NoSuchProcess:
            continue
        counts[k] = sum(
            each.status == psutil.CONN_ESTABLISHED and each.laddr.port == broker.port for each in connections
        )
    return counts


def descriptors_of(broker):
    return {k: psutil.Process(pid).num_fds() for k, pid in broker.worker_pids.items()}


def is_even(broker, total):
    """All have arrived, and no two workers differ by more than one."""
    counts = counts_of(broker)
    if len(counts) < broker.workers or sum(counts.values()) != total:
        return False
    return max(counts.values()) - min(counts.values()) <= 1


def asked(wire):
    return wire.ask(messages.ApiVersionsRequest(), 0).error_code == 0


def wait_all_accept(broker):
    """A worker that was restarted is there before it takes connections."""
    with ExitStack() as stack:

        def all_have_one_more():
            assert asked(stack.enter_context(Wire(broker.bootstrap, timeout=PROMPT_S)))
            return len(counts := counts_of(broker)) == broker.workers and all(counts.values())

        wait_until(all_have_one_more)


@pytest.mark.parametrize("workers", [2, 4])
def test_connections_that_come_at_once_are_spread_evenly(tmp_path, workers):
    with Broker(workers=workers, data_dir=tmp_path / "data") as broker:
        with Wire(broker.bootstrap) as wire:
            assert asked(wire)
        wait_until(lambda: is_even(broker, 0))
        before = descriptors_of(broker)
        for total in (2, 3, 50, 200) * 2:
            with ExitStack() as stack:
                wires = [stack.enter_context(Wire(broker.bootstrap)) for _ in range(total)]
                wait_until(lambda total=total: is_even(broker, total))
                assert all(asked(wire) for wire in wires)
            wait_until(lambda: is_even(broker, 0))
        assert broker.stop() == 0
        assert "Traceback" not in broker.log, broker.log
        assert before.keys() == set(range(workers))


def test_no_descriptor_is_left_behind(tmp_path):
    with Broker(workers=2, data_dir=tmp_path / "data") as broker:
        after = []
        for _ in range(5):
            with ExitStack() as stack:
                for wire in [stack.enter_context(Wire(broker.bootstrap)) for _ in range(100)]:
                    assert asked(wire)
            wait_until(lambda: is_even(broker, 0))
            after.append(descriptors_of(broker))
        assert after[1:] == after[:1] * 4


def test_new_connections_make_up_for_those_that_left(tmp_path):
    with Broker(workers=2, data_dir=tmp_path / "data") as broker, ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.bootstrap)) for _ in range(20)]
        assert all(asked(wire) for wire in wires)
        theirs = {
            each.raddr.port
            for each in psutil.Process(broker.worker_pids[0]).net_connections("tcp")
            if each.raddr
        }
        leaving = [wire for wire in wires if wire.socket.getsockname()[1] in theirs]
        assert len(leaving) == 10
        for wire in leaving:
            wire.socket.close()
        wait_until(lambda: counts_of(broker) == {0: 0, 1: 10})
        again = [stack.enter_context(Wire(broker.bootstrap)) for _ in range(10)]
        wait_until(lambda: counts_of(broker) == {0: 10, 1: 10})
        assert all(asked(wire) for wire in again)


def test_the_limit_of_a_host_is_exact(tmp_path):
    config = {"max.connections.per.ip": 25}
    with Broker(workers=4, data_dir=tmp_path / "data", config=config) as broker:
        for _ in range(3):
            with ExitStack() as stack:
                wires = [stack.enter_context(Wire(broker.bootstrap)) for _ in range(100)]
                served = 0
                for wire in wires:
                    try:
                        served += asked(wire)
                    except ConnectionError:
                        pass
                assert served == 25
            wait_until(lambda: is_even(broker, 0))


@pytest.mark.soak
def test_while_workers_are_killed_every_connection_works_or_is_closed(tmp_path, rounds):
    with Broker(workers=3, data_dir=tmp_path / "data") as broker:
        over = threading.Event()
        outcomes = {"works": 0, "closed": 0}
        wrong = []

        def pour():
            while not over.is_set():
                try:
                    with Wire(broker.bootstrap, timeout=PROMPT_S) as wire:
                        assert asked(wire) and asked(wire)
                    outcomes["works"] += 1
                except (ConnectionError, EOFError):
                    outcomes["closed"] += 1
                except BaseException as trouble:  # it hung
                    wrong.append(trouble)
                    return

        threads = [threading.Thread(target=pour) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            for number in range(rounds(6, 60)):
                killed = broker.kill_worker(number % 3)
                wait_until(
                    lambda k=number % 3, killed=killed: broker.worker_pids.get(k) not in (None, killed)
                )
                time.sleep(0.1)  # some of its life
        finally:
            over.set()
            for thread in threads:
                thread.join(2 * PROMPT_S)
        assert not wrong, (wrong, broker.log)
        assert outcomes["works"] > 100, outcomes
        wait_all_accept(broker)
        wait_until(lambda: is_even(broker, 0))
        with ExitStack() as stack:  # and nobody is counted who is not there
            wires = [stack.enter_context(Wire(broker.bootstrap)) for _ in range(30)]
            wait_until(lambda: counts_of(broker) == {0: 10, 1: 10, 2: 10})
            assert all(asked(wire) for wire in wires)
        assert broker.stop() == 0
        assert "Traceback" not in broker.log, broker.log


def test_a_restarted_worker_is_given_its_share(tmp_path):
    with Broker(workers=2, data_dir=tmp_path / "data") as broker, ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.bootstrap)) for _ in range(10)]
        assert all(asked(wire) for wire in wires)
        killed = broker.kill_worker(1)
        closed = 0
        for wire in wires:
            try:
                asked(wire)
            except (ConnectionError, EOFError):
                closed += 1
        assert closed == 5
        wait_until(lambda: broker.worker_pids.get(1) not in (None, killed))
        wait_all_accept(broker)
        wait_until(lambda: counts_of(broker) == {0: 5, 1: 0})
        again = [stack.enter_context(Wire(broker.bootstrap)) for _ in range(15)]
        wait_until(lambda: counts_of(broker) == {0: 10, 1: 10})
        assert all(asked(wire) for wire in again)


def test_a_stop_amid_new_connections_is_clean(tmp_path):
    with Broker(workers=3, data_dir=tmp_path / "data") as broker:
        over = threading.Event()
        served = []

        def pour():
            while not over.is_set():
                try:
                    with Wire(broker.bootstrap, timeout=PROMPT_S) as wire:
                        asked(wire)
                        served.append(wire)
                except OSError:
                    over.wait(0.001)  # nobody listens any more

        threads = [threading.Thread(target=pour) for _ in range(6)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(served) > 100)
            pids = list(broker.worker_pids.values())
            begun = time.monotonic()
            code = broker.stop()
        finally:
            over.set()
        for thread in threads:
            thread.join(2 * PROMPT_S)
            assert not thread.is_alive(), "it waits for an answer of a broker that is gone"
        assert code == 0 and time.monotonic() - begun < PROMPT_S
        assert (broker.data_dir / ".kafka_cleanshutdown").exists()
        assert "Traceback" not in broker.log, broker.log
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
