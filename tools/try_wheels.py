"""Test the wheels and the source distribution in dist/, each in a separate environment.

    python tools/try_wheels.py                  every wheel
    python tools/try_wheels.py cp314 sdist      those whose name contains cp314, and the source distribution

A wheel is installed with --only-binary and without a compiler on the PATH. Then its broker starts, accepts
records in each codec from its own command line, returns them, and stops cleanly. A wheel for another machine
runs under qemu (tools/emulated_system.py), and so do the unit tests of CRC, batches and the codec. The
source distribution is built with this machine's compiler, in an environment of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from build_wheels import CACHE, DIST, Target, python_home
from emulated_system import NoSystem, emulated_system, libraries
from fetch_jars import ROOT
from rich.console import Console
from rich.table import Table

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BUILD_SECONDS = 3600  # of the source distribution; ten minutes are too few on a busy machine
UNIT_TESTS = ("test_crc32c.py", "test_batch.py", "test_protocol_codec.py")
STARTS_PYTHON = "not importing_reads_no_schema"  # the program that it starts would not be emulated
READY_SECONDS = 15
EMULATED_READY_SECONDS = 120  # qemu is slow


class Failed(Exception):
    """An error message."""


class Environment:
    """A separate Python environment; `python` is its command."""

    python: list[str]
    variables: dict[str, str]
    ready_seconds = READY_SECONDS

    def run(self, *arguments: str, text: str = "", timeout: float = 600) -> str:
        done = subprocess.run(
            [*self.python, *arguments],
            input=text, capture_output=True, text=True, timeout=timeout, env=self.variables, cwd="/",
        )  # fmt: skip
        if done.returncode:
            raise Failed(f"{' '.join(arguments)}: {(done.stdout + done.stderr)[-2000:]}")
        return done.stdout


def kept(*names: str) -> dict[str, str]:
    """Return the variables that pip needs to reach its index; without PATH, so without a compiler."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in names or name.startswith("PIP_") or name.lower().endswith("_proxy")
    }


class Venv(Environment):
    """A virtual environment of the running interpreter."""

    def __init__(self, directory: Path, *, compiler: bool = False) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        self.python = [str(directory / "bin" / "python")]
        path = {"PATH": os.environ["PATH"]} if compiler else {}
        self.variables = {**kept("SSL_CERT_FILE", "HOME"), **path}

    def install(self, *packages: str, timeout: float = 600) -> None:
        self.run("-m", "pip", "install", "--quiet", *packages, timeout=timeout)


class Unpacked(Environment):
    """A CPython from Maven Central."""

    def __init__(self, directory: Path, target: Target) -> None:
        shutil.copytree(python_home(target), directory, symlinks=True)
        self.python = [str(directory / "bin" / f"python{target.minor}")]
        self.variables = {
            **kept("SSL_CERT_FILE", "HOME"),
            "PYTHONHOME": str(directory),
            "LD_LIBRARY_PATH": f"{directory}:{directory / 'lib'}",
        }
        self.run("-m", "ensurepip")

    def install(self, *packages: str) -> None:
        self.run("-m", "pip", "install", "--quiet", *packages)


