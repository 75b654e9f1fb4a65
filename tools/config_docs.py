"""Writes docs/configuration.md from the tables of keys. `--check` only says whether it is current (exit 1
if not)."""

import sys
from collections.abc import Mapping
from pathlib import Path

from kafkad.config.broker_keys import BROKER_KEYS, BROKER_QUOTA_KEYS, RETIRED_KEYS
from kafkad.config.client_metrics import CLIENT_METRICS_KEYS
from kafkad.config.definition import Key, to_string
from kafkad.config.effects import OF, Effect
from kafkad.config.group import GROUP_KEYS
from kafkad.config.topic import TOPIC_KEYS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEAD = """# Configuration

<!-- Written by tools/config_docs.py from kafkad/config; change it there. -->

kafkad takes Kafka's `server.properties` and Kafka's keys: those of Kafka 4.3, and, so that older files
load, those of 3.9. `kafkad serve server.properties --override num.partitions=3` reads the file and lets the
override win. A wrong value stops the start with one sentence that names the key, the value and what is
allowed; a key that nobody knows gives a warning that names it.

Without a file kafkad is broker and controller in one, with `node.id` 1. Where Kafka 4.3 differs: it insists
on `process.roles`, `node.id` and `controller.listener.names`.

The column *effect* says what kafkad does with a key:

- acted on: as in Kafka.
- ignored: it cannot change what a client sees here. A value of its own gives one warning that names the key.
- **refused**: it asks for something that kafkad does not have. The start ends with an error message that
names the
  key, the value and what is allowed, and a change while the broker runs is refused with INVALID_CONFIG. The
  default may be given, and so may the values in the table at the end. A listener must be PLAINTEXT, whether
  it is named after its protocol or mapped to it; `controller.quorum.voters` and
  `controller.quorum.bootstrap.servers` may name one node, this one; and `listener.name.<listener>.<key>` is
  refused where kafkad applies the key to all listeners alike.

A broker's keys change at a restart, or while it runs for one broker or for all of them (`kafka-configs
--alter --entity-type brokers`), as the column *changes* says: `read-only`, `per-broker` or `cluster-wide`.
The value that applies is the first there is of: the topic's, this broker's dynamic one, that of all
brokers, the file's, the default.
"""

SECTIONS = (
    ("Broker", "", BROKER_KEYS, True),
    ("Broker, dynamic only", "Set while the broker runs, never in the file.", BROKER_QUOTA_KEYS, True),
    ("Topic", "*From* is where a topic's default comes from.", TOPIC_KEYS, False),
    ("Group", "*From* is where a group's default comes from.", GROUP_KEYS, False),
    ("Client metrics subscription", "", CLIENT_METRICS_KEYS, False),
)


def page() -> str:
    parts = [HEAD]
    for title, introduction, keys, of_broker in SECTIONS:
        parts.append(f"\n## {title}\n" + (f"\n{introduction}\n" if introduction else ""))
        parts.append(table(keys, of_broker))
    parts.append(
        "\n## Refused, and ignored\n\nThe parts that are missing, and the keys that they would read.\n"
    )
    parts.append("\n| because | keys | effect | may be |\n|---|---|---|---|\n")
    because: dict[tuple[str, ...], list[str]] = {}
    for name, what in OF.items():
        allowed = ", ".join(map(code, what.allowed))
        because.setdefault((what.because, what.effect.value, allowed), []).append(name)
    for (reason, effect, allowed), names in because.items():
        parts.append(f"| {reason} | {', '.join(map(code, names))} | {effect} | {allowed} |\n")
    parts.append("\n## Keys of Kafka 3.9 and older\n\nAccepted, and without effect.\n")
    parts.append("\n| key | because |\n|---|---|\n")
    parts += [f"| `{name}` | {reason} |\n" for name, reason in sorted(RETIRED_KEYS.items()) if name not in OF]
    return "".join(parts)


def table(keys: Mapping[str, Key], of_broker: bool) -> str:
    last = "changes" if of_broker else "from"
    lines = [
        f"\n| key | meaning | type | default | allowed | {last} | effect |\n|---|---|---|---|---|---|---|\n"
    ]
    for key in keys.values():
        if not key.internal:
            column = key.update if of_broker else ", ".join(f"`{name}`" for name in key.synonyms)
            cells = (
                f"`{key.name}`",
                key.doc,
                key.type,
                code(to_string(key.default)),
                code(key.valid.allowed),
                column,
                effect(key),
            )
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(lines)


def effect(key: Key) -> str:
    shown = key.treatment.effect.value
    return f"**{shown}**" if key.treatment.effect is Effect.REFUSED else shown


def code(text: str | None) -> str:
    return "null" if text is None else f"`{text}`" if text else ""


def main(arguments: list[str]) -> int:
    written = PAGE.read_text() if PAGE.exists() else ""
    if "--check" in arguments:
        if written == page():
            return 0
        print(f"{PAGE.name} is not what the tables say: run python tools/config_docs.py", file=sys.stderr)
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
