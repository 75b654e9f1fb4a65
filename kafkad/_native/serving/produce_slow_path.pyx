"""Appends that C cannot do alone: the log in Python rolls, decompresses or rebuilds a batch, and then appends.

A small, plain message set of magic 0 or 1 does not need Python, unless the log rolls.

Decompression takes at most `unpack_ns` of a round here. A thread does the rest (unpacking.pyx), and `finish_append`
appends the result, under the partition's state at that time."""

from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t

from kafkad._native.serving.connection cimport Core
from kafkad._native.serving.outcomes cimport note_refusal, note_result
from kafkad._native.log.partition cimport Partition
from kafkad._native.serving.partition_table cimport Entry
from kafkad._native.serving.unpacking cimport unpack_now_ns, unpack_turn
from kafkad._native.wire.batch cimport NEED_PYTHON
from kafkad._native.wire.batch_layout cimport MAGIC_AT
from kafkad._native.wire.errors cimport (
    CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, MESSAGE_TOO_LARGE, NOT_LEADER_OR_FOLLOWER, RECORD_LIST_TOO_LARGE,
    UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_OR_PARTITION)
from kafkad._native.serving.produce_state cimport OUTCOME_TO_COME, Outcome, Part, Producing


cdef void append_python(Producing self, Entry* entry, const Part* part, Outcome* outcome) noexcept nogil:
    if part.records[MAGIC_AT] < 2:
        outcome.code = append_set(self, <Partition>entry.partition, part, outcome)
        if outcome.code != NEED_PYTHON:
            return
    self.core.stats.python_appends += 1
    with gil:
        append_client(self, entry, part, outcome)


cdef int append_set(Producing self, Partition partition, const Part* part, Outcome* outcome) noexcept nogil:
    """Append a small message set of magic 0 or 1. Return NEED_PYTHON if it needs the slow path nevertheless: also if this
    round has no time left, for which a set counts with a nanosecond a byte."""
    cdef uint8_t* batch = NULL
    cdef size_t size
    if self.unpack_ns <= 0:
        return NEED_PYTHON
    self.unpack_ns -= part.size
    size = self.sets.convert(part.records, <size_t>part.size, &partition.rules, self.core.now_ms, &batch)
    return partition.append_made(batch, size, self.core.now_ms, &outcome.info) if size else NEED_PYTHON


cdef void append_client(Producing self, Entry* entry, const Part* part, Outcome* outcome) noexcept:
    """Take the slow path. OUTCOME_TO_COME: it exceeds this round's time, and `self.pending` has the rest."""
    cdef Partition partition = <Partition>entry.partition
    cdef int64_t began_ns
    cdef bint kept = False
    outcome.code = UNKNOWN_SERVER_ERROR
    try:
        view = PyMemoryView_FromMemory(<char*>part.records, part.size, 0x200)  # PyBUF_WRITE
        try:
            result = work = partition.log.begin_append(view, self.core.now_ms, outcome.info.admission, outcome.info.guard)
            if hasattr(work, "step"):
                began_ns = unpack_now_ns()
                if self.unpack_ns > 0 and unpack_turn(work, self.unpack_ns):
                    result = work.finish(self.core.now_ms)
                    work.close()
                else:
                    # A peer may die, and its successor use the memory for other bytes.
                    if self.from_peer and work.large:
                        work.copy_first()
                    elif self.from_peer:
                        work.close()
                        work = partition.log.begin_append(
                            bytearray(view), self.core.now_ms, outcome.info.admission, outcome.info.guard)
                    kept = work.large or not self.from_peer
                    self.pending = work
                    outcome.code = OUTCOME_TO_COME
                self.unpack_ns -= unpack_now_ns() - began_ns
        finally:
            if not kept:
                view.release()                          # the bytes belong to the socket: no reference may stay
        if outcome.code != OUTCOME_TO_COME:
            note_result(outcome, result)
    except BaseException as error:
        note_refusal(self.core, partition, outcome, error)


cdef object take_pending(Producing self):
    work = self.pending
    self.pending = None
    return work


cdef void close_work(Core* core, object work) noexcept:
    """Close the work. The heap is trimmed after a large batch, whose copy may be in a thread's arena."""
    work.close()
    if work.large:
        core.freed_bytes += <int64_t>work.size


cdef void finish_append(Producing self, object work, object error, Outcome* outcome) noexcept:
    cdef Partition partition = work.partition
    outcome.text = NULL
    outcome.bad = NULL
    outcome.info.message = NULL
    outcome.info.bad_record = -1
    outcome.info.log_start_offset = partition.row.log_start_offset
    if error is None:
        try:
            note_result(outcome, work.finish(self.core.now_ms))
        except BaseException as refusal:
            note_refusal(self.core, partition, outcome, refusal)
    else:
        note_refusal(self.core, partition, outcome, error)
    close_work(self.core, work)
    if outcome.code and hides_log_start(outcome.code):
        outcome.info.log_start_offset = -1


cdef bint hides_log_start(int code) noexcept nogil:
    """Return whether Kafka answers this error without the log start offset (ReplicaManager.appendRecordsToLeader)."""
    return (code == CORRUPT_MESSAGE or code == UNKNOWN_TOPIC_OR_PARTITION or code == NOT_LEADER_OR_FOLLOWER
            or code == MESSAGE_TOO_LARGE or code == RECORD_LIST_TOO_LARGE or code == KAFKA_STORAGE_ERROR)
