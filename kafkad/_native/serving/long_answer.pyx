"""An answer that is written in pieces, because making it takes longer than other requests should wait.

Its bytes are in the slot of its request, as those of any answer, and count against the connection's memory. A request
of a few megabytes can ask for gigabytes (a name given 100,000 times is described 100,000 times). So an answer above
SIZE_MAX closes its connection, and so does one for which the memory of all connections together has no room."""

from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy

from kafkad._native.serving.connection cimport Connection, Slot, conn_close, slot_extend, slot_finish

cdef enum:
    SIZE_MAX = 256 * 1024 * 1024        # documented in docs/operations.md


cdef class LongAnswer:
    """`LongAnswer(connection, request_id)`: the answer to a dispatched request, with header and body; the size is added
    in front."""

    cdef Connection connection
    cdef uint32_t request_id

    def __cinit__(self, Connection connection not None, uint32_t request_id):
        cdef Slot* slot = connection.slot_of(request_id)
        self.connection = connection
        self.request_id = request_id
        if slot is not NULL:
            slot.size = 4

    def reserve(self, size_t size):
        """Make room for this many bytes, which count as held by the connection until the answer has been sent."""
        cdef Slot* slot = self.connection.slot_of(self.request_id)
        if slot is not NULL:
            slot_extend(slot, size)
            slot.size -= <uint32_t>size

    def write(self, bytes piece not None):
        """Append `piece`. Return False if the connection is closed, so that nobody waits for the answer."""
        cdef Slot* slot = self.connection.slot_of(self.request_id)
        cdef size_t size = <size_t>len(piece)
        if slot is NULL:
            return False
        if slot.size + size >= <size_t>SIZE_MAX:
            conn_close(self.connection.conn, "an answer of more than 256 MiB")
            return False
        if slot.size + size > slot.capacity and (
                slot.conn.core.stats.buffered_bytes + slot.capacity + <int64_t>size > slot.conn.core.buffered_bytes_max):
            conn_close(self.connection.conn, "there is no room for its answer beside those that others have not read")
            return False
        memcpy(slot_extend(slot, size), <const char*>piece, size)
        return True

    def finish(self):
        """Mark the answer as complete, so that it is sent."""
        cdef Slot* slot = self.connection.slot_of(self.request_id)
        if slot is not NULL:
            slot_finish(slot)
            self.connection.answered()
