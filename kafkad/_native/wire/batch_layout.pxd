"""Positions of the header fields of a batch, from its first byte (Kafka's DefaultRecordBatch). The base offset is at 0.
Older formats have base offset, length and magic at the same positions."""

cdef enum:
    LENGTH_AT = 8                   # the length counts the bytes after this field
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17                     # covers the bytes from the attributes to the end
    ATTRIBUTES_AT = 21
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    RECORDS_COUNT_AT = 57
