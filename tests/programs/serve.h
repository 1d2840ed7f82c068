// Parts that the test programs share: printed lines, the end of a program that cannot go on, and a server with a thread for
// each connection.
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SAY(...) (printf(__VA_ARGS__), putchar('\n'), fflush(stdout))

static inline void die(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    fflush(stdout);
    exit(1);
}

// The result of a call that must not fail.
static inline int checked(const char *what, int result) {
    if (result < 0) die(what);
    return result;
}

// A listener on a port of all addresses.
static inline int listening(int port, int flags) {
    int fd = checked("socket", socket(AF_INET, SOCK_STREAM | flags, 0)), one = 1;
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&any, sizeof any) || listen(fd, 128)) die("listen");
    signal(SIGPIPE, SIG_IGN);
    return fd;
}

// Thread for `serve_each`: sends received bytes back, to the end.
static inline void *echo(void *argument) {
    int fd = (int)(intptr_t)argument;
    char bytes[4096];
    ssize_t part;
    while ((part = read(fd, bytes, sizeof bytes)) > 0)
        if (write(fd, bytes, part) != part) break;
    close(fd);
    return NULL;
}

// Runs `serve` for each connection, with its descriptor as argument. Does not return.
static inline void serve_each(int port, void *(*serve)(void *)) {
    int fd = listening(port, 0);
    SAY("ready");
    for (;;) {
        pthread_t thread;
        int new = checked("accept", accept(fd, NULL, NULL));
        pthread_create(&thread, NULL, serve, (void *)(intptr_t)new);
        pthread_detach(thread);
    }
}
