/* The disk itself: what it takes of the writes that a broker makes which syncs before it acknowledges.
 *
 *   syncs directory=/where files=4 bytes=327680 seconds=1 mb_max=1000
 *
 * One thread a file appends `bytes` and syncs (fdatasync), again and again, with blocks set aside ahead, 16 MB at a time:
 * the cheapest that is known here. With `bytes` = what is in flight to a partition this is the most that a load with
 * so much in flight can reach, be the broker free of cost; with 8 MB it is the disk's own limit.
 *
 * Prints one JSON object as load.c does; a request is an fdatasync.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define FILES_MAX 64
#define AHEAD (16 << 20)

static const char *directory = ".";
static int files = 1;
static double seconds = 1, mb_max = 1000, bytes = 65536;
static int64_t written, syncs;
static double end;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *append(void *number)
{
    char path[4096];
    size_t size = (size_t)bytes;
    int64_t at = 0, ahead = 0;
    uint8_t *data = malloc(size);
    snprintf(path, sizeof path, "%s/disk-%d", directory, *(int *)number);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || !data) {
        perror(path);
        exit(1);
    }
    unlink(path);
    memset(data, 7, size);
    while (now() < end && (double)__atomic_load_n(&written, __ATOMIC_RELAXED) < mb_max * 1e6) {
        if (at + (int64_t)size > ahead && fallocate(fd, FALLOC_FL_KEEP_SIZE, ahead, AHEAD) == 0)
            ahead += AHEAD;
        if (pwrite(fd, data, size, at) != (ssize_t)size || fdatasync(fd) != 0) {
            perror(path);
            exit(1);
        }
        at += (int64_t)size;
        __atomic_fetch_add(&written, (int64_t)size, __ATOMIC_RELAXED);
        __atomic_fetch_add(&syncs, 1, __ATOMIC_RELAXED);
    }
    close(fd);
    free(data);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[FILES_MAX];
    int numbers[FILES_MAX];
    struct rusage used;
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        value = value ? value + 1 : argv[i] + strlen(argv[i]);
        if (!strncmp(argv[i], "directory=", 10))
            directory = value;
        else if (!strncmp(argv[i], "files=", 6))
            files = atoi(value);
        else if (!strncmp(argv[i], "bytes=", 6))
            bytes = atof(value);
        else if (!strncmp(argv[i], "seconds=", 8))
            seconds = atof(value);
        else if (!strncmp(argv[i], "mb_max=", 7))
            mb_max = atof(value);
        else {
            fprintf(stderr, "no option: %s\n", argv[i]);
            return 2;
        }
    }
    if (files < 1 || files > FILES_MAX || bytes < 1 || bytes > 1 << 30) {
        fprintf(stderr, "1 to %d files, up to 1 GiB a write\n", FILES_MAX);
        return 2;
    }
    double begun = now();
    end = begun + seconds;
    for (int i = 0; i < files; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, append, &numbers[i])) {
            fprintf(stderr, "no thread\n");
            return 1;
        }
    }
    for (int i = 0; i < files; i++)
        pthread_join(threads[i], NULL);
    double took = now() - begun;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"bytes\": %lld, \"requests\": %lld, \"errors\": 0, \"seconds\": %.6f, \"cpu\": %.6f}\n", (long long)written,
           (long long)syncs, took,
           (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
    return 0;
}
