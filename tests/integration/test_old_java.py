"""The Scala and Java clients of Kafka 0.8.2, 0.9.0 and 0.10.2 themselves, by the tools of their releases."""

import subprocess
from collections.abc import Iterator

import pytest

from kafkad.protocol import messages
from kafkad.protocol.records import read_batches
from kafkad.testing import Broker
from tests.jvm import FAST_JVM, die_with_parent, jars, java
from tests.wire import Wire, batch, create_topic, produce

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

VERSIONS = ["0.8.2.2", "0.9.0.1", "0.10.2.2"]
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3}
LINES = [f"line {number} " + "x" * (number % 90) for number in range(200)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}, workers=2) as broker:
        yield broker


def run(version: str, tool: str, *arguments: object, stdin: str | None = None) -> list[str]:
    """The lines that a tool writes to stdout."""
    done = subprocess.run(
        [java(), *FAST_JVM, "-Xmx256m", "-cp", jars(version), f"kafka.tools.{tool}", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=die_with_parent,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def stored(broker: Broker, topic: str) -> list[tuple[int, str]]:
    """(codec, value) of each record, as a client of today reads it."""
    cls = messages.FetchRequest
    part = cls.Topics.Partitions(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    asked = cls(max_wait_ms=0, max_bytes=1 << 20, topics=[cls.Topics(topic=topic, partitions=[part])])
    with Wire(broker.bootstrap) as wire:
        data = wire.ask(asked, 4).responses[0].partitions[0].records
    return [(each.compression, r.value.decode()) for each in read_batches(data) for r in each.records()]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_console_producer(broker: Broker, version: str) -> None:
    for name, codec in CODECS.items():
        topic = f"produced-{version}-{name}"
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, topic)
        extra = ["--compression-codec", name] if codec else []
        tool = ["ConsoleProducer", "--broker-list", broker.bootstrap, "--topic", topic, *extra]
        run(version, *tool, stdin="\n".join(LINES) + "\n")
        assert stored(broker, topic) == [(codec, line) for line in LINES]


def filled(broker: Broker, topic: str) -> None:
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, topic)
        for number in range(0, len(LINES), 10):
            rows = [line.encode() for line in LINES[number : number + 10]]
            packed = batch(*rows, compression=number // 10 % 4)
            assert produce(wire, topic, packed).error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_the_simple_consumer_and_offsets(broker: Broker, version: str) -> None:
    topic = f"simple-{version}"
    filled(broker, topic)
    for time, offset in ((-1, len(LINES)), (-2, 0)):
        asked = ["GetOffsetShell", "--broker-list", broker.bootstrap, "--topic", topic, "--time", time]
        assert run(version, *asked) == [f"{topic}:0:{offset}"]
    for begin, size in ((-2, 1 << 20), (55, 5_000)):
        said = run(
            version,
            *("SimpleConsumerShell", "--broker-list", broker.bootstrap, "--topic", topic, "--partition", 0),
            *("--offset", begin, "--fetchsize", size, "--no-wait-at-logend"),
        )
        got = [line for line in said if line.startswith("line ")]
        # a compressed message is given from its first record on
        assert got == LINES if begin < 0 else got == LINES[50:] or got == LINES[55:]


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_the_new_consumer(broker: Broker, version: str) -> None:
    topic = f"new-{version}"
    filled(broker, topic)
    said = run(
        version,
        *("ConsoleConsumer", "--new-consumer", "--bootstrap-server", broker.bootstrap, "--topic", topic),
        *("--from-beginning", "--max-messages", len(LINES)),
    )
    assert said == LINES
