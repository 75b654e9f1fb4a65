"""Where the fields of a batch's header stand, from its first byte on (DefaultRecordBatch). The base offset is at 0; formats
before v2 have base offset, length and magic at the same places."""

cdef enum:
    LENGTH_AT = 8                   # of what follows it
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17                     # of all from the attributes on
    ATTRIBUTES_AT = 21
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    RECORDS_COUNT_AT = 57
