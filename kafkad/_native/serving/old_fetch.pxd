"""Fetch v0 to v3: the data is converted before it is sent. See old_fetch.pyx."""

from libc.stdint cimport uint32_t

from kafkad._native.serving.connection cimport Slot
from kafkad._native.serving.fetch_state cimport FetchRequest, Fetching

cdef enum:
    CONVERTED_BELOW = 4                 # versions of Fetch below this

# Answers, now or later, with the first `count` of `self.results`, converted. Takes the results over, copies the
# request, and retains its session.
cdef void answer_converted(Fetching self, FetchRequest* request, Slot* slot, uint32_t count) noexcept nogil
