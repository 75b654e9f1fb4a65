"""A partition that another worker owns, as this worker reads it: its files, and a private copy of its shared row.

Every read first checks the row's sequence. If it changed, the row is copied (watermarks.row_read). If the copy names
another generation or another active segment, the directory is listed again, up to that segment. The list contains every
file that existed before the listing began, unless it was deleted. If the generation changed meanwhile, or segments were
removed as well as added, everything is read once more. So no segment between two others is ever missing; a reader would
skip it silently.

While the row is odd, its owner is in the middle of a change (perhaps descheduled, or killed). Reads then use our copy
if it is the version just before the change, because that change is not visible to clients yet. If our copy is older,
the reader waits a few milliseconds for the owner, and then returns a retriable error. A Produce that waits for a
watermark needs no files: it is not answered with that error, because its batch is in the log (`peek`).

Beware:
- The owner cuts, rewrites and removes index files at any time. Readers use pread on them, never mmap, and ignore
  entries beyond the end in the copy. The file of a removed segment stays open until the row shows the removal.
- A file that was opened by its name may be a different one by then (exchange.pyx): check `has_names` afterwards.
- A batch may be appended between the copy and the read: never look beyond the positions in the copy.
- What is known about batch positions (batch_search.pxd) is forgotten together with the segments.
- The ring of recent batches (batch_search.pxd) holds the high watermarks that were seen, which is where the next read
  of a consumer at the end begins. Two neighbouring entries may have several batches between them.

Reads of committed data open the owner's indexes of aborted transactions (aborted.pyx). Appends are refused."""

from libc.errno cimport EIO, ENOENT, ENOMEM, ESTALE, errno
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strcmp

from cpython.bytes cimport PyBytes_AS_STRING

from kafkad._native.log.fileio cimport WINDOW, open_path, read_at
from kafkad._native.log.partition cimport Partition
from kafkad._native.log.partition_appends cimport AppendInfo
from kafkad._native.log.partition_reads cimport ReadInfo
from kafkad._native.log.partition_state cimport (
    ADVANCED_DURABLE, ADVANCED_END, ADVANCED_HIGH_WATERMARK, ADVANCED_START, EPOCH_RAISED, PARTITION_GONE)
from kafkad._native.log.index cimport OFFSET_ENTRY_SIZE
from kafkad._native.log.batch_search cimport (
    COLD, RecentBatch, lookup_at, lookup_forget, lookup_make_ring, lookup_missing, lookup_newest, lookup_place,
    lookup_recent, lookup_remember)
from kafkad._native.log.read_positions cimport place_of
from kafkad._native.log.producer_table cimport ProducerTable
from kafkad._native.log.segments cimport (
    HOT_MS, PATH_SIZE, LogFile, Segment, kafkad_monotonic_ms, log_file_new, log_file_release, log_file_written,
    segment_close, segment_drop, segment_floor, segment_open, segment_path, segment_walk)
from kafkad._native.shared.watermarks cimport ROLE_LEADER, Row, RowSlot, kafkad_load, row_peek, row_read
from kafkad._native.wire.primitives cimport get_i32
from kafkad._native.wire.errors cimport CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER

from kafkad._native.log.producer_table import ProducerTable as new_producer_table

cdef extern from "<fcntl.h>" nogil:
    enum: O_RDONLY, O_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    int64_t lseek(int fd, int64_t offset, int whence)
    int usleep(unsigned int us)
    enum: SEEK_END

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<dirent.h>" nogil:
    ctypedef struct DIR:
        pass
    cdef struct dirent:
        char* d_name
    DIR* opendir(const char* path)
    int closedir(DIR* directory)

cdef extern from * nogil:
    """
    /* NULL at the end, and when it fails: then *failed */
    static inline struct dirent* kafkad_readdir(DIR* directory, int* failed) {
        errno = 0;
        struct dirent* entry = readdir(directory);
        *failed = errno;
        return entry;
    }
    """
    dirent* kafkad_readdir(DIR* directory, int* failed)

