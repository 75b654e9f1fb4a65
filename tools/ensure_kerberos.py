"""Make sure that the tests have Kerberos: a KDC, kinit, a librdkafka with GSSAPI (PyPI's has none; that of
Debian's kcat has), and the headers to build the Python package gssapi.

They are installed already, or this tool installs Debian's packages. If that is not possible, it prints a
message and exits with 1, and the Kerberos tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = {
    "krb5-config": "libkrb5-dev",
    "krb5kdc": "krb5-kdc",
    "kadmin.local": "krb5-admin-server",
    "kinit": "krb5-user",
    "kcat": "kcat",
}
PLUGIN = "libsasl2-modules-gssapi-mit"  # by which librdkafka's SASL library speaks GSSAPI
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


def missing() -> list[str]:
    packages = [package for program, package in PACKAGES.items() if not shutil.which(program, path=PATH)]
    if not [
        *Path("/usr").glob("lib*/sasl2/libgssapiv2.so"),
        *Path("/usr/lib").glob("*/sasl2/libgssapiv2.so"),
    ]:
        packages.append(PLUGIN)
    return packages


def install(packages: list[str]) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print(f"installing {', '.join(packages)}, which the tests of Kerberos need", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
    ):
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> int:
    if missing():
        install(missing())
    packages = " ".join(missing())
    if not packages:
        return 0
    print(
        "Kerberos is not installed, so its tests are skipped; to run them, install it"
        f" (Debian: apt-get install {packages}).",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
