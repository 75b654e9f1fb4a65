/* Clocks that a test sets: preloaded into a process (LD_PRELOAD), with SHIFTED_CLOCK naming a file of two signed 64-bit
   numbers, which are added to what the wall clock and the monotonic clock say, in milliseconds. All processes that map the
   file see a change at once. The kernel's own times stay as they are: those of files, and timeouts of system calls. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t none[2];
static const volatile int64_t *shifts = none;
static int (*answer)(clockid_t, struct timespec *);

static void begin(void)
{
    answer = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

__attribute__((constructor)) static void map(void)
{
    const char *path = getenv("SHIFTED_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *found = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED)
        shifts = found;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    if (!answer)
        begin();
    int failed = answer(clock, t);
    int64_t shift = 0;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        shift = shifts[0];
    else if (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE)
        shift = shifts[1];
    if (failed || !shift)
        return failed;
    int64_t ns = t->tv_nsec + shift % 1000 * 1000000;
    t->tv_sec += shift / 1000 + (ns >= 1000000000) - (ns < 0);
    t->tv_nsec = ns + (ns < 0 ? 1000000000 : ns >= 1000000000 ? -1000000000 : 0);
    return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t)
        *t = now.tv_sec;
    return now.tv_sec;
}
