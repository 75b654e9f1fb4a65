/* The load generator: pre-encoded Produce and Fetch requests over many connections, on one thread.
 *
 *   load run port=9092 topic=t partitions=4 producers=4 consumers=0 ...     (the options: the table below)
 *   load idle port=9092 connections=10000                                  (holds them until its stdin ends)
 *
 * Producers send the one batch again and again, each to its next partition; consumers fetch, either one partition a
 * request in turn (fetch_all=0) or all of theirs in each (fetch_all=1, which is what a long poll needs).
 *
 * Prints one JSON object: bytes (of batches, produced; fetched when there are no producers), fetched, requests, errors,
 * seconds, cpu (this process), latency percentiles in microseconds from the moment a request is due to its whole
 * answer. rate=0 means as fast as it goes; else requests are due at even times, and one that waits for its turn has
 * its waiting counted (no coordinated omission). With stamp=1 a batch carries the moment it was due in its first value
 * (and a new CRC), and e2e_* are the percentiles of due to received by a consumer.
 * With tls=1 all connections speak TLS 1.3 (tls.h). A run ends after `seconds`, at `mb_max`, or when the consumers are through (once=1: each has read all its
 * partitions to their ends; drain=1: each has read what was there at the start, while the producers go on).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "kafka_wire.h"
#include "options.h"
#include "tls.h"

#define IN_FLIGHT_MAX 64
#define BUCKETS 4096
#define SILENCE_NS 60000000000ll

static int port, partitions = 1, producers = 0, consumers = 0, in_flight = 1, records = 1, value_size = 100, acks = 1;
static int keyed, batches = 1, max_bytes = 1 << 20, max_wait_ms, fetch_all, shared, once, drained_ends, stamp, idle_count, tls;
static double seconds = 1, rate, mb_max = 1e12;
static const char *topic = "bench", *batch_file = "";

static const struct option OPTIONS[] = {
    {"port", &port, 0, 0},             {"topic", 0, 0, &topic},
    {"partitions", &partitions, 0, 0}, /* of the topic */
    {"producers", &producers, 0, 0},   /* connections that produce */
    {"consumers", &consumers, 0, 0},   /* connections that fetch */
    {"connections", &idle_count, 0, 0}, /* further ones, which say hello and then nothing */
    {"in_flight", &in_flight, 0, 0},   {"records", &records, 0, 0},
    {"value_size", &value_size, 0, 0}, {"keyed", &keyed, 0, 0},
    {"acks", &acks, 0, 0},             {"batches", &batches, 0, 0}, /* in a request, each for another partition */
    {"batch_file", 0, 0, &batch_file}, /* a ready batch: records, value_size, keyed are its own affair */
    {"rate", 0, &rate, 0},             /* MB/s over all producers */
    {"seconds", 0, &seconds, 0},       {"mb_max", 0, &mb_max, 0},
    {"max_bytes", &max_bytes, 0, 0},   /* of a partition in an answer */
    {"max_wait_ms", &max_wait_ms, 0, 0}, {"fetch_all", &fetch_all, 0, 0},
    {"shared", &shared, 0, 0},         /* the consumers divide the partitions; else each reads all */
    {"once", &once, 0, 0},             {"drain", &drained_ends, 0, 0},
    {"stamp", &stamp, 0, 0},           {"tls", &tls, 0, 0},
};

struct connection {
    int fd, consumes;
    void *ssl;                  /* of tls=1 */
    int partition;              /* produce: of the next request */
    uint32_t correlation;
    int outstanding;
    int64_t due[IN_FLIGHT_MAX]; /* ns, ring of the requests not yet answered */
    int first;
    uint8_t *head;
    size_t head_size;
    const uint8_t *body;        /* after the head; the shared batch, or `own` */
    size_t body_size, sent;
    uint8_t *own;               /* what `batches` and `stamp` need: the body of this connection */
    uint8_t *in;
    size_t in_size, in_room;
    int *mine, mine_count, turn; /* consume: its partitions */
    int64_t *offsets;           /* consume: next offset, by partition */
    int *finished, unfinished;  /* consume: by partition, what `once` and `drain` wait for */
    int want_out;
};

