"""A KDC of MIT Kerberos for the tests, on a free port of 127.0.0.1, with its own krb5.conf and database.

    with Kdc(directory) as kdc:
        kdc.keytab("kafka/127.0.0.1")       a file with the key of a new principal
        kdc.environment                     for whoever takes part: KRB5_CONFIG

Debian's krb5-kdc and krb5-user have what it starts; tools/ensure_kerberos.py sees to them."""

import os
import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType

from tests.clients import wait_until
from tests.jvm import die_with_parent, free_port

REALM = "KAFKAD.TEST"


def program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    assert found, f"{name} is missing: python tools/ensure_kerberos.py"
    return found


class Kdc:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.config = directory / "krb5.conf"
        self.environment = {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            "KRB5RCACHEDIR": str(directory),
            "KRB5CCNAME": f"FILE:{directory / 'nobody.cache'}",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Kdc":
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self.port}\n }}\n"
        )
        (self.directory / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {self.directory / 'principal'}\n"
            f"  key_stash_file = {self.directory / 'stash'}\n  acl_file = {self.directory / 'acl'}\n }}\n"
        )
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self._process = subprocess.Popen(
            [program("krb5kdc"), "-n", "-r", REALM],
            env={**os.environ, **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        wait_until(self._answers)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError:
            return False
        return True

    def _run(self, name: str, *arguments: str, **more: str) -> str:
        done = subprocess.run(
            [program(name), *arguments],
            env={**os.environ, **self.environment, **more},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"
        return done.stdout

    def keytab(self, principal: str) -> Path:
        """Of a principal with a new key; an older keytab of it is worth nothing then."""
        path = self.directory / f"{principal.replace('/', '.')}.keytab"
        path.unlink(missing_ok=True)
        if principal not in self._run("kadmin.local", "-r", REALM, "list_principals").replace("@", "\n"):
            self._run("kadmin.local", "-r", REALM, "addprinc", "-randkey", principal)
        self._run("kadmin.local", "-r", REALM, "ktadd", "-k", str(path), principal)
        return path

    def ticket(self, principal: str, lifetime: str = "1h") -> str:
        """A cache with a ticket of a principal that has a keytab."""
        cache = f"FILE:{self.directory / principal.replace('/', '.')}.cache"
        keytab = self.directory / f"{principal.replace('/', '.')}.keytab"
        self._run("kinit", "-l", lifetime, "-k", "-t", str(keytab), "-c", cache, principal)
        return cache
