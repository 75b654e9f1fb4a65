/* The load generator: pre-encoded Produce or Fetch requests over many connections, on one thread.
 *
 *   load produce HOST PORT TOPIC PARTITIONS CONNECTIONS IN_FLIGHT RECORDS VALUE_SIZE ACKS SECONDS MB_PER_S KEYED [MB_MAX]
 *   load fetch   HOST PORT TOPIC PARTITIONS CONNECTIONS MAX_BYTES SECONDS
 *   load idle    HOST PORT CONNECTIONS SECONDS
 *
 * Prints one JSON object: bytes (of batches), requests, errors, seconds, cpu (this process), latency percentiles in
 * microseconds from the moment a request is due to its whole answer. MB_PER_S 0 means as fast as it goes; else
 * requests are due at even times, and one that waits for its turn has its waiting counted (no coordinated omission).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "kafka_wire.h"

#define IN_FLIGHT_MAX 64
#define BUCKETS 4096

struct connection {
    int fd;
    int partition;              /* of the next request */
    uint32_t correlation;
    int outstanding;
    int64_t due[IN_FLIGHT_MAX]; /* ns, ring of the requests not yet answered */
    int first, queued;
    size_t out_sent, out_size;  /* of the request being written */
    const uint8_t *out;
    uint8_t head[256];
    size_t head_size;
    uint8_t *in;
    size_t in_size, in_room;
    int64_t *offsets;           /* fetch: next offset of each partition */
    int want_out;
};

static int64_t latency[BUCKETS]; /* log-linear: 64 steps a power of two */
static int64_t bytes, requests, failures;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void note_latency(int64_t ns)
{
    uint64_t v = ns < 64 ? 64 : (uint64_t)ns;
    int power = 63 - __builtin_clzll(v);
    int index = (power - 6) * 64 + (int)((v >> (power - 6)) & 63);
    latency[index < BUCKETS ? index : BUCKETS - 1]++;
}

static double percentile(double part)
{
    int64_t all = 0, seen = 0;
    for (int i = 0; i < BUCKETS; i++)
        all += latency[i];
    for (int i = 0; i < BUCKETS; i++) {
        seen += latency[i];
        if (seen > 0 && (double)seen >= part * (double)all)
            return (double)((64ull + (i & 63)) << (i / 64)) / 1000.0;
    }
    return 0;
}

