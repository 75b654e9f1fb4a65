"""ACL checks of Produce and Fetch: what each subject may do with each topic, remembered until the ACLs change.

    Core.rights ── TopicRights ── SubjectRights (principal, host) ── cell: a topic, READ and WRITE
                                        ▲
                                  Conn.rights, from the first request on

The authorizer (security/authorizer, in Python) is asked once per topic, subject and right. After that a request costs
one table lookup per topic. A Fetch session costs one comparison per partition, which remembers the stamp of the subject
it was decided for: another client that uses the session has another stamp.

Without an authorizer `Core.authorizing` is false, and nothing else here is used.

Rule: a request is checked against the ACLs at the time it arrives; one that waits is not checked again, as in Kafka.
Rule: allowed requests are not written to the audit log each time, as Kafka does at DEBUG, unless the log is at DEBUG:
then nothing is remembered."""

import logging

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free

from kafkad._native.serving.connection cimport Conn, Connection, Core, conn_handle, core_failed
from kafkad._native.serving.partition_table cimport PartitionTable, TopicKey, key_release, key_retain

cdef enum:
    CELLS_MAX = 65536               # of one subject; above this all of its cells are dropped
    SUBJECTS_MAX = 10000            # remembered besides those of current connections
    READ_KNOWN = 1
    READ_ALLOWED = 2
    WRITE_KNOWN = 4
    WRITE_ALLOWED = 8
    TOPIC = 2                       # ResourceType
    TRANSACTIONAL_ID = 5
    CLUSTER_ACTION = 9              # AclOperation

ANONYMOUS = "User:ANONYMOUS"
audit = logging.getLogger("kafka.authorizer.logger")


cdef class SubjectRights:
    def __dealloc__(self):
        self.forget()

    cdef void forget(self) noexcept nogil:
        cdef uint32_t i
        for i in range(self.capacity):
            if self.cells[i].key is not NULL:
                key_release(self.cells[i].key)
        free(self.cells)
        self.cells = NULL
        self.capacity = 0
        self.count = 0


cdef class TopicRights:
    def __cinit__(self, PartitionTable partitions not None, authorizer):
        self.table = &partitions.table
        self.authorizer = authorizer
        self.subjects = {}

    def subject_rights(self, str principal not None, str host not None):
        """Return the rights of this principal at this host."""
        cdef SubjectRights rights = self.subjects.get((principal, host))
        if rights is None:
            if len(self.subjects) >= SUBJECTS_MAX:
                self.subjects.clear()
            rights = SubjectRights.__new__(SubjectRights)
            rights.subject = self.authorizer.subject(principal, host)
            self.subjects[(principal, host)] = rights
        return rights


# -- of a connection ---------------------------------------------------------------------------------------

cdef uint64_t rights_of(Core* core, Conn* conn) noexcept nogil:
    if conn.rights is NULL:
        with gil:
            find_rights(core, conn)
        if conn.rights is NULL:
            return 0
    if (<SubjectRights>conn.rights).version != core.acl_version or (<SubjectRights>conn.rights).stamp == 0:
        (<SubjectRights>conn.rights).forget()
        (<SubjectRights>conn.rights).version = core.acl_version
        core.acl_stamps += 1
        (<SubjectRights>conn.rights).stamp = core.acl_stamps
    return (<SubjectRights>conn.rights).stamp


cdef void find_rights(Core* core, Conn* conn) noexcept:
    cdef Connection handle
    cdef object rights
    try:
        handle = conn_handle(conn)
        rights = (<TopicRights>core.rights).subject_rights(handle.principal or ANONYMOUS, handle.peer_host)
        Py_INCREF(rights)
        conn.rights = <PyObject*>rights
    except BaseException:
        core_failed(core, "checking the rights of a client")


# -- topics ------------------------------------------------------------------------------------------------

cdef bint may_topic(Core* core, Conn* conn, TopicKey* key, const char* name, size_t size, int right) noexcept nogil:
    cdef int known = READ_KNOWN if right == RIGHT_READ else WRITE_KNOWN
    cdef Cell* cell
    if rights_of(core, conn) == 0:
        return False
    if key is not NULL:
        cell = cell_of(<SubjectRights>conn.rights, key)
        if cell is not NULL and cell.known & known:
            return (cell.known & (known << 1)) != 0
    with gil:
        return ask_topic(core, conn, key, name, size, right)