static int64_t latency[2][BUCKETS]; /* of requests, end to end; log-linear: 64 steps a power of two */
static int64_t produced, fetched, produce_answers, fetch_answers, failures, last_ns;
static int64_t start_ns, end_ns;
static int64_t *first_end, *known_end; /* by partition: the end when it was first seen, and as it is known */
static uint8_t *batch;
static size_t batch_size, stamp_at, topic_size;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void note_latency(int which, int64_t ns)
{
    uint64_t v = ns < 64 ? 64 : (uint64_t)ns;
    int power = 63 - __builtin_clzll(v);
    int index = (power - 6) * 64 + (int)((v >> (power - 6)) & 63);
    latency[which][index < BUCKETS ? index : BUCKETS - 1]++;
}

static double percentile(int which, double part)
{
    int64_t all = 0, seen = 0;
    for (int i = 0; i < BUCKETS; i++)
        all += latency[which][i];
    for (int i = 0; i < BUCKETS; i++) {
        seen += latency[which][i];
        if (seen > 0 && (double)seen >= part * (double)all)
            return (double)((64ull + (i & 63)) << (i / 64)) / 1000.0;
    }
    return 0;
}

static void *make(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size);
    if (!p) {
        perror("calloc");
        exit(1);
    }
    return p;
}

