"""A release is complete: the source distribution builds, the wheel has what runs and nothing else."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import kafkad

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns("*.so", "__pycache__", "*.c")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources, because setuptools leaves files in the tree that it packs."""
    copy = tmp_path_factory.mktemp("packaging") / "kafkad"
    copy.mkdir()
    for folder in ("kafkad", "pyspark_kafkad", "docs", "packaging"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=LEFT_OUT)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    return copy


def packed(tree, command):
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", command, "--dist-dir", "out"],
        cwd=tree, env={**os.environ, "KAFKAD_ONLY": "none"}, check=True, capture_output=True,
    )  # fmt: skip
    (path,) = (tree / "out").glob("*.tar.gz" if command == "sdist" else "*.whl")
    return path


def test_the_source_distribution_has_all_that_a_build_reads(tree):
    with tarfile.open(packed(tree, "sdist")) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    needed = {
        str(path.relative_to(tree))
        for folder in ("kafkad", "pyspark_kafkad")
        for path in (tree / folder).rglob("*")
        if path.suffix in (".py", ".pyx", ".pxd", ".pyi", ".h", ".txt", ".typed")
    }
    needed |= {"setup.py", "pyproject.toml", "LICENSE", "NOTICE", "README.md", "CHANGELOG.md"}
    assert len([name for name in needed if name.endswith(".pyx")]) > 40
    assert needed - names == set()
    assert not [name for name in names if name.endswith((".so", ".c"))]


def test_the_wheel_has_all_that_runs_and_no_sources_of_extensions(tree):
    with zipfile.ZipFile(packed(tree, "bdist_wheel")) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(f"kafkad-{kafkad.__version__}.dist-info/METADATA").decode()
    needed = {
        str(path.relative_to(tree))
        for folder in ("kafkad", "pyspark_kafkad")
        for path in (tree / folder).rglob("*")
        if path.suffix in (".py", ".pyi", ".typed") or (path.suffix == ".txt" and "schemas" in path.parts)
    }
    assert needed - names == set()
    assert not [name for name in names if name.endswith((".pyx", ".pxd", ".h", ".c"))]
    assert not [name for name in names if name.startswith(("tests", "bench", "tools"))]
    information = f"kafkad-{kafkad.__version__}.dist-info/"
    assert {f"{information}licenses/LICENSE", f"{information}licenses/NOTICE"} <= names
    assert "License-Expression: Apache-2.0" in metadata and "Typing :: Typed" in metadata


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project and project["dynamic"] == ["version"]
    assert kafkad.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_the_unit_of_systemd_is_one():
    """Its exit codes are those of docs/operations.md; systemd itself reads it where there is one."""
    unit = (ROOT / "packaging" / "kafkad.service").read_text()
    assert re.search(r"^RestartPreventExitStatus=2$", unit, re.MULTILINE)
    assert "| 2 | wrong configuration" in (ROOT / "docs" / "operations.md").read_text()
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "verify", str(ROOT / "packaging" / "kafkad.service")],
            capture_output=True, text=True,
        )  # fmt: skip
        trouble = [line for line in done.stderr.splitlines() if "kafkad.service" in line]
        assert [line for line in trouble if "is not executable" not in line] == []


def test_the_container_serves_by_default_and_runs_what_it_is_told(tmp_path):
    """The entry point's shell, with a `kafkad` that prints its arguments."""
    text = (ROOT / "packaging" / "Containerfile").read_text()
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    assert entry is not None
    program = tmp_path / "kafkad"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    command = tomllib.loads(f"entry = {entry[1]}")["entry"]

    def said(*arguments):
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=True,
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "ADVERTISED": "here:9092"},
        ).stdout.strip()  # fmt: skip

    assert said() == (
        "serve --data-dir /var/lib/kafkad --listen 0.0.0.0:9092"
        " --override advertised.listeners=PLAINTEXT://here:9092"
    )
    assert said("serve", "/etc/my file") == "serve /etc/my file"
