/* OpenSSL 3, through the library that Python's ssl module has loaded. Its functions are found at run time, so building needs
 * nothing of OpenSSL, and a process has one copy of it. No header of OpenSSL is included: all of its types are void here. */

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define KAFKAD_OPENSSL(X) \
    X(unsigned long, OpenSSL_version_num, (void)) \
    X(void*, TLS_server_method, (void)) \
    X(void*, TLS_client_method, (void)) \
    X(void*, SSL_CTX_new, (const void*)) \
    X(void, SSL_CTX_free, (void*)) \
    X(long, SSL_CTX_ctrl, (void*, int, long, void*)) \
    X(uint64_t, SSL_CTX_set_options, (void*, uint64_t)) \
    X(int, SSL_CTX_set_num_tickets, (void*, size_t)) \
    X(int, SSL_CTX_set_cipher_list, (void*, const char*)) \
    X(int, SSL_CTX_set_ciphersuites, (void*, const char*)) \
    X(int, SSL_CTX_use_certificate, (void*, void*)) \
    X(int, SSL_CTX_use_PrivateKey, (void*, void*)) \
    X(int, SSL_CTX_check_private_key, (void*)) \
    X(void, SSL_CTX_set_verify, (void*, int, void*)) \
    X(void, SSL_CTX_set_msg_callback, (void*, void (*)(int, int, int, const void*, size_t, void*, void*))) \
    X(int, SSL_CTX_set_session_id_context, (void*, const unsigned char*, unsigned int)) \
    X(void*, SSL_CTX_get_cert_store, (void*)) \
    X(int, SSL_CTX_add_client_CA, (void*, void*)) \
    X(void*, SSL_CTX_get_ciphers, (void*)) \
    X(const char*, SSL_CIPHER_standard_name, (const void*)) \
    X(const char*, SSL_CIPHER_get_name, (const void*)) \
    X(void*, SSL_new, (void*)) \
    X(void, SSL_free, (void*)) \
    X(void, SSL_set_accept_state, (void*)) \
    X(void, SSL_set_connect_state, (void*)) \
    X(long, SSL_ctrl, (void*, int, long, void*)) \
    X(void*, SSL_get0_param, (void*)) \
    X(int, X509_VERIFY_PARAM_set_flags, (void*, unsigned long)) \
    X(int, X509_VERIFY_PARAM_set1_host, (void*, const char*, size_t)) \
    X(int, X509_VERIFY_PARAM_set1_ip_asc, (void*, const char*)) \
    X(long, SSL_get_verify_result, (const void*)) \
    X(const char*, X509_verify_cert_error_string, (long)) \
    X(void, SSL_set_bio, (void*, void*, void*)) \
    X(void*, SSL_get_rbio, (const void*)) \
    X(int, SSL_do_handshake, (void*)) \
    X(int, SSL_read_ex, (void*, void*, size_t, size_t*)) \
    X(int, SSL_peek_ex, (void*, void*, size_t, size_t*)) \
    X(int, SSL_write_ex, (void*, const void*, size_t, size_t*)) \
    X(int, SSL_get_error, (void*, int)) \
    X(int, SSL_shutdown, (void*)) \
    X(const char*, SSL_get_version, (void*)) \
    X(void*, SSL_get_current_cipher, (void*)) \
    X(void*, SSL_get1_peer_certificate, (void*)) \
    X(void*, BIO_meth_new, (int, const char*)) \
    X(int, BIO_meth_set_write, (void*, int (*)(void*, const char*, int))) \
    X(int, BIO_meth_set_read, (void*, int (*)(void*, char*, int))) \
    X(int, BIO_meth_set_ctrl, (void*, long (*)(void*, int, long, void*))) \
    X(void*, BIO_new, (const void*)) \
    X(void*, BIO_new_mem_buf, (const void*, int)) \
    X(int, BIO_free, (void*)) \
    X(void, BIO_set_data, (void*, void*)) \
    X(void*, BIO_get_data, (void*)) \
    X(void, BIO_set_init, (void*, int)) \
    X(void, BIO_set_flags, (void*, int)) \
    X(void, BIO_clear_flags, (void*, int)) \
    X(void*, PEM_read_bio_PrivateKey, (void*, void**, void*, void*)) \
    X(void*, d2i_AutoPrivateKey, (void**, const unsigned char**, long)) \
    X(int, i2d_PrivateKey, (void*, unsigned char**)) \
    X(void, EVP_PKEY_free, (void*)) \
    X(void*, d2i_X509, (void**, const unsigned char**, long)) \
    X(int, i2d_X509, (void*, unsigned char**)) \
    X(void, X509_free, (void*)) \
    X(int, X509_STORE_add_cert, (void*, void*)) \
    X(void*, d2i_PKCS12_bio, (void*, void**)) \
    X(int, PKCS12_parse, (void*, const char*, void**, void**, void**)) \
    X(void, PKCS12_free, (void*)) \
    X(int, OPENSSL_sk_num, (const void*)) \
    X(void*, OPENSSL_sk_value, (const void*, int)) \
    X(void, OPENSSL_sk_pop_free, (void*, void (*)(void*))) \
    X(void, SSL_CTX_set_keylog_callback, (void*, void (*)(const void*, const char*))) \
    X(uint32_t, SSL_CIPHER_get_id, (const void*)) \
    X(void*, EVP_CIPHER_CTX_new, (void)) \
    X(void, EVP_CIPHER_CTX_free, (void*)) \
    X(const void*, EVP_aes_128_gcm, (void)) \
    X(const void*, EVP_aes_256_gcm, (void)) \
    X(int, EVP_EncryptInit_ex, (void*, const void*, void*, const uint8_t*, const uint8_t*)) \
    X(int, EVP_EncryptUpdate, (void*, uint8_t*, int*, const uint8_t*, int)) \
    X(int, EVP_EncryptFinal_ex, (void*, uint8_t*, int*)) \
    X(int, EVP_CIPHER_CTX_ctrl, (void*, int, int, void*)) \
    X(const void*, EVP_sha256, (void)) \
    X(const void*, EVP_sha384, (void)) \
    X(uint8_t*, HMAC, (const void*, const void*, int, const uint8_t*, size_t, uint8_t*, unsigned int*)) \
    X(void, OPENSSL_cleanse, (void*, size_t)) \
    X(unsigned long, ERR_get_error, (void)) \
    X(void, ERR_clear_error, (void)) \
    X(const char*, ERR_reason_error_string, (unsigned long))

