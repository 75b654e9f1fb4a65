"""A Produce while leaders move to other brokers: server/produce_handover may take it, before anything is appended."""

from libc.stdint cimport int32_t

from kafkad._native.log.partition cimport Partition
from kafkad._native.serving.connection cimport Conn, Slot, conn_handle, core_fatal, slot_drop, slot_open
from kafkad._native.serving.partition_table cimport Entry
from kafkad._native.serving.produce_state cimport Part, Producing, Request, TopicParts
from kafkad._native.serving.quota cimport quota_unanswered
from kafkad._native.serving.topic_rights cimport RIGHT_WRITE, may_topic
from kafkad._native.shared.watermarks cimport ROLE_FOLLOWER, ROLE_LEADER, Row
from kafkad._native.wire.batch cimport HEADER_SIZE
from kafkad._native.wire.batch_layout cimport MAGIC_AT

cdef enum:
    HAND_OVER_MAX = 1024 * 1024         # records of a request that another broker gets from this one
    HINTS_FROM = 10                     # the version whose answers name the leader
    ADDS_FROM = 12                      # the version that adds its partition to the transaction (KIP-890)


cdef bint hand_over(Producing self, Conn* conn, Request* request, int32_t correlation_id, Entry* entry) noexcept nogil:
    cdef TopicParts* parts = request.topics
    cdef const Row* row
    cdef Slot* slot
    if request.version < HINTS_FROM or request.acks == 0 or request.refusal or request.refused_whole or (
            entry is NULL or not (self.hands_over_all or entry.moving) or (entry.internal and not request.admin) or (
                (<Partition>entry.partition).freshen())):
        return False
    if request.transactional_size >= 0 and request.version < ADDS_FROM:
        return False                                    # forwarded in a newer version, it would add the partition
    if not HEADER_SIZE <= request.parts.size <= HAND_OVER_MAX or request.parts.records[MAGIC_AT] != 2:
        return False
    row = (<Partition>entry.partition).row
    if row.isr_count < 2 if row.role == ROLE_LEADER else row.role != ROLE_FOLLOWER or row.leader_id < 0:
        return False
    if self.core.authorizing and not may_topic(self.core, conn, entry.key, <const char*>parts.name,
                                               <size_t>max(parts.name_size, 0), RIGHT_WRITE):
        return conn.closed
    slot = slot_open(conn, 0, request.version, correlation_id)
    if not offer(self, conn, request, slot):
        if not conn.closed:
            slot_drop(slot)
        return conn.closed
    if conn.core.quotas is not NULL and not conn.closed:
        quota_unanswered(conn, &request.charge)
    return True


cdef bint offer(Producing self, Conn* conn, const Request* request, Slot* slot) noexcept with gil:
    cdef const TopicParts* topic = request.topics
    cdef const Part* part = request.parts
    transactional_id = None
    try:
        if request.transactional_size >= 0:
            transactional_id = (<bytes>request.transactional_id[:request.transactional_size]).decode()
        return self.hand_over(
            conn_handle(conn), slot.request_id, request.version, slot.correlation_id, request.acks,
            max(request.deadline_ms - self.core.monotonic_ms, 0), transactional_id,
            <bytes>topic.name[:16 if topic.name_size < 0 else topic.name_size], part.index,
            <bytes>part.records[:part.size])
    except (MemoryError, UnicodeDecodeError):
        return False
    except BaseException:
        core_fatal(self.core)
        return False
