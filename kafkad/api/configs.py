"""Configuration as resources: topics, brokers, groups, client metrics subscriptions and log levels.

DescribeConfigs (key 32), v0-4.   v0 tells defaults from others. v1 synonyms and sources (KIP-226). v3 types
and documentation (KIP-569). v4 flexible. AlterConfigs (key 33), v0-2.   v2 flexible. It replaces all that a
resource has: what it does not name is deleted. IncrementalAlterConfigs (key 44), v0-1.   v1 flexible. Sets,
deletes, and edits lists (KIP-339). ListConfigResources (key 74), v0-1.   v0 knows client metrics only
(KIP-714), v1 every type (KIP-1142).

Each resource is checked separately and has its own error. `invalid_resources` checks what only this broker
can check, and the controller, which writes, checks the rest; Kafka's broker and controller share the work in
the same way. The name of a broker resource is this broker's id, or "" for all brokers. A value that must
not be shown, or that of an unknown key, is null. Sources of the rules: ConfigHelper, ConfigAdminManager,
ConfigurationControlManager.

Not yet: authorization; policies (alter.config.policy.class.name is a Java class)."""

import asyncio
import inspect
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

from kafkad.api.context import RequestContext, Services
from kafkad.config import loggers
from kafkad.config.broker import BrokerConfig, base_key, is_sensitive
from kafkad.config.broker_keys import BROKER_KEYS, BROKER_QUOTA_KEYS, SYNONYMS
from kafkad.config.client_metrics import (
    CLIENT_METRICS_KEYS,
    client_metrics_values,
    validate_client_metrics_configs,
)
from kafkad.config.definition import ConfigError, Key, Value, to_string
from kafkad.config.dynamic import (
    APPEND,
    DELETE,
    DYNAMIC_KEYS,
    FIXED_HERE,
    SET,
    SUBTRACT,
    Operation,
    apply_operations,
    changed,
    validate_broker_configs,
)
from kafkad.config.group import GROUP_KEYS, group_values
from kafkad.config.listeners import parse_host_limits
from kafkad.config.served import refuse_changes, warn_ignored
from kafkad.config.topic import TOPIC_KEYS, topic_values
from kafkad.controller.configs import KEYS_MAX
from kafkad.controller.topics import invalid_name
from kafkad.metadata.features import CORDONED_LOG_DIRS
from kafkad.metadata.image import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC, MetadataImage
from kafkad.net.hosts import addresses_of, is_address
from kafkad.protocol import messages, wide
from kafkad.protocol.errors import (
    INVALID_CONFIG,
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
    KafkaError,
)

# the source of a value: DescribeConfigsResponse.ConfigSource
TOPIC_CONFIG: Final = 1
DYNAMIC_BROKER_CONFIG: Final = 2
DYNAMIC_DEFAULT_BROKER_CONFIG: Final = 3
STATIC_BROKER_CONFIG: Final = 4
DEFAULT_CONFIG: Final = 5
DYNAMIC_BROKER_LOGGER_CONFIG: Final = 6
CLIENT_METRICS_CONFIG: Final = 7
GROUP_CONFIG: Final = 8

# DescribeConfigsResponse.ConfigType; 0 is unknown
TYPES: Final = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}

HOST_LIMITS: Final = "max.connections.per.ip.overrides"
LOOKUP_TIMEOUT_S: Final = 10.0  # for a host's addresses
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,100}")  # Python does not convert 4,301 digits

Synonym = tuple[str, str | None, int]  # key, value, source
Steps = Generator[None, None, Any]


class Resource(NamedTuple):
    kind: int
    name: str
    operations: list[Operation]


# --- DescribeConfigs --------------------------------------------------------------------------------------


def describe_configs(services: Services, context: RequestContext, request: Any) -> Steps:
    return described(services.metadata.image, services.config, context, request)


