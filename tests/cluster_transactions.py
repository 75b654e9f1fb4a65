"""Exactly-once copies during the faults of a story: each record is copied once, whatever is killed.

A `Copier` for each partition reads what the writers of a story write, writes it into two partitions of
another topic, and commits its offset, all in one transaction. It aborts some transactions, leaves some open
as if its process had died, and starts again after an error that is not retriable. An `Auditor` reads the
committed copies.

`PipelineStory` is a Story with these clients. At its end each record of the source is in both partitions,
once and in order; the group's offsets are the ends of the source; no transaction is open; and the auditor has
read what is in the log, never backwards.

Beware: the copiers use kafkad's own client. librdkafka 2.16 can wait for ever in send_offsets_to_transaction
if the coordinator of the group stops.

Use: tests/integration/test_cluster_kills.py."""

from __future__ import annotations

import random
import threading
import time
import traceback

from kafkad.client.cluster import Cluster as Connections
from kafkad.client.connection import Unreachable
from kafkad.client.consumer import READ_COMMITTED, Consumer
from kafkad.client.offsets import LATEST, committed_offsets, list_offsets
from kafkad.client.transactions import Transactions
from kafkad.protocol.errors import KafkaError
from tests.cluster_checker import PARTITIONS, WAIT_S, Story, until

RETRY_S = 20
TIMEOUT_S = 8  # of one request: longer than any pause of a node
TRANSACTION_MS = 60_000


def connections(bootstrap: str) -> Connections:
    return Connections(bootstrap, timeout=TIMEOUT_S, retry_seconds=RETRY_S)


class Copier(threading.Thread):
    """Copies one partition of `source` to `target`."""

    def __init__(self, bootstrap: str, source: str, target: str, partition: int, seed: int):
        super().__init__(daemon=True)
        self.bootstrap, self.source, self.target, self.partition = bootstrap, source, target, partition
        self.random = random.Random(f"{seed}-copier-{partition}")
        self.group = f"copiers-of-{source}"
        self.source_end: int | None = None  # when it is known
        self.commits = self.aborts = self.at = 0
        self.restarts: list[str] = []  # their reasons
        self.failures: list[str] = []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                with connections(self.bootstrap) as cluster:
                    if self._live(cluster):
                        return
                    self.restarts.append("left its transaction open")
            except (KafkaError, Unreachable) as trouble:
                self.restarts.append(f"{time.strftime('%H:%M:%S')} {trouble!r}")
                self.ended.wait(0.1)
            except Exception:
                self.failures.append(f"copier of {self.partition}: {traceback.format_exc()}")
                return

    def _live(self, cluster: Connections) -> bool:
        """Copy until the end of the source (return True), or to where a process would have died (False)."""
        name = f"copier-{self.source}-{self.partition}"
        transactions = Transactions(cluster, name, timeout_ms=TRANSACTION_MS, retry_seconds=RETRY_S)
        producer = transactions.producer(self.target, delivery_seconds=RETRY_S)
        place = (self.source, self.partition)
        reader = Consumer(cluster, self.source, wait_ms=100, reset=None)
        at = committed_offsets(cluster, self.group, [place], stable=True).get(place, 0)
        if at < self.at:
            self.failures.append(f"copier of {self.partition}: the group is at {at}, was at {self.at}")
        while not self.ended.is_set():
            if self.source_end is not None and at >= self.source_end:
                return True
            reader.assign({self.partition: at})
            taken, most = [], self.random.choice((1, 30, 1000)) if self.source_end is None else 1000
            for received in reader.poll():
                assert received.offset == at + len(taken), (received.offset, at, len(taken))
                taken.append(received.value)
                if len(taken) == most:
                    break
            if not taken:
                continue
            for offset, value in enumerate(taken, at):
                copy = b"%d:%d:%s" % (self.partition, offset, value[:40])
                producer.send(copy, partition=self.partition)
                producer.send(copy, partition=(self.partition + 1) % PARTITIONS)
            fate = self.random.random()
            if fate < 0.02:
                producer.flush()
                return False
            transactions.send_offsets(self.group, {place: at + len(taken)})
            if fate < 0.1:
                producer.flush()
                transactions.abort()
                self.aborts += 1
                continue
            transactions.commit()
            self.commits += 1
            at += len(taken)
            self.at = at
        return False


