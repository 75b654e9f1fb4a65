"""An answer that is written in pieces, because it takes longer to make than others should wait.

Its bytes stand in the slot of its request, as those of any answer, and count against the connection's memory."""

from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from kafkad._native.connection cimport Connection, Slot, conn_close, slot_extend, slot_finish

cdef enum:
    SIZE_MAX = 1 << 30                  # clients can ask for that much, and get none of it


cdef class LongAnswer:
    """`LongAnswer(connection, request_id)`: the answer to a dispatched request, with header and body; the size is put
    before them here."""

    cdef Connection connection
    cdef uint32_t request_id

    def __cinit__(self, Connection connection not None, uint32_t request_id):
        cdef Slot* slot = connection.slot_of(request_id)
        self.connection = connection
        self.request_id = request_id
        if slot is not NULL:
            slot.size = 4

    def reserve(self, size_t size):
        """Make room for so many bytes, which count as held by the connection until the answer has left."""
        cdef Slot* slot = self.connection.slot_of(self.request_id)
        if slot is not NULL:
            slot_extend(slot, size)
            slot.size -= <uint32_t>size

    def write(self, bytes piece not None):
        """Put `piece` behind the others. False: the connection is closed, and nobody waits for the answer."""
        cdef Slot* slot = self.connection.slot_of(self.request_id)
        cdef size_t size = <size_t>len(piece)
        if slot is NULL:
            return False
        if slot.size + size >= <size_t>SIZE_MAX:
            conn_close(self.connection.conn, "an answer of more than 1 GiB")
            return False
        memcpy(slot_extend(slot, size), <const char*>piece, size)
        return True

    def finish(self):
        """The answer is whole, and may leave."""
        cdef Slot* slot = self.connection.slot_of(self.request_id)
        if slot is not NULL:
            slot_finish(slot)
            self.connection.answered()
