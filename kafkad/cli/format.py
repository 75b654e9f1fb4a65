"""`kafkad format`: make the data directories of a node ready for its first start (kafka-storage format)."""

import time
from typing import TYPE_CHECKING, Any, Final

import click

from kafkad.cli.exits import end
from kafkad.cli.output import CONTEXT

if TYPE_CHECKING:
    from kafkad.raft.control_records import Voter

FORMATS: Final = "one of the following: --standalone, --initial-controllers, or --no-initial-controllers"


@click.command(context_settings=CONTEXT)
@click.argument("properties", required=False, type=click.Path(dir_okay=False))
@click.option(
    "-c", "--config", "config_file", type=click.Path(dir_okay=False), help="The same as PROPERTIES."
)
@click.option(
    "-t", "--cluster-id", metavar="ID", help="The cluster id, the same for all nodes. Default: a random one."
)
@click.option("--data-dir", metavar="D", help="Directory of the data (log.dirs).")
@click.option("--override", metavar="KEY=VALUE", multiple=True, help="Set a key of server.properties.")
@click.option("-s", "--standalone", is_flag=True, help="This controller is the only voter, for now.")
@click.option(
    "-I",
    "--initial-controllers",
    metavar="ID@HOST:PORT:DIRECTORY,...",
    help="The first voters, the same for all nodes; DIRECTORY is the id of the voter's metadata directory.",
)
@click.option(
    "-N",
    "--no-initial-controllers",
    is_flag=True,
    help="Name no voters: the quorum exists, or another node creates it.",
)
@click.option("-g", "--ignore-formatted", is_flag=True, help="Skip directories that are formatted.")
@click.option(
    "-r",
    "--release-version",
    metavar="V",
    help="The Kafka release whose feature levels the cluster begins with, such as 4.0.",
)
@click.option("--random-uuid", is_flag=True, help="Print an id for a cluster or a directory, and end.")
@click.option(
    "-S",
    "--add-scram",
    "scram",
    metavar="MECHANISM=[name=N,password=P]",
    multiple=True,
    help="Create a user that logs in by SCRAM; may be repeated.",
)
@click.option(
    "-f",
    "--feature",
    "features",
    metavar="NAME=LEVEL",
    multiple=True,
    help="Set one feature level; may be repeated.",
)
def command(
    properties: str | None,
    config_file: str | None,
    cluster_id: str | None,
    data_dir: str | None,
    override: tuple[str, ...],
    standalone: bool,
    initial_controllers: str | None,
    no_initial_controllers: bool,
    ignore_formatted: bool,
    release_version: str | None,
    random_uuid: bool,
    scram: tuple[str, ...],
    features: tuple[str, ...],
) -> None:
    """Format the data directories of a node of a cluster, for kafkad and for Kafka.

    All nodes are given the same cluster id. With controller.quorum.voters in the file nothing else is needed;
    with controller.quorum.bootstrap.servers the first voters are named here. A broker that is alone formats
    its directory by itself at the first start; with --add-scram, the first user is there at once.

    \b
      ID=$(kafkad format --random-uuid)
      kafkad format server.properties --cluster-id $ID
      kafkad format server.properties -t $ID --initial-controllers 1@a:9093:$DIR_A,2@b:9093:$DIR_B
    """
    from kafkad.cli.format_scram import SINCE, scram_record
    from kafkad.cli.serve import parse_overrides
    from kafkad.config.broker import BrokerConfig, ConfigError
    from kafkad.config.served import is_alone
    from kafkad.log.formatting import Content, FormatRefused, cluster_id_of, format_directories
    from kafkad.metadata.releases import name_of
    from kafkad.raft.bootstrap import build_bootstrap, build_voters_checkpoint

    if random_uuid:
        print(_random_uuid())
        return
    if sum((standalone, initial_controllers is not None, no_initial_controllers)) > 1:
        raise click.UsageError(f"give only {FORMATS}")
    if properties is not None and config_file is not None:
        raise click.UsageError("give the properties file once")
    overrides = parse_overrides(override)
    if data_dir is not None:
        overrides["log.dirs"] = data_dir
    if properties is None and config_file is None and "log.dirs" not in overrides:
        raise click.UsageError("name a properties file, or --data-dir")
    try:
        config = BrokerConfig.load(properties or config_file, overrides)
        levels = _levels(release_version, features)
        users = [scram_record(text) for text in scram]
        if users and levels["metadata.version"] < SINCE:
            raise ValueError("SCRAM is only supported in metadata.version 3.5-IV2 or later")
        voters = _voters(config, standalone, initial_controllers, no_initial_controllers)
    except (ConfigError, ValueError) as wrong:
        end(str(wrong), 2)
    metadata = config.metadata_log_dir or config.log_dirs[0]
    paths = sorted({*config.log_dirs, metadata})
    try:
        found = cluster_id or cluster_id_of(paths)
    except FormatRefused as refused:
        end(str(refused), 1)
    made = found is None
    cluster_id = found or _random_uuid()
    now_ms = int(time.time() * 1000)
    content = Content(
        cluster_id,
        config.node_id,
        build_bootstrap(now_ms, levels, users),
        build_voters_checkpoint(voters, now_ms) if voters else None,
        next((each.directory_id for each in voters if each.voter_id == config.node_id), None),
    )
    try:
        formatted = format_directories(paths, metadata, content, ignore_formatted=ignore_formatted)
    except FormatRefused as refused:
        end(str(refused), 1)
    if not formatted:
        print("All of the log directories are already formatted.")
        return
    kind = "metadata directory" if not voters else "dynamic metadata directory"
    if content.directory_id is not None:
        kind = "dynamic metadata voter directory"
    version = name_of(levels["metadata.version"])
    for path in formatted:
        what = kind if path == metadata else "data directory"
        print(f"Formatting {what} {path} with metadata.version {version}.")
    if made:
        others = f" The other nodes need it: kafkad format --cluster-id {cluster_id}"
        print(f"Cluster ID: {cluster_id}.{'' if is_alone(config) else others}")


