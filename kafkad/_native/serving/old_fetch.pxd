"""Fetch v0 to v3: what was read is converted before it is answered. See old_fetch.pyx."""

from libc.stdint cimport uint32_t

from kafkad._native.serving.connection cimport Slot
from kafkad._native.serving.fetch_state cimport FetchRequest, Fetching

cdef enum:
    CONVERTED_BELOW = 4                 # versions of Fetch

# Answer, now or later, with the messages that the first `count` of `self.results` become. They are taken over, and the
# request is copied; its session is retained.
cdef void answer_converted(Fetching self, FetchRequest* request, Slot* slot, uint32_t count) noexcept nogil
