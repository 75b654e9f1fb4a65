"""Messages between the workers of one broker: rings in shared memory, doorbells, lives.

One memfd, mapped before the fork, holds one cell per worker and one ring per (receiver, sender):

    Board | Cell × N | Ring × N × N (by receiver, then sender)

**Rings.** A ring has one sender, one receiver and 256 entries. `head` and `tail` only grow. Each is on its own cache
line, is written by one side, and is published with a release. An entry may point into the sender's arena; the receiver
reads the bytes there, so the sender must not reuse them until `mail_done`. Messages without room in the ring wait in
the sender's private memory, in order. The receiver wakes the sender when there is room again. So posting never fails
and never blocks.

**Doorbells.** A worker that is about to sleep writes so into its cell, and then checks its rings once more. A sender
that has put a message checks the cell. Both have a full fence in between, so one of them sees the other. The sender
writes the eventfd and then marks this sleep as rung (each sleep has a number), so that other senders need not ring. If
it is killed in between, they just ring again. Workers ring at the end of a round, and only for workers that sleep;
under load none does.

**Lives.** A worker may die at any instruction; its successor calls `enter`, and each such life has a number. A
half-written entry is not published, and messages that the dead worker did not take are skipped by its successor. A
message carries the lives of its sender and its receiver, as the sender knows them. It is dropped if either has a new
life. So messages from a worker that does not know yet of a peer's death reach nobody. When it learns of the new life
(`mail_lost`, once per life), it can give up all messages in flight to that peer and reuse their memory, because nobody
reads it any more. Live peers may still be writing to disk from a dead worker's arena. Its successor waits until they
have taken its last message, or uses the other half of the arena.

Beware: all state of one worker here belongs to the thread of its event loop."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from kafkad._native.shared.arena cimport arena_close, arena_give, arena_open, arena_punch, arena_take
from kafkad._native.wire.primitives cimport KAFKAD_CHECK

import os
import time

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <sys/eventfd.h>
    #include <sys/mman.h>
    #include <unistd.h>
    #define mail_load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
    #define mail_store(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
    #define mail_add(p, value) __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST)
    #define mail_fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    static inline int mail_swap(uint64_t* p, uint64_t expected, uint64_t value) {
        return __atomic_compare_exchange_n(p, &expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    """
    uint64_t mail_load(uint64_t* p)
    void mail_store(uint64_t* p, uint64_t value)
    void mail_add(uint64_t* p, uint64_t value)
    void mail_fence()
    bint mail_swap(uint64_t* p, uint64_t expected, uint64_t value)
    uint32_t load_life "mail_load"(uint32_t* p)
    void store_life "mail_store"(uint32_t* p, uint32_t value)
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)
    void* MAP_FAILED
    enum: PROT_READ, PROT_WRITE, MAP_SHARED, MAP_NORESERVE, EFD_CLOEXEC, EFD_NONBLOCK
    int eventfd(unsigned int value, int flags)
    ssize_t write(int fd, const void* data, size_t size)

cdef enum:
    PyBUF_WRITE = 0x200

cdef enum:
    AWAKE = 0
    ASLEEP = 1
    RUNG = 2
    STATE = 3

cdef enum:
    FIRST_PART = 64                 # bytes of a Mail that APPEND and ADVANCED use, one cache line
    TURN = 32                       # messages of one sender in a row
    DRAIN_MS = 1000                 # longest time that a new life waits for the readers of its arena

if sizeof(Mail) != 256 or sizeof(Cell) != 128 or sizeof(Board) != 64 or sizeof(Ring) != 128 + 256 * RING_SIZE:
    raise ImportError("the mailbox's layout has changed")


# -- sending -----------------------------------------------------------------------------------------------

cdef inline void copy_mail(Mail* into, const Mail* mail) noexcept nogil:
    if mail.kind == MAIL_FOLLOWER:
        memcpy(into, mail, sizeof(Mail))
    elif mail.kind == MAIL_APPENDED or mail.kind == MAIL_BAD_RECORDS:
        KAFKAD_CHECK(mail.text_size <= TEXT_MAX)
        memcpy(into, mail, <size_t>(<const char*>mail.text - <const char*>mail) + mail.text_size)
    else:
        memcpy(into, mail, FIRST_PART)


