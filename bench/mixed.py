"""Producers and consumers at once: tail reads, a backlog, the OpenMessaging shapes, real clients; and
retention during a produce load.
"""

import time
from contextlib import nullcontext, suppress

from bench import scenarios
from bench.brokers import Bare, Process
from bench.clients import LOADS
from bench.drive import run_client, run_mixed, run_produce
from bench.running import SETTLE_SECONDS, Bench, Cell
from bench.scenarios import Mixed

GROUPS = {"mixed": scenarios.MIXED, "openmessaging": scenarios.OPEN_MESSAGING}

RETENTION = "produce 64 KB while retention deletes"
RETENTION_BYTES = 32 << 20  # of a partition
RETENTION_SEGMENT = 8 << 20
RETENTION_CHECK_MS = 500

# while a client writes, touched memory is set free at this rate, times bench.memory's margin, for so long
CLIENT_MB_S = 450
CLIENT_SECONDS = 6


def run_group(bench: Bench, group: str) -> None:
    rows = [row for row in GROUPS[group] if bench.wanted(row.name)]
    if not rows:
        return
    brokers = [b for b in bench.main_fleet() if not isinstance(b, Bare)]
    for row in rows:
        bench.rounds(group, [cell(bench, row, broker) for broker in brokers])


def cell(bench: Bench, row: Mixed, broker: Process) -> Cell:
    def run() -> dict[str, float]:
        options = bench.options
        with bench.touched():
            figures = run_mixed(broker, row, bench.topic(), seconds=options.seconds, mb_max=options.mb_max)
        time.sleep(SETTLE_SECONDS)
        return figures

    return Cell(row.name, broker, run)


def clients(bench: Bench) -> None:
    """The Java client and librdkafka: they take most of the box, so the broker's CPU says more than MB/s."""
    if not bench.options.clients or not any(bench.wanted(name) for name in LOADS):
        return
    brokers = [b for b in bench.main_fleet() if not isinstance(b, Bare)]
    topic = bench.topic("clients")

    def use(name: str, broker: Process) -> Cell:
        def run() -> dict[str, float]:
            with bench.touched(CLIENT_MB_S, CLIENT_SECONDS) if "produce" in name else nullcontext():
                return run_client(broker, name, topic, bench.options.client_records)

        return Cell(name, broker, run)

    for broker in brokers:
        broker.create_topic(topic, 4)
    cells = [use(name, broker) for name in LOADS for broker in brokers]
    bench.rounds("clients", cells, rounds=max(1, bench.options.rounds // 2))
    for broker in brokers:
        broker.delete_topic(topic)


def retention(bench: Bench) -> None:
    """Small segments, a small retention.bytes, looked at twice a second: what stays says that it is kept."""
    if not bench.wanted(RETENTION):
        return
    bench.stop_main_fleet()
    row = scenarios.PRODUCE[0]
    configs = {"retention.bytes": str(RETENTION_BYTES), "segment.bytes": str(RETENTION_SEGMENT)}
    configs["file.delete.delay.ms"] = "500"
    overrides = {"log.retention.check.interval.ms": str(RETENTION_CHECK_MS)}
    with bench.fleet(bench.where / "retention", overrides) as brokers:

        def cell(broker: Process) -> Cell:
            def run() -> dict[str, float]:
                topic = bench.topic()
                options = bench.options
                figures = run_produce(
                    broker,
                    row,
                    topic,
                    seconds=options.seconds * 2,
                    mb_max=options.mb_max * 2,
                    touched=bench.touched,
                    configs=configs,
                    before_delete=lambda: kept(broker, topic),
                )
                return figures

            return Cell(RETENTION, broker, run)

        bench.rounds("retention", [cell(broker) for broker in brokers])


def kept(broker: Process, topic: str) -> dict[str, float]:
    """What is left of a topic two looks of the retention later."""
    time.sleep(RETENTION_CHECK_MS * 3 / 1000 + SETTLE_SECONDS)
    size = 0
    for path in broker.directory.glob(f"{topic}-*/*.log"):
        with suppress(FileNotFoundError):  # deleted meanwhile
            size += path.stat().st_size
    return {"kept MB": size / 1e6}
