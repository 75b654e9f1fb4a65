/* Whether the pages of a mapping are in memory. */

#ifndef KAFKAD_MAPPED_PAGES_H
#define KAFKAD_MAPPED_PAGES_H

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* True if the kernel cannot report it. */
static int kafkad_mapped_resident(void *map, int64_t size)
{
    unsigned char present[512];
    int64_t page = sysconf(_SC_PAGESIZE), step = page * (int64_t)sizeof present;
    for (int64_t at = 0; at < size; at += step) {
        int64_t part = size - at < step ? size - at : step;
        if (mincore((char *)map + at, part, present))
            return 1;
        for (int64_t i = 0; i < (part + page - 1) / page; i++)
            if (!(present[i] & 1))
                return 0;
    }
    return 1;
}

#endif
