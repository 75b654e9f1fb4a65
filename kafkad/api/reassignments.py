"""AlterPartitionReassignments (key 45), v0-1, and ListPartitionReassignments (key 46), v0, at a broker that
is alone: its partitions stay where they are, and any other replicas are refused. Both are flexible."""

from typing import Any

from kafkad.api.context import RequestContext, Services
from kafkad.controller.reassignments import ongoing


def alter_reassignments(services: Services, context: RequestContext, request: Any) -> Any:
    return services.controller.alter_partition_reassignments(request)


def list_reassignments(services: Services, context: RequestContext, request: Any) -> Any:
    return ongoing(services.metadata.image, request)
