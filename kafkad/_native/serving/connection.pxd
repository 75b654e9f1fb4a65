"""What the modules of the data plane share: the reactor's core, a connection, a slot, a timer.

    Core ──┬── Conn (a socket) ── Slot → Slot → Slot      answers in request order, ready or not
           ├── run list           connections with work to do in this turn
           ├── timers             a heap of deadlines: waiting Produces and Fetches
           └── buffer pool        memory of partial frames; an idle connection holds none

Everything here belongs to the thread of one event loop; nothing is locked. `Conn` and `Slot` are plain C. The Python
object `Connection` is made when the first frame of a connection goes to Python, and outlives the socket.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from kafkad._native.shared.arena cimport Arena
from kafkad._native.log.cold_reads cimport ColdJob, ColdReads
from kafkad._native.log.segments cimport LogFile

cdef enum:
    SCRATCH_SIZE = 256 * 1024       # bytes of one read; whole frames are served in place
    SLOT_INLINE = 256               # enough for the answer to a Produce of one or two partitions
    SLOTS_MAX = 256                 # with this many unanswered requests, a connection is not read
    FRAMES_PER_TURN = 256           # served for one connection before the others get their turn
    CALLS_PER_TURN = 16             # the same for frames that go to Python
    ELEMENTS_PER_FRAME = 16         # this many partitions of a request count as one more frame of the turn
    UNSENT_MAX = 1024 * 1024        # with this many bytes of unsent answers, a connection is not served
    BUFFER_CLASSES = 72
    MOVE_AT = 32                    # requests for another worker, after which a connection moves there
    HERE_WEIGHT = 2                 # a request that is answered here outweighs so many of them
    ANSWERS_KEPT = 2
    COPIES_KEPT = 16
    API_KEYS = 128

cdef enum Kind:                     # first field of everything that epoll points to
    KIND_CONNECTION = 1
    KIND_LISTENER = 2
    KIND_WAKE = 3
    KIND_TIMER = 4
    KIND_MAIL = 5
    KIND_HANDOVER = 6
    KIND_LOOP = 7
    KIND_COMMIT = 8
    KIND_OUTGOING = 9

cdef enum Phase:
    PHASE_HANDSHAKE = 0             # Python gets all frames
    PHASE_AUTHENTICATING = 1        # raw tokens: frames without a header
    PHASE_READY = 2

cdef enum Blocked:                  # bits: why nothing can be sent
    BLOCKED_SOCKET = 1              # the socket is full
    BLOCKED_DISK = 2                # the data to send is not in memory yet

ctypedef void (*TimerFunction)(Core* core, Timer* timer) noexcept nogil
ctypedef void (*CancelFunction)(Slot* slot) noexcept nogil

cdef struct Timer:                  # first member of what waits
    int64_t deadline_ms             # monotonic
    Py_ssize_t place                # in the heap; -1: not in it
    TimerFunction expired

cdef struct Region:                 # bytes of a log file, sent after the first `at` bytes of the slot's own
    uint32_t at
    LogFile* file                   # retained
    int64_t position
    int64_t size

cdef struct Charge:                 # how a request counts in quotas (quota.pyx)
    uint64_t key                    # of a row in the quota table
    double limit                    # per second; 0: no limit
    int64_t claimed_ms
    int32_t row
    uint32_t size                   # of the request, in bytes

cdef struct Slot:                   # the answer to one request
    Slot* next
    Conn* conn
    uint32_t request_id
    int32_t correlation_id
    int16_t api_key
    int16_t api_version
    bint ready
    bint silent                     # no answer is sent (acks=0, no_response)
    bint overtakable                # a Produce: later Produces may run before this one is answered
    void* waiting                   # the operation that will finish it; `cancel` undoes it
    CancelFunction cancel
    uint8_t* data                   # 4-byte size, header, body; `inline_data` or malloc
    uint32_t size
    uint32_t capacity
    uint32_t sent
    Region* regions                 # `inline_region` or malloc
    uint32_t region_count
    uint32_t region_capacity
    uint32_t region_sent            # regions already sent
    Charge charge                   # of a Produce
    Region inline_region
    uint8_t inline_data[SLOT_INLINE]

cdef struct Ending:                 # a connection that sent malformed bytes: it gets its answers, then it is closed
    Timer timer                     # must be the first field
    Conn* conn
    char reason[256]

cdef struct Conn:
    int kind
    int fd                          # -1: fed by Python (TLS)
    Core* core
    PyObject* handle                # Connection; NULL: Python has not seen it
    PyObject* writer                # of a fed connection: called with the bytes to send
    PyObject* listener              # name of the listener, a str of the reactor
    uint64_t id
    uint32_t next_request_id
    int phase
    bint readable                   # the last read did not empty the socket
    bint hung_up                    # the peer has closed its side
    int blocked                     # why nothing can be sent now: Blocked
    bint corked
    bint queued                     # in the run list
    bint starved                    # waits for buffer memory
    bint late                       # its answers wait for answers of other workers that follow them (see Core.late_first)
    bint busy                       # being served: a close frees it later
    bint closed
    bint muted                      # over a quota: not read for a while
    Slot* first                     # answers in request order
    Slot* last
    uint32_t slot_count
    uint32_t pending_count          # of them, not ready
    uint32_t pending_produces       # of those, Produces
    uint32_t unpacking              # its batches in decompression threads: requests after them wait
    void* slicing                   # a HeldProduce that is appended in slices, one per turn; it counts as unpacking
    void* asking                    # Produces that wait for a transaction coordinator, in order; each counts as unpacking
    int64_t answer_bytes            # memory of its slots beyond the slots themselves; counts as buffered
    Ending* ending                  # it is not read any more, and is closed when its answers are sent
    uint8_t* input                  # unserved bytes in a buffer, or NULL
    uint32_t input_start
    uint32_t input_end
    uint32_t input_capacity
    uint32_t grown                  # how many of its bytes have been copied
    uint8_t* growing                # to this larger buffer, which then replaces it; usually NULL
    uint32_t proven_size            # size of the largest frame that it completed
    uint32_t last_size              # size of the last frame
    int64_t active_ms               # monotonic
    int64_t session_expires_ms      # monotonic; after that only a SaslHandshake is served. 0: never
    ColdJob* cold_job               # reads the bytes that are to be sent next
    LogFile* cold_file              # file of the last completed cold read (compared, never dereferenced)
    int64_t cold_end                # its bytes below this are sent without asking
    Conn* older                     # by time of last activity
    Conn* newer
    Conn* run_next
    Conn* starved_next
    Conn* late_next
    uint8_t peer[16]                # IPv6, or IPv4 mapped to it
    uint16_t peer_port
    int32_t fetch_session           # the last one it used; 0: none
    void* tls                       # Tls; NULL: plaintext
    void* quota                     # what its requests are charged to (quota.pyx), or NULL
    void* pause                     # the timer that ends `muted`, or NULL
    PyObject* rights                # SubjectRights, from its first Produce or Fetch on, if there is an authorizer
    uint32_t away                   # how far its requests have been for another worker lately: see conn_answered
    uint32_t away_to                # that worker
    bint settled                    # it has moved to this worker

cdef struct Stats:
    int64_t connections
    int64_t accepted                # with those that have moved here; `closed` has those that have moved away
    int64_t refused                 # over max.connections.per.ip, or over the rate of its address
    int64_t closed
    int64_t expired_idle
    int64_t bad_frames
    int64_t bytes_in
    int64_t bytes_out
    int64_t buffered_bytes          # held for partial and waiting frames, waiting Fetches, and answers
    int64_t pooled_bytes            # free, kept for reuse
    int64_t tls_connections         # accepted
    int64_t tls_handshakes          # succeeded
    int64_t tls_failures            # failed
    int64_t polls
    int64_t rounds
    int64_t reads
    int64_t writes                  # sendmsg calls
    int64_t sendfiles
    int64_t copies                  # small regions that were read and sent with their header
    int64_t dispatched              # frames that Python handled
    int64_t python_appends          # appends that needed Python
    int64_t python_reads
    int64_t produce_waits
    int64_t produce_slices          # turns that continued a Produce of an earlier turn
    int64_t produce_timeouts
    int64_t transaction_asks        # Produces that asked a transaction coordinator
    int64_t fetch_waits
    int64_t fetch_timeouts
    int64_t sessions
    int64_t session_partitions
    int64_t session_evictions
    int64_t pauses                  # of connections whose clients were over a quota
    int64_t paused_ms
    int64_t cold_reads              # of data not in memory
    int64_t cold_bytes              # read by helpers
    int64_t cold_checks             # questions to the kernel
    int64_t trims                   # of the heap
    int64_t mail_in                 # messages from other workers, and to them
    int64_t mail_out
    int64_t doorbells               # rung for them
    int64_t hops                    # parts of Produces that were sent to other workers
    int64_t transactional           # Produces that were part of a transaction
    int64_t moved                   # connections that were given to the worker that answered their requests
    int64_t settled                 # connections of now that came from other workers in this way
    int64_t requests[API_KEYS]

cdef struct Copy:                   # a small region in `copies`: all waiters of one batch use it
    LogFile* file                   # retained
    int64_t position
    int64_t size
    uint32_t at

cdef struct BufferClass:            # a free list of buffers of one size
    void* free

cdef struct Core:
    int epoll_fd
    int wake_fd
    int timer_fd
    int wake_kind                   # KIND_WAKE: epoll points here
    int timer_kind                  # KIND_TIMER
    bint polling
    bint woken
    bint waits                      # the loop is in `wait`, which checks `woken` first: no need to write
    int64_t now_ms                  # wall clock, read once per round
    int64_t monotonic_ms
    int64_t timer_armed_ms          # 0: disarmed
    PyObject* reactor
    PyObject* fetching              # Fetching, for functions that only have the core
    void* quotas                    # Quotas (quota.pyx); NULL: no quota is set
    bint authorizing                # there is an authorizer: Produce and Fetch check rights
    PyObject* rights                # TopicRights, or NULL
    uint64_t acl_version            # raised by every change of ACLs
    uint64_t acl_stamps             # stamps given to subjects so far
    uint64_t acl_asks               # how often the authorizer was asked
    void (*session_left)(Core*, int32_t) noexcept nogil     # a connection with a fetch session was closed
    PyObject* acceptor              # Acceptor
    bint (*move)(Conn*) noexcept nogil      # acceptor_move, with several workers; NULL: no other worker takes connections
    Arena* arena                    # source of buffers, so that other workers can read them; NULL: malloc
    uint8_t* scratch                # a buffer; replaced when a request keeps it
    uint32_t scratch_at             # requests keep the part before it; if not 0, the buffer counts as buffered
    uint8_t* serving                # the buffer of the current frame: buffer_retain keeps its bytes
    uint8_t* copies                 # small regions are read to here, and sent with their header
    uint32_t copies_end             # the used part, until the end of the round
    Copy copied[COPIES_KEPT]
    uint32_t copied_count
    Timer** heap
    Py_ssize_t heap_size
    Py_ssize_t heap_capacity
    Conn* run_first
    Conn* run_last
    Conn* starved_first
    Conn* late_first                # have answers to send before this worker sleeps
    int64_t starved_level           # buffered bytes when a connection was last refused memory
    Conn* dead                      # closed in this turn, freed at its end
    Conn* oldest
    Conn* newest
    Slot* free_slots
    uint32_t free_slot_count
    ColdReads cold
    int64_t buffered_bytes_max
    int64_t pooled_bytes_max
    uint8_t* answers[ANSWERS_KEPT]  # of ANSWER_ROOM each, from malloc, for the next ones; pooled, too
    int answer_count
    int32_t request_bytes_max
    int32_t sasl_bytes_max          # of a frame, before its connection is authenticated
    int64_t elements                # partitions that the current frame has answered
    int64_t freed_bytes             # since the heap was last trimmed, in pieces of any size
    int64_t trimmed_ms
    int64_t starved_since_ms        # 0: there is enough memory
    int64_t awake_us                # monotonic: when this round began
    void* tls_areas                 # Areas, once a connection uses TLS
    BufferClass buffers[BUFFER_CLASSES]
    Stats stats

# -- core
cdef Core* core_new(Arena* arena) noexcept                          # NULL arena: buffers come from malloc
cdef void core_free(Core* core) noexcept
cdef void core_shut(Core* core) noexcept                           # closes its fds
cdef void core_wake(Core* core) noexcept nogil                     # makes the loop call poll() soon
cdef void core_read_clocks(Core* core) noexcept nogil               # at the start of a round
cdef int64_t clock_us() noexcept nogil                              # monotonic
cdef void core_fatal(Core* core) noexcept                          # a Python exception that must not be swallowed
cdef void core_failed(Core* core, str what) noexcept               # one that costs a client its request at most

# -- slots. `slot_open` starts an answer and writes its header; `slot_finish` makes it ready to send.
cdef Slot* slot_open(Conn* conn, int16_t api_key, int16_t api_version, int32_t correlation_id) noexcept nogil
cdef uint8_t* slot_extend(Slot* slot, size_t size) noexcept nogil  # `size` more bytes to fill in
cdef void slot_region(Slot* slot, LogFile* file, int64_t position, int64_t size) noexcept nogil  # takes over the reference
cdef void slot_pend(Slot* slot, void* waiting, CancelFunction cancel, bint overtakable) noexcept nogil
cdef void slot_finish(Slot* slot) noexcept nogil
cdef void slot_drop(Slot* slot) noexcept nogil                     # finish without an answer
cdef void slot_free(Slot* slot) noexcept nogil                     # the first of its connection, after it was sent

# -- connections
cdef Conn* conn_new(Core* core, int fd, PyObject* listener, int phase) noexcept
cdef void conn_run(Conn* conn) noexcept nogil                      # adds it to the run list
cdef void conn_run_chain(Core* core, Conn* first, Conn* last) noexcept nogil   # some that are linked, and count as queued
cdef void conn_touch(Conn* conn) noexcept nogil                    # it was active now
cdef void conn_close(Conn* conn, const char* reason) noexcept nogil
cdef void conn_reap(Core* core) noexcept nogil                     # frees closed connections
cdef void conn_answered(Conn* conn) noexcept nogil                 # a request was, or is to be, answered by this worker
cdef bint conn_is_quiet(Conn* conn) noexcept nogil                 # nothing but its socket says what is to be done for it
cdef void conn_end(Conn* conn, const char* reason) noexcept nogil      # closes it when its answers are sent
cdef bint conn_may_serve(Conn* conn, int16_t api_key) noexcept nogil

cdef Connection conn_handle(Conn* conn)

cdef class Connection:
    cdef Conn* conn                 # NULL after close
    cdef object __weakref__
    cdef readonly uint64_t id
    cdef readonly str listener
    cdef readonly str peer_host
    cdef readonly int peer_port
    cdef public object client_software_name
    cdef public object client_software_version
    cdef public object principal
    cdef public object state        # for the server's use
    cdef Slot* slot_of(self, uint32_t request_id) except? NULL
    cdef int answered(self) except -1
