"""Forwarding Produce to other workers. See produce_forwarding.pyx."""

from libc.stdint cimport int32_t, int64_t, uint32_t

from kafkad._native.serving.connection cimport Core
from kafkad._native.shared.mailbox cimport WORKERS_MAX, Mail, Mailboxes
from kafkad._native.serving.partition_table cimport PartitionTable
from kafkad._native.serving.produce_state cimport HeldProduce, Producing

cdef struct Flight:                 # records being appended by their owner; its token is generation << 32 | place
    HeldProduce* held               # NULL: free
    uint32_t* bad                   # refused records, as far as reported, or NULL
    uint32_t number                 # of the part
    uint32_t generation
    uint32_t row
    int32_t owner                   # or the next free place, -1: none

cdef class Forwarding:
    cdef Core* core
    cdef PartitionTable table
    cdef Mailboxes mailboxes
    cdef Producing producing
    cdef dict behind                # by connection and partition with a batch in decompression: the mails that came later
    cdef Flight* flights
    cdef uint32_t capacity
    cdef int32_t free_place
    cdef uint32_t generation
    cdef bint gone[WORKERS_MAX]     # died, and has no successor yet
    cdef int lives[WORKERS_MAX]     # of each peer, as last reported
    cdef readonly int64_t in_flight, forwarded, appended    # in flight now; sent to others; appended for others
    cdef void forget(self) noexcept # at the end, when all connections are closed

cdef void forward_mail(Forwarding self, int sender, const Mail* mail) noexcept nogil
cdef void forwarding_peer_lost(Forwarding self, int peer) noexcept nogil       # it died, or its successor has started
