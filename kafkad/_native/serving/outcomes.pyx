"""The outcome of an append in Python: its result or exception, as the client gets it (produce.pyx)."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint32_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from kafkad._native.wire.batch cimport BAD_RECORDS_MAX
from kafkad._native.serving.connection cimport Core
from kafkad._native.log.guards cimport NEED_TRANSACTION
from kafkad._native.log.partition cimport Partition
from kafkad._native.serving.produce_state cimport Outcome
from kafkad._native.wire.primitives cimport KAFKAD_CHECK
from kafkad._native.wire.errors cimport UNKNOWN_SERVER_ERROR

import logging

log = logging.getLogger("kafkad.produce")


cdef int note_result(Outcome* outcome, object result) except -1:
    outcome.info.base_offset = result.base_offset
    outcome.info.end_offset = result.end_offset
    outcome.info.append_time_ms = result.append_time_ms
    outcome.info.log_start_offset = result.log_start_offset
    outcome.code = 0
    return 0


cdef void note_refusal(Core* core, Partition partition, Outcome* outcome, object error) noexcept:
    """Turn a refusal into its error code, a failure (also MemoryError) into UNKNOWN_SERVER_ERROR and a log line. An
    AssertionError ends the worker."""
    cdef bytes text
    cdef Py_ssize_t i
    outcome.code = UNKNOWN_SERVER_ERROR
    if isinstance(error, (AssertionError, BufferError)) or not isinstance(error, Exception):
        (<object>core.reactor).fatal(error)
        return
    guard = getattr(error, "guard", None)               # a NeedTransaction, a class of a higher layer
    if isinstance(guard, int):
        outcome.code = NEED_TRANSACTION
        outcome.info.guard = guard
        return
    code = getattr(error, "code", None)                 # a KafkaError, likewise
    if not isinstance(code, int):
        log.error("appending to %s-%d failed", partition.topic, partition.index, exc_info=error)
        return
    outcome.code = code
    outcome.info.bad_record = getattr(error, "bad_record", -1)
    named = getattr(error, "bad_records", ())
    if 0 < len(named) <= BAD_RECORDS_MAX:
        outcome.bad = <uint32_t*>malloc((len(named) + 1) * sizeof(uint32_t))
        if outcome.bad is not NULL:
            outcome.bad[0] = <uint32_t>len(named)
            for i in range(len(named)):
                outcome.bad[i + 1] = named[i]
    if error.message:
        text = error.message.encode("utf-8", "replace")
        outcome_text(outcome, PyBytes_AS_STRING(text), len(text))


cdef void outcome_text(Outcome* outcome, const char* text, size_t size) noexcept nogil:
    """Copy a message that does not outlive the current call."""
    size = min(size, <size_t>MESSAGE_SIZE_MAX)
    outcome.text = <char*>malloc(size + 1)
    KAFKAD_CHECK(outcome.text is not NULL)
    memcpy(outcome.text, text, size)
    outcome.text[size] = 0
    outcome.info.message = outcome.text
