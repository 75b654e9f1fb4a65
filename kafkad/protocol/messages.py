"""Every message of the protocol as a class, created from its schema at its first use.

    request = messages.MetadataRequest(topics=[messages.MetadataRequest.Topics(name="flights")])

Fields have Kafka's names in snake_case, are given by keyword, and default to the schema's defaults. Nested
structs are attributes of their message, with the field's name in CamelCase. A top-level class also has

    NAME             "MetadataRequest"
    API_KEY          for requests and responses, else None
    RECORD_TYPE      the id of a record in its family (records_*.txt), else None
    MIN_VERSION      including the versions that Kafka 4.0 dropped
    MAX_VERSION      the highest stable version; LATEST_VERSION includes an unstable one
    FLEXIBLE_VERSION the first flexible version, schema.NEVER_FLEXIBLE if there is none

An import only reads the names of the files. A file is read at the first use of one of its messages, which
takes a tenth of a millisecond. A broker reads all files that it needs at its start (server/preload.py).

Beware: clients use messages in several threads. If two of them read a file at once, the classes of the first
one count, because the codec refuses a struct of another class of the same name."""

from pathlib import Path
from typing import Any

from kafkad._native.wire.codec import Message, Spec
from kafkad.protocol.schema import NEVER_FLEXIBLE, NONE, Schema, camel_case, parse

SCHEMAS = Path(__file__).parent / "schemas"

API_FILES: dict[int, Path] = {}  # by key
NAMES: dict[int, str] = {}  # Kafka's names of the APIs, "Metadata", by key
RECORD_FILES: list[Path] = []  # everything else
KEYS: dict[str, int] = {}  # by API name

for _path in sorted(SCHEMAS.iterdir()):
    _number, _, _name = _path.stem.partition("_")
    if _number.isdigit():
        API_FILES[int(_number)] = _path
        NAMES[int(_number)] = camel_case(_name)
    else:
        RECORD_FILES.append(_path)
KEYS.update((name, key) for key, name in NAMES.items())


def request_class(api_key: int) -> type[Message]:
    """Return the request class of an API key. Raise KeyError for an unknown key."""
    return message_class(NAMES[api_key] + "Request")


def response_class(api_key: int) -> type[Message]:
    return message_class(NAMES[api_key] + "Response")


def record_classes(family: str) -> list[type[Message]]:
    """Return the messages of records_<family>.txt: control, metadata, group, transaction, share, raft,
    storage."""
    return [message_class(name) for name in load(SCHEMAS / f"records_{family}.txt")]


def all_names() -> list[str]:
    """Return the names of all top-level messages. This reads every file."""
    return [name for path in (*API_FILES.values(), *RECORD_FILES) for name in load(path)]


def message_class(name: str) -> type[Message]:
    """Return the class with Kafka's name. Raise KeyError."""
    found = globals().get(name)
    if found is None:
        api = name.removesuffix("Request").removesuffix("Response")
        if api in KEYS:
            load(API_FILES[KEYS[api]])
        else:
            for path in RECORD_FILES:
                load(path)
        found = globals().get(name)
    if not (isinstance(found, type) and issubclass(found, Message)):
        raise KeyError(name)
    return found


def __getattr__(name: str) -> Any:
    if name[:1].isupper():
        try:
            return message_class(name)
        except KeyError:
            pass
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_loaded: dict[Path, dict[str, type[Message]]] = {}


def load(path: Path) -> list[str]:
    """Add the classes of one file to this module, once. Return their names."""
    if path not in _loaded:
        made = {schema.name: make_message(schema) for schema in parse(path.read_text())}
        globals().update(_loaded.setdefault(path, made))  # one step: no other thread comes between
    return list(_loaded[path])


def make_message(schema: Schema) -> type[Message]:
    return make_class(
        schema.spec,
        {
            "NAME": schema.name,
            "API_KEY": schema.key,
            "RECORD_TYPE": schema.record,
            "MIN_VERSION": schema.versions[0],
            "MAX_VERSION": schema.highest_stable,
            "LATEST_VERSION": schema.versions[1],
            "FLEXIBLE_VERSION": NEVER_FLEXIBLE if schema.flexible == NONE else schema.flexible[0],
        },
    )


def make_class(spec: Spec, attributes: dict[str, Any]) -> type[Message]:
    body = {
        "__slots__": tuple(field.name for field in spec.fields),
        "__module__": __name__,
        "__qualname__": spec.path,
        "SPEC": spec,
        **attributes,
    }
    body.update(
        (camel_case(field.name), make_class(field.struct, {})) for field in spec.fields if field.struct
    )
    made = type(spec.path.rpartition(".")[2], (Message,), body)
    spec.bind(made)
    return made
