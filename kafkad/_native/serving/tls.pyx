"""TLS of one connection, in place of `readv`, `sendmsg` and `sendfile` of a plaintext connection.

OpenSSL computes; the event loop does the input and output. A read takes as many bytes as there is room for plaintext
into an area of the core, and OpenSSL decrypts from there to where the reactor wants it. Answers are encrypted into
another area, up to TURN bytes of plaintext, and sent with one `send`. Long regions of log files are read from windows
(log_windows.pyx). With TLS 1.3 and AES-GCM, tls_sealing.pyx makes the records from the first long region on.

**No bytes are forgotten.** Epoll reports bytes once. So a call that leaves something behind, in the socket, in OpenSSL,
or in `kept`, sets `more`, and the connection stays readable. What the socket did not take is in `out`; the connection
writes nothing more until it has been sent (`tls_waits`).

**Memory.** `kept` is bounded by a record, `out` by a turn. OpenSSL holds an incomplete record, and frees its buffers
between records.

**Floods.** A TLS 1.3 client may change its keys (KeyUpdate), and a TLS 1.2 client may ask for another handshake, which
is refused. Both cost much more to handle than to send, and one read may bring 10,000. So a connection is closed after
DISTRACTIONS_MAX of them without a read that brought data, and one read takes no more of them either. A normal client
changes its keys once in gigabytes.

Sessions are not resumed: no tickets, no cache. So a certificate is verified for each connection, against the current
stores."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EAGAIN, EINTR, ENODATA, EPROTO, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, strncpy

from kafkad._native.log.segments cimport LogFile
from kafkad._native.serving.connection cimport Core
from kafkad._native.serving.log_windows cimport (
    WINDOW, Window, Windows, window_at, window_enter, window_leave, windows_free, windows_new)
from kafkad._native.serving.tls_keys cimport der_of, keys_load, trouble
from kafkad._native.serving.tls_keys import TlsError
from kafkad._native.serving.tls_sealing cimport (
    SEAL_OVERHEAD, seal, sealing_count, sealing_free, sealing_is_worn, sealing_load, sealing_of, sealing_open,
    sealing_update)
from kafkad._native.wire.primitives cimport KAFKAD_CHECK

cdef extern from "openssl.h" nogil:
    ctypedef struct Openssl:
        void* (*TLS_server_method)() noexcept nogil
        void* (*TLS_client_method)() noexcept nogil
        void* (*SSL_CTX_new)(const void*) noexcept nogil
        void (*SSL_CTX_free)(void*) noexcept nogil
        long (*SSL_CTX_ctrl)(void*, int, long, void*) noexcept nogil
        uint64_t (*SSL_CTX_set_options)(void*, uint64_t) noexcept nogil
        int (*SSL_CTX_set_num_tickets)(void*, size_t) noexcept nogil
        int (*SSL_CTX_set_cipher_list)(void*, const char*) noexcept nogil
        int (*SSL_CTX_set_ciphersuites)(void*, const char*) noexcept nogil
        int (*SSL_CTX_use_certificate)(void*, void*) noexcept nogil
        int (*SSL_CTX_use_PrivateKey)(void*, void*) noexcept nogil
        int (*SSL_CTX_check_private_key)(void*) noexcept nogil
        void (*SSL_CTX_set_verify)(void*, int, void*) noexcept nogil
        void* (*SSL_CTX_get_cert_store)(void*) noexcept nogil
        int (*SSL_CTX_add_client_CA)(void*, void*) noexcept nogil
        void (*SSL_CTX_set_msg_callback)(void*, void (*)(int, int, int, const void*, size_t, void*, void*) noexcept nogil) noexcept nogil
        void (*SSL_CTX_set_keylog_callback)(void*, void (*)(const void*, const char*) noexcept nogil) noexcept nogil
        int (*SSL_CTX_set_session_id_context)(void*, const unsigned char*, unsigned int) noexcept nogil
        void* (*SSL_CTX_get_ciphers)(void*) noexcept nogil
        const char* (*SSL_CIPHER_standard_name)(const void*) noexcept nogil
        const char* (*SSL_CIPHER_get_name)(const void*) noexcept nogil
        void* (*SSL_new)(void*) noexcept nogil
        void (*SSL_free)(void*) noexcept nogil
        void (*SSL_set_accept_state)(void*) noexcept nogil
        void (*SSL_set_connect_state)(void*) noexcept nogil
        long (*SSL_ctrl)(void*, int, long, void*) noexcept nogil
        void* (*SSL_get0_param)(void*) noexcept nogil
        int (*X509_VERIFY_PARAM_set_flags)(void*, unsigned long) noexcept nogil
        int (*X509_VERIFY_PARAM_set1_host)(void*, const char*, size_t) noexcept nogil
        int (*X509_VERIFY_PARAM_set1_ip_asc)(void*, const char*) noexcept nogil
        long (*SSL_get_verify_result)(const void*) noexcept nogil
        const char* (*X509_verify_cert_error_string)(long) noexcept nogil
        void (*SSL_set_bio)(void*, void*, void*) noexcept nogil
        void* (*SSL_get_rbio)(const void*) noexcept nogil
        int (*SSL_do_handshake)(void*) noexcept nogil
        int (*SSL_read_ex)(void*, void*, size_t, size_t*) noexcept nogil
        int (*SSL_peek_ex)(void*, void*, size_t, size_t*) noexcept nogil
        int (*SSL_write_ex)(void*, const void*, size_t, size_t*) noexcept nogil
        int (*SSL_get_error)(void*, int) noexcept nogil
        int (*SSL_shutdown)(void*) noexcept nogil
        void* (*SSL_get1_peer_certificate)(void*) noexcept nogil
        void* (*BIO_meth_new)(int, const char*) noexcept nogil
        int (*BIO_meth_set_write)(void*, int (*)(void*, const char*, int) noexcept nogil) noexcept nogil
        int (*BIO_meth_set_read)(void*, int (*)(void*, char*, int) noexcept nogil) noexcept nogil
        int (*BIO_meth_set_ctrl)(void*, long (*)(void*, int, long, void*) noexcept nogil) noexcept nogil
        void* (*BIO_new)(const void*) noexcept nogil
        int (*BIO_free)(void*) noexcept nogil
        void (*BIO_set_data)(void*, void*) noexcept nogil
        void* (*BIO_get_data)(void*) noexcept nogil
        void (*BIO_set_init)(void*, int) noexcept nogil
        void (*BIO_set_flags)(void*, int) noexcept nogil
        void (*BIO_clear_flags)(void*, int) noexcept nogil
        void* (*d2i_AutoPrivateKey)(void**, const unsigned char**, long) noexcept nogil
        void (*EVP_PKEY_free)(void*) noexcept nogil
        void* (*d2i_X509)(void**, const unsigned char**, long) noexcept nogil
        void (*X509_free)(void*) noexcept nogil
        int (*X509_STORE_add_cert)(void*, void*) noexcept nogil
        int (*OPENSSL_sk_num)(const void*) noexcept nogil
        void* (*OPENSSL_sk_value)(const void*, int) noexcept nogil
        unsigned long (*ERR_get_error)() noexcept nogil
        void (*ERR_clear_error)() noexcept nogil
        const char* (*ERR_reason_error_string)(unsigned long) noexcept nogil
    Openssl openssl
    const char* kafkad_load_openssl()
    int MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL
    void set_errno "kafkad_set_errno"(int number)
    ssize_t recv(int fd, void* data, size_t size, int flags)
    ssize_t send(int fd, const void* data, size_t size, int flags)
    ssize_t pread(int fd, void* data, size_t size, int64_t position)

cdef enum:
    TURN = (256 + 16) * 1024            # plaintext of one call: a connection's turn, and the small rest (sending.pyx)
    RECORD = 16 * 1024                  # plaintext of one record
    RECORD_MAX = RECORD + 512           # with the overhead of TLS
    INCOMING = 256 * 1024
    OUTGOING = TURN + 52 * 1024         # in the shortest records that a client can ask for: 512 bytes
    DISTRACTIONS_MAX = 32
    # constants of OpenSSL
    SSL_ERROR_SSL = 1
    SSL_ERROR_WANT_READ = 2
    SSL_ERROR_ZERO_RETURN = 6
    SSL_CTRL_MODE = 33
    SSL_CTRL_SET_TLSEXT_HOSTNAME = 55
    SSL_CTRL_SET_SESS_CACHE_MODE = 44
    SSL_CTRL_CHAIN_CERT = 89
    SSL_CTRL_SET_MIN_PROTO_VERSION = 123
    SSL_CTRL_SET_MAX_PROTO_VERSION = 124
    SSL_MODE_AUTO_RETRY = 4
    SSL_MODE_RELEASE_BUFFERS = 16
    SSL_VERIFY_PEER = 1
    SSL_VERIFY_FAIL_IF_NO_PEER_CERT = 2
    BIO_TYPE_SOURCE_SINK = 0x0400
    BIO_CTRL_FLUSH = 11
    BIO_READ_AGAIN = 1 | 8              # BIO_FLAGS_READ, BIO_FLAGS_SHOULD_RETRY
    BIO_FLAGS_RWS_AGAIN = 15
    X509_V_FLAG_PARTIAL_CHAIN = 0x80000
    ALERT = 21                          # kinds of messages
    HANDSHAKE = 22
    # ours
    ALERT_RECORD = 0x15
    HANDSHAKE_RECORD = 0x16
    DATA_RECORD = 0x17
    KEY_UPDATE = 24                     # a message's first byte
    KEY_UPDATE_ASKS = 4                 # the place of its last byte: 1 if it asks for an answer

SSL_OP_IGNORE_UNEXPECTED_EOF = 1 << 7
SSL_OP_NO_TICKET = 1 << 14
SSL_OP_NO_COMPRESSION = 1 << 17
SSL_OP_CIPHER_SERVER_PREFERENCE = 1 << 22
SSL_OP_NO_RENEGOTIATION = 1 << 30
VERSIONS = {"TLSv1.2": 0x0303, "TLSv1.3": 0x0304}

cdef void* bio_method = NULL


# -- the BIO: OpenSSL's input and output ---------------------------------------------------------------------

cdef int bio_read(void* bio, char* data, int size) noexcept nogil:
    cdef Tls* tls = <Tls*>openssl.BIO_get_data(bio)
    cdef size_t step = min(<size_t>max(size, 0), tls.source_left)
    openssl.BIO_clear_flags(bio, BIO_FLAGS_RWS_AGAIN)
    if step == 0 or tls.distractions > DISTRACTIONS_MAX:
        openssl.BIO_set_flags(bio, BIO_READ_AGAIN)
        return -1
    memcpy(data, tls.source, step)
    tls.source += step
    tls.source_left -= step
    return <int>step


cdef int bio_write(void* bio, const char* data, int size) noexcept nogil:
    cdef Tls* tls = <Tls*>openssl.BIO_get_data(bio)
    cdef Areas* areas = tls.areas
    if size <= 0:
        return -1
    if tls.seals:                                       # the message comes to on_message
        tls.discarded += 1
        return size
    if <uint32_t>size > OUTGOING - areas.outgoing_end:
        return -1
    if tls.sealing is not NULL and (
            tls.state != TLS_OPEN or not sealing_count(tls.sealing, <const uint8_t*>data, <size_t>size)):
        sealing_free(&tls.sealing)                      # the number of records under its key is not known
    memcpy(areas.outgoing + areas.outgoing_end, data, <size_t>size)
    areas.outgoing_end += <uint32_t>size
    return size


cdef long bio_control(void* bio, int command, long number, void* pointer) noexcept nogil:
    return command == BIO_CTRL_FLUSH


cdef void on_message(
        int written, int version, int kind, const void* data, size_t size, void* ssl, void* unused) noexcept nogil:
    """Called for each message: counts those that an open connection does not need. A refused TLS 1.2 handshake is
    recognised by the alert that answers it. Seals those that OpenSSL has written, and bio_write has discarded. OpenSSL
    answers a KeyUpdate with SSL_write, or with the next KeyUpdate that it reads: often after `encrypt` has done so."""
    cdef Tls* tls
    cdef bint update = kind == HANDSHAKE and size > KEY_UPDATE_ASKS and (<const uint8_t*>data)[0] == KEY_UPDATE
    if kind != ALERT and kind != HANDSHAKE:
        return
    tls = <Tls*>openssl.BIO_get_data(openssl.SSL_get_rbio(ssl))
    if tls.state != TLS_OPEN:
        return
    if kind == (ALERT if written else HANDSHAKE):
        tls.distractions += 1
    if tls.sealing is NULL:
        return
    if not written:
        if update and (<const uint8_t*>data)[KEY_UPDATE_ASKS] == 1:
            tls.update_due = True
    elif not tls.seals:                                 # the next records may have another key
        sealing_free(&tls.sealing)
    else:
        tls.discarded -= 1
        if not (answer_update(tls) if update else put_sealed(
                tls, <uint8_t>kind, <const uint8_t*>data, size, False)):
            fail(tls, "TLS: a message cannot be encrypted")


cdef void on_secret(const void* ssl, const char* line) noexcept nogil:
    """Called for each secret of a handshake."""
    cdef Tls* tls = <Tls*>openssl.BIO_get_data(openssl.SSL_get_rbio(ssl))
    if tls.state == TLS_SHAKING and tls.sealing is NULL and not tls.client:
        tls.sealing = sealing_of(line, ssl)


cdef bint put_sealed(Tls* tls, uint8_t kind, const uint8_t* data, size_t size, bint far) noexcept nogil:
    cdef Areas* areas = tls.areas
    if size + SEAL_OVERHEAD > OUTGOING - areas.outgoing_end or not seal(
            tls.sealing, kind, data, size, areas.outgoing + areas.outgoing_end, far):
        return False
    areas.outgoing_end += <uint32_t>(size + SEAL_OVERHEAD)
    return True


cdef bint answer_update(Tls* tls) noexcept nogil:
    """Change the key, if the peer has asked for that or the key is worn. It must come before more data."""
    cdef uint8_t[5] message = [KEY_UPDATE, 0, 0, 1, 0]
    if not tls.update_due:
        return True
    tls.update_due = False
    return put_sealed(tls, HANDSHAKE, message, sizeof(message), False) and sealing_update(tls.sealing)


# -- one connection ----------------------------------------------------------------------------------------

cdef Tls* tls_new(TlsContext context, Core* core, const int* fd, int64_t* owed) noexcept:
    cdef Areas* areas = <Areas*>core.tls_areas
    cdef Tls* tls
    cdef void* bio
    if areas is NULL:
        areas = <Areas*>calloc(1, sizeof(Areas))
        KAFKAD_CHECK(areas is not NULL)
        core.tls_areas = areas
        areas.incoming = <uint8_t*>malloc(INCOMING)
        areas.outgoing = <uint8_t*>malloc(OUTGOING)
        areas.plain = <uint8_t*>malloc(RECORD)
        areas.windows = windows_new(core)
        KAFKAD_CHECK(areas.incoming is not NULL and areas.outgoing is not NULL and areas.plain is not NULL)
    tls = <Tls*>calloc(1, sizeof(Tls))
    KAFKAD_CHECK(tls is not NULL)
    tls.fd = fd
    tls.core = core
    tls.owed = owed
    tls.areas = areas
    tls.ssl = openssl.SSL_new(context.context)
    bio = openssl.BIO_new(bio_method)
    if tls.ssl is NULL or bio is NULL:
        if tls.ssl is not NULL:
            openssl.SSL_free(tls.ssl)
        if bio is not NULL:
            openssl.BIO_free(bio)
        free(tls)
        return NULL
    openssl.BIO_set_data(bio, tls)
    openssl.BIO_set_init(bio, 1)
    openssl.SSL_set_bio(tls.ssl, bio, bio)
    openssl.SSL_set_accept_state(tls.ssl)
    return tls


cdef Tls* tls_client(TlsContext context, Core* core, const int* fd, const char* host, const char* name) noexcept:
    cdef Tls* tls = tls_new(context, core, fd, NULL)
    cdef void* rules
    if tls is NULL:
        return NULL
    tls.client = True
    openssl.SSL_set_connect_state(tls.ssl)
    rules = openssl.SSL_get0_param(tls.ssl)
    # As in Java, each certificate of the truststore is trusted, also one that another authority has signed.
    openssl.X509_VERIFY_PARAM_set_flags(rules, X509_V_FLAG_PARTIAL_CHAIN)
    if host is not NULL and openssl.X509_VERIFY_PARAM_set1_ip_asc(rules, host) != 1:
        KAFKAD_CHECK(openssl.X509_VERIFY_PARAM_set1_host(rules, host, 0) == 1)
    if name is not NULL:
        openssl.SSL_ctrl(tls.ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, 0, <void*>name)
    openssl.ERR_clear_error()
    return tls


cdef void tls_free(Tls* tls) noexcept nogil:
    openssl.SSL_free(tls.ssl)
    free(tls.kept)
    free(tls.out)
    free(tls.deadline)
    sealing_free(&tls.sealing)
    tls.kept = NULL
    tls.out_capacity = 0
    count(tls)
    free(tls)


cdef void areas_free(void* areas) noexcept nogil:
    if areas is not NULL:
        free((<Areas*>areas).incoming)
        free((<Areas*>areas).outgoing)
        free((<Areas*>areas).plain)
        windows_free(<Windows*>(<Areas*>areas).windows)
        free(areas)


cdef inline void count(Tls* tls) noexcept nogil:
    """Count `kept` and `out` as memory of the connection, as its answers are."""
    cdef int64_t now = <int64_t>tls.out_capacity + (<int64_t>tls.kept_end if tls.kept is not NULL else 0)
    if now != tls.counted:
        if tls.owed is not NULL:
            tls.owed[0] += now - tls.counted
        tls.core.stats.buffered_bytes += now - tls.counted
        tls.counted = now


cdef void fail(Tls* tls, const char* reason) noexcept nogil:
    tls.state = TLS_FAILED
    strncpy(tls.reason, reason, sizeof(tls.reason) - 1)


cdef void fail_by_openssl(Tls* tls) noexcept nogil:
    cdef unsigned long number = openssl.ERR_get_error()
    cdef const char* reason = NULL
    if number:
        reason = openssl.ERR_reason_error_string(number)
    if reason is NULL:
        reason = "the peer broke the protocol" if tls.client else "the client broke the protocol"
    openssl.ERR_clear_error()
    tls.state = TLS_FAILED
    if tls.client and openssl.SSL_get_verify_result(tls.ssl) != 0:
        snprintf(tls.reason, sizeof(tls.reason), "TLS: %s: %s", reason,
                 openssl.X509_verify_cert_error_string(openssl.SSL_get_verify_result(tls.ssl)))
        return
    snprintf(tls.reason, sizeof(tls.reason), "TLS: %s", reason)


cdef inline void source_open(Tls* tls) noexcept nogil:
    tls.source = tls.kept + tls.kept_start if tls.kept is not NULL else NULL
    tls.source_left = tls.kept_end - tls.kept_start


cdef void source_close(Tls* tls) noexcept nogil:
    """Keep what OpenSSL has not taken: at most what one read brought beyond the available room."""
    cdef uint8_t* kept = NULL
    if tls.source_left:
        if tls.kept is not NULL and tls.source + tls.source_left == tls.kept + tls.kept_end:
            tls.kept_start = tls.kept_end - <uint32_t>tls.source_left
            tls.source_left = 0
            return
        kept = <uint8_t*>malloc(tls.source_left)
        KAFKAD_CHECK(kept is not NULL)
        memcpy(kept, tls.source, tls.source_left)
    free(tls.kept)
    tls.kept = kept
    tls.kept_start = 0
    tls.kept_end = <uint32_t>tls.source_left
    tls.source_left = 0
    count(tls)


cdef ssize_t take(Tls* tls, size_t size) noexcept nogil:
    """From the socket, once the source is empty. As recv."""
    cdef ssize_t n = recv(tls.fd[0], tls.areas.incoming, size, MSG_DONTWAIT)
    if n > 0:
        tls.source = tls.areas.incoming
        tls.source_left = <size_t>n
    return n


cdef int tls_shake(Tls* tls, bint* more) noexcept nogil:
    cdef ssize_t n
    cdef int result, error
    cdef bint taken = False
    more[0] = False
    source_open(tls)
    while True:
        if tls.source_left == 0 and (tls.begun or not tls.client):
            if taken:
                more[0] = True
                break
            n = take(tls, RECORD_MAX)
            if n <= 0:
                if n == 0:
                    fail(tls, "")
                elif errno == EINTR:
                    more[0] = True
                elif errno != EAGAIN:
                    fail(tls, "")
                break
            taken = True
            if not tls.spoke:
                tls.spoke = True
                if tls.client:
                    if tls.source[0] != HANDSHAKE_RECORD and tls.source[0] != ALERT_RECORD:
                        fail(tls, "the other node does not speak TLS there")
                        break
                elif tls.source[0] != HANDSHAKE_RECORD:
                    fail(tls, "plaintext came to a TLS listener; does the client use this listener's security.protocol?")
                    break
        tls.begun = True
        openssl.ERR_clear_error()
        result = openssl.SSL_do_handshake(tls.ssl)
        if result == 1:
            tls.state = TLS_OPEN
            break
        error = openssl.SSL_get_error(tls.ssl, result)
        if error != SSL_ERROR_WANT_READ:
            fail_by_openssl(tls)
            break
    source_close(tls)
    if not tls_push(tls) and tls.state != TLS_FAILED:
        fail(tls, "")
    return 1 if tls.state == TLS_OPEN else -1 if tls.state == TLS_FAILED else 0


cdef ssize_t receive(Tls* tls, iovec* parts, int count, bint peeks, bint* more) noexcept nogil:
    cdef size_t room = 0, filled = 0, n = 0
    cdef ssize_t total = 0, got
    cdef size_t asked
    cdef int index = 0, result, error
    cdef bint taken = False
    cdef bint drained = False
    cdef bint ended = False
    more[0] = True
    if tls.state != TLS_OPEN:
        set_errno(EPROTO)
        return -1
    for i in range(count):
        room += parts[i].iov_len
    source_open(tls)
    while index < count:
        if filled == parts[index].iov_len:
            filled = 0
            index += 1
            continue
        openssl.ERR_clear_error()
        if peeks:
            result = openssl.SSL_peek_ex(tls.ssl, parts[index].iov_base, parts[index].iov_len, &n)
        else:
            result = openssl.SSL_read_ex(
                tls.ssl, <uint8_t*>parts[index].iov_base + filled, parts[index].iov_len - filled, &n)
        if result == 1:
            filled += n
            total += <ssize_t>n
            if peeks:
                break
            continue
        error = openssl.SSL_get_error(tls.ssl, result)
        if error == SSL_ERROR_ZERO_RETURN:
            ended = True
            break
        if error != SSL_ERROR_WANT_READ:
            fail_by_openssl(tls)
            break
        if tls.distractions > DISTRACTIONS_MAX:
            fail(tls, "TLS: the peer changes keys or asks for handshakes again and again" if tls.client else
                 "TLS: the client changes keys or asks for handshakes again and again")
            break
        if taken:
            more[0] = not drained
            break
        asked = min(<size_t>INCOMING, max(room - <size_t>total, <size_t>RECORD_MAX))
        got = take(tls, asked)
        if got <= 0:
            if got == 0:
                ended = True
            elif errno == EAGAIN:
                more[0] = False
            elif errno != EINTR:
                fail(tls, "")
            break
        taken = True
        drained = <size_t>got < asked                   # after a short read the socket is empty
    source_close(tls)
    if tls.discarded:
        fail(tls, "TLS: OpenSSL wrote something unknown")
    if not tls_push(tls):
        fail(tls, "")
    if total:
        if tls.state == TLS_OPEN:
            tls.distractions = 0
        more[0] = more[0] or ended or tls.state == TLS_FAILED
        return total
    if tls.state == TLS_FAILED:
        set_errno(EPROTO)
        return -1
    if ended:
        return 0
    set_errno(EAGAIN)
    return -1


cdef ssize_t tls_receive(Tls* tls, iovec* parts, int count, bint* more) noexcept nogil:
    return receive(tls, parts, count, False, more)


cdef ssize_t tls_peek(Tls* tls, uint8_t* data, size_t size) noexcept nogil:
    cdef iovec part
    cdef bint more
    part.iov_base = data
    part.iov_len = size
    return receive(tls, &part, 1, True, &more)


cdef bint tls_waits(Tls* tls) noexcept nogil:
    return tls.out_end > tls.out_start


cdef bint push_from(Tls* tls, const uint8_t* data, uint32_t size, uint32_t* sent) noexcept nogil:
    """Send until the socket returns EAGAIN: only then does epoll report room."""
    cdef int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (MSG_MORE if tls.follows else 0)
    cdef ssize_t n
    while sent[0] < size:
        n = send(tls.fd[0], data + sent[0], size - sent[0], flags)
        if n >= 0:
            sent[0] += <uint32_t>n
        elif errno == EAGAIN:
            return True
        elif errno != EINTR:
            return False
    return True


cdef bint tls_push(Tls* tls) noexcept nogil:
    cdef Areas* areas = tls.areas
    cdef uint32_t size = areas.outgoing_end
    cdef uint32_t sent = 0
    cdef uint32_t wanted
    cdef uint8_t* grown
    areas.outgoing_end = 0
    if tls_waits(tls):
        if not push_from(tls, tls.out, tls.out_end, &tls.out_start):
            return False
    if not tls_waits(tls):
        if tls.out is not NULL:
            free(tls.out)
            tls.out = NULL
            tls.out_start = tls.out_end = tls.out_capacity = 0
        if size and not push_from(tls, areas.outgoing, size, &sent):
            return False
    if sent < size:
        wanted = tls.out_end + size - sent
        if wanted > tls.out_capacity:
            grown = <uint8_t*>realloc(tls.out, wanted)
            KAFKAD_CHECK(grown is not NULL)
            tls.out = grown
            tls.out_capacity = wanted
        memcpy(tls.out + tls.out_end, areas.outgoing + sent, size - sent)
        tls.out_end = wanted
    count(tls)
    return True


cdef bint encrypt(Tls* tls, const uint8_t* data, size_t size, bint far) noexcept nogil:
    """Make one record, of at most RECORD bytes."""
    cdef uint32_t start = tls.areas.outgoing_end
    cdef size_t n = 0
    if size == 0:
        return True
    if tls.seals:
        if sealing_is_worn(tls.sealing):
            tls.update_due = True
        if answer_update(tls) and put_sealed(tls, DATA_RECORD, data, size, far):
            return True
        fail(tls, "TLS: a record cannot be encrypted")
        return False
    openssl.ERR_clear_error()
    if openssl.SSL_write_ex(tls.ssl, data, size, &n) != 1:
        fail_by_openssl(tls)
        return False
    if tls.sealing is not NULL and tls.areas.outgoing_end - start != size + SEAL_OVERHEAD:
        sealing_free(&tls.sealing)                      # padding, or the peer wants short records (RFC 6066)
    return True


cdef bint encrypt_first(Tls* tls, const uint8_t* data) noexcept nogil:
    """Let OpenSSL encrypt a full record, and seal the following ones, if it was one record (see `encrypt`)."""
    if not encrypt(tls, data, RECORD, True):
        return False
    if tls.sealing is not NULL:
        tls.seals = sealing_open(tls.sealing)
        if not tls.seals:
            sealing_free(&tls.sealing)
    return True


cdef bint may_write(Tls* tls) noexcept nogil:
    if tls.state != TLS_OPEN or not tls_push(tls):
        set_errno(EPROTO)
        return False
    if tls_waits(tls):
        set_errno(EAGAIN)
        return False
    return True


cdef ssize_t tls_send(Tls* tls, iovec* parts, int count) noexcept nogil:
    return tls_sendfile(tls, parts, count, NULL, 0, 0)


cdef ssize_t tls_sendfile(
        Tls* tls, iovec* parts, int count, LogFile* file, int64_t position, size_t size) noexcept nogil:
    cdef size_t total
    cdef ssize_t n = 0
    if not may_write(tls):
        return -1
    total = encrypt_parts(tls, parts, count)
    if tls.state != TLS_OPEN:
        n = -1
    size = total + min(size, <size_t>TURN - total)
    while total < size and tls.state == TLS_OPEN:
        n = encrypt_file(tls, file, position, size - total)
        if n <= 0:
            break
        total += <size_t>n
        position += n
    if tls.state != TLS_OPEN:
        tls.areas.outgoing_end = 0                      # or the next connection would send it
        set_errno(EPROTO if n else ENODATA)
        return -1
    if not tls_push(tls):
        set_errno(EPROTO)
        return -1
    return <ssize_t>total if total else n


cdef size_t encrypt_parts(Tls* tls, iovec* parts, int count) noexcept nogil:
    """Encrypt up to TURN bytes; small parts share a record. Return their number."""
    cdef uint8_t* plain = tls.areas.plain
    cdef size_t held = 0, total = 0, at, step
    cdef bint good = True
    cdef int i
    for i in range(count):
        at = 0
        while good and at < parts[i].iov_len and total < TURN:
            step = min(parts[i].iov_len - at, min(<size_t>RECORD - held, <size_t>TURN - total))
            if held == 0 and step == RECORD:
                good = encrypt(tls, <uint8_t*>parts[i].iov_base + at, step, False)
            else:
                memcpy(plain + held, <uint8_t*>parts[i].iov_base + at, step)
                held += step
                if held == RECORD:
                    good = encrypt(tls, plain, held, False)
                    held = 0
            at += step
            total += step
    if good:
        encrypt(tls, plain, held, False)
    return total


cdef ssize_t encrypt_file(Tls* tls, LogFile* file, int64_t position, size_t size) noexcept nogil:
    """Encrypt up to `size` bytes. Return their number, 0 if the file ends before, or -1."""
    cdef uint8_t* plain = tls.areas.plain
    cdef Window* window = window_at(<Windows*>tls.areas.windows, file, position, size)
    cdef ssize_t n = -1
    if window is not NULL:
        return encrypt_window(tls, window, position, size)
    while n < 0:
        n = pread(file.fd, plain, min(size, <size_t>RECORD), position)
        if n < 0 and errno != EINTR:
            return -1
    return n if encrypt(tls, plain, <size_t>n, False) else -1


cdef ssize_t encrypt_window(Tls* tls, Window* window, int64_t position, size_t size) noexcept nogil:
    """As encrypt_file, up to the window's end. The records of bytes that are missing may not be sent. So the connection
    can send no more after that."""
    cdef const uint8_t* data = window.data + (position - window.position)
    cdef size_t at = 0, step
    cdef bint good = True
    size = min(size, <size_t>(window.position + WINDOW - position))
    window_enter(window)
    while good and at < size:
        step = min(size - at, <size_t>RECORD)
        if tls.sealing is not NULL and not tls.seals and step == RECORD:
            good = encrypt_first(tls, data + at)
        else:
            good = encrypt(tls, data + at, step, True)
        at += step
    if not window_leave(<Windows*>tls.areas.windows, window, position + <int64_t>size):
        tls.state = TLS_FAILED
        return 0
    return <ssize_t>size if good else -1


cdef void tls_goodbye(Tls* tls) noexcept nogil:
    if tls.state == TLS_OPEN and not tls_waits(tls):
        openssl.ERR_clear_error()
        openssl.SSL_shutdown(tls.ssl)
        tls_push(tls)
    tls.state = TLS_FAILED


cdef object tls_certificate(Tls* tls):
    cdef void* certificate = openssl.SSL_get1_peer_certificate(tls.ssl)
    if certificate is NULL:
        return None
    try:
        return der_of(certificate)
    finally:
        openssl.X509_free(certificate)


# -- contexts ------------------------------------------------------------------------------------------------

def load_openssl():
    """Load OpenSSL: once per process, before anything else here. Raises TlsError."""
    global bio_method
    if bio_method is not NULL:
        return
    keys_load()
    KAFKAD_CHECK(kafkad_load_openssl() is NULL and sealing_load() is NULL)
    bio_method = openssl.BIO_meth_new(BIO_TYPE_SOURCE_SINK | 101, "kafkad")
    KAFKAD_CHECK(bio_method is not NULL)
    openssl.BIO_meth_set_read(bio_method, bio_read)
    openssl.BIO_meth_set_write(bio_method, bio_write)
    openssl.BIO_meth_set_ctrl(bio_method, bio_control)


cdef class TlsContext:
    """What the connections of a listener share. See tls.pyi."""

    def __cinit__(self, *, bytes key not None, chain, authorities=(), str client_auth="none", versions=tuple(VERSIONS),
                  suites=(), bint client=False):
        cdef const unsigned char* at
        cdef void* parsed
        load_openssl()
        openssl.ERR_clear_error()
        self.is_client = client
        self.context = openssl.SSL_CTX_new(openssl.TLS_client_method() if client else openssl.TLS_server_method())
        if self.context is NULL:
            raise trouble("OpenSSL makes no context")
        openssl.SSL_CTX_set_options(
            self.context, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION
            | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_NO_RENEGOTIATION)
        openssl.SSL_CTX_set_num_tickets(self.context, 0)
        openssl.SSL_CTX_set_msg_callback(self.context, on_message)
        openssl.SSL_CTX_set_keylog_callback(self.context, on_secret)
        openssl.SSL_CTX_ctrl(self.context, SSL_CTRL_SET_SESS_CACHE_MODE, 0, NULL)
        openssl.SSL_CTX_ctrl(self.context, SSL_CTRL_MODE, SSL_MODE_AUTO_RETRY | SSL_MODE_RELEASE_BUFFERS, NULL)
        openssl.SSL_CTX_set_session_id_context(self.context, <const unsigned char*>"kafkad", 6)
        versions = self.take_suites(suites, versions)
        numbers = [VERSIONS[name] for name in versions]
        openssl.SSL_CTX_ctrl(self.context, SSL_CTRL_SET_MIN_PROTO_VERSION, <long>min(numbers), NULL)
        openssl.SSL_CTX_ctrl(self.context, SSL_CTRL_SET_MAX_PROTO_VERSION, <long>max(numbers), NULL)
        for place, der in enumerate(chain):
            parsed = parsed_certificate(der)
            if place == 0:
                good = openssl.SSL_CTX_use_certificate(self.context, parsed) == 1
            else:
                good = openssl.SSL_CTX_ctrl(self.context, SSL_CTRL_CHAIN_CERT, 1, parsed) == 1
            openssl.X509_free(parsed)
            if not good:
                raise trouble("a certificate of the chain is refused")
        if key or not client:
            at = <const unsigned char*>PyBytes_AS_STRING(key)
            parsed = openssl.d2i_AutoPrivateKey(NULL, &at, <long>len(key))
            if parsed is NULL:
                raise trouble("the private key cannot be read")
            good = openssl.SSL_CTX_use_PrivateKey(self.context, parsed) == 1
            openssl.EVP_PKEY_free(parsed)
            if not good or openssl.SSL_CTX_check_private_key(self.context) != 1:
                raise trouble("the private key does not fit the certificate")
        for der in authorities:
            parsed = parsed_certificate(der)
            good = openssl.X509_STORE_add_cert(openssl.SSL_CTX_get_cert_store(self.context), parsed) == 1
            good = good and (client or openssl.SSL_CTX_add_client_CA(self.context, parsed) == 1)
            openssl.X509_free(parsed)
            if not good:
                raise trouble("a certificate of the truststore is refused")
        if client:
            openssl.SSL_CTX_set_verify(self.context, SSL_VERIFY_PEER, NULL)
        elif client_auth != "none":
            openssl.SSL_CTX_set_verify(
                self.context, SSL_VERIFY_PEER | (SSL_VERIFY_FAIL_IF_NO_PEER_CERT if client_auth == "required" else 0), NULL)

    def take_suites(self, suites, versions):
        """Set the suites. Return the versions for which there is a suite."""
        cdef void* ciphers
        cdef void* cipher
        names = {}
        if not suites:
            return versions
        openssl.SSL_CTX_set_cipher_list(self.context, "ALL:!aNULL:!eNULL")
        ciphers = openssl.SSL_CTX_get_ciphers(self.context)
        for i in range(openssl.OPENSSL_sk_num(ciphers)):
            cipher = openssl.OPENSSL_sk_value(ciphers, i)
            if openssl.SSL_CIPHER_standard_name(cipher) is not NULL:
                names[openssl.SSL_CIPHER_standard_name(cipher).decode()] = openssl.SSL_CIPHER_get_name(cipher).decode()
        for name in suites:
            if name not in names:
                raise TlsError(f"the cipher suite {name} is not there; these are: {', '.join(names)}")
        newer = [name for name in suites if names[name] == name]
        older = [names[name] for name in suites if names[name] != name]
        kept = [version for version, found in (("TLSv1.2", older), ("TLSv1.3", newer)) if found and version in versions]
        if not kept:
            raise TlsError(f"none of the cipher suites is one of {', '.join(versions)}")
        if newer and openssl.SSL_CTX_set_ciphersuites(self.context, ":".join(newer).encode()) != 1:
            raise trouble("the cipher suites are refused")
        if older and openssl.SSL_CTX_set_cipher_list(self.context, ":".join(older).encode()) != 1:
            raise trouble("the cipher suites are refused")
        return kept

    def __dealloc__(self):
        if self.context is not NULL:
            openssl.SSL_CTX_free(self.context)


cdef void* parsed_certificate(bytes der) except NULL:
    cdef const unsigned char* at = <const unsigned char*>PyBytes_AS_STRING(der)
    cdef void* certificate = openssl.d2i_X509(NULL, &at, <long>len(der))
    if certificate is NULL:
        raise trouble("a certificate cannot be read")
    return certificate
