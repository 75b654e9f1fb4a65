"""Outcomes of appends in Python. See outcomes.pyx."""

from libc.stddef cimport size_t
from libc.stdlib cimport free

from kafkad._native.serving.connection cimport Core
from kafkad._native.log.partition cimport Partition
from kafkad._native.serving.produce_state cimport MESSAGE_SIZE_MAX, Outcome

cdef int note_result(Outcome* outcome, object result) except -1
# Turns an exception into the outcome's error code, and a KafkaError also into its message.
cdef void note_refusal(Core* core, Partition partition, Outcome* outcome, object error) noexcept
# Copies a message that does not outlive the current call.
cdef void outcome_text(Outcome* outcome, const char* text, size_t size) noexcept nogil

cdef inline void free_text(Outcome* outcome) noexcept nogil:
    if outcome.text is not NULL:
        free(outcome.text)
        outcome.text = NULL
    if outcome.bad is not NULL:
        free(outcome.bad)
        outcome.bad = NULL
