"""Appends that C cannot do alone: see produce_slow_path.pyx."""

from kafkad._native.serving.connection cimport Core
from kafkad._native.serving.partition_table cimport Entry
from kafkad._native.serving.produce_state cimport Outcome, Part, Producing

# Appends through the partition's log. OUTCOME_TO_COME: it exceeds this round's time, and `take_pending` returns the
# rest.
cdef void append_python(Producing self, Entry* entry, const Part* part, Outcome* outcome) noexcept nogil
cdef object take_pending(Producing self)

# Ends that work, on the loop. `error`: what it raised, or None.
cdef void finish_append(Producing self, object work, object error, Outcome* outcome) noexcept
cdef void close_work(Core* core, object work) noexcept

# Whether Kafka answers this error without the log start offset.
cdef bint hides_log_start(int code) noexcept nogil
