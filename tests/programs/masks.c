// Waits with and without a mask of signals, for events of the fabric and of the kernel. `masks server PORT` prints "ready", `masks client
// IP PORT` prints lines that do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>
#include "serve.h"

static volatile int handled;
static int fd, pipes[2], listener;

static void counts(int signal) {
    (void)signal;
    handled++;
}

// Waits for the connection, the pipe and the listener. Prints the result.
static void await(int way, int ms, const char *what) {
    static const char *names[] = {"poll", "ppoll", "ppoll with a mask", "select", "pselect", "pselect with a mask", "epoll_wait",
                                  "epoll_pwait with a mask"};
    struct timespec time = {ms / 1000, ms % 1000 * 1000000}, *limit = ms < 0 ? NULL : &time;
    struct timeval short_time = {ms / 1000, ms % 1000 * 1000}, *short_limit = ms < 0 ? NULL : &short_time;
    struct pollfd polls[3] = {{fd, POLLIN, 0}, {pipes[0], POLLIN, 0}, {listener, POLLIN, 0}};
    sigset_t none;
    sigemptyset(&none);
    fd_set reads;
    FD_ZERO(&reads);
    for (int i = 0; i < 3; i++) FD_SET(polls[i].fd, &reads);
    handled = 0, errno = 0;
    int found, end = listener + 1 > fd + 1 ? listener + 1 : fd + 1;
    if (way < 3) found = way == 0 ? poll(polls, 3, ms) : ppoll(polls, 3, limit, way == 2 ? &none : NULL);
    else if (way < 6) {
        found = way == 3 ? select(end, &reads, NULL, NULL, short_limit) : pselect(end, &reads, NULL, NULL, limit, way == 5 ? &none : NULL);
        for (int i = 0; i < 3 && found >= 0; i++) polls[i].revents = FD_ISSET(polls[i].fd, &reads) ? POLLIN : 0;
    } else {
        int epoll = checked("epoll", epoll_create1(0));
        struct epoll_event events[3];
        for (int i = 0; i < 3; i++) {
            struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
            checked("add", epoll_ctl(epoll, EPOLL_CTL_ADD, polls[i].fd, &event));
        }
        found = way == 6 ? epoll_wait(epoll, events, 3, ms) : epoll_pwait(epoll, events, 3, ms, &none);
        for (int i = 0; i < found; i++) polls[events[i].data.u32].revents = events[i].events;
        int before = errno;
        close(epoll);
        errno = before;
    }
    SAY("%s, %s: %d %s, connection %x, pipe %x, listener %x, handlers %d", names[way], what, found,
        found < 0 ? strerror(errno) : "", polls[0].revents, polls[1].revents, polls[2].revents, handled);
}

static void *later(void *argument) {
    usleep(10000);
    const char *what = argument;
    if (*what == 'p') (void)!write(pipes[1], "p", 1);
    else if (*what == 'c') (void)!write(fd, "c", 1);
    else {
        struct sockaddr_in own;
        socklen_t len = sizeof own;
        getsockname(listener, (void *)&own, &len);
        own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        int end = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(end, (void *)&own, sizeof own)) die("connect");
        close(end);
    }
    return NULL;
}

static void drain(void) {
    char byte;
    struct pollfd polls[3] = {{fd, POLLIN, 0}, {pipes[0], POLLIN, 0}, {listener, POLLIN, 0}};
    while (poll(polls, 3, 0) > 0) {
        if (polls[0].revents && read(fd, &byte, 1) != 1) die("read");
        if (polls[1].revents && read(pipes[0], &byte, 1) != 1) die("read");
        if (polls[2].revents) close(checked("accept", accept(listener, NULL, NULL)));
    }
}

int main(int count, char **arguments) {
    if (count >= 3 && !strcmp(arguments[1], "server")) serve_each(atoi(arguments[2]), echo);
    if (count < 4) return 2;
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[3]))};
    inet_pton(AF_INET, arguments[2], &where.sin_addr);
    fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
    checked("connect", connect(fd, (void *)&where, sizeof where));
    checked("pipe", pipe(pipes));
    listener = listening(0, 0);
    // The connection is on the fabric where it can be.
    static char bulk[1 << 20];
    for (size_t sent = 0, back = 0; back < sizeof bulk;) {
        ssize_t part = sent < sizeof bulk ? send(fd, bulk, sizeof bulk - sent, MSG_DONTWAIT) : 0;
        if (part > 0) sent += part;
        if ((part = recv(fd, bulk, sizeof bulk, sent < sizeof bulk ? MSG_DONTWAIT : 0)) > 0) back += part;
    }
    sigset_t one, usual;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigprocmask(SIG_BLOCK, &one, &usual);
    struct sigaction action = {.sa_handler = counts};
    sigaction(SIGUSR1, &action, NULL);
    for (int way = 0; way < 8; way++) {
        int masked = way == 2 || way == 5 || way == 7;
        await(way, 0, "nothing, no time");
        await(way, 10, "nothing, some time");
        static const char *things[] = {"pipe", "connection", "listener"};
        for (int i = 0; i < 3; i++) {
            later((void *)things[i]);
            // The echo is there.
            struct pollfd all[3] = {{fd, POLLIN, 0}, {pipes[0], POLLIN, 0}, {listener, POLLIN, 0}};
            poll(all, 3, 5000);
            await(way, 0, things[i]), await(way, 5000, things[i]), await(way, -1, things[i]);
            drain();
            pthread_t thread;
            for (int limit = -1; limit < 6000; limit += 5001) {
                pthread_create(&thread, NULL, later, (void *)things[i]);
                await(way, limit, things[i]);
                pthread_join(thread, NULL);
                poll(all, 3, 5000);
                drain();
            }
        }
        // A pending signal ends a wait whose mask lets it in, unless something is ready.
        if (masked) {
            raise(SIGUSR1), await(way, 0, "a signal, no time");
            raise(SIGUSR1), await(way, 5000, "a signal, some time");
            raise(SIGUSR1), await(way, -1, "a signal, for ever");
            (void)!write(pipes[1], "p", 1);
            raise(SIGUSR1), await(way, -1, "a signal and the pipe");
            await(way, 0, "after it");
            drain();
            await(way, 0, "nothing is ready");
        }
    }
}
