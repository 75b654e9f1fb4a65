"""Produce v0 to v2: what their message sets need before an append. See old_produce.pyx."""

from libc.stdint cimport int32_t, uint8_t

from kafkad._native.serving.produce_state cimport Outcome

cdef enum:
    SETS_BELOW = 3                  # versions of Produce
    NOTHING_TO_APPEND = -1001       # in place of an error code: a set without a whole message

# A part that is no batch v2: 0 if it is to be appended, NOTHING_TO_APPEND, or an error code.
cdef int judge_set(const uint8_t* records, int32_t size) noexcept nogil
# The answer to NOTHING_TO_APPEND.
cdef void note_nothing(Outcome* outcome) noexcept nogil
