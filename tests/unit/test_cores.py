"""How many workers there are by default: no more than there is CPU for."""

import os

import pytest
from click.testing import CliRunner

from kafkad.cli.serve import command
from kafkad.server import cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine(cgroup, files, cores)`: what usable_cores finds there."""

    def usable(cgroup, files, count=8):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(count)))
        (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
        if cgroup is not None:
            (tmp_path / "proc/self/cgroup").write_text(cgroup)
        for name, content in files.items():
            path = tmp_path / "sys/fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return cores.usable_cores(tmp_path)

    return usable


@pytest.mark.parametrize(
    "quota, expected",
    [
        ("max 100000", 8),
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("150000 100000", 2),
        ("400000 100000", 4),
        ("9900000 100000", 8),
        ("1000 0", 8),
        ("", 8),
        ("something else entirely", 8),
    ],
)
def test_a_quota_of_a_control_group_is_kept(machine, quota, expected):
    assert machine("0::/\n", {"cpu.max": quota + "\n"}) == expected


def test_the_smallest_quota_of_all_groups_around_us_counts(machine):
    files = {"a/cpu.max": "600000 100000", "a/b/cpu.max": "max 100000", "a/b/c/cpu.max": "700000 100000"}
    assert machine("0::/a/b/c\n", files) == 6


def test_a_path_of_the_host_leaves_the_mount(machine):
    assert machine("0::/system.slice/docker-4f.scope\n", {"cpu.max": "200000 100000"}) == 2
    assert machine("0::/../../somewhere\n", {"cpu.max": "200000 100000"}) == 2


def test_the_first_version_of_control_groups_is_known_too(machine):
    files = {"cpu,cpuacct/x/cpu.cfs_quota_us": "300000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"}
    assert machine("4:cpu,cpuacct:/x\n3:memory:/y\n0::/\n", files) == 3
    files["cpu,cpuacct/x/cpu.cfs_quota_us"] = "-1"
    assert machine("4:cpu,cpuacct:/x\n", files) == 8


def test_without_control_groups_the_cores_count(machine):
    assert machine(None, {}, 3) == 3


def test_here_it_is_between_one_and_all():
    assert 1 <= cores.usable_cores() <= os.cpu_count()


@pytest.mark.parametrize(
    "arguments, environment, cores_here, expected",
    [
        ([], None, 3, 3),
        ([], None, 1000, 64),
        ([], "2", 8, 2),
        ([], "", 8, 8),
        (["--workers", "5"], "2", 8, 5),
    ],
)
def test_serve_takes_as_many_workers_as_cores_unless_it_is_told(
    monkeypatch, tmp_path, arguments, environment, cores_here, expected
):
    asked = []
    monkeypatch.setattr("kafkad.server.cores.usable_cores", lambda: cores_here)
    monkeypatch.setattr("kafkad.server.lifecycle.serve", lambda config, workers: asked.append(workers) or 0)
    result = CliRunner(env={"KAFKAD_WORKERS": environment}).invoke(
        command, ["--data-dir", str(tmp_path), *arguments]
    )
    assert result.exit_code == 0, result.output
    assert asked == [expected]
