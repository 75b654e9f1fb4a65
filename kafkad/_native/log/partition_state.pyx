"""The state that every partition has: its row of watermarks, its segments, its waiters and its failures.

The class is built in layers. Each layer is a module that knows only the layers above it in this list:

    partition_state       the row, the segments, waiters, failures
    partition_reads       where a batch stands, and what a Fetch may read
    partition_watermarks  HW, LSO, log start, log end: how they move
    partition_flushes     what the disk holds, and the group commit
    partition_appends     one batch: validate, admit, write, record
    partition_runs        batches from a leader, many at once
    partition             adding and removing segments; leading and following

Each layer is a base class of the next, so calls between layers go through one C vtable, as within one class.

Files are opened by path when first needed (segments.pyx). An idle partition has no fd and no mapping.

Beware: a partition belongs to one thread, its owner's loop. Only a FileRef may be passed to a flusher thread."""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, strdup

from kafkad._native.log.fileio cimport is_fatal
from kafkad._native.log.batch_search cimport lookup_free_places, lookup_free_ring
from kafkad._native.log.segments cimport Segment, segment_drop
from kafkad._native.shared.watermarks cimport Row, RowSlot, kafkad_fence, row_begin, row_end
from kafkad._native.wire.errors cimport KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER

from kafkad._native.shared.watermarks import private_row

cdef extern from * nogil:
    """
    #define kafkad_or(p, bits) __atomic_fetch_or((p), (bits), __ATOMIC_SEQ_CST)
    """
    void kafkad_or(uint64_t* p, uint64_t bits)


cdef class PartitionState:
    def __cinit__(self, str topic, int index, bytes topic_id, str directory, RowSlot slot=None, ProducerTable producers=None):
        cdef bytes path = os.fsencode(directory)
        self.topic = topic
        self.index = index
        self.slot = private_row() if slot is None else slot
        self.producers = ProducerTable() if producers is None else producers
        self.producer_map = &self.producers.map
        self.row = <Row*>self.slot.at
        self.shared = self.row
        self.owner = -1
        self.directory = strdup(path)
        if self.directory == NULL:
            raise MemoryError()
        self.closed_code = NOT_LEADER_OR_FOLLOWER
        self.opened_ms = INT64_MIN
        self.begun_ms = INT64_MIN
        self.row_begin()
        self.row.partition = index
        if topic_id is not None:
            if len(topic_id) != 16:
                raise ValueError("a topic id is 16 bytes")
            memcpy(self.row.topic_id, PyBytes_AS_STRING(topic_id), 16)
        self.row.leader_epoch = -1
        self.row.led_since = -1
        self.row.leader_id = -1
        self.row.last_epoch = -1
        self.row.highest_tiered_offset = -1
        self.row_end()

    def __dealloc__(self):
        cdef int i
        for i in range(self.segment_count):     # change no file here: another owner may already have it
            segment_drop(&self.segments[i])
        free(self.segments)
        lookup_free_ring(&self.lookup)
        lookup_free_places(&self.lookup)
        free(self.directory)

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index} {self.row.log_start_offset}..{self.row.log_end_offset}>"

    # -- the row ---------------------------------------------------------------------------------------------

    cdef void row_begin(self) noexcept nogil:
        row_begin(self.row)

    cdef void row_end(self) noexcept nogil:
        row_end(self.row)

    cdef void tell(self, int why) noexcept nogil:
        if self.advanced != NULL:
            self.advanced(self.advanced_context, <void*>self, why)
        if self.notify_log:
            with gil:
                call_log(self)

    @property
    def has_readers(self) -> bool:
        """Return whether other workers may read the files."""
        return self.slot.table is not None and self.slot.table.shared

    @property
    def topic_id(self) -> bytes:
        return PyBytes_FromStringAndSize(<char*>self.row.topic_id, 16)

    def set_topic_id(self, bytes topic_id) -> None:
        if len(topic_id) != 16:
            raise ValueError("a topic id is 16 bytes")
        self.row_begin()
        memcpy(self.row.topic_id, PyBytes_AS_STRING(topic_id), 16)
        self.row_end()

    @property
    def end_offset(self) -> int:
        return self.row.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.row.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.row.last_stable_offset

    @property
    def log_start_offset(self) -> int:
        return self.row.log_start_offset

    @property
    def flushed_offset(self) -> int:
        return self.row.flushed_offset

    @property
    def leader_epoch(self) -> int:
        return self.row.leader_epoch

    @property
    def role(self) -> int:
        """watermarks.LEADER, watermarks.FOLLOWER, or 0."""
        return self.row.role

    @property
    def led_since(self) -> int:
        """The leader epoch in which this broker began to lead without interruption; -1 while it follows."""
        return self.row.led_since

    @property
    def leader_id(self) -> int:
        return self.row.leader_id

    @property
    def partition_epoch(self) -> int:
        return self.row.partition_epoch

    @property
    def epoch_start(self) -> int:
        """The offset at which the leader's epoch begins in the log."""
        return self.row.epoch_start

    @property
    def durable_offset(self) -> int:
        """LEO as far as the flush policy allows: acks=1 waits for this offset."""
        return self.row.durable_offset

    @property
    def aborted_end(self) -> int:
        """The offset after the newest abort marker, or 0 if no transaction was ever aborted."""
        return self.row.aborted_end

    @property
    def generation(self) -> int:
        return self.row.generation

    # -- the segments ----------------------------------------------------------------------------------------

    cdef Segment* active(self) noexcept nogil:
        return &self.segments[self.segment_count - 1]

    def set_directory(self, str directory) -> None:
        """Follow a rename of the directory. Open files stay valid."""
        cdef char* copy = strdup(<bytes>os.fsencode(directory))
        if copy == NULL:
            raise MemoryError()
        free(self.directory)
        self.directory = copy

    @property
    def size(self) -> int:
        """Bytes of all segments together."""
        cdef int64_t total = 0
        cdef int i
        for i in range(self.segment_count):
            total += self.segments[i].size
        return total

    @property
    def count(self) -> int:
        return self.segment_count

    def segment_rows(self) -> list:
        """(base_offset, size, created_ms) of each segment, oldest first."""
        cdef int i
        return [(self.segments[i].base_offset, self.segments[i].size, self.segments[i].created_ms)
                for i in range(self.segment_count)]

    @property
    def first_base_offset(self) -> int:
        return self.segments[0].base_offset if self.segment_count else self.row.log_end_offset

    @property
    def active_base_offset(self) -> int:
        return self.active().base_offset if self.segment_count else self.row.log_end_offset

    @property
    def active_size(self) -> int:
        return self.active().size if self.segment_count else 0

    def index_entries(self) -> tuple:
        """The number of entries in the offset index and the time index of the active segment."""
        return (self.active().offsets.entries, self.active().times.entries)

    # -- failures --------------------------------------------------------------------------------------------

    cdef int refused(self, int failure, const char* doing) noexcept nogil:
        # A broken disk takes the directory offline, through Python. A shortage (full disk, no descriptor, no memory)
        # fails this request only, and is logged at a limited rate.
        with gil:
            if is_fatal(failure):
                fail_log(self, -failure, doing)
            else:
                call_short(self, -failure, doing)
        return KAFKA_STORAGE_ERROR

    cdef int raise_refused(self, int failure, const char* doing) except -1:
        self.refused(failure, doing)
        raise OSError(-failure, f"{doing.decode()}: {os.strerror(-failure)}", os.fsdecode(<bytes>self.directory))


