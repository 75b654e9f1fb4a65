/* What a process does to the files of a directory, in order: the disk's side of a simulated power loss.

   Preloaded into a broker (LD_PRELOAD), so it needs nobody's cooperation and costs nothing where it is not: it sees
   what Python does, what native code does, and what a library does. Every change of a file or directory under
   DISK_RECORDER_ROOT is carried out and appended to DISK_RECORDER_TRACE, under one lock, so the trace has the order
   in which the kernel saw them. tests/power.py reads the trace and makes of it what a disk may hold afterwards.

   A record: size u32 of what follows | kind u8 | nanoseconds i64 (CLOCK_MONOTONIC) | a i64 | b i64 | c i64 | bytes.

   fsync and fdatasync are a pair of records: what was done before BEGIN is on the disk at END. They take the time that
   DISK_RECORDER_SYNC_US says at most (by chance), and do not trouble the real disk: the power loss is ours to make.

   Files that were mapped for writing change without a system call. At each sync their bytes are written to the
   trace; in between they are taken for what was found in the end.

   Forked processes write one trace: the lock, and what all must know, stand in memory that they share. One that is
   killed with the lock in its hand leaves a record cut short; the next that takes the lock cuts it off.

   A file without a name (O_TMPFILE) is there, with all that is written to it, but in no directory before linkat.

   Beware: what could change a file in a way that is not traced (syncfs, copy_file_range) writes an UNKNOWN
   record, which fails the test: then it is time to teach this file a word more. */

#define _GNU_SOURCE
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
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    CREATE = 1, MAKE_DIRECTORY, WRITE, TRUNCATE, RENAME, UNLINK, REMOVE_DIRECTORY, SYNC_BEGIN, SYNC_END, CONTENT,
    MAPPED, UNKNOWN, ROOT, NAMELESS
};
enum { FDS = 65536, MAPPED_MAX = 65536 };

static struct shared {              /* by all processes that are forked from the first */
    pthread_mutex_t lock;
    int64_t trace_size;             /* of whole records */
    uint64_t syncs;
    int mapped_count;
    ino_t mapped[MAPPED_MAX];       /* inodes that were ever mapped for writing */
} *shared;
static char root[PATH_MAX];
static size_t root_size;
static int trace = -1;
static long sync_us;
static dev_t device;
static ino_t tracked[FDS];          /* fd -> inode under the root, 0: not ours; checked with fstat before it is used */

static void take_lock(void)
{
    if (pthread_mutex_lock(&shared->lock) == EOWNERDEAD) {
        if (syscall(SYS_ftruncate, trace, shared->trace_size)) {}
        pthread_mutex_consistent(&shared->lock);
    }
}

static void give_lock(void) { pthread_mutex_unlock(&shared->lock); }

static void put(int kind, int64_t a, int64_t b, int64_t c, const void *bytes, size_t size)
{
    struct __attribute__((packed)) { uint32_t size; uint8_t kind; int64_t time, a, b, c; } head;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    head.size = sizeof head - 4 + size;
    head.kind = kind;
    head.time = now.tv_sec * 1000000000LL + now.tv_nsec;
    head.a = a;
    head.b = b;
    head.c = c;
    struct iovec pieces[2] = {{&head, sizeof head}, {(void *)bytes, size}};
    int64_t all = sizeof head + size;
    if (syscall(SYS_writev, trace, pieces, size ? 2 : 1) != all) {
        static const char said[] = "disk_recorder: the trace cannot be written\n";
        if (syscall(SYS_write, 2, said, sizeof said - 1)) {}
        _exit(99);
    }
    shared->trace_size += all;
}

static void unknown(const char *what) { put(UNKNOWN, 0, 0, 0, what, strlen(what)); }

