/* TLS for the load generators, by the libssl that is there at run time: no header of OpenSSL is needed. A certificate is
 * not looked at, and one cipher suite is offered, so that every broker computes the same. */
#ifndef BENCH_TLS_H
#define BENCH_TLS_H

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#define TLS_SYMBOLS(X) \
    X(const void *, TLS_client_method, (void)) \
    X(void *, SSL_CTX_new, (const void *)) \
    X(long, SSL_CTX_ctrl, (void *, int, long, void *)) \
    X(int, SSL_CTX_set_ciphersuites, (void *, const char *)) \
    X(void, SSL_CTX_set_default_read_buffer_len, (void *, size_t)) \
    X(void *, SSL_new, (void *)) \
    X(void, SSL_free, (void *)) \
    X(int, SSL_set_fd, (void *, int)) \
    X(int, SSL_connect, (void *)) \
    X(int, SSL_read, (void *, void *, int)) \
    X(int, SSL_write, (void *, const void *, int)) \
    X(int, SSL_get_error, (const void *, int)) \
    X(void, ERR_clear_error, (void)) \
    X(const void *, EVP_sha256, (void)) \
    X(unsigned char *, HMAC, (const void *, const void *, int, const unsigned char *, size_t, unsigned char *, unsigned *))

#define DECLARE(result, name, arguments) static result(*name) arguments;
TLS_SYMBOLS(DECLARE)
#undef DECLARE

enum { TLS_MODE = 33, TLS_READ_AHEAD = 41, TLS_MIN_VERSION = 123, TLS_1_3 = 0x0304, TLS_PARTIAL_WRITES = 1 | 2 };

static void tls_load(void)
{
    void *library = dlopen("libssl.so.3", RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        library = dlopen("libssl.so", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "there is no libssl: %s\n", dlerror());
        exit(1);
    }
#define FIND(result, name, arguments) \
    if (!(*(void **)&name = dlsym(library, #name))) { \
        fprintf(stderr, "libssl has no %s\n", #name); \
        exit(1); \
    }
    TLS_SYMBOLS(FIND)
#undef FIND
}

static void *tls_context(void)
{
    tls_load();
    void *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_ctrl(context, TLS_MIN_VERSION, TLS_1_3, NULL);
    SSL_CTX_ctrl(context, TLS_MODE, TLS_PARTIAL_WRITES, NULL);
    SSL_CTX_ctrl(context, TLS_READ_AHEAD, 1, NULL);
    SSL_CTX_set_default_read_buffer_len(context, 256 * 1024);
    if (SSL_CTX_set_ciphersuites(context, "TLS_AES_256_GCM_SHA384") != 1)
        exit(1);
    return context;
}

/* As errno has it after a read or a write of a socket: EAGAIN, or an end. */
static ssize_t tls_outcome(void *ssl, int n)
{
    if (n > 0)
        return n;
    int error = SSL_get_error(ssl, n);
    if (error == 6) /* the peer said goodbye */
        return 0;
    errno = error == 2 || error == 3 ? EAGAIN : EPROTO;
    ERR_clear_error();
    return -1;
}

#endif
