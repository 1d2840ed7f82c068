// Connections that leave the fabric while one thread waits in `poll` or `select` for answers and another one sends: `left_in_poll ROUNDS`.
// All ends are in this process. Prints a line for each way, which does not depend on the transport of the bytes.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOME 100
#define SENDS_MAX 40
// A wait that nothing ends is over after this time, which no busy machine takes.
#define LONG_S 60

static int listener;
static bool by_select;

struct reader {
    int fd;
    size_t wanted;
    unsigned seed;
    bool lost, wrong;
};

static char byte_at(unsigned seed, size_t place) { return (char)(seed * 31 + place * 7 + place / 251); }

// Accepts, leaves the fabric at some moment, and sends back what comes.
static void *serve(void *argument) {
    unsigned round = (unsigned)(size_t)argument;
    char bytes[4096];
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) return NULL;
    size_t before = round % 3 * SOME, got = 0;
    bool left = false;
    for (;;) {
        if (!left && got >= before) {
            setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &(int){1}, sizeof(int));
            left = true;
        }
        ssize_t count = recv(fd, bytes, sizeof bytes, 0);
        if (count <= 0) break;
        got += (size_t)count;
        if (send(fd, bytes, (size_t)count, MSG_NOSIGNAL) != count) break;
    }
    close(fd);
    return NULL;
}

static bool is_readable(int fd) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    struct timeval time = {LONG_S, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    return (by_select ? select(fd + 1, &set, NULL, NULL, &time) : poll(&one, 1, LONG_S * 1000)) > 0;
}

static void *receive(void *argument) {
    struct reader *reader = argument;
    char bytes[SOME * SENDS_MAX];
    for (size_t got = 0; got < reader->wanted;) {
        if (!is_readable(reader->fd)) {
            fprintf(stderr, "round %u: nothing after %zu of %zu bytes\n", reader->seed, got, reader->wanted);
            reader->lost = true;
            break;
        }
        ssize_t count = recv(reader->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (count < 0) continue;
        if (count == 0) {
            fprintf(stderr, "round %u: the end after %zu of %zu bytes\n", reader->seed, got, reader->wanted);
            reader->wrong = true;
            break;
        }
        for (ssize_t at = 0; at < count; at++) reader->wrong |= bytes[at] != byte_at(reader->seed, got + (size_t)at);
        got += (size_t)count;
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    unsigned rounds = (unsigned)atoi(argv[1]);
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof tcp;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&tcp, len) || listen(listener, 16)) return perror("listen"), 1;
    getsockname(listener, (void *)&tcp, &len);
    for (int way = 0; way < 2; way++) {
        by_select = way == 1;
        unsigned lost = 0, wrong = 0;
        for (unsigned round = 0; round < rounds && !lost; round++) {
            pthread_t server, reading;
            pthread_create(&server, NULL, serve, (void *)(size_t)round);
            unsigned sends = round % 2 ? 1 : 1 + round % SENDS_MAX;
            struct reader reader = {.fd = socket(AF_INET, SOCK_STREAM, 0), .wanted = sends * SOME, .seed = round};
            if (connect(reader.fd, (void *)&tcp, len)) return perror("connect"), 1;
            pthread_create(&reading, NULL, receive, &reader);
            for (unsigned number = 0; number < sends; number++) {
                char bytes[SOME];
                for (size_t at = 0; at < SOME; at++) bytes[at] = byte_at(round, number * SOME + at);
                if (send(reader.fd, bytes, SOME, MSG_NOSIGNAL) != SOME) perror("send");
            }
            pthread_join(reading, NULL);
            shutdown(reader.fd, SHUT_WR);
            pthread_join(server, NULL);
            close(reader.fd);
            lost += reader.lost;
            wrong += reader.wrong;
        }
        printf("%s: %u lost, %u wrong\n", by_select ? "select" : "poll", lost, wrong);
    }
    return 0;
}
