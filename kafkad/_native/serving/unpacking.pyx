"""Decompression beside the event loop: compressed batches that need more than one turn, in a few threads that take
turns.

A job is decompressed in steps. The loop makes the first steps, within its budget (`unpack_turn`). The rest goes to a
lane, one per connection, and the loop continues. A thread takes the lanes in turn: it works for SLICE_NS on the first
job of a lane, then puts the lane behind the others. So a client that sends many decompression bombs delays another
client's batch by one slice per decompressing connection, not by the size of the bombs. The jobs of a lane run in order,
one at a time. Finished jobs wait in a list, and an eventfd wakes the loop, which calls their `deliver` in `settle`.

    loop: first steps ──► lane of the connection ──► thread: slice, slice, … ──► done ──► loop: deliver (the append)

Memory is bounded. A job announces how much its next step will hold (zstd's window, a block of lz4 or snappy), and waits
aside while that and the memory of the others would exceed MEMORY_MAX. Jobs get memory in the order in which they asked,
so a large one is not passed over for ever. A job that is alone may always continue.

A job belongs to one thread at a time: to the loop until `submit`, to a thread during a slice, to the loop again when it
is delivered. The lock protects the queues. The loop never touches a job in between, except to set `cancelled`.

The libraries and the walk over the records release the GIL; a step holds it for a few µs. Steps with little output
follow each other fast, and a thread that takes the GIL again at once starves the loop. So a thread naps after
STEPS_PER_NAP steps with little output.

A thread starts with the first job that finds no idle thread. If the system has no thread left, the loop does a slice of
the work in each turn."""

from libc.stdint cimport int64_t, uint64_t

from kafkad._native.wire.primitives cimport KAFKAD_CHECK

import threading
from collections import deque

cdef extern from * nogil:
    """
    #include <time.h>
    #include <unistd.h>
    static inline int64_t kafkad_now_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    """
    int64_t kafkad_now_ns()
    int usleep(unsigned int microseconds)
    ssize_t write(int fd, const void* data, size_t size)

cdef enum:
    THREADS_MAX = 2
    SLICE_NS = 5_000_000
    STEPS_PER_NAP = 32
    NAP_BYTES = 64 << 10                # decompressing this many bytes counts as time without the GIL
    NAP_US = 50
    MEMORY_MAX = 64 << 20
    SETTLE_NS = 4_000_000               # per turn of the loop, for finished jobs; one is always delivered
    # The loop leaves a batch to a thread after this many bytes, or this many steps.
    LOOP_BYTES = 256 << 10
    LOOP_PACKED_BYTES = 16 << 10        # for a batch that is compressed again, which costs far more
    LOOP_STEPS = 64

cdef int64_t unpack_now_ns() noexcept nogil:
    return kafkad_now_ns()


cdef bint unpack_turn(object work, int64_t ns) except -1:
    """Make steps of `work` on the loop, within its budget and `ns`. Return whether it is done."""
    cdef int64_t end_ns = kafkad_now_ns() + ns
    cdef int64_t left = LOOP_PACKED_BYTES if work.rewrites else LOOP_BYTES
    cdef int64_t size
    cdef int steps
    for steps in range(LOOP_STEPS):
        if <int64_t>work.ahead > left:
            return False
        size = work.step()
        if size < 0:
            return True
        left -= size
        if left < 0 or (steps and kafkad_now_ns() >= end_ns):
            return False
    return False


cdef inline int64_t memory_of(object work) except -1:
    return min(<int64_t>work.memory, <int64_t>MEMORY_MAX)   # a larger one goes alone


cdef class Job:
    """`work` has `step()`, `memory` and `close()` (see protocol.validation.Validation). The loop calls `deliver(work,
    error)`, where `error` is what a step raised, or None. A job that is `cancelled` makes no more steps, but is
    delivered."""

    def __init__(self, object work, object deliver):
        self.work = work
        self.deliver = deliver

    cdef bint slice(self):
        """Work for SLICE_NS, in a thread. Return whether it is done."""
        cdef int64_t end_ns = kafkad_now_ns() + SLICE_NS
        cdef int64_t size, unpacked = 0
        cdef int64_t held = self.held
        cdef int steps = 0
        try:
            while not self.cancelled:
                size = self.work.step()
                if size < 0:
                    return True
                unpacked += size
                steps += 1
                if steps >= STEPS_PER_NAP or unpacked >= NAP_BYTES:
                    if unpacked < NAP_BYTES:
                        with nogil:
                            usleep(NAP_US)
                    steps = 0
                    unpacked = 0
                    if kafkad_now_ns() >= end_ns:
                        return False
                if memory_of(self.work) > held:
                    return False                        # `_next` gets memory for it
        except BaseException as error:
            self.error = error
        return True