class Emulated(Environment):
    """A CPython of another machine under qemu. pip runs natively, and installs for that machine."""

    ready_seconds = EMULATED_READY_SECONDS

    def __init__(self, directory: Path, target: Target) -> None:
        qemu, root = emulated_system(target.machine, CACHE)
        home = directory / "python"
        shutil.copytree(python_home(target), home, symlinks=True)
        library_path = f"{libraries(target.machine, root)}:{home}:{home / 'lib'}"
        self.target = target
        self.packages = home / "lib" / f"python{target.minor}" / "site-packages"
        self.python = [
            str(qemu), "-L", str(root), "-E", f"PYTHONHOME={home}", "-E", f"LD_LIBRARY_PATH={library_path}",
            "-E", f"PYTHONPATH={directory}", str(home / "bin" / f"python{target.minor}"),
        ]  # fmt: skip
        self.variables = {}

    def install(self, *packages: str) -> None:
        platforms = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--python-version", self.target.minor]
        for platform in platforms:
            command += ["--platform", f"{platform}_{self.target.machine}"]
        command += ["--only-binary", ":all:", "--target", str(self.packages), "--upgrade", *packages]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Failed(done.stderr[-2000:])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def serve_and_use(environment: Environment, directory: Path) -> float:
    """Use a broker. Return the seconds until it was ready."""
    address = f"127.0.0.1:{free_port()}"
    log = directory / "serve.log"
    begun = time.monotonic()
    with open(log, "w") as output:
        broker = subprocess.Popen(
            [*environment.python, "-m", "kafkad", "serve", "--workers", "1", "--data-dir",
             str(directory / "data"), "--listen", address],
            stdout=output, stderr=subprocess.STDOUT, env=environment.variables, cwd="/",
        )  # fmt: skip
    try:
        while "is ready" not in log.read_text():
            if broker.poll() is not None or time.monotonic() - begun > environment.ready_seconds:
                raise Failed(f"the broker is not ready: {log.read_text()[-2000:]}")
            time.sleep(0.01)
        seconds = time.monotonic() - begun
        server = ("--bootstrap-server", address)
        for codec in CODECS:
            text = "".join(f"{codec} {number} {'x' * 200}\n" for number in range(300))
            topic = f"of-{codec}"
            environment.run(
                "-m", "kafkad", "produce", *server, "--topic", topic, "--compression-codec", codec, text=text
            )
            back = environment.run(
                "-m",
                "kafkad",
                "consume",
                *server,
                "--topic",
                topic,
                "--from-beginning",
                "--max-messages",
                "300",
            )
            if sorted(back.splitlines()) != sorted(text.splitlines()):
                raise Failed(f"{codec}: {len(back)} characters came back of {len(text)}")
    finally:
        broker.terminate()
        code = broker.wait(60)
    if code:
        raise Failed(f"the broker ended with {code}: {log.read_text()[-2000:]}")
    return seconds


def try_file(path: Path, directory: Path) -> str:
    """Test a file, and return a short summary. Raises Failed."""
    if path.name.endswith(".tar.gz"):
        builder = Venv(directory / "venv", compiler=True)
        begun = time.monotonic()
        builder.install(str(path), timeout=BUILD_SECONDS)
        installed = time.monotonic() - begun
        return f"built in {installed:.0f} s, ready in {serve_and_use(builder, directory):.2f} s"
    python, platform = path.stem.split("-")[2], path.stem.split("-")[4]
    target = Target(f"3.{python[3:]}", platform.removeprefix("manylinux_2_28_"))
    foreign = target.machine != os.uname().machine
    environment: Environment
    if foreign:
        environment = Emulated(directory, target)
    elif target.minor == f"{sys.version_info[0]}.{sys.version_info[1]}":
        environment = Venv(directory / "venv")
    else:
        environment = Unpacked(directory / "python", target)
    begun = time.monotonic()
    environment.install("--only-binary", ":all:", str(path))
    installed = time.monotonic() - begun
    seen = f"installed in {installed:.0f} s, ready in {serve_and_use(environment, directory):.2f} s"
    if foreign:
        environment.install("pytest", "pytest-timeout", "hypothesis", "crc32c")
        tests = directory / "tests"
        shutil.copytree(ROOT / "tests", tests, ignore=shutil.ignore_patterns("__pycache__"))
        told = environment.run(
            "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--rootdir", str(directory),
            "-k", STARTS_PYTHON, *(str(tests / "unit" / name) for name in UNIT_TESTS), timeout=1800,
        )  # fmt: skip
        seen += f", {told.splitlines()[-1]}"
    return seen


def main(wanted: list[str]) -> int:
    console = Console(width=None if sys.stdout.isatty() else 150)
    found = sorted(DIST.glob("*.whl")) + sorted(DIST.glob("*.tar.gz"))
    chosen = [
        path for path in found
        if not wanted or any(w in path.name or (w == "sdist" and path.suffix == ".gz") for w in wanted)
    ]  # fmt: skip
    if not chosen:
        console.print(f"nothing to try in {DIST}: `make wheels` first")
        return 2
    table = Table("file", "result")
    failures = 0
    for path in chosen:
        with tempfile.TemporaryDirectory(prefix="kafkad-wheel-") as directory:
            try:
                result = try_file(path, Path(directory))
            except (Failed, NoSystem, subprocess.SubprocessError) as trouble:
                failures += 1
                result = f"FAILED: {trouble}"
        table.add_row(path.name, result)
    console.print(table, markup=False)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
