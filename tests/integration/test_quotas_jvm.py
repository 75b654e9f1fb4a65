"""Client quotas beside JVM Kafka: the same requests get the same answers, Kafka's own tool and ours say the
same, and the same load without mercy gets through at the same rate."""

import json
import math
import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

from kafkad.protocol import messages
from kafkad.testing import Broker
from tests.integration.test_quotas import FETCH, PRODUCE, QUICK, Named, achieved, alter, produce_once
from tests.jvm import NEWEST, JvmKafka, run_tool
from tests.wire import Wire, create_topic

pytestmark = pytest.mark.java

ENTRY = messages.AlterClientQuotasRequest.Entries
FILTER = messages.DescribeClientQuotasRequest.Components
ANNA, C = ("user", "anna"), ("client-id", "c")
RATES = ((PRODUCE, 1000.0), (FETCH, 2000.0))
ADDRESS, CREATION, PERCENT = ("ip", "10.0.0.1"), "connection_creation_rate", "request_percentage"


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    with Broker(config=QUICK) as ours, JvmKafka(tmp_path_factory.mktemp("jvm") / "data", config=QUICK) as jvm:
        for side in (ours, jvm):
            with Wire(side.bootstrap) as wire:
                create_topic(wire, "t", 4)
        yield ours, jvm


