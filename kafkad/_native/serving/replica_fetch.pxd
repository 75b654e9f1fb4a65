"""Followed partitions and the connection to their leader: see replica_fetch.pyx."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kafkad._native.serving.connection cimport Timer
from kafkad._native.serving.followed cimport Followed, FollowedPartitions
from kafkad._native.serving.outgoing cimport Outgoing
from kafkad._native.serving.replication_quota cimport ReplicationQuota
from kafkad._native.wire.buffer cimport WriteBuffer
from kafkad._native.wire.primitives cimport Cursor

cdef enum Place:                    # next part of an answer
    FRAME
    TOPICS
    TOPIC
    PARTITION
    ABORTED
    RECORDS_SIZE
    RECORDS
    TAGS
    TAG
    SKIP
    DIVERGING

cdef struct Later:                  # the rest of the buffer is parsed when it is over
    Timer timer                     # must be the first field
    void* owner

cdef class ReplicaFetch(FollowedPartitions):
    cdef Outgoing link
    cdef Later later
    cdef bint called                # Python, since the clock was read
    cdef object reactor, sink, log
    cdef int32_t broker_id, max_wait_ms, min_bytes, max_bytes, partition_bytes, answer_bytes_max, batch_bytes_max
    cdef int16_t version
    cdef bytes client_id
    cdef int64_t broker_epoch
    cdef list events                # calls of `sink` to make after parsing
    # the session and the current request
    cdef int32_t session_id, session_epoch, correlation
    cdef bint full                  # the current request asks for a new session
    cdef int64_t sent_ms            # when it was sent, monotonic; 0: there is none
    cdef int empty_streak           # consecutive answers without news
    cdef int64_t streak_ms
    cdef bint paused
    cdef ReplicationQuota quota     # None: nothing is throttled
    cdef int32_t held               # partitions left out because of a throttle
    cdef WriteBuffer request
    # the answer: bytes that have come, and the state of the parser
    cdef uint8_t* buffer
    cdef size_t capacity_bytes, begin, end
    cdef int64_t frame_left         # bytes of the answer that are not parsed yet
    cdef Place place, after_tags, after_skip
    cdef int32_t topics_left, partitions_left, aborted_left
    cdef uint32_t tags_left
    cdef bint in_partition          # the tags belong to a partition
    cdef int64_t skip_left, records_left
    cdef uint8_t topic_id[16]
    cdef int32_t index
    cdef int16_t code, answer_code
    cdef int64_t high_watermark, log_start
    cdef int32_t diverging_epoch
    cdef int64_t diverging_end
    cdef bint moved                 # this answer has news
    cdef const char* trouble        # why the answer is refused
    cdef int gone_on                # how often Python was called at this place
    cdef readonly int64_t bytes_read, answers, requests, batches_bytes

    cdef void begin_session(self) noexcept nogil
    cdef bint leaves_session(self) noexcept
    cdef int short_of(self, int64_t there) noexcept nogil
    cdef void take(self, Cursor* c, const uint8_t* at) noexcept nogil
    cdef void next_partition(self) noexcept nogil
    cdef int tags_over(self) noexcept nogil
    cdef int skip_records(self) noexcept nogil
    cdef void deliver_and_fetch(self) noexcept
    cdef void read_on(self) noexcept nogil
    cdef void parse_on(self) noexcept nogil
    cdef int parse(self) noexcept nogil
    cdef int records(self) noexcept nogil
    cdef void records_over(self) noexcept nogil
    cdef void partition_over(self) noexcept nogil
    cdef void marks_over(self, Followed* followed) noexcept nogil
    cdef int answer_over(self) noexcept nogil
    cdef int make_room(self, size_t wanted) noexcept nogil
    cdef void note(self, Followed* followed, uint8_t state, int code, const char* why) noexcept nogil
    cdef bint go_on(self, int64_t base, int32_t epoch) noexcept
    cdef bint overlap(self, int64_t base, int64_t last) noexcept
    cdef void raise_log_start(self) noexcept
    cdef void note_refused(self, object error) noexcept
    cdef void drop_large_buffer(self) noexcept nogil
    cdef void hold_back(self) noexcept nogil
    cdef int build(self) except -1
    cdef bint send_request(self) noexcept
    cdef void lose(self, object reason) noexcept
    cdef void deliver(self) noexcept
