/* An assertion that is active in every build and ends the process, also in noexcept nogil code, where Cython's own
 * `assert` would print and continue. Use it for our own errors only. Invalid bytes are Malformed instead. */
#ifndef KAFKAD_CHECK_H
#define KAFKAD_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define KAFKAD_CHECK(condition)                                                                       \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "kafkad: broken invariant at %s:%d: %s\n", __FILE__, __LINE__, #condition); \
            fflush(stderr);                                                                           \
            abort();                                                                                  \
        }                                                                                             \
    } while (0)

#endif
