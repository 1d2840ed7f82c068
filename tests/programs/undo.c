// Connections that a program undoes (`connect` to AF_UNSPEC): what both ends see, and what the socket does afterwards. Both ends are in
// this process. Prints lines that do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include "outcome.h"
#include "serve.h"
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/epoll.h>

static char bytes[100000];
static struct sockaddr_in at;
static int listener;

static void greet(const int ends[2]) {
    for (int from = 0; from < 2; from++)
        if (send(ends[from], "hi", 2, 0) != 2 || recv(ends[1 - from], bytes, 2, MSG_WAITALL) != 2) die("greeting");
}

static void connected(int ends[2]) {
    ends[0] = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
    checked("connect", connect(ends[0], (void *)&at, sizeof at));
    ends[1] = checked("accept", accept(listener, NULL, NULL));
    greet(ends);
}

static int undo(int fd) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    return connect(fd, &none, sizeof none);
}

static int events(int fd) {
    struct pollfd one = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
    poll(&one, 1, 0);
    return one.revents;
}

// After an end in order a reset need not be told, nor at once.
static void peer(int fd, bool is_shut) {
    struct pollfd one = {.fd = fd, .events = POLLRDHUP};
    printf(", peer %d", poll(&one, 1, 5000));
    // The last of what a reset tells.
    while (!is_shut && !(events(fd) & POLLHUP)) usleep(1000);
    if (!is_shut) printf(" %#x", events(fd));
    for (int time = 0; time < 3; time++) {
        long got = recv(fd, bytes, 4, MSG_DONTWAIT);
        printf(" %s", outcome(got));
        if (got > 0) printf(" %.*s", (int)got, bytes);
    }
    if (!is_shut) printf(" send %s", outcome(send(fd, "x", 1, MSG_NOSIGNAL)));
}

static void own(int fd) {
    struct sockaddr_in name;
    socklen_t len = sizeof name;
    int error = 0;
    printf(", own %#x", events(fd));
    printf(" %s", outcome(getpeername(fd, (void *)&name, &len)));
    len = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    printf(" %s", error ? strerrorname_np(error) : "0");
    printf(" recv %s", outcome(recv(fd, bytes, 4, MSG_DONTWAIT)));
    printf(" send %s", outcome(send(fd, "x", 1, MSG_NOSIGNAL)));
    printf(" %#x", events(fd));
}

// The socket connects anew, or listens.
static void again(int fd, bool listens) {
    if (listens) {
        struct sockaddr_in name;
        socklen_t len = sizeof name;
        printf(", listen %s", outcome(listen(fd, 4)));
        getsockname(fd, (void *)&name, &len);
        name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        int ends[2] = {socket(AF_INET, SOCK_STREAM, 0), -1};
        printf(" %s", outcome(connect(ends[0], (void *)&name, sizeof name)));
        ends[1] = accept(fd, NULL, NULL);
        greet(ends);
        SAY(" greeted");
        close(ends[0]), close(ends[1]);
    } else {
        printf(", connect %s", outcome(connect(fd, (void *)&at, sizeof at)));
        int ends[2] = {fd, accept(listener, NULL, NULL)};
        greet(ends);
        memset(bytes, 7, sizeof bytes);
        printf(" %s", outcome(send(fd, bytes, sizeof bytes, 0)));
        SAY(" %s", outcome(recv(ends[1], bytes, sizeof bytes, MSG_WAITALL)));
        close(ends[1]);
    }
    close(fd);
}

// `side`: the end that undoes, 0 of which has connected.
static void simple(int side, bool sends, bool leaves_unread, bool listens) {
    int ends[2];
    connected(ends);
    printf("end %d%s%s:", side, sends ? ", sent" : "", leaves_unread ? ", unread" : "");
    if (sends) checked("send", send(ends[side], "last words", 10, 0));
    if (leaves_unread) checked("send", send(ends[1 - side], "unread", 6, 0));
    usleep(20000);
    printf(" %s", outcome(undo(ends[side])));
    peer(ends[1 - side], false);
    own(ends[side]);
    printf(" once more %s", outcome(undo(ends[side])));
    again(ends[side], listens);
    close(ends[1 - side]);
}

static void shut(int side) {
    int ends[2];
    connected(ends);
    printf("end %d, shut:", side);
    shutdown(ends[side], SHUT_WR);
    usleep(20000);
    printf(" %s", outcome(undo(ends[side])));
    peer(ends[1 - side], true);
    own(ends[side]);
    again(ends[side], false);
    close(ends[1 - side]);
}

static void two_numbers(void) {
    int ends[2];
    connected(ends);
    int other = dup(ends[0]);
    printf("two numbers: %s", outcome(undo(ends[0])));
    peer(ends[1], false);
    own(other);
    close(other);
    again(ends[0], false);
    close(ends[1]);
}

static void told(int epoll) {
    struct epoll_event event = {0};
    int found = epoll_wait(epoll, &event, 1, 100);
    printf(" %d %#x", found, found ? event.events : 0);
}

static void watched(int side) {
    int ends[2], epoll = epoll_create1(0);
    connected(ends);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = ends[side]};
    epoll_ctl(epoll, EPOLL_CTL_ADD, ends[side], &event);
    printf("end %d watched:", side);
    told(epoll);
    printf(" %s", outcome(undo(ends[0])));
    told(epoll);
    if (side == 0) {
        printf(" connect %s", outcome(connect(ends[0], (void *)&at, sizeof at)));
        int more = accept(listener, NULL, NULL);
        int error = 0;
        socklen_t len = sizeof error;
        getsockopt(ends[0], SOL_SOCKET, SO_ERROR, &error, &len);
        told(epoll);
        checked("send", send(more, "news", 4, 0));
        told(epoll);
        printf(" %s", outcome(recv(ends[0], bytes, 4, MSG_WAITALL)));
        close(more);
    }
    SAY(" end");
    close(epoll), close(ends[0]), close(ends[1]);
}

int main(void) {
    at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    listener = listening(0, 0);
    getsockname(listener, (void *)&at, &len);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int side = 0; side < 2; side++) {
        simple(side, false, false, false);
        simple(side, true, false, false);
        simple(side, false, true, false);
        shut(side);
        watched(side);
    }
    simple(0, false, false, true);
    two_numbers();
    // More than once, and by bulk.
    int ends[2];
    connected(ends);
    for (int round = 0; round < 5; round++) {
        undo(ends[0]);
        close(ends[1]);
        checked("connect", connect(ends[0], (void *)&at, sizeof at));
        ends[1] = checked("accept", accept(listener, NULL, NULL));
        greet(ends);
    }
    SAY("rounds");
    return 0;
}