cdef extern from "<sys/stat.h>" nogil:
    cdef struct stat_result "stat":
        int64_t st_size
    int c_stat "stat"(const char* path, stat_result* result)

cdef extern from "<errno.h>" nogil:
    enum: EAGAIN

cdef enum:
    OFFSET_DIGITS = 20
    LISTINGS = 8                    # listings that rolls may overtake before a read fails with a retriable error
    BLOCK_ENTRIES = 512             # entries of an index per read
    YIELDS = 16                     # how often to yield while the row keeps changing; after that, sleep
    NAPS = 30
    NAP_US = 100
    WALK_MAX = 64 * 1024            # between two remembered positions: the largest distance of two index entries

cdef ProducerTable no_producers = new_producer_table()


cdef int compare_found(const void* one, const void* other) noexcept nogil:
    cdef int64_t a = (<const Found*>one).base_offset
    cdef int64_t b = (<const Found*>other).base_offset
    return (a > b) - (a < b)


cdef int64_t offset_of_log(const char* name) noexcept nogil:
    """Return the base offset in the name of a .log file, or -1 for other names."""
    cdef int64_t offset = 0
    cdef int i
    for i in range(OFFSET_DIGITS):
        if name[i] < c"0" or name[i] > c"9":
            return -1
        if offset > (INT64_MAX - 9) // 10:
            return -1
        offset = offset * 10 + (name[i] - c"0")
    return offset if strcmp(name + OFFSET_DIGITS, b".log") == 0 else -1


