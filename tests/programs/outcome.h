// Outcomes of calls as words that do not depend on the machine. Needs _GNU_SOURCE.
#pragma once
#include <errno.h>
#include <stdio.h>
#include <string.h>

// The name of an error that is given below nothing, or the number. Texts last for 15 more calls.
static inline const char *name(long result) {
    static char texts[16][32];
    static unsigned next;
    char *text = texts[next++ % 16];
    snprintf(text, sizeof texts[0], "%ld", result);
    return result < 0 ? strerrorname_np(-result) : text;
}

// Outcome of a call that leaves its error in errno.
static inline const char *outcome(long result) { return name(result < 0 ? -errno : result); }
