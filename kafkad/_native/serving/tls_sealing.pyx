"""Sealing: encrypting the records of TLS 1.3 with AES-GCM, without SSL_write.

SSL_write copies a record into a buffer of its own, encrypts it there, and hands it to the BIO, which copies it again.
`seal` encrypts from where the bytes are to where they are sent from. OpenSSL still does the handshake, reads, and all
cryptography; its key log says the secret that the keys are derived from (RFC 8446, 7.1 to 7.3).

**A record number is used once per key.** That is what AES-GCM depends on. So the records that OpenSSL writes are counted
until the first long answer. The first full record of that answer is OpenSSL's as well, to see that the client takes
records of that size. From then on every record of the connection is sealed here: data, alerts, and KeyUpdate. Whatever
OpenSSL itself encrypts after that is thrown away (tls.pyx). If OpenSSL writes a message before, or anything that cannot
be counted, the connection stays with SSL_write. A connection without long answers does not need the memory of another
key.

A record (RFC 8446, 5.2):

    23 | 3 3 | size, 2 bytes | AES-GCM(data, kind) | tag, 16 bytes
    \\---- authenticated ----/   nonce: the IV xor the record's number"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, strchr, strlen, strncmp

cdef extern from "openssl.h" nogil:
    ctypedef struct Openssl:
        void* (*SSL_get_current_cipher)(void*) noexcept nogil
        uint32_t (*SSL_CIPHER_get_id)(const void*) noexcept nogil
        void* (*EVP_CIPHER_CTX_new)() noexcept nogil
        void (*EVP_CIPHER_CTX_free)(void*) noexcept nogil
        const void* (*EVP_aes_128_gcm)() noexcept nogil
        const void* (*EVP_aes_256_gcm)() noexcept nogil
        int (*EVP_EncryptInit_ex)(void*, const void*, void*, const uint8_t*, const uint8_t*) noexcept nogil
        int (*EVP_EncryptUpdate)(void*, uint8_t*, int*, const uint8_t*, int) noexcept nogil
        int (*EVP_EncryptFinal_ex)(void*, uint8_t*, int*) noexcept nogil
        int (*EVP_CIPHER_CTX_ctrl)(void*, int, int, void*) noexcept nogil
        const void* (*EVP_sha256)() noexcept nogil
        const void* (*EVP_sha384)() noexcept nogil
        uint8_t* (*HMAC)(const void*, const void*, int, const uint8_t*, size_t, uint8_t*, unsigned int*) noexcept nogil
        void (*OPENSSL_cleanse)(void*, size_t) noexcept nogil
        void (*ERR_clear_error)() noexcept nogil
    Openssl openssl
    const char* kafkad_load_openssl()

cdef extern from * nogil:
    """
    #define KAFKAD_CACHE_LINE 64
    /* May go beyond what is mapped: a prefetch is no access. */
    static inline void kafkad_prefetch(const uint8_t* data, size_t size) {
        for (size_t at = 0; at < size; at += KAFKAD_CACHE_LINE)
            __builtin_prefetch(data + at);
    }
    """
    void kafkad_prefetch(const uint8_t* data, size_t size)

cdef enum:
    # A piece is as much as the processor fetches at a time, without waiting for it. Measured: with 1 or 4 KB, or when
    # the fetch is further ahead, half of the gain is lost, or all of it.
    PIECE = 2048
    AHEAD = 2560
    TLS_AES_128_GCM_SHA256 = 0x03001301
    TLS_AES_256_GCM_SHA384 = 0x03001302
    SHA256_SIZE = 32
    SHA384_SIZE = 48
    EVP_CTRL_AEAD_GET_TAG = 0x10
    TAG = 16
    DATA_RECORD = 23
    DATA_MAX = 16 * 1024                # of a record

cdef uint64_t sealed_records = 0
cdef uint64_t records_of_a_key = 1 << 24    # AES-GCM is safe for 24 million (RFC 8446, 5.5)
cdef const char* LABEL = "SERVER_TRAFFIC_SECRET_0 "


def sealed():
    """Return how many records this process has sealed."""
    return sealed_records


def set_records_of_a_key(uint64_t count):
    """Change the key after so many records (for tests)."""
    global records_of_a_key
    records_of_a_key = count


cdef const char* sealing_load() noexcept:
    return kafkad_load_openssl()


cdef Sealing* sealing_of(const char* line, const void* ssl) noexcept nogil:
    cdef const void* suite
    cdef uint32_t number
    cdef Sealing* sealing
    cdef size_t size, i
    cdef int high, low
    if strncmp(line, LABEL, strlen(LABEL)) != 0:
        return NULL
    suite = openssl.SSL_get_current_cipher(<void*>ssl)
    number = openssl.SSL_CIPHER_get_id(suite) if suite is not NULL else 0
    if number == TLS_AES_128_GCM_SHA256:
        size = SHA256_SIZE
    elif number == TLS_AES_256_GCM_SHA384:
        size = SHA384_SIZE
    else:
        return NULL
    line = strchr(line + strlen(LABEL), c" ")           # after the client's random number
    if line is NULL or strlen(line + 1) != 2 * size:
        return NULL
    sealing = <Sealing*>calloc(1, sizeof(Sealing))
    if sealing is NULL:
        return NULL
    sealing.secret_size = <uint32_t>size
    for i in range(size):
        high = digit_of(line[1 + 2 * i])
        low = digit_of(line[2 + 2 * i])
        if high < 0 or low < 0:
            sealing_free(&sealing)
            return NULL
        sealing.secret[i] = <uint8_t>(high << 4 | low)
    return sealing


cdef inline int digit_of(char c) noexcept nogil:
    if c"0" <= c <= c"9":
        return c - c"0"
    if c"a" <= c <= c"f":
        return c - c"a" + 10
    return c - c"A" + 10 if c"A" <= c <= c"F" else -1


cdef void sealing_free(Sealing** place) noexcept nogil:
    cdef Sealing* sealing = place[0]
    place[0] = NULL
    if sealing is NULL:
        return
    sealing_close(sealing)
    openssl.OPENSSL_cleanse(sealing, sizeof(Sealing))
    free(sealing)


cdef bint expand(
        const uint8_t* secret, uint32_t secret_size, const char* label, uint8_t* out, uint32_t size) noexcept nogil:
    """HKDF-Expand-Label with an empty context, for `size` up to that of the hash: so one HMAC is enough."""
    cdef uint8_t info[32]
    cdef uint8_t found[SECRET_MAX]
    cdef unsigned int found_size = 0
    cdef uint32_t label_size = <uint32_t>strlen(label)
    cdef bint good
    info[0] = 0
    info[1] = <uint8_t>size
    info[2] = <uint8_t>(6 + label_size)
    memcpy(info + 3, "tls13 ", 6)
    memcpy(info + 9, label, label_size)
    info[9 + label_size] = 0
    info[10 + label_size] = 1
    good = openssl.HMAC(
        openssl.EVP_sha256() if secret_size == SHA256_SIZE else openssl.EVP_sha384(), secret, <int>secret_size, info,
        11 + label_size, found, &found_size) is not NULL and found_size >= size
    if good:
        memcpy(out, found, size)
    openssl.OPENSSL_cleanse(found, sizeof(found))
    return good


cdef bint sealing_open(Sealing* sealing) noexcept nogil:
    """Number and key, IV and secret change together, or there is no cipher: `seal` then refuses."""
    return sealing_take(sealing, sealing.secret, sealing.number)


cdef bint sealing_update(Sealing* sealing) noexcept nogil:
    cdef uint8_t fresh[SECRET_MAX]
    cdef bint good = expand(sealing.secret, sealing.secret_size, "traffic upd", fresh, sealing.secret_size)
    if good:
        good = sealing_take(sealing, fresh, 0)
    else:
        sealing_close(sealing)
    openssl.OPENSSL_cleanse(fresh, sizeof(fresh))
    return good


cdef bint sealing_take(Sealing* sealing, const uint8_t* secret, uint64_t number) noexcept nogil:
    cdef uint8_t key[32]
    cdef uint8_t iv[12]
    cdef bint short = sealing.secret_size == SHA256_SIZE
    cdef bint good
    if sealing.cipher is NULL:
        sealing.cipher = openssl.EVP_CIPHER_CTX_new()
    good = (
        sealing.cipher is not NULL
        and expand(secret, sealing.secret_size, "key", key, 16 if short else 32)
        and expand(secret, sealing.secret_size, "iv", iv, sizeof(iv))
        and openssl.EVP_EncryptInit_ex(
            sealing.cipher, openssl.EVP_aes_128_gcm() if short else openssl.EVP_aes_256_gcm(), NULL, key, NULL) == 1)
    if good:
        sealing.number = number
        memcpy(sealing.iv, iv, sizeof(iv))
        memmove(sealing.secret, secret, sealing.secret_size)
    else:
        sealing_close(sealing)
    openssl.OPENSSL_cleanse(key, sizeof(key))
    openssl.OPENSSL_cleanse(iv, sizeof(iv))
    return good


cdef void sealing_close(Sealing* sealing) noexcept nogil:
    if sealing.cipher is not NULL:
        openssl.EVP_CIPHER_CTX_free(sealing.cipher)
        sealing.cipher = NULL


cdef bint sealing_is_worn(const Sealing* sealing) noexcept nogil:
    return sealing.number >= records_of_a_key


cdef bint sealing_count(Sealing* sealing, const uint8_t* data, size_t size) noexcept nogil:
    cdef size_t step
    while size:
        step = 5 + (<size_t>data[3] << 8 | data[4]) if size >= 5 else 0
        if step == 0 or step > size or data[0] != DATA_RECORD:
            return False
        sealing.number += 1
        data += step
        size -= step
    return True


cdef bint seal(
        Sealing* sealing, uint8_t kind, const uint8_t* data, size_t size, uint8_t* record, bint far) noexcept nogil:
    global sealed_records
    cdef uint8_t nonce[12]
    cdef size_t inner = size + 1 + TAG
    cdef int n = 0
    cdef int i
    if sealing.cipher is NULL or size > DATA_MAX:
        return False
    memcpy(nonce, sealing.iv, sizeof(nonce))
    for i in range(8):
        nonce[11 - i] ^= <uint8_t>(sealing.number >> (8 * i))
    sealing.number += 1
    sealed_records += 1
    record[0] = DATA_RECORD
    record[1] = record[2] = 3
    record[3] = <uint8_t>(inner >> 8)
    record[4] = <uint8_t>inner
    return (
        openssl.EVP_EncryptInit_ex(sealing.cipher, NULL, NULL, NULL, nonce) == 1
        and openssl.EVP_EncryptUpdate(sealing.cipher, NULL, &n, record, 5) == 1
        and (encrypt_far(sealing.cipher, record + 5, data, size) if far
             else openssl.EVP_EncryptUpdate(sealing.cipher, record + 5, &n, data, <int>size) == 1)
        and openssl.EVP_EncryptUpdate(sealing.cipher, record + 5 + size, &n, &kind, 1) == 1
        and openssl.EVP_EncryptFinal_ex(sealing.cipher, record + 6 + size, &n) == 1
        and openssl.EVP_CIPHER_CTX_ctrl(sealing.cipher, EVP_CTRL_AEAD_GET_TAG, TAG, record + 6 + size) == 1
    )


cdef bint encrypt_far(void* cipher, uint8_t* out, const uint8_t* data, size_t size) noexcept nogil:
    """Encrypt bytes that come from memory, not from a cache: each piece while the next one is on its way."""
    cdef size_t at = 0, step
    cdef int n = 0
    while at < size:
        step = min(size - at, <size_t>PIECE)
        kafkad_prefetch(data + at + AHEAD, step)
        if openssl.EVP_EncryptUpdate(cipher, out + at, &n, data + at, <int>step) != 1:
            return False
        at += step
    return True
