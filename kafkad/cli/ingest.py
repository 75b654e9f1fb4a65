"""`kafkad ingest`: copy topics into tables, driven by a pipeline file.

    kafkad ingest validate flights.toml    check file, schema, sink, broker and topics
    kafkad ingest plan flights.toml        show what run would do, and where each setting comes from
    kafkad ingest run flights.toml         exit code 0: read all; 130, 143: stopped by a signal, after a batch
    kafkad ingest status flights.toml      show offsets, batches and files
    kafkad ingest verify flights.toml      check that every offset of the broker is in the table, once
    kafkad ingest compact flights.toml     merge small files into large ones
    kafkad ingest replay-dlq flights.toml  decode the dead letters again

An error in the file gives exit code 2, with one line per error. If brokers, Spark or the table refuse, it is
1.
"""

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafkad.cli.exits import INTERRUPTED, TERMINATED
from kafkad.cli.main import Stopped
from kafkad.cli.output import CONTEXT, Refused, counted, print_json, say, show

if TYPE_CHECKING:
    from kafkad.ingest.pipeline import Pipeline

F = TypeVar("F", bound=Callable[..., Any])


@click.group(context_settings=CONTEXT)
def command() -> None:
    """Copy topics into tables, each record exactly once, driven by a pipeline file.

    \b
    A small file:       [source]
                        bootstrap = "127.0.0.1:9092"
                        topics = "flights"
                        [decode]
                        format = "json"
                        schema = "id BIGINT, carrier STRING, delay INT"
                        bad_records = "dlq"
                        [sink]
                        path = "flights"
    \b
    Check the file:     kafkad ingest validate flights.toml
    Show the plan:      kafkad ingest plan flights.toml
    Copy records:       kafkad ingest run flights.toml
    Check the table:    kafkad ingest verify flights.toml
    Show the progress:  kafkad ingest status flights.toml

    docs/ingest.md lists every key of the file. Exit codes: 0 done, 1 refused, or the table is not complete, 2
    the file is wrong, 130 and 143 stopped by Ctrl-C and SIGTERM.
    """


def takes_pipeline(function: F) -> F:
    function = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Override a key of the file; may be repeated.",
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
    """Copy the records of the topics into the table.

    Reads, decodes, transforms and writes batch after batch. It ends when all records are read that were there
    at its start. With [trigger] interval, it runs until it is stopped. The next run continues where this one
    ended, also after kill -9. Ctrl-C and SIGTERM end it after the current batch. A second signal ends it at
    once; no record is lost or written twice then, either.

    \b
    kafkad ingest run flights.toml
    kafkad ingest run flights.toml --set source.max_rows=100000 --set 'spark.master=local[4]'
    kafkad ingest run flights.toml | cat        # not a terminal: one line of JSON per batch, then a summary
    """
    from kafkad.ingest.start import run as run_it

    ended = refusing(lambda: run_it(read(pipeline, overrides)))
    if ended.why == "SIGINT":
        raise Stopped(INTERRUPTED)
    if ended.why == "SIGTERM":
        raise Stopped(TERMINATED)


