"""No dynamic configuration ends the broker: a wrong one is refused before it is committed, and one that is in
the metadata log already is logged and left out (issue part 4)."""

import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kafkad.metadata.records import encode_record
from kafkad.protocol import messages
from kafkad.protocol.records import read_batches
from kafkad.raft.snapshots import data_batch
from kafkad.testing import Broker
from tests.clients import create_topic, wait_until

BAD = "nosuchhost.invalid:5"
KEY = "max.connections.per.ip.overrides"


def set_config(broker: Broker, kind: ResourceType, name: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    [future] = admin.incremental_alter_configs([resource]).values()
    future.result(30)


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "words"),
    [
        (ResourceType.BROKER, "1", KEY, BAD, "host nosuchhost.invalid has no address"),
        (ResourceType.BROKER, "1", "principal.builder.class", "a.B", "cannot load Java classes"),
        (ResourceType.BROKER, "1", "cordoned.log.dirs", "*", "log directory"),
        (ResourceType.BROKER, "1", "listener.name.plaintext.max.connections", "5", "all listeners alike"),
        (
            ResourceType.TOPIC,
            "orders",
            "remote.storage.enable",
            "true",
            "Tiered Storage",
        ),
    ],
)
def test_it_is_refused_by_name_before_it_is_committed(
    broker: Broker, kind: ResourceType, name: str, key: str, value: str, words: str
) -> None:
    with pytest.raises(KafkaException) as caught:
        set_config(broker, kind, name, key, value)
    assert caught.value.args[0].name() == "INVALID_CONFIG"
    assert words in caught.value.args[0].str()


@pytest.fixture(scope="module")
def broker() -> Broker:
    with Broker(workers=2) as started:
        create_topic(started, "orders")
        yield started
        create_topic(started, "after")  # HUNTS W1: this ended the other workers
        assert started.running


def test_a_directory_that_holds_bad_values_starts(tmp_path: Path) -> None:
    """HUNTS W1: every start failed with socket.gaierror, in each worker. The same for a topic's values."""
    with Broker(2, data_dir=tmp_path) as broker:
        create_topic(broker, "orders")
    record = messages.ConfigRecord
    add_records(
        tmp_path,
        record(resource_type=4, resource_name="", name=KEY, value=f"{BAD},127.0.0.1:3"),
        record(resource_type=4, resource_name="1", name="message.max.bytes", value="2000000"),
        record(resource_type=4, resource_name="1", name="principal.builder.class", value="a.B"),
        record(resource_type=2, resource_name="orders", name="compression.type", value="squash"),
        record(resource_type=2, resource_name="orders", name="segment.bytes", value="-7"),
    )
    with Broker(2, data_dir=tmp_path) as broker:
        wait_until(lambda: "nosuchhost.invalid:5 is left out" in broker.log)
        create_topic(broker, "after")
        assert "principal.builder.class is ignored" in broker.log
        assert "topic orders: compression.type=squash cannot be applied and is left out" in broker.log
        assert "topic orders: segment.bytes=-7 cannot be applied and is left out" in broker.log
        set_config(
            broker, ResourceType.BROKER, "1", "message.max.bytes", "3000000"
        )  # another key still changes
        assert broker.running


def add_records(data: Path, *records: object) -> None:
    """Appends to the metadata log of a broker that is down, without any validation."""
    segment = max((data / "__cluster_metadata-0").glob("*.log"))
    *_, last = read_batches(segment.read_bytes())
    batch = data_batch(
        [encode_record(record, 30) for record in records],
        base_offset=last.last_offset + 1,
        epoch=last.leader_epoch,
        now_ms=time.time_ns() // 1_000_000,
    )
    with open(segment, "ab") as file:
        file.write(batch)
