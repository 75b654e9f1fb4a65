"""Fetch (key 1) in C. See fetch.pyx."""

from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t

from kafkad._native.serving.connection cimport Conn, Core, Slot
from kafkad._native.serving.partition_table cimport Entry
from kafkad._native.wire.primitives cimport Cursor
from kafkad._native.serving.fetch_state cimport FetchRequest, Fetching

# Returns NULL, or why the connection must be closed. `body` points behind the client id.
cdef const char* fetch_frame(Fetching self, Conn* conn, int16_t version, int32_t correlation_id,
                             const uint8_t* client, int16_t client_size, Cursor* body) noexcept nogil
cdef void fetch_advanced(Fetching self, Entry* entry, uint32_t why) noexcept nogil    # marks the requests to answer,
cdef void fetch_drop_orphans(Fetching self) noexcept nogil
cdef void fetch_session_left(Core* core, int32_t id) noexcept nogil
cdef void fetch_settle(Fetching self) noexcept nogil                                  # and answers them

# For an old version (old_fetch.pyx), after the conversion: reads again, and takes over the session.
cdef void go_on(Fetching self, FetchRequest* request, Slot* slot) noexcept nogil
