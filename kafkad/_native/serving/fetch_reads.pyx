"""Reading one partition for a Fetch: records, the end of the common history, aborted transactions, or an error.

`read_warm` is the usual read, which does not wait for the disk. `read_python` handles the rare cases. A follower's read also
tells the leader how far the follower is (`read_for_replica`), and may be held back by a throttle."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t

from kafkad._native.log.aborted cimport aborted_search, offset_behind
from kafkad._native.log.batch_search cimport COLD, Lookup
from kafkad._native.log.cold_reads cimport ColdJob, cold_ask
from kafkad._native.log.partition cimport Partition
from kafkad._native.log.partition_reads cimport ReadInfo
from kafkad._native.log.replica_set cimport Mark, Replica, replica_of
from kafkad._native.log.segments cimport log_file_release, segment_floor
from kafkad._native.serving.connection cimport Core, core_fatal
from kafkad._native.serving.fetch_session cimport Fetched
from kafkad._native.serving.fetch_state cimport FetchRequest, Fetching, Result, drop_data, entry_of
from kafkad._native.serving.follower_mail cimport follower_note
from kafkad._native.serving.partition_table cimport Entry
from kafkad._native.serving.replication_quota cimport LEADER_SIDE
from kafkad._native.shared.watermarks cimport Row
from kafkad._native.wire.batch cimport NEED_PYTHON
from kafkad._native.wire.errors cimport (
    NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, UNKNOWN_LEADER_EPOCH, UNKNOWN_SERVER_ERROR)

import logging

cdef enum:
    COLD_ROUNDS_MAX = 16                # then a request waits for the disk on the loop: it does not get ahead otherwise

BELOW = ("high_watermark", "stable", "end")

log = logging.getLogger("kafkad.fetch")


cdef void read_python(Fetching self, Entry* entry, Fetched* fetched, int64_t bytes_max, bint at_least_one,
                      int isolation, Result* result) noexcept nogil:
    self.core.stats.python_reads += 1
    with gil:
        read_slow(self.core, entry, fetched.offset, bytes_max, at_least_one, isolation, result)


cdef void read_slow(Core* core, Entry* entry, int64_t offset, int64_t bytes_max, bint at_least_one, int isolation,
                    Result* result) noexcept:
    cdef Partition partition = <Partition>entry.partition
    cdef bytes data
    result.code = UNKNOWN_SERVER_ERROR
    try:
        data = partition.log.read(offset, bytes_max, below=BELOW[isolation])
        if len(data) <= bytes_max or at_least_one:
            Py_INCREF(data)
            result.copy = <void*><PyObject*>data
            result.read.size = len(data)
            result.read.available = len(data)
        result.code = 0
    except AssertionError:
        core_fatal(core)
    except Exception as error:
        code = getattr(error, "code", None)             # a KafkaError (which lives above this layer), or our fault
        if isinstance(code, int):
            result.code = code
        else:
            log.exception("reading %s-%d at %d failed", partition.topic, partition.index, offset)
    except BaseException:
        core_fatal(core)


cdef int find_aborted(Partition partition, Fetched* fetched, Result* result) noexcept nogil:
    """The aborted transactions of what is sent: by an index entry more, which readers pass over. 0, or Kafka's error code."""
    cdef int64_t upper = result.read.last_stable_offset
    cdef int at = segment_floor(partition.segments, partition.segment_count, fetched.offset)
    cdef int failure, i
    if at < 0:
        at = 0
    for i in range(at, partition.segment_count):
        if result.read.file != NULL and partition.segments[i].file == result.read.file:
            if i + 1 < partition.segment_count and partition.segments[i + 1].base_offset < upper:
                upper = partition.segments[i + 1].base_offset
            upper = min(upper, offset_behind(
                partition.directory, &partition.segments[i], result.read.position + result.read.size, upper))
            break
    failure = aborted_search(partition.directory, partition.segments, partition.segment_count, at, fetched.offset, upper,
                             partition.row.aborted_end, &result.aborted)
    if failure == 0 and not partition.has_names():
        return NOT_LEADER_OR_FOLLOWER       # the indexes may be the log cleaner's new ones, and the records the old ones
    return 0 if failure == 0 else partition.refused(failure, b"reading the index of aborted transactions")