cdef void partition_listen(PartitionState partition, int me) noexcept nogil:
    kafkad_or(&partition.shared.waiters, <uint64_t>1 << me)
    kafkad_fence()


cdef void call_log(PartitionState partition) noexcept:
    try:
        partition.log.on_advance()
    except Exception as e:
        unexpected(partition, e)


cdef void fail_log(PartitionState partition, int error, const char* doing) noexcept:
    partition.failure = error
    partition.open = False
    partition.closed_code = KAFKA_STORAGE_ERROR
    try:
        if partition.log is not None:
            partition.log.on_failure(OSError(error, f"{doing.decode()}: {os.strerror(error)}"))
    except Exception as e:
        unexpected(partition, e)


cdef void call_short(PartitionState partition, int error, const char* doing) noexcept:
    try:
        if partition.log is not None:
            partition.log.on_shortage(OSError(error, f"{doing.decode()}: {os.strerror(error)}"))
    except Exception as e:
        unexpected(partition, e)


cdef object on_fatal = None


def set_on_fatal(callback):
    """Set what ends this process if a callback of a log raises AssertionError. None: abort."""
    global on_fatal
    on_fatal = callback


cdef void unexpected(PartitionState partition, object error) noexcept:
    import logging

    if isinstance(error, AssertionError):
        if on_fatal is None:
            logging.getLogger("kafkad.log").critical("%s-%d is broken", partition.topic, partition.index, exc_info=error)
            os.abort()
        on_fatal(error)
        return
    logging.getLogger("kafkad.log").error("%s-%d", partition.topic, partition.index, exc_info=error)
