"""The dead letter topic: a pipeline's bad records in Kafka, each once for readers of committed data.

Two systems cannot commit in one step. So the table decides, and the topic follows:

    keep      before the commit: link each of the batch's files of bad records into an outbox on disk
    commit    the table and its dead letter queue take the batch
    settle    write the dead letters, and a mark that they are written, in one transaction; then empty the
              outbox

After a crash, the next run first settles the outbox: it sends the dead letters of a batch that the table has,
and drops all others, because their batch is repeated. The mark (client/batch_transaction) shows whether the
transaction had ended. Changes of the dead letter queue meanwhile (a replay, a compaction) do not matter,
because the outbox has its own links.

`exactly_once` = false sends without transactions, at least once: for brokers before Kafka 2.5, and for
clients that may not use transactional ids.

Beware: the mark lives as long as committed offsets. If a run dies between the end of its transaction and the
next step, and the next run comes after offsets.retention.minutes (7 days), the dead letters of one batch are
sent again."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kafkad.client.connection import Unreachable
from kafkad.ingest.dlq import headers_of, rows_of
from kafkad.ingest.table import OWN, Table, TaskReport, make_folder, safe_name, step, sync_folder
from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError

if TYPE_CHECKING:
    from kafkad.client.cluster import Cluster
    from kafkad.client.producer import Producer

OUTBOX = "outbox"
TIMEOUT_MS = 300_000  # transaction.timeout.ms: also how long a dead driver can block the topic's readers
RETRY_S = 15.0  # of one attempt; the run makes another
NOT_ALLOWED = {
    errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, errors.GROUP_AUTHORIZATION_FAILED,
    errors.INVALID_TRANSACTION_TIMEOUT, errors.UNSUPPORTED_VERSION,
}  # fmt: skip


class LetterTopic:
    """The topic for one application's dead letters (table.py: what commits batches). One thread at a time."""

    def __init__(
        self,
        table: Table,
        application: str,
        pipeline: str,
        topic: str,
        connect: Callable[[], Cluster],
        *,
        exactly_once: bool = True,
    ) -> None:
        """`connect`: a cluster of the topic's own, which this class closes after use."""
        self.table = table
        self.application = application
        self.name = f"kafkad.ingest.{pipeline}.{application}"  # transactional id, and group of the mark
        self.topic = topic
        self.connect = connect
        self.exactly_once = exactly_once
        self.outbox = table.dlq_root / OWN / OUTBOX / safe_name(application)

    def keep(self, batch: int, reports: Iterable[TaskReport]) -> None:
        """Link the bad records of a batch that is about to be committed. If the table has the batch already
        (its commit failed at the end), keep those with which it was committed."""
        if self.table.committed(self.application, batch):
            return
        for left in self.outbox.glob("*"):  # of a failed attempt
            assert not self.table.committed(self.application, int(left.name)), "it was not settled"
            shutil.rmtree(left)
        places = [self.table.dlq_root / file.staged for told in reports for file in told.files if file.dlq]
        if not places:
            return
        folder = self.outbox / f"{batch:09d}"
        make_folder(folder)
        for place in places:
            os.link(place, folder / place.name)
        sync_folder(folder)
        step("letters kept")

    def settle(self) -> int:
        """Send the letters of the batches that the table has, and drop all others; return how many were sent.

        Raises KafkaError and Unreachable, or ValueError if another attempt would not help: the letters are
        still in the outbox then."""
        sent = 0
        for folder in sorted(self.outbox.glob("*")):
            batch = int(folder.name)
            if self.table.committed(self.application, batch):
                sent += self._send(folder, batch)
                step("letters sent")
            shutil.rmtree(folder)
            step("letters gone")
        return sent

    def _send(self, folder: Path, batch: int) -> int:
        try:
            with self.connect() as cluster:
                return self._send_to(cluster, folder, batch)
        except KafkaError as trouble:
            if trouble.code not in NOT_ALLOWED:
                raise
            raise ValueError(
                f"{trouble} ([dlq] exactly_once = false writes without transactions, at least once)"
            ) from trouble

    def _send_to(self, cluster: Cluster, folder: Path, batch: int) -> int:
        from kafkad.client.batch_transaction import BatchTransaction
        from kafkad.client.producer import Producer

        if not self.exactly_once:
            return self._write(folder, Producer(cluster, self.topic))
        transaction = BatchTransaction(cluster, self.name, batch, TIMEOUT_MS, RETRY_S)
        if transaction.is_done:
            return 0
        try:
            count = self._write(folder, transaction.transactions.producer(self.topic))
            step("letters written")
            transaction.commit(self.topic, count)
        except KafkaError:
            with contextlib.suppress(KafkaError, Unreachable):
                transaction.abort()  # so that readers of the topic need not wait for the next attempt
            raise
        return count

    def _write(self, folder: Path, producer: Producer) -> int:
        import pyarrow as pa

        count = 0
        for place in sorted(folder.iterdir()):
            for batch in rows_of(place):
                timestamps = batch.column("_timestamp").cast(pa.int64())
                for row in batch.set_column(3, "_timestamp", timestamps).to_pylist():
                    producer.send(row["value"], row["key"], headers=headers_of(row))
                    count += 1
        producer.flush()
        return count
