"""CreateTopics (key 19), v0-7.      v1 validate only, messages. v2 throttled. v4 -1 for defaults
(KIP-464). v5 flexible, configs returned (KIP-525). v7 ids. DeleteTopics (key 20), v0-6.      v3
TOPIC_DELETION_DISABLED. v4 flexible. v5 messages. v6 by id. CreatePartitions (key 37), v0-3.  v2 flexible. v3
quotas.

Each applies the changes that it can and returns errors per topic. When it answers, the change is on disk and
the partitions exist. `timeout_ms` is not used: nothing waits. Not yet: create.topic.policy.
"""

from typing import Any

from kafkad.api.context import RequestContext, Services


def create_topics(services: Services, context: RequestContext, request: Any) -> Any:
    return services.controller.create_topics(request, context)


def delete_topics(services: Services, context: RequestContext, request: Any) -> Any:
    return services.controller.delete_topics(request, context)


def create_partitions(services: Services, context: RequestContext, request: Any) -> Any:
    return services.controller.create_partitions(request, context)
