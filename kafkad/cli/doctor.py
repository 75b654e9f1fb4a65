"""`kafkad doctor`: find problems before they happen.

    spark      everything that a Spark job with format("kafkad") needs (kafkad/spark/doctor). It starts Spark
               briefly, except with --no-read
    cluster    what would not work if kafkad took the place of a node (kafkad/cli/doctor_cluster)

Each prints a table of findings, with what to do about each problem, and exits with 1 if there is one. A
broker is contacted only if it is named.
"""

from collections.abc import Sequence

import click

from kafkad.cli.output import CONTEXT, Address, check_client_file, connected, counted, say, show

TROUBLE = "TROUBLE"


@click.group("doctor", context_settings=CONTEXT)
def command() -> None:
    """Find problems before they happen: of Spark jobs, and of nodes that kafkad is to take over."""


@command.command(context_settings=CONTEXT)
@click.option(
    "--bootstrap", "--bootstrap-server", "bootstrap", type=Address(), metavar="HOST:PORT[,...]",
    envvar="KAFKAD_BOOTSTRAP_SERVER", help="Read from this broker, too.",
)  # fmt: skip
@click.option("--topic", help="The topic to read from; default: the first one.")
@click.option("--no-read", is_flag=True, help="Do not start Spark.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def spark(bootstrap: str | None, topic: str | None, no_read: bool, as_json: bool) -> None:
    """Check Python, packages, Java and brokers as a Spark job would use them."""
    from kafkad.spark import doctor

    if topic is not None and bootstrap is None:
        raise click.UsageError("--topic needs --bootstrap")
    findings = doctor.examine(bootstrap, topic, read=not no_read)
    rows = [(each.check, "ok" if each.ok else TROUBLE, each.found, each.remedy) for each in findings]
    report(rows, as_json)


@command.command(context_settings=CONTEXT)
@click.argument("properties", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--command-config",
    metavar="FILE",
    expose_value=False,
    callback=check_client_file,
    help="A client's properties file with login and TLS settings (security.protocol, sasl.*, ssl.*).",
)
@click.option(
    "--bootstrap-server",
    "bootstrap",
    type=Address(),
    metavar="HOST:PORT[,...]",
    envvar="KAFKAD_BOOTSTRAP_SERVER",
    help="Look at this running cluster, too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cluster(properties: str | None, bootstrap: str | None, as_json: bool) -> None:  # fmt: skip
    """Report what would not work if kafkad took the place of a node.

    PROPERTIES is the node's server.properties; the check finds settings that kafkad refuses.
    --bootstrap-server is a running cluster of JVM Kafka or kafkad; the check finds features that it uses and
    kafkad does not support, and whether it could lose a node now without an interruption.

    \b
      kafkad doctor cluster /etc/kafka/server.properties --bootstrap-server kafka1:9092
    """
    from kafkad.cli import doctor_cluster

    if properties is None and bootstrap is None:
        raise click.UsageError("name a server.properties file, --bootstrap-server, or both")
    findings: list[doctor_cluster.Finding] = []
    if properties is not None:
        findings += doctor_cluster.examine_node(properties)
    if bootstrap is not None:
        with connected(bootstrap) as found:
            findings += doctor_cluster.examine_cluster(found)
    report(findings, as_json)


def report(rows: Sequence[tuple[str, str, str, str]], as_json: bool) -> None:
    shown = [(check, state, found, advice or None) for check, state, found, advice in rows]
    show(("Check", "State", "Found", "What to do"), shown, as_json)
    troubles = sum(row[1] == TROUBLE for row in rows)
    if troubles:
        say(f"kafkad: {troubles} of {counted(len(rows), 'check')} found a problem.")
        raise click.exceptions.Exit(1)
