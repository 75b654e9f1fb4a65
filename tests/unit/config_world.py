"""Configuration without a broker: the handlers of api/configs.py over a real metadata image.

`World.ask` sends a request through the codec to its handler and back, as a connection would. It is its own
controller: the real planners, whose records go into the image instead of a log."""

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

from kafkad.api import configs
from kafkad.api.context import RequestContext
from kafkad.config.broker import BrokerConfig
from kafkad.config.dynamic import with_dynamic
from kafkad.config.served import ignored_message
from kafkad.controller.configs import plan_absolute, plan_incremental
from kafkad.metadata.features import fresh_levels
from kafkad.metadata.image import BROKER, MetadataImage
from kafkad.metadata.replay import applied
from kafkad.protocol import codec, messages
from tests.unit.steps import finish

HANDLERS = {
    32: configs.describe_configs,
    33: configs.alter_configs,
    44: configs.incremental_alter_configs,
    74: configs.list_config_resources,
}


class World:
    def __init__(self, config: BrokerConfig, topics: tuple[str, ...] = ()) -> None:
        self.config = config
        self.metadata = SimpleNamespace(image=MetadataImage("cluster", config.node_id))
        self.controller = self
        self.log_level_set = None
        self.tls = None
        self.is_controller = False
        self.written: list[Any] = []  # records
        self.apply(
            [
                messages.FeatureLevelRecord(name=name, feature_level=level)
                for name, level in fresh_levels().items()
            ]
            + [messages.RegisterBrokerRecord(broker_id=config.node_id, fenced=False)]
            + [
                messages.TopicRecord(name=name, topic_id=index.to_bytes(16, "big"))
                for index, name in enumerate(topics, 1)
            ],
        )

    def apply(self, records: list[Any]) -> None:
        self.metadata.image, _ = applied(self.metadata.image, records)
        layers = [
            self.metadata.image.configs.get((BROKER, name), {}) for name in ("", str(self.config.node_id))
        ]
        self.config, complaints = with_dynamic(self.config, *layers)
        ignored = {ignored_message(name, text) for layer in layers for name, text in layer.items()}
        assert set(complaints) <= ignored

    def incremental_alter_configs(self, changes: Any, validate_only: bool, context: Any = None) -> Any:
        return self.write(*finish(plan_incremental(self.metadata.image, self.config, changes)), validate_only)

    def alter_configs(self, wanted: Any, validate_only: bool, context: Any = None) -> Any:
        return self.write(*finish(plan_absolute(self.metadata.image, self.config, wanted)), validate_only)

    def write(self, records: list[Any], outcome: Any, validate_only: bool) -> Any:
        if not validate_only:
            self.written += records
            self.apply(records)
        return outcome

    def ask(self, request: Any, version: int) -> Any:
        key = type(request).API_KEY
        request, _ = codec.decode(type(request), version, codec.encode(request, version))
        context = RequestContext(key, version, 1, "test", "127.0.0.1", "PLAINTEXT", None)
        response = finish(HANDLERS[key](self, context, request))
        if inspect.isawaitable(response):
            response = finish(asyncio.run(_result(response)))
        return codec.decode(type(response), version, codec.encode(response, version))[0]


async def _result(awaitable: Any) -> Any:
    return await awaitable


def describe(*resources: tuple[int, str], keys: list[str] | None = None, synonyms: bool = True) -> Any:
    make = messages.DescribeConfigsRequest.Resources
    return messages.DescribeConfigsRequest(
        resources=[
            make(resource_type=kind, resource_name=name, configuration_keys=keys) for kind, name in resources
        ],
        include_synonyms=synonyms,
    )


def alter(kind: int, name: str, *operations: tuple[str, int, str | None], validate_only: bool = False) -> Any:
    """IncrementalAlterConfigs of one resource."""
    resource = messages.IncrementalAlterConfigsRequest.Resources
    return messages.IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    resource.Configs(name=key, config_operation=operation, value=value)
                    for key, operation, value in operations
                ],
            )
        ],
        validate_only=validate_only,
    )


def replace(kind: int, name: str, **values: str | None) -> Any:
    """AlterConfigs of one resource; keys with underscores for dots."""
    resource = messages.AlterConfigsRequest.Resources
    return messages.AlterConfigsRequest(
        resources=[
            resource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    resource.Configs(name=key.replace("_", "."), value=value) for key, value in values.items()
                ],
            )
        ]
    )
