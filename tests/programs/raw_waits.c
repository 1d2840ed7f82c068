// Programs that wait by system calls of their own, past the C library, and send and receive by the C library. `raw_waits server
// PORT` prints "ready" and echoes; `raw_waits client IP PORT` prints lines that do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "serve.h"

#define CONNECTIONS 4
#define BYTES 400000
#define LONG_MS 10000

// No function of the C library's, which could be stood in for.
static long raw(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    if (result < 0) {
        errno = -result;
        return -1;
    }
    return result;
}

static int instance(void) { return raw(SYS_epoll_create1, 0, 0, 0, 0); }

static void control(int epoll, int operation, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (raw(SYS_epoll_ctl, epoll, operation, fd, (long)&event)) die("epoll_ctl");
}

static int waited(int epoll, struct epoll_event *events, int max) {
    return raw(SYS_epoll_wait, epoll, (long)events, max, LONG_MS);
}

struct echo {
    char bytes[1 << 16];
    size_t held, sent;
    int ended;
};

static struct echo *echoes[1024];

// Level-triggered. False: it is over.
static int go_on(int epoll, int fd, struct echo *echo) {
    if (echo->sent == echo->held && !echo->ended) {
        ssize_t part = recv(fd, echo->bytes, sizeof echo->bytes, 0);
        if (part < 0) return errno == EAGAIN;
        echo->held = part, echo->sent = 0;
        if (part == 0) echo->ended = 1;
    }
    if (echo->ended) return 0;
    ssize_t part = send(fd, echo->bytes + echo->sent, echo->held - echo->sent, MSG_NOSIGNAL);
    if (part < 0 && errno != EAGAIN) return 0;
    if (part > 0) echo->sent += part;
    control(epoll, EPOLL_CTL_MOD, fd, echo->sent < echo->held ? EPOLLOUT : EPOLLIN);
    return 1;
}

static void server(int port) {
    int fd = listening(port, SOCK_NONBLOCK), epoll = instance();
    control(epoll, EPOLL_CTL_ADD, fd, EPOLLIN);
    SAY("ready");
    for (;;) {
        struct epoll_event events[16];
        int found = waited(epoll, events, 16);
        for (int i = 0; i < found; i++) {
            int at = events[i].data.fd;
            if (at == fd) {
                int new = accept4(fd, NULL, NULL, SOCK_NONBLOCK);
                if (new < 0) continue;
                echoes[new] = calloc(1, sizeof(struct echo));
                control(epoll, EPOLL_CTL_ADD, new, EPOLLIN);
            } else if (!go_on(epoll, at, echoes[at])) {
                free(echoes[at]);
                close(at);
            }
        }
    }
}

static uint8_t pattern(int connection, int at) { return (at * 7 + connection * 31 + (at >> 9)) & 0xff; }

// Sends and receives on several connections; `edge`: told of edges only. `late`: added only after a first call that finds nothing.
static void exchange(struct sockaddr_in where, int edge, int late) {
    int epoll = instance(), fds[CONNECTIONS], sent[CONNECTIONS] = {0}, received[CONNECTIONS] = {0}, right = 1, open = CONNECTIONS;
    uint8_t bytes[20000];
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fds[i], (void *)&where, sizeof where)) die("connect");
        fcntl(fds[i], F_SETFL, O_NONBLOCK);
        if (!late) control(epoll, EPOLL_CTL_ADD, fds[i], EPOLLIN | EPOLLOUT | (edge ? EPOLLET : 0));
        if (recv(fds[i], bytes, 1, 0) != -1 || errno != EAGAIN) die("recv");
        if (late) control(epoll, EPOLL_CTL_ADD, fds[i], EPOLLIN | EPOLLOUT | (edge ? EPOLLET : 0));
        if (late && (recv(fds[i], bytes, 1, 0) != -1 || errno != EAGAIN)) die("recv");
    }
    while (open > 0) {
        struct epoll_event events[CONNECTIONS];
        int found = waited(epoll, events, CONNECTIONS);
        if (found <= 0) die("nothing more comes");
        for (int i = 0; i < CONNECTIONS; i++) {
            int moved = fds[i] >= 0;
            while (moved) {
                moved = 0;
                int len = BYTES - sent[i] < (int)sizeof bytes ? BYTES - sent[i] : (int)sizeof bytes;
                for (int at = 0; at < len; at++) bytes[at] = pattern(i, sent[i] + at);
                ssize_t part = len ? send(fds[i], bytes, len, MSG_NOSIGNAL) : 0;
                if (part < 0 && errno != EAGAIN) die("send");
                if (part > 0) {
                    sent[i] += part, moved = 1;
                    if (sent[i] == BYTES) {
                        shutdown(fds[i], SHUT_WR);
                        control(epoll, EPOLL_CTL_MOD, fds[i], EPOLLIN | (edge ? EPOLLET : 0));
                    }
                }
                part = recv(fds[i], bytes, sizeof bytes, 0);
                if (part < 0 && errno != EAGAIN) die("recv");
                for (ssize_t at = 0; at < part; at++) right &= bytes[at] == pattern(i, received[i] + at);
                if (part > 0) received[i] += part, moved = 1;
                if (part == 0) {
                    close(fds[i]);
                    right &= received[i] == BYTES;
                    fds[i] = -1, open--, moved = 0;
                }
            }
        }
    }
    close(epoll);
    SAY("%s%s: %s", edge ? "edges" : "levels", late ? ", added late" : "", right ? "right" : "WRONG");
}

int main(int count, char **arguments) {
    signal(SIGPIPE, SIG_IGN);
    if (count >= 3 && !strcmp(arguments[1], "server")) server(atoi(arguments[2]));
    if (count < 4) return 2;
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[3]))};
    inet_pton(AF_INET, arguments[2], &where.sin_addr);
    for (int edge = 0; edge < 2; edge++)
        for (int late = 0; late < 2; late++) exchange(where, edge, late);
    return 0;
}
