"""Produce and the coordinators of transactions. See produce_gate.pyx."""

from libc.stdint cimport int16_t

from kafkad._native.serving.partition_table cimport Table
from kafkad._native.serving.produce_state cimport AnsweredFunction, HeldProduce, Request

# What a request of this version with a transactional id says of transactions.
cdef int gate_admission(int16_t version, bint verifies) noexcept nogil
# Whether its transactional batches are of several producers, which no coordinator can be asked for.
cdef bint has_two_producers(const Request* request) noexcept nogil

# Of those of its connection that wait for a coordinator. Nothing more of the connection is served meanwhile.
cdef void asking_enter(HeldProduce* held) noexcept nogil        # again: nothing
cdef void asking_leave(HeldProduce* held) noexcept nogil        # not there: nothing

# Asks `gate` for the parts that are TO_ASK. They are AGAIN, or refused, when it returns or `answered` is called (never before).
cdef void gate_ask(HeldProduce* held, Table* table, object gate, AnsweredFunction answered) noexcept
# An answer that comes from now on is not listened to. Those parts are refused, so that a client tries them again.
cdef void gate_give_up(HeldProduce* held) noexcept nogil
# They are appended again without having asked: the one before may have begun the transaction.
cdef void gate_try_again(HeldProduce* held) noexcept nogil
