"""Deadlines of waiting Produces and Fetches: a binary heap, the earliest first.

A `Timer` is the first member of what waits and knows its place in the heap, so stopping one is as cheap as starting it.
The reactor sets its timer fd to the earliest deadline. Beware: `place` of a timer that never ran must be -1, or the
timer must not be stopped; when `expired` is called, the timer is no longer in the heap."""

from libc.stdint cimport int64_t
from libc.stdlib cimport realloc

from kafkad._native.serving.connection cimport Core, Timer, TimerFunction
from kafkad._native.wire.primitives cimport KAFKAD_CHECK


cdef inline void heap_put(Core* core, Py_ssize_t place, Timer* timer) noexcept nogil:
    core.heap[place] = timer
    timer.place = place


cdef void heap_sift(Core* core, Py_ssize_t place) noexcept nogil:
    cdef Timer* timer = core.heap[place]
    cdef Py_ssize_t parent, child
    while place > 0:
        parent = (place - 1) >> 1
        if core.heap[parent].deadline_ms <= timer.deadline_ms:
            break
        heap_put(core, place, core.heap[parent])
        place = parent
    while True:
        child = 2 * place + 1
        if child >= core.heap_size:
            break
        if child + 1 < core.heap_size and core.heap[child + 1].deadline_ms < core.heap[child].deadline_ms:
            child += 1
        if core.heap[child].deadline_ms >= timer.deadline_ms:
            break
        heap_put(core, place, core.heap[child])
        place = child
    heap_put(core, place, timer)


cdef void timer_start(Core* core, Timer* timer, int64_t deadline_ms, TimerFunction expired) noexcept nogil:
    timer.deadline_ms = deadline_ms
    timer.expired = expired
    if core.heap_size == core.heap_capacity:
        core.heap_capacity = max(64, core.heap_capacity * 2)
        core.heap = <Timer**>realloc(core.heap, core.heap_capacity * sizeof(Timer*))
        KAFKAD_CHECK(core.heap is not NULL)
    core.heap_size += 1
    core.heap[core.heap_size - 1] = timer
    heap_sift(core, core.heap_size - 1)


cdef void timer_stop(Core* core, Timer* timer) noexcept nogil:
    cdef Py_ssize_t place = timer.place
    if place < 0:
        return
    KAFKAD_CHECK(core.heap[place] is timer)
    timer.place = -1
    core.heap_size -= 1
    if place < core.heap_size:
        heap_put(core, place, core.heap[core.heap_size])
        heap_sift(core, place)


cdef void timers_expire(Core* core) noexcept nogil:
    cdef Timer* timer
    while core.heap_size and core.heap[0].deadline_ms <= core.monotonic_ms:
        timer = core.heap[0]
        timer_stop(core, timer)
        timer.expired(core, timer)
