"""The examples that newcomers try first, as they stand in README.md and on the pages of docs/."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from kafkad.testing import Broker
from tests.clients import wait_until
from tests.jvm import free_port

ROOT = Path(__file__).parents[2]


def block(page: str, first: str) -> str:
    """The code block of a page whose first line is `first`."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    (found,) = [each for each in blocks if each.split("\n", 1)[0] == first]
    return found


def run(directory: Path, broker: Broker, script: str) -> str:
    """What a block writes, in an empty directory; the broker is where the commands look for it."""
    bin_directory = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "KAFKAD_BOOTSTRAP_SERVER": broker.bootstrap,
    }
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script.replace("127.0.0.1:9092", broker.bootstrap)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def shell(kafkad_broker, tmp_path):
    return lambda script: run(tmp_path, kafkad_broker, script)


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(f"docs/{each.name}" for each in (ROOT / "docs").glob("*.md"))]
)
def test_python_on_a_page_can_be_pasted(page):
    text = (ROOT / page).read_text()
    for each in re.findall(r"^```python\n(.*?)^```", text, re.S | re.M):
        compile(each, page, "exec")  # raises SyntaxError
    # an indented block would escape the check above
    assert not re.search(
        r"^    (spark|frame|df)\.", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M
    )


def test_the_commands_of_the_readme(shell):
    script = block("README.md", "export PATH=$PWD/.venv/bin:$PATH")
    assert '{"order": 17, "item": "book"}' in shell(script)


