"""Where each leader epoch of one log begins, as an array in C (Kafka's LeaderEpochFileCache, without its file).

Appends to followed partitions and Fetches of followers look here without the GIL. `log/leader_epochs.LeaderEpochs`
keeps the file. Entries ascend in epoch and in start offset; a new entry removes those that contradict it.

Beware: it belongs to the thread that owns the log."""

from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

cdef enum:
    CAPACITY_MIN = 2                # most logs have had one leader epoch


cdef int reserve(EpochList* epochs, int32_t count) noexcept nogil:
    cdef int32_t capacity = epochs.capacity if epochs.capacity else CAPACITY_MIN
    cdef Epoch* entries
    if count <= epochs.capacity:
        return 0
    while capacity < count:
        capacity *= 2
    entries = <Epoch*>realloc(epochs.entries, <size_t>capacity * sizeof(Epoch))
    if entries == NULL:
        return -ENOMEM
    epochs.entries = entries
    epochs.capacity = capacity
    return 0


cdef int epochs_assign(EpochList* epochs, int32_t epoch, int64_t start) noexcept nogil:
    cdef int32_t kept = epochs.count
    cdef Epoch* last
    if kept:
        last = &epochs.entries[kept - 1]
        if epoch == last.epoch and start >= last.start:
            return 0
    if reserve(epochs, kept + 1) != 0:
        return -ENOMEM
    while kept and (epochs.entries[kept - 1].epoch >= epoch or epochs.entries[kept - 1].start >= start):
        kept -= 1
    epochs.entries[kept].epoch = epoch
    epochs.entries[kept].start = start
    epochs.count = kept + 1
    return 1


cdef int32_t begun_at(const EpochList* epochs, int64_t offset) noexcept nogil:
    # How many epochs begin at or before `offset`.
    cdef int32_t low = 0, high = epochs.count, middle
    while low < high:
        middle = low + (high - low) // 2
        if epochs.entries[middle].start <= offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef void epochs_end_offset_for(const EpochList* epochs, int32_t epoch, int64_t log_end, int32_t* found,
                                int64_t* end) noexcept nogil:
    cdef int32_t low = 0, high = epochs.count, middle
    found[0] = UNDEFINED
    end[0] = UNDEFINED
    if epoch == UNDEFINED or epochs.count == 0:
        return
    if epoch == epochs_latest(epochs):
        found[0] = epoch
        end[0] = log_end
        return
    while low < high:                   # count the epochs <= `epoch`
        middle = low + (high - low) // 2
        if epochs.entries[middle].epoch <= epoch:
            low = middle + 1
        else:
            high = middle
    if low == epochs.count:
        return
    found[0] = epochs.entries[low - 1].epoch if low else epoch
    end[0] = epochs.entries[low].start


cdef class Epochs:
    """(epoch, start offset), ascending."""

    def __dealloc__(self):
        free(self.list.entries)

    @property
    def entries(self) -> list:
        cdef int32_t i
        return [(self.list.entries[i].epoch, self.list.entries[i].start) for i in range(self.list.count)]

    @property
    def latest(self):
        return epochs_latest(&self.list) if self.list.count else None

    def fill(self, entries) -> None:
        """Set the entries as read from the file, which is sorted."""
        self.list.count = 0
        for epoch, start in entries:
            self.put(epoch, start)

    def put(self, int32_t epoch, int64_t start_offset) -> bool:
        """Record that `epoch` begins at `start_offset`, and remove entries that contradict. Return whether it
        changed."""
        cdef int changed = epochs_assign(&self.list, epoch, start_offset)
        if changed < 0:
            raise MemoryError()
        return changed == 1

    def cut_end(self, int64_t end_offset) -> bool:
        """Remove epochs that begin at or after `end_offset`. Return whether there were any."""
        cdef int32_t kept = self.list.count
        while kept and self.list.entries[kept - 1].start >= end_offset:
            kept -= 1
        if kept == self.list.count:
            return False
        self.list.count = kept
        return True

    def cut_start(self, int64_t start_offset) -> bool:
        """Remove epochs that ended before `start_offset`; the one that holds it begins there. Return whether it
        changed."""
        cdef int32_t at = begun_at(&self.list, start_offset)
        if at == 0 or (at == 1 and self.list.entries[0].start == start_offset):
            return False
        if at > 1:
            memmove(self.list.entries, self.list.entries + (at - 1), (self.list.count - at + 1) * sizeof(Epoch))
            self.list.count -= at - 1
        self.list.entries[0].start = start_offset
        return True

    def epoch_for(self, int64_t offset):
        """The epoch that holds `offset`, or None."""
        cdef int32_t at = begun_at(&self.list, offset)
        return self.list.entries[at - 1].epoch if at else None

    def end_offset_for(self, int32_t epoch, int64_t log_end_offset) -> tuple:
        """(largest known epoch <= `epoch`, offset after its last batch), or (-1, -1), as OffsetForLeaderEpoch needs
        it."""
        cdef int32_t found
        cdef int64_t end
        epochs_end_offset_for(&self.list, epoch, log_end_offset, &found, &end)
        return (found, end)