static int dial(const char *host, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, host, &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int one = 1;
    for (int tries = 0; connect(fd, (struct sockaddr *)&to, sizeof to) < 0; tries++) {
        if (tries == 20) {
            perror("connect");
            exit(1);
        }
        usleep(50000);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
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

static int64_t start_ns, end_ns;

/* Reads whole answers; calls `answer` with each. */
static void drain(struct connection *c, void (*answer)(struct connection *, const uint8_t *, size_t))
{
    for (;;) {
        if (c->in_size == c->in_room) {
            c->in_room = c->in_room ? c->in_room * 2 : 65536;
            c->in = realloc(c->in, c->in_room);
        }
        ssize_t n = recv(c->fd, c->in + c->in_size, c->in_room - c->in_size, 0);
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
            int64_t now = now_ns();
            note_latency(now - c->due[c->first]);
            c->first = (c->first + 1) % IN_FLIGHT_MAX;
            c->outstanding--;
            requests++;
            answer(c, c->in + at + 4, size);
            at += 4 + size;
        }
        memmove(c->in, c->in + at, c->in_size - at);
        c->in_size -= at;
    }
}

static const char *topic;
static int partitions, acks, batch_count;
static uint8_t *batch;
static size_t batch_size, topic_size;

static void produce_answer(struct connection *c, const uint8_t *p, size_t size)
{
    (void)c;
    /* correlation, topics count, name, partitions count, index, error */
    size_t at = 4 + 4 + 2 + topic_size + 4 + 4;
    int error = size >= at + 2 ? (int16_t)get16(p + at) : -1;
    if (error) {
        if (failures++ < 3)
            fprintf(stderr, "produce: error %d\n", error);
    } else {
        bytes += (int64_t)batch_size;
    }
}

static void produce_head(struct connection *c)
{
    uint8_t *p = c->head;
    size_t n = request_head(p, 0, 7, c->correlation++);
    put16(p + n, 0xffff);
    put16(p + n + 2, (uint16_t)acks);
    put32(p + n + 4, 30000);
    put32(p + n + 8, 1);
    n += 12;
    n += put_string(p + n, topic);
    put32(p + n, 1);
    put32(p + n + 4, (uint32_t)c->partition);
    put32(p + n + 8, (uint32_t)batch_size);
    n += 12;
    put32(p, (uint32_t)(n - 4 + batch_size));
    c->head_size = n;
    c->partition = (c->partition + 1) % partitions;
}

/* Sends the request under way; 0 when the socket is full. */
static int push(struct connection *c)
{
    while (c->out_sent < c->head_size + c->out_size) {
        struct iovec v[2];
        int n = 0;
        if (c->out_sent < c->head_size) {
            v[n].iov_base = c->head + c->out_sent;
            v[n++].iov_len = c->head_size - c->out_sent;
            if (c->out_size) {
                v[n].iov_base = (void *)c->out;
                v[n++].iov_len = c->out_size;
            }
        } else {
            v[n].iov_base = (void *)(c->out + (c->out_sent - c->head_size));
            v[n++].iov_len = c->out_size - (c->out_sent - c->head_size);
        }
        ssize_t sent = writev(c->fd, v, n);
        if (sent < 0) {
            if (errno == EAGAIN)
                return 0;
            perror("writev");
            exit(1);
        }
        c->out_sent += (size_t)sent;
    }
    c->head_size = c->out_size = c->out_sent = 0;
    return 1;
}

static void watch(int epoll, struct connection *c, int out)
{
    if (c->want_out == out)
        return;
    c->want_out = out;
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &e);
}

static void report(int64_t begun)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    double cpu = (double)u.ru_utime.tv_sec + u.ru_utime.tv_usec / 1e6 + (double)u.ru_stime.tv_sec + u.ru_stime.tv_usec / 1e6;
    printf("{\"bytes\": %lld, \"requests\": %lld, \"errors\": %lld, \"seconds\": %.6f, \"cpu\": %.6f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f}\n",
           (long long)bytes, (long long)requests, (long long)failures, (double)(now_ns() - begun) / 1e9, cpu,
           percentile(0.5), percentile(0.99), percentile(0.999));
}

