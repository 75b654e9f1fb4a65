"""Build the release: a source distribution, and wheels for Linux machines without a compiler.

    make wheels                                          all of them, into dist/
    python tools/build_wheels.py --only 3.12-x86_64      one of them (several: separated by commas or spaces)

Each wheel is for one CPython (3.11 to 3.14) and one machine (x86_64, aarch64), and runs with glibc 2.28 or
newer (manylinux_2_28: Debian 10, RHEL 8, Ubuntu 20.04). Cython translates once. Zig's C compiler, which pip
installs, then compiles the same C files for every target, with the headers of a CPython from Maven Central.
tools/try_wheels.py tests the result.

Not built: CPython 3.13 for aarch64, because its headers are not published there. pip builds the source
distribution instead."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fetch_jars import JARS, PYTHONS, ROOT, FetchError, fetch

GLIBC = "2.28"
CACHE = ROOT / ".cache" / "wheels"
DIST = ROOT / "dist"
NATIVE = Path("kafkad/_native")
MAVEN_MACHINES = {"x86_64": "linux-x86_64", "aarch64": "linux-arm64"}
FLAGS = [
    "-O2", "-g0", "-fno-strict-aliasing", "-fwrapv", "-fPIC", "-fno-sanitize=undefined", "-DNDEBUG",
    "-D_GNU_SOURCE=1", "-w",
]  # fmt: skip


@dataclass(frozen=True)
class Target:
    minor: str  # "3.12"
    machine: str  # "x86_64"

    def __str__(self) -> str:
        return f"{self.minor}-{self.machine}"

    @property
    def tag(self) -> str:
        return "cp" + self.minor.replace(".", "")

    @property
    def platform(self) -> str:
        return f"manylinux_{GLIBC.replace('.', '_')}_{self.machine}"

    @property
    def suffix(self) -> str:
        return f".cpython-{self.tag[2:]}-{self.machine}-linux-gnu.so"


def targets() -> list[Target]:
    """Return every target with available headers; this interpreter has its own."""
    found = {
        Target(minor, machine)
        for machine, maven in MAVEN_MACHINES.items()
        for minor in PYTHONS[maven]
    }  # fmt: skip
    found.add(Target(f"{sys.version_info[0]}.{sys.version_info[1]}", os.uname().machine))
    return sorted(found, key=lambda t: (t.machine != "x86_64", t.minor))


def python_home(target: Target) -> Path:
    """Return the directory of an unpacked CPython for the target (bin/, include/, lib/). Fetch it once."""
    maven = MAVEN_MACHINES[target.machine]
    home = CACHE / f"python-{target}"
    inside = home / "org" / "bytedeco" / "cpython" / maven
    if not (home / ".complete").exists():
        fetch(f"python-{target.minor}-{maven}")
        shutil.rmtree(home, ignore_errors=True)
        (jar,) = (JARS / f"python-{target.minor}-{maven}").glob("*.jar")
        with zipfile.ZipFile(jar) as archive:
            archive.extractall(home)
        for program in (inside / "bin").iterdir():
            program.chmod(0o755)
        (home / ".complete").touch()
    return inside


def headers(target: Target) -> Path:
    if target.machine == os.uname().machine and target.minor == sysconfig.get_python_version():
        return Path(sysconfig.get_paths()["include"])
    return python_home(target) / "include" / f"python{target.minor}"


def run(command: list[str], **options) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}\nfailed")


def translate() -> list[Path]:
    """Return the C file of each extension; translate those whose sources are newer."""
    run([sys.executable, "setup.py", "--quiet", "--help"])  # setup.py translates before it does anything else
    return sorted(path.with_suffix(".c").relative_to(ROOT) for path in (ROOT / NATIVE).glob("*/*.pyx"))


def compile_all(target: Target, sources: list[Path], into: Path) -> None:
    include = headers(target)
    environment = {
        **os.environ,
        "ZIG_GLOBAL_CACHE_DIR": str(CACHE / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(CACHE / "zig"),
    }

    rooms = [f"-I{folder}" for folder in sorted({source.parent for source in sources})]

    def compile_one(source: Path) -> None:
        run(
            [
                sys.executable, "-m", "ziglang", "cc", "-target", f"{target.machine}-linux-gnu.{GLIBC}",
                *FLAGS,
                f"-I{include}", *rooms, "-shared", "-s", str(source), "-o",
                str(into / source.parent.name / (source.stem + target.suffix)), "-lpthread", "-lm",
            ],
            env=environment,
        )  # fmt: skip

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sources))


def plain_wheel(directory: Path) -> Path:
    """Build the wheel without extensions, and return its unpacked directory."""
    run(
        [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(directory)],
        env={**os.environ, "KAFKAD_ONLY": "none"},
    )
    (wheel,) = directory.glob("*.whl")
    run([sys.executable, "-m", "wheel", "unpack", "--dest", str(directory), str(wheel)])
    wheel.unlink()
    (unpacked,) = directory.iterdir()
    return unpacked


def pack(unpacked: Path, target: Target, directory: Path) -> Path:
    """Write a wheel with its tags and its RECORD."""
    (about,) = unpacked.glob("*.dist-info/WHEEL")
    lines = [
        line
        for line in about.read_text().splitlines()
        if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))
    ]
    lines += ["Root-Is-Purelib: false", f"Tag: {target.tag}-{target.tag}-{target.platform}"]
    about.write_text("\n".join(lines) + "\n")
    run([sys.executable, "-m", "wheel", "pack", "--dest-dir", str(directory), str(unpacked)])
    (wheel,) = directory.glob(f"*-{target.tag}-{target.tag}-{target.platform}.whl")
    return wheel


def build_wheel(target: Target, sources: list[Path]) -> Path:
    work = CACHE / f"build-{target}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    unpacked = plain_wheel(work)
    for stale in unpacked.rglob("*.so"):  # from the source tree
        stale.unlink()
    compile_all(target, sources, unpacked / NATIVE)
    wheel = pack(unpacked, target, DIST)
    shutil.rmtree(work)
    return wheel


def build_sdist() -> Path:
    run([sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(DIST)])
    return max(DIST.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help=f"some of: {', '.join(map(str, targets()))}")
    options = parser.parse_args()
    wanted = set(options.only.replace(",", " ").split())
    if unknown := wanted - set(map(str, targets())):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(map(str, targets()))}")
    DIST.mkdir(exist_ok=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        print(f"{build_sdist().relative_to(ROOT)}", flush=True)
        sources = translate()
        chosen = [target for target in targets() if not wanted or str(target) in wanted]
        for number, target in enumerate(chosen, start=1):
            print(f"[{number}/{len(chosen)}] {target} ...", end=" ", flush=True)
            wheel = build_wheel(target, sources)
            print(f"{wheel.relative_to(ROOT)}, {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    except FetchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
