/* Arguments name=value of the programs of the benchmark. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One of `i`, `d` and `s` says where the value goes. */
struct option { const char *name; int *i; double *d; const char **s; };

/* 0, or -1 after a line on stderr that names the argument which is no option. */
static int take_options(const struct option *options, size_t count, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        size_t k = 0, length = value ? (size_t)(value - argv[i]) : 0;
        while (value && k < count && (strlen(options[k].name) != length || strncmp(options[k].name, argv[i], length)))
            k++;
        if (!value || k == count) {
            fprintf(stderr, "no option: %s\n", argv[i]);
            return -1;
        }
        if (options[k].i)
            *options[k].i = atoi(value + 1);
        else if (options[k].d)
            *options[k].d = atof(value + 1);
        else
            *options[k].s = value + 1;
    }
    return 0;
}

#endif
