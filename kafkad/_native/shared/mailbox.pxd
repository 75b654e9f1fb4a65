"""Messages between workers: rings in shared memory, doorbells, and the arenas that messages point into.
See mailbox.pyx."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from kafkad._native.shared.arena cimport Arena

cdef enum:
    MAIL_APPEND = 1                 # to a partition's owner: append the bytes in the sender's arena
    MAIL_APPENDED = 2               # the answer to APPEND
    MAIL_ADVANCED = 3               # to a worker that asked for it: a row's watermarks moved
    MAIL_BAD_RECORDS = 4            # before an APPENDED: `text` has the indexes of `size` refused records
    MAIL_FOLLOWER = 5               # to a partition's owner: how far a follower is, by its Fetch (serving/follower_mail)
    TEXT_MAX = 128
    WORKERS_MAX = 64
    RING_SIZE = 256                 # messages, a power of two; further ones wait in the sender's private memory

cdef extern from * nogil:
    """
    #define ARENA_SIZE ((size_t)1 << 34)
    """
    const size_t ARENA_SIZE         # bytes of address space per worker; the system provides memory at the first access

cdef struct Mail:                   # 256 bytes, one ring entry; only APPENDED and FOLLOWER use more than 64 bytes
    uint16_t kind
    uint8_t to_life                 # set by the mailbox: the lives of the receiver and the sender, as the sender knows them
    uint8_t from_life
    uint32_t row
    uint64_t token                  # chosen by the sender, returned in the answer
    uint8_t topic_id[16]
    uint64_t at                     # APPEND: position of the bytes in the sender's arena
    uint32_t size
    int16_t api_version
    uint8_t flags                   # APPEND: bit 0: from the admin client; bits 1 and 2: its admission (log/guards.pxd);
                                    # bit 3, and of APPENDED: acks=all
    uint8_t spare
    int32_t code                    # APPEND: the partition. APPENDED: an error code, with partition.AppendInfo below
    int32_t bad_record              # or a guard (log/guards.pxd): of APPEND, and of APPENDED if it needs a transaction
    int64_t base_offset             # APPEND: the number of the connection that sent the request
    # -- 64
    int64_t end_offset
    int64_t append_time_ms
    int64_t log_start_offset
    int64_t durable_offset          # of the owner's log (`at` has its high watermark), and the term that the append is of
    int32_t term
    uint16_t text_size
    char text[TEXT_MAX]
    uint8_t unused[26]

cdef struct Ring:                   # from one sender to one receiver
    uint64_t head                   # written by the sender: number of messages put so far
    uint64_t starved                # set to 1 by the sender when more wait for room, to 0 by the receiver when there is room
    uint64_t _head[6]
    uint64_t tail                   # written by the receiver: number of messages taken so far
    uint64_t _tail[7]
    Mail mails[RING_SIZE]

cdef struct Cell:                   # a worker's state that the others read
    uint64_t state                  # number of sleeps << 2 | AWAKE, ASLEEP or RUNG
    uint64_t _state[7]
    uint32_t life                   # how often a worker entered here; 0: never
    int32_t pid
    uint32_t half                   # the half of its arena that it uses
    uint32_t stale                  # other workers may still read the other half, which a former life used
    uint64_t _life[6]

cdef struct Board:                  # the start of the shared memory; cells and rings follow
    uint64_t lives                  # sum of all lives; each round checks whether it has changed
    uint64_t workers
    uint64_t _spare[6]

cdef struct Outbox:                 # this process's end of a ring to a peer
    Ring* ring
    uint64_t head
    uint64_t tail                   # as last seen
    uint8_t life                    # the peer's life, as last seen
    bint posted                     # the peer must be rung for new messages
    Mail* queue                     # circular queue of messages that had no room in the ring
    uint32_t first
    uint32_t waiting
    uint32_t capacity

cdef struct Inbox:
    Ring* ring
    uint64_t head                   # as last seen
    uint64_t tail
    bint taken                      # messages were taken since the last mail_ring

ctypedef void (*MailFunction)(void* context) noexcept nogil

cdef class Mailboxes:
    cdef readonly int me            # -1 before `enter`
    cdef readonly int count
    cdef int entered_pid
    cdef int fd
    cdef uint8_t* map
    cdef size_t map_size
    cdef Board* board
    cdef Cell* cells
    cdef Outbox outboxes[WORKERS_MAX]
    cdef Inbox inboxes[WORKERS_MAX]
    cdef int doorbells[WORKERS_MAX]
    cdef int arena_fds[WORKERS_MAX]
    cdef uint8_t* arenas[WORKERS_MAX]
    cdef Arena arena                # mine
    cdef uint64_t lives             # Board.lives as last seen
    cdef uint64_t stale_heads[WORKERS_MAX]
    cdef bint stale                 # the other half of my arena is still in use
    cdef uint32_t stale_rounds
    cdef int turn                   # the sender that mail_peek looks at first
    cdef int turn_left
    cdef int peeked                 # sender of the current message, -1: none
    cdef bint told                  # a message was posted since the last mail_ring
    cdef MailFunction wake          # the reactor's function: the first post after a mail_ring asks for another round
    cdef void* wake_context
    cdef readonly int64_t mail_in, mail_out, rings
    cdef int lose(self, int peer) except -1
    cdef bint drained(self, uint64_t* heads) noexcept
    cdef void forget_arena(self) noexcept
    cdef void leave(self) noexcept

# Post a message. This never fails: messages without room in the ring are queued and follow later.
cdef void mail_post(Mailboxes self, int to, const Mail* mail) noexcept nogil
# Return the next message, or NULL. It stays valid until mail_done.
cdef const Mail* mail_peek(Mailboxes self, int* sender) noexcept nogil
cdef void mail_done(Mailboxes self) noexcept nogil      # the sender may now reuse the memory that the message points to
# At the end of a round: wake the sleeping workers that have new messages.
cdef void mail_ring(Mailboxes self) noexcept nogil
cdef bint mail_sleep(Mailboxes self) noexcept nogil     # False: do not sleep, a message has come
cdef void mail_awake(Mailboxes self) noexcept nogil
# Return a peer that began a new life since the last call, or -1.
cdef int mail_lost(Mailboxes self) noexcept nogil
cdef void mail_drop(Mailboxes self, int peer) noexcept nogil   # drop the messages that are queued for it

cdef inline uint8_t* arena_of(Mailboxes self, int worker) noexcept nogil:
    return self.arenas[worker]

cdef inline bint in_arena(Mailboxes self, int worker, const uint8_t* data, size_t size) noexcept nogil:
    """Return whether a message can refer to these bytes. It nearly always can; a buffer that found no room in the arena is
    private."""
    return data >= self.arenas[worker] and data + size <= self.arenas[worker] + ARENA_SIZE