def described(image: MetadataImage, config: BrokerConfig, context: RequestContext, request: Any) -> Steps:
    """Describe resources. Topics with equal values of their own (most have none) share their entries; so does
    a resource that is named repeatedly."""
    shared: dict[Any, list[Any]] = {}
    results: list[Any] = []
    for asked in request.resources:
        entries: list[Any] = []
        code, message = NONE, None
        kind, name, only = asked.resource_type, asked.resource_name, asked.configuration_keys
        wanted = yield from wide.set_of(only or ())
        are_many = len(wanted) > wide.AT_ONCE  # then nothing is shared
        keys = len(results) if are_many else frozenset(wanted)
        alike: Any = (kind, name, keys)
        if kind == TOPIC and name in image.topics:
            alike = (kind, frozenset(image.configs.get((kind, name), {}).items()), keys)
        if alike in shared:
            entries = shared[alike]
        else:
            try:
                entries = describe(image, config, kind, name, wanted)
            except KafkaError as error:
                code, message = error.code, error.message
            if not request.include_synonyms:
                for entry in entries:
                    entry.synonyms = []
            if not request.include_documentation:
                for entry in entries:
                    entry.documentation = None
            if context.version == 0:
                for entry in entries:
                    entry.is_default = entry.config_source == DEFAULT_CONFIG
            if not code:
                shared[alike] = entries
        results.append(
            messages.DescribeConfigsResponse.Results(
                error_code=code,
                error_message=message,
                resource_type=kind,
                resource_name=name,
                configs=entries,
            )
        )
        yield
        yield from wide.empty(wanted)
    yield from wide.empty(shared)
    return messages.DescribeConfigsResponse(results=results)


def describe(
    image: MetadataImage, config: BrokerConfig, kind: int, name: str, only: Set[str] = frozenset()
) -> list[Any]:
    """Return the entries of one resource, all of them or `only` those. Raises KafkaError."""
    wanted: Callable[[str], bool] = only.__contains__ if only else lambda key: True
    own = image.configs.get((kind, name), {})
    if kind == TOPIC:
        if (reason := invalid_name(name)) is not None:
            raise KafkaError(INVALID_TOPIC_EXCEPTION, reason)
        if name not in image.topics:
            raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, None)
        values = topic_values(config, own)
        return _describe_keys(config, TOPIC_KEYS, values, own, TOPIC_CONFIG, wanted)
    if kind == BROKER:
        if name:
            _check_broker_id(config, name, f"{config.node_id} or empty string,")
            return _describe_broker(config, wanted)
        return [
            _broker_entry(config, key, text, per_broker=False)
            for key, text in config.dynamic_default.items()
            if wanted(key)
        ]
    if kind == BROKER_LOGGER:
        if not name:
            raise KafkaError(INVALID_REQUEST, "Broker id must not be empty")
        _check_broker_id(config, name, str(config.node_id))
        return [_logger_entry(key, level) for key, level in loggers.levels().items() if wanted(key)]
    if kind == CLIENT_METRICS:
        if not name:
            raise KafkaError(INVALID_REQUEST, "Client metrics subscription name must not be empty")
        values = client_metrics_values(own)
        return _describe_keys(config, CLIENT_METRICS_KEYS, values, own, CLIENT_METRICS_CONFIG, wanted)
    if kind == GROUP:
        if not name:
            raise KafkaError(INVALID_REQUEST, "Group name must not be empty")
        values = group_values(config, own)
        return _describe_keys(config, GROUP_KEYS, values, own, GROUP_CONFIG, wanted)
    raise KafkaError(INVALID_REQUEST, f"Unsupported resource type: {kind}")


def _describe_keys(
    config: BrokerConfig,
    keys: Mapping[str, Key],
    values: Mapping[str, Value],
    own: Mapping[str, str],
    source: int,
    wanted: Callable[[str], bool],
) -> list[Any]:
    """Return the entries of a topic, a group or a subscription, whose own values override the broker's."""
    entries = []
    for name, key in keys.items():
        if not wanted(name) or (key.internal and name not in own):
            continue
        value = to_string(values[name])
        synonyms: list[Synonym] = [(name, value, source)] if name in own else []
        if key.synonyms:
            synonyms += _broker_synonyms(config, key.synonyms[0])
        elif source == GROUP_CONFIG:
            synonyms.append((name, to_string(key.default), DEFAULT_CONFIG))
        entries.append(_entry(name, value, synonyms, key, read_only=False))
    return entries