static int dial(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0) {
        perror("socket");
        exit(1);
    }
    for (int tries = 0; connect(fd, (struct sockaddr *)&to, sizeof to) < 0; tries++) {
        if (tries == 20) {
            perror("connect");
            exit(1);
        }
        usleep(50000);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void *encrypted(int fd)
{
    static void *context;
    if (!tls)
        return NULL;
    if (!context)
        context = tls_context();
    void *ssl = SSL_new(context);
    SSL_set_fd(ssl, fd);
    if (SSL_connect(ssl) != 1) {
        fprintf(stderr, "no TLS handshake\n");
        exit(1);
    }
    return ssl;
}

static ssize_t take(int fd, void *ssl, void *at, size_t room)
{
    return ssl ? tls_outcome(ssl, SSL_read(ssl, at, room > 1 << 30 ? 1 << 30 : (int)room)) : recv(fd, at, room, 0);
}

static ssize_t give(int fd, void *ssl, const struct iovec *v, int n)
{
    static uint8_t joined[16384];
    if (!ssl)
        return writev(fd, v, n);
    if (n == 2 && v[0].iov_len + v[1].iov_len <= sizeof joined) { /* one record */
        memcpy(joined, v[0].iov_base, v[0].iov_len);
        memcpy(joined + v[0].iov_len, v[1].iov_base, v[1].iov_len);
        return tls_outcome(ssl, SSL_write(ssl, joined, (int)(v[0].iov_len + v[1].iov_len)));
    }
    return tls_outcome(ssl, SSL_write(ssl, v[0].iov_base, (int)v[0].iov_len));
}

static void take_whole(int fd, void *ssl, uint8_t *at, size_t size)
{
    for (size_t got = 0; got < size;) {
        ssize_t n = take(fd, ssl, at + got, size - got);
        if (n <= 0) {
            perror("hello");
            exit(1);
        }
        got += (size_t)n;
    }
}

static size_t request_head(uint8_t *p, int key, int version, uint32_t correlation)
{
    put16(p + 4, (uint16_t)key);
    put16(p + 6, (uint16_t)version);
    put32(p + 8, correlation);
    put16(p + 12, 4);
    memcpy(p + 14, "load", 4);
    return 18;
}

static size_t put_string(uint8_t *p, const char *s)
{
    size_t n = strlen(s);
    put16(p, (uint16_t)n);
    memcpy(p + 2, s, n);
    return n + 2;
}

/* -- idle connections: ApiVersions, as every client says, then nothing */

static int *open_idle(int count)
{
    int *fds = make((size_t)count, sizeof *fds);
    for (int i = 0; i < count; i++) {
        uint8_t hello[32], answer[4096];
        fds[i] = dial();
        void *ssl = encrypted(fds[i]);
        size_t n = request_head(hello, 18, 0, 1);
        put32(hello, (uint32_t)(n - 4));
        struct iovec v = {.iov_base = hello, .iov_len = n};
        if (give(fds[i], ssl, &v, 1) != (ssize_t)n) {
            perror("hello");
            exit(1);
        }
        take_whole(fds[i], ssl, answer, 4);
        size_t size = get32(answer);
        if (size > sizeof answer) {
            fprintf(stderr, "an answer to ApiVersions of %zu bytes\n", size);
            exit(1);
        }
        take_whole(fds[i], ssl, answer, size);
        fcntl(fds[i], F_SETFL, O_NONBLOCK);
    }
    return fds;
}

static int closed_among(const int *fds, int count)
{
    int closed = 0;
    char c;
    for (int i = 0; i < count; i++)
        closed += recv(fds[i], &c, 1, MSG_PEEK) >= 0; /* a goodbye of TLS is an end, too */
    return closed;
}

/* -- producing */

static void stamp_batch(uint8_t *copy, int64_t due)
{
    put64(copy + stamp_at, (uint64_t)due);
    put32(copy + 17, crc32c(copy + 21, batch_size - 21));
}

static void produce_request(struct connection *c, int64_t due, int how)
{
    uint8_t *p = c->head;
    size_t n = request_head(p, 0, 7, c->correlation++);
    put16(p + n, 0xffff);
    put16(p + n + 2, (uint16_t)how);
    put32(p + n + 4, 30000);
    put32(p + n + 8, 1);
    n += 12;
    n += put_string(p + n, topic);
    put32(p + n, (uint32_t)batches);
    n += 4;
    c->body = batch;
    c->body_size = batch_size;
    if (batches == 1) {
        put32(p + n, (uint32_t)c->partition);
        put32(p + n + 4, (uint32_t)batch_size);
        n += 8;
        c->partition = (c->partition + 1) % partitions;
        if (c->own) {
            stamp_batch(c->own, due);
            c->body = c->own;
        }
    } else {
        for (int i = 0; i < batches; i++) {
            uint8_t *at = c->own + (size_t)i * (8 + batch_size);
            put32(at, (uint32_t)c->partition);
            if (stamp)
                stamp_batch(at + 8, due);
            c->partition = (c->partition + 1) % partitions;
        }
        c->body = c->own;
        c->body_size = (size_t)batches * (8 + batch_size);
    }
    put32(p, (uint32_t)(n - 4 + c->body_size));
    c->head_size = n;
    c->due[(c->first + c->outstanding) % IN_FLIGHT_MAX] = due;
    if (how)
        c->outstanding++;
    else
        produced += (int64_t)batch_size * batches, produce_answers++;
}

static void produce_answer(const uint8_t *p, size_t size)
{
    /* correlation, topics count, name, partitions count | index, error, base offset, append time, log start */
    size_t at = 4 + 4 + 2 + topic_size + 4;
    for (int i = 0; i < batches; i++, at += 30) {
        if (size < at + 30) {
            failures++;
            return;
        }
        uint32_t index = get32(p + at);
        int error = (int16_t)get16(p + at + 4);
        if (error || index >= (uint32_t)partitions) {
            if (failures++ < 3)
                fprintf(stderr, "produce: error %d\n", error);
            continue;
        }
        int64_t end = (int64_t)get64(p + at + 6) + get32(batch + 57);
        if (end > known_end[index])
            known_end[index] = end;
        produced += (int64_t)batch_size;
    }
    produce_answers++;
    last_ns = now_ns();
}

/* -- consuming */

static void fetch_request(struct connection *c)
{
    uint8_t *p = c->head;
    int count = fetch_all ? c->mine_count : 1;
    size_t n = request_head(p, 1, 11, c->correlation++);
    put32(p + n, (uint32_t)-1); /* replica */
    put32(p + n + 4, (uint32_t)max_wait_ms);
    put32(p + n + 8, 1);                 /* min bytes */
    put32(p + n + 12, 64 << 20);         /* max bytes */
    p[n + 16] = 0;                       /* isolation */
    put32(p + n + 17, 0);                /* session id */
    put32(p + n + 21, (uint32_t)-1);     /* session epoch: none */
    put32(p + n + 25, 1);
    n += 29;
    n += put_string(p + n, topic);
    put32(p + n, (uint32_t)count);
    n += 4;
    /* the order turns, so that no partition starves behind the others when the answer is full */
    for (int i = 0; i < count; i++, n += 28) {
        int partition = c->mine[(c->turn + i) % c->mine_count];
        put32(p + n, (uint32_t)partition);
        put32(p + n + 4, (uint32_t)-1); /* leader epoch */
        put64(p + n + 8, (uint64_t)c->offsets[partition]);
        put64(p + n + 16, (uint64_t)-1); /* log start */
        put32(p + n + 24, (uint32_t)max_bytes);
    }
    if (fetch_all)
        c->turn = (c->turn + 1) % c->mine_count;
    put32(p + n, 0);     /* forgotten */
    put16(p + n + 4, 0); /* rack */
    n += 6;
    put32(p, (uint32_t)(n - 4));
    c->head_size = n;
    c->body_size = 0;
    c->due[(c->first + c->outstanding++) % IN_FLIGHT_MAX] = now_ns();
}

static void finish(struct connection *c, int partition)
{
    c->unfinished -= !c->finished[partition];
    c->finished[partition] = 1;
}

static int read_batches(struct connection *c, int partition, const uint8_t *b, size_t size)
{
    int64_t now = stamp ? now_ns() : 0;
    int whole_ones = 0;
    for (const uint8_t *end = b + size; end - b >= 61; whole_ones++) {
        size_t whole = 12 + (size_t)get32(b + 8);
        if ((size_t)(end - b) < whole)
            break;
        if (stamp && whole == batch_size) /* what was there before is not stamped, and of another size */
            note_latency(1, now - (int64_t)get64(b + stamp_at));
        c->offsets[partition] = (int64_t)get64(b) + (int32_t)get32(b + 23) + 1;
        b += whole;
    }
    return whole_ones;
}

static void fetch_answer(struct connection *c, const uint8_t *p, size_t size)
{
    /* correlation, throttle, error, session, topics count, name, partitions count | index, error, hw, lso, log start,
     * aborted transactions (id, first offset), preferred replica, records */
    size_t at = 4 + 4 + 2 + 4;
    fetch_answers++;
    if (size < at + 4 || get32(p + at) == 0)
        return; /* a long poll that found nothing */
    at += 4 + 2 + topic_size;
    int count = size >= at + 4 ? (int)get32(p + at) : 0;
    at += 4;
    for (int i = 0; i < count; i++) {
        if (size < at + 42) {
            failures++;
            return;
        }
        int partition = (int)get32(p + at), error = (int16_t)get16(p + at + 4), aborted = (int)get32(p + at + 30);
        int64_t hw = (int64_t)get64(p + at + 6), log_start = (int64_t)get64(p + at + 22);
        at += 34 + (aborted > 0 ? (size_t)aborted * 16 : 0) + 4;
        uint32_t n = get32(p + at);
        at += 4;
        n = n == 0xffffffffu ? 0 : n;
        if (error && error != 1 && failures++ < 3)
            fprintf(stderr, "fetch: error %d\n", error);
        if (partition < 0 || partition >= partitions || at + n > size) {
            failures++;
            return;
        }
        if (!error && first_end[partition] < 0)
            first_end[partition] = hw;
        if (!error && hw > known_end[partition])
            known_end[partition] = hw;
        if (n && !error) {
            fetched += n;
            last_ns = now_ns();
            if (!read_batches(c, partition, p + at, n) && failures++ < 3)
                fprintf(stderr, "fetch: %u bytes without a whole batch\n", n);
        } else if (error == 1) {
            c->offsets[partition] = log_start > 0 ? log_start : 0;
        } else if (!fetch_all && !error) {
            /* the end: the next partition, and this one once more from its start, unless once is enough */
            c->turn = (c->turn + 1) % c->mine_count;
            if (once)
                finish(c, partition);
            else
                c->offsets[partition] = log_start > 0 ? log_start : 0;
        }
        if ((once && fetch_all && c->offsets[partition] >= known_end[partition]) ||
            (drained_ends && first_end[partition] >= 0 && c->offsets[partition] >= first_end[partition]))
            finish(c, partition);
        at += n;
    }
}

/* -- the loop */

/* Reads whole answers. */
static void drain(struct connection *c)
{
    for (;;) {
        if (c->in_size == c->in_room) {
            c->in_room = c->in_room ? c->in_room * 2 : 65536;
            c->in = realloc(c->in, c->in_room);
        }
        ssize_t n = take(c->fd, c->ssl, c->in + c->in_size, c->in_room - c->in_size);
        if (n == 0) {
            fprintf(stderr, "the broker closed a connection\n");
            exit(1);
        }
        if (n < 0) {
            if (errno == EAGAIN)
                return;
            perror("recv");
            exit(1);
        }
        c->in_size += (size_t)n;
        size_t at = 0;
        while (c->in_size - at >= 4) {
            size_t size = get32(c->in + at);
            if (c->in_size - at < 4 + size) {
                if (c->in_room < 4 + size) {
                    c->in_room = 4 + size;
                    c->in = realloc(c->in, c->in_room);
                }
                break;
            }
            /* beside producers it is their latency that counts: a long poll waits because it should */
            if (!c->consumes || !producers)
                note_latency(0, now_ns() - c->due[c->first]);
            c->first = (c->first + 1) % IN_FLIGHT_MAX;
            c->outstanding--;
            if (c->consumes)
                fetch_answer(c, c->in + at + 4, size);
            else
                produce_answer(c->in + at + 4, size);
            at += 4 + size;
        }
        memmove(c->in, c->in + at, c->in_size - at);
        c->in_size -= at;
    }
}

/* Sends the request under way; 0 when the socket is full. */
static int push(struct connection *c)
{
    while (c->sent < c->head_size + c->body_size) {
        struct iovec v[2];
        int n = 0;
        if (c->sent < c->head_size) {
            v[n].iov_base = c->head + c->sent;
            v[n++].iov_len = c->head_size - c->sent;
        }
        size_t from = c->sent > c->head_size ? c->sent - c->head_size : 0;
        if (c->body_size) {
            v[n].iov_base = (void *)(c->body + from);
            v[n++].iov_len = c->body_size - from;
        }
        ssize_t sent = give(c->fd, c->ssl, v, n);
        if (sent < 0) {
            if (errno == EAGAIN)
                return 0;
            perror("writev");
            exit(1);
        }
        c->sent += (size_t)sent;
    }
    c->head_size = c->body_size = c->sent = 0;
    return 1;
}

static int epoll;

static void watch(struct connection *c, int out)
{
    if (c->want_out == out)
        return;
    c->want_out = out;
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &e);
}

