/* Sockets and descriptors of the reactor: accept, options, timers, and what is watched by epoll. */

#ifndef KAFKAD_SOCKETS_H
#define KAFKAD_SOCKETS_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

static inline void kafkad_arm(int timer_fd, int64_t deadline_ms) {
    struct itimerspec when = {{0, 0}, {deadline_ms / 1000, (deadline_ms % 1000) * 1000000}};
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, 0);
}

/* accept4; the peer's address as 16 bytes (IPv4 mapped into IPv6) and its port; -1 as accept4 */
static inline int kafkad_accept(int listener, uint8_t* peer, uint16_t* port) {
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);
    int fd = accept4(listener, (struct sockaddr*)&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    memset(peer, 0, 16);
    *port = 0;
    if (fd >= 0 && address.ss_family == AF_INET) {
        peer[10] = peer[11] = 0xff;
        memcpy(peer + 12, &((struct sockaddr_in*)&address)->sin_addr, 4);
        *port = ntohs(((struct sockaddr_in*)&address)->sin_port);
    } else if (fd >= 0 && address.ss_family == AF_INET6) {
        memcpy(peer, &((struct sockaddr_in6*)&address)->sin6_addr, 16);
        *port = ntohs(((struct sockaddr_in6*)&address)->sin6_port);
    }
    return fd;
}

static inline void kafkad_no_delay(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

/* Whether the peer is on this machine: the loopback network, or the address to which it connected. */
static inline int kafkad_is_near(int fd, const uint8_t* peer) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff}, loopback[16] = {[15] = 1};
    struct sockaddr_storage own;
    socklen_t size = sizeof(own);
    if (memcmp(peer, mapped, 12) == 0 ? peer[12] == 127 : memcmp(peer, loopback, 16) == 0) return 1;
    if (getsockname(fd, (struct sockaddr*)&own, &size)) return 0;
    if (own.ss_family == AF_INET)
        return memcmp(peer, mapped, 12) == 0 && memcmp(peer + 12, &((struct sockaddr_in*)&own)->sin_addr, 4) == 0;
    return own.ss_family == AF_INET6 && memcmp(peer, &((struct sockaddr_in6*)&own)->sin6_addr, 16) == 0;
}

/* If the machine's default congestion control paces, listeners use Reno (net/listener) for peers on this machine. Connections
   to others are set back to the default, as for a new socket; one whose route chose another algorithm keeps it. */
static inline void kafkad_congestion_control(int fd, const uint8_t* peer) {
    char name[16] = {0};
    socklen_t size = sizeof(name);
    if (kafkad_is_near(fd, peer)) return;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) || strncmp(name, "reno", sizeof(name))) return;
    int fresh = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fresh < 0) return;
    size = sizeof(name);
    if (!getsockopt(fresh, IPPROTO_TCP, TCP_CONGESTION, name, &size))
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, size);
    close(fresh);
}

static inline void kafkad_buffers(int fd, int send_size, int receive_size) {
    if (send_size > 0) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_size, sizeof(int));
    if (receive_size > 0) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_size, sizeof(int));
}

/* a doorbell: edge-triggered, so it need not be read */
static inline int kafkad_epoll_doorbell(int epoll_fd, int fd, void* pointer) {
    struct epoll_event event = {0};
    event.events = EPOLLIN | EPOLLET;
    event.data.ptr = pointer;
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static inline int kafkad_epoll_listen(int epoll_fd, int fd, void* pointer, int operation) {
    struct epoll_event event = {0};
    event.events = EPOLLIN;
    event.data.ptr = pointer;
    return epoll_ctl(epoll_fd, operation, fd, &event);
}

#endif
