// Numbers and moments that differ from round to round, and not from run to run.
#ifndef CHANCE_H
#define CHANCE_H

#include <stdint.h>
#include <time.h>

static uint32_t chance_state = 12345;

static uint32_t next(void) {
    chance_state = chance_state * 1664525 + 1013904223;
    return chance_state >> 8;
}

// Takes a time, without sleeping.
static inline void spins(unsigned us) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000 + (now.tv_nsec - begin.tv_nsec) / 1000 < us);
}

#endif
