"""Produce (key 0) in C. See produce.pyx."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kafkad._native.connection cimport Conn, Core, Slot, Timer
from kafkad._native.partition cimport AppendInfo
from kafkad._native.partition_table cimport Entry, PartitionTable, TopicKey, Watch
from kafkad._native.wire cimport Cursor

cdef struct Part:                   # one partition of a request
    int32_t index
    int32_t size                    # of records, -1: null
    uint8_t* records

cdef struct TopicParts:             # one topic of a request: `count` parts from `first`
    const uint8_t* name             # or its id
    int32_t name_size               # -1: `name` is an id of 16 bytes
    uint32_t first
    uint32_t count

cdef struct Outcome:                # of one partition's append
    int code
    bint waits                      # for the high watermark to reach `info.end_offset`
    Entry* entry
    char* text                      # owns `info.message`, or NULL
    AppendInfo info

cdef struct Request:
    int16_t version
    int16_t acks
    int64_t deadline_ms             # monotonic
    uint32_t topic_count
    uint32_t part_count
    TopicParts* topics
    Part* parts
    Outcome* outcomes               # one a part

cdef struct Wait:                   # one partition whose high watermark has not reached `end_offset`
    Watch watch                     # first
    WaitingProduce* produce
    int64_t end_offset
    uint32_t code_at                # where in the answer its error code stands

cdef struct WaitingProduce:
    Timer timer                     # first
    Slot* slot
    uint32_t waits_left
    uint32_t wait_count
    Wait waits[1]

cdef class Producing:
    cdef Core* core
    cdef PartitionTable table
    cdef Part* parts                # scratch of the request at hand
    cdef Outcome* outcomes          # as many
    cdef uint32_t part_capacity
    cdef TopicParts* topics
    cdef uint32_t topic_capacity
    cdef Wait* waits                # what the request at hand will wait for
    cdef uint32_t wait_capacity

# NULL, or why the connection must be closed. `body` stands behind the client id.
cdef const char* produce_frame(Producing self, Conn* conn, int16_t version, int32_t correlation_id,
                               const uint8_t* client, int16_t client_size, Cursor* body) noexcept nogil
cdef void produce_advanced(Producing self, Entry* entry, uint32_t why) noexcept nogil