def entry(*entity, ops=RATES, gone=()):
    return ENTRY(
        entity=[ENTRY.Entity(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[ENTRY.Ops(key=key, value=value, remove=False) for key, value in ops]
        + [ENTRY.Ops(key=key, value=0.0, remove=True) for key in gone],
    )


def change(*entries, validate_only=False, version=1):
    return messages.AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only), version


def look(*components, strict=False, version=1):
    found = [FILTER(entity_type=kind, match_type=match, match=name) for kind, match, name in components]
    return messages.DescribeClientQuotasRequest(components=found, strict=strict), version


TRANSCRIPT = [
    change(entry(ANNA), version=0),
    change(entry(ANNA, C), entry(C), entry(("user", None)), entry(("client-id", None))),
    change(entry(("user", None), ("client-id", None)), entry(ANNA, ("client-id", None))),
    look(),
    look(version=0),
    look(strict=True),
    look(("user", 0, "anna")),
    look(("user", 0, "anna"), strict=True),
    look(("user", 1, None)),
    look(("user", 2, None), ("client-id", 2, None), strict=True),
    look(("user", 2, None), ("client-id", 0, "c")),
    look(("user", 0, None)),
    look(("user", 1, "x")),
    look(("user", 2, "x")),
    look(("user", 9, None)),
    look(("", 0, "x")),
    look(("group", 0, "x")),
    look(("user", 0, "x"), ("user", 0, "y")),
    look(("ip", 2, None), ("user", 2, None)),
    look(("ip", 2, None)),
    change(),
    change(entry()),
    change(entry(("user", ""))),
    change(entry(("group", "g"))),
    change(entry(("ip", "10.0.0.1"), ANNA)),
    change(entry(("ip", "10.0.0.1"), ops=[(PRODUCE, 1.0)])),
    change(entry(("ip", "in valid"))),
    change(entry(ANNA, ops=[("nobody.knows.this", 1.0)])),
    change(entry(ANNA, ops=[("connection_creation_rate", 1.0)])),
    change(entry(ADDRESS, ops=[(CREATION, 5.0)]), entry(("ip", None), ops=[(CREATION, 1e6)])),
    change(entry(("ip", "::1"), ops=[(CREATION, 1.5)]), entry(ADDRESS, ops=[(CREATION, 0.0)])),
    change(entry(ANNA, ops=[(PERCENT, 12.5)]), entry(("client-id", None), ops=[(PERCENT, 1000.0)])),
    change(entry(ANNA, ops=[(PERCENT, -1.0)]), entry(C, ops=[(PERCENT, 0.0)])),
    look(("ip", 2, None)),
    look(("ip", 0, "10.0.0.1"), strict=True),
    look(("user", 0, "anna")),
    change(entry(ADDRESS, ops=[], gone=[CREATION]), entry(("ip", None), ops=[], gone=[CREATION])),
    change(entry(("client-id", None), ops=[], gone=[PERCENT])),
    change(entry(ANNA, ops=[(PRODUCE, 0.0)])),
    change(entry(ANNA, ops=[(PRODUCE, -5.0)])),
    change(entry(ANNA, ops=[(PRODUCE, 1.5)])),
    change(entry(ANNA, ops=[(PRODUCE, 1.0000001)])),
    change(entry(ANNA, ops=[(PRODUCE, math.inf)])),
    change(entry(ANNA, ops=[(PRODUCE, 1e30)])),
    change(entry(ANNA, ops=[(PRODUCE, 1.0), (PRODUCE, 2.0)])),
    change(entry(ANNA, ops=[(PRODUCE, 3.0)]), entry(ANNA, ops=[(PRODUCE, 4.0)])),
    look(("user", 0, "anna"), strict=True),
    change(entry(ANNA, ops=[(PRODUCE, 77.0)]), validate_only=True),
    change(entry(ANNA, ops=[(PRODUCE, 88.0), (FETCH, -1.0)]), entry(C, ops=[(PRODUCE, 88.0)])),
    look(("user", 0, "anna")),
    change(entry(ANNA, ops=[], gone=[PRODUCE, "request_percentage", "nobody.knows.this"])),
    change(entry(ANNA, C, ops=[], gone=[PRODUCE, FETCH]), entry(("user", "nobody"), ops=[], gone=[PRODUCE])),
    look(),
    change(
        *(
            entry(*entity, ops=[], gone=[PRODUCE, FETCH])
            for entity in (
                [ANNA], [C], [("user", None)], [("client-id", None)],
                [("user", None), ("client-id", None)], [ANNA, ("client-id", None)],
            )
        )
    ),
    look(),
]  # fmt: skip


def plain(answer):
    """An answer without the order of what has none."""
    rows = [
        (
            sorted((part.entity_type, part.entity_name or "") for part in row.entity),
            getattr(row, "error_code", 0),
            getattr(row, "error_message", None),
            sorted((value.key, value.value) for value in getattr(row, "values", ())),
        )
        for row in answer.entries or ()
    ]
    whole = getattr(answer, "error_code", 0), getattr(answer, "error_message", None), answer.entries is None
    return whole, sorted(rows, key=str)


def test_every_request_gets_kafkas_answer(sides):
    different = []
    wires = [Wire(side.bootstrap) for side in sides]
    for request, version in TRANSCRIPT:
        ours, theirs = (plain(wire.ask(request, version)) for wire in wires)
        until = time.monotonic() + 5  # JVM Kafka answers a change before its broker knows it
        while ours != theirs and type(request) is type(look()[0]) and time.monotonic() < until:
            time.sleep(0.05)
            theirs = plain(wires[1].ask(request, version))
        if ours != theirs:
            different.append((request, ours, theirs))
    for wire in wires:
        wire.socket.close()
    assert not different, "\n".join(map(str, different))


def configs(bootstrap, *words):
    said = run_tool(NEWEST, "kafka-configs", "--bootstrap-server", bootstrap, *words)
    return sorted(line for line in said.lines if line.strip())


def own(bootstrap, *words, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "kafkad", "configs", "--bootstrap-server", bootstrap, *words],
        capture_output=True, timeout=30, env={**os.environ, "PYTHONWARNINGS": "error"}, text=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


BOTH = ("--entity-type", "users", "--entity-name", "anna", "--entity-type", "clients", "--entity-default")


def test_kafkas_tool_and_ours_set_and_show_the_same(sides):
    ours, jvm = sides
    for side in sides:
        own(side.bootstrap, "--alter", *BOTH, "--add-config", f"{PRODUCE}=1000,{FETCH}=2000")
        configs(side.bootstrap, "--alter", "--entity-type", "clients", "--entity-name", "c",
                "--add-config", f"{PRODUCE}=5000")  # fmt: skip
        own(
            side.bootstrap,
            "--alter",
            "--entity-type",
            "users",
            "--entity-default",
            "--add-config",
            f"{FETCH}=9",
        )
    for side in sides:
        configs(side.bootstrap, "--alter", "--entity-type", "ips", "--entity-name", "10.0.0.9",
                "--add-config", "connection_creation_rate=5")  # fmt: skip
    for words in (BOTH, ("--entity-type", "clients"), ("--entity-type", "users"), ("--entity-type", "ips")):
        assert configs(ours.bootstrap, "--describe", *words) == configs(jvm.bootstrap, "--describe", *words)
        assert own(ours.bootstrap, "--describe", *words) == own(jvm.bootstrap, "--describe", *words)
    rows = json.loads(own(ours.bootstrap, "--describe", "--json", "--entity-type", "clients"))
    assert rows == [{"user": None, "client_id": "c", "ip": None, "key": PRODUCE, "value": 5000.0}]
    for side in sides:
        own(side.bootstrap, "--alter", *BOTH, "--delete-config", f"{PRODUCE},{FETCH}")
        own(
            side.bootstrap,
            "--alter",
            "--entity-type",
            "clients",
            "--entity-name=c",
            "--delete-config",
            PRODUCE,
        )
        own(side.bootstrap, "--alter", "--entity-type", "users", "--entity-default", "--delete-config", FETCH)
        assert json.loads(own(side.bootstrap, "--describe", "--json", *BOTH)) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--describe", "--entity-type", "ips", "--entity-type", "users"), "only users and clients"),
        (("--describe", "--entity-type", "users", "--entity-name", "a", "--entity-default"), "belongs to an"),
        (("--alter", "--entity-type", "users", "--entity-type", "clients", "--entity-name", "a",
          "--add-config", "x=1"), "for each --entity-type"),
        (("--alter", "--entity-type", "clients", "--entity-name", "a", "--add-config", "x=fast"),
         "not a number"),
        (("--alter", "--entity-type", "clients", "--entity-name", "a", "--add-config",
          "SCRAM-SHA-256=[password=x]"), "SCRAM is for one user"),
        (("--alter", "--entity-type", "topics", "--entity-default", "--add-config", "x=1"), "is for brokers"),
    ],
)  # fmt: skip
def test_words_that_make_no_sense(sides, words, message):
    assert message in own(sides[0].bootstrap, *words, code=2)


