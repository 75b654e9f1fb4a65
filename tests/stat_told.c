/* A test may do something in the midst of a look at a directory: who is preloaded with this (LD_PRELOAD) is told of every
   stat, before it is answered, by the function that `on_stat` was given. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>

static void (*told)(const char *);

void on_stat(void (*fn)(const char *)) { told = fn; }

#define TOLD(name, type) \
    int name(const char *path, struct type *status) \
    { \
        static int (*answer)(const char *, struct type *); \
        if (!answer) \
            answer = (int (*)(const char *, struct type *))dlsym(RTLD_NEXT, #name); \
        if (told) \
            told(path); \
        return answer(path, status); \
    }
TOLD(stat, stat)
TOLD(stat64, stat64)