cdef void compare_logs(Core* core, Entry* entry, Result* result) noexcept nogil:
    """Finds where the client's log, whose last batch before the fetch offset has `last_epoch`, leaves ours (KIP-595,
    Partition.readRecords). `result` is what reading gave: data, or OFFSET_OUT_OF_RANGE, which a client that diverges
    does not get."""
    cdef Row* row = (<Partition>entry.partition).row
    cdef Fetched* fetched = result.fetched
    cdef int32_t epoch = fetched.last_epoch
    cdef int64_t end = row.log_end_offset
    cdef int code = 0
    if epoch > row.leader_epoch:
        code = OFFSET_OUT_OF_RANGE
    elif epoch < row.leader_epoch and epoch == (<Partition>entry.partition).previous_epoch:
        end = row.epoch_start
    elif epoch < row.leader_epoch:
        with gil:
            code = ask_epoch_end(core, entry, &epoch, &end)
    if code == 0 and fetched.offset < row.log_start_offset:
        code = OFFSET_OUT_OF_RANGE
    if code == 0 and epoch == fetched.last_epoch and end >= fetched.offset:
        return
    if result.code == 0:
        drop_data(result)
        result.read.size = 0
        result.read.available = 0
        result.read.file = NULL
    result.code = code
    if code == 0:
        result.diverging_epoch = epoch
        result.diverging_end = end


cdef int ask_epoch_end(Core* core, Entry* entry, int32_t* epoch, int64_t* end) noexcept:
    """The largest known epoch up to `epoch`, and the offset at which it ended."""
    cdef Partition partition = <Partition>entry.partition
    try:
        found, offset = partition.log.end_offset_for_epoch(epoch[0])
        epoch[0] = found
        end[0] = offset
        return OFFSET_OUT_OF_RANGE if found < 0 or offset < 0 else 0
    except AssertionError:
        core_fatal(core)
    except Exception as error:
        code = getattr(error, "code", None)
        if isinstance(code, int):
            return code
        log.exception("looking up leader epoch %d of %s-%d failed", epoch[0], partition.topic, partition.index)
    except BaseException:
        core_fatal(core)
    return UNKNOWN_SERVER_ERROR


cdef int read_warm(Fetching self, const FetchRequest* request, Entry* entry, Fetched* fetched, int64_t limit,
                   bint at_least_one, ReadInfo* read) noexcept nogil:
    """Partition.read that does not wait for the disk. Where it would, the answer is nothing for now, and `cold_job` is the
    last of the reads that it takes to know more."""
    cdef Lookup* lookup = &(<Partition>entry.partition).lookup
    cdef ColdJob* job = NULL
    cdef int code
    lookup.cold = &self.core.cold if request.cold_rounds < COLD_ROUNDS_MAX else NULL
    code = (<Partition>entry.partition).read(
        fetched.offset, limit, at_least_one, request.below, fetched.leader_epoch, read)
    lookup.cold = NULL
    if code != COLD:
        return code
    job = cold_ask(&self.core.cold, lookup.missing, lookup.missing_position, lookup.missing_size, NULL, NULL)
    log_file_release(lookup.missing)
    if job is NULL:
        return (<Partition>entry.partition).read(
            fetched.offset, limit, at_least_one, request.below, fetched.leader_epoch, read)
    self.cold_job = job
    return 0


