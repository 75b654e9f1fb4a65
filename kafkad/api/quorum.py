"""ElectLeaders (key 43), DescribeQuorum (key 55) and UpdateFeatures (key 57), all v0-2: requests about the
quorum and about what its members agree on, at a broker that is alone. Controllers use the first and the last.

ElectLeaders is flexible from v2 on, the others always."""

from typing import Any

from kafkad.api.context import RequestContext, Services


def elect_leaders(services: Services, context: RequestContext, request: Any) -> Any:
    return services.controller.elect_leaders(request, context.version)


def describe_quorum(services: Services, context: RequestContext, request: Any) -> Any:
    return services.controller.describe_quorum(request, context.version)


def update_features(services: Services, context: RequestContext, request: Any) -> Any:
    return services.controller.update_features(request, context.version)
