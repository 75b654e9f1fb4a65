"""What is done to a pipeline's table beside its runs: verify, compact, replay of the dead letters.

The work is verify.py's, compact.py's and dlq.py's; here stands what they are told of the pipeline. `verify`
and `compact` may run beside `run`. `replay` holds the checkpoint's lock: one writer at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkad.ingest.checkpoint import Checkpoint
from kafkad.ingest.pipeline import Pipeline
from kafkad.ingest.run import Refused, checkpoint_path, land_settings

if TYPE_CHECKING:
    from kafkad.ingest.dlq import Replayed
    from kafkad.ingest.table import Table
    from kafkad.ingest.verify import Verified


def table_of(pipeline: Pipeline) -> Table:
    """The table, which must be there."""
    from kafkad.ingest.table import open_table

    return open_table(pipeline.sink, None, pipeline.dlq.path)


def verify(pipeline: Pipeline) -> Verified:
    """Against the brokers of [source] bootstrap. Raises Refused, TableError and what the brokers say."""
    from kafkad.ingest.verify import Broker
    from kafkad.ingest.verify import verify as compared

    if not pipeline.source.bootstrap:
        raise Refused("verify asks a broker: say [source] bootstrap, or --set source.bootstrap=HOST:PORT")
    checkpoint = Checkpoint(checkpoint_path(pipeline), pipeline.name, read_only=True)
    ends = checkpoint.landed()  # before the table is read, which may grow meanwhile
    return compared(
        table_of(pipeline),
        Broker(pipeline.source.bootstrap, dict(pipeline.source.kafka)),
        drops_rows=bool(pipeline.transform.sql or pipeline.dedup.keys),
        repeats_rows=bool(pipeline.transform.sql),
        starts=checkpoint.starts() or None,
        ends=ends or None,
    )


def compact(pipeline: Pipeline) -> Any:
    """Compacted: files before and after."""
    return table_of(pipeline).compact(pipeline.sink.target_file_bytes)


def replay(pipeline: Pipeline) -> Replayed:
    """Lands what can be decoded now. Raises Busy beside a run."""
    from kafkad.ingest.dlq import replay as replayed

    if pipeline.transform.sql:
        raise Refused(
            "replay-dlq cannot run [transform] sql: what it decodes would land without it; replay into a"
            " pipeline of its own that reads the dlq topic"
        )
    with Checkpoint(checkpoint_path(pipeline), pipeline.name):
        return replayed(table_of(pipeline), land_settings(pipeline))
