/* The threads of cold reads: jobs in, jobs out, one lock. cold_reads.pyx explains what the jobs are for.

   A thread is started if a job comes and no thread is idle; it ends after a second without a job. So a lost signal (glibc
   before 2.41 may lose a condition's signal) delays a job by a second at most. The threads are detached, and the last user
   frees the shared state: closing never waits for a disk that does not answer. */

#ifndef KAFKAD_COLD_READS_H
#define KAFKAD_COLD_READS_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "mapped_pages.h"

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0x00000008
#endif

enum { KAFKAD_CACHESTAT = 451, KAFKAD_SAMPLE = 32768, KAFKAD_ARRIVING = 262144, KAFKAD_PIECE = 131072, KAFKAD_REST_SECONDS = 1 };

/* Whether this byte is in memory; true if the kernel cannot report it. */
static int kafkad_arrived(int fd, int64_t at)
{
    char byte;
    struct iovec piece = {&byte, 1};
    return preadv2(fd, &piece, 1, at, RWF_NOWAIT) >= 0 || errno != EAGAIN;
}

/* Whether all these bytes are in memory: counts the pages, and probes some of them and the last one. */
static int kafkad_resident(int fd, int64_t at, int64_t size)
{
    static int counts = 1;
    static int64_t page;
    if (!page)
        page = sysconf(_SC_PAGESIZE);
    if (counts) {
        int64_t start = at / page * page;
        struct { uint64_t start, size; } range = {start, (at + size - start + page - 1) / page * page};
        struct { uint64_t cached, dirty, writeback, evicted, recently_evicted; } found;
        if (syscall(KAFKAD_CACHESTAT, fd, &range, &found, 0))
            counts = 0;                     /* not supported or not permitted (kernel before 6.5): probes only */
        else if (found.cached < range.size / page)
            return 0;
    }
    for (int64_t n = 0; n < size; n += counts ? KAFKAD_ARRIVING : KAFKAD_SAMPLE)
        if (!kafkad_arrived(fd, at + n))
            return 0;
    return kafkad_arrived(fd, at + size - 1);
}

typedef struct kafkad_job {
    struct kafkad_job *next;
    int fd;
    int64_t position, size;
    int64_t found;                          /* result: this many bytes are in memory */
    void *context;
} kafkad_job;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t work;
    int references;                         /* one of them is the loop's */
    int closed, held;
    int threads, threads_max, resting;
    int wake_fd, null_fd;
    kafkad_job *first, *last, *done;
    int queued;
    void (*forget)(kafkad_job *);           /* frees a job that was running when all was closed */
} kafkad_helpers;

static void kafkad_helpers_leave(kafkad_helpers *helpers)       /* call with the lock held; releases it */
{
    int was_last = --helpers->references == 0;
    pthread_mutex_unlock(&helpers->lock);
    if (!was_last)
        return;
    pthread_mutex_destroy(&helpers->lock);
    pthread_cond_destroy(&helpers->work);
    if (helpers->null_fd >= 0)
        close(helpers->null_fd);
    free(helpers);
}

