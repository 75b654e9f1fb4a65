"""The state of a Produce: its request, the outcome of each partition, and how it waits.

A request that is answered at once is in the arrays of `Producing`. A request that waits for other workers, for threads
or for its next turn is copied to a HeldProduce. A request that waits only for high watermarks is a WaitingProduce."""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkad._native.serving.connection cimport Charge, Conn, Core, Slot, Timer
from kafkad._native.log.partition_appends cimport AppendInfo
from kafkad._native.serving.leader_hints cimport Hints
from kafkad._native.serving.partition_table cimport Entry, PartitionTable, Watch
from kafkad._native.serving.unpacking cimport Unpacker
from kafkad._native.wire.message_set cimport WholeSets

cdef enum:
    OUTCOME_TO_COME = 1 << 20       # instead of an error code: not known yet
    OUTCOME_TO_ASK = 1 << 21        # the transaction coordinator must be asked first (produce_gate)
    OUTCOME_AGAIN = 1 << 22         # append it again, with `info.guard`
    MESSAGE_SIZE_MAX = 2000         # of an error message in an answer

cdef struct Part:                   # one partition of a request
    int32_t index
    int32_t size                    # of the records; -1: null
    uint8_t* records

cdef struct TopicParts:             # one topic of a request: `count` parts from number `first` on
    const uint8_t* name             # or its id
    int32_t name_size               # -1: `name` is an id of 16 bytes
    uint32_t first
    uint32_t count

cdef struct Outcome:                # of the append to one partition
    int code
    bint waits                      # for its acks: until `info.end_offset` is durable here, or committed
    int32_t term                    # of the leader that appended it: Row.led_since
    Entry* entry
    char* text                      # owns `info.message`, or NULL
    uint32_t* bad                   # the refused records (batch.bad_records), or NULL
    int16_t guard_owner             # the worker that gave `info.guard`; -1: this one
    uint8_t guard_life              # and which life of that worker
    AppendInfo info

cdef struct Request:
    int16_t version
    int16_t acks
    int64_t deadline_ms             # monotonic
    uint32_t topic_count
    uint32_t part_count
    bint admin                      # Kafka's own client, which may write to internal topics
    int admission                   # its relation to transactions (guards.Admission)
    const uint8_t* transactional_id
    int32_t transactional_size      # -1: none
    int refusal                     # error code for each existing partition, or 0
    int refused_whole               # error code for all partitions, existing or not, or 0
    const char* refused_message     # or NULL
    TopicParts* topics
    Part* parts
    Outcome* outcomes               # one per part
    uint32_t next_topic             # where to continue: topic, partition in it, number of that part
    uint32_t next_part
    uint32_t next_number
    Charge charge                   # against its client's quota

cdef struct Wait:                   # one partition in which `end_offset` is not reached yet
    Watch watch                     # must be the first field
    WaitingProduce* produce
    int64_t end_offset
    int32_t term                    # a leader of another term may have other records at these offsets
    bint committed                  # by HW (acks=all), otherwise by the durable offset (acks=1)
    uint32_t code_at                # position of its error code in the answer

cdef struct WaitingProduce:
    Timer timer                     # first
    Slot* slot
    uint32_t waits_left
    uint32_t wait_count
    Hints* hints                    # of errors that name the leader, or NULL
    Wait waits[1]

cdef struct HeldProduce:            # a request that waits for other workers, for decompression, or for its next turn
    Timer timer                     # must be the first field
    PyObject* producing
    Slot* slot                      # NULL: answered, or its connection is closed
    uint8_t* frame                  # the buffer of the request, retained: owners append from it, and it has the topic names
    int64_t size                    # of itself and of the messages about it; counts as buffered
    uint64_t conn_id
    uint8_t* topic_ids              # of its topics, 16 bytes each: a name may be another topic's when it is answered
    uint32_t outcomes_left          # plus one while it is sliced
    bint slicing                    # its connection's next turn continues it
    uint32_t unpacking              # of these, local partitions with batches in decompression
    uint32_t to_ask                 # of these, those that are TO_ASK or AGAIN
    bint queued                     # in its connection's `asking`: the coordinator must be asked, or was
    bint waited                     # for an earlier one there
    bint resumes                    # its AGAIN parts wait for a turn of the connection
    bint again                      # the current round appends only these
    bint admitted                   # the coordinator has answered
    HeldProduce* next_asking
    PyObject* asked                 # the Asked that waits for the coordinator, or NULL
    Request request                 # its arrays follow this struct

# Sends one partition's records to their owner. 0: `produce_outcome` is called for it later; otherwise an error code.
ctypedef int (*ForwardFunction)(void* context, HeldProduce* held, uint32_t number, Entry* entry, const Part* part,
                                const Request* request, const Outcome* outcome) noexcept nogil

# A transaction coordinator has answered.
ctypedef void (*AnsweredFunction)(HeldProduce* held) noexcept nogil

cdef class Producing:
    cdef Core* core
    cdef ForwardFunction forward    # set with several workers
    cdef void* forward_context
    cdef PartitionTable table
    cdef object gate                # asks transaction coordinators (reactor.pyi); None: transactions are refused
    cdef bint serves_transactions
    cdef bint verifies              # transaction.partition.verification.enable
    cdef object hand_over           # takes Produces while leaders move to other brokers (reactor.pyi), or None
    cdef bint hands_over            # whether there is one
    cdef bint hands_over_all        # it takes those for entries that are not `moving`, too
    cdef list moving                # (topic, index) of the entries that are
    cdef Part* parts                # parts of the current request
    cdef Outcome* outcomes          # as many as parts
    cdef uint32_t part_capacity
    cdef TopicParts* topics
    cdef uint32_t topic_capacity
    cdef Unpacker unpacker
    cdef dict unpacking             # address of a HeldProduce: its jobs
    cdef int64_t unpack_ns          # how long this round may go on with decompression
    cdef object pending             # the append that the last call left to a thread
    cdef bint from_peer             # the current append has another worker's records
    cdef WholeSets sets             # converts messages of magic 0 and 1
    cdef Wait* waits                # the waits of the current request
    cdef uint32_t wait_capacity
    cdef uint64_t number            # of the last request that named several partitions
