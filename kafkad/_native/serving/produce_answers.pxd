"""The answer of a Produce: see produce_answers.pyx."""

from libc.stdint cimport uint32_t

from kafkad._native.serving.connection cimport Slot
from kafkad._native.serving.partition_table cimport Entry
from kafkad._native.serving.produce_state cimport Outcome, Producing, Request

# Writes the answer from the outcomes, and sends it when the acks are met.
cdef void produce_answer(Producing self, const Request* request, Slot* slot) noexcept nogil

# The high watermark or the durable offset of a partition has moved, or the partition is gone.
cdef void produce_advanced(Producing self, Entry* entry, uint32_t why) noexcept nogil

cdef void drop_texts(Outcome* outcomes, uint32_t count) noexcept nogil
