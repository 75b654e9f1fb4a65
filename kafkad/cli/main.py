"""The command `kafkad`. Each subcommand is a file of this folder, imported only when it is called.

Whatever goes wrong ends here, as one sentence on stderr and an exit code:

    0    done
    1    the broker, or what was asked for, said no
    2    the command line or the configuration is wrong
    70   kafkad itself is wrong (KAFKAD_DEBUG=1 shows where)
    130, 143, 141   Ctrl-C, SIGTERM, and a reader of our output that went away, as the shell counts them
"""

import importlib
import os
import signal
import sys
from typing import Any, NoReturn

import click

import kafkad

# name -> (module, one line of help)
COMMANDS = {
    "serve": ("kafkad.cli.serve", "Run a broker."),
    "topics": ("kafkad.cli.topics", "Create, list, describe, alter and delete topics."),
    "configs": ("kafkad.cli.configs", "Describe and alter configuration of topics, brokers, groups."),
    "groups": ("kafkad.cli.groups", "List, describe, delete and reset consumer groups."),
    "transactions": ("kafkad.cli.transactions", "List, describe and end transactions; find those that hang."),
    "offsets": ("kafkad.cli.offsets", "Show where partitions begin and end; delete records."),
    "produce": ("kafkad.cli.produce", "Write records from standard input or a file to a topic."),
    "consume": ("kafkad.cli.consume", "Print the records of a topic."),
    "acls": ("kafkad.cli.acls", "Say who may do what: add, remove and list ACLs."),
    "certs": ("kafkad.cli.certs", "Make certificates for TLS, for development."),
    "cluster": ("kafkad.cli.cluster", "Show brokers, metadata, API versions, log directories."),
    "doctor": ("kafkad.cli.doctor", "Look for what keeps Spark from reading and writing topics."),
    "dump-log": ("kafkad.cli.dump_log", "Print what is in segment, index, snapshot and checkpoint files."),
    "ingest": ("kafkad.cli.ingest", "Land topics in tables, each record exactly once, by a small file."),
}

INTERRUPTED, TERMINATED, BROKEN_PIPE, OURS = 130, 143, 141, 70


class Lazy(click.Group):
    """A group that knows its commands by name and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        row = COMMANDS.get(name)
        return importlib.import_module(row[0]).command if row else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Until its module is imported a command holds nothing, and a signal may end it as it ends any
        process; an exception raised during an import may be swallowed there (kafkad/__main__.py).
        """
        found = super().resolve_command(ctx, args)
        if found[0] != "serve":  # which has handlers of its own
            signal.signal(signal.SIGTERM, terminated)
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Click has exit codes and words of its own for these two."""
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
    Start one:          kafkad serve --data-dir ./data
    Make a topic:       kafkad topics --create --topic flights --partitions 4
    Write and read:     echo hello | kafkad produce --topic flights
                        kafkad consume --topic flights --from-beginning
    Who reads what:     kafkad groups --describe --all-groups
    Your Kafka's own:   kafkad serve /etc/kafka/server.properties

    Flags are those of Kafka's own tools (topics is kafka-topics, and so on). Commands that ask a broker take
    --bootstrap-server (default 127.0.0.1:9092, or $KAFKAD_BOOTSTRAP_SERVER) and --json. Exit codes: 0 done,
    1 refused, 2 wrong usage.
    """


def main() -> NoReturn:
    if not __debug__:
        end("kafkad does not run under python -O: its assertions guard your data", 2)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = group.main(prog_name="kafkad", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as wrong:
        if type(wrong).__name__ == "NoArgsIsHelpError":  # of click 8.2
            print(wrong.format_message())
            leave(0)
        context = getattr(wrong, "ctx", None)
        path = context.command_path if context else "kafkad"
        end(f"{sentence(wrong.format_message())}; {path} --help shows what it takes", 2)
    except click.Abort:
        leave(INTERRUPTED)
    except KeyboardInterrupt:
        leave(INTERRUPTED)
    except BrokenPipeError:
        leave(BROKEN_PIPE)
    except Stopped as stopped:
        leave(stopped.code)
    except ImportError as trouble:
        if type(trouble).__name__ != "NotBuilt":  # of kafkad._native, which cannot be imported then
            raise
        end(str(trouble), 1)
    except Exception as trouble:
        if os.environ.get("KAFKAD_DEBUG") or sys.argv[1:2] == ["serve"]:
            raise
        end(*told(trouble))
    leave(code if isinstance(code, int) else 0)


class Stopped(BaseException):
    """From without: a command ends and puts away what it holds, whatever it was doing."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def terminated(*_: object) -> None:
    raise Stopped(TERMINATED)


def told(trouble: Exception) -> tuple[str, int]:
    """What to say of an exception, and the exit code."""
    from kafkad.cli.output import Refused
    from kafkad.client.connection import Unreachable
    from kafkad.client.security import AuthenticationFailed
    from kafkad.protocol.errors import KafkaError, Malformed

    match trouble:
        case Refused() | Malformed():
            return str(trouble), 1
        case Unreachable():
            return f"{trouble}; kafkad serve starts a broker, --bootstrap-server names another", 1
        case AuthenticationFailed():
            return f"{trouble}; --command-config names a file that says how to log in", 1
        case KafkaError():
            from kafkad.cli.output import explained

            return explained(trouble), 1
        case OSError():
            return f"{trouble.filename or 'input or output'}: {trouble.strerror or trouble}", 1
    return f"kafkad itself failed ({type(trouble).__name__}: {trouble}); KAFKAD_DEBUG=1 shows where", OURS


def sentence(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def end(text: str, code: int) -> NoReturn:
    try:
        print(f"kafkad: {sentence(text)}.", file=sys.stderr)
    except OSError:
        pass
    leave(code)


def leave(code: int) -> NoReturn:
    """Exits, without a word should the reader of stdout be gone."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = code or BROKEN_PIPE
    except ValueError:
        pass  # closed already
    sys.exit(code)