static void read_batch_file(void)
{
    FILE *f = fopen(batch_file, "rb");
    if (!f) {
        perror(batch_file);
        exit(1);
    }
    fseek(f, 0, SEEK_END);
    batch_size = (size_t)ftell(f);
    rewind(f);
    batch = make(batch_size, 1);
    if (fread(batch, 1, batch_size, f) != batch_size || batch_size < 61) {
        fprintf(stderr, "%s: not a batch\n", batch_file);
        exit(1);
    }
    fclose(f);
}

static void prepare(struct connection *all)
{
    if (*batch_file) {
        read_batch_file();
    } else {
        struct timespec wall;
        clock_gettime(CLOCK_REALTIME, &wall);
        batch = make((size_t)records * (size_t)(value_size + 40) + 128, 1);
        batch_size = make_batch(batch, records, value_size, keyed, wall.tv_sec * 1000ll);
    }
    if (stamp) { /* the first record's value: after its length, attributes, two deltas, key and value size */
        const uint8_t *at = batch + 61, *end = batch + batch_size;
        get_varint(&at, end);
        at++;
        get_varint(&at, end);
        get_varint(&at, end);
        int64_t key = get_varint(&at, end);
        at += key > 0 ? key : 0;
        get_varint(&at, end);
        stamp_at = (size_t)(at - batch);
    }
    first_end = make((size_t)partitions, sizeof *first_end);
    known_end = make((size_t)partitions, sizeof *known_end);
    for (int i = 0; i < partitions; i++)
        first_end[i] = -1;
    for (int i = 0; i < producers + consumers; i++) {
        struct connection *c = &all[i];
        c->fd = dial();
        c->ssl = encrypted(c->fd);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->consumes = i >= producers;
        c->head = make(512 + (c->consumes ? 28 * (size_t)partitions : 0), 1);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
        if (!c->consumes) {
            c->partition = (int)((int64_t)i * batches % partitions);
            if (stamp || batches > 1) {
                size_t step = batches > 1 ? batch_size + 8 : batch_size;
                c->own = make((size_t)batches, step);
                for (int k = 0; k < batches; k++) {
                    uint8_t *at = c->own + (size_t)k * step;
                    if (batches > 1) {
                        put32(at + 4, (uint32_t)batch_size);
                        at += 8;
                    }
                    memcpy(at, batch, batch_size);
                }
            }
            continue;
        }
        c->mine = make((size_t)partitions, sizeof *c->mine);
        c->offsets = make((size_t)partitions, sizeof *c->offsets);
        c->finished = make((size_t)partitions, sizeof *c->finished);
        for (int p = 0; p < partitions; p++)
            if (!shared || p % consumers == i - producers)
                c->mine[c->mine_count++] = p;
        c->unfinished = c->mine_count;
        c->turn = c->mine_count ? (i - producers) % c->mine_count : 0;
    }
}

