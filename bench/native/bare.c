/* The bare loop: the least that a broker must do for these requests, on one thread, and nothing else.
 *
 *   bare PORT DIRECTORY PARTITIONS
 *
 * Produce v7 of one topic: CRC-32C over each batch, a walk over its records' lengths, one pwrite a batch. Fetch v11 of
 * one partition: a header and sendfile from a remembered position. No Metadata, no index, no recovery, no limits: what
 * a broker adds to this is what the broker costs.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kafka_wire.h"

struct partition {
    int fd;
    int64_t size, end_offset;
    int64_t *offsets, *positions; /* of every batch */
    int64_t batches, room;
};

struct connection {
    int fd;
    uint8_t *in;
    size_t size, room;
    uint8_t *out;
    size_t out_size, out_room;
    int file;          /* region under way, after `out` */
    off_t position;
    size_t file_size;
};

static struct partition *all;
static int partitions;

static int flush_out(struct connection *c)
{
    size_t sent = 0;
    while (sent < c->out_size) {
        ssize_t n = send(c->fd, c->out + sent, c->out_size - sent, c->file_size ? MSG_MORE : 0);
        if (n < 0) {
            if (errno != EAGAIN)
                return -1;
            memmove(c->out, c->out + sent, c->out_size - sent);
            c->out_size -= sent;
            return 0;
        }
        sent += (size_t)n;
    }
    c->out_size = 0;
    while (c->file_size) {
        ssize_t n = sendfile(c->fd, c->file, &c->position, c->file_size);
        if (n <= 0)
            return n < 0 && errno == EAGAIN ? 0 : -1;
        c->file_size -= (size_t)n;
    }
    return 1;
}

static uint8_t *room(struct connection *c, size_t n)
{
    if (c->out_size + n > c->out_room) {
        c->out_room = (c->out_size + n) * 2;
        c->out = realloc(c->out, c->out_room);
    }
    uint8_t *p = c->out + c->out_size;
    c->out_size += n;
    return p;
}

/* One batch, checked and written; its base offset, or -1. */
static int64_t append(struct partition *partition, uint8_t *at, size_t batch)
{
    if (batch < 61 || crc32c(at + 21, batch - 21) != get32(at + 17))
        return -1;
    const uint8_t *walk = at + 61, *end = at + batch;
    int count = 0;
    while (walk < end) {
        int64_t n = get_varint(&walk, end);
        if (n < 0 || n > end - walk)
            return -1;
        walk += n;
        count++;
    }
    if (count != (int)get32(at + 57))
        return -1;
    put64(at, (uint64_t)partition->end_offset);
    put32(at + 12, 0);
    if (pwrite(partition->fd, at, batch, partition->size) != (ssize_t)batch)
        return -1;
    if (partition->batches == partition->room) {
        partition->room = partition->room ? partition->room * 2 : 1024;
        partition->offsets = realloc(partition->offsets, (size_t)partition->room * 8);
        partition->positions = realloc(partition->positions, (size_t)partition->room * 8);
    }
    partition->offsets[partition->batches] = partition->end_offset;
    partition->positions[partition->batches++] = partition->size;
    int64_t base = partition->end_offset;
    partition->end_offset += count;
    partition->size += (int64_t)batch;
    return base;
}

static int produce(struct connection *c, uint8_t *p, size_t size)
{
    uint8_t *at = p + 8, *end = p + size;
    at += 2 + (int16_t)get16(at); /* client id */
    at += 2;                      /* transactional id (null) */
    int acks = (int16_t)get16(at);
    at += 2 + 4 + 4;              /* acks, timeout, topics */
    uint8_t *name = at;
    size_t name_size = get16(at);
    at += 2 + name_size;
    uint32_t count = get32(at);
    at += 4;
    size_t n = 4 + 4 + 4 + 2 + name_size + 4 + (size_t)count * 30 + 4;
    uint8_t *out = acks ? room(c, n) : NULL;
    if (out) {
        put32(out, (uint32_t)(n - 4));
        memcpy(out + 4, p + 4, 4);
        put32(out + 8, 1);
        memcpy(out + 12, name, 2 + name_size);
        out += 14 + name_size;
        put32(out, count);
        out += 4;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (at + 8 > end)
            return -1;
        uint32_t index = get32(at);
        size_t batch = get32(at + 4);
        at += 8;
        if (batch > (size_t)(end - at) || index >= (uint32_t)partitions)
            return -1;
        int64_t base = append(&all[index], at, batch);
        if (base < 0)
            return -1;
        at += batch;
        if (!out)
            continue;
        put32(out, index);
        put16(out + 4, 0);
        put64(out + 6, (uint64_t)base);
        put64(out + 14, (uint64_t)-1);
        put64(out + 22, 0);
        out += 30;
    }
    if (out)
        put32(out, 0);
    return 0;
}

