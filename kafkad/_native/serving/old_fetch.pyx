"""Fetch v0 to v3, for clients older than Kafka 0.11: they get messages of magic 0 (below v2) or 1.

The request is parsed, waits and reads like any other (fetch.pyx). The data becomes a DownConversion
(log/down_conversion.py). The loop makes its first steps, if its data is in memory; threads do the rest (unpacking.pyx),
and only this connection waits. An answer is small, so memory does not depend on what clients ask for.

The data may become nothing, if it was control batches. Then the request continues after them, and waits again if there
is no data, for the rest of the client's wait time. Otherwise the client would ask for the same data again and again.

Beware: results retain files, and the request its session, until the work is done, whatever happens to the
connection."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kafkad._native.log.cold_reads cimport cold_warm
from kafkad._native.log.partition cimport Partition
from kafkad._native.log.segments cimport log_file_hot
from kafkad._native.serving.connection cimport Core, Slot, core_fatal, slot_pend
from kafkad._native.serving.fetch cimport go_on
from kafkad._native.serving.fetch_answers cimport answer_results
from kafkad._native.serving.fetch_state cimport FetchRequest, Fetching, Result, drop_data, requires
from kafkad._native.serving.fetch_session cimport session_release
from kafkad._native.serving.unpacking cimport Job, unpack_now_ns
from kafkad._native.wire.errors cimport KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, UNKNOWN_SERVER_ERROR
from kafkad._native.wire.primitives cimport KAFKAD_CHECK

import logging

cdef enum:
    # The loop converts one answer, 1 MiB of messages, in half a millisecond; threads convert compressed data.
    LOOP_NS = 1_000_000
    LOOP_AHEAD = 256 << 10
    LOOP_PASSES = 8                     # continuations after control batches, each on the stack of the one before
    WARM_BYTES = 1 << 20                # of each partition, read at most for one answer

log = logging.getLogger("kafkad.fetch")


cdef class OldFetch:
    """One request while its records are converted. A job calls it at the end."""

    cdef Fetching fetching
    cdef FetchRequest request           # its session is retained
    cdef Slot* slot                     # NULL: the connection is closed
    cdef Result* results
    cdef uint32_t count
    cdef list numbers                   # the index in `results` of each source
    cdef Job job

    def __call__(self, work, error):
        """Called on the loop. `work` is None if the reactor closes."""
        if self.slot is not NULL:
            self.slot.waiting = NULL
            self.slot.cancel = NULL
            Py_DECREF(self)                             # the reference that the slot held
        if self.slot is NULL or work is None:
            self.drop()
        else:
            finish(self, work, error)
        self.job = None                                 # they hold each other, and the answer, until a collection

    cdef void drop(self) noexcept:
        cdef uint32_t i
        for i in range(self.count):
            drop_data(&self.results[i])
        free(self.results)
        self.results = NULL
        session_release(self.request.session)


cdef void answer_converted(Fetching self, FetchRequest* request, Slot* slot, uint32_t count) noexcept nogil:
    cdef uint32_t i
    for i in range(count):
        if self.results[i].read.size and self.results[i].code == 0:
            with gil:
                begin(self, request, slot, count)
            return
    answer_results(self, request, slot, count)


cdef void begin(Fetching self, FetchRequest* request, Slot* slot, uint32_t count) noexcept:
    cdef OldFetch fetch = OldFetch.__new__(OldFetch)
    cdef bint warm
    if request.began_ms == 0:
        request.began_ms = self.core.monotonic_ms
    fetch.fetching = self
    fetch.request = request[0]
    fetch.slot = slot
    fetch.count = count
    fetch.results = <Result*>malloc(count * sizeof(Result))
    KAFKAD_CHECK(fetch.results is not NULL)
    memcpy(fetch.results, self.results, count * sizeof(Result))
    request.session.references += 1
    try:
        work, warm = work_of(fetch)
        if warm and request.passes < LOOP_PASSES and convert_now(work):
            finish(fetch, work, None)
            return
        Py_INCREF(fetch)
        slot_pend(slot, <void*><PyObject*>fetch, cancelled, False)
        fetch.job = self.unpacker.submit(slot.conn.id, work, fetch)
    except BaseException as error:
        if slot.waiting is <void*><PyObject*>fetch:
            slot.waiting = NULL
            slot.cancel = NULL
            Py_DECREF(fetch)
        finish(fetch, None, error)


cdef bint convert_now(object work) except -1:
    """Make steps on the loop. Return whether everything is done."""
    cdef int64_t end_ns = unpack_now_ns() + LOOP_NS
    while <int64_t>work.ahead <= LOOP_AHEAD:
        if <int64_t>work.step() < 0:
            return True
        if unpack_now_ns() >= end_ns:
            return False
    return False


cdef tuple work_of(OldFetch fetch):
    """Return the DownConversion of the data, and whether everything it will read is in memory."""
    cdef Core* core = fetch.fetching.core
    cdef Result* result
    cdef uint32_t i
    cdef bint warm = True
    cdef int64_t size
    cdef object down_conversion = None
    cdef list sources = []
    fetch.numbers = []
    for i in range(fetch.count):
        result = &fetch.results[i]
        if result.code or not result.read.size:
            continue
        if down_conversion is None:
            down_conversion = (<Partition>result.fetched.entry.partition).log.down_conversion
        if result.copy is not NULL:
            data, position = <object><PyObject*>result.copy, 0
        else:
            data, position = result.read.file.fd, result.read.position
            size = min(result.read.size, <int64_t>WARM_BYTES)
            warm = warm and (log_file_hot(result.read.file, result.read.position, core.monotonic_ms)
                             or cold_warm(&core.cold, result.read.file, result.read.position, size) == size)
        fetch.numbers.append(i)
        sources.append((data, position, result.read.size, result.fetched.offset, result.fetched.bytes_max))
    fetch.fetching.turn += 1
    return down_conversion(sources, fetch.request.version, fetch.request.bytes_max, fetch.fetching.turn % len(sources)), warm


cdef void cancelled(Slot* slot) noexcept nogil:
    """The connection is closed; the job is delivered nevertheless."""
    with gil:
        leave(<OldFetch><PyObject*>slot.waiting)


cdef void leave(OldFetch fetch) noexcept:
    fetch.slot = NULL
    if fetch.job is not None:
        fetch.job.cancelled = True
    Py_DECREF(fetch)


cdef void finish(OldFetch fetch, object work, object error) noexcept:
    """Replace the data by the messages and answer; or continue, if it became nothing."""
    cdef Fetching fetching = fetch.fetching
    cdef Result* result
    cdef bint has_something = error is not None
    cdef bint gets_on = False
    cdef uint32_t i
    cdef int code
    if isinstance(error, AssertionError) or (error is not None and not isinstance(error, Exception)):
        try:
            raise error
        except BaseException:
            core_fatal(fetching.core)
    elif error is not None:
        log.error("a Fetch v%d could not be converted", fetch.request.version, exc_info=error)
    if error is None:
        numbers, converted = fetch.numbers, work.results
    else:
        numbers = [i for i in range(fetch.count) if fetch.results[i].read.size and not fetch.results[i].code]
        converted = [(UNKNOWN_SERVER_ERROR, b"", -1)] * len(numbers)
    for i, (code, messages, next_offset) in zip(numbers, converted):
        result = &fetch.results[i]
        drop_data(result)
        result.read.file = NULL
        result.read.size = len(messages)
        result.code = NOT_LEADER_OR_FOLLOWER if code == KAFKA_STORAGE_ERROR else code
        if code:
            result.read.high_watermark = -1
            result.read.available = 0
        elif len(messages):
            Py_INCREF(messages)
            result.copy = <void*><PyObject*>messages
        elif next_offset > result.fetched.offset:
            result.fetched.offset = next_offset
            gets_on = True
        has_something = has_something or code or len(messages) > 0
    for i in range(fetch.count):
        has_something = has_something or fetch.results[i].code != 0
    if work is not None:
        work.close()
        if fetch.job is not None:                       # its memory is in an arena of a thread
            fetching.freed += 2 * <int64_t>work.size
    if gets_on and not has_something:
        fetch.request.wait_ms_max = <int>max(
            fetch.request.wait_ms_max - (fetching.core.monotonic_ms - fetch.request.began_ms), <int64_t>0)
        fetch.request.began_ms = fetching.core.monotonic_ms
        fetch.request.passes += 1
        free(fetch.results)
        fetch.results = NULL
        go_on(fetching, &fetch.request, fetch.slot)     # it takes over the session
        return
    requires(fetching, fetch.count)
    memcpy(fetching.results, fetch.results, fetch.count * sizeof(Result))
    free(fetch.results)
    fetch.results = NULL
    answer_results(fetching, &fetch.request, fetch.slot, fetch.count)
    session_release(fetch.request.session)
