/* Shortages: system calls that answer ENOSPC, EMFILE, ENOMEM or EAGAIN now and then, for Python's side and C's alike.

   Preloaded (LD_PRELOAD) into a process; nothing of it is in the broker. SHORTAGE_CONTROL names a file of four u32 that a
   test maps as well (tests/shortages.py), so one switch serves a process and all that it forks:

       chance of 65536 that a call fails | kinds, a mask | state of the generator | calls that failed

   Files count where they lie under SHORTAGE_UNDER; threads and forks always. What takes nothing never fails: reads, cuts,
   fsyncs (whose failure is no shortage), removals. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, NAME = 4, GROW = 8, MAP = 16, THREAD = 32, FORK = 64 };

struct control { uint32_t chance, kinds, state, failed; };

static struct control *control(void)
{
    static struct control *found;
    if (!found) {
        const char *path = getenv("SHORTAGE_CONTROL");
        int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0) : -1;
        if (fd < 0)
            return NULL;
        void *map = (void *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        syscall(SYS_close, fd);
        if (map == MAP_FAILED)
            return NULL;
        found = map;
    }
    return found;
}

static uint32_t chance(struct control *c)
{
    uint32_t old = __atomic_load_n(&c->state, __ATOMIC_RELAXED), x;
    do {
        x = old ? old : 1;
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    } while (!__atomic_compare_exchange_n(&c->state, &old, x, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return x >> 8;
}

static int under(int fd, const char *path)
{
    static const char *directory;
    char link[64], found[PATH_MAX];
    if (!directory)
        directory = getenv("SHORTAGE_UNDER");
    if (!directory)
        return 0;
    if (!path || path[0] != '/') {
        if (fd < 0)
            return 0;
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, found, sizeof found - 1);
        found[n < 0 ? 0 : n] = 0;
        path = found;
    }
    return !strncmp(path, directory, strlen(directory));
}

/* An errno out of `errnos` (which end with 0), or 0. */
static int shortage(int kind, int fd, const char *path, const int *errnos)
{
    struct control *c = control();
    int kept = errno, count = 0, failure = 0;
    if (c && c->chance && c->kinds & kind && (kind & (THREAD | FORK) || under(fd, path))
            && (chance(c) & 0xffff) < c->chance) {
        while (errnos[count])
            count++;
        failure = errnos[chance(c) % count];
        __atomic_add_fetch(&c->failed, 1, __ATOMIC_RELAXED);
    }
    errno = failure ? failure : kept;
    return failure;
}

static const int OPENING[] = {EMFILE, ENFILE, ENOMEM, 0}, CREATING[] = {EMFILE, ENFILE, ENOMEM, ENOSPC, 0},
                 ROOM[] = {ENOSPC, ENOSPC, ENOMEM, 0}, MEMORY[] = {ENOMEM, 0}, AGAIN[] = {EAGAIN, 0};

static int opened(int d, const char *path, int flags, mode_t mode)
{
    if (shortage(OPEN, d, path, flags & (O_CREAT | __O_TMPFILE) ? CREATING : OPENING))
        return -1;
    return (int)syscall(SYS_openat, d, path, flags, mode);
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, int); va_end(more); }
int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int d, const char *path, int flags, ...) { MODE(flags) return opened(d, path, flags, mode); }
int openat64(int d, const char *path, int flags, ...) { MODE(flags) return opened(d, path, flags, mode); }

DIR *opendir(const char *path)
{
    static DIR *(*next)(const char *);
    if (!next)
        next = (DIR *(*)(const char *))dlsym(RTLD_NEXT, "opendir");
    return shortage(OPEN, -1, path, OPENING) ? NULL : next(path);
}

/* A disk fills up in the middle of a write: the first answer is short, the next one an error. */
static size_t room(int fd, size_t size)
{
    if (!shortage(WRITE, fd, NULL, ROOM))
        return size;
    return errno != ENOSPC || size < 2 || chance(control()) & 1 ? 0 : size / 2;
}
static ssize_t written(long number, int fd, const void *bytes, size_t size, off_t at)
{
    size_t part = room(fd, size);
    return size && !part ? -1 : syscall(number, fd, bytes, part, at);
}
ssize_t write(int fd, const void *bytes, size_t size) { return written(SYS_write, fd, bytes, size, 0); }
ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) { return written(SYS_pwrite64, fd, bytes, size, at); }
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at) { return written(SYS_pwrite64, fd, bytes, size, at); }

ssize_t sendfile(int out, int in, off_t *at, size_t size)
{
    size_t part = room(out, size);
    return size && !part ? -1 : syscall(SYS_sendfile, out, in, at, part);
}
ssize_t sendfile64(int out, int in, off64_t *at, size_t size) { return sendfile(out, in, at, size); }

#define NO(kind, fd, path, errnos, call) return shortage(kind, fd, path, errnos) ? -1 : (int)(call)
int fallocate(int fd, int mode, off_t at, off_t n) { NO(GROW, fd, NULL, ROOM, syscall(SYS_fallocate, fd, mode, at, n)); }
int fallocate64(int fd, int mode, off64_t at, off64_t n) { NO(GROW, fd, NULL, ROOM, syscall(SYS_fallocate, fd, mode, at, n)); }

static int stretched(int fd, off_t size)
{
    struct stat status;
    if (fstat(fd, &status) == 0 && size > status.st_size && shortage(GROW, fd, NULL, ROOM))
        return -1;
    return (int)syscall(SYS_ftruncate, fd, size);
}
int ftruncate(int fd, off_t size) { return stretched(fd, size); }
int ftruncate64(int fd, off64_t size) { return stretched(fd, size); }

int mkdir(const char *path, mode_t mode) { NO(NAME, -1, path, ROOM, syscall(SYS_mkdirat, AT_FDCWD, path, mode)); }
int rename(const char *a, const char *b) { NO(NAME, -1, b, ROOM, syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 0)); }
int linkat(int d, const char *a, int e, const char *b, int flags) { NO(NAME, e, b, ROOM, syscall(SYS_linkat, d, a, e, b, flags)); }

static void *mapped(void *to, size_t size, int protection, int flags, int fd, off_t at)
{
    if (fd >= 0 && shortage(MAP, fd, NULL, MEMORY))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, to, size, protection, flags, fd, at);
}
void *mmap(void *to, size_t n, int protection, int flags, int fd, off_t at) { return mapped(to, n, protection, flags, fd, at); }
void *mmap64(void *to, size_t n, int protection, int flags, int fd, off64_t at) { return mapped(to, n, protection, flags, fd, at); }

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with)
{
    static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!next)
        next = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
    int failure = shortage(THREAD, -1, NULL, AGAIN);
    return failure ? failure : next(thread, how, run, with);
}

pid_t fork(void)
{
    static pid_t (*next)(void);
    if (!next)
        next = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
    return shortage(FORK, -1, NULL, AGAIN) ? -1 : next();
}
