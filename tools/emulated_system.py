"""qemu and the C library of another machine, unpacked from Debian's packages into .cache/wheels.

Nothing is installed and no root is needed: apt keeps its lists of packages here, too. An unpacked system
stays until `.cache` is removed.

Use: tools/try_wheels.py, which runs wheels for aarch64."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

DEBIAN = {"aarch64": "arm64", "x86_64": "amd64"}
LIBRARIES = ("libc6", "libgcc-s1", "zlib1g")  # what a CPython links that brings the rest itself


class NoSystem(Exception):
    """An error message."""


def emulated_system(machine: str, cache: Path) -> tuple[Path, Path]:
    """Return the emulator, and the root directory with the machine's libraries."""
    home = cache / f"system-{machine}"
    if not (home / ".complete").exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise NoSystem(f"wheels for {machine} are tried on Debian and its descendants only")
        shutil.rmtree(home, ignore_errors=True)
        for package in _downloaded(machine, home / "packages"):
            _run(["dpkg", "-x", str(package), str(home / "root")])
        shutil.rmtree(home / "packages")
        (home / ".complete").touch()
    root = home / "root"
    return root / "usr" / "bin" / f"qemu-{machine}-static", root


def libraries(machine: str, root: Path) -> Path:
    """Return the directory of the shared libraries in `root`."""
    return root / "lib" / f"{machine}-linux-gnu"


def _downloaded(machine: str, directory: Path) -> list[Path]:
    """Download qemu for this machine and the libraries for the other one, with apt's state in `directory`."""
    for part in ("state/lists/partial", "cache/archives/partial"):
        (directory / part).mkdir(parents=True)
    own, other = DEBIAN[os.uname().machine], DEBIAN[machine]
    configuration = directory / "apt.conf"
    configuration.write_text(
        f'Dir::State "{directory}/state"; Dir::State::status "/dev/null"; Dir::Cache "{directory}/cache";\n'
        f'APT::Architecture "{own}"; APT::Architectures {{ "{own}"; "{other}"; }};\n'
        'APT::Sandbox::User "root"; Acquire::Languages "none";\n'
    )
    environment = {**os.environ, "APT_CONFIG": str(configuration)}
    _run(["apt-get", "--quiet", "update"], env=environment)
    packages = [f"qemu-user-static:{own}", *(f"{library}:{other}" for library in LIBRARIES)]
    _run(["apt-get", "--quiet", "download", *packages], env=environment, cwd=directory)
    return sorted(directory.glob("*.deb"))


def _run(command: list[str], **options: object) -> None:
    done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise NoSystem(f"{' '.join(command[:3])} ...: {(done.stdout + done.stderr)[-1000:]}")
