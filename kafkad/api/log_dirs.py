"""DescribeLogDirs (key 35), v0-5.   v2 flexible. v3 top-level error. v4 volume sizes (KIP-827). v5 cordoned
(KIP-1066).
"""

from typing import Any

from kafkad.api.context import RequestContext, Services
from kafkad.protocol import errors, messages


def describe_log_dirs(services: Services, context: RequestContext, request: Any) -> Any:
    """Describe every data directory with its logs, or only the requested logs (null: all)."""
    wanted: dict[str, set[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for topic in request.topics:
            wanted.setdefault(topic.topic, set()).update(topic.partitions)

    response = messages.DescribeLogDirsResponse()
    for directory in services.log_dirs.directories():
        result = messages.DescribeLogDirsResponse.Results(log_dir=directory.path)
        response.results.append(result)
        if directory.offline:
            result.error_code = errors.KAFKA_STORAGE_ERROR
            continue
        result.total_bytes, result.usable_bytes = directory.volume()
        topics: dict[str, Any] = {}
        for log in directory.logs():
            yield
            if wanted is not None and log.partition not in wanted.get(log.topic, ()):
                continue
            entry = topics.get(log.topic)
            if entry is None:
                entry = topics[log.topic] = messages.DescribeLogDirsResponse.Results.Topics(name=log.topic)
                result.topics.append(entry)
            entry.partitions.append(
                messages.DescribeLogDirsResponse.Results.Topics.Partitions(
                    partition_index=log.partition, partition_size=log.size, offset_lag=0, is_future_key=False
                )
            )
    return response