/* Reads this piece, without a copy if possible. False at the end of the file, or if the disk fails. */
static int kafkad_read_through(kafkad_helpers *helpers, int fd, int64_t position, int64_t size)
{
    char *scratch = NULL;
    int64_t done = 0;
    while (done < size) {
        off_t at = position + done;
        ssize_t n = scratch || helpers->null_fd < 0 ? -1 : sendfile(helpers->null_fd, fd, &at, size - done);
        if (n < 0 && (scratch || (scratch = malloc(KAFKAD_PIECE))))
            n = pread(fd, scratch, size - done, position + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += n;
    }
    free(scratch);
    return done == size;
}

/* Reading the first byte of a piece starts the kernel's read-ahead; reading the last byte waits for it. Reading every page
   would mark each page as used twice, here and by the loop. */
static int64_t kafkad_read_in(kafkad_helpers *helpers, int fd, int64_t position, int64_t size)
{
    struct stat status;
    int64_t found = 0;
    char byte;
    if (fstat(fd, &status))
        return 0;
    if (size > status.st_size - position)
        size = status.st_size - position;
    if (size <= 0)
        return 0;
    while (found < size && !__atomic_load_n(&helpers->closed, __ATOMIC_RELAXED)) {
        int64_t piece = size - found < KAFKAD_PIECE ? size - found : KAFKAD_PIECE;
        while (pread(fd, &byte, 1, position + found) < 0 && errno == EINTR) {}
        while (pread(fd, &byte, 1, position + found + piece - 1) < 0 && errno == EINTR) {}
        if (!kafkad_resident(fd, position + found, piece) && !kafkad_read_through(helpers, fd, position + found, piece))
            break;                          /* the reader will get the error */
        found += piece;
    }
    return found;
}

static void *kafkad_help(void *argument)
{
    kafkad_helpers *helpers = argument;
    pthread_mutex_lock(&helpers->lock);
    while (!helpers->closed) {
        kafkad_job *job = helpers->held ? NULL : helpers->first;
        if (!job) {
            struct timespec until;
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_sec += KAFKAD_REST_SECONDS;
            helpers->resting++;
            int late = pthread_cond_timedwait(&helpers->work, &helpers->lock, &until) == ETIMEDOUT;
            helpers->resting--;
            if (late && !helpers->first)
                break;
            continue;
        }
        helpers->first = job->next;
        if (!helpers->first)
            helpers->last = NULL;
        helpers->queued--;
        pthread_mutex_unlock(&helpers->lock);
        job->found = kafkad_read_in(helpers, job->fd, job->position, job->size);
        pthread_mutex_lock(&helpers->lock);
        if (helpers->closed) {
            helpers->forget(job);
            break;
        }
        job->next = helpers->done;
        __atomic_store_n(&helpers->done, job, __ATOMIC_RELEASE);    /* before the loop wakes: it looks without the lock */
        if (!job->next) {                   /* otherwise the loop was woken already */
            uint64_t one = 1;
            if (write(helpers->wake_fd, &one, 8) < 0) {}
        }
    }
    helpers->threads--;
    kafkad_helpers_leave(helpers);
    return NULL;
}

static kafkad_helpers *kafkad_helpers_new(int wake_fd, int threads_max, void (*forget)(kafkad_job *))
{
    kafkad_helpers *helpers = calloc(1, sizeof *helpers);
    if (helpers) {
        pthread_condattr_t how;
        pthread_condattr_init(&how);
        pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
        pthread_mutex_init(&helpers->lock, NULL);
        pthread_cond_init(&helpers->work, &how);
        pthread_condattr_destroy(&how);
        helpers->references = 1;
        helpers->threads_max = threads_max;
        helpers->wake_fd = wake_fd;
        helpers->null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        helpers->forget = forget;
    }
    return helpers;
}

/* False if there is no thread to run the job. */
static int kafkad_helpers_put(kafkad_helpers *helpers, kafkad_job *job)
{
    pthread_mutex_lock(&helpers->lock);
    if (helpers->resting <= helpers->queued && helpers->threads < helpers->threads_max) {
        pthread_t thread;
        pthread_attr_t attributes;
        sigset_t all, before;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        sigfillset(&all);                   /* the main thread handles signals */
        pthread_sigmask(SIG_SETMASK, &all, &before);
        if (pthread_create(&thread, &attributes, kafkad_help, helpers) == 0) {
            helpers->threads++;
            helpers->references++;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
    }
    int good = helpers->threads > 0;
    if (good) {
        job->next = NULL;
        if (helpers->last)
            helpers->last->next = job;
        else
            helpers->first = job;
        helpers->last = job;
        helpers->queued++;
        pthread_cond_signal(&helpers->work);
    }
    pthread_mutex_unlock(&helpers->lock);
    return good;
}

/* Takes the finished jobs, the latest first. */
static kafkad_job *kafkad_helpers_take(kafkad_helpers *helpers)
{
    kafkad_job *done;
    if (!__atomic_load_n(&helpers->done, __ATOMIC_ACQUIRE))
        return NULL;
    pthread_mutex_lock(&helpers->lock);
    done = helpers->done;
    helpers->done = NULL;
    pthread_mutex_unlock(&helpers->lock);
    return done;
}

static void kafkad_helpers_hold(kafkad_helpers *helpers, int held)
{
    pthread_mutex_lock(&helpers->lock);
    helpers->held = held;
    pthread_cond_broadcast(&helpers->work);
    pthread_mutex_unlock(&helpers->lock);
}

/* No wake-up comes after this. Running jobs are freed by their threads, queued jobs here. */
static void kafkad_helpers_close(kafkad_helpers *helpers)
{
    kafkad_job *job, *next;
    pthread_mutex_lock(&helpers->lock);
    __atomic_store_n(&helpers->closed, 1, __ATOMIC_RELAXED);
    for (job = helpers->first; job; job = next) {
        next = job->next;
        helpers->forget(job);
    }
    for (job = helpers->done; job; job = next) {
        next = job->next;
        helpers->forget(job);
    }
    helpers->first = helpers->last = helpers->done = NULL;
    pthread_cond_broadcast(&helpers->work);
    kafkad_helpers_leave(helpers);
}

#endif