def _random_uuid() -> str:
    from kafkad.log.checkpoints import uuid_text
    from kafkad.log.identity import random_id

    return uuid_text(random_id())


def _levels(release_version: str | None, features: tuple[str, ...]) -> dict[str, int]:
    """Feature levels, metadata.version first. Raises ValueError."""
    from kafkad.metadata.features import BY_NAME, KRAFT_VERSION, METADATA_VERSION, fresh_levels
    from kafkad.metadata.releases import default_levels, metadata_level

    if release_version is None:
        levels = fresh_levels()
    else:
        levels = default_levels(metadata_level(release_version))
    for text in features:
        name, equals, level = text.partition("=")
        name = name.strip()
        if not equals or not level.strip().isdecimal():
            raise ValueError(f"Can't parse feature=level string {text}")
        if name == METADATA_VERSION:
            raise ValueError(f"Use --release-version instead of --feature {METADATA_VERSION}=X")
        if name == KRAFT_VERSION:
            raise ValueError("kraft.version follows from controller.quorum.voters; leave --feature away")
        known = BY_NAME.get(name)
        if known is None:
            raise ValueError(f"Unsupported feature: {name}. Supported features are: {', '.join(BY_NAME)}")
        if not known.lowest <= int(level) <= known.highest:
            raise ValueError(f"{name} has the levels {known.lowest} to {known.highest}, not {level}")
        levels[name] = int(level)
    others = sorted(name for name, level in levels.items() if level and name != METADATA_VERSION)
    return {name: levels[name] for name in (METADATA_VERSION, *others)}


def _voters(config: Any, standalone: bool, initial: str | None, none: bool) -> "list[Voter]":
    """The first voters of the log, none with controller.quorum.voters. Raises ValueError."""
    from kafkad.config.served import is_alone
    from kafkad.log.checkpoints import uuid_bytes
    from kafkad.log.identity import random_id
    from kafkad.protocol.errors import Malformed
    from kafkad.raft.control_records import Voter

    is_controller = "controller" in config.process_roles
    listener = (config.controller_listener_names or ["CONTROLLER"])[0].upper()
    if config.controller_quorum_voters:
        if standalone or initial is not None:
            raise ValueError(
                "You cannot specify controller.quorum.voters and format the node with --initial-controllers"
                " or --standalone. If you want to use dynamic quorum, please remove"
                " controller.quorum.voters and specify controller.quorum.bootstrap.servers instead"
            )
        return []
    if standalone:
        if not is_controller:
            raise ValueError("You can only use --standalone on a controller")
        told = {point.listener: point for point in config.controller_endpoints}
        told |= {point.listener: point for point in config.advertised_endpoints if point.listener in told}
        if listener not in told:
            raise ValueError(
                "No controller listeners found. A broker without one is alone: format it without --standalone"
            )
        at = told[listener]
        return [Voter(config.node_id, random_id(), {listener: (at.host or "localhost", at.port)})]
    if initial is None:
        if is_alone(config) and not config.controller_endpoints:
            return []  # nobody else could ever vote
        if is_controller and not none:
            raise ValueError(
                f"Because controller.quorum.voters is not set on this controller, you must specify {FORMATS}"
            )
        return []
    found = []
    for text in initial.split(","):
        node, _, rest = text.strip().partition("@")
        at, _, directory = rest.rpartition(":")
        host, _, port = at.rpartition(":")
        try:
            number, port_number, directory_id = int(node), int(port), uuid_bytes(directory)
        except (ValueError, Malformed):
            raise ValueError(f"{text} is not of the form id@host:port:directory") from None
        if not host or not 0 < port_number < 65536:
            raise ValueError(f"{text} is not of the form id@host:port:directory")
        found.append(Voter(number, directory_id, {listener: (host.strip("[]"), port_number)}))
    if len({voter.voter_id for voter in found}) < len(found):
        raise ValueError(f"{initial} names a node twice")
    return found
