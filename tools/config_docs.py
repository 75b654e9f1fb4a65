"""Write docs/configuration.md from the tables of keys. With `--check`, change nothing and exit with 1 if the
page is out of date."""

import sys
from collections.abc import Mapping
from pathlib import Path

from kafkad.config.broker_keys import BROKER_KEYS, BROKER_QUOTA_KEYS, RETIRED_KEYS
from kafkad.config.client_metrics import CLIENT_METRICS_KEYS
from kafkad.config.definition import Key, to_string
from kafkad.config.effects import OF, OF_A_CLUSTER, Effect
from kafkad.config.group import GROUP_KEYS
from kafkad.config.topic import TOPIC_KEYS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEAD = """# Configuration

<!-- Written by tools/config_docs.py from kafkad/config; change it there. -->

kafkad reads Kafka's `server.properties`. It knows the keys of Kafka 4.3, and those of 3.9, so that older
files load. `kafkad serve server.properties --override num.partitions=3` reads the file; the override wins. A
wrong value ends the start with an error message that names the key, the value and the allowed values. An
unknown key is logged as a warning.

Without a file, kafkad is broker and controller in one process, with `node.id` 1. Unlike Kafka 4.3, kafkad
does not require `process.roles`, `node.id` and `controller.listener.names`. With `process.roles=broker`,
`process.roles=controller`, or several controllers in `controller.quorum.voters` or
`controller.quorum.bootstrap.servers`, it is a node of a [cluster](cluster.md). Then `node.id` must be set,
and `kafkad format` must have formatted its directories.

The column *effect* says what kafkad does with a key:

- acted on: The key works as in Kafka.
- ignored: The key has no effect, and clients cannot notice. If the value is not the default, the broker logs
  one warning that names the key.
- in a cluster: A node of a cluster acts on the key. For a broker that is its own controller it is ignored.
- **refused**: The key asks for something that kafkad does not have. The start ends with an error message that
  names the key, the value and what to do. A change while the broker runs is refused with INVALID_CONFIG. The
  default is allowed. If the column says *with exceptions*, the values in the table of
  [refused keys](#refused-and-ignored-keys) are allowed, too.

Also refused: `listener.name.<listener>.<key>` if kafkad applies the key to all listeners alike, and in a
cluster `ssl.cipher.suites` for a controller's listener.

The authorizer has two keys that are in no table: `super.users` and `allow.everyone.if.no.acl.found`
([security.md](security.md#acls)). Only the properties file sets them.

The column *changes* says when a key can change: `read-only` keys at a restart; `per-broker` and
`cluster-wide` keys while the broker runs, for one broker or for all of them (`kafka-configs --alter
--entity-type brokers`). If a key is set in several places, the first of these wins: the topic, this broker's
dynamic value, the dynamic value of all brokers, the file, the default.

Only the properties file sets the security of a listener (`sasl.*` and `ssl.*`), except its stores and their
passwords: a change while the broker runs is refused, and Kafka accepts it without an effect. Only the
file sets `listeners` and `listener.security.protocol.map`; dynamic values of a JVM broker are ignored with a
warning.
"""

SECTIONS = (
    ("Broker", "", BROKER_KEYS, True),
    (
        "Broker, dynamic only",
        "These keys are set while the broker runs, never in the file.",
        BROKER_QUOTA_KEYS,
        True,
    ),
    ("Topic", "The column *from* names the broker's key that is the topic's default.", TOPIC_KEYS, False),
    ("Group", "The column *from* names the broker's key that is the group's default.", GROUP_KEYS, False),
    ("Client metrics subscription", "", CLIENT_METRICS_KEYS, False),
)


def page() -> str:
    parts = [HEAD]
    for title, introduction, keys, of_broker in SECTIONS:
        parts.append(f"\n## {title}\n" + (f"\n{introduction}\n" if introduction else ""))
        parts.append(table(keys, of_broker))
    parts.append("\n## Refused and ignored keys\n\nEach reason, and the keys that it applies to.\n")
    parts.append("\n| reason | keys | effect | allowed values |\n|---|---|---|---|\n")
    because: dict[tuple[str, ...], list[str]] = {}
    for name, what in OF.items():
        allowed = ", ".join(map(code, what.allowed))
        shown = "ignored, unless in a cluster" if name in OF_A_CLUSTER else what.effect.value
        because.setdefault((what.because, shown, allowed), []).append(name)
    for (reason, effect, allowed), names in because.items():
        parts.append(f"| {reason} | {', '.join(map(code, names))} | {effect} | {allowed} |\n")
    parts.append("\n## Keys of Kafka 3.9 and older\n\nThese keys are accepted and have no effect.\n")
    parts.append("\n| key | reason |\n|---|---|\n")
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
    shown = "in a cluster" if key.name in OF_A_CLUSTER else key.treatment.effect.value
    if key.treatment.effect is not Effect.REFUSED:
        return shown
    what = OF.get(key.name)
    return f"**{shown}**, with exceptions" if what is not None and what.allowed else f"**{shown}**"


def code(text: str | None) -> str:
    return "null" if text is None else f"`{text}`" if text else ""


def main(arguments: list[str]) -> int:
    written = PAGE.read_text() if PAGE.exists() else ""
    if "--check" in arguments:
        if written == page():
            return 0
        print(f"{PAGE.name} is out of date: run python tools/config_docs.py", file=sys.stderr)
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
