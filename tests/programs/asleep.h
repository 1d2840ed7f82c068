// Threads of which another one waits until they sleep.
#ifndef ASLEEP_H
#define ASLEEP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// Returns when a thread has slept for a while, in the call therefore that it was about to make when it set its number, or when it is `over`, if
// there is such a word.
static void await_asleep(const atomic_int *thread, const atomic_bool *over) {
    for (int asleep = 0; asleep < 5 && !(over && *over);) {
        usleep(2000);
        char path[64], stat[256] = "";
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", *thread);
        FILE *file = *thread ? fopen(path, "r") : NULL;
        if (!file) continue;
        char *name_end = fgets(stat, sizeof stat, file) ? strrchr(stat, ')') : NULL;
        asleep = name_end && name_end[2] == 'S' ? asleep + 1 : 0;
        fclose(file);
    }
}

#endif
