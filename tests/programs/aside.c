// Connections that leave the fabric while bytes are on their way: `fcntl` with `F_SETOWN` makes one leave. `aside server
// PORT` prints "ready"; `aside client IP PORT [ROUNDS]` prints lines that do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>
#include "serve.h"

#define NEVER UINT32_MAX
// Bytes of a side that sends or receives a few at a time.
#define FEW 5000

// Actions of one side.
struct side {
    uint32_t sends;     // bytes
    uint32_t leaves_at; // bytes sent and received before it leaves
    uint32_t waits;     // how it waits: WAYS
    uint32_t piece;     // bytes of a call at most
    uint32_t pauses;    // a nap before the first receive, ms
};

enum { BLOCKING, POLL, SELECT, LEVEL, EDGE, ONESHOT, WAYS };

struct plan {
    uint32_t seed;
    uint32_t resets; // the server ends by a reset
    struct side client, server;
};

static uint8_t pattern(uint32_t seed, uint32_t at) {
    uint32_t x = (at ^ seed) * 2654435761u;
    return (x >> 24) ^ (at >> 11);
}

struct end {
    int fd;
    uint32_t seed;
    struct side side;
    uint32_t sent, received, wanted;
    int shut, ended, left, failed;
    pthread_mutex_t lock;
};

static void may_leave(struct end *end) {
    pthread_mutex_lock(&end->lock);
    if (!end->left && end->side.leaves_at != NEVER && end->sent + end->received >= end->side.leaves_at) {
        end->left = 1;
        if (fcntl(end->fd, F_SETOWN, getpid())) end->failed = 1;
    }
    pthread_mutex_unlock(&end->lock);
}

// Sends a piece. 1: it went; 0: there is no room.
static int send_some(struct end *end) {
    static _Thread_local uint8_t bytes[1 << 16];
    may_leave(end);
    if (end->sent == end->side.sends) {
        if (!end->shut) shutdown(end->fd, SHUT_WR), end->shut = 1;
        return 0;
    }
    uint32_t len = end->side.sends - end->sent;
    if (len > end->side.piece) len = end->side.piece;
    for (uint32_t i = 0; i < len; i++) bytes[i] = pattern(end->seed, end->sent + i);
    ssize_t part = send(end->fd, bytes, len, MSG_NOSIGNAL);
    if (part < 0) {
        if (errno == EAGAIN) return 0;
        end->failed = errno;
        return -1;
    }
    end->sent += part;
    return 1;
}

static int receive_some(struct end *end) {
    static _Thread_local uint8_t bytes[1 << 16], again[1 << 16];
    may_leave(end);
    uint32_t len = end->side.piece;
    ssize_t peeked = 0;
    if (len % 3 == 0) {
        peeked = recv(end->fd, again, len, MSG_PEEK | MSG_DONTWAIT);
        if (peeked < 0 && errno != EAGAIN) {
            end->failed = errno;
            return -1;
        }
    }
    // A call for all bytes at once asks for no more than will come.
    int all = end->side.waits == BLOCKING && len % 2 && end->wanted - end->received > len;
    ssize_t part = recv(end->fd, bytes, len, all ? MSG_WAITALL : 0);
    if (part < 0) {
        if (errno == EAGAIN) return 0;
        end->failed = errno;
        return -1;
    }
    if (all && part != len) end->failed = -2;
    if (peeked > 0 && (part < peeked || memcmp(bytes, again, peeked))) end->failed = -3;
    for (ssize_t i = 0; i < part; i++)
        if (bytes[i] != pattern(~end->seed, end->received + i)) {
            end->failed = -4;
            return -1;
        }
    end->received += part;
    if (part == 0) end->ended = 1;
    return part > 0;
}

static void *sends_all(void *argument) {
    struct end *end = argument;
    while (!end->shut && send_some(end) >= 0) continue;
    return NULL;
}

