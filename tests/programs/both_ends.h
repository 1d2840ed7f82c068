// Both ends of a connection in one process.
#ifndef BOTH_ENDS_H
#define BOTH_ENDS_H

#include "serve.h"
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/un.h>

// A listener over AF_UNIX, by the file `path`, or TCP. `at` and `len`: its address.
static int listens_at(const char *path, bool is_unix, struct sockaddr_storage *at, socklen_t *len) {
    struct sockaddr_un file = {.sun_family = AF_UNIX};
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    strncpy(file.sun_path, path, sizeof file.sun_path - 1);
    *len = is_unix ? sizeof file : sizeof tcp;
    memcpy(at, is_unix ? (void *)&file : (void *)&tcp, *len);
    int fd = checked("socket", socket(at->ss_family, SOCK_STREAM, 0));
    unlink(path);
    if (bind(fd, (void *)at, *len) || listen(fd, 4)) die("listen");
    getsockname(fd, (void *)at, len);
    return fd;
}

static int connects_to(const struct sockaddr_storage *at, socklen_t len) {
    int fd = checked("socket", socket(at->ss_family, SOCK_STREAM, 0));
    checked("connect", connect(fd, (void *)at, len));
    return fd;
}

// Connects. `ends`: the one that connected, and the one that was accepted. If the pair `greets`, each end sends a few bytes and receives them.
static inline void connected(const char *path, bool is_unix, bool greets, int ends[2]) {
    struct sockaddr_storage at;
    socklen_t len;
    int listener = listens_at(path, is_unix, &at, &len);
    ends[0] = connects_to(&at, len);
    ends[1] = checked("accept", accept(listener, NULL, NULL));
    close(listener);
    char bytes[2];
    for (int from = 0; greets && from < 2; from++)
        if (send(ends[from], "hi", 2, 0) != 2 || recv(ends[1 - from], bytes, 2, MSG_WAITALL) != 2) die("greeting");
}

#endif
