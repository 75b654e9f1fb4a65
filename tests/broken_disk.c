/* A directory on a disk that dies: everything under BROKEN_DISK answers EIO as soon as the file BROKEN_DISK_NOW is there.

   With BROKEN_DISK_READ_ONLY in the environment only what writes fails, with EROFS: a file system that the kernel has made
   read-only after an error.

   Preloaded into a broker (LD_PRELOAD): what the system calls answer is what a dead disk answers, and no root, device or
   mount is needed. Pages that the kernel has still can be read on a real dead disk; here they cannot. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int read_only(void)
{
    static int is = -1;
    if (is < 0)
        is = getenv("BROKEN_DISK_READ_ONLY") != NULL;
    return is;
}

static int dead(int fd, const char *path)
{
    static const char *under, *now;
    char link[64], found[PATH_MAX];
    if (!under) {
        under = getenv("BROKEN_DISK");
        now = getenv("BROKEN_DISK_NOW");
    }
    if (!under || !now)
        return 0;
    int kept = errno;
    if (!path || path[0] != '/') {
        if (fd < 0 && fd != AT_FDCWD)
            return 0;
        snprintf(link, sizeof link, fd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, found, sizeof found - 1);
        found[n < 0 ? 0 : n] = 0;
        path = found;
    }
    int is = !strncmp(path, under, strlen(under)) && syscall(SYS_faccessat, AT_FDCWD, now, F_OK) == 0;
    errno = is ? read_only() ? EROFS : EIO : kept;
    return is;
}

static int dead_to_readers(int fd, const char *path)
{
    return !read_only() && dead(fd, path);
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, int); va_end(more); }
#define OR(call) return dead(fd, NULL) ? -1 : (call)
#define READ_OR(call) return dead_to_readers(fd, NULL) ? -1 : (call)

static int opened(int d, const char *path, int flags, mode_t mode)
{
    int writes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
    return (writes ? dead(d, path) : dead_to_readers(d, path)) ? -1 : (int)syscall(SYS_openat, d, path, flags, mode);
}
int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int d, const char *path, int flags, ...) { MODE(flags) return opened(d, path, flags, mode); }
int openat64(int d, const char *path, int flags, ...) { MODE(flags) return opened(d, path, flags, mode); }
ssize_t write(int fd, const void *bytes, size_t size) { OR(syscall(SYS_write, fd, bytes, size)); }
ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) { OR(syscall(SYS_pwrite64, fd, bytes, size, at)); }
ssize_t pwrite64(int fd, const void *b, size_t size, off64_t at) { OR(syscall(SYS_pwrite64, fd, b, size, at)); }
ssize_t pwritev(int fd, const struct iovec *p, int n, off_t at) { OR(syscall(SYS_pwritev, fd, p, n, at, 0)); }
ssize_t pwritev64(int fd, const struct iovec *p, int n, off64_t at) { OR(syscall(SYS_pwritev, fd, p, n, at, 0)); }
ssize_t pread(int fd, void *bytes, size_t size, off_t at) { READ_OR(syscall(SYS_pread64, fd, bytes, size, at)); }
ssize_t pread64(int fd, void *bytes, size_t size, off64_t at) { READ_OR(syscall(SYS_pread64, fd, bytes, size, at)); }
int ftruncate(int fd, off_t size) { OR(syscall(SYS_ftruncate, fd, size)); }
int ftruncate64(int fd, off64_t size) { OR(syscall(SYS_ftruncate, fd, size)); }
int fallocate(int fd, int mode, off_t at, off_t size) { OR(syscall(SYS_fallocate, fd, mode, at, size)); }
int fallocate64(int fd, int mode, off64_t at, off64_t size) { OR(syscall(SYS_fallocate, fd, mode, at, size)); }
int fsync(int fd) { OR(syscall(SYS_fsync, fd)); }
int fdatasync(int fd) { OR(syscall(SYS_fdatasync, fd)); }
ssize_t sendfile(int out, int fd, off_t *at, size_t size)
{
    return dead_to_readers(fd, NULL) || dead(out, NULL) ? -1 : syscall(SYS_sendfile, out, fd, at, size);
}
ssize_t sendfile64(int out, int fd, off64_t *at, size_t size) { return sendfile(out, fd, at, size); }
ssize_t copy_file_range(int from, off64_t *at, int fd, off64_t *to, size_t size, unsigned flags)
{
    return dead_to_readers(from, NULL) || dead(fd, NULL) ? -1 : syscall(SYS_copy_file_range, from, at, fd, to, size, flags);
}
int mkdir(const char *path, mode_t mode)
{
    return dead(AT_FDCWD, path) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}
int rename(const char *a, const char *b)
{
    return dead(AT_FDCWD, a) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 0);
}
int unlink(const char *path)
{
    return dead(AT_FDCWD, path) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
