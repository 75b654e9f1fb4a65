"""Write a batch once: its records, and a mark that they are written, are one transaction.

    transactional id, and group    the writer's name; a new attempt fences the previous one
    the mark                       an offset of that group: the number of the batch, plus one; its metadata
                                   has the number of records

A writer first gets its transactional id. This ends an open transaction of an earlier attempt, so the mark is
then final. If the mark of this batch is there, nothing is written; otherwise all of it is written. Records
and mark are committed together. So readers of committed data see each record once, even if the writer or the
broker dies meanwhile.

Beware: the numbers of a writer's batches must only grow, and a repeated batch must have the same records.
Marks live as long as committed offsets (offsets.retention.minutes, 7 days)."""

from kafkad.client.cluster import Cluster
from kafkad.client.offsets import committed
from kafkad.client.transactions import Transactions

ROWS = "rows="


class BatchTransaction:
    """The transaction of one batch. Raises KafkaError and Unreachable."""

    def __init__(
        self, cluster: Cluster, name: str, batch: int, timeout_ms: int, retry_seconds: float
    ) -> None:
        """Ends what an earlier try left open. `is_done`: the batch is there already; `records`: how many it
        has, None if that is not known (any more).

        timeout_ms: the coordinator aborts a transaction that takes longer."""
        self.name = name
        self.batch = batch
        self.transactions = Transactions(cluster, name, timeout_ms=timeout_ms, retry_seconds=retry_seconds)
        marks = committed(cluster, name, stable=True).values()
        self.is_done = any(mark > batch for mark, _ in marks)
        counts = [text.removeprefix(ROWS) for mark, text in marks if mark == batch + 1]
        self.records = int(counts[0]) if counts and counts[0].isdecimal() else None

    def commit(self, topic: str, records: int) -> None:
        """All that was written, which went to `topic` among others, and the mark."""
        self.transactions.send_offsets(self.name, {(topic, 0): self.batch + 1}, metadata=f"{ROWS}{records}")
        self.transactions.commit()

    def abort(self) -> None:
        self.transactions.abort()
