// Calls on a connection of TCP whose bytes are available: `steady KIND COUNT`. Both ends are in this process, so that no call has to
// sleep. The caller counts the system calls. Prints "done".
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define BYTES 100

static int made, taken, epoll;
static char bytes[BYTES];

static void check(const char *what, long result, long wanted) {
    if (result == wanted) return;
    perror(what);
    exit(1);
}

static void round_of(const char *kind) {
    // On the stack, as a program has it, and not always in the same place.
    int there = 0;
    char away[4096];
    struct iovec pieces[2] = {{bytes, 30}, {bytes + 30, BYTES - 30}};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
    struct pollfd one = {.fd = taken, .events = POLLIN};
    struct epoll_event event = {.events = EPOLLIN};
    struct timeval none = {0};
    fd_set set;
    if (!strcmp(kind, "nothing")) {
        check("recv", recv(taken, away, BYTES, MSG_DONTWAIT), -1);
        return;
    }
    if (!strcmp(kind, "message")) check("sendmsg", sendmsg(made, &message, MSG_NOSIGNAL), BYTES);
    else if (!strcmp(kind, "pieces")) check("writev", writev(made, pieces, 2), BYTES);
    else check("send", send(made, bytes, BYTES, MSG_NOSIGNAL), BYTES);
    if (!strcmp(kind, "count")) {
        check("FIONREAD", ioctl(taken, FIONREAD, &there), 0);
        check("bytes there", there, BYTES);
    }
    if (!strcmp(kind, "peek")) check("peek", recv(taken, away, BYTES, MSG_PEEK), BYTES);
    if (!strcmp(kind, "poll")) check("poll", poll(&one, 1, 1000), 1);
    if (!strcmp(kind, "epoll")) check("epoll_wait", epoll_wait(epoll, &event, 1, 1000), 1);
    if (!strcmp(kind, "select")) {
        FD_ZERO(&set);
        FD_SET(taken, &set);
        check("select", select(taken + 1, &set, NULL, NULL, &none), 1);
    }
    if (!strcmp(kind, "message")) check("recvmsg", recvmsg(taken, &message, 0), BYTES);
    else if (!strcmp(kind, "pieces")) check("readv", readv(taken, pieces, 2), BYTES);
    else check("recv", recv(taken, bytes, BYTES, 0), BYTES);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check("bind", bind(listener, (void *)&address, len), 0);
    check("listen", listen(listener, 4), 0);
    check("getsockname", getsockname(listener, (void *)&address, &len), 0);
    made = socket(AF_INET, SOCK_STREAM, 0);
    check("connect", connect(made, (void *)&address, len), 0);
    taken = accept(listener, NULL, NULL);
    epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    check("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, taken, &event), 0);
    // Rounds until the rings are available.
    for (int round = 0; round < 2000; round++) round_of("send");
    for (int round = 0; round < atoi(argv[2]); round++) round_of(argv[1]);
    printf("done\n");
    return 0;
}