/* Whether the consumers have all that they are after: what was there (once, drain), or all that was acknowledged. */
static int consumers_through(struct connection *all, int whole)
{
    for (int i = producers; i < producers + consumers; i++) {
        struct connection *c = &all[i];
        if (!whole && c->unfinished)
            return 0;
        for (int k = 0; whole && k < c->mine_count; k++)
            if (c->offsets[c->mine[k]] < known_end[c->mine[k]])
                return 0;
    }
    return 1;
}

static void report(int64_t begun, const int *idle)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    double cpu = (double)u.ru_utime.tv_sec + u.ru_utime.tv_usec / 1e6 + (double)u.ru_stime.tv_sec + u.ru_stime.tv_usec / 1e6;
    printf("{\"bytes\": %lld, \"fetched\": %lld, \"requests\": %lld, \"errors\": %lld, \"seconds\": %.6f, \"cpu\": %.6f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"batch_bytes\": %zu, \"batch_records\": %u, "
           "\"idle_closed\": %d",
           (long long)(producers ? produced : fetched), (long long)fetched,
           (long long)(producers ? produce_answers : fetch_answers), (long long)failures,
           (double)(last_ns - begun) / 1e9, cpu, percentile(0, 0.5), percentile(0, 0.99), percentile(0, 0.999),
           batch_size, get32(batch + 57), closed_among(idle, idle_count));
    if (stamp)
        printf(", \"e2e_p50_us\": %.1f, \"e2e_p99_us\": %.1f, \"e2e_p999_us\": %.1f", percentile(1, 0.5),
               percentile(1, 0.99), percentile(1, 0.999));
    printf("}\n");
}

