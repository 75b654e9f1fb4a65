"""DescribeLogDirs (key 35), v0-5.   v2 flexible. v3 top-level error. v4 volume sizes (KIP-827). v5 cordoned
(KIP-1066).
AlterReplicaLogDirs (key 34), v0-2. v2 flexible.
"""

import logging
from itertools import chain
from typing import Any, Final

from kafkad.api.context import RequestContext, Services
from kafkad.log.filenames import FUTURE_DIR, NAME_MAX
from kafkad.metadata import features
from kafkad.protocol import errors, messages, wide
from kafkad.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

REFUSED_LOGGED: Final = 10  # refused replicas of one request that are logged one by one
FUTURE_LENGTH: Final = 1 + 32 + len(FUTURE_DIR)  # a copy's directory: the plain name, a dot, an id, -future


def describe_log_dirs(services: Services, context: RequestContext, request: Any) -> Any:
    """Describe every data directory with its logs, or only the requested logs (null: all)."""
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = yield from wide.set_of(
            (topic.topic, index) for topic in request.topics for index in topic.partitions
        )

    response = messages.DescribeLogDirsResponse()
    for directory in services.log_dirs.directories():
        result = messages.DescribeLogDirsResponse.Results(log_dir=directory.path)
        response.results.append(result)
        if directory.offline:
            result.error_code = errors.KAFKA_STORAGE_ERROR
            continue
        result.total_bytes, result.usable_bytes = directory.volume()
        topics: dict[str, Any] = {}
        logs = ((log.topic, log.partition, log.size, 0, False) for log in directory.logs())
        moves = services.log_dirs.moves.into(directory)
        futures = ((*move.key, move.copy.size, move.lag, True) for move in moves)
        for name, index, size, lag, is_future in chain(logs, futures):
            yield
            if wanted is not None and (name, index) not in wanted:
                continue
            entry = topics.get(name)
            if entry is None:
                entry = topics[name] = messages.DescribeLogDirsResponse.Results.Topics(name=name)
                result.topics.append(entry)
            entry.partitions.append(
                messages.DescribeLogDirsResponse.Results.Topics.Partitions(
                    partition_index=index, partition_size=size, offset_lag=lag, is_future_key=is_future
                )
            )
    if wanted is not None:
        yield from wide.empty(wanted)
    return response


def alter_replica_log_dirs(services: Services, context: RequestContext, request: Any) -> Any:
    """Begin to move replicas of this worker. Each is answered once; of two directories the last one counts,
    as in Kafka."""
    wanted: dict[tuple[str, int], str] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                wanted[topic.name, index] = directory.path
                yield
    response = messages.AlterReplicaLogDirsResponse()
    topics: dict[str, Any] = {}
    refused = 0
    for (name, index), path in wanted.items():
        code = errors.NONE
        try:
            _alter(services, name, index, path)
        except KafkaError as trouble:
            code = trouble.code
            if (services.partitions.owner_of(name, index) or 0) == services.me:  # one of several workers
                refused += 1
                if refused <= REFUSED_LOGGED:
                    logger.warning("%s-%d cannot be moved to %s: %s", name, index, path, trouble)
        answer = topics.get(name)
        if answer is None:
            answer = topics[name] = messages.AlterReplicaLogDirsResponse.Results(topic_name=name)
            response.results.append(answer)
        answer.partitions.append(
            messages.AlterReplicaLogDirsResponse.Results.Partitions(partition_index=index, error_code=code)
        )
        yield
    if refused > REFUSED_LOGGED:
        logger.warning("%d more replicas cannot be moved", refused - REFUSED_LOGGED)
    yield from wide.empty(wanted, topics)
    return response


def _alter(services: Services, name: str, index: int, path: str) -> None:
    """Raises KafkaError."""
    if len(f"{name}-{index}") + FUTURE_LENGTH > NAME_MAX:
        raise KafkaError(errors.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
    log_dirs, partitions = services.log_dirs, services.partitions
    directory = next((each for each in log_dirs.directories() if each.path == path), None)
    if directory is None:
        raise KafkaError(errors.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")
    if directory.offline:
        raise KafkaError(errors.KAFKA_STORAGE_ERROR, f"Log directory {path} is offline")
    if services.metadata.image.metadata_version < features.DIRECTORY_ASSIGNMENT:
        raise KafkaError(errors.UNSUPPORTED_VERSION, "moves need metadata.version 3.7-IV2 or later")
    try:
        log = partitions.get(name, index)
    except KafkaError as trouble:
        if trouble.code == errors.KAFKA_STORAGE_ERROR:
            raise
        if partitions.owner_of(name, index) in (None, services.me):
            log_dirs.moves.prefer(name, index, path)
        topic = services.metadata.image.topics.get(name)
        if topic is None or index not in topic.partitions:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition (yet)") from None
        raise KafkaError(errors.REPLICA_NOT_AVAILABLE, "the replica is not here (yet)") from None
    if log.ended:  # one that is halted moves when it serves again
        raise KafkaError(errors.KAFKA_STORAGE_ERROR, f"{log.directory} is offline")
    log_dirs.moves.begin(log, directory)
