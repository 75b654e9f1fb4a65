"""The layout of a record batch v2, and the checks of a client's append. Batches are read in place.

    0 base_offset i64 | 8 length i32 | 12 leader_epoch i32 | 16 magic i8 | 17 crc u32 | 21 attributes i16
    23 last_offset_delta i32 | 27 base_timestamp i64 | 35 max_timestamp i64 | 43 producer_id i64
    51 producer_epoch i16 | 53 base_sequence i32 | 57 records_count i32 | 61 records

The CRC-32C covers bytes 21 to the end, so base offset and leader epoch may be patched in place.

A record is a varint length, followed by that many bytes:

    attributes i8 | timestamp_delta varlong | offset_delta varint | key_size varint, key | value_size varint, value
    headers_count varint | headers_count times (key_size varint, key | value_size varint, value)

A negative size means null. A header's key cannot be null.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    HEADER_SIZE = 61
    LENGTH_OVERHEAD = 12          # bytes before and including the length field
    NEED_PYTHON = -1000           # verdict: not the common case; the slow path decides

cdef enum:                        # attributes
    COMPRESSION_MASK = 0x07       # 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
    TIMESTAMP_LOG_APPEND = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40
    KNOWN_ATTRIBUTES = 0x7F

cdef struct BatchInfo:
    int64_t base_offset
    int32_t size                  # the whole batch, header included
    int32_t leader_epoch
    int16_t attributes
    int32_t last_offset_delta
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t records_count
    uint32_t crc
    # set by the walk over the records (uncompressed, or after decompression)
    int64_t walked_max_timestamp  # largest record timestamp, -1 if none
    int64_t walked_max_offset     # base_offset + delta of the record that has it
    int32_t bad_record            # index of the refused record, -1 if the error is not about one record
    const char* message           # error message (static), NULL if the batch is accepted

cdef struct Rules:                # a partition's configuration that applies to client appends
    int32_t max_message_bytes     # max.message.bytes: largest size of a batch
    int compression_type          # -1: keep the producer's codec, else 0..4 as in attributes
    bint log_append_time          # message.timestamp.type=LogAppendTime
    int64_t before_max_ms         # message.timestamp.before.max.ms
    int64_t after_max_ms          # message.timestamp.after.max.ms
    bint compacted                # cleanup.policy has compact: every record needs a key
    bint transactions             # accept transactional batches; otherwise refuse them with INVALID_REQUEST

# Parse the header at `data`. Return 0, or -1 if there are fewer than HEADER_SIZE bytes, if the length does not fit
# into `size` or if the magic is not 2. Check nothing else.
cdef int parse_header(const uint8_t* data, size_t size, BatchInfo* info) noexcept nogil

# Check everything that Kafka's LogValidator checks of a client's append, for one partition's `records` field. Return
#   0            append the batch as it is, after patching base offset and leader epoch; info.size == size
#   NEED_PYTHON  compressed, must be rebuilt, or a magic below 2: `kafkad.protocol.validation` decides
#   else         a Kafka error code; info.message is set
# For LogAppendTime or a wrong max_timestamp, patch max_timestamp, the timestamp type and the CRC in place.
cdef int validate(uint8_t* data, size_t size, const Rules* rules, int64_t now_ms, BatchInfo* info) noexcept nogil

# The first part of `validate`, which reads the header only: there is exactly one batch, and its size is allowed.
cdef int check_outline(const uint8_t* data, size_t size, const Rules* rules, BatchInfo* info) noexcept nogil

# After a refusal, return all bad records of an uncompressed batch (`BatchInfo.bad_record` is one of them): their count,
# then (index << 1) | 1 if the timestamp is bad, or index << 1 if the key is missing. NULL: none. The caller frees it.
cdef uint32_t* bad_records(const uint8_t* data, size_t size, const Rules* rules, int64_t now_ms) noexcept nogil

# Correct the timestamp type and max_timestamp in place, by the topic and the walk over the records, and update the CRC.
cdef void settle_timestamps(uint8_t* data, const Rules* rules, int64_t now_ms, BatchInfo* info) noexcept nogil

# Return whether the CRC in the header matches the bytes. `info` comes from parse_header.
cdef bint crc_matches(const uint8_t* data, const BatchInfo* info) noexcept nogil


# -- one record, all of it in memory -----------------------------------------------------------------------

cdef extern from "record.h" nogil:
    ctypedef struct RecordView:
        int64_t timestamp_delta
        int32_t offset_delta
        int32_t key_size          # below 0: null
        int32_t value_size        # below 0: null
        int32_t headers_count
        const uint8_t* key
        const uint8_t* value
        const uint8_t* headers    # the first header's key_size

    cdef enum:
        RECORD_COMPLETE
        RECORD_INCOMPLETE         # the length field, or the record, extends beyond `end`
        RECORD_MALFORMED

    # Read the record at `p`. If it is complete, set next[0] to the start of the next record. All pointers of the view
    # are inside the record, and its headers are checked.
    int record_read(const uint8_t* p, const uint8_t* end, RecordView* view, const uint8_t** next)

    # Read a varint at p. Return where it ends, or NULL if it does not end before `end`.
    const uint8_t* record_varint(const uint8_t* p, const uint8_t* end, int32_t* value)


# -- records in chunks -------------------------------------------------------------------------------------

# A walk over all records of a batch. It is fed the (decompressed) bytes in chunks that may be cut anywhere. The state
# has a constant size, so a decompression bomb costs the memory of one chunk.
cdef struct Walk:
    # what to check
    int32_t records_count
    int64_t base_timestamp
    int64_t delta_mask            # 0 under LogAppendTime: every record has base_timestamp; else all ones
    int64_t earliest_timestamp    # timestamps from here to `latest_timestamp` are good; others are checked in full
    int64_t latest_timestamp
    int64_t now_ms                # for the full check, with its limits in ms; a timestamp of -1 is always good
    int64_t before_max_ms
    int64_t after_max_ms
    bint compacted
    int64_t target_timestamp      # find the first record at or after it
    int64_t target_delta          # and with at least this offset delta
    # position inside a record that the end of a chunk cut
    int stage
    int shift
    uint64_t varint
    int64_t left                  # remaining bytes of this record
    int64_t skip                  # remaining bytes of this key or value
    int32_t headers_left
    RecordView cut
    # results
    int32_t records
    bint consecutive              # offset deltas 0, 1, 2, …
    int64_t max_timestamp         # -1 if no record has one
    int32_t max_timestamp_delta   # offset delta of the first that has it
    bint found                    # a record at or after target_timestamp
    int64_t found_timestamp
    int32_t found_delta
    int32_t bad_record
    uint32_t* bad                 # count of bad records, then up to BAD_RECORDS_MAX; NULL: none. The caller frees it
    int verdict                   # 0 or the error code
    const char* message

cdef enum:
    BAD_RECORDS_MAX = 10_000      # bad records per batch that an answer names; librdkafka's batches have no more records

cdef void walk_begin(Walk* walk, const BatchInfo* info) noexcept nogil
cdef void walk_rules(Walk* walk, const Rules* rules, int64_t now_ms) noexcept nogil
cdef int walk_feed(Walk* walk, const uint8_t* data, size_t size) noexcept nogil    # 0, or the error if they do not parse
cdef int walk_end(Walk* walk) noexcept nogil                                       # 0 or an error code


# -- for Python --------------------------------------------------------------------------------------------

cdef class BatchHeader:
    cdef BatchInfo info

cdef class AppendRules:
    cdef Rules rules
