"""kafkad.testing: the broker that other people's tests start, and its pytest fixtures."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from kafkad.client.cluster import Cluster
from kafkad.client.security import Security
from kafkad.testing import Broker, BrokerFailed
from tests.clients import create_topic, produce, python_path, read_partition, wait_until
from tests.jvm import free_port

ROOT = Path(__file__).resolve().parents[2]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def run_python(script: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **options,
    )


def test_a_broker_starts_with_well_under_a_second_of_cpu_and_leaves_nothing_behind():
    took = []
    for _ in range(3):
        with Broker() as broker:
            used = psutil.Process(broker.pid).cpu_times()
            took.append(used.user + used.system)
            assert broker.running
            assert "kafkad is ready on" in broker.output
            pid, directory = broker.pid, broker.data_dir
            assert directory.is_dir()
        assert not alive(pid)
        assert not directory.exists()
    assert 0 < min(took) < 0.5


def test_config_is_kafkas_and_two_brokers_do_not_meet():
    with Broker(config={"num.partitions": 3, "auto.create.topics.enable": True}) as one, Broker() as two:
        assert one.bootstrap != two.bootstrap
        produce(one, "auto", [(b"k", b"v")])
        produce(two, "auto", [(b"k", b"w")])
        (first,) = read_partition(
            one, "auto", 1, partition=produce(one, "auto", [(b"k", b"v2")])[0].partition()
        )
        assert first.value() == b"v"
        from confluent_kafka.admin import AdminClient

        topics = AdminClient({"bootstrap.servers": one.bootstrap}).list_topics(timeout=10).topics
        assert len(topics["auto"].partitions) == 3


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_it_comes_back_on_the_same_port_with_the_same_data(how):
    with Broker() as broker:
        create_topic(broker, "kept")
        produce(broker, "kept", [(None, b"before")])
        before, pid = broker.bootstrap, broker.pid
        code = getattr(broker, how)()
        assert not broker.running
        assert not alive(pid)
        assert code == (0 if how == "stop" else None)
        broker.restart()
        assert broker.bootstrap == before
        assert broker.pid != pid
        produce(broker, "kept", [(None, b"after")])
        assert [m.value() for m in read_partition(broker, "kept", 2)] == [b"before", b"after"]


def test_a_data_directory_of_ones_own_is_kept(tmp_path):
    for round in range(2):
        with Broker(data_dir=tmp_path / "mine") as broker:
            if round == 0:
                create_topic(broker, "kept")
            offset = produce(broker, "kept", [(None, b"%d" % round)])[0].offset()
            assert offset == round
    assert (tmp_path / "mine" / "kept-0").is_dir()


@pytest.mark.parametrize(
    ("config", "said"),
    [({"num.partitions": "many"}, "num.partitions"), ({"log.segment.bytes": -1}, "log.segment.bytes")],
)
def test_a_broker_that_does_not_start_says_why(config, said):
    with pytest.raises(BrokerFailed, match=said.replace(".", r"\.")), Broker(config=config):
        pass


def test_an_address_before_the_start_is_refused():
    with pytest.raises(BrokerFailed, match="has not been started"):
        _ = Broker().bootstrap


def test_a_killed_test_run_leaves_no_broker():
    parent = run_python(
        """
        import time
        from kafkad.testing import Broker
        broker = Broker().start()
        print(broker.pid, broker.data_dir, flush=True)
        time.sleep(600)
        """
    )
    assert parent.stdout is not None
    pid, directory = parent.stdout.readline().split()
    assert alive(int(pid))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not alive(int(pid)), timeout=5)
    shutil.rmtree(Path(directory).parent, ignore_errors=True)


def test_a_broker_outlives_the_thread_that_started_it():
    broker = Broker()
    starter = threading.Thread(target=broker.start)
    starter.start()
    starter.join()
    try:
        time.sleep(0.2)
        assert broker.running
        create_topic(broker, "t")
    finally:
        broker.close()
    assert not broker.running


def test_a_broker_killed_while_it_replaces_a_worker_leaves_none_behind(tmp_path):
    for _ in range(6):
        with Broker(workers=2, data_dir=tmp_path / "data") as broker:
            broker.kill_worker(1)
            broker.kill()
            everybody = [each.info for each in psutil.process_iter(["name", "cmdline"])]
            left = [each for each in everybody if each["name"].startswith("kafkad/")]
            assert not [each for each in left if str(tmp_path) in str(each["cmdline"])]


def test_the_fixtures_come_with_the_package(tmp_path):
    """In a project of someone else's: no conftest of ours, no import."""
    (tmp_path / "test_theirs.py").write_text(
        textwrap.dedent(
            """
            import socket

            import pytest

            seen = []

            @pytest.mark.parametrize("n", range(2))
            def test_shared(kafkad, n):
                seen.append(kafkad.pid)
                socket.create_connection((kafkad.host, kafkad.port)).close()

            @pytest.mark.parametrize("n", range(2))
            def test_own(kafkad_broker, n):
                seen.append(kafkad_broker.pid)
                kafkad_broker.kill()
                kafkad_broker.restart()

            def test_who_was_there():
                assert len(set(seen)) == 3
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True, text=True, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_a_group_does_not_wait_for_more_members_unless_it_is_told_to(tmp_path):
    """HUNTS U8: `with Broker()` waited 3 s at the first group, the fixtures did not."""
    (tmp_path / "server.properties").write_text("group.initial.rebalance.delay.ms=77\n")
    assert Broker().config == {"group.initial.rebalance.delay.ms": 0}
    assert (
        Broker(config={"group.initial.rebalance.delay.ms": 5}).config["group.initial.rebalance.delay.ms"] == 5
    )
    assert Broker(properties=tmp_path / "server.properties").config == {}


@pytest.mark.parametrize("port", [0, None], ids=["a port that is picked", "a port of the file"])
def test_a_restart_keeps_the_listeners_of_a_properties_file(tmp_path, port):
    """It had one PLAINTEXT listener afterwards: whoever did not log in was served."""
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    jaas = f'{plain} username="admin" password="admin-secret" user_admin="admin-secret";'
    file = tmp_path / "server.properties"
    given = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{free_port() if port is None else port}",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    with Broker(properties=file, data_dir=tmp_path / "data") as broker:
        for stop in (broker.stop, broker.kill, lambda: None):
            before = broker.bootstrap
            stop()
            broker.restart()
            assert broker.bootstrap == before
            with Cluster(broker.bootstrap, security=Security.of(login)) as cluster:
                assert list(cluster.brokers())


def test_a_failed_test_shows_the_log_of_its_broker_and_a_conftest_configures_it(tmp_path):
    """HUNTS U8."""
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def kafkad_config():\n"
        "    return {'no.such.key': 1}\n"
    )
    (tmp_path / "test_it.py").write_text(
        "def test_shared(kafkad): assert False\n"
        "def test_own(kafkad_broker): assert False\n"
        "def test_passes(kafkad): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False,
        env=os.environ | python_path(ROOT),
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    for name in ("kafkad", "kafkad_broker"):
        assert done.stdout.count(f"log of the broker of the fixture {name!r}") == 1, done.stdout
    assert done.stdout.count("no.such.key") == 2  # in each of the logs


def test_source_that_is_not_built_says_so(tmp_path):
    """HUNTS U8: it was `cannot import name 'timeslice'`."""
    leave_out = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    shutil.copytree(ROOT / "kafkad", tmp_path / "kafkad", ignore=leave_out)
    env = os.environ | python_path(tmp_path)
    for command, code in ((["-m", "kafkad", "serve"], 1), (["-c", "import kafkad.server.lifecycle"], 1)):
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60
        )
        assert done.returncode == code
        assert f"the native modules are not built in {tmp_path}/kafkad/_native" in done.stderr
        assert ("Traceback" in done.stderr) == ("-c" in command)
