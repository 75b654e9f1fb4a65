"""A record batch v2 where it stands: its header fields, and the checks that Kafka makes of client appends.

    0 base_offset i64 | 8 length i32 | 12 leader_epoch i32 | 16 magic i8 | 17 crc u32 | 21 attributes i16
    23 last_offset_delta i32 | 27 base_timestamp i64 | 35 max_timestamp i64 | 43 producer_id i64
    51 producer_epoch i16 | 53 base_sequence i32 | 57 records_count i32 | 61 records

The CRC-32C covers bytes 21 to the end, so base offset and leader epoch may be patched in place.

A record is a varint length and then so many bytes:

attributes i8 | timestamp_delta varlong | offset_delta varint | key_size varint, key | value_size varint,
value headers_count varint | headers_count times (key_size varint, key | value_size varint, value)

A size below 0 is null (a header's key cannot be null).
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    HEADER_SIZE = 61
    LENGTH_OVERHEAD = 12          # bytes before and including the length field
    NEED_PYTHON = -1000           # a verdict: not the common case, the slow path decides

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
    # found by the walk over the records (uncompressed, or after decompression)
    int64_t walked_max_timestamp  # largest record timestamp, -1 if none
    int64_t walked_max_offset     # base_offset + delta of the record that has it
    int32_t bad_record            # index of the record that was refused, -1 if the trouble is not one record's
    const char* message           # one static sentence about a refusal, NULL if none

cdef struct Rules:                # what a partition's configuration asks of a client append
    int32_t max_message_bytes     # max.message.bytes: size of a batch
    int compression_type          # -1 producer's own, else 0..4 as in attributes
    bint log_append_time          # message.timestamp.type=LogAppendTime
    int64_t before_max_ms         # message.timestamp.before.max.ms
    int64_t after_max_ms          # message.timestamp.after.max.ms
    bint compacted                # cleanup.policy has compact: every record needs a key
    bint transactions             # transactional batches may come; else they are refused with INVALID_REQUEST

# Parses the header at `data`. 0, or -1 when fewer than HEADER_SIZE bytes, a length that does not fit or a magic
# other than 2. Checks nothing else.
cdef int parse_header(const uint8_t* data, size_t size, BatchInfo* info) noexcept nogil

# Everything that Kafka's LogValidator checks of a client's append, for one partition's `records` field.
# 0: append as it is (base offset and leader epoch are the caller's to patch); then info.size == size. NEED_PYTHON:
# compressed, or must be rebuilt, or a magic below 2: `kafkad.protocol.validation` decides. Else a Kafka error code,
# with info.message set. May patch max_timestamp, the timestamp type bit and then the CRC in place (LogAppendTime,
# wrong max_timestamp).
cdef int validate(uint8_t* data, size_t size, const Rules* rules, int64_t now_ms, BatchInfo* info) noexcept nogil

# The first part of `validate`, which looks at the header alone: exactly one batch that may be this large.
cdef int check_outline(const uint8_t* data, size_t size, const Rules* rules, BatchInfo* info) noexcept nogil

# After a refusal: all bad records of an uncompressed batch, of which `BatchInfo.bad_record` is one. Their count, then for each
# its index << 1, | 1 if its timestamp is bad (otherwise its key is missing). NULL: none. The caller frees it.
cdef uint32_t* bad_records(const uint8_t* data, size_t size, const Rules* rules, int64_t now_ms) noexcept nogil

# The CRC in the header is that of the bytes; `info` as parse_header gave it.
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
        RECORD_INCOMPLETE         # its length, or what it says, runs past `end`
        RECORD_MALFORMED

    # Reads the record at `p`; when complete, next[0] is where the one after it starts. Nothing of the view points
    # outside of the record; its headers were looked through.
    int record_read(const uint8_t* p, const uint8_t* end, RecordView* view, const uint8_t** next)

    # A varint at p: where it ends, NULL if not before `end`.
    const uint8_t* record_varint(const uint8_t* p, const uint8_t* end, int32_t* value)


# -- records that come in pieces ---------------------------------------------------------------------------

# A walk over all records of a batch, fed with its (decompressed) bytes in chunks cut anywhere: a state machine of
# constant size, so that a bomb costs a chunk and not what it claims to hold.
cdef struct Walk:
    # what to ask of the records
    int32_t records_count
    int64_t base_timestamp
    int64_t delta_mask            # 0 under LogAppendTime: every record has base_timestamp; else all ones
    int64_t earliest_timestamp    # none from here to `latest_timestamp` is bad; the others are judged
    int64_t latest_timestamp
    int64_t now_ms                # and the limits, in ms, of what is judged; -1 always passes
    int64_t before_max_ms
    int64_t after_max_ms
    bint compacted
    int64_t target_timestamp      # find the first record at or after it
    int64_t target_delta          # and with at least this offset delta
    # where it is inside a record that a chunk's end cut
    int stage
    int shift
    uint64_t varint
    int64_t left                  # bytes of this record
    int64_t skip                  # bytes of this key or value
    int32_t headers_left
    RecordView cut
    # what was found
    int32_t records
    bint consecutive              # offset deltas 0, 1, 2, …
    int64_t max_timestamp         # -1 if no record has one
    int32_t max_timestamp_delta   # offset delta of the first that has it
    bint found                    # the first at or after target_timestamp
    int64_t found_timestamp
    int32_t found_delta
    int32_t bad_record
    uint32_t* bad                 # their count, then all of them up to BAD_RECORDS_MAX; NULL: none. The caller frees it
    int verdict                   # 0 or the error code
    const char* message

cdef enum:
    BAD_RECORDS_MAX = 10_000      # of one batch that an answer names: as many as librdkafka puts into one

cdef void walk_begin(Walk* walk, const BatchInfo* info) noexcept nogil
cdef void walk_rules(Walk* walk, const Rules* rules, int64_t now_ms) noexcept nogil
cdef int walk_feed(Walk* walk, const uint8_t* data, size_t size) noexcept nogil    # 0, or the records do not parse
cdef int walk_end(Walk* walk) noexcept nogil                                       # 0 or an error code


# -- for Python --------------------------------------------------------------------------------------------

cdef class BatchHeader:
    cdef BatchInfo info

cdef class AppendRules:
    cdef Rules rules