def _describe_broker(config: BrokerConfig, wanted: Callable[[str], bool]) -> list[Any]:
    given = config.static | config.dynamic_default | config.dynamic_broker
    entries = [
        _broker_entry(config, name, text)
        for name, text in given.items()
        if wanted(name) and (name not in BROKER_KEYS or BROKER_KEYS[name].internal)
    ]
    entries += [
        _broker_entry(config, name, to_string(config.value(name)))
        for name, key in BROKER_KEYS.items()
        if wanted(name) and not key.internal
    ]
    return entries


def _broker_entry(config: BrokerConfig, name: str, text: str | None, per_broker: bool = True) -> Any:
    synonyms = _broker_synonyms(config, name)
    if not per_broker:
        synonyms = [synonym for synonym in synonyms if synonym[2] == DYNAMIC_DEFAULT_BROKER_CONFIG]
    key = BROKER_KEYS.get(base_key(name)) or BROKER_QUOTA_KEYS.get(name)
    return _entry(name, text, synonyms, key, read_only=name not in DYNAMIC_KEYS)


def _broker_synonyms(config: BrokerConfig, name: str) -> list[Synonym]:
    """Return the possible sources of a broker key's value; the first one is in effect."""
    base = base_key(name)
    names = SYNONYMS.get(name, (name,) if base == name else (name, base))
    defaults = {
        other: to_string(BROKER_KEYS[other].default)
        for other in names
        if other in BROKER_KEYS and BROKER_KEYS[other].default is not None
    }
    found: list[Synonym] = []
    for layer, source in (
        (config.dynamic_broker, DYNAMIC_BROKER_CONFIG),
        (config.dynamic_default, DYNAMIC_DEFAULT_BROKER_CONFIG),
        (config.static, STATIC_BROKER_CONFIG),
        (defaults, DEFAULT_CONFIG),
    ):
        found += [(other, layer[other], source) for other in names if other in layer]
    while found and found[0][0] != name:
        del found[0]
    hidden = is_sensitive(name)
    return [(other, None if hidden else value, source) for other, value, source in found]


def _entry(name: str, value: str | None, synonyms: list[Synonym], key: Key | None, *, read_only: bool) -> Any:
    hidden = key is None or key.sensitive
    return messages.DescribeConfigsResponse.Results.Configs(
        name=name,
        value=None if hidden else value,
        read_only=read_only,
        config_source=synonyms[0][2] if synonyms else DEFAULT_CONFIG,
        is_sensitive=hidden,
        synonyms=[
            messages.DescribeConfigsResponse.Results.Configs.Synonyms(name=other, value=text, source=source)
            for other, text, source in synonyms
        ],
        config_type=TYPES[key.type] if key else 0,
        documentation=key.doc if key and key.name == name else None,
    )


def _logger_entry(name: str, level: str) -> Any:
    return messages.DescribeConfigsResponse.Results.Configs(
        name=name, value=level, config_source=DYNAMIC_BROKER_LOGGER_CONFIG, documentation=None
    )


# --- AlterConfigs and IncrementalAlterConfigs -------------------------------------------------------------


def alter_configs(services: Services, context: RequestContext, request: Any) -> Steps:
    resources = []
    for asked in request.resources:
        operations = []
        for config in asked.configs:
            operations.append(Operation(config.name, SET, config.value))
            yield
        resources.append(Resource(asked.resource_type, asked.resource_name, operations))
        yield
    errors = yield from invalid_resources(
        services.metadata.image,
        services.config,
        resources,
        replacing=True,
        tls=services.tls,
        is_controller=services.is_controller,
    )
    wanted = {}
    brokers = []
    for place, (kind, name, operations) in enumerate(resources):
        if place not in errors:
            if kind == BROKER:
                brokers.append(place)
            wanted[kind, name] = {operation.key: operation.value for operation in operations}
        yield
    response = messages.AlterConfigsResponse()
    yield from _respond(response, messages.AlterConfigsResponse.Responses, resources, errors)

    def write() -> Any:
        return services.controller.alter_configs(wanted, request.validate_only, context)

    return _written(write, wanted, resources, errors, brokers, response)


