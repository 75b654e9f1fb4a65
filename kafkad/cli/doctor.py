"""`kafkad doctor spark`: check everything that a Spark job with format("kafkad") needs.

It prints a table of findings, with what to do about each problem, and exits with 1 if there is a problem. It
starts Spark briefly, except with --no-read. It contacts a broker only if --bootstrap names one.
"""

import click

from kafkad.cli.output import CONTEXT, Address, counted, say, show


@click.group("doctor", context_settings=CONTEXT)
def command() -> None:
    """Find problems that keep Spark from reading and writing topics."""


@command.command(context_settings=CONTEXT)
@click.option(
    "--bootstrap", "--bootstrap-server", "bootstrap", type=Address(), metavar="HOST:PORT[,...]",
    envvar="KAFKAD_BOOTSTRAP_SERVER", help="Read from this broker, too.",
)  # fmt: skip
@click.option("--topic", help="The topic to read from; default: the first one.")
@click.option("--no-read", is_flag=True, help="Do not start Spark.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def spark(bootstrap: str | None, topic: str | None, no_read: bool, as_json: bool) -> None:
    """Check Python, packages, Java and brokers like a Spark job would use them."""
    from kafkad.spark import doctor

    if topic is not None and bootstrap is None:
        raise click.UsageError("--topic needs --bootstrap")
    findings = doctor.examine(bootstrap, topic, read=not no_read)
    rows = [(each.check, "ok" if each.ok else "TROUBLE", each.found, each.remedy) for each in findings]
    show(("Check", "State", "Found", "What to do"), rows, as_json)
    troubles = sum(not each.ok for each in findings)
    if troubles:
        say(f"kafkad: {troubles} of {counted(len(findings), 'check')} found a problem.")
        raise click.exceptions.Exit(1)
