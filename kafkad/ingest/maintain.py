"""Maintenance of a pipeline's table: verify, compact, replay of the dead letters.

verify.py, compact.py and dlq.py do the work. This module passes them the pipeline's settings, and runs dead
letters through its SQL. `verify` and `compact` may run at the same time as `run`. `replay` holds the
checkpoint's lock: one writer at a time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kafkad.ingest import session as sessions
from kafkad.ingest import tasks
from kafkad.ingest.backlog import client_options
from kafkad.ingest.checkpoint import Checkpoint
from kafkad.ingest.pipeline import Pipeline
from kafkad.ingest.run import (
    Refused,
    accountable,
    checkpoint_path,
    land_settings,
    reports_of,
    result_schema,
    spark_schema,
)  # fmt: skip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkad.ingest.dlq import Replayed
    from kafkad.ingest.landing import LandSettings
    from kafkad.ingest.table import Table
    from kafkad.ingest.verify import Verified


def table_of(pipeline: Pipeline) -> Table:
    """Return the table, which must exist."""
    from kafkad.ingest.tables import open_table

    return open_table(pipeline.sink, None, pipeline.dlq.path)


def verify(pipeline: Pipeline) -> Verified:
    """Compare with the brokers of [source] bootstrap. Raises Refused, TableError and the brokers' errors."""
    from kafkad.ingest.verify import Broker
    from kafkad.ingest.verify import verify as compared

    if not pipeline.source.bootstrap:
        raise Refused("verify asks a broker: say [source] bootstrap, or --set source.bootstrap=HOST:PORT")
    checkpoint = Checkpoint(checkpoint_path(pipeline), pipeline.name, read_only=True)
    ends = checkpoint.landed()  # before the table is read, which may grow meanwhile
    return compared(
        table_of(pipeline),
        Broker(pipeline.source.bootstrap, client_options(pipeline.source)),
        drops_rows=bool(pipeline.transform.sql or pipeline.dedup.keys),
        repeats_rows=bool(pipeline.transform.sql),
        starts=checkpoint.starts() or None,
        ends=ends or None,
    )


def compact(pipeline: Pipeline) -> Any:
    """Compact the table. Return Compacted: files before and after."""
    return table_of(pipeline).compact(pipeline.sink.target_file_bytes)


def replay(pipeline: Pipeline) -> Replayed:
    """Land the records that can be decoded now, by the SQL of the pipeline, if it has any; new columns of the
    schema are added if [sink] schema_evolution allows it. Raises Busy during a run.
    """
    from kafkad.ingest import dlq
    from kafkad.ingest.tables import open_table

    if pipeline.dedup.keys:
        raise Refused(
            "replay-dlq cannot go through [dedup]: which keys were seen is in the state of the stream, where"
            " a replay cannot look; take [dedup] out of the file for the replay, if a row may land that"
            " repeats another"
        )
    settings = land_settings(pipeline)
    with Checkpoint(checkpoint_path(pipeline), pipeline.name):
        if not table_of(pipeline).dlq.files():
            return dlq.Replayed()
        if not pipeline.transform.sql:
            schema = result_schema(pipeline, no_spark)
            return dlq.replay(open_table(pipeline.sink, schema, pipeline.dlq.path), settings)
        spark: Any = sessions.session(pipeline)
        try:
            schema = result_schema(pipeline, lambda: spark)
            table = open_table(pipeline.sink, schema, pipeline.dlq.path)
            return replay_by_sql(pipeline.transform.sql, table, replace(settings, bad="dlq"), spark)
        finally:
            if not sessions.submitted():
                spark.stop()


def no_spark() -> Any:
    raise AssertionError("only SQL needs Spark to know its columns")


def replay_by_sql(sql: str, table: Table, settings: LandSettings, spark: SparkSession) -> Replayed:
    """Use the dead letters as the view `input`: like a batch of a run, except for its source."""
    from kafkad.ingest import dlq
    from kafkad.ingest.table import REPLAY, TaskReport

    table.recover(REPLAY)
    files = table.dlq.files()
    staging = table.staging(REPLAY)
    token = staging.new_name()
    places = [str(table.dlq.root / file.path) for file in files]
    reading = tasks.read_letters_tasks(places, settings, staging, token)
    numbers = spark.range(0, len(files), 1, len(files))
    numbers.mapInArrow(reading, spark_schema(tasks.rows_schema(settings))).createOrReplaceTempView("input")
    result = accountable(spark.sql(sql))
    reports = reports_of(result.mapInArrow(tasks.write_tasks(staging), tasks.REPORT_SCHEMA))
    if len(read := tasks.read_reports(staging, token)) < len(files):  # the SQL did not read all of them
        reports_of(numbers.mapInArrow(tasks.finish(reading), tasks.REPORT_SCHEMA))
        read = tasks.read_reports(staging, token)
    counts = [each for told in read.values() for each in told.covered]
    assert sum(each.rows + each.bad for each in counts) == sum(file.rows for file in files)
    reports += [TaskReport(told.files) for told in read.values()]
    return dlq.exchanged(table, files, reports, sum(each.rows for each in counts))
