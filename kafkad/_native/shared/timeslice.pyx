"""Ask Linux for short time slices.

Since Linux 6.12, an ordinary task may choose the length of its slices (sched_setattr, sched_runtime, 0.1 to 100 ms). Its
share of the CPU stays the same. With short slices it gets the share in small pieces, and when it wakes up beside a task
with longer slices, it need not wait for their end. This suits a broker: it works for some microseconds and sleeps. It
often runs on the core of a client that spins, because the kernel wakes the receiver of data on the sender's core. Older
kernels ignore the request."""

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
    """Shorten the time slices of this thread, and of threads that it starts later. Return False if the thread has another
    scheduling policy, or if the kernel refuses."""
    cdef kafkad_sched sched
    if kafkad_sched_get(0, &sched) != 0 or sched.policy != SCHED_OTHER:
        return False
    sched.runtime = microseconds * 1000
    return kafkad_sched_set(&sched) == 0


def current(int pid=0) -> tuple:
    """Return (policy, nice, microseconds of a slice) of this thread, or of another one. The microseconds are 0 if the kernel
    does not report them."""
    cdef kafkad_sched sched
    if kafkad_sched_get(pid, &sched) != 0:
        raise OSError(errno, "sched_getattr")
    return sched.policy, sched.nice, sched.runtime // 1000
