"""Identify the task and the batch of rows, so that the rows are written once.

Each task writes in its own transaction (client/batch_transaction), with the name kafkad.<query>.<task>. So
readers of committed data see each row once, whatever dies: the task, the driver or the broker. (The tasks of
a batch do not become visible at the same moment.)

The query is identified by its checkpoint; Spark passes it to a task with the number of the batch. A batch job
is identified by the option `jobId`.

Beware: if a batch runs again, task n must get the same rows as before. This is so if Spark reads from Kafka.
Files, and rows after a shuffle, are divided by the number of cores, unless Spark is told otherwise
(docs/spark.md). A task that has written, and gets another number of rows, fails; but one without rows writes
nothing and is not checked, and one that has not written yet may duplicate rows of others."""

from dataclasses import dataclass

from pyspark import TaskContext

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark's properties of a task


@dataclass(frozen=True)
class Task:
    """Identifies a part of a batch of a query."""

    query: str
    number: int
    batch: int

    @property
    def name(self) -> str:
        """Its transactional id, and the group that stores its mark."""
        return f"kafkad.{self.query}.{self.number}"


def task_of(job: str | None) -> Task | None:
    """Return the task that is running here; None if Spark does not identify it. `job`: a batch job's id."""
    context = TaskContext.get()
    if context is None:
        return None
    if job is not None:
        return Task(job, context.partitionId(), 0)
    query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
    if query is None or batch is None:
        return None
    return Task(query, context.partitionId(), int(batch))