static int fetch(struct connection *c, uint8_t *p)
{
    uint8_t *at = p + 8;
    at += 2 + (int16_t)get16(at) + 29;
    uint8_t *name = at;
    size_t name_size = get16(at);
    at += 2 + name_size + 4;
    int index = (int)get32(at);
    int64_t offset = (int64_t)get64(at + 8);
    int64_t max = (int32_t)get32(at + 24);
    if (index >= partitions)
        return -1;
    struct partition *partition = &all[index];
    int64_t low = 0, high = partition->batches;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (partition->offsets[middle] <= offset)
            low = middle;
        else
            high = middle;
    }
    int64_t position = offset >= partition->end_offset ? partition->size : partition->positions[low];
    int64_t size = partition->size - position;
    if (size > max)
        size = max;
    size_t n = 4 + 4 + 4 + 2 + 4 + 4 + 2 + name_size + 4 + 4 + 2 + 8 + 8 + 8 + 4 + 4 + 4;
    uint8_t *out = room(c, n);
    put32(out, (uint32_t)(n - 4 + (size_t)size));
    memcpy(out + 4, p + 4, 4);
    put32(out + 8, 0);
    put16(out + 12, 0);
    put32(out + 14, 0);
    put32(out + 18, 1);
    memcpy(out + 22, name, 2 + name_size);
    out += 24 + name_size;
    put32(out, 1);
    put32(out + 4, (uint32_t)index);
    put16(out + 8, 0);
    put64(out + 10, (uint64_t)partition->end_offset);
    put64(out + 18, (uint64_t)partition->end_offset);
    put64(out + 26, 0);
    put32(out + 34, (uint32_t)-1);
    put32(out + 38, (uint32_t)-1);
    put32(out + 42, (uint32_t)size);
    c->file = partition->fd;
    c->position = position;
    c->file_size = (size_t)size;
    return 0;
}

static int readable(struct connection *c)
{
    for (;;) {
        if (c->size == c->room) {
            c->room = c->room ? c->room * 2 : 1 << 20;
            c->in = realloc(c->in, c->room);
        }
        ssize_t n = recv(c->fd, c->in + c->size, c->room - c->size, 0);
        if (n == 0)
            return -1;
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        c->size += (size_t)n;
        size_t at = 0;
        while (c->size - at >= 4 && c->size - at >= 4 + (size_t)get32(c->in + at)) {
            uint8_t *p = c->in + at + 4;
            size_t size = get32(c->in + at);
            if ((get16(p) == 0 ? produce(c, p, size) : fetch(c, p)) < 0)
                return -1;
            if (get16(p) == 1 && flush_out(c) < 0)
                return -1;
            at += 4 + size;
        }
        memmove(c->in, c->in + at, c->size - at);
        c->size -= at;
        if (c->out_size && flush_out(c) < 0)
            return -1;
    }
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "bare PORT DIRECTORY PARTITIONS\n");
        return 2;
    }
    partitions = atoi(argv[3]);
    all = calloc((size_t)partitions, sizeof *all);
    for (int i = 0; i < partitions; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d.log", argv[2], i);
        all[i].fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
        if (all[i].fd < 0) {
            perror(path);
            return 1;
        }
    }
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); /* nothing is paced: net/listener.py says why */
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    inet_pton(AF_INET, "127.0.0.1", &here.sin_addr);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) < 0 || listen(listener, 1024) < 0) {
        perror("bind");
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    int epoll = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL}, events[256];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        int n = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) {
                int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (fd < 0)
                    continue;
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                c = calloc(1, sizeof *c);
                c->fd = fd;
                e.events = EPOLLIN | EPOLLOUT | EPOLLET;
                e.data.ptr = c;
                epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
                continue;
            }
            int bad = 0;
            if (events[i].events & EPOLLOUT)
                bad = flush_out(c) < 0;
            if (!bad && (events[i].events & EPOLLIN))
                bad = readable(c) < 0;
            if (bad || (events[i].events & (EPOLLHUP | EPOLLERR))) {
                close(c->fd);
                free(c->in);
                free(c->out);
                free(c);
            }
        }
    }
}
