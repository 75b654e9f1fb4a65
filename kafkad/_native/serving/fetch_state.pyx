"""The state of the current Fetch and of waiting ones. fetch_state.pxd has the structs. This module manages the array of
a request's results, and what they own: a file, a copy, a list of aborted transactions."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport strdup

from kafkad._native.serving.fetch_session cimport Fetched, Session, cache_free, cache_init, cache_remove
from kafkad._native.log.segments cimport log_file_release
from kafkad._native.serving.timers cimport timer_start, timer_stop
from kafkad._native.serving.partition_table cimport (
    Entry, PartitionTable, Topic, key_release, key_retain, topic_by_id, topic_by_key, topic_entry)
from kafkad._native.wire.primitives cimport KAFKAD_CHECK

cdef enum:
    RESULTS_KEPT = 16384                # scratch for so many partitions is kept
    EXPECTING_MS = 1000                 # for followers to hear whom they have to follow, and to begin
    EXPECTED_WAIT_MS = 10               # so long a Fetch of theirs waits then


cdef Entry* find_entry(Fetching self, Fetched* fetched) noexcept nogil:
    cdef Topic* topic
    if fetched.session.uses_ids:
        topic = topic_by_id(&self.table.table, fetched.key.id)
    else:
        topic = topic_by_key(&self.table.table, fetched.key)
    fetched.entry = topic_entry(topic, fetched.index)
    fetched.generation = self.table.table.generation
    if topic is not NULL and topic.key is not fetched.key:
        key_release(fetched.key)                        # known by now, or created again
        fetched.key = key_retain(topic.key)
    return fetched.entry


cdef void requires(Fetching self, uint32_t count) noexcept nogil:
    if count > self.result_capacity:
        self.result_capacity = max(<uint32_t>64, count + count // 4)
        self.results = <Result*>realloc(self.results, self.result_capacity * sizeof(Result))
        KAFKAD_CHECK(self.results is not NULL)


cdef void drop_data(Result* result) noexcept nogil:
    if result.copy is not NULL:
        drop_copy(result)
    elif result.read.size:
        log_file_release(result.read.file)
    if result.aborted.entries is not NULL:
        drop_aborted(result)


cdef void drop_copy(Result* result) noexcept nogil:
    with gil:
        Py_DECREF(<object><PyObject*>result.copy)
    result.copy = NULL


cdef void drop_results(Fetching self, uint32_t count) noexcept nogil:
    cdef uint32_t i
    for i in range(count):
        drop_data(&self.results[i])
    trim_results(self)


cdef void trim_results(Fetching self) noexcept nogil:
    if self.result_capacity > RESULTS_KEPT:
        free(self.results)
        self.results = NULL
        self.result_capacity = 0


cdef void expect_followers(Fetching self) noexcept nogil:
    """A follower names a new partition in its next Fetch. The one that waits here for others could keep it from that for
    replica.fetch.wait.max.ms, and what is produced from being acknowledged."""
    cdef int64_t now_ms = self.core.monotonic_ms
    cdef Session* session = self.cache.oldest
    cdef WaitingFetch* fetch
    if self.expecting_ms >= now_ms + EXPECTING_MS:      # said a moment ago, of another partition
        return
    self.expecting_ms = now_ms + EXPECTING_MS
    while session is not NULL:
        fetch = <WaitingFetch*>session.waiting
        if session.privileged and fetch is not NULL and fetch.timer.place >= 0:
            timer_stop(self.core, &fetch.timer)
            timer_start(self.core, &fetch.timer, now_ms + EXPECTED_WAIT_MS, fetch.timer.expired)
        session = session.newer


cdef int32_t patience_ms(Fetching self, const FetchRequest* request) noexcept nogil:
    if request.replica_id >= 0 and self.core.monotonic_ms < self.expecting_ms:
        return min(request.wait_ms_max, <int32_t>EXPECTED_WAIT_MS)
    return request.wait_ms_max


cdef class Fetching:
    def __cinit__(self, PartitionTable table not None, int32_t max_bytes, uint32_t slots, int64_t eviction_ms,
                  int64_t partitions_max, int64_t orphan_ms):
        self.table = table
        self.max_bytes = max_bytes
        self.broker_id = -1
        self.nodes = {}
        self.leader_nodes = {}
        self.elsewhere = None
        self.name_elsewhere = None
        cache_init(&self.cache, &table.table, slots, eviction_ms, partitions_max, orphan_ms)

    def __dealloc__(self):
        cache_free(&self.cache)
        free(self.results)
        self.drop_racks()

    cdef void drop_racks(self) noexcept:
        cdef uint32_t i
        for i in range(self.rack_count):
            free(self.racks[i].name)
        free(self.racks)
        self.racks = NULL
        self.rack_count = 0
        self.own_rack = 0

    def know_racks(self, names not None, own):
        """The racks of all brokers, by number from 1, and ours: consumers read from replicas in their own rack."""
        self.drop_racks()
        self.racks = <Rack*>calloc(len(names) + 1, sizeof(Rack))
        KAFKAD_CHECK(self.racks is not NULL)
        for number, name in enumerate(names):
            content = name.encode()
            self.racks[number].size = len(content)
            self.racks[number].name = strdup(<bytes>content)
            KAFKAD_CHECK(self.racks[number].name is not NULL)
            self.rack_count += 1
            if name == own:
                self.own_rack = self.rack_count

    cdef void forget(self) noexcept:
        """Drop every session, at the end."""
        while self.cache.oldest is not NULL:
            cache_remove(&self.cache, self.cache.oldest)
        count_sessions(self)
