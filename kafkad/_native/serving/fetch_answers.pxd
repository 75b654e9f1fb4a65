"""The answer of a Fetch: see fetch_answers.pyx."""

from libc.stdint cimport int16_t, int32_t, uint32_t

from kafkad._native.serving.connection cimport Slot
from kafkad._native.serving.fetch_state cimport FetchRequest, Fetching

# Writes the answer from `results`, and sends it.
cdef void answer_results(Fetching self, FetchRequest* request, Slot* slot, uint32_t count) noexcept nogil

# Answers a client that exceeds its quota: no partitions.
cdef void answer_throttled(Fetching self, FetchRequest* request, Slot* slot, uint32_t count) noexcept nogil

# Answers a request that is refused as a whole.
cdef void answer_error(Slot* slot, int16_t code, int32_t session_id) noexcept nogil
