"""Unpacking beside the event loop: compressed batches that are too much for one turn, in a few threads that take turns.

A job is unpacked step by step. The loop itself makes the first steps, as far as its turn allows (`Turn`); what is left goes to
a lane here, one for each connection, and the loop goes on. A thread takes the lanes in turn, works for SLICE_NS at the first
job of one, and puts it behind the others: so a client with many bombs delays another one's batches by one slice for each
connection that unpacks, not by its bombs. Jobs of a lane are done in order, one at a time. What is done waits in a list, and
an eventfd brings the loop to `settle`, which calls each job's `deliver` there.

    loop: first steps ──► lane of the connection ──► thread: slice, slice, … ──► done ──► loop: deliver (the append)

Memory is bounded: a job says what its next step will hold (zstd's window, a block of lz4 or snappy), and waits aside while
others hold more than MEMORY_MAX together. One that is alone may always go on.

The libraries and the walk over the records let go of the GIL; what is left of Python is a few µs a step. Steps that give
few bytes come fast, and a thread that takes the GIL again at once starves the loop: so a thread naps when it has made
STEPS_PER_NAP steps without having unpacked much.

A thread starts with the first job that finds none at rest. If the system gives none, the loop does the job itself."""

from libc.stdint cimport int64_t, uint64_t

from kafkad._native.wire cimport KAFKAD_CHECK

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
    NAP_BYTES = 64 << 10                # so many bytes unpacked count as time without the GIL
    NAP_US = 50
    MEMORY_MAX = 64 << 20
    # What the loop unpacks of one batch before it leaves the rest to a thread, and in how many steps.
    LOOP_BYTES = 256 << 10
    LOOP_PACKED_BYTES = 16 << 10        # the same of a batch that is packed again, which costs far more
    LOOP_STEPS = 64

cdef int64_t unpack_now_ns() noexcept nogil:
    return kafkad_now_ns()


cdef bint unpack_turn(object work, int64_t ns) except -1:
    """The loop's part: steps of `work` within its budget and `ns`. Whether it is done."""
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
    return min(<int64_t>work.memory, <int64_t>MEMORY_MAX)   # what it holds beyond that it only could hold: one goes alone


cdef class Job:
    """`work` has `step()`, `memory` and `close()` (see protocol.validation.Validation); `deliver(work, error)` is called
    on the loop, with what a step raised or None. `cancelled`: it is not worked on any more, but delivered."""

    def __init__(self, object work, object deliver):
        self.work = work
        self.deliver = deliver

    cdef bint slice(self):
        """In a thread: whether it is done."""
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
                    return False                        # to be asked for
        except BaseException as error:
            self.error = error
        return True


cdef class Unpacker:
    """`Unpacker(wake_fd)`: an eventfd that is written to when something is done."""

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
        """From the loop. `lane` is any key: jobs of one are done in order."""
        cdef Job job = Job(work, deliver)
        self.jobs += 1
        self.waiting += 1
        with self.condition:
            jobs = self.lanes.get(lane)
            if jobs is None:
                self.lanes[lane] = deque((job,))
                self.ring.append(lane)
                if self.resting:
                    self.condition.notify()
                    return job
            else:
                jobs.append(job)
                return job
        if len(self.threads) < self.threads_max and not self.closed:
            thread = threading.Thread(target=self._work, name="kafkad-unpack", daemon=True)
            try:
                thread.start()
            except RuntimeError:                        # no more threads: others will do it, or the loop
                if not self.threads:
                    self._work_off()
                return job
            self.threads.append(thread)
        return job

    def settle(self) -> None:
        """On the loop: delivers what is done."""
        cdef Job job
        while self.done:
            job = self.done.popleft()
            self.waiting -= 1
            error, job.error = job.error, None
            job.deliver(job.work, error)

    def _work(self) -> None:
        while self._turn(True):
            pass

    def _work_off(self) -> None:
        while self._turn(False):
            pass

    cdef bint _turn(self, bint may_rest) except -1:
        """One slice; False when there is nothing to do (and the thread may not rest), or all is closed."""
        cdef Job job
        cdef uint64_t one = 1
        cdef bint ended
        with self.condition:
            while not self.closed:
                job = self._next()
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
                write(self.wake_fd, &one, 8)
            if self.resting and len(self.ring) > 1:
                self.condition.notify()
        return True

    cdef Job _next(self):
        """The first job of the first lane whose memory there is."""
        cdef Job job
        cdef int64_t more
        while self.ring:
            lane = self.ring.popleft()
            job = self.lanes[lane][0]
            job.lane = lane
            # What it holds for data that it has done is given back first, so that no two jobs wait for each other.
            more = memory_of(job.work)
            if more > job.held and not job.cancelled:
                self.held -= job.held
                job.held = 0
                if self.held and self.held + more > MEMORY_MAX:
                    self.aside.append(lane)
                    continue
                job.held = more
                self.held += more
            return job
        return None

    def close(self) -> None:
        """Ends the threads. What is not delivered by now is dropped: `deliver(None, None)`."""
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