__attribute__((constructor)) static void begin(void)
{
    const char *from = getenv("DISK_RECORDER_ROOT"), *to = getenv("DISK_RECORDER_TRACE");
    const char *us = getenv("DISK_RECORDER_SYNC_US");
    struct stat status;
    if (!from || !to || !realpath(from, root) || stat(root, &status))
        return;
    root_size = strlen(root);
    device = status.st_dev;
    sync_us = us ? atol(us) : 0;
    int fd = syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    trace = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 900);
    if (fd >= 0)
        syscall(SYS_close, fd);
    void *memory = (void *)syscall(SYS_mmap, NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                                   -1, 0);
    if (trace < 0 || memory == MAP_FAILED) {
        trace = -1;
        return;
    }
    shared = memory;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&shared->lock, &attributes);
    shared->trace_size = lseek(trace, 0, SEEK_END);
    put(ROOT, status.st_ino, 0, 0, root, root_size);
}

/* The absolute path of (dirfd, path) if it lies under the root; its directory's inode and its last part. */
struct place { char path[PATH_MAX]; const char *name; ino_t directory; };

static int place_of(struct place *place, int dirfd, const char *path)
{
    struct stat status;
    if (trace < 0)
        return 0;
    if (path[0] == '/') {
        if (snprintf(place->path, PATH_MAX, "%s", path) >= PATH_MAX)
            return 0;
    } else {
        char link[64], base[PATH_MAX];
        snprintf(link, sizeof link, dirfd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", dirfd);
        ssize_t n = readlink(link, base, sizeof base - 1);
        if (n < 0)
            return 0;
        base[n] = 0;
        if (snprintf(place->path, PATH_MAX, "%.2000s/%.2000s", base, path) >= PATH_MAX)
            return 0;
    }
    size_t size = strlen(place->path);
    while (size > 1 && place->path[size - 1] == '/')
        place->path[--size] = 0;
    if (strncmp(place->path, root, root_size) || place->path[root_size] != '/')
        return 0;
    char *slash = strrchr(place->path, '/');
    *slash = 0;
    int found = syscall(SYS_newfstatat, AT_FDCWD, place->path, &status, 0) == 0;
    *slash = '/';
    place->name = slash + 1;
    place->directory = status.st_ino;
    return found;
}

static ino_t inode(const char *path)
{
    struct stat status;
    return syscall(SYS_newfstatat, AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW) ? 0 : status.st_ino;
}

static ino_t ours(int fd)
{
    struct stat status;
    if (trace < 0 || fd < 0 || fd >= FDS || !tracked[fd])
        return 0;
    int kept = errno;
    int good = fstat(fd, &status) == 0 && status.st_ino == tracked[fd] && status.st_dev == device;
    errno = kept;
    return good ? status.st_ino : 0;
}

static void new_inode(ino_t file)
{
    for (int i = 0; i < shared->mapped_count; i++)
        if (shared->mapped[i] == file)      /* that one is gone, its inode is used again */
            shared->mapped[i] = shared->mapped[--shared->mapped_count];
}

static int opened(int dirfd, const char *path, int flags, mode_t mode)
{
    struct place place;
    int nameless = (flags & O_TMPFILE) == O_TMPFILE, in_root = !strncmp(path, root, root_size) && !path[root_size];
    if (trace < 0 || (!place_of(&place, dirfd, path) && !(nameless && in_root))) {
        int fd = syscall(SYS_openat, dirfd, path, flags, mode);
        if (fd >= 0 && fd < FDS)        /* the root itself is a directory of ours, too */
            tracked[fd] = trace >= 0 && in_root ? inode(root) : 0;
        return fd;
    }
    take_lock();
    int there = !nameless && inode(place.path) != 0;
    int fd = syscall(SYS_openat, dirfd, path, flags, mode);
    if (fd >= 0 && fd < FDS) {
        struct stat status;
        fstat(fd, &status);
        tracked[fd] = status.st_ino;
        if (nameless) {
            new_inode(status.st_ino);
            put(NAMELESS, status.st_ino, 0, 0, NULL, 0);
            give_lock();
            return fd;
        }
        int made = !there && (flags & O_CREAT);     /* else: of an earlier process, which was killed before it told */
        if (made)
            new_inode(status.st_ino);
        put(S_ISDIR(status.st_mode) ? MAKE_DIRECTORY : CREATE, place.directory, status.st_ino, made, place.name,
            strlen(place.name));
        if (there && (flags & O_TRUNC))
            put(TRUNCATE, status.st_ino, 0, 0, NULL, 0);
    }
    give_lock();
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, int); va_end(more); }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int d, const char *path, int flags, ...) { MODE(flags) return opened(d, path, flags, mode); }
int openat64(int d, const char *path, int flags, ...) { MODE(flags) return opened(d, path, flags, mode); }
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode); }

