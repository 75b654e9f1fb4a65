"""See produce_leaving.pyx."""

from libc.stdint cimport int32_t

from kafkad._native.serving.connection cimport Conn
from kafkad._native.serving.partition_table cimport Entry
from kafkad._native.serving.produce_state cimport Producing, Request

# For a request of one partition: `entry`, or NULL. Returns True if Python answers it, later, or if the connection is
# closed. The connection serves nothing else meanwhile, so its batches keep their order.
cdef bint hand_over(Producing self, Conn* conn, Request* request, int32_t correlation_id, Entry* entry) noexcept nogil
