"""The TLS of one connection. See tls.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from kafkad._native.log.segments cimport LogFile
from kafkad._native.serving.connection cimport Core
from kafkad._native.serving.tls_sealing cimport Sealing

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len

cdef enum TlsState:
    TLS_SHAKING = 0
    TLS_OPEN = 1
    TLS_FAILED = 2                  # no more reads or writes

cdef struct Areas:                  # memory of a core for one call; nothing stays in it, but for the windows
    uint8_t* incoming
    uint8_t* outgoing
    uint8_t* plain
    uint32_t outgoing_end
    void* windows                   # Windows (log_windows.pyx)

cdef struct Tls:
    const int* fd                   # the owner's, which closes it
    Core* core
    int64_t* owed                   # the owner's counter for `kept` and `out`, or NULL
    bint client                     # this end opened the connection
    bint begun                      # client: its first message has been made
    void* deadline                  # of the handshake (tls_handshakes)
    Areas* areas
    void* ssl
    int state
    Sealing* sealing                # NULL: all records are OpenSSL's
    bint seals                      # `sealing` encrypts, instead of SSL_write
    bint update_due                 # a KeyUpdate must come before more data
    int discarded                   # records that OpenSSL encrypted, and that were not sealed yet
    bint spoke                      # the peer has sent something
    int distractions                # handshake messages of an open connection since a read that brought data
    const uint8_t* source           # ciphertext for OpenSSL to read
    size_t source_left
    uint8_t* kept                   # the rest of it, between calls
    uint32_t kept_start
    uint32_t kept_end
    uint8_t* out                    # ciphertext that the socket has not taken
    uint32_t out_start
    uint32_t out_end
    uint32_t out_capacity
    bint follows                    # more of the same answer follows: the last short segment may wait for it (MSG_MORE)
    int64_t counted                 # its share of the buffered bytes
    char reason[160]                # for TLS_FAILED

cdef class TlsContext:
    cdef void* context              # SSL_CTX
    cdef readonly bint is_client

# Return NULL if OpenSSL has no memory. A client accepts a certificate for `host` only, or for any host if it is NULL. It
# sends `name` to the server (SNI).
cdef Tls* tls_new(TlsContext context, Core* core, const int* fd, int64_t* owed) noexcept
cdef Tls* tls_client(TlsContext context, Core* core, const int* fd, const char* host, const char* name) noexcept
cdef void tls_free(Tls* tls) noexcept nogil
cdef void areas_free(void* areas) noexcept nogil

# Returns -1: failed, see `reason`; 0: needs more bytes (`more`: some may be available already); 1: open.
cdef int tls_shake(Tls* tls, bint* more) noexcept nogil
# Like readv. `more`: there may be more, in the socket or in this object.
cdef ssize_t tls_receive(Tls* tls, iovec* parts, int count, bint* more) noexcept nogil
# Like recv with MSG_PEEK, of one record at most.
cdef ssize_t tls_peek(Tls* tls, uint8_t* data, size_t size) noexcept nogil
# Like sendmsg. The returned number of bytes was taken; some may wait in this object (tls_waits).
cdef ssize_t tls_send(Tls* tls, iovec* parts, int count) noexcept nogil
# The same, and then `size` bytes of the file from `position`. 0: the file ends there. -1 and ENODATA: it was found too
# late that the file is shorter, and the connection can send no more.
cdef ssize_t tls_sendfile(
    Tls* tls, iovec* parts, int count, LogFile* file, int64_t position, size_t size) noexcept nogil
cdef bint tls_push(Tls* tls) noexcept nogil                             # False: the peer is gone
cdef bint tls_waits(Tls* tls) noexcept nogil                            # the socket has not taken everything
cdef void tls_goodbye(Tls* tls) noexcept nogil                          # sends close_notify, if the socket takes it
cdef object tls_certificate(Tls* tls)                                   # the client's certificate (DER), or None
