"""TLS and logins: the same loads over TLS 1.3, with the same certificate and cipher suite on each broker;
those who connect and log in again and again, and what others notice; idle TLS connections; what ACLs cost.

The load generator has to encrypt, too, and shares the cores with the broker. So beside MB/s the broker's CPU
seconds per GB count."""

import hashlib
import hmac
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import produce, scenarios
from bench.bounds import FLOODS, FLOODS_ALONE, HANDSHAKES, MANY_ACLS, NO_ACLS, TLS_IDLE
from bench.brokers import Jvm, Kafkad, Process, ask, free_port
from bench.drive import FETCH_TOPIC, fill, run_fetch
from bench.native import idle_connections, login_command, logins
from bench.running import Bench, Cell
from kafkad.protocol import messages

PROTOCOLS = ("SSL", "SASL_SSL")  # beside PLAINTEXT, for administration
MAP = "PLAINTEXT:PLAINTEXT," + ",".join(f"{name}:{name}" for name in PROTOCOLS)
USER, SECRET, SALT, ITERATIONS = "anna", "anna-secret", b"pepper", 4096
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
HANDSHAKES_PER_S, LOGINS_PER_S = 1000, 500
UNDER_WAY = 64  # clients that log in at the same time
WRONG_UNDER_WAY = 500  # each is told so after 100 ms
FLOOD_MORE_SECONDS = 0.5  # in which the topic of the others is made
# A flood comes from other machines. Here its client takes a core's time that the others' client needs, too.
UNHURRIED = ("nice", "-n", "19")
IDLE_SECONDS = 1.0
ACLS_PER_REQUEST = 200
TOPIC, ALLOW, DESCRIBE_AND_ALL, LITERAL, PREFIXED = 2, 3, 2, 3, 4


