/* Addresses as text: two digits a byte. */
#ifndef PD_BENCH_HEX_H
#define PD_BENCH_HEX_H

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static int to_hex(const unsigned char *bytes, size_t count, char *text, size_t len) {
    if (2 * count + 1 > len)
        return -1;
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

static int from_hex(const char *text, unsigned char *bytes, size_t max) {
    size_t count = strlen(text) / 2;
    if (count > max)
        return -1;
    for (size_t i = 0; i < count; i++) {
        unsigned value;
        if (sscanf(text + 2 * i, "%2x", &value) != 1)
            return -1;
        bytes[i] = (unsigned char)value;
    }
    return (int)count;
}

#endif
