"""`kafkad serve`: one broker in the foreground."""

import logging
import sys

import click


def parse_overrides(pairs: tuple[str, ...]) -> dict[str, str]:
    """`key=value` arguments as a mapping; a later one wins. Raises click.BadParameter."""
    overrides: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{pair!r} is not of the form key=value", param_hint="--override")
        overrides[key.strip()] = value.strip()
    return overrides


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("properties", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--data-dir",
    metavar="D",
    help="Where the logs are kept (log.dirs). Default: ./data without a properties file.",
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Where clients connect (listeners); port 0 takes a free one."
)
@click.option("--workers", type=int, default=1, show_default=True, help="Processes that serve; 1 for now.")
@click.option(
    "--override",
    metavar="KEY=VALUE",
    multiple=True,
    help="Any key of Kafka's server.properties; may be repeated.",
)
@click.option(
    "--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"])
)
def command(
    properties: str | None,
    data_dir: str | None,
    listen: str | None,
    workers: int,
    override: tuple[str, ...],
    log_level: str,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    PROPERTIES is Kafka's own server.properties; its keys and their meaning are Kafka's. Without it the
    broker listens on 127.0.0.1:9092 and keeps its data in ./data. An existing Kafka data directory (KRaft)
    opens as it is.

    \b
      kafkad serve
      kafkad serve --data-dir /var/lib/kafkad --listen 0.0.0.0:9092 --override num.partitions=8
      kafkad serve /etc/kafka/server.properties
    """
    from kafkad.config.broker import BrokerConfig, ConfigError

    logging.basicConfig(
        level=log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
    )
    if workers != 1:
        print(f"kafkad: --workers takes 1 in this version, not {workers}.", file=sys.stderr)
        sys.exit(2)
    overrides = parse_overrides(override)
    if data_dir is not None:
        overrides["log.dirs"] = data_dir
    elif properties is None and not {"log.dirs", "log.dir"} & overrides.keys():
        overrides["log.dirs"] = "data"
    if properties is None:
        overrides.setdefault("listeners", "PLAINTEXT://127.0.0.1:9092")
    if listen is not None:
        overrides["listeners"] = f"PLAINTEXT://{listen}"
        if properties is not None:  # what the file advertises is about its own listeners
            overrides.setdefault("advertised.listeners", f"PLAINTEXT://{listen}")
    try:
        config = BrokerConfig.load(properties, overrides)
    except (ConfigError, OSError) as trouble:
        print(f"kafkad: {trouble}", file=sys.stderr)
        sys.exit(2)
    if config.unknown_keys:
        logging.getLogger("kafkad").warning(
            "unknown configuration keys: %s", ", ".join(sorted(config.unknown_keys))
        )

    from kafkad.server.lifecycle import serve

    sys.exit(serve(config, hint=sys.stdout.isatty()))
