"""A record batch v2 where it stands: its header fields, and the checks that Kafka makes of client appends.

    0 base_offset i64 | 8 length i32 | 12 leader_epoch i32 | 16 magic i8 | 17 crc u32 | 21 attributes i16
    23 last_offset_delta i32 | 27 base_timestamp i64 | 35 max_timestamp i64 | 43 producer_id i64
    51 producer_epoch i16 | 53 base_sequence i32 | 57 records_count i32 | 61 records

The CRC-32C covers bytes 21 to the end, so base offset and leader epoch may be patched in place.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

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

# Parses the header at `data`. 0, or -1 when fewer than HEADER_SIZE bytes, a length that does not fit or a magic
# other than 2. Checks nothing else.
cdef int parse_header(const uint8_t* data, size_t size, BatchInfo* info) noexcept nogil

# Everything that Kafka's LogValidator checks of a client's append, for one partition's `records` field.
# 0: append as it is (base offset and leader epoch are the caller's to patch). NEED_PYTHON: compressed, or must be
# rewritten, or a magic below 2: `validate_slow` decides. Else a Kafka error code, with info.message set.
# May patch max_timestamp, the timestamp type bit and then the CRC in place (LogAppendTime, wrong max_timestamp).
cdef int validate(uint8_t* data, size_t size, const Rules* rules, int64_t now_ms, BatchInfo* info) noexcept nogil
