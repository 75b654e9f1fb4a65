"""Message sets of magic 0 and 1 become record batches: see message_set.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkad._native.wire.batch cimport AppendRules, BatchInfo, Rules, Walk

cdef class UpConverter:
    cdef Walk walk
    cdef AppendRules rules
    cdef int64_t now_ms
    cdef int magic
    cdef bint inner
    cdef int64_t size_max
    cdef readonly int verdict
    cdef const char* why
    cdef readonly int count
    cdef int attributes                 # those of any message
    cdef readonly int64_t last_offset   # offset field of the last message
    cdef int64_t base_timestamp
    cdef uint8_t* cut                   # an incomplete message at the end of the last piece
    cdef size_t cut_size
    cdef size_t cut_capacity

    cdef void restart(self, int64_t now_ms, int magic, int64_t size_max) noexcept nogil
    cdef size_t whole(self, const uint8_t* p, size_t size, uint8_t* batch) noexcept nogil
    cdef size_t refuse(self, int code, const char* why) noexcept nogil
    cdef size_t add(self, const uint8_t* data, int32_t size, uint8_t* out) noexcept nogil
    cdef bint may_have(self, int32_t size) noexcept nogil
    cdef bint keep(self, const uint8_t* data, size_t size) noexcept nogil
    cdef int64_t convert(self, const uint8_t* p, const uint8_t* end, uint8_t* out) noexcept nogil
    cdef int finish(self, int64_t wrapper_offset) noexcept nogil
    cdef void write_header(self, uint8_t* data, size_t size, int codec, BatchInfo* info) noexcept nogil

cdef class WholeSets:
    cdef UpConverter converter
    cdef AppendRules rules              # the converter's
    cdef uint8_t* room                  # for a batch, NULL at first

    # Converts a set. Returns the size of the batch, which stands in `batch[0]` until the next call and only lacks its
    # offset and leader epoch. Returns 0 if the set is large or compressed, or anything is wrong with it.
    cdef size_t convert(self, const uint8_t* data, size_t size, const Rules* rules, int64_t now_ms,
                        uint8_t** batch) noexcept nogil