static ssize_t written(int fd, const struct iovec *pieces, int count, int64_t position)
{
    ino_t file = ours(fd);
    ssize_t n;
    if (!file)
        return position < 0 ? syscall(SYS_writev, fd, pieces, count)
                            : syscall(SYS_pwritev, fd, pieces, count, position, 0);
    take_lock();
    if (position < 0) {
        int append = fcntl(fd, F_GETFL) & O_APPEND;
        int64_t at = lseek(fd, 0, append ? SEEK_END : SEEK_CUR);
        n = syscall(SYS_writev, fd, pieces, count);
        position = at;
    } else
        n = syscall(SYS_pwritev, fd, pieces, count, position, 0);
    int kept = errno;
    ssize_t left = n;
    for (int i = 0; i < count && left > 0; i++) {
        ssize_t part = (ssize_t)pieces[i].iov_len < left ? (ssize_t)pieces[i].iov_len : left;
        put(WRITE, file, position, 0, pieces[i].iov_base, part);
        position += part;
        left -= part;
    }
    give_lock();
    errno = kept;
    return n;
}

ssize_t write(int fd, const void *bytes, size_t size)
{
    if (!ours(fd))
        return syscall(SYS_write, fd, bytes, size);
    struct iovec piece = {(void *)bytes, size};
    return written(fd, &piece, 1, -1);
}
ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at)
{
    struct iovec piece = {(void *)bytes, size};
    return written(fd, &piece, 1, at);
}
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at) { return pwrite(fd, bytes, size, at); }
ssize_t writev(int fd, const struct iovec *pieces, int count)
{
    return ours(fd) ? written(fd, pieces, count, -1) : syscall(SYS_writev, fd, pieces, count);
}
ssize_t pwritev(int fd, const struct iovec *p, int count, off_t at) { return written(fd, p, count, at); }
ssize_t pwritev64(int fd, const struct iovec *p, int count, off64_t at) { return written(fd, p, count, at); }
ssize_t pwritev2(int fd, const struct iovec *p, int count, off_t at, int flags)
{
    if (!ours(fd))
        return syscall(SYS_pwritev2, fd, p, count, at, 0, flags);
    return written(fd, p, count, at);       /* RWF_ flags change when, not what */
}

static int cut(ino_t file, int failure, off_t size)
{
    if (!failure && file)
        put(TRUNCATE, file, size, 0, NULL, 0);
    return failure;
}

