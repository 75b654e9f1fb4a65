"""The topics of a Produce, from its bytes to the arrays of a Producing (produce.pyx).

The arrays are kept between requests, up to SCRATCH_KEPT elements. They point into the frame: nothing is copied."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc

from kafkad._native.serving.produce_state cimport Outcome, Part, Producing, TopicParts
from kafkad._native.wire.primitives cimport (
    KAFKAD_CHECK, Cursor, read_count, read_i16, read_i32, read_raw, read_uvarint, skip_tags)

cdef enum:
    PARTS_MAX = 1 << 18                 # partitions, and topics, of one request


cdef bint parse_topics(Producing self, Cursor* body, int16_t version, uint32_t* topic_count,
                       uint32_t* part_count) noexcept nogil:
    cdef bint flexible = version >= 9
    cdef int64_t topics = read_count(body, flexible, 18 if version >= 13 else 3 if flexible else 6)
    cdef int64_t parts, size, i, j
    cdef uint32_t used = 0
    cdef TopicParts* topic
    cdef Part* part
    if body.failed or topics > PARTS_MAX:
        return False
    if topics > self.topic_capacity:
        self.topics = <TopicParts*>realloc(self.topics, <size_t>topics * sizeof(TopicParts))
        KAFKAD_CHECK(self.topics is not NULL)
        self.topic_capacity = <uint32_t>topics
    for i in range(topics):
        topic = &self.topics[i]
        if version >= 13:
            topic.name_size = -1
            topic.name = read_raw(body, 16)
        else:
            topic.name_size = <int32_t>read_uvarint(body) - 1 if flexible else read_i16(body)
            if topic.name_size < 0:
                return False
            topic.name = read_raw(body, <size_t>topic.name_size)
        parts = read_count(body, flexible, 6 if flexible else 8)
        if body.failed or used + parts > PARTS_MAX:
            return False
        topic.first = used
        topic.count = <uint32_t>parts
        if used + parts > self.part_capacity:
            self.part_capacity = <uint32_t>max(used + parts, <int64_t>self.part_capacity * 2)
            self.parts = <Part*>realloc(self.parts, self.part_capacity * sizeof(Part))
            self.outcomes = <Outcome*>realloc(self.outcomes, self.part_capacity * sizeof(Outcome))
            KAFKAD_CHECK(self.parts is not NULL and self.outcomes is not NULL)
        for j in range(parts):
            part = &self.parts[used]
            used += 1
            part.index = read_i32(body)
            size = <int64_t>read_uvarint(body) - 1 if flexible else read_i32(body)
            if size < -1:
                return False
            part.size = <int32_t>size
            part.records = <uint8_t*>read_raw(body, <size_t>max(size, 0))
            if flexible:
                skip_tags(body)
            if body.failed:
                return False
        if flexible:
            skip_tags(body)
    if flexible:
        skip_tags(body)
    topic_count[0] = <uint32_t>topics
    part_count[0] = used
    return not body.failed                              # bytes behind the body are ignored, as Kafka ignores them


cdef void drop_scratch(Producing self) noexcept nogil:
    free(self.parts)
    free(self.outcomes)
    free(self.topics)
    free(self.waits)
    self.parts = NULL
    self.outcomes = NULL
    self.topics = NULL
    self.waits = NULL
    self.part_capacity = 0
    self.topic_capacity = 0
    self.wait_capacity = 0