static int produce(int argc, char **argv)
{
    if (argc < 14) {
        fprintf(stderr, "load produce HOST PORT TOPIC PARTITIONS CONNECTIONS IN_FLIGHT RECORDS VALUE_SIZE ACKS SECONDS MB_PER_S KEYED\n");
        return 2;
    }
    topic = argv[4];
    topic_size = strlen(topic);
    partitions = atoi(argv[5]);
    int connections = atoi(argv[6]), in_flight = atoi(argv[7]);
    batch_count = atoi(argv[8]);
    int value_size = atoi(argv[9]);
    acks = atoi(argv[10]);
    double seconds = atof(argv[11]), rate = atof(argv[12]);
    int keyed = atoi(argv[13]);
    double bytes_max = argc > 14 ? atof(argv[14]) * 1e6 : 1e18;
    if (in_flight > IN_FLIGHT_MAX || topic_size > 200 || acks == 0) {
        fprintf(stderr, "in flight up to %d, topic names up to 200 bytes, acks 1 or -1\n", IN_FLIGHT_MAX);
        return 2;
    }
    batch = malloc((size_t)batch_count * (size_t)(value_size + 40) + 128);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    batch_size = make_batch(batch, batch_count, value_size, keyed, wall.tv_sec * 1000ll);

    int epoll = epoll_create1(0);
    struct connection *all = calloc((size_t)connections, sizeof *all);
    for (int i = 0; i < connections; i++) {
        all[i].fd = dial(argv[2], atoi(argv[3]));
        all[i].partition = i % partitions;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].fd, &e);
    }
    start_ns = now_ns();
    end_ns = start_ns + (int64_t)(seconds * 1e9);
    double gap_ns = rate > 0 ? (double)batch_size / (rate * 1e6) * 1e9 : 0;
    int64_t issued = 0;
    int turn = 0;
    struct epoll_event events[256];
    int64_t outstanding = 0;
    for (;;) {
        int64_t now = now_ns();
        int done = now >= end_ns || (double)bytes >= bytes_max;
        if (done) {
            outstanding = 0;
            for (int i = 0; i < connections; i++)
                outstanding += all[i].outstanding;
            if (outstanding == 0)
                break;
        }
        int wait = -1;
        if (gap_ns > 0 && !done) {
            /* open loop: the next requests that are due, to connections in turn */
            while (start_ns + (int64_t)(gap_ns * (double)issued) <= now) {
                struct connection *c = NULL;
                for (int i = 0; i < connections && !c; i++) {
                    struct connection *candidate = &all[(turn + i) % connections];
                    if (candidate->outstanding < in_flight && candidate->head_size == 0) {
                        c = candidate;
                        turn = (turn + i + 1) % connections;
                    }
                }
                if (!c)
                    break;
                c->due[(c->first + c->outstanding++) % IN_FLIGHT_MAX] = start_ns + (int64_t)(gap_ns * (double)issued++);
                produce_head(c);
                c->out = batch;
                c->out_size = batch_size;
                watch(epoll, c, !push(c));
            }
            int64_t next = start_ns + (int64_t)(gap_ns * (double)issued) - now_ns();
            wait = next <= 0 ? 0 : (int)(next / 1000000);
        } else if (!done) {
            for (int i = 0; i < connections; i++) {
                struct connection *c = &all[i];
                while (c->outstanding < in_flight && c->head_size == 0) {
                    c->due[(c->first + c->outstanding++) % IN_FLIGHT_MAX] = now_ns();
                    produce_head(c);
                    c->out = batch;
                    c->out_size = batch_size;
                    if (!push(c)) {
                        watch(epoll, c, 1);
                        break;
                    }
                }
            }
            wait = 100;
        } else {
            wait = 100;
        }
        int n = epoll_wait(epoll, events, 256, wait);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT)
                watch(epoll, c, !push(c));
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                drain(c, produce_answer);
        }
        if (now_ns() > end_ns + 60000000000ll) {
            fprintf(stderr, "no answer for a minute\n");
            return 1;
        }
    }
    report(start_ns);
    return failures ? 1 : 0;
}

static int fetch_partition_of(struct connection *c) { return c->partition; }

static void fetch_answer(struct connection *c, const uint8_t *p, size_t size)
{
    /* correlation, throttle, error, session, topics count, name, partitions count | index, error, hw, lso, log start,
     * aborted count (-1), preferred replica, records size */
    size_t at = 4 + 4 + 2 + 4 + 4 + 2 + topic_size + 4;
    if (size < at + 4 + 2 + 8 + 8 + 8 + 4 + 4 + 4) {
        failures++;
        return;
    }
    int error = (int16_t)get16(p + at + 4);
    int aborted = (int)get32(p + at + 30);
    at += 34 + (aborted > 0 ? (size_t)aborted * 16 : 0) + 4;
    uint32_t records = get32(p + at);
    at += 4;
    int partition = fetch_partition_of(c);
    if (error || records == 0 || records == 0xffffffffu) {
        if (error && error != 1 && failures++ < 3)
            fprintf(stderr, "fetch: error %d\n", error);
        c->offsets[partition] = 0; /* the end: read it all again */
        c->partition = (c->partition + 1) % partitions;
        return;
    }
    bytes += records;
    const uint8_t *b = p + at, *end = p + at + records;
    while (end - b >= 61) {
        size_t whole = 12 + (size_t)get32(b + 8);
        if ((size_t)(end - b) < whole)
            break;
        c->offsets[partition] = (int64_t)get64(b) + (int32_t)get32(b + 23) + 1;
        b += whole;
    }
}

