"""Where each leader epoch of one log begins, as an array: see epochs.pyx."""

from libc.stdint cimport int32_t, int64_t

cdef enum:
    UNDEFINED = -1                  # an epoch or an offset that is not known

cdef struct Epoch:
    int64_t start                   # offset of its first batch; if it has none, of where that would be
    int32_t epoch

cdef struct EpochList:              # ascending in both; zeros to begin with
    Epoch* entries
    int32_t count
    int32_t capacity


cdef inline int32_t epochs_latest(const EpochList* epochs) noexcept nogil:
    return epochs.entries[epochs.count - 1].epoch if epochs.count else UNDEFINED


# Records that `epoch` begins at `start` and removes entries that contradict. 1 if something changed, 0, or -ENOMEM and
# no change.
cdef int epochs_assign(EpochList* epochs, int32_t epoch, int64_t start) noexcept nogil

# Finds the largest known epoch <= `epoch`, and the offset after its last batch in a log that ends at `log_end`. Both
# are UNDEFINED if `epoch` is above all known epochs, or none is known.
cdef void epochs_end_offset_for(const EpochList* epochs, int32_t epoch, int64_t log_end, int32_t* found,
                                int64_t* end) noexcept nogil

cdef class Epochs:
    cdef EpochList list
