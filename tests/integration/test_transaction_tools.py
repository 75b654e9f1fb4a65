"""Tools that read what transactions leave: dump-log of `__transaction_state`, consume at both levels."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafkad.testing import Broker
from tests.clients import WAIT_S
from tests.integration.test_cli import Cli
from tests.jvm import NEWEST, TEST_CONFIG, run_tool

ONE = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
SEGMENT = "0" * 20 + ".log"
ENDS = (True, False, True, False, False, True)  # committed


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Broker(data_dir=tmp_path_factory.mktemp("tools") / "data", config={**TEST_CONFIG, **ONE}) as broker:
        client = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tools"})
        client.init_transactions(WAIT_S)
        for number, committed in enumerate(ENDS):
            client.begin_transaction()
            for _ in range(3):
                client.produce("t", b"%d" % number, partition=0)
            client.flush(WAIT_S)
            (client.commit_transaction if committed else client.abort_transaction)(WAIT_S)
        del client
        yield broker


def values(broker, *options, until=("--until-end",)):
    printed = Cli(broker.bootstrap)("consume", "--topic", "t", "--from-beginning", *until, *options)
    return [int(line) for line in printed.split()]


def test_consume_at_both_levels(broker):
    written = [number for number in range(len(ENDS)) for _ in range(3)]
    committed = [number for number in written if ENDS[number]]
    assert values(broker) == values(broker, "--isolation-level", "read_uncommitted") == written
    assert values(broker, "--isolation-level", "read_committed") == committed
    assert values(broker, "--consumer-property", "isolation.level=read_committed") == committed
    some = ("--max-messages", len(committed))
    assert values(broker, "--group", "g", "--isolation-level", "read_committed", until=some) == committed


def stopped(broker) -> Path:
    broker.stop()
    return Path(broker.data_dir)


def test_the_transaction_log_decoded(broker):
    file = stopped(broker) / "__transaction_state-0" / SEGMENT
    rows = Cli()("dump-log", "--files", file, "--transaction-log-decoder", "--json")
    records = [row for row in map(json.loads, rows.splitlines()) if row["kind"] == "record"]
    assert {row["key"]["data"]["transactionalId"] for row in records} == {"tools"}
    states = [row["payload"]["data"]["transactionStatus"] for row in records]
    assert states == [0] + [state for committed in ENDS for state in ((1, 2, 4) if committed else (1, 3, 5))]
    assert records[1]["payload"]["data"]["transactionPartitions"] == [{"topic": "t", "partitionIds": [0]}]


@pytest.mark.java
def test_dump_log_prints_what_kafkas_tool_prints(broker):
    """Records of transactions with tagged fields, markers, and commits of a group."""
    directory = stopped(broker)
    for name, decoder in (
        ("__transaction_state-0", "--transaction-log-decoder"),
        ("__consumer_offsets-0", "--offsets-decoder"),
        ("t-0", "--print-data-log"),
    ):
        file = directory / name / SEGMENT
        theirs = run_tool(NEWEST, "kafka-dump-log", "--files", str(file), decoder).lines
        assert Cli()("dump-log", "--files", file, decoder).splitlines() == theirs
