"""`kafkad serve`: run one node in the foreground: a broker, a controller, or both."""

import logging
import sys

import click

from kafkad.cli.main import end

DEFAULT_LISTENER = "PLAINTEXT://127.0.0.1:9092"
WORKERS_MAX = 64  # a partition's shared row has one bit per waiting worker


def parse_overrides(pairs: tuple[str, ...]) -> dict[str, str]:
    """Parse `key=value` arguments. A later one wins. Raise click.BadParameter."""
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
    help="Directory of the data (log.dirs). Default without a properties file: ./data.",
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Address for clients (listeners); port 0 picks a free port."
)
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    envvar="KAFKAD_WORKERS",
    show_default="one per usable core; for a controller of a cluster 1",
    help="Number of worker processes. Each leads a part of the partitions; a supervisor restarts dead ones.",
)
@click.option(
    "--override",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a key of Kafka's server.properties; may be repeated.",
)
@click.option(
    "--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"])
)
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
    from kafkad.cli.start_checks import check_start
    from kafkad.config.broker import BrokerConfig, ConfigError
    from kafkad.config.served import check_workers, ignored
    from kafkad.server.cores import usable_cores
    from kafkad.server.stderr import OneLine, StderrHandler, open_standard_streams

    open_standard_streams()
    overrides = parse_overrides(override)
    if data_dir is not None:
        overrides["log.dirs"] = data_dir
    elif properties is None and not {"log.dirs", "log.dir"} & overrides.keys():
        overrides["log.dirs"] = "data"
    if properties is None:
        overrides.setdefault("listeners", DEFAULT_LISTENER)
    try:
        if listen is not None:
            overrides |= listen_on(listen, properties, overrides)
        config = BrokerConfig.load(properties, overrides)
        check_start(config)
        workers = check_workers(config, workers, min(usable_cores(), WORKERS_MAX))
    except OSError as trouble:
        end(f"{trouble.filename}: {trouble.strerror}", 2)
    except (ConfigError, ValueError) as wrong:
        end(str(wrong), 2)
    handler = StderrHandler(shared=workers > 1)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    logger = logging.getLogger("kafkad")
    if config.unknown_keys:
        logger.warning("unknown configuration keys: %s", ", ".join(sorted(config.unknown_keys)))
    for sentence in ignored(config):
        logger.warning("%s", sentence)

    from kafkad.server.lifecycle import serve

    sys.exit(serve(config, workers))


EVERY_INTERFACE = ("0.0.0.0", "::", "[::]")


def listen_on(address: str, properties: str | None, overrides: dict[str, str]) -> dict[str, str]:
    """Return the configuration changes for --listen: clients connect to this address only. The controller's
    listeners of a properties file are kept. Its advertised listeners are dropped, because they belong to the
    listeners that --listen replaces.
    """
    given = overrides
    if properties is not None:
        from kafkad.config.properties import read_properties

        given = read_properties(properties) | overrides
    controllers = {name.strip() for name in given.get("controller.listener.names", "").split(",")}
    kept = [
        one.strip()
        for one in given.get("listeners", "").split(",")
        if one.strip() and one.strip().partition("://")[0] in controllers
    ]
    host, colon, port = address.rpartition(":")
    if colon and host in EVERY_INTERFACE:
        address = (
            f":{port}"  # this address cannot be advertised; without a host, the broker uses its own name
        )
    changed = {"listeners": ",".join([f"PLAINTEXT://{address}", *kept])}
    if properties is not None and "advertised.listeners" not in overrides:
        # Without a host in the address, the broker advertises its own name.
        changed["advertised.listeners"] = f"PLAINTEXT://{address}"
    return changed