static void nap(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

static int is_done(struct end *end) { return end->failed || (end->shut && end->ended); }

static void exchange(struct end *end) {
    if (end->side.waits == BLOCKING) {
        pthread_t thread;
        pthread_create(&thread, NULL, sends_all, end);
        nap(end->side.pauses);
        while (!end->ended && receive_some(end) >= 0) continue;
        pthread_join(thread, NULL);
        return;
    }
    fcntl(end->fd, F_SETFL, fcntl(end->fd, F_GETFL) | O_NONBLOCK);
    int epoll = epoll_create1(EPOLL_CLOEXEC), way = end->side.waits;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | (way == EDGE ? EPOLLET : way == ONESHOT ? EPOLLONESHOT : 0)};
    if (way >= LEVEL && epoll_ctl(epoll, EPOLL_CTL_ADD, end->fd, &event)) die("add");
    int pauses = end->side.pauses;
    for (int idle = 0; !is_done(end);) {
        int moved = 0, result;
        // At an edge all is to be done that can be.
        do {
            moved = 0;
            result = send_some(end);
            moved |= result > 0;
            if (pauses && end->sent >= end->side.sends / 2) nap(pauses), pauses = 0;
            if (!pauses && !end->ended && !end->failed) {
                result = receive_some(end);
                moved |= result > 0;
            }
        } while (moved && way == EDGE && !end->failed);
        if (is_done(end)) break;
        int out = !end->shut, timeout = pauses ? 10 : 10000, found;
        struct pollfd poller = {.fd = end->fd, .events = POLLIN | (out ? POLLOUT : 0)};
        fd_set in, room;
        switch (way) {
        case POLL: found = poll(&poller, 1, timeout); break;
        case SELECT:
            FD_ZERO(&in);
            FD_ZERO(&room);
            FD_SET(end->fd, &in);
            if (out) FD_SET(end->fd, &room);
            found = select(end->fd + 1, &in, &room, NULL, &(struct timeval){timeout / 1000, timeout % 1000 * 1000});
            break;
        default:
            if (way != EDGE) {
                event.events = EPOLLIN | (out ? EPOLLOUT : 0) | (way == ONESHOT ? EPOLLONESHOT : 0);
                if (epoll_ctl(epoll, EPOLL_CTL_MOD, end->fd, &event)) die("mod");
            }
            found = epoll_wait(epoll, &(struct epoll_event){0}, 1, timeout);
        }
        if (found == 0 && !pauses && ++idle > 1) end->failed = -5;
        if (found > 0) idle = 0;
    }
    close(epoll);
}

static void all(int fd, void *at, size_t len, int sends) {
    for (size_t done = 0; done < len;) {
        ssize_t part = sends ? send(fd, at + done, len - done, 0) : recv(fd, at + done, len - done, 0);
        if (part <= 0) die(sends ? "send" : "recv");
        done += part;
    }
}

static void *serve(void *argument) {
    int fd = (int)(intptr_t)argument;
    struct plan plan;
    all(fd, &plan, sizeof plan, 0);
    struct end end = {.fd = fd, .seed = plan.seed, .side = plan.server, .wanted = plan.client.sends,
        .lock = PTHREAD_MUTEX_INITIALIZER};
    exchange(&end);
    if (end.failed || end.sent != plan.server.sends || end.received != plan.client.sends)
        fprintf(stderr, "seed %u: server failed %d, sent %u of %u, received %u of %u\n", plan.seed, end.failed, end.sent,
            plan.server.sends, end.received, plan.client.sends);
    if (plan.resets) setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    close(fd);
    return NULL;
}

static uint32_t state;

static uint32_t any(uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (uint64_t)(state >> 8) * below >> 24;
}

static struct side some_side(uint32_t total) {
    static const uint32_t pieces[] = {1, 3, 100, 999, 4096, 16384, 65535};
    struct side side = {.waits = any(WAYS), .piece = pieces[any(7)], .leaves_at = any(3) ? any(total) : NEVER};
    static const uint32_t sizes[] = {0, 1, 1000, 70000, 300000, 2000000};
    side.sends = sizes[any(6)];
    if (side.piece < 100 && side.sends > FEW) side.sends = FEW;
    side.pauses = any(4) ? 0 : 30;
    return side;
}

static void client(struct sockaddr_in where, int rounds, uint32_t first) {
    int left = 0;
    for (int round = 0; round < rounds; round++) {
        struct plan plan = {.seed = state = first + round};
        any(2);
        plan.client = some_side(400000), plan.server = some_side(400000);
        // Bytes that were not sent yet would be lost.
        plan.resets = any(4) == 0 && plan.server.sends <= 1000;
        // Small pieces of the one are received in small ones of the other.
        if (plan.client.piece < 100 && plan.server.sends > FEW) plan.server.sends = FEW;
        if (plan.server.piece < 100 && plan.client.sends > FEW) plan.client.sends = FEW;
        struct side *sides[] = {&plan.client, &plan.server};
        for (int side = 0; side < 2; side++)
            if (plan.client.sends + plan.server.sends <= 2 * FEW && sides[side]->leaves_at != NEVER) sides[side]->leaves_at %= 2 * FEW;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (void *)&where, sizeof where)) die("connect");
        all(fd, &plan, sizeof plan, 1);
        struct end end = {.fd = fd, .seed = ~plan.seed, .side = plan.client, .wanted = plan.server.sends,
            .lock = PTHREAD_MUTEX_INITIALIZER};
        exchange(&end);
        left += end.left;
        if (end.failed || end.sent != plan.client.sends || end.received != plan.server.sends)
            SAY("seed %u: failed %d, sent %u of %u, received %u of %u", plan.seed, end.failed, end.sent, plan.client.sends,
                end.received, plan.server.sends);
        close(fd);
    }
    SAY("%d rounds, %s", rounds, left > rounds / 8 ? "many leave" : "FEW LEAVE");
}

int main(int count, char **arguments) {
    if (count >= 3 && !strcmp(arguments[1], "server")) serve_each(atoi(arguments[2]), serve);
    if (count < 4) return 2;
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[3]))};
    inet_pton(AF_INET, arguments[2], &where.sin_addr);
    signal(SIGPIPE, SIG_IGN);
    client(where, count > 4 ? atoi(arguments[4]) : 120, count > 5 ? atoi(arguments[5]) : 1);
    return 0;
}