class Secured(Process):
    """A broker with the listeners of PROTOCOLS, too."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ports = {name: free_port() for name in PROTOCOLS}

    def listeners(self) -> str:
        more = "".join(f",{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        return f"PLAINTEXT://127.0.0.1:{self.port}{more}"


class SecuredKafkad(Secured, Kafkad):
    def command(self) -> list[str]:
        command = super().command()
        place = command.index("--listen")
        command[place : place + 2] = ["--override", f"listeners={self.listeners()}"]
        return command


class SecuredJvm(Secured, Jvm):
    def properties(self) -> Path:
        path = super().properties()
        text = path.read_text()
        (controller,) = (
            part.strip()
            for line in text.splitlines()
            if line.startswith("listeners=")
            for part in line.split(",")
            if part.startswith("CONTROLLER://")
        )
        text += f"listeners={self.listeners()},{controller}\nadvertised.listeners={self.listeners()}\n"
        path.write_text(text)
        return path


def certified(directory: Path) -> dict[str, str]:
    """The keys of a certificate that `kafkad certs` makes (ECDSA, P-256), and of both ways to log in."""
    if not directory.exists():
        subprocess.run(
            [sys.executable, "-m", "kafkad", "certs", str(directory)], check=True, capture_output=True
        )
    lines = (directory / "broker.properties").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    jaas = f'{PLAIN} username="{USER}" password="{SECRET}" user_{USER}="{SECRET}";'
    return {
        **found,
        "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{MAP}",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{SCRAM};",
    }


@contextmanager
def secured_fleet(bench: Bench, directory: Path, *, warm: bool = True) -> Iterator[list[Process]]:
    bench.stop_main_fleet()
    overrides = certified(bench.where / "certs")
    kinds = (SecuredKafkad, SecuredJvm)
    with bench.fleet(directory, overrides, warm=warm, kinds=kinds) as brokers:
        yield brokers


def over_tls(broker: Process) -> dict[str, Any]:
    """For the load generator."""
    assert isinstance(broker, Secured)
    return {"port": broker.ports["SSL"], "tls": 1}


# -- the same loads over TLS -------------------------------------------------------------------------------


def run_group(bench: Bench) -> None:
    names = [row.name for row in scenarios.TLS_FETCH] + [row.name for row in scenarios.TLS_PRODUCE]
    if not any(bench.wanted(name) for name in (*names, HANDSHAKES)):
        return
    with secured_fleet(bench, bench.where / "tls") as brokers:
        for broker in brokers:
            fill(broker, FETCH_TOPIC, scenarios.FETCH[0].partitions, bench.options.fetch_mb)
        for _ in range(bench.options.warm):
            for broker in brokers:
                if isinstance(broker, Jvm):
                    bench.say(f"warming {broker.name} over TLS")
                    for cell in all_cells(bench, broker):
                        cell.run()
        by_broker = [all_cells(bench, broker) for broker in brokers]
        for cells in zip(*by_broker, strict=True):
            bench.rounds("tls", cells)


def all_cells(bench: Bench, broker: Process) -> list[Cell]:
    def fetch(row: scenarios.Fetch) -> Cell:
        seconds, more = bench.options.seconds, over_tls(broker)
        return Cell(row.name, broker, lambda: run_fetch(broker, row, FETCH_TOPIC, seconds=seconds, **more))

    def produced(row: scenarios.Produce) -> Cell:
        return produce.cell(bench, row, broker, **over_tls(broker))

    return [
        *map(fetch, scenarios.TLS_FETCH),
        *map(produced, scenarios.TLS_PRODUCE),
        Cell(HANDSHAKES, broker, lambda: shaken(bench, broker)),
    ]


def shaken(bench: Bench, broker: Process) -> dict[str, float]:
    """New connections, as fast as they go; each is greeted once, and left."""
    before = broker.cpu_seconds()
    told = logins(**over_tls(broker), connections=UNDER_WAY, seconds=bench.options.seconds)
    if told["refused"]:
        raise RuntimeError(f"{told['refused']} handshakes failed")
    return {
        "handshakes/s": told["requests"] / told["seconds"],
        "CPU us/handshake": (broker.cpu_seconds() - before) / told["requests"] * 1e6,
        "p99 ms": told["p99_us"] / 1000,
    }


# -- floods, and what the others notice --------------------------------------------------------------------


def create_user(broker: Process) -> None:
    salted = hashlib.pbkdf2_hmac("sha256", SECRET.encode(), SALT, ITERATIONS)
    upsertion = messages.AlterUserScramCredentialsRequest.Upsertions(
        name=USER, mechanism=1, iterations=ITERATIONS, salt=SALT, salted_password=salted
    )
    request = messages.AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])
    answer = ask(broker.port, request, 0)
    assert answer.results[0].error_code == 0, answer


def flood_of(broker: Process, kind: str) -> dict[str, Any]:
    """The options of logins.c."""
    assert isinstance(broker, Secured)
    port = broker.ports["SSL" if kind == "handshakes" else "SASL_SSL"]
    options: dict[str, Any] = {"port": port, "tls": 1, "connections": UNDER_WAY, "rate": LOGINS_PER_S}
    if kind == "handshakes":
        return {**options, "rate": HANDSHAKES_PER_S}
    if kind == "refused":
        wrong = {"mechanism": "PLAIN", "user": USER, "password": "wrong"}
        return {**options, **wrong, "connections": WRONG_UNDER_WAY}
    options |= {"mechanism": kind, "user": USER}
    if kind == "PLAIN":
        return {**options, "password": SECRET}
    salted = hashlib.pbkdf2_hmac("sha256", SECRET.encode(), SALT, ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return {
        **options,
        "client_key": client_key.hex(),
        "stored_key": hashlib.sha256(client_key).hexdigest(),
    }


def run_floods(bench: Bench) -> None:
    """The load is held, and light, so that its latencies tell of waits and not of a full machine."""
    if not any(bench.wanted(name) for name in (FLOODS_ALONE, *FLOODS.values())):
        return
    row = scenarios.BESIDE_FLOODS
    with secured_fleet(bench, bench.where / "floods") as brokers:
        for broker in brokers:
            create_user(broker)

        def beside(broker: Process, kind: str) -> dict[str, float]:
            seconds = bench.options.seconds * produce.LOW_TIMES + FLOOD_MORE_SECONDS
            command = login_command({**flood_of(broker, kind), "seconds": seconds})
            flood = subprocess.Popen(
                [*UNHURRIED, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            try:
                figures = alone(broker).run()
                said, trouble = flood.communicate(timeout=120)
            finally:
                flood.kill()
                flood.wait()
            if flood.returncode:
                raise RuntimeError(trouble.strip())
            told = json.loads(said)
            if (told["refused"] < told["requests"]) if kind == "refused" else told["refused"]:
                raise RuntimeError(f"{told['refused']} of {told['requests']} logins were refused")
            return {
                **{name: figures[name] for name in ("p50 ms", "p99 ms", "p99.9 ms", "MB/s")},
                "logins/s": told["requests"] / told["seconds"],
                "login p99 ms": told["p99_us"] / 1000,
            }

        def cell(broker: Process, kind: str) -> Cell:
            return Cell(FLOODS[kind], broker, lambda: beside(broker, kind))

        def alone(broker: Process) -> Cell:
            return produce.cell(bench, row, broker, FLOODS_ALONE, **over_tls(broker))

        for broker in brokers:
            if isinstance(broker, Jvm):
                for _ in range(bench.options.warm):
                    bench.say(f"warming {broker.name} with logins")
                    for kind in FLOODS:
                        beside(broker, kind)
        bench.rounds("login floods", [alone(broker) for broker in brokers])
        for kind in FLOODS:
            bench.rounds("login floods", [cell(broker, kind) for broker in brokers])


# -- idle connections --------------------------------------------------------------------------------------


def run_idle(bench: Bench) -> None:
    if not bench.wanted(TLS_IDLE):
        return
    count = bench.options.tls_connections
    with secured_fleet(bench, bench.plain / "tls-idle", warm=False) as brokers:

        def cell(broker: Process) -> Cell:
            def run() -> dict[str, float]:
                broker.stop()
                broker.start()
                time.sleep(IDLE_SECONDS)
                before = broker.pss_bytes()
                assert isinstance(broker, Secured)
                with idle_connections(broker.ports["SSL"], count, tls=1):
                    time.sleep(IDLE_SECONDS)
                    memory = broker.pss_bytes()
                return {"PSS MB": memory / 1e6, "KB/connection": (memory - before) / 1024 / count}

            return Cell(TLS_IDLE, broker, run)

        bench.rounds("tls idle", [cell(broker) for broker in brokers])


# -- ACLs --------------------------------------------------------------------------------------------------


def create_acls(broker: Process, count: int) -> None:
    """Everybody may use every topic; and many rows about others, names and prefixes that are near."""
    struct = messages.CreateAclsRequest.Creations

    def row(name: str, pattern: int, principal: str) -> Any:
        return struct(
            resource_type=TOPIC, resource_name=name, resource_pattern_type=pattern, principal=principal,
            host="*", operation=DESCRIBE_AND_ALL, permission_type=ALLOW,
        )  # fmt: skip

    rows = [row("*", LITERAL, "User:ANONYMOUS")]
    rows += [
        row(f"run-{number}", PREFIXED if number % 2 else LITERAL, f"User:user-{number % 50}")
        for number in range(count - 1)
    ]
    for place in range(0, len(rows), ACLS_PER_REQUEST):
        request = messages.CreateAclsRequest(creations=rows[place : place + ACLS_PER_REQUEST])
        answer = ask(broker.port, request, 2)
        assert not any(result.error_code for result in answer.results), answer.results[0]


def run_acls(bench: Bench) -> None:
    """The same load on two brokers in turns, of which one asks its authorizer about each topic."""
    if not (bench.wanted(NO_ACLS) or bench.wanted(MANY_ACLS)):
        return
    bench.stop_main_fleet()
    row = scenarios.ACLS
    given = {"authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    with (
        bench.fleet(bench.where / "no-acls") as free,
        bench.fleet(bench.where / "acls", given) as asking,
    ):
        for broker in asking:
            create_acls(broker, bench.options.acls)

        def cells(scenario: str, brokers: Sequence[Process]) -> list[Cell]:
            return [produce.cell(bench, row, broker, scenario) for broker in brokers]

        bench.rounds("acls", [*cells(NO_ACLS, free), *cells(MANY_ACLS, asking)])
