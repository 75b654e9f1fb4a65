"""Keys, certificates and errors of OpenSSL. See tls_keys.pyx."""

cdef object keys_load()                     # loads OpenSSL, or raises TlsError
cdef object trouble(str what)               # a TlsError with OpenSSL's reason
cdef bytes der_of(void* certificate)        # of an X509