cdef inline uint32_t place_of(const TopicKey* key, uint32_t capacity) noexcept nogil:
    return <uint32_t>((<uint64_t>key >> 4) * <uint64_t>0x9E3779B97F4A7C15 >> 32) & (capacity - 1)


cdef Cell* cell_of(SubjectRights rights, const TopicKey* key) noexcept nogil:
    """Return the cell of a topic, or NULL."""
    cdef uint32_t at
    if rights.capacity == 0:
        return NULL
    at = place_of(key, rights.capacity)
    while rights.cells[at].key is not NULL:
        if rights.cells[at].key is key:
            return &rights.cells[at]
        at = (at + 1) & (rights.capacity - 1)
    return NULL


cdef Cell* cell_new(SubjectRights rights, TopicKey* key) noexcept nogil:
    """Make a cell for a topic that has none. NULL: no memory."""
    cdef uint32_t at, i, capacity
    cdef Cell* cells
    if rights.count >= CELLS_MAX:
        rights.forget()
    if 4 * (rights.count + 1) > 3 * rights.capacity:
        capacity = max(2 * rights.capacity, <uint32_t>16)
        cells = <Cell*>calloc(capacity, sizeof(Cell))
        if cells is NULL:
            return NULL
        for i in range(rights.capacity):
            if rights.cells[i].key is not NULL:
                at = place_of(rights.cells[i].key, capacity)
                while cells[at].key is not NULL:
                    at = (at + 1) & (capacity - 1)
                cells[at] = rights.cells[i]
        free(rights.cells)
        rights.cells = cells
        rights.capacity = capacity
    at = place_of(key, rights.capacity)
    while rights.cells[at].key is not NULL:
        at = (at + 1) & (rights.capacity - 1)
    rights.cells[at].key = key_retain(key)
    rights.count += 1
    return &rights.cells[at]


cdef bint ask_topic(Core* core, Conn* conn, TopicKey* key, const char* name, size_t size, int right) noexcept:
    """Ask the authorizer, which writes the audit log. The answer is remembered for topics of the table."""
    cdef SubjectRights rights = <SubjectRights>conn.rights
    cdef Cell* cell
    cdef int known = READ_KNOWN if right == RIGHT_READ else WRITE_KNOWN
    cdef bint allowed = False
    core.acl_asks += 1
    try:
        text = (<const char*>key.name)[:key.name_size] if key is not NULL else name[:size]
        allowed = rights.subject.may(
            right, TOPIC, text.decode("utf-8", "replace"), "Fetch" if right == RIGHT_READ else "Produce")
        if key is not NULL and not audit.isEnabledFor(logging.DEBUG):
            cell = cell_of(rights, key)
            if cell is NULL:
                cell = cell_new(rights, key)
            if cell is not NULL:
                cell.known |= <uint8_t>(known | (known << 1 if allowed else 0))
    except BaseException:
        core_failed(core, "checking the rights of a client")
    return allowed


# -- other resources ---------------------------------------------------------------------------------------

cdef bint may_transact(Core* core, Conn* conn, const uint8_t* name, size_t size) noexcept nogil:
    """Check WRITE on a transactional id."""
    if rights_of(core, conn) == 0:
        return False
    with gil:
        return ask_transactional_id(core, conn, name, size)


cdef bint ask_transactional_id(Core* core, Conn* conn, const uint8_t* name, size_t size) noexcept:
    cdef bint allowed = False
    try:
        text = (<const char*>name)[:size].decode("utf-8", "replace")
        allowed = (<SubjectRights>conn.rights).subject.may(RIGHT_WRITE, TRANSACTIONAL_ID, text, "Produce")
    except BaseException:
        core_failed(core, "checking the rights of a client")
    return allowed


cdef bint may_replicate(Core* core, Conn* conn) noexcept nogil:
    """Check CLUSTER_ACTION: the right of a broker that fetches as a replica."""
    if rights_of(core, conn) == 0:
        return False
    with gil:
        return ask_cluster(core, conn)


cdef bint ask_cluster(Core* core, Conn* conn) noexcept:
    cdef bint allowed = False
    try:
        allowed = (<SubjectRights>conn.rights).subject.may_cluster(CLUSTER_ACTION, "Fetch")
    except BaseException:
        core_failed(core, "checking the rights of a client")
    return allowed