def test_the_health_check_of_the_container(shell):
    text = (ROOT / "packaging/Containerfile").read_text()
    (check,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", text, re.M)
    assert shell(shlex.join(json.loads(check))).startswith("Cluster ID: ")


def test_passwords_in_ten_lines(tmp_path):
    properties = tmp_path / "secure.properties"
    text = block("docs/security.md", "node.id=1")
    properties.write_text(text.replace("127.0.0.1:9092", "127.0.0.1:0").replace("./", f"{tmp_path}/"))
    with Broker(properties=properties) as broker:
        told = run(tmp_path, broker, block("docs/security.md", "cat > alice.properties <<'END'"))
        assert told.splitlines()[-1] == "hello"
        (tmp_path / "tls.properties").write_text("security.protocol=SSL\n")
        told = run(tmp_path, broker, "kafkad topics --list --command-config tls.properties 2>&1 || true")
        assert "does its listener use TLS?" in told


def test_tls_passwords_and_acls_in_ten_lines(tmp_path):
    """The page's own lines, but for the port and the broker, which this test ends."""
    port = free_port()

    def moved(text: str) -> str:
        return text.replace("9093", str(port))

    *making, serving = moved(block("docs/security.md", "kafkad certs ./certs")).strip().splitlines()
    assert serving == "kafkad serve secured.properties"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def bash(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", script],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    made = bash("\n".join(making))
    assert made.returncode == 0 and "The other nodes" not in made.stdout, made.stdout + made.stderr
    text = (tmp_path / "secured.properties").read_text().replace("./", f"{tmp_path}/")
    (tmp_path / "secured.properties").write_text(text)
    with Broker(properties=tmp_path / "secured.properties"):
        using = bash(moved(block("docs/security.md", "for user in admin anna; do")))
        assert using.returncode == 0, using.stdout + using.stderr
        assert using.stdout.splitlines()[-1] == "hello"
        login = f"--bootstrap-server localhost:{port} --command-config anna.properties"
        refused = bash(f"kafkad topics --create --topic other {login}")  # anna may do nothing else
        assert refused.returncode and "AUTHORIZATION_FAILED" in refused.stderr


def test_the_five_minutes_of_ingest(shell, tmp_path):
    script = block("docs/ingest.md", "kafkad topics --create --topic flights --partitions 4")
    commands = [line for line in script.splitlines() if line.startswith("kafkad ingest")]
    assert [line.split()[2] for line in commands] == ["validate", "plan", "run", "verify", "status"]
    assert commands[3].endswith("# 2 rows, 1 in the dead letter queue, 0 lost, 0 twice")
    told = [re.split(r"  +", line.strip()) for line in shell(script).splitlines()]
    at = next(i for i, words in enumerate(told) if "IN_DLQ" in words)
    partitions = [dict(zip(told[at], row, strict=True)) for row in told[at + 1 : at + 5]]
    sums = {name: sum(int(row[name]) for row in partitions) for name in ("ROWS", "IN_DLQ", "LOST", "TWICE")}
    assert sums == {"ROWS": 2, "IN_DLQ": 1, "LOST": 0, "TWICE": 0}
    assert {("pipeline", "flights"), ("rows in it", "2"), ("dead letters", "1")} <= set(map(tuple, told))
    sql, *_ = re.findall(r'^duckdb -c "(.*)"$', (ROOT / "docs/ingest.md").read_text(), re.M)
    rows = duckdb.sql(sql.replace("flights/", f"{tmp_path}/flights/").replace("*", "id", 1)).fetchall()
    assert sorted(rows) == [(1,), (2,)]


def test_quotas(shell):
    everyone = "kafkad configs --alter --entity-type clients --entity-default"
    told = shell(block("docs/security.md", f"{everyone} --add-config producer_byte_rate=1048576"))
    assert re.search(r"producer_byte_rate +1048576", told)
    ips = "kafkad configs --alter --entity-type ips --entity-name 10.1.2.3"
    shell(block("docs/security.md", f"{ips} --add-config connection_creation_rate=20"))


def test_three_nodes_on_three_machines(tmp_path):
    """The first section of docs/cluster.md, on three addresses of this machine."""
    ports = {"9092": free_port(), "9093": free_port()}

    def moved(text: str, number: int = 1) -> str:
        for port, ours in ports.items():
            text = text.replace(port, str(ours))
        text = text.replace("/var/lib/kafkad", f"{tmp_path}/{number}/data")
        return (
            text.replace("kafka$N", "127.0.0.$N")
            .replace("kafka1", "127.0.0.1")
            .replace("kafka2", "127.0.0.2")
            .replace("kafka3", "127.0.0.3")
        )

    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    making = block("docs/cluster.md", "kafkad format --random-uuid")
    made = subprocess.check_output(["bash", "-c", making], env=environment, text=True, timeout=60)
    cluster_id = made.strip()
    nodes = []
    try:
        for number in (1, 2, 3):
            (tmp_path / str(number)).mkdir()
            script = moved(block("docs/cluster.md", "cat > server.properties <<END"), number)
            *_, serving = script.strip().splitlines()
            assert serving == "kafkad serve server.properties"
            with open(tmp_path / f"{number}/out", "wb") as out:
                nodes.append(
                    subprocess.Popen(
                        ["bash", "-eu", "-c", script.replace("kafkad serve", "exec kafkad serve")],
                        cwd=tmp_path / str(number), stdout=out, stderr=subprocess.STDOUT,
                        env={**environment, "N": str(number), "ID": cluster_id},
                    )
                )  # fmt: skip
        for number in (1, 2, 3):
            out = tmp_path / f"{number}/out"
            ready = f"kafkad is ready on 127.0.0.{number}:{ports['9092']}"
            wait_until(lambda out=out, ready=ready: ready in out.read_text(), 60)
        first = "export KAFKAD_BOOTSTRAP_SERVER=kafka1:9092,kafka2:9092,kafka3:9092"
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", moved(block("docs/cluster.md", first))],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert '{"order": 17}' in done.stdout.splitlines()
        assert f"Cluster {cluster_id}: 3 brokers, 3 partitions, 0 without a leader" in done.stdout
        assert sorted(re.findall(r"^[123] +(\w+) ", done.stdout, re.M))[-3:] == ["leader", "voter", "voter"]
    finally:
        for node in nodes:
            node.terminate()
        codes = [node.wait(60) for node in nodes]
    assert codes == [0, 0, 0]
