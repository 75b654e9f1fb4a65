"""Produce v0 to v2: checks of their message sets before an append. See old_produce.pyx."""

from libc.stdint cimport int32_t, uint8_t

from kafkad._native.serving.produce_state cimport Outcome

cdef enum:
    SETS_BELOW = 3                  # versions of Produce below this
    NOTHING_TO_APPEND = -1001       # instead of an error code: a set without a whole message

# Checks a part that is not a v2 batch: 0 to append it, NOTHING_TO_APPEND, or an error code.
cdef int judge_set(const uint8_t* records, int32_t size) noexcept nogil
# Sets the outcome for NOTHING_TO_APPEND.
cdef void note_nothing(Outcome* outcome) noexcept nogil
