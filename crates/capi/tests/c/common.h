/* What the test programs share: `program server|client ADDRESS PORT`, exit status 0 on success. */
#ifndef COMMON_H
#define COMMON_H

#include <arpa/inet.h>
#include <errno.h>
#include <pd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "%s:%d: %s: errno %d (%s): %s\n", __FILE__, __LINE__, #condition, errno,  \
                    strerror(errno), pd_errmsg());                                                    \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

/* The call fails with this errno and leaves a sentence. */
#define FAILS(call, expected)                                                                         \
    do {                                                                                              \
        errno = 0;                                                                                    \
        long result = (long)(call);                                                                   \
        CHECK(result == -1 && errno == (expected) && *pd_errmsg() != 0);                              \
    } while (0)

static inline struct sockaddr_storage parse(const char *ip, const char *port, socklen_t *len) {
    struct sockaddr_storage storage;
    memset(&storage, 0, sizeof storage);
    struct sockaddr_in *in = (struct sockaddr_in *)&storage;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&storage;
    if (inet_pton(AF_INET, ip, &in->sin_addr) == 1) {
        in->sin_family = AF_INET;
        in->sin_port = htons((uint16_t)atoi(port));
        *len = sizeof *in;
    } else if (inet_pton(AF_INET6, ip, &in6->sin6_addr) == 1) {
        in6->sin6_family = AF_INET6;
        in6->sin6_port = htons((uint16_t)atoi(port));
        *len = sizeof *in6;
    } else {
        fprintf(stderr, "%s is not an address\n", ip);
        exit(2);
    }
    return storage;
}

static inline int listen_on(const char *ip, const char *port) {
    socklen_t len;
    struct sockaddr_storage addr = parse(ip, port, &len);
    int sid = pd_socket(addr.ss_family, SOCK_STREAM, 0);
    CHECK(sid >= 0);
    CHECK(pd_bind(sid, &addr, len) == 0);
    CHECK(pd_listen(sid, 128) == 0);
    return sid;
}

/* Connects; waits up to ten seconds for the server to listen. */
static inline int connect_to(const char *ip, const char *port) {
    socklen_t len;
    struct sockaddr_storage addr = parse(ip, port, &len);
    for (int attempt = 0;; attempt++) {
        int sid = pd_socket(addr.ss_family, SOCK_STREAM, 0);
        CHECK(sid >= 0);
        if (pd_connect(sid, &addr, len) == 0)
            return sid;
        CHECK(errno == ECONNREFUSED && attempt < 1000);
        CHECK(pd_close(sid) == 0);
        usleep(10000);
    }
}

/* A byte of a stream that both sides know. */
static inline unsigned char byte_at(unsigned seed, size_t position) {
    return (unsigned char)((position * 2654435761u >> 8) ^ position ^ seed);
}

static inline void send_pattern(int sid, unsigned seed, size_t total, size_t message) {
    unsigned char *buffers[8];
    for (int i = 0; i < 8; i++)
        CHECK((buffers[i] = pd_malloc(message)) != NULL);
    for (size_t at = 0, n = 0; at < total; n++) {
        void *buffer = buffers[n % 8];
        CHECK(pd_buf_refresh(sid, &buffer, 1) == 1);
        size_t len = total - at < message ? total - at : message;
        for (size_t i = 0; i < len; i++)
            ((unsigned char *)buffer)[i] = byte_at(seed, at + i);
        CHECK(pd_send(sid, buffer, len) == (ssize_t)len);
        at += len;
    }
    for (int i = 0; i < 8; i++)
        CHECK(pd_free(buffers[i]) == 0);
}

static inline void recv_pattern(int sid, unsigned seed, size_t total, size_t at_most) {
    for (size_t at = 0; at < total;) {
        void *data = NULL;
        ssize_t len = pd_recv(sid, total - at < at_most ? total - at : at_most, &data);
        CHECK(len > 0);
        for (ssize_t i = 0; i < len; i++)
            CHECK(((unsigned char *)data)[i] == byte_at(seed, at + (size_t)i));
        CHECK(pd_recv_done(sid, (size_t)len) == 0);
        at += (size_t)len;
    }
}

/* Plays the part that the arguments name. */
static inline int play(int argc, char **argv, void (*server)(const char *, const char *),
                       void (*client)(const char *, const char *)) {
    if (argc != 4)
        return 2;
    (strcmp(argv[1], "server") == 0 ? server : client)(argv[2], argv[3]);
    return 0;
}

static inline void expect_end(int sid) {
    void *data = &data;
    CHECK(pd_recv(sid, 1, &data) == 0 && data == NULL);
}

#endif