class Auditor(threading.Thread):
    """Reads the committed records of all partitions as they grow."""

    def __init__(self, bootstrap: str, topic: str):
        super().__init__(daemon=True)
        self.bootstrap, self.topic = bootstrap, topic
        self.found: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]  # (offset, value)
        self.next = dict.fromkeys(range(PARTITIONS), 0)
        self.failures: list[str] = []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                with connections(self.bootstrap) as cluster:
                    self._read(cluster)
            except Unreachable:
                self.ended.wait(0.1)
            except KafkaError as trouble:
                if not trouble.retriable:
                    self.failures.append(f"auditor at {self.next}: {trouble!r}")
                    return
            except Exception:
                self.failures.append(f"auditor at {self.next}: {traceback.format_exc()}")
                return

    def _read(self, cluster: Connections) -> None:
        reader = Consumer(cluster, self.topic, wait_ms=100, isolation=READ_COMMITTED, reset=None)
        reader.assign(self.next)
        while not self.ended.is_set():
            for received in reader.poll():
                assert received.value is not None
                if received.offset < self.next[received.partition]:
                    self.failures.append(
                        f"auditor of {received.partition}: {received.offset} comes after "
                        f"{self.next[received.partition] - 1}"
                    )
                self.found[received.partition].append((received.offset, received.value))
                self.next[received.partition] = received.offset + 1
            for partition, position in reader.positions.items():
                self.next[partition] = max(self.next[partition], position)


class PipelineStory(Story):
    """A story with copiers and an auditor."""

    def _create(self) -> None:
        super()._create()
        self.target = f"copies-{self.seed}"
        self._create_topic(self.target)

    def _others(self) -> list:
        bootstrap = self.cluster.bootstrap
        self.copiers = [
            Copier(bootstrap, self.topic, self.target, partition, self.seed)
            for partition in range(PARTITIONS)
        ]
        self.auditor = Auditor(bootstrap, self.target)
        return [*self.copiers, self.auditor]

    def _progress(self) -> None:
        super()._progress()
        before = [copier.commits for copier in self.copiers]
        until(
            lambda: (
                self.failures() or all(c.commits > was for c, was in zip(self.copiers, before, strict=True))
            ),
            lambda: ("a copier commits nothing", before, self._told(), self.cluster.seen(self.target)),
        )

    def _told(self) -> list[object]:
        return [
            (each.partition, each.commits, each.at, each.source_end, each.restarts[-3:])
            for each in self.copiers
        ]

    def _check_others(self, ends: list[int]) -> list[str]:
        for copier in self.copiers:
            copier.source_end = ends[copier.partition]
        for copier in self.copiers:
            copier.join(WAIT_S)
            if copier.is_alive():
                copier.failures.append(f"a copier does not end: {self._told()}")
        wrong = [failure for copier in self.copiers for failure in copier.failures]
        if wrong:
            return wrong
        with connections(self.cluster.bootstrap) as cluster:
            highs = self._settled(cluster)
            auditor = self.auditor
            until(
                lambda: auditor.failures or auditor.next == highs,
                lambda: ("the auditor stays behind", auditor.next, highs),
            )
            auditor.ended.set()
            auditor.join(WAIT_S)
            last = Auditor(self.cluster.bootstrap, self.target)
            last.start()
            until(lambda: last.failures or last.next == highs, lambda: (last.next, highs))
            last.ended.set()
            last.join(WAIT_S)
            wrong += auditor.failures + last.failures
            group = self.copiers[0].group
            places = [(self.topic, index) for index in range(PARTITIONS)]
            committed = committed_offsets(cluster, group, places, stable=True)
            if [committed.get(place) for place in places] != ends:
                wrong.append(f"the group is at {committed}, and the source ends at {ends}")
        for index in range(PARTITIONS):
            wrong += self._replicas_of(self.target, index)
            if auditor.found[index] != last.found[index]:
                wrong.append(f"the auditor of {index} has read other records than are there")
        return wrong + wrong_copies([[value for _, value in found] for found in last.found], ends)

    def _settled(self, cluster: Connections) -> dict[int, int]:
        """Wait until no transaction is open. Return the high watermarks."""
        latest = dict.fromkeys(range(PARTITIONS), LATEST)

        def ends() -> dict[int, int] | None:
            stable = list_offsets(cluster, self.target, latest, READ_COMMITTED)
            return stable if stable == list_offsets(cluster, self.target, latest) else None

        return until(ends, lambda: ("a transaction stays open", self._told()))


def wrong_copies(found: list[list[bytes]], ends: list[int]) -> list[str]:
    """Return the errors in the committed records of the target. `ends`: of the source's partitions."""
    wrong = []
    for partition, values in enumerate(found):
        for source in (partition, (partition - 1) % PARTITIONS):
            numbers = [int(value.split(b":", 2)[1]) for value in values if value.startswith(b"%d:" % source)]
            if numbers == list(range(ends[source])):
                continue
            place = next(
                (at for at, number in enumerate(numbers) if number != at), min(len(numbers), ends[source])
            )
            wrong.append(
                f"copies of {source} in {partition}: {numbers[place : place + 5]} where {place} should be, "
                f"{len(numbers)} in all, {ends[source]} expected"
            )
    return wrong