typedef struct {
#define KAFKAD_FIELD(result, name, arguments) result (*name) arguments;
    KAFKAD_OPENSSL(KAFKAD_FIELD)
#undef KAFKAD_FIELD
} Openssl;

static Openssl openssl;

static int kafkad_find_libssl(struct dl_phdr_info* info, size_t size, void* found) {
    const char* name = strrchr(info->dlpi_name, '/');
    (void)size;
    if (name != NULL && strncmp(name, "/libssl", 7) == 0) {
        *(const char**)found = info->dlpi_name;
        return 1;
    }
    return 0;
}

/* NULL, or the name of what is missing: the library, or one of its functions. */
static const char* kafkad_load_openssl(void) {
    const char* path = NULL;
    void* library;
    dl_iterate_phdr(kafkad_find_libssl, &path);
    library = dlopen(path != NULL ? path : "libssl.so.3", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return "libssl.so.3";
#define KAFKAD_LOAD(result, name, arguments) \
    *(void**)&openssl.name = dlsym(library, #name); \
    if (openssl.name == NULL) \
        return #name;
    KAFKAD_OPENSSL(KAFKAD_LOAD)
#undef KAFKAD_LOAD
    return openssl.OpenSSL_version_num() >= 0x30000000UL ? NULL : "OpenSSL 3 (it is older)";
}

static inline void kafkad_set_errno(int number) {
    errno = number;
}