cdef class ReaderPartition(Partition):
    """Made by `Partition.reader`."""

    def __dealloc__(self):
        free(self.found)

    # -- the row -------------------------------------------------------------------------------------------

    cdef bint is_ours(self, const Row* row) noexcept nogil:
        # It has a role there: the leader's, or a follower's, which consumers may read, too (KIP-392).
        return (row.leader_epoch >= 0 and row.partition == self.index
                and memcmp(row.topic_id, self.expected_id, 16) == 0)

    cdef bint read_row(self, Row* fresh) noexcept nogil:
        # An owner that was preempted in the middle of a change continues soon; a stopped or dead one does not. Waits a
        # few milliseconds, once per change.
        cdef uint32_t sequence
        cdef int i
        if row_read(self.shared, fresh):
            return True
        sequence = kafkad_load(&self.shared.sequence)
        if sequence == self.stuck:
            return False
        for i in range(YIELDS + NAPS):
            if i < YIELDS:
                sched_yield()
            else:
                usleep(NAP_US)
            if row_read(self.shared, fresh):
                return True
        self.stuck = sequence
        return False

    cdef int refresh(self, bint again) noexcept nogil:
        # Copies the row if it changed. `again`: lists the directory in any case. 0, or the error code for reads.
        cdef Row fresh
        cdef uint32_t sequence = kafkad_load(&self.shared.sequence)
        # The version before a change in progress is valid: that change is not visible to clients yet.
        if not again and self.known and sequence & ~<uint32_t>1 == self.row.sequence:
            return self.state
        if not self.read_row(&fresh):
            return NOT_LEADER_OR_FOLLOWER
        if again:
            self.known = False
        return self.settle(&fresh)

    cdef int settle(self, const Row* fresh) noexcept nogil:
        # Updates the segments to the moment of `fresh`, or a later one.
        cdef Row row = fresh[0]
        cdef Row before
        cdef int tries = 0, failure
        while self.is_ours(&row):
            if (self.known and self.state == 0 and row.generation == self.row.generation
                    and row.end_segment == self.row.end_segment):
                return self.adopt_found(&row)
            if tries == LISTINGS:
                return NOT_LEADER_OR_FOLLOWER
            tries += 1
            before = row
            failure = self.list_directory(&before)
            if not self.read_row(&row):
                return NOT_LEADER_OR_FOLLOWER
            if row.generation != before.generation or not self.is_ours(&row) or failure == -EAGAIN or (
                    row.end_segment != before.end_segment
                    and row.local_log_start_offset != before.local_log_start_offset):
                # Overtaken: the list belongs to no single moment. After a roll and a removal it may have a gap: a
                # segment that was gone when its size was read, after one whose size was known.
                self.found_count = 0
                continue
            if failure != 0:
                self.found_count = 0
                self.refusal = failure
                return KAFKA_STORAGE_ERROR if failure != -ENOENT else NOT_LEADER_OR_FOLLOWER
            # After a roll alone the list is still valid: nothing below a segment that was there is missing.
            return self.adopt_found(&row if row.end_segment == before.end_segment else &before)
        self.forget_segments()
        self.row[0] = row
        self.known = True
        self.state = NOT_LEADER_OR_FOLLOWER
        return self.state

    cdef int freshen(self) noexcept nogil:
        return self.refresh(False)

    cdef bint peek(self) noexcept nogil:
        # After `refresh` failed: updates what is waited for, which needs no segments. The copy is of no version, so reads
        # still fail until `refresh` succeeds. Returns False if the row is no longer ours.
        cdef Row fresh
        if not row_peek(self.shared, &fresh) or not self.is_ours(&fresh):
            return False
        self.row.role = fresh.role
        self.row.led_since = fresh.led_since
        self.row.leader_epoch = fresh.leader_epoch
        self.row.log_end_offset = fresh.log_end_offset
        self.row.high_watermark = fresh.high_watermark
        self.row.last_stable_offset = fresh.last_stable_offset
        self.row.durable_offset = fresh.durable_offset
        self.row.isr_count_max = fresh.isr_count_max
        self.row.isr_count_min = fresh.isr_count_min
        return True

    cdef int look(self) noexcept nogil:
        cdef int why = 0
        if self.refresh(False) != 0 and not self.peek():
            return PARTITION_GONE
        if self.row.role != self.looked_role:
            self.looked_role = self.row.role
            # For all who wait on what it was. Where it leads by now, the term tells a Produce which leader has appended.
            why = EPOCH_RAISED if self.row.role == ROLE_LEADER else PARTITION_GONE
        if self.row.high_watermark != self.looked_high or self.row.last_stable_offset != self.looked_stable or (
                self.row.log_end_offset != self.looked_end or self.row.durable_offset != self.looked_durable):
            self.looked_high = self.row.high_watermark
            self.looked_stable = self.row.last_stable_offset
            self.looked_end = self.row.log_end_offset
            self.looked_durable = self.row.durable_offset
            why |= ADVANCED_HIGH_WATERMARK | ADVANCED_END | ADVANCED_DURABLE
        if self.row.log_start_offset != self.looked_start:
            self.looked_start = self.row.log_start_offset
            why |= ADVANCED_START
        if self.row.leader_epoch != self.looked_epoch:
            self.looked_epoch = self.row.leader_epoch
            why |= EPOCH_RAISED
        return why

    cdef bint has_names(self) noexcept nogil:
        # The owner's other changes take nanoseconds: waits for them.
        cdef Row fresh
        if kafkad_load(&self.shared.sequence) == self.row.sequence:
            return True
        return self.read_row(&fresh) and fresh.generation == self.row.generation and self.is_ours(&fresh)

    # -- segments ------------------------------------------------------------------------------------------

    cdef void forget_segments(self) noexcept nogil:
        cdef int i
        for i in range(self.segment_count):
            segment_close(&self.segments[i], self.directory)
        self.segment_count = 0
        lookup_forget(&self.lookup)

    cdef int list_directory(self, const Row* before) noexcept nogil:
        # Fills `found` with the segments up to the active one of `before`. 0, -errno; -EAGAIN: the active one is
        # missing.
        cdef char path[PATH_SIZE]
        cdef DIR* directory = opendir(self.directory)
        cdef dirent* entry
        cdef Found* more
        cdef int64_t offset
        cdef stat_result status
        cdef int i, at, kept = 0, failed = 0
        self.listings += 1
        self.found_count = 0
        if directory == NULL:
            return -errno
        while True:
            entry = kafkad_readdir(directory, &failed)
            if entry == NULL:
                break
            offset = offset_of_log(entry.d_name)
            if offset < 0 or offset > before.end_segment or offset < before.local_log_start_offset:
                continue
            if self.found_count == self.found_capacity:
                more = <Found*>realloc(self.found, (self.found_capacity * 2 + 4) * sizeof(Found))
                if more == NULL:
                    closedir(directory)
                    return -ENOMEM
                self.found = more
                self.found_capacity = self.found_capacity * 2 + 4
            self.found[self.found_count].base_offset = offset
            self.found_count += 1
        closedir(directory)
        if failed:                      # a partial list would have gaps
            return -failed
        qsort(self.found, self.found_count, sizeof(Found), compare_found)
        for i in range(self.found_count):
            offset = self.found[i].base_offset
            at = -1
            if self.known and self.state == 0 and before.generation == self.row.generation:
                at = segment_floor(self.segments, self.segment_count, offset)
            if offset == before.end_segment:
                self.found[i].size = 0                          # the row has it
            elif at >= 0 and self.segments[at].base_offset == offset and offset < self.row.end_segment:
                self.found[i].size = self.segments[at].size     # closed before the last listing
            else:
                segment_path(self.directory, offset, b"log", path)
                if c_stat(path, &status) != 0:
                    if errno == ENOENT:                         # removed meanwhile: it is below the log's start by now
                        continue
                    return -errno
                self.found[i].size = status.st_size
            self.found[kept] = self.found[i]
            kept += 1
        self.found_count = kept
        if kept == 0 or self.found[kept - 1].base_offset != before.end_segment:
            return -EAGAIN
        return 0

    cdef int adopt_found(self, const Row* row) noexcept nogil:
        # Makes `row` the copy, with the segments that were found for it (`found_count` 0: keep the known ones).
        cdef Segment* fresh
        cdef Segment* old
        cdef int i, at, gone = 0
        cdef int64_t now_ms = kafkad_monotonic_ms()
        cdef bint same = self.known and self.state == 0 and row.generation == self.row.generation
        if self.found_count:
            fresh = <Segment*>malloc(self.found_count * sizeof(Segment))
            if fresh == NULL:
                self.refusal = -ENOMEM
                return KAFKA_STORAGE_ERROR
            for i in range(self.found_count):
                memset(&fresh[i], 0, sizeof(Segment))
                fresh[i].base_offset = self.found[i].base_offset
                at = segment_floor(self.segments, self.segment_count, self.found[i].base_offset) if same else -1
                if at >= 0 and self.segments[at].base_offset == self.found[i].base_offset:
                    old = &self.segments[at]
                    fresh[i] = old[0]
                    old.file = NULL
                    old.index_file = NULL
                fresh[i].size = self.found[i].size
            self.forget_segments()
            free(self.segments)
            self.segments = fresh
            self.segment_count = self.found_count
            self.segment_capacity = self.found_count
            self.found_count = 0
        while gone < self.segment_count - 1 and self.segments[gone].base_offset < row.local_log_start_offset:
            segment_close(&self.segments[gone], self.directory)
            gone += 1
        if gone:
            memmove(self.segments, self.segments + gone, (self.segment_count - gone) * sizeof(Segment))
            self.segment_count -= gone
        self.active().size = row.end_position
        if (same and row.end_segment == self.row.end_segment and row.end_position > self.row.end_position
                and self.active().file != NULL and now_ms - self.moved_ms <= HOT_MS):
            log_file_written(self.active().file, self.row.end_position)     # since the last look
        self.moved_ms = now_ms
        self.row[0] = row[0]
        self.known = True
        self.state = 0
        if self.looked_epoch < 0:
            self.looked_epoch = row.leader_epoch        # what waits now has read in this one
            self.looked_role = row.role
        if self.lookup.recent != NULL and row.high_watermark_segment == row.end_segment and (
                lookup_newest(&self.lookup) < row.high_watermark):
            lookup_remember(&self.lookup, row.high_watermark, row.high_watermark_position)
        return 0

    # -- read ----------------------------------------------------------------------------------------------

    cdef int refused(self, int failure, const char* doing) noexcept nogil:
        # The owner of the disk finds the failure by itself.
        self.refusal = failure
        return KAFKA_STORAGE_ERROR

    cdef int read(self, int64_t offset, int64_t max_bytes, bint at_least_one, int isolation, int32_t leader_epoch,
                  ReadInfo* info) noexcept nogil:
        cdef int code, tries = 0
        self.read_max = max_bytes
        while True:
            self.refusal = 0
            code = self.refresh(tries > 0)
            if code == 0 and offset >= self.row.log_start_offset and offset < self.segments[0].base_offset:
                code = NOT_LEADER_OR_FOLLOWER       # the log start has moved up meanwhile
                self.refusal = -ENOENT
            elif self.refusal == 0:
                self.open = code == 0 and self.row.role == ROLE_LEADER
                self.closed_code = code if code else NOT_LEADER_OR_FOLLOWER
                code = Partition.read(self, offset, max_bytes, at_least_one, isolation, leader_epoch, info)
                self.open = False                   # for appends, which only the owner does
                if self.refusal == 0 and code != CORRUPT_MESSAGE:   # also COLD
                    if info.file != NULL:
                        lookup_make_ring(&self.lookup)
                    return code
            tries += 1
            if tries == 3 or (self.refusal != -ENOENT and code != CORRUPT_MESSAGE):
                break
        self.known = False
        info.high_watermark = self.row.high_watermark
        info.last_stable_offset = self.row.last_stable_offset
        info.log_start_offset = self.row.log_start_offset
        info.file = NULL
        info.position = 0
        info.size = 0
        info.available = 0
        return NOT_LEADER_OR_FOLLOWER if self.refusal == -ENOENT else code

    cdef int append(self, uint8_t* records, size_t size, int64_t now_ms, AppendInfo* info) noexcept nogil:
        return self.append_checked(records, size, 0, -1, now_ms, info)

    cdef int append_checked(self, uint8_t* records, size_t size, int origin, int32_t epoch, int64_t now_ms,
                            AppendInfo* info) noexcept nogil:
        info.base_offset = -1
        info.end_offset = -1
        info.append_time_ms = -1
        info.log_start_offset = self.row.log_start_offset
        info.bad_record = -1
        info.message = NULL
        return NOT_LEADER_OR_FOLLOWER

    cdef int locate(self, Segment* segment, int64_t target, int64_t limit, int64_t* position,
                    int64_t* batch_size) noexcept nogil:
        cdef int64_t at = 0, indexed = -1, index_at = 0, following = 0
        cdef RecentBatch recent
        cdef bint exact = target == segment.base_offset, near = False
        cdef int number, found
        cdef bint was_open = segment.file != NULL
        cdef int failure = segment_open(segment, self.directory, False)
        if failure != 0:
            return failure
        if not was_open and not self.has_names():
            segment_drop(segment)
            return -ENOENT
        if segment == self.active() and lookup_recent(&self.lookup, target, limit, &recent, &following):
            at = recent.position
            exact = recent.base_offset == target
            near = following - at <= WALK_MAX
        if not exact:
            number = place_of(self.lookup.places, segment.base_offset, target)
            if number >= 0:
                at = self.lookup.places.positions[number]
                exact = True
        if exact and at < limit <= at + self.read_max:
            position[0] = at                # all of it is sent: where its first batch ends does not matter
            batch_size[0] = limit - at
            return 1
        found = lookup_place(&self.lookup, segment, target, limit, position, batch_size)
        if found == 0 and exact:
            found = lookup_at(&self.lookup, segment, at, INT64_MAX, target, limit, position, batch_size)
        if found != 0:
            return found
        if not exact and not near and not segment.index_ignored:
            failure = self.index_floor(segment, target - segment.base_offset, &index_at, &indexed, &following)
            if failure == -ESTALE:
                return -ENOENT
            if failure == 0:
                # As in the owner: the next entry's batch is the one, if it begins early enough.
                if following - index_at > WINDOW and following > at:
                    found = lookup_at(&self.lookup, segment, following, target, target, limit, position, batch_size)
                    if found != 0:
                        return found
                if index_at > at:
                    at = index_at
                    indexed += segment.base_offset
                else:
                    indexed = -1
            else:
                indexed = -1
        if lookup_missing(&self.lookup, segment, at) != 0:
            return COLD
        return segment_walk(segment, at, indexed, target, limit, position, batch_size)

    cdef int index_floor(self, Segment* segment, int64_t relative, int64_t* position, int64_t* last,
                         int64_t* following) noexcept nogil:
        # Finds the last entry whose offset is <= `relative`, and the position of the entry after it (`following`).
        # Returns 0 or -errno. Position 0: there is no entry; for `following`, perhaps it was not searched for. -ESTALE:
        # the file may belong to another segment. Entries usually ascend evenly, so the first block read has the entry.
        # Of the segment's Index, which is not mapped here, `entries` is how many are known to be valid, `allocated` the
        # offset in the last of them, and `entries_max` says that there are no more.
        cdef char path[PATH_SIZE]
        cdef uint8_t block[BLOCK_ENTRIES * OFFSET_ENTRY_SIZE]
        cdef LogFile* file = segment.index_file
        cdef int64_t low = 0, high, start, n, middle
        cdef int fd, failure
        position[0] = 0
        last[0] = -1
        following[0] = 0
        if file == NULL:
            segment_path(self.directory, segment.base_offset, b"index", path)
            fd = open_path(path, O_RDONLY | O_CLOEXEC)
            if fd < 0:
                return fd
            file = log_file_new(fd)
            if file == NULL:
                return -ENOMEM
            if not self.has_names():
                log_file_release(file)
                return -ESTALE
            segment.index_file = file
        if (segment.offsets.entries == 0 or relative > segment.offsets.allocated) and segment.offsets.entries_max == 0:
            failure = count_entries(segment, segment == self.active())
            if failure != 0:
                return failure
        high = segment.offsets.entries
        start = 0
        if segment.offsets.allocated > 0:
            start = <int64_t>(<double>high * <double>relative / <double>segment.offsets.allocated) - BLOCK_ENTRIES // 2
        while low < high:
            if start > high - BLOCK_ENTRIES:
                start = high - BLOCK_ENTRIES
            if start < low:
                start = low
            n = high - start if high - start < BLOCK_ENTRIES else BLOCK_ENTRIES
            n = read_at(file.fd, block, n * OFFSET_ENTRY_SIZE, start * OFFSET_ENTRY_SIZE) // OFFSET_ENTRY_SIZE
            if n <= 0:
                return -EIO
            if get_i32(block) > relative:
                following[0] = get_i32(block + 4)
                high = start
            elif get_i32(block + (n - 1) * OFFSET_ENTRY_SIZE) <= relative:
                position[0] = get_i32(block + (n - 1) * OFFSET_ENTRY_SIZE + 4)
                last[0] = get_i32(block + (n - 1) * OFFSET_ENTRY_SIZE)
                low = start + n
            else:
                low = 0
                high = n                            # the first entry qualifies, the last does not
                while high - low > 1:
                    middle = low + (high - low) // 2
                    if get_i32(block + middle * OFFSET_ENTRY_SIZE) <= relative:
                        low = middle
                    else:
                        high = middle
                position[0] = get_i32(block + low * OFFSET_ENTRY_SIZE + 4)
                last[0] = get_i32(block + low * OFFSET_ENTRY_SIZE)
                following[0] = get_i32(block + high * OFFSET_ENTRY_SIZE + 4)
                break
            start = low + (high - low) // 2 - BLOCK_ENTRIES // 2
        return 0

    # -- what Python asks for ------------------------------------------------------------------------------

    def refresh_row(self) -> int:
        """Copies the row now, for whoever reads its values next: 0, or the error that reads at a leader get."""
        cdef int code
        with nogil:
            code = self.refresh(False)
        return NOT_LEADER_OR_FOLLOWER if code == 0 and self.row.role != ROLE_LEADER else code

    @property
    def first_base_offset(self) -> int:
        return self.row.local_log_start_offset

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index} of worker {self.owner} ..{self.row.high_watermark}>"


