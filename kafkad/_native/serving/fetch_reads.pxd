"""What one partition gives to a Fetch: see fetch_reads.pyx."""

from libc.stdint cimport int64_t, uint32_t

from kafkad._native.log.partition cimport Partition
from kafkad._native.log.partition_reads cimport ReadInfo
from kafkad._native.serving.connection cimport Core
from kafkad._native.serving.fetch_session cimport Fetched
from kafkad._native.serving.fetch_state cimport FetchRequest, Fetching, Result
from kafkad._native.serving.partition_table cimport Entry

cdef int read_warm(Fetching self, const FetchRequest* request, Entry* entry, Fetched* fetched, int64_t limit,
                   bint at_least_one, ReadInfo* read) noexcept nogil
cdef void read_python(Fetching self, Entry* entry, Fetched* fetched, int64_t bytes_max, bint at_least_one,
                      int isolation, Result* result) noexcept nogil
cdef int find_aborted(Partition partition, Fetched* fetched, Result* result) noexcept nogil
cdef void compare_logs(Core* core, Entry* entry, Result* result) noexcept nogil
cdef void read_for_replica(Fetching self, const FetchRequest* request, Entry* entry, Partition partition, Fetched* fetched,
                           int64_t limit, bint at_least_one, Result* result) noexcept nogil

# Whether a throttle keeps the records of a partition from a follower that is not in the ISR.
cdef bint is_held_back(Fetching self, const FetchRequest* request, Partition partition) noexcept nogil
# Counts what an answer to a follower has of throttled partitions.
cdef void count_throttled(Fetching self, uint32_t count) noexcept nogil
