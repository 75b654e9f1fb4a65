"""What a conversion gives: see down_conversion.pyx."""

from libc.stdint cimport uint8_t


cdef class Messages:
    cdef uint8_t* data
    cdef size_t size
    cdef size_t capacity            # 0: nothing is held
    cdef bint is_block


# The memory that is kept for the next conversions. With the GIL.
cdef void give_back_spare_blocks() noexcept
