// Events of an end whose peer has gone on in the kernel, and ended there, before the bytes from before were read: `ends_behind PATH`. Prints lines that
// do not depend on the transport.
#define _GNU_SOURCE
#include "both_ends.h"
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>

enum end { GOES_ON, SHUTS, CLOSES, ENDS };
static const char *ends_how[] = {"goes on", "shuts", "closes"};
enum way { POLL, EPOLL, BESIDE, ADDED_AFTER, EDGES, ONCE, WAYS };
static const char *ways[] = {"poll", "epoll", "epoll beside another", "epoll added after", "edges", "once"};
static const short asked_all[] = {POLLIN, POLLRDHUP, POLLIN | POLLRDHUP, POLLOUT, POLLOUT | POLLRDHUP, POLLIN | POLLOUT | POLLRDHUP};

// Ends of another connection, with bytes that nobody reads.
static int others[2];

static void leaves(int fd) {
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC)) die("O_ASYNC");
}

static int added(int fd, short asked, enum way way) {
    struct epoll_event other = {.events = EPOLLIN, .data.fd = others[1]};
    struct epoll_event event = {.data.fd = fd, .events = asked | (way == EDGES ? EPOLLET : way == ONCE ? EPOLLONESHOT : 0)};
    int epoll = checked("epoll_create1", epoll_create1(0));
    checked("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    if (way == BESIDE) checked("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, others[1], &other));
    return epoll;
}

// Waits for as long as `timeout` milliseconds. Prints the events of `fd`.
static void waits(int fd, int epoll, enum way way, short asked, int timeout) {
    struct pollfd one = {.fd = fd, .events = asked};
    struct epoll_event events[2];
    int found = epoll < 0 ? poll(&one, 1, timeout) : epoll_wait(epoll, events, way == BESIDE ? 2 : 1, timeout);
    unsigned all = epoll < 0 && found == 1 ? (unsigned)one.revents : 0;
    for (int n = 0; epoll >= 0 && n < found; n++)
        if (events[n].data.fd == fd) all |= events[n].events;
    printf(" %d:%x", found, all);
}

static void try_of(const char *path, bool is_unix, int side, enum end end, enum way way, short asked, int timeout) {
    int pair[2], epoll = -1;
    char bytes[4];
    connected(path, is_unix, true, pair);
    int fd = pair[1 - side], peer = pair[side];
    if (way != POLL && way != ADDED_AFTER) epoll = added(fd, asked, way);
    int on = 1;
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (send(peer, "abcd", 4, 0) != 4) die("send");
    leaves(peer);
    if (send(peer, "efgh", 4, 0) != 4) die("send");
    if (end == SHUTS) shutdown(peer, SHUT_WR);
    if (end == CLOSES) close(peer);
    if (way == ADDED_AFTER) epoll = added(fd, asked, way);
    printf("%s, side %d, %s, %s, asks %x, %d ms:", is_unix ? "unix" : "tcp", side, ends_how[end], ways[way], asked, timeout);
    waits(fd, epoll, way, asked, timeout);
    // Edges that were not there may come again. Of several that are ready, a wait may leave some to the next one.
    for (int part = 0; part < 4 && way != EDGES && way != BESIDE; part++) {
        struct epoll_event again = {.data.fd = fd, .events = asked | EPOLLONESHOT};
        if (recv(fd, bytes, 2, 0) != 2) die("recv");
        if (way == ONCE) checked("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &again));
        waits(fd, epoll, way, asked, timeout);
    }
    printf("\n");
    if (epoll >= 0) close(epoll);
    close(fd);
    if (end != CLOSES) close(peer);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    for (int is_unix = 0; is_unix < 2; is_unix++) {
        connected(argv[1], is_unix, true, others);
        if (send(others[0], "more", 4, 0) != 4) die("send");
        for (int side = 0; side < 2; side++)
            for (enum end end = 0; end < ENDS; end++)
                for (enum way way = 0; way < WAYS; way++)
                    for (unsigned asked = 0; asked < sizeof asked_all / sizeof *asked_all; asked++)
                        for (int timeout = 0; timeout <= 20; timeout += 20)
                            try_of(argv[1], is_unix, side, end, way, asked_all[asked], timeout);
    }
    return 0;
}
