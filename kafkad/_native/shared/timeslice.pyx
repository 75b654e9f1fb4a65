"""Time slices of the scheduler: a worker asks Linux for short ones.

Since Linux 6.12 an ordinary task may say how long its slices shall be (sched_setattr, sched_runtime, 0.1 to 100 ms). Its
share of the CPU stays what it is; with short slices it gets that in small pieces, and when it wakes up beside somebody
with longer ones it need not wait for the end of theirs. That is what a broker is: it works for some microseconds and
sleeps, often on the core of a client that spins, since the kernel likes to wake who is sent something where the
sender runs. Older kernels pass the wish over."""

from libc.errno cimport errno
from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <sched.h>
    #include <stdint.h>
    #include <string.h>
    #include <sys/syscall.h>
    #include <unistd.h>

    struct kafkad_sched {                   /* struct sched_attr, which libc does not always have */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
        uint32_t util_min, util_max;
    };
    static int kafkad_sched_get(int pid, struct kafkad_sched* told) {
        memset(told, 0, sizeof(*told));
    #ifdef SYS_sched_getattr
        return (int)syscall(SYS_sched_getattr, pid, told, sizeof(*told), 0);
    #else
        errno = ENOSYS;
        return -1;
    #endif
    }
    static int kafkad_sched_set(struct kafkad_sched* wanted) {
    #ifdef SYS_sched_setattr
        return (int)syscall(SYS_sched_setattr, 0, wanted, 0);
    #else
        errno = ENOSYS;
        return -1;
    #endif
    }
    """
    struct kafkad_sched:
        uint32_t policy
        uint64_t flags
        int32_t nice
        uint64_t runtime
    int kafkad_sched_get(int pid, kafkad_sched* told)
    int kafkad_sched_set(kafkad_sched* wanted)

cdef enum:
    SCHED_OTHER = 0


def shorten(uint64_t microseconds) -> bool:
    """Slices of this thread, and of those that it starts from now on. False: somebody chose another policy for it, or the
    kernel refuses."""
    cdef kafkad_sched sched
    if kafkad_sched_get(0, &sched) != 0 or sched.policy != SCHED_OTHER:
        return False
    sched.runtime = microseconds * 1000
    return kafkad_sched_set(&sched) == 0


def current(int pid=0) -> tuple:
    """(policy, nice, microseconds of a slice) of this thread, or of another. 0 microseconds where the kernel does not
    tell."""
    cdef kafkad_sched sched
    if kafkad_sched_get(pid, &sched) != 0:
        raise OSError(errno, "sched_getattr")
    return sched.policy, sched.nice, sched.runtime // 1000
