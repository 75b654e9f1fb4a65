"""A mutex in shared memory, which a process may hold when it is killed.

The next process then gets the mutex, as if it had been given back: use it only for data that is valid after each store.
Nobody waits for it longer than for the patience of the call. pthread_mutex_timedlock would wait by the wall clock: a
clock that is set back meanwhile makes that long. (pthread_mutex_clocklock does not, but glibc 2.28 has none.)"""

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <sched.h>
    #include <stdint.h>
    #include <time.h>

    enum { KAFKAD_MUTEX_YIELDS = 16, KAFKAD_MUTEX_NAP_NS = 100000 };

    static inline int robust_mutex_new(void* place) {
        pthread_mutexattr_t how;
        int failed = pthread_mutexattr_init(&how)
            || pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED)
            || pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST)
            || pthread_mutex_init((pthread_mutex_t*)place, &how);
        pthread_mutexattr_destroy(&how);
        return failed ? -1 : 0;
    }
    static inline int robust_mutex_take(void* place, int patience_ms) {
        pthread_mutex_t* mutex = (pthread_mutex_t*)place;
        int code = pthread_mutex_trylock(mutex);
        if (code == EBUSY && patience_ms > 0) {
            struct timespec now, nap = {0, KAFKAD_MUTEX_NAP_NS};
            clock_gettime(CLOCK_MONOTONIC, &now);
            int64_t until_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 + patience_ms;
            for (int tries = 0; code == EBUSY; tries++) {
                if (tries < KAFKAD_MUTEX_YIELDS)
                    sched_yield();
                else
                    nanosleep(&nap, NULL);
                code = pthread_mutex_trylock(mutex);
                clock_gettime(CLOCK_MONOTONIC, &now);
                if ((int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 >= until_ms)
                    break;
            }
        }
        if (code == EOWNERDEAD)
            code = pthread_mutex_consistent(mutex);
        return code == 0;
    }
    static inline void robust_mutex_give(void* place) { pthread_mutex_unlock((pthread_mutex_t*)place); }
    """
    size_t robust_mutex_size "sizeof(pthread_mutex_t)"
    int robust_mutex_new(void* place)                       # 0, or -1
    bint robust_mutex_take(void* place, int patience_ms)    # whether the mutex is ours; 0 ms: it does not wait
    void robust_mutex_give(void* place)