static int fetch(int argc, char **argv)
{
    if (argc < 9) {
        fprintf(stderr, "load fetch HOST PORT TOPIC PARTITIONS CONNECTIONS MAX_BYTES SECONDS\n");
        return 2;
    }
    topic = argv[4];
    topic_size = strlen(topic);
    partitions = atoi(argv[5]);
    int connections = atoi(argv[6]), max_bytes = atoi(argv[7]);
    double seconds = atof(argv[8]);
    int epoll = epoll_create1(0);
    struct connection *all = calloc((size_t)connections, sizeof *all);
    for (int i = 0; i < connections; i++) {
        all[i].fd = dial(argv[2], atoi(argv[3]));
        all[i].partition = i % partitions;
        all[i].offsets = calloc((size_t)partitions, sizeof(int64_t));
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].fd, &e);
    }
    start_ns = now_ns();
    end_ns = start_ns + (int64_t)(seconds * 1e9);
    struct epoll_event events[256];
    for (;;) {
        int done = now_ns() >= end_ns, busy = 0;
        for (int i = 0; i < connections; i++) {
            struct connection *c = &all[i];
            if (!done && c->outstanding == 0 && c->head_size == 0) {
                uint8_t *p = c->head;
                size_t n = request_head(p, 1, 11, c->correlation++);
                put32(p + n, (uint32_t)-1);          /* replica */
                put32(p + n + 4, 0);                 /* max wait: at the end it starts over */
                put32(p + n + 8, 1);                 /* min bytes */
                put32(p + n + 12, 64 << 20);         /* max bytes */
                p[n + 16] = 0;                       /* isolation */
                put32(p + n + 17, 0);                /* session id */
                put32(p + n + 21, (uint32_t)-1);     /* session epoch: none */
                put32(p + n + 25, 1);
                n += 29;
                n += put_string(p + n, topic);
                put32(p + n, 1);
                put32(p + n + 4, (uint32_t)c->partition);
                put32(p + n + 8, (uint32_t)-1);      /* leader epoch */
                put64(p + n + 12, (uint64_t)c->offsets[c->partition]);
                put64(p + n + 20, (uint64_t)-1);     /* log start */
                put32(p + n + 28, (uint32_t)max_bytes);
                put32(p + n + 32, 0);                /* forgotten */
                put16(p + n + 36, 0);                /* rack */
                n += 38;
                put32(p, (uint32_t)(n - 4));
                c->head_size = n;
                c->due[(c->first + c->outstanding++) % IN_FLIGHT_MAX] = now_ns();
                watch(epoll, c, !push(c));
            }
            busy += c->outstanding;
        }
        if (done && !busy)
            break;
        /* A consumer has work between its answers. One that sleeps has to be woken for each, and on a virtual
         * machine waking an idle core costs the broker more than the answer: so this one looks again at once. */
        int n = epoll_wait(epoll, events, 256, 0);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT)
                watch(epoll, c, !push(c));
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                drain(c, fetch_answer);
        }
    }
    report(start_ns);
    return failures ? 1 : 0;
}

static int idle(int argc, char **argv)
{
    if (argc < 6)
        return 2;
    int connections = atoi(argv[4]);
    for (int i = 0; i < connections; i++)
        dial(argv[2], atoi(argv[3]));
    printf("{\"connections\": %d}\n", connections);
    fflush(stdout);
    usleep((useconds_t)(atof(argv[5]) * 1e6));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "produce"))
        return produce(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "fetch"))
        return fetch(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "idle"))
        return idle(argc, argv);
    fprintf(stderr, "load produce|fetch|idle ...\n");
    return 2;
}
