"""How the watermarks move: HW, LSO, log start, log end and their positions. The layer on top of partition_reads.pyx.

An append moves LEO itself, and HW with it if nothing else holds HW back (partition_appends.pyx). This module has the
rare cases: a replication or quorum layer that moves HW, loading, truncation, deletion of old records, and adopting the
row of an owner that died.

LSO is HW, or the start of the oldest transaction that holds it back (transactions.pyx)."""

from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy

from kafkad._native.log.aborted cimport aborted_end
from kafkad._native.log.batch_search cimport RecentBatch, lookup_forget, lookup_recent
from kafkad._native.log.replica_set cimport (
    NOT_FETCHED, Mark, Replica, ReplicaSet, replica_fetched, replica_is_caught_up, replica_joins, replica_of, replicas_bound,
    replicas_new)
from kafkad._native.log.segments cimport (
    UNKNOWN, Segment, kafkad_monotonic_ms, segment_close, segment_end_offset, segment_open)
from kafkad._native.log.transactions cimport (
    Transaction, transactions_free, transactions_oldest, transactions_raise, transactions_rebuild)
from kafkad._native.shared.watermarks cimport ROW_WORDS, Row, RowSlot, row_begin, row_end
from kafkad._native.log.partition_state cimport ADVANCED_DURABLE, ADVANCED_HIGH_WATERMARK, ADVANCED_START, unexpected
from kafkad._native.log.partition_reads cimport PartitionReads
from kafkad._native.wire.errors cimport NOT_LEADER_OR_FOLLOWER

cpdef enum:                         # results of `replicate`
    SAME_EPOCH = 0
    RE_ELECTED = 1
    NEW_LEADER = 2


