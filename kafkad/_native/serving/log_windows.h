/* A SIGBUS while mapped bytes of a log are read: see log_windows.pyx. */

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct sigaction kafkad_bus_before;
static volatile sig_atomic_t kafkad_bus_passed_on;
static uintptr_t kafkad_page_size;

/* What this thread reads now. Where it is must be known without a call (initial-exec): a signal handler reads it. */
static __thread __attribute__((tls_model("initial-exec"))) struct {
    volatile uintptr_t start;
    volatile uintptr_t end;
    volatile sig_atomic_t missing;
} kafkad_mapped_read;

/* A missing page of the range becomes zeros, as do all after it, and the read goes on. Any other SIGBUS goes to the
 * handler before this one: it comes again as soon as this one returns. If that handler passes it back, it ends the
 * process. */
static void kafkad_on_bus(int number, siginfo_t* info, void* unused) {
    int saved = errno;
    uintptr_t at = (uintptr_t)info->si_addr;
    (void)unused;
    if (info->si_code > 0 && at >= kafkad_mapped_read.start && at < kafkad_mapped_read.end) {
        at &= ~(kafkad_page_size - 1);
        kafkad_mapped_read.missing = 1;
        if (mmap((void*)at, kafkad_mapped_read.end - at, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
                != MAP_FAILED) {
            errno = saved;
            return;
        }
    }
    if (kafkad_bus_passed_on)
        signal(number, SIG_DFL);
    else
        sigaction(number, &kafkad_bus_before, NULL);
    kafkad_bus_passed_on = 1;
    if (info->si_code <= 0)
        raise(number); /* a process has sent it: it does not come again by itself */
    errno = saved;
}

/* Installed again if another one (faulthandler's) has taken its place. Returns 0 on failure. */
static int kafkad_catch_bus(void) {
    struct sigaction current, ours = {0};
    if (sigaction(SIGBUS, NULL, &current) != 0)
        return 0;
    if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == kafkad_on_bus)
        return 1;
    kafkad_page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    kafkad_bus_before = current;
    kafkad_bus_passed_on = 0;
    ours.sa_sigaction = kafkad_on_bus;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGBUS, &ours, NULL) == 0;
}

/* NULL: it cannot be mapped. */
static uint8_t* kafkad_map_log(int fd, int64_t position, size_t size) {
    void* at;
    if (!kafkad_catch_bus())
        return NULL;
    at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, (off_t)position);
    return at == MAP_FAILED ? NULL : at;
}

/* 0: mapped bytes cannot be read safely. */
static int kafkad_mapped_read_begin(const uint8_t* start, size_t size) {
    if (!kafkad_catch_bus())
        return 0;
    kafkad_mapped_read.missing = 0;
    kafkad_mapped_read.start = (uintptr_t)start;
    kafkad_mapped_read.end = (uintptr_t)start + size;
    __asm__ volatile("" ::: "memory");
    return 1;
}

/* Whether all bytes were there. */
static int kafkad_mapped_read_end(void) {
    __asm__ volatile("" ::: "memory");
    kafkad_mapped_read.start = kafkad_mapped_read.end = 0;
    return !kafkad_mapped_read.missing;
}

/* Whether the file (still) has bytes up to `end`. */
static int kafkad_file_reaches(int fd, int64_t end) {
    struct stat found;
    return fstat(fd, &found) == 0 && found.st_size >= end;
}