def incremental_alter_configs(services: Services, context: RequestContext, request: Any) -> Steps:
    resources = []
    for asked in request.resources:
        operations = []
        for config in asked.configs:
            operations.append(Operation(config.name, config.config_operation, config.value))
            yield
        resources.append(Resource(asked.resource_type, asked.resource_name, operations))
        yield
    errors = yield from invalid_resources(
        services.metadata.image,
        services.config,
        resources,
        tls=services.tls,
        is_controller=services.is_controller,
    )
    changes = {}
    brokers = []
    for place, (kind, name, operations) in enumerate(resources):
        yield
        if place in errors:
            continue
        if kind == BROKER:
            brokers.append(place)
        if kind != BROKER_LOGGER:
            changes[kind, name] = {
                operation.key: (operation.kind, operation.value) for operation in operations
            }
        elif not request.validate_only:
            for operation in operations:
                level = operation.value if operation.kind == SET else None
                loggers.set_level(operation.key, level)
                if services.log_level_set is not None:
                    services.log_level_set(operation.key, level)
    response = messages.IncrementalAlterConfigsResponse()
    yield from _respond(response, messages.IncrementalAlterConfigsResponse.Responses, resources, errors)

    def write() -> Any:
        return services.controller.incremental_alter_configs(changes, request.validate_only, context)

    return _written(write, changes, resources, errors, brokers, response)


async def unknown_hosts(resources: list[Resource], places: Iterable[int]) -> dict[int, KafkaError]:
    """Return the errors of brokers, at these places, that limit the connections of a host without an address,
    because committed values must be valid. (Kafka commits the value, and logs an error when it applies it.)
    The look-up runs in a thread."""
    errors: dict[int, KafkaError] = {}
    for place in places:
        for key, kind, value in resources[place].operations:
            if key != HOST_LIMITS or kind != SET or value is None:
                continue
            for host in parse_host_limits(key, value):
                if not is_address(host) and (reason := await _lookup_trouble(host)):
                    wrong = f"Invalid value {value} for configuration {key}: host {host} has no address"
                    errors.setdefault(place, KafkaError(INVALID_CONFIG, f"{wrong}: {reason}"))
    return errors


async def _lookup_trouble(host: str) -> str | None:
    try:
        await asyncio.wait_for(asyncio.to_thread(addresses_of, host), LOOKUP_TIMEOUT_S)
    except TimeoutError:
        return f"no answer after {LOOKUP_TIMEOUT_S} s"
    except (OSError, RuntimeError) as trouble:  # RuntimeError: no thread could be started
        return str(trouble)
    return None


async def _written(
    write: Callable[[], Any],
    changes: dict[Any, Any],
    resources: list[Resource],
    errors: dict[int, KafkaError],
    brokers: list[int],
    response: Any,
) -> Any:
    """Let the controller check and write `changes`. `response` has the answers for `resources` in their
    order, with the `errors` found so far; further ones are added. `brokers`: the places of brokers without an
    error. Return the response, or steps that do."""
    for place, unknown in (await unknown_hosts(resources, brokers)).items():
        del changes[resources[place].kind, resources[place].name]
        _refuse(response.responses[place], unknown)
    outcome: dict[Any, KafkaError | None] = {}
    if changes:
        try:
            written = write()
            if inspect.isawaitable(written):  # steps, or a wait for the disk
                written = await written
            outcome = written
        except KafkaError as error:  # nothing was written, or it is not on disk
            outcome = dict.fromkeys(changes, error)
    return _refused_of(response, outcome, (changes, resources, errors))