static int run(void)
{
    int *idle = open_idle(idle_count);
    epoll = epoll_create1(0);
    struct connection *all = make((size_t)(producers + consumers), sizeof *all);
    prepare(all);
    start_ns = last_ns = now_ns();
    end_ns = start_ns + (int64_t)(seconds * 1e9);
    double gap_ns = rate > 0 ? (double)batch_size * batches / (rate * 1e6) * 1e9 : 0;
    int64_t issued = 0;
    int turn = 0, through = 0, closing = 0;
    struct epoll_event events[256];
    for (;;) {
        int64_t now = now_ns();
        int until_read = consumers && (once || drained_ends);
        through = through || (until_read && consumers_through(all, 0));
        int done = through || (!until_read && now >= end_ns) || (double)produced >= mb_max * 1e6;
        if (done && acks == 0 && producers && !closing) {
            /* one more that is answered: a broker takes requests in order, so its answer stands for all before it */
            int waiting = 0;
            for (int i = 0; i < producers; i++)
                waiting += all[i].head_size != 0;
            if (!waiting) {
                closing = 1;
                for (int i = 0; i < producers; i++) {
                    produce_request(&all[i], now, 1);
                    watch(&all[i], !push(&all[i]));
                }
            }
        } else if (done) {
            int64_t outstanding = 0;
            for (int i = 0; i < producers + consumers; i++)
                outstanding += i < producers || (!producers && !max_wait_ms) ? all[i].outstanding : 0;
            if (outstanding == 0 && (!producers || !consumers || through || consumers_through(all, 1)))
                break;
        }
        int wait = 100;
        if (gap_ns > 0 && !done) {
            /* open loop: the next requests that are due, to connections in turn */
            while (start_ns + (int64_t)(gap_ns * (double)issued) <= now) {
                struct connection *c = NULL;
                for (int i = 0; i < producers && !c; i++) {
                    struct connection *candidate = &all[(turn + i) % producers];
                    if (candidate->outstanding < in_flight && candidate->head_size == 0) {
                        c = candidate;
                        turn = (turn + i + 1) % producers;
                    }
                }
                if (!c)
                    break;
                produce_request(c, start_ns + (int64_t)(gap_ns * (double)issued++), acks);
                watch(c, !push(c));
            }
            int64_t next = start_ns + (int64_t)(gap_ns * (double)issued) - now_ns();
            wait = next <= 0 ? 0 : (int)(next / 1000000);
        } else if (!done) {
            for (int i = 0; i < producers; i++) {
                struct connection *c = &all[i];
                /* without answers one connection must not keep the loop: a few requests, then the next's turn */
                for (int burst = 0; c->outstanding < in_flight && c->head_size == 0 && burst < IN_FLIGHT_MAX; burst++) {
                    produce_request(c, now_ns(), acks);
                    watch(c, !push(c));
                    if (acks == 0)
                        wait = 0;
                }
            }
        }
        for (int i = producers; i < producers + consumers; i++) {
            struct connection *c = &all[i];
            if ((!done || (producers && !through)) && c->outstanding == 0 && c->head_size == 0 && c->mine_count &&
                (!until_read || c->unfinished)) {
                fetch_request(c);
                watch(c, !push(c));
            }
        }
        /* A consumer has work between its answers. One that sleeps has to be woken for each, and on a virtual
         * machine waking an idle core costs the broker more than the answer: so this one looks again at once. */
        if (!producers && !max_wait_ms)
            wait = 0;
        int n = epoll_wait(epoll, events, 256, wait);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT)
                watch(c, !push(c));
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                drain(c);
        }
        now = now_ns();
        if (now > end_ns + SILENCE_NS && now > last_ns + SILENCE_NS) {
            fprintf(stderr, "no answer for a minute\n");
            return 1;
        }
    }
    report(start_ns, idle);
    return failures ? 1 : 0;
}

static int hold_idle(void)
{
    int *fds = open_idle(idle_count);
    printf("{\"connections\": %d}\n", idle_count);
    fflush(stdout);
    char c;
    while (read(0, &c, 1) > 0)
        ;
    printf("{\"closed\": %d}\n", closed_among(fds, idle_count));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2 || (strcmp(argv[1], "run") && strcmp(argv[1], "idle"))) {
        fprintf(stderr, "load run|idle name=value ...\n");
        return 2;
    }
    if (take_options(OPTIONS, sizeof OPTIONS / sizeof *OPTIONS, argc - 2, argv + 2))
        return 2;
    topic_size = strlen(topic);
    if (in_flight < 1 || in_flight > IN_FLIGHT_MAX || topic_size > 200 || batches < 1 || batches > partitions ||
        (acks == 0 && (stamp || consumers)) || (shared && consumers > partitions)) {
        fprintf(stderr, "in flight 1 to %d, topic names up to 200 bytes, no more batches or shared consumers than "
                        "partitions, and acks=0 only for producers alone\n", IN_FLIGHT_MAX);
        return 2;
    }
    if (!strcmp(argv[1], "idle"))
        return hold_idle();
    return run();
}
