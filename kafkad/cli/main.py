"""The command `kafkad`. Each subcommand is a file in this folder, imported only when it is called.

Every error ends here, as one error message on stderr and an exit code (cli.exits).
"""

import importlib
import os
import signal
import sys
from typing import Any, NoReturn

import click

import kafkad
from kafkad.cli.exits import (
    BROKEN_PIPE,
    INTERRUPTED,
    OURS,
    TERMINATED,
    begin,
    end,
    end_unless_built,
    leave,
    sentence,
)

# name -> (module, one line of help)
COMMANDS = {
    "serve": ("kafkad.cli.serve", "Run a broker."),
    "dev": ("kafkad.cli.dev", "Run a cluster of several nodes on this machine, for development."),
    "format": ("kafkad.cli.format", "Format the data directories of a cluster node."),
    "topics": ("kafkad.cli.topics", "Create, list, describe, alter and delete topics."),
    "configs": ("kafkad.cli.configs", "Describe and alter the configuration of topics, brokers, groups."),
    "groups": ("kafkad.cli.groups", "List, describe, delete and reset consumer groups."),
    "transactions": ("kafkad.cli.transactions", "List, describe and end transactions; find those that hang."),
    "offsets": ("kafkad.cli.offsets", "Show the first and last offsets of partitions; delete records."),
    "produce": ("kafkad.cli.produce", "Write records from standard input or a file to a topic."),
    "consume": ("kafkad.cli.consume", "Print the records of a topic."),
    "acls": ("kafkad.cli.acls", "Add, remove and list ACLs."),
    "users": ("kafkad.cli.users", "List, add and remove users that log in by SCRAM."),
    "tokens": ("kafkad.cli.tokens", "Create, list, renew and end delegation tokens."),
    "certs": ("kafkad.cli.certs", "Create TLS certificates for development."),
    "cluster": ("kafkad.cli.cluster", "Show brokers, replicas and the quorum of a cluster; move partitions."),
    "doctor": (
        "kafkad.cli.doctor",
        "Find problems before they happen: of Spark jobs, and of nodes that kafkad is to take over.",
    ),
    "dump-log": (
        "kafkad.cli.dump_log",
        "Print the contents of segment, index, snapshot and checkpoint files.",
    ),
    "ingest": ("kafkad.cli.ingest", "Copy topics into tables exactly once, driven by one TOML file."),
}


class Lazy(click.Group):
    """A group that knows its commands by name, and imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        row = COMMANDS.get(name)
        return importlib.import_module(row[0]).command if row else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the command, then install the signal handlers.

        Before the import, a command holds nothing, so a signal may simply end the process. An exception that
        is raised during an import may get lost (kafkad/__main__.py).
        """
        found = super().resolve_command(ctx, args)
        if found[0] not in ("serve", "dev"):  # they have their own handlers
            signal.signal(signal.SIGTERM, terminated)
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Replace click's own messages and exit codes for Ctrl-C and a closed output."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped(INTERRUPTED)
        except BrokenPipeError:
            raise Stopped(BROKEN_PIPE)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(kafkad.__version__, prog_name="kafkad")
def group() -> None:
    """An Apache Kafka broker: same clients, same tools, same files.

    \b
    Start a broker:     kafkad serve --data-dir ./data
    Create a topic:     kafkad topics --create --topic flights --partitions 4
    Write and read:     echo hello | kafkad produce --topic flights
                        kafkad consume --topic flights --from-beginning
    Show groups:        kafkad groups --describe --all-groups
    Use Kafka's file:   kafkad serve /etc/kafka/server.properties

    Flags are those of Kafka's own tools (topics is kafka-topics, and so on). Commands that contact a broker
    take --bootstrap-server (default 127.0.0.1:9092, or $KAFKAD_BOOTSTRAP_SERVER) and --json. Exit codes: 0
    done, 1 refused, 2 wrong usage.
    """


def main() -> NoReturn:
    begin()
    try:
        code = group.main(prog_name="kafkad", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as wrong:
        if type(wrong).__name__ == "NoArgsIsHelpError":  # of click 8.2
            print(wrong.format_message())
            leave(0)
        context = getattr(wrong, "ctx", None)
        path = context.command_path if context else "kafkad"
        end(f"{sentence(wrong.format_message())}; {path} --help shows the usage", 2)
    except click.Abort:
        leave(INTERRUPTED)
    except KeyboardInterrupt:
        leave(INTERRUPTED)
    except BrokenPipeError:
        leave(BROKEN_PIPE)
    except Stopped as stopped:
        leave(stopped.code)
    except ImportError as trouble:
        end_unless_built(trouble)
        raise
    except Exception as trouble:
        if os.environ.get("KAFKAD_DEBUG") or sys.argv[1:2] == ["serve"]:
            raise
        end(*told(trouble))
    leave(code if isinstance(code, int) else 0)


class Stopped(BaseException):
    """A signal ends the command. It inherits from BaseException, so that a command only cleans up."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def terminated(*_: object) -> None:
    raise Stopped(TERMINATED)


def told(trouble: Exception) -> tuple[str, int]:
    """Return the error message for an exception, and the exit code."""
    from kafkad.cli.output import Refused
    from kafkad.client.connection import Closed, NoTls, Unreachable
    from kafkad.client.security import AuthenticationFailed
    from kafkad.protocol.errors import KafkaError, Malformed

    match trouble:
        case Refused() | Malformed():
            return str(trouble), 1
        case Closed():
            hint = "if its listener expects TLS or a login, --command-config names a file with the settings"
            return f"{trouble}; {hint}", 1
        case NoTls():
            return f"{trouble}; does its listener use TLS? --command-config names security.protocol", 1
        case Unreachable():
            return f"{trouble}; kafkad serve starts a broker, --bootstrap-server names another", 1
        case AuthenticationFailed():
            return f"{trouble}; --command-config names a file with the login settings", 1
        case KafkaError():
            from kafkad.cli.output import explained

            return explained(trouble), 1
        case UnicodeEncodeError():
            return "an argument is not UTF-8", 2
        case ValueError() if str(trouble).endswith(" is out of range"):  # of codec.encode
            return f"the number {trouble}", 2
        case OSError():
            return f"{trouble.filename or 'input or output'}: {trouble.strerror or trouble}", 1
    return f"kafkad has a bug ({type(trouble).__name__}: {trouble}); KAFKAD_DEBUG=1 shows the traceback", OURS
