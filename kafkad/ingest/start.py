"""Start a run of a pipeline, of the kind that it needs, and continue to its end."""

from __future__ import annotations

from typing import TextIO

from kafkad.ingest import session as sessions
from kafkad.ingest.checkpoint import Checkpoint
from kafkad.ingest.pipeline import Pipeline
from kafkad.ingest.progress import Progress
from kafkad.ingest.run import Run, RunResult, Stop, checkpoint_path


def run(pipeline: Pipeline, out: TextIO | None = None) -> RunResult:
    """Run to the end, or until stopped. Raises Refused, DataLoss, Busy, and Spark's exceptions."""
    sessions.require("pyspark", "pyarrow", "pandas", extra="ingest")
    if pipeline.sink.type == "delta":
        sessions.require("deltalake", extra="ingest")
    if pipeline.sink.type == "iceberg":
        sessions.require("pyiceberg", extra="ingest")
    with Checkpoint(checkpoint_path(pipeline), pipeline.name) as checkpoint, Stop() as stop:
        one = kind_of_run(pipeline)(pipeline, checkpoint, Progress(pipeline.name, out), stop)
        try:
            return one.to_end()
        finally:
            one.close()


def kind_of_run(pipeline: Pipeline) -> type[Run]:
    if not pipeline.dedup.keys:
        return Run
    from kafkad.ingest.deduplicate import StreamRun

    return StreamRun
