"""Records of TLS 1.3 that this module encrypts. See tls_sealing.pyx."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    SEAL_OVERHEAD = 5 + 1 + 16      # of a record: its header, its type, its tag
    SECRET_MAX = 48

cdef struct Sealing:                # of one direction of a connection
    void* cipher                    # EVP_CIPHER_CTX with the key; NULL before sealing_open
    uint64_t number                 # of the next record under this key
    uint8_t iv[12]
    uint8_t secret[SECRET_MAX]      # of which key and IV are derived
    uint32_t secret_size

cdef const char* sealing_load() noexcept                    # NULL, or what is missing of OpenSSL
# From a line of OpenSSL's key log. NULL: it is another line, or another cipher than AES-GCM.
cdef Sealing* sealing_of(const char* line, const void* ssl) noexcept nogil
cdef void sealing_free(Sealing** place) noexcept nogil      # and sets the place to NULL
# Before sealing_open: counts the whole records that OpenSSL has written. False: these are others.
cdef bint sealing_count(Sealing* sealing, const uint8_t* data, size_t size) noexcept nogil
cdef bint sealing_open(Sealing* sealing) noexcept nogil     # derives the key and the IV. False: OpenSSL fails
# Writes `size` + SEAL_OVERHEAD bytes. `far`: the data is in no cache. False: OpenSSL fails.
cdef bint seal(
    Sealing* sealing, uint8_t kind, const uint8_t* data, size_t size, uint8_t* record, bint far) noexcept nogil
cdef bint sealing_is_worn(const Sealing* sealing) noexcept nogil    # it has made as many records as a key should
# To the next key: a KeyUpdate was sealed. False: OpenSSL fails, and nothing more can be sealed.
cdef bint sealing_update(Sealing* sealing) noexcept nogil
