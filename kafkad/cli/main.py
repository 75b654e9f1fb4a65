"""The command `kafkad`. Each subcommand is a file of this folder, imported only when it is called.

Exit codes: 0 done, 1 the broker or the request said no, 2 the command line or the configuration is wrong.
"""

import importlib
import sys

import click

import kafkad

# name -> (module, one line of help)
COMMANDS = {
    "serve": ("kafkad.cli.serve", "Run a broker."),
    "topics": ("kafkad.cli.topics", "Create, list, describe, alter and delete topics."),
    "configs": ("kafkad.cli.configs", "Describe and alter the configuration of topics and brokers."),
    "groups": ("kafkad.cli.groups", "List, describe, delete and reset consumer groups."),
    "produce": ("kafkad.cli.produce", "Write records from standard input or a file to a topic."),
    "consume": ("kafkad.cli.consume", "Print the records of a topic."),
    "dump-log": ("kafkad.cli.dump_log", "Print what is in segment, index, snapshot and checkpoint files."),
    "cluster": ("kafkad.cli.cluster", "Show brokers, metadata and API versions of a cluster."),
}


class Lazy(click.Group):
    """A group that knows its commands by name and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        row = COMMANDS.get(name)
        return importlib.import_module(row[0]).command if row else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(kafkad.__version__, prog_name="kafkad")
def group() -> None:
    """An Apache Kafka broker: same clients, same tools, same files.

    \b
    Start one:          kafkad serve --data-dir ./data
    Make a topic:       kafkad topics --create --topic flights --partitions 4
    Write and read:     echo hello | kafkad produce --topic flights
                        kafkad consume --topic flights --from-beginning
    Your Kafka's own:   kafkad serve /etc/kafka/server.properties

    Every command takes --help, and those that ask a broker take --bootstrap-server (default 127.0.0.1:9092)
    and --json.
    """


def main() -> None:
    if not __debug__:
        print("kafkad does not run under python -O: its assertions guard your data.", file=sys.stderr)
        sys.exit(2)
    group(prog_name="kafkad")