def _refused_of(
    response: Any, outcome: Mapping[Any, KafkaError | None], done_with: Sequence[dict[Any, Any] | list[Any]]
) -> Steps:
    """Return the response with the controller's errors."""
    if any(outcome.values()):
        for answer in response.responses:
            refused = outcome.get((answer.resource_type, answer.resource_name))
            if refused and answer.error_code == NONE and answer.resource_type != BROKER_LOGGER:
                _refuse(answer, refused)
            yield
    yield from wide.empty(*done_with)
    return response


def _respond(
    response: Any, make: Callable[..., Any], resources: list[Resource], errors: Mapping[int, KafkaError]
) -> Steps:
    for place, resource in enumerate(resources):
        answer = make(
            error_code=NONE,
            error_message=None,
            resource_type=resource.kind,
            resource_name=resource.name,
        )
        if place in errors:
            _refuse(answer, errors[place])
        response.responses.append(answer)
        yield


def _refuse(answer: Any, error: KafkaError) -> None:
    answer.error_code, answer.error_message = error.code, error.message


def invalid_resources(
    image: MetadataImage,
    config: BrokerConfig,
    resources: list[Resource],
    *,
    replacing: bool = False,
    tls: Any = None,
    is_controller: bool = False,
) -> Generator[None, None, dict[int, KafkaError]]:
    """Return the errors in a request before the controller sees it, by the place of the resource.
    `replacing`: an AlterConfigs, whose values replace all existing ones; it cannot set log levels. `tls`
    (TlsListeners) checks new certificates. A controller leaves checking broker values to the brokers."""
    errors: dict[int, KafkaError] = {}
    alike: dict[tuple[int, str | None], KafkaError] = {}  # the collector looks at each exception
    counts = yield from wide.count((resource.kind, resource.name) for resource in resources)
    for place, resource in enumerate(resources):
        yield
        try:
            name = resource.kind, resource.name
            if counts[name] > 1:
                raise KafkaError(INVALID_REQUEST, "Each resource must appear at most once.")
            _check_operations(resource)
            before = {} if replacing else image.configs.get(name, {})
            if resource.kind == BROKER and is_controller:
                continue
            if resource.kind == BROKER:
                _check_broker(image, config, resource, before, tls)
            elif resource.kind == CLIENT_METRICS:
                _check_subscription(resource, before)
            elif resource.kind == BROKER_LOGGER and not replacing:
                _check_loggers(config, resource)
            elif resource.kind not in (TOPIC, GROUP):
                raise KafkaError(INVALID_REQUEST, f"Unknown resource type {resource.kind}")
        except KafkaError as error:
            known = alike.setdefault((error.code, error.message), error)
            errors[place] = known.with_traceback(None)  # it would keep its frames alive
    yield from wide.empty(counts, alike)
    return errors