cdef class Unpacker:
    """Lanes and threads. `wake_fd` is an eventfd, written to when a job is done."""

    def __init__(self, int wake_fd, int threads_max=THREADS_MAX):
        self.wake_fd = wake_fd
        self.threads_max = threads_max
        self.condition = threading.Condition(threading.Lock())
        self.lanes = {}
        self.ring = deque()
        self.aside = deque()
        self.done = deque()
        self.threads = []

    def submit(self, object lane, object work, object deliver) -> Job:
        """Queue a job, from the loop. `lane` is any key: the jobs of one lane run in order."""
        cdef Job job = Job(work, deliver)
        with self.condition:
            jobs = self.lanes.get(lane)
            if jobs is None:
                self.lanes[lane] = deque((job,))
                self.ring.append(lane)
            else:
                jobs.append(job)
            self.jobs += 1
            self.waiting += 1
            if jobs is not None:
                return job
            if self.resting:
                self.condition.notify()
                return job
        if len(self.threads) < self.threads_max and not self.closed:
            try:
                thread = threading.Thread(target=self._work, name="kafkad-unpack", daemon=True)
                thread.start()
            except (RuntimeError, MemoryError):         # the system has no thread left
                if not self.threads:
                    self._wake()                        # `settle` works instead
                return job
            self.threads.append(thread)
        return job

    def settle(self) -> None:
        """Deliver finished jobs, on the loop. Beyond SETTLE_NS the rest waits for the next turn."""
        cdef Job job
        cdef int64_t end_ns = kafkad_now_ns() + SETTLE_NS
        if not self.threads and self.lanes:
            self._turn(False)
            if self.lanes:
                self._wake()
        while self.done:
            job = self.done.popleft()
            self.waiting -= 1
            error, job.error = job.error, None
            job.deliver(job.work, error)
            if self.done and kafkad_now_ns() >= end_ns:
                self._wake()
                return

    def hold(self, bint held) -> None:
        """For tests: if `held`, no thread starts a slice until this is called with False."""
        with self.condition:
            self.on_hold = held
            self.condition.notify_all()

    def _work(self) -> None:
        while self._turn(True):
            pass

    cdef void _wake(self) noexcept:
        cdef uint64_t one = 1
        write(self.wake_fd, &one, 8)

    cdef bint _turn(self, bint may_rest) except -1:
        """Do one slice. Return False if there is nothing to do (and the caller may not rest), or after `close`."""
        cdef Job job
        cdef bint ended
        with self.condition:
            while not self.closed:
                job = None if self.on_hold else self._next()
                if job is not None:
                    break
                if not may_rest:
                    return False
                self.resting += 1
                self.condition.wait()
                self.resting -= 1
            else:
                return False
        ended = job.cancelled or job.slice()
        with self.condition:
            jobs = self.lanes[job.lane]
            if ended:
                self.held -= job.held
                job.held = 0
                jobs.popleft()
                self.done.append(job)
                self.ring.extendleft(reversed(self.aside))
                self.aside.clear()
            if jobs:
                self.ring.append(job.lane)
            else:
                del self.lanes[job.lane]
            if ended and not self.closed:
                self._wake()
            if self.resting and len(self.ring) > 1:
                self.condition.notify()
        return True

    cdef Job _next(self):
        """Return the first job of the first lane that can have its memory, or None."""
        cdef Job job
        cdef int64_t more
        while self.ring:
            lane = self.ring.popleft()
            job = self.lanes[lane][0]
            job.lane = lane
            more = memory_of(job.work)
            if more > job.held and not job.cancelled:
                # It gives its present memory back first, so that no two jobs wait for each other: a waiting job holds
                # nothing, so another one holds some, and continues.
                self.held -= job.held
                job.held = 0
                if self.held and (self.aside or self.held + more > MEMORY_MAX):
                    self.aside.append(lane)
                    continue
                job.held = more
                self.held += more
            return job
        return None

    def close(self) -> None:
        """End the threads. Undelivered jobs are dropped: `deliver(None, None)`."""
        cdef Job job
        with self.condition:
            self.closed = True
            self.condition.notify_all()
        for thread in self.threads:
            thread.join()
        left = [*self.done, *(job for jobs in self.lanes.values() for job in jobs)]
        self.threads.clear()
        self.done.clear()
        self.lanes.clear()
        self.ring.clear()
        self.aside.clear()
        for job in left:
            self.waiting -= 1
            job.work.close()
            job.error = None
            job.deliver(None, None)
        KAFKAD_CHECK(self.waiting == 0)
