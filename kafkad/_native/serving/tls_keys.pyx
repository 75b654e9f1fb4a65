"""Private keys and PKCS12 stores, read by OpenSSL, and OpenSSL's errors."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from kafkad._native.wire.primitives cimport KAFKAD_CHECK

cdef extern from "openssl.h" nogil:
    ctypedef struct Openssl:
        void* (*BIO_new_mem_buf)(const void*, int) noexcept nogil
        int (*BIO_free)(void*) noexcept nogil
        void* (*PEM_read_bio_PrivateKey)(void*, void**, void*, void*) noexcept nogil
        int (*i2d_PrivateKey)(void*, unsigned char**) noexcept nogil
        void (*EVP_PKEY_free)(void*) noexcept nogil
        int (*i2d_X509)(void*, unsigned char**) noexcept nogil
        void (*X509_free)(void*) noexcept nogil
        void* (*d2i_PKCS12_bio)(void*, void**) noexcept nogil
        int (*PKCS12_parse)(void*, const char*, void**, void**, void**) noexcept nogil
        void (*PKCS12_free)(void*) noexcept nogil
        int (*OPENSSL_sk_num)(const void*) noexcept nogil
        void* (*OPENSSL_sk_value)(const void*, int) noexcept nogil
        void (*OPENSSL_sk_pop_free)(void*, void (*)(void*) noexcept nogil) noexcept nogil
        unsigned long (*ERR_get_error)() noexcept nogil
        void (*ERR_clear_error)() noexcept nogil
        const char* (*ERR_reason_error_string)(unsigned long) noexcept nogil
    Openssl openssl
    const char* kafkad_load_openssl()

cdef bint loaded = False


class TlsError(ValueError):
    """OpenSSL's error for a key, a certificate or a store."""


cdef object keys_load():
    global loaded
    cdef const char* missing
    if loaded:
        return
    try:
        import _ssl  # noqa: F401  (loads the library)
    except ImportError:
        pass
    missing = kafkad_load_openssl()
    if missing is not NULL:
        raise TlsError(f"TLS needs OpenSSL 3: {missing.decode()} is missing")
    loaded = True


cdef object trouble(str what):
    cdef unsigned long number = openssl.ERR_get_error()
    cdef const char* reason = NULL
    if number:
        reason = openssl.ERR_reason_error_string(number)
    openssl.ERR_clear_error()
    return TlsError(what if reason is NULL else f"{what}: {reason.decode('utf-8', 'replace')}")


cdef bytes der_of(void* certificate):
    cdef int size = openssl.i2d_X509(certificate, NULL)
    cdef bytes der
    cdef unsigned char* end
    if size <= 0:
        raise trouble("a certificate cannot be written")
    der = PyBytes_FromStringAndSize(NULL, size)
    end = <unsigned char*>PyBytes_AS_STRING(der)
    openssl.i2d_X509(certificate, &end)
    return der


cdef bytes key_der_of(void* key):
    cdef int size = openssl.i2d_PrivateKey(key, NULL)
    cdef bytes der
    cdef unsigned char* end
    if size <= 0:
        raise trouble("a private key cannot be written")
    der = PyBytes_FromStringAndSize(NULL, size)
    end = <unsigned char*>PyBytes_AS_STRING(der)
    openssl.i2d_PrivateKey(key, &end)
    return der


def read_private_key(bytes pem not None, bytes password not None):
    """Return a PEM key, encrypted or not, as DER. Raises TlsError."""
    cdef void* key
    cdef void* bio
    keys_load()
    openssl.ERR_clear_error()
    bio = openssl.BIO_new_mem_buf(PyBytes_AS_STRING(pem), <int>len(pem))
    KAFKAD_CHECK(bio is not NULL)
    key = openssl.PEM_read_bio_PrivateKey(bio, NULL, NULL, PyBytes_AS_STRING(password))
    openssl.BIO_free(bio)
    if key is NULL:
        raise trouble("the private key cannot be read")
    try:
        return key_der_of(key)
    finally:
        openssl.EVP_PKEY_free(key)


def read_pkcs12(bytes data not None, bytes password not None):
    """Return (key as DER or None, certificates as DER, the key's own first). Raises TlsError."""
    cdef void* store
    cdef void* bio
    cdef void* key = NULL
    cdef void* certificate = NULL
    cdef void* others = NULL
    keys_load()
    openssl.ERR_clear_error()
    bio = openssl.BIO_new_mem_buf(PyBytes_AS_STRING(data), <int>len(data))
    KAFKAD_CHECK(bio is not NULL)
    store = openssl.d2i_PKCS12_bio(bio, NULL)
    openssl.BIO_free(bio)
    if store is NULL:
        raise trouble("it is no PKCS12 store")
    try:
        if openssl.PKCS12_parse(store, PyBytes_AS_STRING(password), &key, &certificate, &others) != 1:
            raise trouble("the PKCS12 store cannot be opened")
        found = [] if certificate is NULL else [der_of(certificate)]
        if others is not NULL:
            found.extend([der_of(openssl.OPENSSL_sk_value(others, i)) for i in range(openssl.OPENSSL_sk_num(others))])
        return None if key is NULL else key_der_of(key), found
    finally:
        openssl.PKCS12_free(store)
        if key is not NULL:
            openssl.EVP_PKEY_free(key)
        if certificate is not NULL:
            openssl.X509_free(certificate)
        if others is not NULL:
            openssl.OPENSSL_sk_pop_free(others, openssl.X509_free)
