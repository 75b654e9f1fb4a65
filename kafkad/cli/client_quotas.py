"""`kafkad configs` for client quotas (KIP-546), with the words of kafka-configs:

--entity-type users|clients|ips, each with --entity-name NAME or --entity-default; users and clients together
--add-config producer_byte_rate=1048576      --delete-config producer_byte_rate"""

from typing import Any, Final

import click

from kafkad.cli.output import show
from kafkad.client.connection import Connection
from kafkad.protocol import messages
from kafkad.protocol.errors import KafkaError

TYPES: Final = {"users": "user", "clients": "client-id", "ips": "ip"}
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
COLUMNS: Final = ("User", "Client ID", "IP", "Key", "Value")
DEFAULT_NAME: Final = "<default>"

Entity = dict[str, str | None]  # by type: a name, or None for the default
ANY: Final = object()


def alter(connection: Connection, entity: Entity, pairs: dict[str, str], gone: list[str]) -> None:
    """Raises KafkaError, click.BadParameter."""
    entry = messages.AlterClientQuotasRequest.Entries
    ops = [entry.Ops(key=key, value=_number(key, text), remove=False) for key, text in pairs.items()]
    ops += [entry.Ops(key=key, value=0.0, remove=True) for key in gone]
    parts = [entry.Entity(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    request = messages.AlterClientQuotasRequest(entries=[entry(entity=parts, ops=ops)])
    told = connection.ask(request).entries[0]
    if told.error_code:
        raise KafkaError(told.error_code, told.error_message)


def rows(connection: Connection, entity: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What there is for exactly these types; a name may be ANY. Raises KafkaError."""
    component = messages.DescribeClientQuotasRequest.Components
    components = [
        component(
            entity_type=kind,
            match_type=SPECIFIED if name is ANY else DEFAULT if name is None else EXACT,
            match=None if name is ANY else name,
        )
        for kind, name in entity.items()
    ]
    told = connection.ask(messages.DescribeClientQuotasRequest(components=components, strict=True))
    if told.error_code:
        raise KafkaError(told.error_code, told.error_message)
    found = []
    for entry in told.entries or ():
        names = {
            part.entity_type: DEFAULT_NAME if part.entity_name is None else part.entity_name
            for part in entry.entity
        }
        parts = tuple(names.get(kind) for kind in TYPES.values())
        found += [(*parts, value.key, value.value) for value in entry.values]
    return sorted(found, key=lambda row: [cell or "" for cell in row[:4]])


def describe(connection: Connection, entity: dict[str, Any], as_json: bool) -> None:
    show(COLUMNS, rows(connection, entity), as_json)


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{key}={text}: not a number", param_hint="--add-config") from None
