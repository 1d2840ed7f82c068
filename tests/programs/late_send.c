// Sends to connections whose other end has just been closed: the first send is taken, and the peer's reset is told after it. Shutdowns of
// connections that are reset: they fail, and the error stays. Prints lines that do not depend on the transport.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROUNDS = 60, LEN = 100, PATIENCE_MS = 20000 };

static char bytes[LEN];

static void check(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static int error_of(int fd) {
    int error = -1;
    socklen_t len = sizeof error;
    check(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0, "SO_ERROR");
    return error;
}

// Makes a connection over which `messages` went each way. Returns its ends.
static void make(int listener, const struct sockaddr_in *to, int messages, int ends[2]) {
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(ends[0], (const struct sockaddr *)to, sizeof *to) == 0, "connect");
    ends[1] = accept(listener, NULL, NULL);
    check(ends[1] >= 0, "accept");
    for (int i = 0; i < 2 * messages; i++) {
        check(send(ends[i % 2], bytes, LEN, 0) == LEN, "send");
        check(recv(ends[1 - i % 2], bytes, LEN, MSG_WAITALL) == LEN, "recv");
    }
}

static short events_of(int fd) {
    struct pollfd one = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
    check(poll(&one, 1, 0) >= 0, "poll");
    return one.revents;
}

// The peer leaves bytes unread, with an end of its own before or without one. Returns whether there was a reset.
static int reset_of(const int ends[2], int ends_before, int how) {
    check(send(ends[0], bytes, LEN, 0) == LEN, "send");
    check(send(ends[1], bytes, 14, 0) == 14, "send");
    struct pollfd one = {.fd = ends[1], .events = POLLIN};
    check(poll(&one, 1, PATIENCE_MS) == 1, "poll");
    if (ends_before) check(shutdown(ends[1], SHUT_WR) == 0, "shutdown");
    check(close(ends[1]) == 0, "close");
    one = (struct pollfd){.fd = ends[0]};
    if (poll(&one, 1, PATIENCE_MS) != 1 || !(one.revents & POLLERR)) return 0;
    short before = events_of(ends[0]);
    int result = shutdown(ends[0], how), failed = errno;
    short after = events_of(ends[0]);
    printf(" %d %s %x %x %d %x", result, result ? strerrorname_np(failed) : "", before, after, error_of(ends[0]), events_of(ends[0]));
    return 1;
}

int main(void) {
    // Short-lived connections last: those to a place that has had several stay on the kernel for seconds.
    static const int MESSAGES[] = {400, 40, 1, 0};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    signal(SIGPIPE, SIG_IGN);
    check(bind(listener, (struct sockaddr *)&at, len) == 0, "bind");
    check(getsockname(listener, (struct sockaddr *)&at, &len) == 0, "getsockname");
    check(listen(listener, 8) == 0, "listen");
    for (unsigned way = 0; way < 4; way++) {
        int taken = 0, told = 0, refused = 0, ended = 0;
        for (int round = 0; round < ROUNDS; round++) {
            int ends[2];
            make(listener, &at, MESSAGES[way], ends);
            // Either end may be the one that is closed.
            int left = ends[round % 2];
            check(close(ends[1 - round % 2]) == 0, "close");
            for (volatile int i = 0; i < round % 20 * 500; i++);
            taken += send(left, bytes, 20, 0) == 20;
            struct pollfd one = {.fd = left};
            if (poll(&one, 1, PATIENCE_MS) != 1 || !(one.revents & POLLERR)) {
                printf("no reset in round %d, after %d messages\n", round, MESSAGES[way]);
                return 1;
            }
            told += round % 3 == 0 && error_of(left) == EPIPE;
            refused += send(left, bytes, 20, 0) == -1 && errno == EPIPE;
            told += error_of(left) == 0;
            ended += recv(left, bytes, LEN, 0) == 0;
            close(left);
        }
        printf("resets:");
        for (int kind = 0; kind < 6; kind++) {
            int ends[2];
            make(listener, &at, MESSAGES[way], ends);
            if (!reset_of(ends, kind % 2, kind / 2)) {
                printf("no reset of kind %d, after %d messages\n", kind, MESSAGES[way]);
                return 1;
            }
            close(ends[0]);
        }
        printf("\n%d messages: taken %d, told %d, refused %d, ended %d\n", MESSAGES[way], taken, told, refused, ended);
    }
    return 0;
}