def _check_operations(resource: Resource) -> None:
    count = len(resource.operations)
    if count > KEYS_MAX:
        raise KafkaError(
            INVALID_REQUEST, f"{count} changes of one resource; at most {KEYS_MAX} are allowed in a request."
        )
    keys = [operation.key for operation in resource.operations]
    if len(set(keys)) < len(keys):
        raise KafkaError(INVALID_REQUEST, "Error due to duplicate config keys")
    for _, kind, _ in resource.operations:
        if kind not in (SET, DELETE, APPEND, SUBTRACT):
            raise KafkaError(INVALID_REQUEST, f"Unknown operations type {kind}")
    nulls = [key for key, kind, value in resource.operations if kind != DELETE and value is None]
    if nulls:
        raise KafkaError(INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def _check_broker(
    image: MetadataImage, config: BrokerConfig, resource: Resource, before: Mapping[str, str], tls: Any
) -> None:
    """Check a broker's own values, and those for all brokers: only the broker knows its file."""
    name = resource.name
    if name:
        _check_broker_id(config, name, f"{config.node_id},", "Node id")
    changes = apply_operations(before, resource.operations, BROKER_KEYS)
    # what a JVM broker has accepted of FIXED_HERE has no effect, and does not forbid other changes
    before = {key: text for key, text in before.items() if key not in FIXED_HERE}
    validate_broker_configs(config, changed(before, changes), per_broker=bool(name))
    refuse_changes(changes)
    if name and tls is not None:
        try:
            after = BrokerConfig(config.static, config.dynamic_default, changed(before, changes))
            tls.check(after, changes)
        except ConfigError as wrong:
            raise KafkaError(INVALID_REQUEST, str(wrong))
    if "cordoned.log.dirs" in changes and image.metadata_version < CORDONED_LOG_DIRS:
        reason = "value cannot be set because it requires metadata.version >= 4.3-IV0"
        raise KafkaError(INVALID_CONFIG, f"The cordoned.log.dirs configuration {reason}")


def _check_subscription(resource: Resource, before: Mapping[str, str]) -> None:
    if not resource.name:
        raise KafkaError(INVALID_REQUEST, "Subscription name can't be empty")
    changes = apply_operations(before, resource.operations, {})  # Kafka treats none of its keys as a list
    after = changed(before, changes)
    validate_client_metrics_configs(after)
    warn_ignored("client metrics", after, CLIENT_METRICS_KEYS)


def _check_loggers(config: BrokerConfig, resource: Resource) -> None:
    """Check as RuntimeLoggerManager does."""
    if not _INTEGER.fullmatch(resource.name):
        raise KafkaError(INVALID_REQUEST, f"Node id must be an integer, but it is: {resource.name}")
    if int(resource.name) != config.node_id:
        reason = f"Expected {config.node_id}, but received {resource.name}"
        raise KafkaError(INVALID_REQUEST, f"Unexpected node id. {reason}")
    for name, kind, level in resource.operations:
        if kind not in (SET, DELETE):
            verb = "APPEND" if kind == APPEND else "SUBTRACT"
            reason = f"{verb} operation is not allowed for the BROKER_LOGGER resource"
            raise KafkaError(INVALID_REQUEST, reason)
        if not loggers.exists(name):
            raise KafkaError(INVALID_CONFIG, f"Logger {name} does not exist!")
        if kind == SET and level not in loggers.LEVELS:
            raise KafkaError(
                INVALID_CONFIG,
                f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
                f"Valid log levels are {', '.join(loggers.LEVELS)}",
            )
        if kind == DELETE and name == loggers.ROOT:
            raise KafkaError(INVALID_REQUEST, "Removing the log level of the root logger is not allowed")


def _check_broker_id(config: BrokerConfig, name: str, expected: str, what: str = "Broker id") -> None:
    if not _INTEGER.fullmatch(name):
        raise KafkaError(INVALID_REQUEST, f"{what} must be an integer, but it is: {name}")
    if int(name) != config.node_id:
        reason = f"Unexpected broker id, expected {expected} but received {name}"
        raise KafkaError(INVALID_REQUEST, reason)


# --- ListConfigResources ----------------------------------------------------------------------------------


def list_config_resources(services: Services, context: RequestContext, request: Any) -> Any:
    image = services.metadata.image
    supported = (
        (CLIENT_METRICS,) if context.version == 0 else (GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC)
    )
    asked = set(request.resource_types) or set(supported)
    if not asked <= set(supported):
        return messages.ListConfigResourcesResponse(error_code=UNSUPPORTED_VERSION)
    return messages.ListConfigResourcesResponse(
        config_resources=[
            messages.ListConfigResourcesResponse.ConfigResources(resource_name=name, resource_type=kind)
            for kind in supported
            if kind in asked
            for name in _resource_names(image, kind)
        ]
    )


def _resource_names(image: MetadataImage, kind: int) -> Iterable[str]:
    if kind == TOPIC:
        return image.topics
    if kind in (BROKER, BROKER_LOGGER):
        return [str(broker_id) for broker_id, broker in image.brokers.items() if not broker.fenced]
    return [name for configured, name in image.configs if configured == kind]