@pytest.mark.soak
def test_the_same_load_gets_through_at_the_same_rate(sides, rounds):
    rates = {}
    for side in sides:
        with Wire(side.bootstrap) as wire:
            for partition in range(4):
                for _ in range(4):
                    produce_once(wire, partition=partition)
            for key in (PRODUCE, FETCH):
                assert alter(wire, key, 300_000.0, client="limited") == 0
        for key in (PRODUCE, FETCH):
            rates[side.kind, key] = achieved(
                side.bootstrap, key, connections=3, seconds=rounds(3, 30), client_id="limited"
            )
    for key in (PRODUCE, FETCH):
        assert rates["kafkad", key] == pytest.approx(rates["jvm", key], rel=rounds(40, 10) / 100), rates


def cpu_seconds(side) -> float:
    process = psutil.Process(side.pid)
    tree = [process, *process.children(recursive=True)]
    return sum(sum(each.cpu_times()[:2]) for each in tree)


def cpu_percent(side, seconds) -> float:
    """Of one CPU, by all of the broker."""
    before, began = cpu_seconds(side), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(side) - before) / (time.monotonic() - began) * 100


def held(side, limit, seconds, quiet, connections=4) -> float:
    """The percentage of a CPU that clients without mercy get, beyond what the broker takes when it is idle.
    They ask for large answers: what is small beside the limit are the turns of a loop around a request."""
    stop, troubles = threading.Event(), []

    def ask():
        try:
            with Named(side.bootstrap, "slow") as wire:
                while not stop.is_set():
                    wire.ask(messages.MetadataRequest(topics=None), 12)
        except Exception as trouble:
            troubles.append(trouble)

    threads = [threading.Thread(target=ask) for _ in range(connections)]
    with Wire(side.bootstrap) as wire:
        for thread in threads:
            thread.start()
        time.sleep(quiet)  # the JVM compiles
        assert alter(wire, PERCENT, limit, client="slow") == 0
        time.sleep(quiet)  # what was there before the limit is paid for
        used = cpu_percent(side, seconds)
        assert alter(wire, PERCENT, None, client="slow") == 0
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not troubles, troubles
    return used


@pytest.mark.soak_only
def test_request_time_is_held_within_a_tenth(sides):
    """By the CPU time of the whole broker, beside Kafka's under the same load. Kafka counts the wall clock of
    its threads: where others have the cores, too, its clients get less than the limit."""
    limit, seconds, quiet = 20.0, 30, 6
    used = {}
    for side in sides:
        with Wire(side.bootstrap) as wire:
            create_topic(wire, "wide", 400)
        idle = cpu_percent(side, quiet)
        used[side.kind] = held(side, limit, seconds, quiet) - idle
    print(f"of {limit} percent: {used}")
    assert used["kafkad"] == pytest.approx(limit, rel=0.1), used
    assert used["jvm"] < 2 * limit, used  # it compiles and collects besides
