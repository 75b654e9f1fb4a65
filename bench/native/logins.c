/* Clients that connect, log in and leave, again and again, on one thread.
 *
 *   logins port=9093 tls=1 connections=16 rate=1000 seconds=2            handshakes of TLS
 *   logins port=9095 mechanism=PLAIN user=anna password=secret ...       and logins after them, or without tls=1
 *   logins port=9095 mechanism=SCRAM-SHA-256 user=anna client_key=HEX stored_key=HEX ...
 *
 * `connections` of them are under way at most. rate=0: as fast as it goes; else one begins at each due time, and one that
 * waits for its turn has its waiting counted. A client that is refused (a wrong password or key) counts, too.
 *
 * Prints one JSON object: requests (those who came to the end), refused, late (due, and never begun), seconds, cpu (this
 * process), percentiles in microseconds from the due time to the end. The last flight of a TLS 1.3 handshake has no
 * answer, so with tls=1 and no mechanism the end is the answer to an ApiVersions.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include "kafka_wire.h"
#include "options.h"
#include "tls.h"

#define BUCKETS 4096
#define DONE_MAX 3000000

static int port, tls, connections = 16;
static double seconds = 1, rate;
static const char *mechanism = "", *user = "", *password = "", *client_key = "", *stored_key = "";
static uint8_t keys[2][32];

static const struct option OPTIONS[] = {
    {"port", &port, 0, 0},           {"tls", &tls, 0, 0},       {"connections", &connections, 0, 0},
    {"rate", 0, &rate, 0},           {"seconds", 0, &seconds, 0}, {"mechanism", 0, 0, &mechanism},
    {"user", 0, 0, &user},           {"password", 0, 0, &password},
    {"client_key", 0, 0, &client_key}, {"stored_key", 0, 0, &stored_key}, /* of SCRAM: what PBKDF2 came to */
};

enum { FREE, CONNECTING, SHAKING, VERSIONS, MECHANISM, FIRST, LAST };

struct client {
    int fd, state;
    void *ssl;
    int64_t due;
    uint8_t out[1024], in[4096];
    size_t out_size, sent, in_size;
    char said[512]; /* of SCRAM: the first message bare */
};

static int epoll;
static void *context;
static int64_t done, refused, begun, last_ns;
static double *taken;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static size_t base64(char *to, const uint8_t *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t at = 0;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        for (int k = 0; k < 4; k++)
            to[at++] = k <= 1 || i + (size_t)k - 1 < n ? digits[v >> (18 - 6 * k) & 63] : '=';
    }
    to[at] = 0;
    return at;
}

/* -- what a client says */

static void say(struct client *c, int key, int version, const void *body, size_t size)
{
    uint8_t *p = c->out;
    put32(p, (uint32_t)(14 + size));
    put16(p + 4, (uint16_t)key);
    put16(p + 6, (uint16_t)version);
    put32(p + 8, 1);
    put16(p + 12, 4);
    memcpy(p + 14, "load", 4);
    memcpy(p + 18, body, size);
    c->out_size = 18 + size;
    c->sent = 0;
}

static void say_token(struct client *c, const char *token, size_t size)
{
    uint8_t body[900];
    put32(body, (uint32_t)size);
    memcpy(body + 4, token, size);
    say(c, 36, 1, body, 4 + size);
}

static void say_mechanism(struct client *c)
{
    uint8_t body[64];
    size_t n = strlen(mechanism);
    put16(body, (uint16_t)n);
    memcpy(body + 2, mechanism, n);
    say(c, 17, 1, body, 2 + n);
    c->state = MECHANISM;
}

static void say_first(struct client *c)
{
    char token[600];
    size_t n;
    if (!strcmp(mechanism, "PLAIN")) {
        n = 1 + (size_t)sprintf(token + 1, "%s", user);
        token[0] = token[n++] = 0;
        n += (size_t)sprintf(token + n, "%s", password);
        c->state = LAST;
    } else {
        sprintf(c->said, "n=%s,r=%016llx%016llx", user, (unsigned long long)now_ns(), (unsigned long long)done);
        n = (size_t)sprintf(token, "n,,%s", c->said);
        c->state = FIRST;
    }
    say_token(c, token, n);
}

/* The proof: the client's key, hidden by a signature over all that was said. */
static void say_last(struct client *c, const char *challenge, size_t size)
{
    char bare[400], whole[1600], token[700], proof[64];
    uint8_t signature[32];
    const char *end = memchr(challenge, ',', size);
    if (!end || size > 500)
        die("the challenge");
    sprintf(bare, "c=biws,%.*s", (int)(end - challenge), challenge);
    int n = sprintf(whole, "%s,%.*s,%s", c->said, (int)size, challenge, bare);
    HMAC(EVP_sha256(), keys[1], 32, (uint8_t *)whole, (size_t)n, signature, NULL);
    for (int i = 0; i < 32; i++)
        signature[i] ^= keys[0][i];
    base64(proof, signature, 32);
    n = sprintf(token, "%s,p=%s", bare, proof);
    say_token(c, token, (size_t)n);
    c->state = LAST;
}

/* -- a client's life */

static void end(struct client *c, int good)
{
    struct linger now = {.l_onoff = 1};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now); /* else its port stays taken for a minute */
    if (c->ssl)
        SSL_free(c->ssl);
    close(c->fd);
    last_ns = now_ns();
    if (done < DONE_MAX)
        taken[done] = (double)(last_ns - c->due) / 1e3;
    done++;
    refused += !good;
    c->state = FREE;
}