cdef inline bint has_room(Outbox* box) noexcept nogil:
    if box.head - box.tail < RING_SIZE:
        return True
    box.tail = mail_load(&box.ring.tail)
    return box.head - box.tail < RING_SIZE


cdef inline void put(Mailboxes self, Outbox* box, const Mail* mail) noexcept nogil:
    cdef Mail* entry = &box.ring.mails[box.head & (RING_SIZE - 1)]
    copy_mail(entry, mail)
    entry.to_life = box.life
    entry.from_life = <uint8_t>self.cells[self.me].life
    box.head += 1
    mail_store(&box.ring.head, box.head)
    box.posted = True


cdef void mail_post(Mailboxes self, int to, const Mail* mail) noexcept nogil:
    cdef Outbox* box = &self.outboxes[to]
    KAFKAD_CHECK(0 <= to < self.count and to != self.me)
    self.mail_out += 1
    if not self.told:
        self.told = True
        if self.wake is not NULL:
            self.wake(self.wake_context)
    if box.waiting == 0 and has_room(box):
        put(self, box, mail)
    else:
        enqueue(box, mail)


cdef void enqueue(Outbox* box, const Mail* mail) noexcept nogil:
    cdef Mail* grown
    cdef uint32_t i
    if box.waiting == box.capacity:
        grown = <Mail*>malloc(max(<uint32_t>64, box.capacity * 2) * sizeof(Mail))
        KAFKAD_CHECK(grown is not NULL)
        for i in range(box.waiting):
            grown[i] = box.queue[(box.first + i) % box.capacity]
        free(box.queue)
        box.queue = grown
        box.first = 0
        box.capacity = max(<uint32_t>64, box.capacity * 2)
    copy_mail(&box.queue[(box.first + box.waiting) % box.capacity], mail)
    box.waiting += 1


cdef void push(Mailboxes self, Outbox* box) noexcept nogil:
    """Put queued messages into the ring while there is room. If some are left, ask the receiver to wake us."""
    while box.waiting:
        if not has_room(box):
            mail_store(&box.ring.starved, 1)
            mail_fence()
            if not has_room(box):
                return
        put(self, box, &box.queue[box.first])
        box.first = (box.first + 1) % box.capacity
        box.waiting -= 1


cdef void mail_drop(Mailboxes self, int peer) noexcept nogil:
    self.outboxes[peer].waiting = 0
    self.outboxes[peer].first = 0


# -- doorbells ---------------------------------------------------------------------------------------------

cdef void knock(Mailboxes self, int peer) noexcept nogil:
    """Wake a sleeping peer. There must be a full fence between putting a message and this call."""
    cdef uint64_t* state = &self.cells[peer].state
    cdef uint64_t asleep = mail_load(state)
    cdef uint64_t one = 1
    if asleep & STATE == ASLEEP:
        self.rings += 1
        write(self.doorbells[peer], &one, 8)
        mail_swap(state, asleep, (asleep & ~<uint64_t>STATE) | RUNG)


cdef void mail_ring(Mailboxes self) noexcept nogil:
    cdef int peer
    cdef bint any = False
    self.told = False
    for peer in range(self.count):
        if self.outboxes[peer].waiting:
            push(self, &self.outboxes[peer])
        if self.outboxes[peer].posted or self.inboxes[peer].taken:
            any = True
    if any:
        mail_fence()
        for peer in range(self.count):
            if self.inboxes[peer].taken:
                self.inboxes[peer].taken = False
                if mail_load(&self.inboxes[peer].ring.starved):     # the sender waits for room, and there is some now
                    mail_swap(&self.inboxes[peer].ring.starved, 1, 0)   # this is a fence, too
                    self.outboxes[peer].posted = True
            if self.outboxes[peer].posted:
                self.outboxes[peer].posted = False
                knock(self, peer)
    if self.stale:
        settle_stale(self)


cdef bint mail_sleep(Mailboxes self) noexcept nogil:
    cdef uint64_t* state = &self.cells[self.me].state
    cdef uint64_t number = (mail_load(state) >> 2) + 1
    cdef int peer
    mail_store(state, number << 2 | ASLEEP)
    mail_fence()
    if mail_load(&self.board.lives) == self.lives:
        for peer in range(self.count):
            if mail_load(&self.inboxes[peer].ring.head) != self.inboxes[peer].tail:
                break
            if self.outboxes[peer].waiting and mail_load(&self.outboxes[peer].ring.starved) == 0:
                break
        else:
            return True
    mail_store(state, number << 2 | AWAKE)
    return False