int ftruncate(int fd, off_t size)
{
    ino_t file = ours(fd);
    if (!file)
        return syscall(SYS_ftruncate, fd, size);
    take_lock();
    int failure = cut(file, syscall(SYS_ftruncate, fd, size), size);
    give_lock();
    return failure;
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int truncate(const char *path, off_t size)
{
    struct place place;
    if (trace < 0 || !place_of(&place, AT_FDCWD, path))
        return syscall(SYS_truncate, path, size);
    take_lock();
    ino_t file = inode(place.path);
    int failure = cut(file, syscall(SYS_truncate, path, size), size);
    give_lock();
    return failure;
}
int truncate64(const char *path, off64_t size) { return truncate(path, size); }

int fallocate(int fd, int mode, off_t offset, off_t size)
{
    ino_t file = ours(fd);
    if (!file)
        return syscall(SYS_fallocate, fd, mode, offset, size);
    take_lock();
    int failure = syscall(SYS_fallocate, fd, mode, offset, size), kept = errno;
    struct stat status;
    if (!failure && mode & ~FALLOC_FL_KEEP_SIZE)
        unknown("fallocate with a mode");
    if (!failure && !mode && !fstat(fd, &status))       /* else: blocks behind the end, of which nobody knows */
        put(TRUNCATE, file, status.st_size, 0, NULL, 0);
    give_lock();
    errno = kept;
    return failure;
}
int fallocate64(int fd, int mode, off64_t offset, off64_t size) { return fallocate(fd, mode, offset, size); }
int posix_fallocate(int fd, off_t offset, off_t size) { return fallocate(fd, 0, offset, size) ? errno : 0; }
int posix_fallocate64(int fd, off64_t offset, off64_t size) { return posix_fallocate(fd, offset, size); }

static int renamed(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    struct place a, b;
    int is_a = trace >= 0 && place_of(&a, from_dir, from), is_b = trace >= 0 && place_of(&b, to_dir, to);
    if (!is_a && !is_b)
        return syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    take_lock();
    int failure = syscall(SYS_renameat2, from_dir, from, to_dir, to, flags), kept = errno;
    if (!failure) {
        char names[2 * NAME_MAX + 4];
        if (is_a != is_b || flags & ~1u)
            unknown("a rename across the root's border, or an exchange");
        else {
            int size = snprintf(names, sizeof names, "%s%c%s", a.name, 0, b.name);
            put(RENAME, a.directory, b.directory, 0, names, size);
        }
    }
    give_lock();
    errno = kept;
    return failure;
}
int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int d, const char *from, int e, const char *to) { return renamed(d, from, e, to, 0); }
int renameat2(int d, const char *from, int e, const char *to, unsigned f) { return renamed(d, from, e, to, f); }