cdef void read_for_replica(Fetching self, const FetchRequest* request, Entry* entry, Partition partition, Fetched* fetched,
                           int64_t limit, bint at_least_one, Result* result) noexcept nogil:
    """A follower's Fetch (Kafka: Partition.fetchRecords): is it one of the replicas, where does its log leave ours, what
    stands behind its end; and what that says of it. Its state is noted once a request, and not where it diverges."""
    cdef const Replica* replica
    cdef int64_t leader_end
    cdef Mark at
    partition.freshen()
    leader_end = partition.row.log_end_offset           # before the read: what came since is for the next Fetch
    result.code = read_warm(self, request, entry, fetched, limit, at_least_one, &result.read)
    if result.code == NEED_PYTHON:
        read_python(self, entry, fetched, limit, at_least_one, request.below, result)
    if result.code != 0 and result.code != OFFSET_OUT_OF_RANGE:
        return
    replica = replica_of(partition.replicas, request.replica_id)
    if replica is NULL:
        # With an epoch it is one that the metadata has given us already, but not this broker yet: it tries again.
        refuse_replica(result, UNKNOWN_LEADER_EPOCH if fetched.leader_epoch >= 0 else NOT_LEADER_OR_FOLLOWER)
        return
    if fetched.last_epoch >= 0:
        compare_logs(self.core, entry, result)
    if result.code or result.diverging_epoch >= 0:
        return
    if not request.counted:
        at.offset = fetched.offset
        mark_read(partition, result, &at)
    if result.read.size and is_held_back(self, request, partition):     # its state counts, its records come later
        drop_data(result)
        result.copy = NULL
        result.read.size = 0
        result.read.available = 0
        result.read.file = NULL
    if request.counted:
        return
    if not entry.remote:
        result.code = partition.replica_told(
            request.replica_id, request.replica_epoch, &at, fetched.replica_start, self.core.monotonic_ms, leader_end)
    elif request.replica_epoch != -1 and request.replica_epoch < replica.known_epoch:
        result.code = NOT_LEADER_OR_FOLLOWER
    else:
        follower_note(self.followers, request.replica_id, request.replica_epoch, self.core.monotonic_ms, partition, &at,
                      fetched.replica_start, leader_end)
    if result.code:
        refuse_replica(result, result.code)
    else:
        result.read.high_watermark = partition.row.high_watermark
        result.read.last_stable_offset = partition.row.last_stable_offset


cdef inline void refuse_replica(Result* result, int code) noexcept nogil:
    drop_data(result)
    result.code = code


cdef inline void mark_read(Partition partition, const Result* result, Mark* at) noexcept nogil:
    """Where a fetch offset stands, if the read has found it by the way."""
    cdef int i = partition.segment_count - 1
    at.segment = -1
    at.position = -1
    if at.offset == partition.row.log_end_offset:
        at.segment = partition.row.end_segment
        at.position = partition.row.end_position
    elif result.read.size and result.copy is NULL:
        while i >= 0 and partition.segments[i].file != result.read.file:
            i -= 1
        if i >= 0:
            at.segment = partition.segments[i].base_offset
            at.position = result.read.position


# -- throttles of replication (KIP-73) ------------------------------------------------------------------------

cdef bint is_held_back(Fetching self, const FetchRequest* request, Partition partition) noexcept nogil:
    cdef const Replica* replica
    if self.replication is None or not partition.throttled & (1 << LEADER_SIDE):
        return False
    replica = replica_of(partition.replicas, request.replica_id)
    return (replica is NULL or not replica.in_isr) and self.replication.exceeded(LEADER_SIDE, self.core.monotonic_ms)


cdef void count_throttled(Fetching self, uint32_t count) noexcept nogil:
    cdef Entry* entry
    cdef int64_t size = 0
    cdef uint32_t i
    if self.replication.limits[LEADER_SIDE] < 0:
        return
    for i in range(count):
        if self.results[i].read.size:
            entry = entry_of(self, self.results[i].fetched)
            if entry is not NULL and (<Partition>entry.partition).throttled & (1 << LEADER_SIDE):
                size += self.results[i].read.size
    if size:
        self.replication.count(LEADER_SIDE, size, self.core.monotonic_ms)
