"""What a connection's subject may do with topics. See topic_rights.pyx."""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t

from kafkad._native.serving.connection cimport Conn, Core
from kafkad._native.serving.partition_table cimport Table, TopicKey

cdef enum Right:                    # AclOperation
    RIGHT_READ = 3
    RIGHT_WRITE = 4

cdef struct Cell:
    TopicKey* key                   # retained
    uint8_t known                   # bits: KNOWN and ALLOWED of each right

cdef class SubjectRights:           # of one principal at one host; shared by its connections
    cdef object subject
    cdef uint64_t version           # version of the ACLs that `cells` are based on
    cdef uint64_t stamp             # unique for each subject and version; never 0
    cdef uint32_t capacity          # a power of two, or 0
    cdef uint32_t count
    cdef Cell* cells
    cdef void forget(self) noexcept nogil

cdef class TopicRights:
    cdef Core* core
    cdef Table* table
    cdef object authorizer
    cdef dict subjects              # (principal, host): SubjectRights
    cdef uint64_t stamps

# Updates the rights of the connection to the current ACLs: call it once per request. Returns their stamp.
cdef uint64_t rights_of(Core* core, Conn* conn) noexcept nogil

# Whether the operation is allowed on a topic: one of the table (`key`), or one that is not there, by its name.
cdef bint may_topic(Core* core, Conn* conn, TopicKey* key, const char* name, size_t size, int right) noexcept nogil

cdef bint may_transact(Core* core, Conn* conn, const uint8_t* name, size_t size) noexcept nogil
cdef bint may_replicate(Core* core, Conn* conn) noexcept nogil
