"""Reads the topics of a Produce: see produce_parsing.pyx."""

from libc.stdint cimport int16_t, uint32_t

from kafkad._native.serving.produce_state cimport Producing
from kafkad._native.wire.primitives cimport Cursor

cdef enum:
    SCRATCH_KEPT = 16384                # partitions, and topics, for which memory is kept between requests

# Reads all topics into `topics`, `parts` and (grown, not filled) `outcomes`. False: they do not parse.
cdef bint parse_topics(Producing self, Cursor* body, int16_t version, uint32_t* topic_count,
                       uint32_t* part_count) noexcept nogil

# Frees the memory that a request with very many partitions needed.
cdef void drop_scratch(Producing self) noexcept nogil
