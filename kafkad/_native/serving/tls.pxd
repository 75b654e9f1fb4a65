"""The TLS of one connection. See tls.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from kafkad._native.serving.connection cimport Core

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len

cdef enum TlsState:
    TLS_SHAKING = 0
    TLS_OPEN = 1
    TLS_FAILED = 2                  # nothing is read or written any more

cdef enum:
    TLS_SHAKES_PER_ROUND = 8        # handshake steps with their signatures, per round: a bound on how long others wait

cdef struct Areas:                  # belongs to a core: memory for one call, nothing stays in it
    uint8_t* incoming
    uint8_t* outgoing
    uint8_t* plain
    uint32_t outgoing_end

cdef struct Tls:
    const int* fd                   # of its owner, who closes it
    Core* core
    int64_t* owed                   # of its owner, in which `kept` and `out` are counted; NULL
    bint client                     # this end opened the connection
    bint begun                      # of a client: its first message is made
    void* deadline                  # of the handshake: its module's
    Areas* areas
    void* ssl
    int state
    bint spoke                      # something came from the peer
    int distractions                # handshake messages of an open connection since a read that brought data
    const uint8_t* source           # ciphertext that OpenSSL has not taken
    size_t source_left
    uint8_t* kept                   # the same, between calls
    uint32_t kept_start
    uint32_t kept_end
    uint8_t* out                    # ciphertext that the socket has not taken
    uint32_t out_start
    uint32_t out_end
    uint32_t out_capacity
    int64_t counted                 # its memory, as counted in buffered bytes
    char reason[160]                # for TLS_FAILED

cdef class TlsContext:
    cdef void* context              # SSL_CTX
    cdef readonly bint is_client

# NULL: OpenSSL has no memory. A client takes the certificate only of `host`, or of anybody if that is NULL; `name` is told to
# the server (SNI).
cdef Tls* tls_new(TlsContext context, Core* core, const int* fd, int64_t* owed) noexcept
cdef Tls* tls_client(TlsContext context, Core* core, const int* fd, const char* host, const char* name) noexcept
cdef void tls_free(Tls* tls) noexcept nogil
cdef void areas_free(void* areas) noexcept nogil

# -1: failed, see `reason`; 0: more bytes must come, `more`: there may be some already; 1: open
cdef int tls_shake(Tls* tls, bint* more) noexcept nogil
# Like readv. `more`: there may be more, in the socket or here.
cdef ssize_t tls_receive(Tls* tls, iovec* parts, int count, bint* more) noexcept nogil
# Like recv with MSG_PEEK, of one record at most.
cdef ssize_t tls_peek(Tls* tls, uint8_t* data, size_t size) noexcept nogil
# Like sendmsg and sendfile. The returned bytes were taken, and may wait here: tls_waits.
cdef ssize_t tls_send(Tls* tls, iovec* parts, int count) noexcept nogil
cdef ssize_t tls_sendfile(Tls* tls, int file, int64_t* position, size_t size) noexcept nogil
cdef bint tls_push(Tls* tls) noexcept nogil                             # False: the peer is gone
cdef bint tls_waits(Tls* tls) noexcept nogil                            # the socket has not taken everything
cdef void tls_goodbye(Tls* tls) noexcept nogil                          # sends close_notify, if the socket takes it
cdef object tls_certificate(Tls* tls)                                   # the client's, DER; or None