cdef void mail_awake(Mailboxes self) noexcept nogil:
    cdef uint64_t* state = &self.cells[self.me].state
    mail_store(state, mail_load(state) & ~<uint64_t>STATE)


# -- receiving ---------------------------------------------------------------------------------------------

cdef const Mail* mail_peek(Mailboxes self, int* sender) noexcept nogil:
    cdef int looked = 0
    cdef int peer = self.turn
    cdef Inbox* box
    cdef const Mail* mail
    while True:
        box = &self.inboxes[peer]
        while self.turn_left > 0:
            if box.head == box.tail:
                box.head = mail_load(&box.ring.head)
                if box.head == box.tail:
                    break
            mail = &box.ring.mails[box.tail & (RING_SIZE - 1)]
            if mail.from_life != self.outboxes[peer].life:
                if mail.from_life == <uint8_t>load_life(&self.cells[peer].life):
                    break                   # from a life that we do not know yet: mail_lost comes first
            elif mail.to_life == <uint8_t>self.cells[self.me].life:
                self.turn = peer
                self.peeked = peer
                sender[0] = peer
                return mail
            take(box)                       # to or from a worker that has died: skip it
        peer += 1
        if peer == self.count:
            peer = 0
        self.turn_left = TURN
        looked += 1
        if looked > self.count:
            self.turn = peer
            return NULL


cdef inline void take(Inbox* box) noexcept nogil:
    box.tail += 1
    mail_store(&box.ring.tail, box.tail)
    box.taken = True


cdef void mail_done(Mailboxes self) noexcept nogil:
    KAFKAD_CHECK(self.peeked >= 0)
    take(&self.inboxes[self.peeked])
    self.mail_in += 1
    self.turn_left -= 1
    self.peeked = -1


# -- lives -------------------------------------------------------------------------------------------------

cdef int mail_lost(Mailboxes self) noexcept nogil:
    cdef uint64_t lives = mail_load(&self.board.lives)
    cdef int peer
    cdef uint8_t life
    if lives == self.lives:
        return -1
    for peer in range(self.count):
        life = <uint8_t>load_life(&self.cells[peer].life)
        if life != self.outboxes[peer].life:
            self.outboxes[peer].life = life
            mail_drop(self, peer)
            if peer != self.me:
                return peer
    self.lives = lives
    return -1


cdef void settle_stale(Mailboxes self) noexcept nogil:
    """Check /proc now and then, until nobody reads the arena half of a former life any more."""
    self.stale_rounds += 1
    if self.stale_rounds % 256 == 0:
        with gil:
            if self.drained(self.stale_heads):
                self.forget_arena()


