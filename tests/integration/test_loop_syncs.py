"""While a broker serves, no event loop waits for the disk (REVIEW D5): threads make every fsync and remove
every large file. The calls of a real broker are watched by tests/loop_syncs.c."""

import threading
import time

import pytest

from kafkad.protocol import messages
from kafkad.testing import Broker
from tests.power import compiled
from tests.wire import Wire, batch, create_topic, produce

SECONDS = 4.0
VALUE = bytes(100_000)
CONFIG = {
    "log.segment.bytes": 1 << 20,
    "log.retention.check.interval.ms": 150,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "log.flush.start.offset.checkpoint.interval.ms": 200,
    "replica.high.watermark.checkpoint.interval.ms": 200,
    "log.segment.delete.delay.ms": 200,
    "offsets.topic.num.partitions": 4,
}
BOUNDED = {"retention_bytes": str(3 << 20), "file_delete_delay_ms": "200"}


class Load:
    """Clients that do all that touches files, each on a connection of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.wrong: list[BaseException] = []
        self.rounds: dict[str, int] = {}
        with Wire(bootstrap) as wire:
            create_topic(wire, "plain", 4, **BOUNDED)
            create_topic(wire, "flushed", 4, flush_messages="1", **BOUNDED)
        self.end = time.monotonic() + SECONDS

    def run(self) -> None:
        jobs = (
            self.produce_plain,
            self.produce_flushed,
            self.delete_records,
            self.make_again,
            self.configure,
        )
        threads = [threading.Thread(target=self._repeat, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.wrong, self.wrong
        assert all(count >= 3 for count in self.rounds.values()), self.rounds

    def _repeat(self, job) -> None:
        try:
            with Wire(self.bootstrap, timeout=30) as wire:
                while time.monotonic() < self.end:
                    job(wire, self.rounds.get(job.__name__, 0))
                    self.rounds[job.__name__] = self.rounds.get(job.__name__, 0) + 1
        except BaseException as trouble:
            self.wrong.append(trouble)

    def produce_plain(self, wire: Wire, number: int) -> None:
        assert produce(wire, "plain", bytes(batch(VALUE)), number % 4).error_code == 0

    def produce_flushed(self, wire: Wire, number: int) -> None:
        assert produce(wire, "flushed", bytes(batch(VALUE)), number % 4).error_code == 0

    def delete_records(self, wire: Wire, number: int) -> None:
        struct = messages.DeleteRecordsRequest.Topics
        partitions = [struct.Partitions(partition_index=index, offset=-1) for index in range(4)]
        topics = [struct(name=name, partitions=partitions) for name in ("plain", "flushed")]
        answer = wire.ask(messages.DeleteRecordsRequest(topics=topics, timeout_ms=5_000), 2)
        for topic in answer.topics:
            assert {each.error_code for each in topic.partitions} <= {0, 6}, answer
        time.sleep(0.1)

    def make_again(self, wire: Wire, number: int) -> None:
        """A topic with offsets in all checkpoints goes, and comes back under its name."""
        create_topic(wire, "again", 4, flush_messages="1")
        for partition in range(4):
            for _ in range(20):  # of several workers one may wait until another has let go of the name
                code = produce(wire, "again", bytes(batch(VALUE)), partition).error_code
                if code not in (3, 6):
                    break
                time.sleep(0.05)
            assert code == 0, code
        time.sleep(0.3)  # for a checkpoint
        name = messages.DeleteTopicsRequest.Topics(name="again")
        assert (
            wire.ask(messages.DeleteTopicsRequest(topics=[name], timeout_ms=5_000), 6).responses[0].error_code
            == 0
        )

    def configure(self, wire: Wire, number: int) -> None:
        struct = messages.IncrementalAlterConfigsRequest.Resources
        change = struct.Configs(name="flush.messages", config_operation=0, value=str(1 + number % 3))
        resource = struct(resource_type=2, resource_name="flushed", configs=[change])
        answer = wire.ask(messages.IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == 0
        time.sleep(0.2)


@pytest.mark.parametrize("workers", [1, 2])
def test_no_loop_syncs_or_removes_much_while_it_serves(tmp_path, workers):
    notes, data = tmp_path / "notes", tmp_path / "data"
    env = {
        "LD_PRELOAD": compiled("loop_syncs"),
        "LOOP_SYNCS": str(notes),
        "LOOP_SYNCS_UNDER": str(data),
    }
    with Broker(workers, CONFIG, data, env=env) as broker:
        assert "loop fsync" in notes.read_text()  # a start waits for what it makes: the watch works
        load = Load(broker.bootstrap)
        notes.write_text("")
        load.run()
        seen = notes.read_text().splitlines()
    by_threads = [line for line in seen if line.startswith("thread")]
    for what in ("fsync", "fdatasync", "unlink"):
        assert any(line.startswith(f"thread {what}") for line in by_threads), what
    for name in ("log-start-offset-checkpoint", "recovery-point-offset-checkpoint"):
        assert any(name in line for line in by_threads), name
    assert [line for line in seen if line.startswith("loop")] == []