@command.command()
@takes_pipeline
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(pipeline: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show what a run would do.

    Shows every setting with its value and its origin, and the expected offsets, records, bytes, batches,
    tasks and files. Reads no record and does not start Spark.
    """
    from kafkad.ingest.plan import plan as plan_it

    described = read(pipeline, overrides)
    found = refusing(lambda: plan_it(described))
    if as_json:
        effective = {name: {"value": text, "from": where} for name, text, where in described.effective()}
        print_json({"configuration": effective, **dataclasses.asdict(found)})
        return
    show(["Key", "Value", "From"], described.effective(), False)
    print()
    columns = ["Topic", "Partition", "From", "To", "Records", "Bytes"]
    show(columns, found.partitions, False)
    print()
    size = "unknown" if found.bytes is None else f"{found.bytes / 1e6:,.1f} MB"
    facts = [
        ["begins at", found.position_from],
        ["records", f"{found.records:,}"],
        ["in the log", size],
        ["batches", f"{found.batches:,}"],
        ["tasks per batch", f"{found.tasks:,}"],
        [
            "files (about)",
            f"{found.files:,}" + (" per partition value" if described.sink.partition_by else ""),
        ],
    ]
    if found.lost:
        facts.append(["already lost", f"{found.lost:,}"])
    show(["Run", ""], facts, False)


@command.command()
@takes_pipeline
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def validate(pipeline: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check whether a pipeline could run.

    Checks the file, packages, schema, sink, broker, topics and position, and SQL with Spark. The exit code is
    1 if something is wrong. Reads no record.
    """
    from kafkad.ingest.plan import validate as validate_it

    checks = refusing(lambda: validate_it(read(pipeline, overrides)))
    rows = [
        [check.what, "fine" if check.trouble is None else "wrong", check.trouble or check.found]
        for check in checks
    ]
    show(["Check", "Result", "Found"], rows, as_json)
    wrong = [check for check in checks if check.trouble is not None]
    if wrong:
        raise Refused(f"{wrong[0].what}: {wrong[0].trouble}")


@command.command()
@takes_pipeline
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(pipeline: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show the progress of a pipeline.

    Shows committed offsets and the broker's end offsets, batches, rows, files, small files and dead letters.
    May run at the same time as `run`.
    """
    from kafkad.ingest.status import status as ask

    found = refusing(lambda: ask(read(pipeline, overrides)))
    if as_json:
        print_json({**dataclasses.asdict(found), "lag": found.lag})
        return
    show(["Topic", "Partition", "Committed", "End", "Lag"], found.partitions, False)
    print()
    facts = [
        ["pipeline", found.pipeline],
        ["running", found.running],
        ["lag", "-" if found.lag is None else f"{found.lag:,}"],
        ["batches", f"{found.totals.get('batches', 0):,}"],
        ["rows landed", f"{found.totals.get('rows', 0):,}"],
        ["bad records", f"{found.totals.get('bad', 0):,}"],
        ["table", found.table],
        ["rows in it", f"{found.rows:,}"],
        ["files", f"{found.files:,} ({found.file_bytes / 1e6:,.1f} MB)"],
        [
            "small files",
            f"{found.small_files:,}" + (": kafkad ingest compact" if found.small_files > 1 else ""),
        ],
        ["dead letters", f"{found.dlq_rows:,}"],
    ]
    if found.unfinished is not None:
        facts.append(["unfinished batch", found.unfinished])
    show(["Status", ""], facts, False)
    for trouble in found.troubles:
        say(f"kafkad: {trouble}")


@command.command()
@takes_pipeline
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(pipeline: str, overrides: tuple[str, ...], as_json: bool) -> int:
    """Check that every record is in the table, once.

    Compares the table with the broker, offset by offset. It counts rows, dead letters, gaps of the log
    (compaction, transactions), records that SQL or dedup left out, records that retention deleted, and
    offsets that are lost, twice, or not in the log. The exit code is 1 if there are any of the last three.
    May run at the same time as `run`.
    """
    from kafkad.ingest.maintain import verify as verify_it

    found = refusing(lambda: verify_it(read(pipeline, overrides)))
    if as_json:
        print(found.to_json())
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(found.rich_table())
    else:
        names = ["rows", "in_dlq", "holes", "left_out", "expired", "lag", "twice", "foreign", "lost"]
        columns = ["Topic", "Partition", "Start", "End", *names]
        fields = ["topic", "partition", "start", "end", *names]
        show(columns, [[getattr(each, name) for name in fields] for each in found.partitions], False)
    for sentence in found.sentences():
        say(f"kafkad: {sentence}.")
    return int(found.exit_code)


@command.command()
@takes_pipeline
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compact(pipeline: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Merge small files into large ones.

    Rewrites files below [sink] target_file_mb, one partition of the table at a time, in separate commits. May
    run at the same time as `run`.
    """
    from kafkad.ingest.maintain import compact as compact_it

    did = refusing(lambda: compact_it(read(pipeline, overrides)))
    columns = ["Files before", "Files after", "Bytes before", "Bytes after", "Rows", "Partitions"]
    row = [did.files_before, did.files_after, did.bytes_before, did.bytes_after, did.rows, did.partitions]
    show(columns, [row], as_json)


@command.command("replay-dlq")
@takes_pipeline
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay_dlq(pipeline: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Decode the dead letters again.

    Decodes them with the current schema. Good records go through the pipeline's SQL into the table, and are
    removed from the dead letters in the same commit. Bad records stay, with the new reason.
    """
    from kafkad.ingest.maintain import replay

    did = refusing(lambda: replay(read(pipeline, overrides)))
    show(["Found", "Landed", "Still bad"], [[did.found, did.landed, did.still_bad]], as_json)
    for reason, count in did.reasons[:5]:
        say(f"kafkad: {counted(count, 'record')} still bad: {reason}.")


def refusing(work: Callable[[], Any]) -> Any:
    """Return `work()`. If it refuses, print the error message and exit with 1."""
    from kafkad.ingest.user_errors import USER_ERRORS

    try:
        return work()
    except USER_ERRORS as refused:
        raise Refused(str(refused)) from refused