cdef int count_entries(Segment* segment, bint is_active) noexcept nogil:
    """Count the valid entries of the offset index: those before the zeros at the end of an active segment's file, and
    before entries that the owner wrote since the copy. 0 or more, or -errno."""
    cdef uint8_t block[BLOCK_ENTRIES * OFFSET_ENTRY_SIZE]
    cdef int fd = segment.index_file.fd
    cdef int64_t low = segment.offsets.entries, step = BLOCK_ENTRIES, n, middle
    cdef int64_t high = lseek(fd, 0, SEEK_END) // OFFSET_ENTRY_SIZE
    while low + step <= high:                       # double the step, from the known count
        n = read_at(fd, block, OFFSET_ENTRY_SIZE, (low + step - 1) * OFFSET_ENTRY_SIZE)
        if n < 0:
            return <int>n
        if n < OFFSET_ENTRY_SIZE or not counts(block, segment.size):
            break
        low += step
        step *= 2
    if high > low + step:
        high = low + step
    while high - low > BLOCK_ENTRIES:
        middle = low + (high - low) // 2
        n = read_at(fd, block, OFFSET_ENTRY_SIZE, middle * OFFSET_ENTRY_SIZE)
        if n < 0:
            return <int>n
        if n == OFFSET_ENTRY_SIZE and counts(block, segment.size):
            low = middle + 1
        else:
            high = middle
    n = 0
    if high > low:
        n = read_at(fd, block, (high - low) * OFFSET_ENTRY_SIZE, low * OFFSET_ENTRY_SIZE)
        if n < 0:
            return <int>n
        n //= OFFSET_ENTRY_SIZE
        while n > 0 and not counts(block + (n - 1) * OFFSET_ENTRY_SIZE, segment.size):
            n -= 1
    if n > 0:
        segment.offsets.allocated = get_i32(block + (n - 1) * OFFSET_ENTRY_SIZE)
    elif low > 0 and low != segment.offsets.entries:
        if read_at(fd, block, OFFSET_ENTRY_SIZE, (low - 1) * OFFSET_ENTRY_SIZE) != OFFSET_ENTRY_SIZE:
            return -EIO
        segment.offsets.allocated = get_i32(block)
    segment.offsets.entries = <int32_t>(low + n)
    if not is_active:
        segment.offsets.entries_max = segment.offsets.entries + 1
    return 0


cdef inline bint counts(const uint8_t* entry, int64_t size) noexcept nogil:
    return 0 < get_i32(entry + 4) < size


def reader_partition(str topic, int index, bytes topic_id, str directory, RowSlot slot, int owner):
    """Return a reader of the partition in `directory` that worker `owner` appends to. `slot`: a view of its row."""
    cdef ReaderPartition self
    if len(topic_id) != 16:
        raise ValueError("a topic id is 16 bytes")
    if owner < 0:
        raise ValueError("a reader's partition has an owner")
    self = ReaderPartition(topic, index, topic_id, directory, None, no_producers)
    self.copied = self.slot
    self.slot = slot
    self.shared = <Row*>slot.at
    self.owner = owner
    self.looked_epoch = -1
    memcpy(self.expected_id, PyBytes_AS_STRING(topic_id), 16)
    return self
