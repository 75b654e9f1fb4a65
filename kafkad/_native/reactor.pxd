"""The event loop's C half. See reactor.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int64_t, uint8_t, uint16_t, uint32_t

from kafkad._native.connection cimport API_KEYS, Conn, Core
from kafkad._native.fetch cimport Fetching
from kafkad._native.forwarding cimport Forwarding
from kafkad._native.handover cimport Handed, Handover
from kafkad._native.mailbox cimport Mailboxes
from kafkad._native.partition_table cimport PartitionTable
from kafkad._native.produce cimport Producing

cdef struct Listener:
    int kind                        # KIND_LISTENER, what epoll points to
    int fd
    int phase
    uint32_t index                  # in the order of add_listener: its number for other workers
    bint paused                     # max.connections is reached: the backlog waits
    PyObject* name                  # str

cdef struct Commits:
    int kind                        # KIND_COMMIT, what epoll points to
    PyObject* group                 # GroupCommit

cdef class Reactor:
    cdef Core* core
    cdef PartitionTable table
    cdef Producing producing
    cdef Fetching fetching
    cdef Mailboxes mailboxes        # None: this process is the only worker
    cdef Forwarding forwarding
    cdef bint has_mail              # there are mailboxes
    cdef PyObject* arena            # Mailboxes, a reference: the core's buffers lie there
    cdef int mail_kind              # what epoll points to: KIND_MAIL
    cdef Handover handover          # None: new connections stay here
    cdef bint hands_over
    cdef int handover_kind          # what epoll points to: KIND_HANDOVER
    cdef int loop_kind              # what epoll points to: KIND_LOOP
    cdef bint called                # Python has something to do: `wait` ends
    cdef bint loop_ready            # it is the event loop
    cdef bint asleep                # as its mailbox says
    cdef int late_rounds            # that answers have waited for those of other workers
    cdef int64_t in_hand            # accepted or taken from others, not served yet
    cdef uint32_t listener_count    # that were ever added
    cdef bint paused                # a listener is
    cdef object dispatch, on_fatal, log
    cdef dict listeners             # fd -> address of its Listener
    cdef list retired               # of listeners that were removed, freed by the next poll
    cdef list commits               # (address of a Commits, its group)
    cdef dict names                 # every listener name, kept alive
    cdef dict per_host              # 16 bytes of an address -> connections of it
    cdef object hosts               # the same with other workers (host_counts), or None
    cdef dict connections_max_per_host_overrides
    cdef int connections_max_per_host
    cdef int64_t connections_max
    cdef int64_t idle_ms
    cdef int64_t stall_ms
    cdef int send_buffer_size, receive_buffer_size
    cdef int16_t native_low[API_KEYS]
    cdef int16_t native_high[API_KEYS]
    cdef bint open
    cdef object admit(self, int fd, uint8_t* peer, uint16_t port, PyObject* listener, int phase, writer)
    cdef void welcome(self, Listener* listener, int fd, uint8_t* peer, uint16_t port) noexcept
    cdef void welcome_handed(self, int fd, const Handed* handed) noexcept
    cdef Listener* listener_of(self, uint32_t index) noexcept
    cdef object join_hand_over(self)
    cdef bint count_host(self, bytes host, bint limited) except -1
    cdef object uncount_host(self, bytes host)
    cdef void accept_failed(self, Listener* listener, int number) noexcept
    cdef void say(self, str text) noexcept
    cdef void finish(self) noexcept
    cdef void free_retired(self) noexcept
