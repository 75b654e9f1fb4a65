/* Which thread waits for the disk: each fsync, and what gives back many blocks, by the thread that asks for it.

   Preloaded into a broker (LD_PRELOAD). A call under LOOP_SYNCS_UNDER is one line in the file LOOP_SYNCS, "loop fsync
   <path>" if it comes from the first thread of its process, where a worker's event loop runs, else "thread fsync <path>".
   An unlink or a cut counts if it gives back half a megabyte or more: the smallest segments have a megabyte. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MUCH (1 << 19)

static void note(const char *what, int fd, const char *path)
{
    const char *to = getenv("LOOP_SYNCS"), *under = getenv("LOOP_SYNCS_UNDER");
    char link[64], found[PATH_MAX], line[PATH_MAX + 64];
    if (!to || !under)
        return;
    if (!path || path[0] != '/') {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, found, sizeof found - 1);
        found[n < 0 ? 0 : n] = 0;
        path = found;
    }
    if (strncmp(path, under, strlen(under)))
        return;
    int size = snprintf(line, sizeof line, "%s %s %s\n", syscall(SYS_gettid) == getpid() ? "loop" : "thread", what, path);
    int out = (int)syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (out >= 0 && syscall(SYS_write, out, line, size)) {}
    if (out >= 0)
        syscall(SYS_close, out);
}

int fsync(int fd) { note("fsync", fd, NULL); return (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { note("fdatasync", fd, NULL); return (int)syscall(SYS_fdatasync, fd); }
int syncfs(int fd) { note("syncfs", fd, NULL); return (int)syscall(SYS_syncfs, fd); }
int sync_file_range(int fd, off64_t at, off64_t n, unsigned flags)
{
    note("sync_file_range", fd, NULL);
    return (int)syscall(SYS_sync_file_range, fd, at, n, flags);
}

static int gives_back(int d, const char *path, off_t left)
{
    struct stat status;
    return fstatat(d, path, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 1
        && status.st_size - left >= MUCH;
}

int unlink(const char *path)
{
    if (gives_back(AT_FDCWD, path, 0))
        note("unlink", -1, path);
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int d, const char *path, int flags)
{
    if (!(flags & AT_REMOVEDIR) && gives_back(d, path, 0))
        note("unlink", d, path);
    return (int)syscall(SYS_unlinkat, d, path, flags);
}

static int cut(int fd, off_t size)
{
    struct stat status;
    if (fstat(fd, &status) == 0 && status.st_size - size >= MUCH)      /* of blocks beyond the end nothing was written */
        note("ftruncate", fd, NULL);
    return (int)syscall(SYS_ftruncate, fd, size);
}
int ftruncate(int fd, off_t size) { return cut(fd, size); }
int ftruncate64(int fd, off64_t size) { return cut(fd, size); }

int truncate(const char *path, off_t size)
{
    if (gives_back(AT_FDCWD, path, size))
        note("truncate", -1, path);
    return (int)syscall(SYS_truncate, path, size);
}