cdef class PartitionWatermarks(PartitionReads):
    def __cinit__(self):
        self.follows_end = True
        self.flush_interval = INT64_MAX
        self.insync_min = 1
        self.previous_epoch = -1

    def __dealloc__(self):
        free(self.replicas)
        transactions_free(&self.transactions)

    cdef void move_stable(self) noexcept nogil:
        # LSO is HW, or the start of the oldest transaction that is open or whose marker is still above HW.
        cdef Transaction* oldest = NULL
        if self.transactions.head < self.transactions.end:
            oldest = transactions_oldest(&self.transactions, self.row.high_watermark)
        if oldest == NULL or oldest.stable_offset >= self.row.high_watermark:
            self.row.last_stable_offset = self.row.high_watermark
            self.row.stable_segment = self.row.high_watermark_segment
            self.row.stable_position = self.row.high_watermark_position
        else:
            self.row.last_stable_offset = oldest.stable_offset
            self.row.stable_segment = oldest.segment
            self.row.stable_position = oldest.position

    @property
    def open_transactions(self) -> int:
        """The capacity of the list of transactions that hold LSO. For tests."""
        return self.transactions.capacity

    def find_end(self) -> int:
        """Walk the active segment from its last index entry and set LEO to the offset after its last batch. Raises
        ValueError if there are bytes beyond the last whole batch."""
        cdef Segment* segment = self.active()
        cdef int64_t next_offset = segment.base_offset, bad = 0
        cdef int failure
        if segment.size:
            failure = segment_open(segment, self.directory, True)
            if failure != 0:
                self.raise_refused(failure, b"opening the active segment")
            next_offset = segment_end_offset(segment, self.directory, &bad)
            if next_offset < 0:
                raise ValueError(f"no batch at position {bad} of segment {segment.base_offset}")
            if segment.file != NULL and not segment.times.writable:
                segment_close(segment, self.directory)      # idle until used
        self.set_end(next_offset)
        return next_offset

    def set_end(self, int64_t end_offset) -> None:
        self.row_begin()
        self.row.log_end_offset = end_offset
        self.row.end_segment = self.active().base_offset
        self.row.end_position = self.active().size
        self.row_end()

    def set_flushed(self, int64_t offset) -> None:
        """Set the offset up to which the disk holds the log. After loading, that is all up to the recovery point."""
        self.row_begin()
        self.row.flushed_offset = offset
        self.row_end()

    def set_log_start(self, int64_t offset) -> None:
        """Raise the log start. A lower offset is ignored."""
        cdef int64_t segment, position, before = self.row.last_stable_offset
        cdef int why = 0 if self.replicas is NULL else ADVANCED_START
        if offset > self.row.log_start_offset:
            if self.transactions.head < self.transactions.end:
                segment, position = self.boundary_of(offset)
                transactions_raise(&self.transactions, offset, segment, position)
            self.row_begin()
            self.row.log_start_offset = offset
            self.move_stable()
            self.row_end()
            if self.row.last_stable_offset > before:
                why |= ADVANCED_HIGH_WATERMARK
            if why:
                self.tell(why)

    def advance_high_watermark(self, int64_t offset) -> bool:
        """Move HW forward, at most to LEO, for replication, quorum or loading. Return whether it moved."""
        cdef int64_t segment, position
        if offset > self.row.log_end_offset:
            offset = self.row.log_end_offset
        if offset <= self.row.high_watermark and self.row.high_watermark != 0:
            return False
        segment, position = self.boundary_of(offset)
        return self.put_high_watermark(offset, segment, position)

    cdef bint put_high_watermark(self, int64_t offset, int64_t segment, int64_t position) noexcept:
        cdef bint moved = offset > self.row.high_watermark
        self.row_begin()
        self.row.high_watermark = offset
        self.row.high_watermark_segment = segment
        self.row.high_watermark_position = position
        self.move_stable()
        self.row_end()
        if moved:
            self.tell(ADVANCED_HIGH_WATERMARK)
        return moved

    def settle_high_watermark(self) -> None:
        """Move HW to LEO as far as the flush policy allows."""
        if self.row.log_end_offset - self.row.flushed_offset < self.flush_interval:
            if self.row.log_end_offset >= self.row.high_watermark:
                self.put_high_watermark(self.row.log_end_offset, self.row.end_segment, self.row.end_position)
        elif self.row.flushed_offset > self.row.high_watermark:
            self.advance_high_watermark(self.row.flushed_offset)

    def settle(self) -> None:
        """Apply a changed flush policy: the offset that acks wait for moves as far as it allows."""
        self.settle_durable()

    cdef void settle_durable(self):
        # Moves `durable_offset` as far as the flush policy allows, and HW with it if nothing else holds HW back.
        cdef int64_t offset = self.row.log_end_offset
        if offset - self.row.flushed_offset >= self.flush_interval:
            offset = self.row.flushed_offset
        if offset > self.row.durable_offset:
            self.row_begin()
            self.row.durable_offset = offset
            self.row_end()
            if not self.follows_end or self.row.high_watermark >= offset:
                self.tell(ADVANCED_DURABLE)
        if self.follows_end:
            self.settle_high_watermark()
        elif self.replicas is not NULL and self.raise_replicated():
            self.tell(ADVANCED_HIGH_WATERMARK)

    # -- the followers of a leader -----------------------------------------------------------------------------

    def replicate(self, list rows not None, *, int isr_count, int isr_count_max, int reset, int64_t now_ms,
                  int64_t lag_ms_max) -> None:
        """The followers: (broker id, in the committed ISR, in the maximal ISR, eligible, broker epoch in the metadata, number
        of its rack) of each. What is known of those that were there stays, unless this is a new leader epoch: `reset` RE_ELECTED, or
        NEW_LEADER if we did not lead before (Kafka: Replica.resetReplicaState). The counts are with the leader."""
        cdef ReplicaSet* known = self.replicas
        cdef ReplicaSet* fresh = replicas_new(len(rows))
        cdef Replica* replica
        cdef Replica* before
        cdef int32_t i = 0
        for broker_id, in_isr, in_maximal, eligible, known_epoch, rack in rows:
            replica = &fresh.replicas[i]
            i += 1
            before = replica_of(known, broker_id)
            if before is not NULL:
                replica[0] = before[0]
            if before is NULL or reset == NEW_LEADER:
                replica.broker_id = broker_id
                replica.broker_epoch = NOT_FETCHED
                replica.end_offset = -1
                replica.end_segment = -1
                replica.end_position = -1
                replica.log_start = -1
                replica.fetched_leader_end = -1
                replica.fetched_ms = 0
                replica.caught_up_ms = now_ms if in_isr else 0
            elif reset == RE_ELECTED:
                replica.fetched_leader_end = self.row.log_end_offset
                replica.fetched_ms = now_ms if in_isr else 0
                replica.caught_up_ms = now_ms if in_isr else 0
            replica.in_isr = in_isr
            replica.in_maximal = in_maximal
            replica.eligible = eligible
            replica.known_epoch = known_epoch
            replica.rack = rack
            replica.asked = False
        fresh.isr_count = isr_count
        fresh.lag_ms_max = lag_ms_max
        self.replicas = fresh
        free(known)
        self.note_starts()
        self.count_isr(isr_count, isr_count_max)
        if self.raise_replicated():
            self.tell(ADVANCED_HIGH_WATERMARK)

    def know_replicas(self, list rows not None) -> None:
        """Of another worker's partition: (broker id, in the committed ISR, broker epoch in the metadata, number of its rack) of
        each follower, so that a Fetch of a stranger, or of a former life of a broker, is refused here."""
        cdef Replica* replica
        cdef int32_t i
        free(self.replicas)
        self.replicas = replicas_new(len(rows))
        for i in range(len(rows)):
            replica = &self.replicas.replicas[i]
            replica.broker_id, replica.in_isr, replica.known_epoch, replica.rack = rows[i]

    def count_isr(self, int isr_count, int isr_count_max) -> None:
        """Set how many replicas are in sync, committed and at most, for the check against min.insync.replicas."""
        cdef int count = 0 if self.replicas is NULL else self.replicas.count
        cdef bint lacked = self.row.isr_count < self.row.isr_count_min
        self.row_begin()
        self.row.isr_count = min(isr_count, 255)
        self.row.isr_count_max = min(isr_count_max, 255)
        self.row.isr_count_min = min(self.insync_min, count + 1, 255)
        self.row_end()
        if lacked and self.row.isr_count >= self.row.isr_count_min:
            self.expect_stragglers(0)                   # batches of acks=all were refused until now

    def expect_stragglers(self, int64_t ms) -> None:
        """Treat the next `ms` like the time before this broker led: it may refuse batches. A batch that overtakes one of
        them gets NOT_LEADER_OR_FOLLOWER, until NEW_LEADER_MS later, or BEGINNING_MS for an unknown producer."""
        self.begun_ms = max(self.begun_ms, kafkad_monotonic_ms() + ms)
        self.begun_count += 1
        self.is_new = False
        self.opened_ms = max(self.opened_ms, self.begun_ms)

    def forget_replicas(self) -> None:
        """Forget the followers: this broker does not lead, or leads alone."""
        free(self.replicas)
        self.replicas = NULL
        self.row_begin()
        self.row.isr_count = 0
        self.row.isr_count_max = 0
        self.row.isr_count_min = 0
        self.row_end()

    def lagging(self, int64_t now_ms) -> list:
        """The members of the committed ISR that were not caught up for replica.lag.time.max.ms."""
        cdef int32_t i
        found = []
        if self.replicas is not NULL:
            for i in range(self.replicas.count):
                if self.replicas.replicas[i].in_isr and not replica_is_caught_up(
                        &self.replicas.replicas[i], self.row.log_end_offset, now_ms, self.replicas.lag_ms_max):
                    found.append(self.replicas.replicas[i].broker_id)
        return found

    def joining(self, int64_t now_ms) -> list:
        """The followers that may join the ISR, as their Fetches of the last replica.lag.time.max.ms say."""
        cdef const Replica* replica
        cdef int32_t i
        found = []
        if self.replicas is not NULL:
            for i in range(self.replicas.count):
                replica = &self.replicas.replicas[i]
                if (now_ms - replica.fetched_ms <= self.replicas.lag_ms_max
                        and replica_joins(replica, self.row.high_watermark, self.row.epoch_start)
                        and replica_is_caught_up(replica, self.row.log_end_offset, now_ms, self.replicas.lag_ms_max)):
                    found.append(replica.broker_id)
        return found

    def replica_epoch(self, int32_t broker_id) -> int:
        """The broker epoch of a follower's last Fetch, or -1 if not known."""
        cdef Replica* replica = replica_of(self.replicas, broker_id)
        return -1 if replica is NULL else max(replica.broker_epoch, -1)

    def replica_rows(self) -> list:
        """(broker id, LEO, log start, broker epoch, last Fetch, last caught up) of each follower."""
        cdef int32_t i
        found = []
        if self.replicas is not NULL:
            for i in range(self.replicas.count):
                found.append((
                    self.replicas.replicas[i].broker_id, self.replicas.replicas[i].end_offset,
                    self.replicas.replicas[i].log_start, self.replicas.replicas[i].broker_epoch,
                    self.replicas.replicas[i].fetched_ms, self.replicas.replicas[i].caught_up_ms))
        return found

    def note_fetch(self, int32_t broker_id, int64_t broker_epoch, int64_t offset, int64_t log_start, int64_t time_ms,
                   leader_end=None) -> int:
        """Note a follower's Fetch as the reactor does, and return Kafka's error code. For tests."""
        cdef Mark at
        at.offset = offset
        at.segment = -1
        at.position = -1
        return self.replica_told(broker_id, broker_epoch, &at, log_start, time_ms,
                                 self.row.log_end_offset if leader_end is None else leader_end)

    cdef int replica_told(self, int32_t broker_id, int64_t broker_epoch, const Mark* at, int64_t log_start, int64_t time_ms,
                          int64_t leader_end) noexcept nogil:
        # Updates the follower's state, the ISR it may join, HW: in the order of Kafka's
        # Partition.updateFollowerFetchState.
        cdef Replica* replica = replica_of(self.replicas, broker_id)
        cdef bint raised = replica is not NULL and log_start > replica.log_start
        if replica is NULL or not replica_fetched(replica, broker_epoch, at, log_start, time_ms, leader_end):
            return NOT_LEADER_OR_FOLLOWER
        if raised:
            self.note_starts()
        if replica_joins(replica, self.row.high_watermark, self.row.epoch_start):
            replica.asked = True
            with gil:
                call_replica(self, broker_id)
        if self.replicas is not NULL and self.raise_replicated():
            self.tell(ADVANCED_HIGH_WATERMARK)
        if self.awaits_starts and raised:
            with gil:
                call_start_told(self)
        return 0

    cdef void note_starts(self) noexcept nogil:
        cdef int64_t start = 0
        cdef int32_t i
        for i in range(self.replicas.count):
            if self.replicas.replicas[i].in_isr:
                start = max(start, self.replicas.replicas[i].log_start)
        self.row.replicas_start = start

    cdef int raise_replicated(self) noexcept nogil:
        # Moves HW as far as the followers allow; returns whether it moved. Below min.insync.replicas it stays (Kafka
        # 3.7+).
        cdef Mark mark
        cdef RecentBatch recent
        cdef int64_t following
        if self.row.isr_count < self.row.isr_count_min:
            return 0
        mark.offset = self.row.durable_offset
        mark.segment = -1
        mark.position = -1
        replicas_bound(self.replicas, kafkad_monotonic_ms(), self.row.log_end_offset, &mark)
        if mark.offset <= self.row.high_watermark:
            return 0
        if mark.offset >= self.row.log_end_offset:
            mark.offset = self.row.log_end_offset
            mark.segment = self.row.end_segment
            mark.position = self.row.end_position
        elif mark.segment < 0:
            if mark.offset >= self.active().base_offset and lookup_recent(
                    &self.lookup, mark.offset, self.active().size, &recent, &following) and (
                    recent.base_offset == mark.offset):
                mark.segment = self.active().base_offset
                mark.position = recent.position
            else:
                with gil:
                    if not find_boundary(self, &mark):
                        return 0                        # a disk error: tried again at the next Fetch
        row_begin(self.row)
        self.row.high_watermark = mark.offset
        self.row.high_watermark_segment = mark.segment
        self.row.high_watermark_position = mark.position
        self.move_stable()
        row_end(self.row)
        return 1

    def refresh_stable(self) -> None:
        """After loading or truncation: find the transactions that hold LSO, and the end of the aborted ones. Raises
        OSError if the disk fails."""
        cdef int64_t before = self.row.last_stable_offset
        cdef int64_t end = aborted_end(
            self.directory, self.segments, self.segment_count, self.row.log_end_offset)
        cdef Transaction* transaction
        cdef int i
        if end < 0:
            self.raise_refused(<int>end, b"reading the index of aborted transactions")
        if transactions_rebuild(&self.transactions, self.producer_map, self.row.log_end_offset) != 0:
            raise MemoryError()
        for i in range(self.transactions.head, self.transactions.end):
            transaction = &self.transactions.places[i]
            if transaction.position < 0 or transaction.first_offset < self.row.log_start_offset:
                transaction.stable_offset = max(transaction.stable_offset, self.row.log_start_offset)
                transaction.segment, transaction.position = self.boundary_of(transaction.stable_offset)
        self.row_begin()
        self.row.aborted_end = end
        self.move_stable()
        self.row_end()
        if self.row.last_stable_offset > before:
            self.tell(ADVANCED_HIGH_WATERMARK)

    def truncated(self, int64_t end_offset, int64_t position) -> None:
        """Adjust the watermarks: the active segment was cut at `position`. Later segments are dropped already."""
        cdef Segment* segment = self.active()
        segment.size = position
        segment.bytes_since_index = 0
        segment.max_timestamp = UNKNOWN
        segment.first_timestamp = UNKNOWN
        lookup_forget(&self.lookup)
        self.row_begin()
        self.row.generation += 1
        self.row.log_end_offset = end_offset
        self.row.end_segment = segment.base_offset
        self.row.end_position = position
        if self.row.log_start_offset > end_offset:
            self.row.log_start_offset = end_offset
        if self.row.flushed_offset > end_offset:
            self.row.flushed_offset = end_offset
        if self.row.durable_offset > end_offset:
            self.row.durable_offset = end_offset
        self.row.epochs_changed += 1
        if self.row.high_watermark >= end_offset:
            self.row.high_watermark = end_offset
            self.row.high_watermark_segment = segment.base_offset
            self.row.high_watermark_position = position
        if self.row.last_stable_offset >= end_offset:
            self.row.last_stable_offset = end_offset
            self.row.stable_segment = segment.base_offset
            self.row.stable_position = position
        self.row_end()

    def adopt_row(self, RowSlot slot not None) -> None:
        """After loading with a private row: take over the row that a dead owner left, or an empty one. Readers see one
        change. HW, LSO and log start of that row do not go back, and its leadership stays."""
        cdef Row* shared = <Row*>slot.at
        cdef int64_t stable, segment, position
        if shared.partition == self.index and memcmp(shared.topic_id, self.row.topic_id, 16) == 0:
            self.set_log_start(min(shared.log_start_offset, self.row.log_end_offset))
            self.advance_high_watermark(shared.high_watermark)
            stable = min(shared.last_stable_offset, self.row.high_watermark)
            if self.row.last_stable_offset < stable:
                segment, position = self.boundary_of(stable)
                transactions_raise(&self.transactions, stable, segment, position)
                self.row_begin()
                self.move_stable()
                self.row_end()
            if self.row.leader_epoch < 0:
                self.row.leader_epoch = shared.leader_epoch
                self.row.led_since = shared.led_since
                self.row.epoch_start = shared.epoch_start
                self.row.partition_epoch = shared.partition_epoch
                self.row.role = shared.role
                self.row.isr_count = shared.isr_count
                self.row.isr_count_max = shared.isr_count_max
                self.row.isr_count_min = shared.isr_count_min
                self.row.leader_id = shared.leader_id
                self.row.last_epoch = shared.last_epoch
            self.row.durable_offset = min(shared.durable_offset, self.row.log_end_offset)
            self.row.epochs_changed = shared.epochs_changed + 1
            self.row.flushed_offset = max(self.row.flushed_offset, min(shared.flushed_offset, self.row.log_end_offset))
        row_begin(shared)
        self.row.sequence = shared.sequence
        self.row.generation = max(self.row.generation, shared.generation) + 1
        self.row.state = shared.state
        memcpy(shared, self.row, ROW_WORDS * sizeof(int64_t))
        row_end(shared)
        self.row = shared
        self.shared = shared
        self.slot = slot


cdef void call_replica(PartitionWatermarks partition, int32_t broker_id) noexcept:
    try:
        partition.log.on_replica(broker_id)
    except Exception as e:
        unexpected(partition, e)


cdef void call_start_told(PartitionWatermarks partition) noexcept:
    try:
        partition.log.on_start_told()
    except Exception as e:
        unexpected(partition, e)


cdef bint find_boundary(PartitionWatermarks partition, Mark* mark) noexcept:
    try:
        mark.segment, mark.position = partition.boundary_of(mark.offset)
    except OSError:
        return False
    except Exception as e:
        unexpected(partition, e)
        return False
    return True
