"""Produce and transaction coordinators. See produce_gate.pyx."""

from libc.stdint cimport int16_t

from kafkad._native.serving.partition_table cimport Table
from kafkad._native.serving.produce_state cimport AnsweredFunction, HeldProduce, Request

# The Admission of a request of this version with a transactional id.
cdef int gate_admission(int16_t version, bint verifies) noexcept nogil
# Whether it has transactional batches of several producers, for which no coordinator can be asked.
cdef bint has_two_producers(const Request* request) noexcept nogil

# Enter or leave the queue of its connection's requests that wait for a coordinator. Nothing else of the connection is
# served meanwhile.
cdef void asking_enter(HeldProduce* held) noexcept nogil        # no effect if it is queued already
cdef void asking_leave(HeldProduce* held) noexcept nogil        # no effect if it is not queued

# Asks `gate` for the parts that are TO_ASK. They are AGAIN, or refused, when it returns or calls `answered` (never
# before).
cdef void gate_ask(HeldProduce* held, Table* table, object gate, AnsweredFunction answered) noexcept
# Ignores a later answer. Those parts are refused with a retriable error.
cdef void gate_give_up(HeldProduce* held) noexcept nogil
# Appends them again without asking: an earlier request may have begun the transaction.
cdef void gate_try_again(HeldProduce* held) noexcept nogil
