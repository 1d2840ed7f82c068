// A connection in two processes at once: one sends, the other receives, as in git with a child that packs. `shares server PORT`
// prints "ready"; `shares client IP PORT` prints a line for each case, which does not depend on the transport of the bytes. `shares
// pump SEED BYTES` sends to its standard output.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/wait.h>
#include "serve.h"

#define MIX 1099511628211ull

static uint64_t mixed(uint64_t hash, const unsigned char *bytes, size_t len) {
    for (size_t i = 0; i < len; i++) hash = (hash ^ bytes[i]) * MIX;
    return hash;
}

// Answers each part with a byte, and the end with count and checksum.
static void *count(void *argument) {
    int fd = (int)(intptr_t)argument;
    unsigned char bytes[16384];
    char text[64];
    uint64_t hash = 1, total = 0;
    ssize_t part;
    while ((part = read(fd, bytes, sizeof bytes)) > 0) {
        hash = mixed(hash, bytes, part), total += part;
        if (write(fd, "p", 1) != 1) break;
    }
    int len = sprintf(text, "\n%llu %016llx\n", (unsigned long long)total, (unsigned long long)hash);
    if (write(fd, text, len) != len) fprintf(stderr, "no answer\n");
    close(fd);
    return NULL;
}

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

// Sends `total` bytes in pieces; their checksum goes on from `hash`.
static uint64_t pump(int fd, uint64_t seed, uint64_t total, uint64_t hash) {
    static unsigned char bytes[65536];
    uint64_t state = seed;
    while (total > 0) {
        size_t len = 1 + next(&state) % (next(&state) % 2 ? 400 : sizeof bytes);
        if (len > total) len = total;
        for (size_t i = 0; i < len; i++) bytes[i] = next(&state);
        hash = mixed(hash, bytes, len);
        for (size_t at = 0; at < len;) {
            ssize_t part = write(fd, bytes + at, len - at);
            if (part <= 0) die("write");
            at += part;
        }
        total -= len;
    }
    return hash;
}

static uint64_t expected(uint64_t seed, uint64_t total, uint64_t hash) {
    int null = checked("open", open("/dev/null", O_WRONLY));
    hash = pump(null, seed, total, hash);
    close(null);
    return hash;
}

static char last[256];

// Reads all; the last line stays.
static void *hear(void *argument) {
    int fd = (int)(intptr_t)argument;
    char bytes[512];
    ssize_t part;
    size_t kept = 0;
    int begun = 0;
    while ((part = read(fd, bytes, sizeof bytes)) > 0)
        for (ssize_t i = 0; i < part; i++) {
            if (begun && kept < sizeof last - 1 && bytes[i] != '\n') last[kept++] = bytes[i];
            begun |= bytes[i] == '\n';
        }
    last[kept] = 0;
    if (part < 0) sprintf(last, "read: %s", strerrorname_np(errno));
    return NULL;
}

enum how { FORK, EXEC };

static void shared(const struct sockaddr_in *to, const char *name, enum how how, uint64_t seed, uint64_t total) {
    int fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
    checked("connect", connect(fd, (void *)to, sizeof *to));
    uint64_t hash = pump(fd, seed, 1000, 1);
    pthread_t hears;
    pthread_create(&hears, NULL, hear, (void *)(intptr_t)fd);
    fflush(stdout);
    pid_t child = checked("fork", fork());
    if (!child) {
        if (how == FORK) {
            pump(fd, seed + 1, total, 0);
            _exit(0);
        }
        char seeds[24], bytes[24];
        sprintf(seeds, "%llu", (unsigned long long)seed + 1);
        sprintf(bytes, "%llu", (unsigned long long)total);
        dup2(fd, 1);
        close(fd);
        execl("/proc/self/exe", "shares", "pump", seeds, bytes, NULL);
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    // The parent's own words come after the child's.
    hash = expected(seed + 1, total, hash);
    hash = pump(fd, seed + 2, 1000, hash);
    shutdown(fd, SHUT_WR);
    pthread_join(hears, NULL);
    char should_be[64];
    sprintf(should_be, "%llu %016llx", (unsigned long long)total + 2000, (unsigned long long)hash);
    SAY("%s %llu: %s", name, (unsigned long long)seed, strcmp(last, should_be) ? last : "all came");
    if (status) SAY("child: %x", status);
    close(fd);
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "server")) serve_each(atoi(argv[2]), count);
    if (argc == 4 && !strcmp(argv[1], "pump")) {
        pump(1, strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10), 0);
        return 0;
    }
    if (argc < 4 || strcmp(argv[1], "client")) return 2;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &to.sin_addr);
    for (int round = 0; round < 4; round++) {
        shared(&to, "fork", FORK, 10 * round, round ? 200000 : 1000000);
        shared(&to, "exec", EXEC, 10 * round + 5, round ? 200000 : 1000000);
    }
    return 0;
}
