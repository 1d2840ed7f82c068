// Threads that do with a few numbers what they like, at the same time: they connect, accept, duplicate, close, send, receive, shut down, wait and
// fork without asking each other: `number_races PATH CALLS`. Every call returns, and connections work afterwards. Prints a line that does not depend on
// the transport.
#define _GNU_SOURCE
#include "both_ends.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <sys/wait.h>

#define THREADS 4
#define FIRST 100
#define NUMBERS 24
// Listeners, which nobody closes before the end.
#define TCP_LISTENER (FIRST - 2)
#define UNIX_LISTENER (FIRST - 1)
#define LIMIT_US 20000
#define BULK 20000

static struct sockaddr_storage at[2];
static socklen_t len[2];
static long calls;
static __thread uint32_t state;

static uint32_t below(uint32_t limit) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % limit;
}

static int any(void) {
    return FIRST + below(NUMBERS);
}

static void limit_waits(int fd) {
    struct timeval limit = {.tv_usec = LIMIT_US};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// Gives a descriptor one of the numbers.
static void put(int fd) {
    if (fd < 0) return;
    limit_waits(fd);
    if (below(2)) dup2(fd, any());
    else dup3(fd, any(), O_CLOEXEC);
    close(fd);
}

static int made(bool is_unix) {
    int fd = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM | (below(2) ? SOCK_NONBLOCK : 0), 0);
    limit_waits(fd);
    return fd;
}

// A child that uses what it inherits.
static void forks(void) {
    int child = fork();
    if (child == 0) {
        char byte = 0;
        for (int n = 0; n < 20; n++) {
            send(any(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
            recv(any(), &byte, 1, MSG_DONTWAIT);
            close(any());
        }
        _exit(0);
    }
    if (child > 0) waitpid(child, NULL, 0);
}

static void waits(void) {
    struct pollfd three[3] = {{any(), POLLIN | POLLOUT, 0}, {any(), POLLIN, 0}, {any(), POLLIN | POLLRDHUP, 0}};
    struct timeval limit = {.tv_usec = below(5000)};
    struct epoll_event events[8];
    fd_set set;
    FD_ZERO(&set);
    FD_SET(any(), &set);
    switch (below(3)) {
    case 0: poll(three, 1 + below(3), below(5)); break;
    case 1: select(FIRST + NUMBERS, &set, NULL, NULL, &limit); break;
    default: epoll_wait(any(), events, 8, below(5));
    }
}

static void calls_one(char *bytes) {
    struct linger never = {.l_onoff = 1};
    struct epoll_event event = {.events = below(2) ? EPOLLIN : EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = below(100)};
    bool is_unix = below(2);
    int number, flags = below(2) ? MSG_DONTWAIT : 0;
    switch (below(20)) {
    case 0: case 1: put(made(is_unix)); break;
    case 2: connect(any(), (void *)&at[is_unix], len[is_unix]); break;
    case 3: case 4:
        number = made(is_unix);
        connect(number, (void *)&at[is_unix], len[is_unix]);
        send(number, bytes, below(2000), MSG_NOSIGNAL | MSG_DONTWAIT);
        put(number);
        break;
    case 5: case 6: case 7: put(accept4(is_unix ? UNIX_LISTENER : TCP_LISTENER, NULL, NULL, below(2) ? SOCK_NONBLOCK : 0)); break;
    case 8: close(any()); break;
    case 9: number = any(), close_range(number, number + 1, 0); break;
    case 10: dup2(any(), any()); break;
    case 11: put(dup(any())); break;
    case 12: send(any(), bytes, below(BULK), MSG_NOSIGNAL | flags); break;
    case 13: recv(any(), bytes, below(BULK), flags); break;
    case 14: shutdown(any(), below(3)); break;
    case 15: put(epoll_create1(0)); break;
    case 16: epoll_ctl(any(), 1 + below(3), any(), &event); break;
    case 17: waits(); break;
    case 18: ioctl(any(), FIONREAD, &number), fcntl(any(), F_SETFL, below(2) ? O_NONBLOCK : 0); break;
    default:
        if (below(4) == 0) setsockopt(any(), SOL_SOCKET, SO_LINGER, &never, sizeof never);
        else if (below(32) == 0) forks();
    }
}

static void *races(void *argument) {
    char bytes[BULK] = "";
    state = *(int *)argument;
    for (long n = 0; n < calls; n++) calls_one(bytes);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    calls = atol(argv[2]);
    signal(SIGPIPE, SIG_IGN);
    for (int is_unix = 0; is_unix < 2; is_unix++) {
        int fd = listens_at(argv[1], is_unix, &at[is_unix], &len[is_unix]);
        listen(fd, 64);
        fcntl(fd, F_SETFL, O_NONBLOCK);
        dup2(fd, is_unix ? UNIX_LISTENER : TCP_LISTENER);
        close(fd);
    }
    pthread_t threads[THREADS];
    int seeds[THREADS];
    for (int n = 0; n < THREADS; n++) {
        seeds[n] = 7919 * (n + 1);
        pthread_create(&threads[n], NULL, races, &seeds[n]);
    }
    for (int n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
    for (int fd = TCP_LISTENER; fd < FIRST + NUMBERS; fd++) close(fd);
    for (int is_unix = 0; is_unix < 2; is_unix++) {
        int ends[2];
        connected(argv[1], is_unix, true, ends);
        close(ends[0]), close(ends[1]);
    }
    unlink(argv[1]);
    printf("all calls have returned\n");
}
