"""The replica that a consumer reads from (KIP-392): Kafka's RackAwareReplicaSelector.

A Fetch of v11 or later has the consumer's rack. The leader sends the consumer to a follower in that rack: to the member of
the ISR that has the fetch offset and the most records (ReplicaManager.findPreferredReadReplica). A leader in that rack
serves the consumer itself. The consumer returns to the leader after metadata.max.age.ms, or after an error.

The native Replica has the number of its broker's rack, or 0 if consumers cannot be sent there (replication/replicas.py). A
worker that does not own the partition knows the ISR and the racks of the followers, but not their ends. It relies on the
rule that each member of the ISR has all records below the leader's HW. The shared row has the highest start of their logs
(`replicas_start`)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from kafkad._native.log.partition cimport Partition
from kafkad._native.log.replica_set cimport Replica
from kafkad._native.serving.fetch_state cimport Fetching, Rack, Result
from kafkad._native.serving.partition_table cimport Entry
from kafkad._native.shared.watermarks cimport ROLE_LEADER, Row


cdef uint32_t rack_number(Fetching self, const uint8_t* name, size_t size) noexcept nogil:
    cdef const Rack* rack
    cdef uint32_t i
    if size:
        for i in range(self.rack_count):
            rack = &self.racks[i]
            if rack.size == size and memcmp(rack.name, name, size) == 0:
                return 0 if i + 1 == self.own_rack else i + 1
    return 0


cdef bint find_near(uint32_t rack, Entry* entry, Partition partition, Result* result) noexcept nogil:
    cdef int64_t offset = result.fetched.offset
    cdef int32_t epoch = result.fetched.leader_epoch
    cdef const Replica* replica
    cdef const Replica* best = NULL
    cdef const Row* row
    cdef int32_t i
    if partition.replicas is NULL or partition.freshen() != 0:
        return False
    row = partition.row
    if row.role != ROLE_LEADER or 0 <= epoch != row.leader_epoch or not (entry.remote or partition.open):
        return False
    if entry.remote and not partition.shared.replicas_start <= offset <= row.high_watermark:
        return False
    for i in range(partition.replicas.count):
        replica = &partition.replicas.replicas[i]
        if replica.rack == rack and replica.in_isr and (
                entry.remote or replica.log_start <= offset <= replica.end_offset) and (
                best is NULL or has_more(replica, best)):
            best = replica
    if best is NULL:
        return False
    result.preferred = best.broker_id
    result.read.high_watermark = row.high_watermark
    result.read.last_stable_offset = row.last_stable_offset
    result.read.log_start_offset = row.log_start_offset
    return True


cdef inline bint has_more(const Replica* one, const Replica* other) noexcept nogil:
    if one.end_offset != other.end_offset:
        return one.end_offset > other.end_offset
    if one.caught_up_ms != other.caught_up_ms:
        return one.caught_up_ms > other.caught_up_ms
    return one.broker_id > other.broker_id
