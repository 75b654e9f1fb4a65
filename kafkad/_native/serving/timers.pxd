"""Deadlines of waiting requests. See timers.pyx."""

from libc.stdint cimport int64_t

from kafkad._native.serving.connection cimport Core, Timer, TimerFunction

cdef void timer_start(Core* core, Timer* timer, int64_t deadline_ms, TimerFunction expired) noexcept nogil
cdef void timer_stop(Core* core, Timer* timer) noexcept nogil      # also if it is not running
cdef void timers_expire(Core* core) noexcept nogil
