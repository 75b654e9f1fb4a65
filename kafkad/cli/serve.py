"""`kafkad serve`: run one node in the foreground: a broker, a controller, or both."""

import click

from kafkad.cli import serving
from kafkad.cli.serving import LOG_LEVEL, LOG_LEVELS, WORKERS_MAX, WORKERS_VARIABLE, serve_node


def parse_overrides(pairs: tuple[str, ...]) -> dict[str, str]:
    """Parse `key=value` arguments. Raise click.BadParameter."""
    try:
        return serving.parse_overrides(pairs)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="--override")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("properties", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--data-dir",
    metavar="D",
    help="Directory of the data (log.dirs). Default without a properties file: ./data.",
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Address for clients (listeners); port 0 picks a free port."
)
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    envvar=WORKERS_VARIABLE,
    show_default="one per usable core; for a controller of a cluster 1",
    help="Number of worker processes. Each leads a part of the partitions; a supervisor restarts dead ones.",
)
@click.option(
    "--override",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a key of Kafka's server.properties; may be repeated.",
)
@click.option("--log-level", default=LOG_LEVEL, show_default=True, type=click.Choice(LOG_LEVELS))
def command(
    properties: str | None,
    data_dir: str | None,
    listen: str | None,
    workers: int | None,
    override: tuple[str, ...],
    log_level: str,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    PROPERTIES is a server.properties file of Kafka. Without it, the broker listens on 127.0.0.1:9092 and
    stores its data in ./data. An existing Kafka data directory (KRaft) opens unchanged. If the file asks for
    something that kafkad does not support, the start ends with an error message that names the key.
    With process.roles=broker or controller, or several controllers, it is a node of a cluster; its directory
    is formatted first (kafkad format).

    \b
      kafkad serve
      kafkad serve --data-dir /var/lib/kafkad --listen 0.0.0.0:9092 --override num.partitions=8
      kafkad serve /etc/kafka/server.properties
    """
    parse_overrides(override)
    serve_node(properties, data_dir, listen, workers, override, log_level)