static void begin(struct client *c, int64_t due)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1;
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    memset(c, 0, offsetof(struct client, out));
    c->out_size = c->sent = c->in_size = 0;
    c->due = due;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        die("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS)
        die("connect");
    c->state = CONNECTING;
    if (tls) {
        c->ssl = SSL_new(context);
        SSL_set_fd(c->ssl, c->fd);
    }
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
    begun++;
}

/* 0: it must wait. */
static int send_some(struct client *c)
{
    while (c->sent < c->out_size) {
        const uint8_t *at = c->out + c->sent;
        size_t left = c->out_size - c->sent;
        ssize_t n = c->ssl ? tls_outcome(c->ssl, SSL_write(c->ssl, at, (int)left)) : send(c->fd, at, left, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n <= 0) {
            end(c, 0);
            return 0;
        }
        c->sent += (size_t)n;
    }
    return 1;
}

/* A whole answer without its size and correlation id; its length, or -1: it must wait, or has ended. */
static ssize_t hear(struct client *c, uint8_t **answer)
{
    for (;;) {
        if (c->in_size >= 4 && c->in_size >= 4 + (size_t)get32(c->in)) {
            size_t size = get32(c->in);
            c->in_size = 0; /* one question at a time */
            *answer = c->in + 8;
            return (ssize_t)size - 4;
        }
        uint8_t *at = c->in + c->in_size;
        size_t room = sizeof c->in - c->in_size;
        ssize_t n = c->ssl ? tls_outcome(c->ssl, SSL_read(c->ssl, at, (int)room)) : recv(c->fd, at, room, 0);
        if (n < 0 && errno == EAGAIN)
            return -1;
        if (n <= 0) {
            end(c, 0);
            return -1;
        }
        c->in_size += (size_t)n;
    }
}

static void go_on(struct client *c)
{
    uint8_t *answer;
    ssize_t size;
    if (c->state == CONNECTING) {
        int error = 0;
        socklen_t n = sizeof error;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &n);
        if (error) {
            end(c, 0);
            return;
        }
        c->state = SHAKING;
    }
    if (c->state == SHAKING) {
        if (c->ssl) {
            int n = SSL_connect(c->ssl);
            if (n != 1) {
                if (tls_outcome(c->ssl, n) == 0 || errno != EAGAIN)
                    end(c, 0);
                return;
            }
        }
        if (*mechanism) {
            say_mechanism(c);
        } else {
            say(c, 18, 0, "", 0);
            c->state = VERSIONS;
        }
    }
    while (c->state != FREE) {
        if (!send_some(c) || (size = hear(c, &answer)) < 0)
            return;
        int error = size >= 2 ? (int16_t)get16(answer) : -1;
        if (error || c->state == LAST || c->state == VERSIONS) {
            end(c, !error);
        } else if (c->state == MECHANISM) {
            say_first(c);
        } else { /* error, message, token */
            int told = (int16_t)get16(answer + 2);
            size_t at = 4 + (told > 0 ? (size_t)told : 0);
            say_last(c, (char *)answer + at + 4, get32(answer + at));
        }
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void hex(const char *text, uint8_t *to)
{
    for (int i = 0; i < 32 && text[2 * i]; i++)
        sscanf(text + 2 * i, "%2hhx", &to[i]);
}

int main(int argc, char **argv)
{
    if (take_options(OPTIONS, sizeof OPTIONS / sizeof *OPTIONS, argc - 1, argv + 1))
        return 2;
    if (connections < 1 || connections > 10000 || strlen(user) + strlen(password) > 200 || strlen(mechanism) > 60) {
        fprintf(stderr, "1 to 10000 connections, and short names\n");
        return 2;
    }
    hex(client_key, keys[0]);
    hex(stored_key, keys[1]);
    context = tls_context();
    epoll = epoll_create1(0);
    taken = malloc(DONE_MAX * sizeof *taken);
    struct client *all = calloc((size_t)connections, sizeof *all);
    int64_t start = last_ns = now_ns(), stop = start + (int64_t)(seconds * 1e9);
    double gap = rate > 0 ? 1e9 / rate : 0;
    struct epoll_event events[256];
    for (;;) {
        int64_t now = now_ns();
        int busy = 0;
        for (int i = 0; i < connections; i++) {
            int64_t due = gap > 0 ? start + (int64_t)(gap * (double)begun) : now;
            if (all[i].state == FREE && now < stop && due <= now)
                begin(&all[i], due);
            busy += all[i].state != FREE;
        }
        if (!busy && now >= stop)
            break;
        if (now > stop + 60000000000ll) {
            fprintf(stderr, "no answer for a minute\n");
            return 1;
        }
        int n = epoll_wait(epoll, events, 256, 1);
        for (int i = 0; i < n; i++) {
            struct client *c = events[i].data.ptr;
            if (c->state != FREE)
                go_on(c);
        }
    }
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    double cpu = (double)u.ru_utime.tv_sec + u.ru_utime.tv_usec / 1e6 + (double)u.ru_stime.tv_sec + u.ru_stime.tv_usec / 1e6;
    int64_t kept = done < DONE_MAX ? done : DONE_MAX, wanted = (int64_t)(seconds * rate);
    if (!kept) {
        fprintf(stderr, "nobody came to the end\n");
        return 1;
    }
    qsort(taken, (size_t)kept, sizeof *taken, by_size);
    printf("{\"requests\": %lld, \"refused\": %lld, \"late\": %lld, \"seconds\": %.6f, \"cpu\": %.6f, \"p50_us\": %.1f, "
           "\"p99_us\": %.1f, \"max_us\": %.1f}\n",
           (long long)done, (long long)refused, (long long)(wanted > begun ? wanted - begun : 0),
           (double)(last_ns - start) / 1e9, cpu, taken[kept / 2], taken[kept * 99 / 100], taken[kept - 1]);
    return 0;
}
