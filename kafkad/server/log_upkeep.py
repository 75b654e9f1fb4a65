"""What a worker does with each of its logs from time to time: retention, expiry of producers, flush by age.

Each function is a task of server/background: it yields after every log, and a log's large work yields in
between, too (server/turns)."""

import logging

from kafkad.config.broker import BrokerConfig
from kafkad.log.segment_deletion import delete_in_steps
from kafkad.protocol.errors import KafkaError
from kafkad.replication.partitions import Partitions
from kafkad.server.turns import Steps

logger = logging.getLogger("kafkad")


def apply_retention(partitions: Partitions, config: BrokerConfig, now_ms: int) -> Steps:
    """Delete what retention allows, and close files that nobody reads."""
    for log in partitions:
        if log.closed:  # deleted meanwhile, or its directory failed
            continue
        try:
            yield from delete_in_steps(log, now_ms)
        except AssertionError:
            raise
        except Exception as trouble:  # this log's: the others' space is needed all the more
            logger.error("retention of %s-%d failed, it runs again in %d ms: %s",
                         log.topic, log.partition, config.log_retention_check_interval_ms,
                         trouble, exc_info=not isinstance(trouble, KafkaError))  # fmt: skip
        if not log.closed:
            log.release_idle()
        yield
    partitions.table.release_idle_readers()


def expire_producers(partitions: Partitions, config: BrokerConfig, now_ms: int) -> Steps:
    """Forget producers that have not written for producer.id.expiration.ms."""
    for log in partitions:
        log.producer_expiration_ms = config.producer_id_expiration_ms  # it is dynamic
        log.remove_expired_producers(now_ms)
        yield


def flush_due(partitions: Partitions, now_ms: int, monotonic_ms: int) -> Steps:
    """Flush logs with messages that are older than flush.ms."""
    for log in partitions:
        log.flush_if_due(now_ms, monotonic_ms)
        yield
