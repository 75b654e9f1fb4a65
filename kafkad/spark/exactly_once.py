"""Each row once: a task's rows and the mark that says so are one transaction.

    transactional id, and group    kafkad.<query>.<task>       a task tried again fences whoever tried before
    the mark                       an offset of that group: the number of the batch, plus one

A task asks for its transactional id first. That ends what an earlier try left open, so what is read next is
decided: the mark of this batch is there, and nothing is written, or it is not, and all of it is written. Rows
and mark are committed together. So readers of committed data see each row once, whatever dies: the task, the
driver, the broker. (The tasks of a batch do not become visible in one moment.)

The query is the one of the checkpoint, which Spark tells a task with the number of the batch; of a batch job,
the option `jobId`.

Beware: when a batch runs again, task n must get the rows that it got before, as Spark has it for what it
reads from Kafka or files. After a shuffle whose order or number of partitions changes, rows are lost or
doubled. Marks live as long as committed offsets do (offsets.retention.minutes, 7 days)."""

from dataclasses import dataclass

from pyspark import TaskContext

from kafkad.client.cluster import Cluster
from kafkad.client.offsets import committed_offsets
from kafkad.client.transactions import Transactions

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark's names for what a task is part of


@dataclass(frozen=True)
class Task:
    """Which part of which batch of which query."""

    query: str
    number: int
    batch: int

    @property
    def name(self) -> str:
        """Its transactional id, and the group that keeps its mark."""
        return f"kafkad.{self.query}.{self.number}"


def task_of(job: str | None) -> Task | None:
    """The task that runs here; None where Spark does not say whose it is. job: a batch job's id."""
    context = TaskContext.get()
    if context is None:
        return None
    if job is not None:
        return Task(job, context.partitionId(), 0)
    query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
    if query is None or batch is None:
        return None
    return Task(query, context.partitionId(), int(batch))


class TaskTransaction:
    """The transaction of one task. Raises KafkaError and Unreachable."""

    def __init__(self, cluster: Cluster, task: Task, timeout_ms: int, retry_seconds: float) -> None:
        """Ends what an earlier try left open."""
        self.task = task
        self.transactions = Transactions(
            cluster, task.name, timeout_ms=timeout_ms, retry_seconds=retry_seconds
        )
        marks = committed_offsets(cluster, task.name, stable=True)
        self.is_done = any(mark > task.batch for mark in marks.values())

    def commit(self, topic: str, rows: int) -> None:
        """All that was written, which went to `topic` among others, and the mark."""
        self.transactions.send_offsets(
            self.task.name, {(topic, 0): self.task.batch + 1}, metadata=f"rows={rows}"
        )
        self.transactions.commit()

    def abort(self) -> None:
        self.transactions.abort()
