"""Produce v0 to v2, for clients older than Kafka 0.11: message sets of magic 0 and 1 instead of one v2 batch.

A set is handled like a batch that the native append cannot take by itself (NEED_PYTHON). A small, plain set becomes one v2
batch at once (`append_set` in produce_slow_path.pyx). For another one, the partition's log begins a PendingSet
(log/pending_append.py), the loop or a thread turns it into one v2 batch, and the native append writes that.
A set may be empty, or end within a message. A set too short to contain a magic byte is checked here."""

from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memset

from kafkad._native.serving.produce_state cimport Outcome
from kafkad._native.wire.batch cimport LENGTH_OVERHEAD
from kafkad._native.wire.batch_layout cimport LENGTH_AT, MAGIC_AT
from kafkad._native.wire.errors cimport CORRUPT_MESSAGE, INVALID_RECORD
from kafkad._native.wire.primitives cimport get_i32

cdef enum:
    SIZE_MIN = 14                       # of a message, without offset and size


cdef int judge_set(const uint8_t* records, int32_t size) noexcept nogil:
    if size < 0:
        return INVALID_RECORD
    if size > MAGIC_AT:
        return 0
    if size >= LENGTH_OVERHEAD and get_i32(records + LENGTH_AT) < SIZE_MIN:
        return CORRUPT_MESSAGE
    return NOTHING_TO_APPEND


cdef void note_nothing(Outcome* outcome) noexcept nogil:
    memset(&outcome.info, 0, sizeof(outcome.info))
    outcome.code = 0
    outcome.text = NULL
    outcome.bad = NULL
    outcome.info.base_offset = -1
    outcome.info.end_offset = -1
    outcome.info.append_time_ms = -1
    outcome.info.log_start_offset = -1
    outcome.info.bad_record = -1
