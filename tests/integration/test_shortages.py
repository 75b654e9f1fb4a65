"""A broker in a shortage: a start says in one line what it lacks, and the next one finds everything."""

import os
import subprocess
import sys

import pytest

from kafkad.protocol import errors, messages
from kafkad.testing import Broker
from tests.api_calls import ready_transactions
from tests.clients import wait_until
from tests.shortages import FILES, FORK, GROW, MAP, NAME, OPEN, THREAD, WRITE, Shortages
from tests.wire import Wire, batch, create_topic, high_watermark, produce

TOPIC = "kept"
CASES = [
    *((kind, 1.0, "1") for kind in (OPEN, WRITE, NAME, GROW, MAP, THREAD)),
    (FILES, 0.05, "1"),
    *((kind, 1.0, "2") for kind in (WRITE, THREAD, FORK)),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data directory with one record, and the switch of what is started in it."""
    root = tmp_path_factory.mktemp("shortages")
    with Broker(data_dir=root / "data") as broker, Wire(broker.bootstrap) as wire:
        create_topic(wire, TOPIC)
        assert produce(wire, TOPIC, bytes(batch(b"x"))).error_code == 0
    return root / "data", Shortages(root / "control")


@pytest.mark.parametrize(("kind", "chance", "workers"), CASES)
def test_a_start_in_a_shortage_ends_with_one_message(data, kind, chance, workers):
    """REVIEW D11: ENOSPC in quorum-state was a traceback. HUNTS W7: so was a thread that was refused."""
    directory, switch = data
    command = [sys.executable, "-m", "kafkad", "serve", "--data-dir", str(directory),
               "--listen", "127.0.0.1:0", "--workers", workers]  # fmt: skip
    switch.begin(chance, kind, seed=7)
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **switch.environment(directory)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        switch.end()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr, done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("kafkad: ")]
    assert len(line) > len("kafkad: ")


def test_starts_that_failed_have_lost_nothing(data):
    directory, _ = data
    with Broker(data_dir=directory) as broker, Wire(broker.bootstrap) as wire:
        assert high_watermark(wire, TOPIC) == 1
        assert produce(wire, TOPIC, bytes(batch(b"y"))).base_offset == 1


def test_a_full_disk_is_told_to_the_client_and_in_the_log(tmp_path):
    """HUNTS U2: there was no line in the log, and no errno in a message."""
    switch = Shortages(tmp_path / "control")
    data = tmp_path / "data"
    asked = messages.CreateTopicsRequest.Topics(name="more", num_partitions=1, replication_factor=1)
    creation = messages.CreateTopicsRequest(topics=[asked], timeout_ms=10_000)
    with Broker(data_dir=data, env=switch.environment(data)) as broker, Wire(broker.bootstrap) as wire:
        create_topic(wire, TOPIC)
        assert produce(wire, TOPIC, bytes(batch(b"x"))).error_code == 0
        switch.begin(1.0, WRITE, seed=7)
        codes = {produce(wire, TOPIC, bytes(batch(b"y"))).error_code for _ in range(50)}
        answer = wire.ask(creation, 7).topics[0]
        switch.end()
        assert codes == {56}
        assert answer.error_code == 56
        assert "no space left on device" in answer.error_message or "out of memory" in answer.error_message
        errors = [line for line in broker.log.splitlines() if "ERROR" in line]
        assert 1 <= len(errors) <= 4  # one for each errno and directory, not one for each request
        assert all(str(data) in line and ("ENOSPC" in line or "ENOMEM" in line) for line in errors)
        assert any(f"{TOPIC}-0" in line for line in errors)
        assert produce(wire, TOPIC, bytes(batch(b"y"))).base_offset == 1
        assert wire.ask(creation, 7).topics[0].error_code == 0


def test_transactions_whose_ends_could_not_be_written_at_first_end(tmp_path):
    """The end was given up once its markers were written, and the id was not served before a restart."""
    switch = Shortages(tmp_path / "control")
    data = tmp_path / "data"
    ids = [f"id-{number}" for number in range(20)]
    began = {}

    def init(name):
        return wire.ask(
            messages.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000), 4
        )

    def end(name):
        producer_id, epoch = began[name]
        request = messages.EndTxnRequest(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True
        )
        return wire.ask(request, 3).error_code

    with Broker(data_dir=data, env=switch.environment(data)) as broker, Wire(broker.bootstrap) as wire:
        create_topic(wire, TOPIC)
        for name in ids:
            ready_transactions(wire, name)
            who = init(name)
            began[name] = who.producer_id, who.producer_epoch
            cls = messages.AddPartitionsToTxnRequest
            added = wire.ask(
                cls(
                    v3_and_below_transactional_id=name,
                    v3_and_below_producer_id=who.producer_id,
                    v3_and_below_producer_epoch=who.producer_epoch,
                    v3_and_below_topics=[cls.V3AndBelowTopics(name=TOPIC, partitions=[0])],
                ),
                3,
            )
            (topic,) = added.results_by_topic_v3_and_below
            assert topic.results_by_partition[0].partition_error_code == 0
        switch.begin(0.5, WRITE, seed=7)
        for name in ids:
            wait_until(lambda name=name: end(name) == errors.NONE, 60)
        switch.end()
        for name in ids:
            wait_until(lambda name=name: init(name).error_code == errors.NONE, 60)
