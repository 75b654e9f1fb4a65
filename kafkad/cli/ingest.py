"""`kafkad ingest`: topics into tables, by a pipeline file.

    kafkad ingest run flights.toml         exit code 0: read all; 130, 143: told to stop, after a whole batch
    kafkad ingest plan flights.toml        what run would do, and where each setting comes from

A mistake in the file is exit code 2, with one line for each; what the brokers, Spark or the table refuse is 1.
"""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafkad.cli.main import INTERRUPTED, TERMINATED, Stopped
from kafkad.cli.output import CONTEXT, Refused, show

if TYPE_CHECKING:
    from kafkad.ingest.pipeline import Pipeline

F = TypeVar("F", bound=Callable[..., Any])


@click.group(context_settings=CONTEXT)
def command() -> None:
    """Land topics in tables, each record exactly once, by a pipeline file."""


def takes_pipeline(function: F) -> F:
    function = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Instead of what the file says; may be repeated.",
    )(function)
    return click.argument("pipeline", metavar="PIPELINE.TOML", type=click.Path(dir_okay=False))(function)


def read(path: str, overrides: tuple[str, ...]) -> "Pipeline":
    from kafkad.ingest.pipeline_file import PipelineError, load

    try:
        return load(path, os.environ, overrides)
    except PipelineError as wrong:
        *others, last = wrong.mistakes
        for mistake in others:
            print(f"kafkad: {mistake}.", file=sys.stderr)
        raise click.UsageError(last)
    except OSError as trouble:
        raise click.UsageError(f"{path}: {trouble.strerror}")


@command.command()
@takes_pipeline
def run(pipeline: str, overrides: tuple[str, ...]) -> None:
    """Read, decode, transform and land, until all is read (or told to stop)."""
    from kafkad.ingest.run import run as run_it

    ended = refusing(lambda: run_it(read(pipeline, overrides)))
    if ended.why == "SIGINT":
        raise Stopped(INTERRUPTED)
    if ended.why == "SIGTERM":
        raise Stopped(TERMINATED)


def refusing(work: Callable[[], Any]) -> Any:
    """`work()`; what it refuses becomes a sentence and exit code 1."""
    from kafkad.ingest import backlog, checkpoint, session
    from kafkad.ingest import run as running
    from kafkad.ingest.table import TableError

    try:
        return work()
    except (
        running.Refused, backlog.DataLoss, checkpoint.Busy, checkpoint.Foreign, session.NoSpark, TableError,
        ValueError,
    ) as refused:  # fmt: skip
        raise Refused(str(refused)) from refused