static int removed(int dirfd, const char *path, int flags)
{
    struct place place;
    if (trace < 0 || !place_of(&place, dirfd, path))
        return syscall(SYS_unlinkat, dirfd, path, flags);
    take_lock();
    int failure = syscall(SYS_unlinkat, dirfd, path, flags), kept = errno;
    if (!failure)
        put(flags & AT_REMOVEDIR ? REMOVE_DIRECTORY : UNLINK, place.directory, 0, 0, place.name, strlen(place.name));
    give_lock();
    errno = kept;
    return failure;
}
int unlink(const char *path) { return removed(AT_FDCWD, path, 0); }
int unlinkat(int dirfd, const char *path, int flags) { return removed(dirfd, path, flags); }
int rmdir(const char *path) { return removed(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path)
{
    int failure = removed(AT_FDCWD, path, 0);
    return failure && errno == EISDIR ? removed(AT_FDCWD, path, AT_REMOVEDIR) : failure;
}

int mkdirat(int dirfd, const char *path, mode_t mode)
{
    struct place place;
    if (trace < 0 || !place_of(&place, dirfd, path))
        return syscall(SYS_mkdirat, dirfd, path, mode);
    take_lock();
    int failure = syscall(SYS_mkdirat, dirfd, path, mode), kept = errno;
    if (!failure)
        put(MAKE_DIRECTORY, place.directory, inode(place.path), 1, place.name, strlen(place.name));
    give_lock();
    errno = kept;
    return failure;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

static int is_mapped(ino_t file)
{
    for (int i = 0; i < shared->mapped_count; i++)
        if (shared->mapped[i] == file)
            return 1;
    return 0;
}

/* Mapped by an earlier process: known by its name. */
static int is_index(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path);
    return n > 5 && !memcmp(path + n - 5, "index", 5);
}

static void put_content(int fd, ino_t file)
{
    char link[64], bytes[65536];
    struct stat status;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int again = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    if (again < 0 || fstat(again, &status)) {
        unknown("a mapped file that cannot be read");
        return;
    }
    if (!S_ISREG(status.st_mode)) {     /* a directory that got the inode of a file that is gone */
        syscall(SYS_close, again);
        return;
    }
    put(CONTENT, file, -1, status.st_size, NULL, 0);
    for (off_t at = 0; (at = lseek(again, at, SEEK_DATA)) >= 0;) {
        off_t end = lseek(again, at, SEEK_HOLE);
        for (; at < end;) {
            off_t n = end - at < (off_t)sizeof bytes ? end - at : (off_t)sizeof bytes;
            n = syscall(SYS_pread64, again, bytes, n, at);
            if (n <= 0)
                break;
            put(CONTENT, file, at, status.st_size, bytes, n);
            at += n;
        }
        if (at < end)
            break;
    }
    syscall(SYS_close, again);
}

static int synced(int fd, int number)
{
    ino_t file = ours(fd);
    if (!file)
        return syscall(number, fd);
    take_lock();
    uint64_t sync = ++shared->syncs;
    if (is_mapped(file) || is_index(fd))
        put_content(fd, file);
    put(SYNC_BEGIN, file, sync, 0, NULL, 0);
    long us = sync_us ? random() % (sync_us + 1) : 0;
    give_lock();
    if (us)
        usleep(us);
    take_lock();
    put(SYNC_END, file, sync, 0, NULL, 0);
    give_lock();
    return 0;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

static void *map(void *address, size_t size, int protection, int flags, int fd, off_t at)
{
    ino_t file = fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE) ? ours(fd) : 0;
    if (file) {
        take_lock();
        if (!is_mapped(file)) {
            if (shared->mapped_count == MAPPED_MAX)
                unknown("too many mapped files");
            else
                shared->mapped[shared->mapped_count++] = file;
        }
        put(MAPPED, file, 0, 0, NULL, 0);
        give_lock();
    }
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, at);
}
void *mmap(void *a, size_t size, int protection, int flags, int fd, off_t at)
{
    return map(a, size, protection, flags, fd, at);
}
void *mmap64(void *a, size_t size, int protection, int flags, int fd, off64_t at)
{
    return map(a, size, protection, flags, fd, at);
}

/* Begins to write, and promises nothing. */
int sync_file_range(int fd, off64_t at, off64_t size, unsigned flags)
{
    return ours(fd) ? 0 : syscall(SYS_sync_file_range, fd, at, size, flags);
}

/* Words that are not known yet. */
static void refuse(int fd, const char *what)
{
    if (ours(fd)) {
        take_lock();
        unknown(what);
        give_lock();
    }
}
int syncfs(int fd)
{
    refuse(fd, "syncfs");
    return syscall(SYS_syncfs, fd);
}
/* Into a file of ours: a read and a traced write of a part of it, as a sendfile may be short. */
ssize_t sendfile(int out, int in, off_t *at, size_t size)
{
    char part[64 << 10];
    if (!ours(out) || !at) {
        refuse(out, "sendfile");
        return syscall(SYS_sendfile, out, in, at, size);
    }
    ssize_t n = syscall(SYS_pread64, in, part, size < sizeof part ? size : sizeof part, *at);
    if (n > 0)
        n = write(out, part, n);
    if (n > 0)
        *at += n;
    return n;
}
ssize_t sendfile64(int out, int in, off64_t *at, size_t size) { return sendfile(out, in, at, size); }
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags)
{
    refuse(out, "copy_file_range");
    return syscall(SYS_copy_file_range, in, from, out, to, size, flags);
}
int linkat(int d, const char *from, int e, const char *to, int flags)
{
    struct place place;
    if (trace < 0 || !place_of(&place, e, to))
        return syscall(SYS_linkat, d, from, e, to, flags);
    take_lock();
    int failure = syscall(SYS_linkat, d, from, e, to, flags), kept = errno;
    if (!failure)
        put(CREATE, place.directory, inode(place.path), 0, place.name, strlen(place.name));
    give_lock();
    errno = kept;
    return failure;
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