cdef class Mailboxes:
    """The mailboxes of all workers. The supervisor creates them before the fork; then each worker calls `enter`."""

    def __cinit__(self, int count):
        cdef void* map
        cdef int i
        self.me = -1
        self.fd = -1
        self.peeked = -1
        self.turn_left = TURN
        for i in range(WORKERS_MAX):
            self.doorbells[i] = -1
            self.arena_fds[i] = -1
        if not 1 <= count <= WORKERS_MAX:
            raise ValueError(f"there may be 1 to {WORKERS_MAX} workers")
        self.count = count
        self.map_size = sizeof(Board) + count * sizeof(Cell) + count * count * sizeof(Ring)
        self.fd = os.memfd_create("kafkad-mailboxes", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.map_size)
        map = mmap(NULL, self.map_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, self.fd, 0)
        if map == MAP_FAILED:
            raise MemoryError("no address space for mailboxes")
        self.map = <uint8_t*>map
        self.board = <Board*>map
        self.cells = <Cell*>(self.board + 1)
        self.board.workers = <uint64_t>count
        for i in range(count):
            self.doorbells[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
            if self.doorbells[i] < 0:
                raise OSError(errno, os.strerror(errno))
            self.arena_fds[i] = os.memfd_create(f"kafkad-arena-{i}", os.MFD_CLOEXEC)
            os.ftruncate(self.arena_fds[i], ARENA_SIZE)
            map = mmap(NULL, ARENA_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                       self.arena_fds[i], 0)
            if map == MAP_FAILED:
                raise MemoryError("no address space for arenas")
            self.arenas[i] = <uint8_t*>map

    def __dealloc__(self):
        cdef int i
        arena_close(&self.arena)
        for i in range(WORKERS_MAX):
            free(self.outboxes[i].queue)
            if self.arenas[i] is not NULL:
                munmap(self.arenas[i], ARENA_SIZE)
            for fd in (self.doorbells[i], self.arena_fds[i]):
                if fd >= 0:
                    os.close(fd)
        if self.map is not NULL:
            munmap(self.map, self.map_size)
        if self.fd >= 0:
            os.close(self.fd)

    def enter(self, int me):
        """Become worker `me`, as the first one or as the successor of a dead one."""
        cdef Ring* rings = <Ring*>(self.cells + self.count)
        cdef Cell* cell
        cdef uint64_t one = 1
        cdef uint64_t heads[WORKERS_MAX]
        cdef size_t half = ARENA_SIZE // 2
        cdef int peer
        if self.entered_pid == os.getpid():             # another pid is that of the parent, whose mailbox is not ours
            raise ValueError("this process has a mailbox already")
        if not 0 <= me < self.count:
            raise ValueError("there is no such worker")
        self.leave()
        self.entered_pid = os.getpid()
        self.me = me
        cell = &self.cells[me]
        mail_store(&cell.state, mail_load(&cell.state) & ~<uint64_t>STATE)
        for peer in range(self.count):
            self.outboxes[peer].ring = rings + peer * self.count + me
            self.inboxes[peer].ring = rings + me * self.count + peer
            heads[peer] = mail_load(&self.outboxes[peer].ring.head)
            if peer != me and cell.life:            # a former life may have died before it rang for its messages
                write(self.doorbells[peer], &one, 8)
        deadline = time.monotonic() + DRAIN_MS / 1000
        while not self.drained(heads) and (cell.stale or time.monotonic() < deadline):
            time.sleep(0.001)
        cell.stale = not self.drained(heads)
        cell.half ^= 1
        self.stale = cell.stale
        memcpy(self.stale_heads, heads, sizeof(heads))
        if not self.stale:
            arena_punch(self.arena_fds[me], 0, ARENA_SIZE)
        if not arena_open(&self.arena, self.arena_fds[me], self.arenas[me], half * cell.half, half):
            raise MemoryError("no memory for an arena's tables")
        self.lives = mail_load(&self.board.lives)       # read before the peers' lives, so a later change is noticed
        for peer in range(self.count):
            self.outboxes[peer].head = heads[peer]
            self.outboxes[peer].tail = mail_load(&self.outboxes[peer].ring.tail)
            self.outboxes[peer].life = <uint8_t>load_life(&self.cells[peer].life)
            mail_store(&self.outboxes[peer].ring.starved, 0)
            self.inboxes[peer].tail = mail_load(&self.inboxes[peer].ring.head)
            self.inboxes[peer].head = self.inboxes[peer].tail
            mail_store(&self.inboxes[peer].ring.tail, self.inboxes[peer].tail)
        cell.pid = self.entered_pid
        store_life(&cell.life, cell.life + 1)
        self.outboxes[me].life = <uint8_t>cell.life
        mail_add(&self.board.lives, 1)
        for peer in range(self.count):
            if peer != me:
                write(self.doorbells[peer], &one, 8)

    cdef void leave(self) noexcept:
        """Drop the state that a forked child has from its parent's mailbox."""
        cdef int peer
        arena_close(&self.arena)
        for peer in range(self.count):
            free(self.outboxes[peer].queue)
        memset(self.outboxes, 0, sizeof(self.outboxes))
        memset(self.inboxes, 0, sizeof(self.inboxes))
        self.wake = NULL
        self.told = False
        self.turn = 0
        self.turn_left = TURN
        self.peeked = -1
        self.mail_in = self.mail_out = self.rings = 0

    cdef bint drained(self, uint64_t* heads) noexcept:
        """Return whether all live peers have taken all messages of this worker's former life."""
        cdef int peer
        for peer in range(self.count):
            if peer != self.me and mail_load(&self.outboxes[peer].ring.tail) < heads[peer] and (
                    not is_gone(self.cells[peer].pid)):
                return False
        return True

    cdef void forget_arena(self) noexcept:
        """Free the half that a former life used, because nobody reads it any more."""
        cdef size_t half = ARENA_SIZE // 2
        self.stale = False
        self.cells[self.me].stale = False
        arena_punch(self.arena_fds[self.me], half * (1 - self.cells[self.me].half), half)

    cdef int lose(self, int peer) except -1:
        """Check whether `peer`, which is reported dead, is really gone. If so, drop its queued messages and return 1.
        If its successor has entered already, do nothing and return 0, because mail_lost reports the new life."""
        if not 0 <= peer < self.count or peer == self.me:
            raise ValueError("there is no such peer")
        if <uint8_t>load_life(&self.cells[peer].life) != self.outboxes[peer].life:
            return 0
        if not is_gone(self.cells[peer].pid):
            return 0
        mail_drop(self, peer)
        return 1

    # -- for tests: a worker without a reactor

    def post(self, int to, int kind, *, int row=0, uint64_t token=0, bytes topic_id=bytes(16), uint64_t at=0,
             uint32_t size=0, bytes text=b""):
        cdef Mail mail
        if not 0 <= to < self.count or to == self.me or self.me < 0:
            raise ValueError("there is no such peer")
        if len(topic_id) != 16 or len(text) > TEXT_MAX:
            raise ValueError("a topic id is 16 bytes, a text at most 128")
        memset(&mail, 0, sizeof(mail))
        mail.kind = <uint16_t>kind
        mail.row = <uint32_t>row
        mail.token = token
        memcpy(mail.topic_id, <const char*>topic_id, 16)
        mail.at = at
        mail.size = size
        mail.text_size = <uint16_t>len(text)
        memcpy(mail.text, <const char*>text, len(text))
        mail_post(self, to, &mail)

    def take(self):
        """Take the next message: return (sender, kind, row, token, topic id, at, size, text), or None."""
        cdef int sender = -1
        cdef const Mail* mail = mail_peek(self, &sender)
        cdef bytes text = b""
        cdef tuple taken
        if mail is NULL:
            return None
        if mail.kind == MAIL_APPENDED:
            text = PyBytes_FromStringAndSize(mail.text, mail.text_size)
        taken = (sender, mail.kind, mail.row, mail.token,
                 PyBytes_FromStringAndSize(<const char*>mail.topic_id, 16), mail.at, mail.size, text)
        mail_done(self)
        return taken

    def ring(self):
        mail_ring(self)

    def sleep(self) -> bool:
        return mail_sleep(self)

    def awake(self):
        mail_awake(self)

    def lost(self) -> int:
        return mail_lost(self)

    def peer_lost(self, int peer) -> bool:
        return self.lose(peer) != 0

    def waiting(self, int peer) -> int:
        """Return how many messages to a peer wait for room in its ring."""
        return self.outboxes[peer].waiting

    def arena_view(self, int worker):
        """Return a worker's arena as a memoryview."""
        return PyMemoryView_FromMemory(<char*>self.arenas[worker], ARENA_SIZE, PyBUF_WRITE)

    def arena_half(self) -> int:
        """Return which half of its own arena this worker uses."""
        return self.cells[self.me].half

    def arena_bytes(self, int worker) -> int:
        """Return how many bytes of memory a worker's arena occupies now."""
        return os.fstat(self.arena_fds[worker]).st_blocks * 512

    def allocate(self, size_t size):
        """Allocate `size` bytes of this worker's arena. Return their position, or None if there is no room."""
        cdef uint8_t* at = arena_take(&self.arena, size)
        return None if at is NULL else at - self.arenas[self.me]

    def give(self, size_t at, size_t size):
        arena_give(&self.arena, self.arenas[self.me] + at, size)

    # -- for all processes

    def doorbell(self, int worker) -> int:
        if not 0 <= worker < self.count:
            raise ValueError("there is no such worker")
        return self.doorbells[worker]

    def life(self, int worker) -> int:
        """Return how often a worker has entered; 0: never."""
        return load_life(&self.cells[worker].life)

    def close(self):
        """Do nothing: memory and descriptors are freed with the last reference."""


def is_gone(int pid) -> bool:
    """Return whether a process will never run again: it does not exist, is a zombie, or is exiting. Return False if this
    cannot be found out now, because no descriptor is left.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    return fields[0] in (b"Z", b"X") or int(fields[6]) & 0x4 != 0  # PF_EXITING
