// Passages of a connection from the fabric to the kernel, and calls that bypass the library: `boundary PATH`. Both ends are in
// this process. Prints lines that do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "outcome.h"

#define BRIEF_MS 30
#define LONG_MS 5000

static const char *path;
static char bytes[4096];

// Two ends that have both sent and received.
static void connected(bool is_unix, int ends[2]) {
    struct sockaddr_un file = {.sun_family = AF_UNIX};
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    strncpy(file.sun_path, path, sizeof file.sun_path - 1);
    struct sockaddr *address = is_unix ? (void *)&file : (void *)&tcp;
    socklen_t len = is_unix ? sizeof file : sizeof tcp;
    int listener = socket(address->sa_family, SOCK_STREAM, 0);
    unlink(path);
    if (bind(listener, address, len) || listen(listener, 4)) perror("listen");
    getsockname(listener, address, &len);
    ends[0] = socket(address->sa_family, SOCK_STREAM, 0);
    if (connect(ends[0], address, len)) perror("connect");
    ends[1] = accept(listener, NULL, NULL);
    close(listener);
    for (int from = 0; from < 2; from++)
        if (send(ends[from], "hi", 2, 0) != 2 || recv(ends[1 - from], bytes, 2, MSG_WAITALL) != 2) perror("greeting");
}

static void both_closed(int ends[2]) {
    close(ends[0]);
    close(ends[1]);
}

// Makes a connection leave the fabric, by an option or a message that only the kernel has.
static void leave(bool is_unix, int fd) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec piece = {"d", 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    memcpy(CMSG_DATA(&control.header), &(int){0}, sizeof(int));
    if (is_unix ? sendmsg(fd, &message, 0) != 1 : setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &(int){1}, sizeof(int)))
        perror("leave");
}

// Returns whether a wait reports that there are bytes to read.
static bool readable(const char *way, int epoll, int fd, int timeout_ms) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    struct epoll_event event;
    struct timeval time = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    struct timespec same = {timeout_ms / 1000, timeout_ms % 1000 * 1000000};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    if (!strcmp(way, "poll")) return poll(&one, 1, timeout_ms) > 0;
    if (!strcmp(way, "select")) return select(fd + 1, &set, NULL, NULL, &time) > 0;
    if (!strcmp(way, "syscall poll")) return syscall(SYS_poll, &one, 1, timeout_ms) > 0;
    if (!strcmp(way, "syscall ppoll")) return syscall(SYS_ppoll, &one, 1, &same, NULL, 8) > 0;
    if (!strcmp(way, "syscall select")) return syscall(SYS_select, fd + 1, &set, NULL, NULL, &time) > 0;
    if (!strcmp(way, "syscall pselect")) return syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, &same, NULL) > 0;
    return epoll_wait(epoll, &event, 1, timeout_ms) > 0;
}

static void waits(const char *way, uint32_t flags, bool is_unix, int leaver) {
    int ends[2], epoll = epoll_create1(0);
    connected(is_unix, ends);
    struct epoll_event event = {.events = EPOLLIN | flags};
    if (!strncmp(way, "epoll", 5)) epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event);
    printf("%s %s, %d leaves:", is_unix ? "unix" : "tcp", way, leaver);
    // An end that leaves by sending is the other end.
    leave(is_unix, ends[is_unix ? 1 : leaver]);
    printf(" %d", readable(way, epoll, ends[0], is_unix ? LONG_MS : BRIEF_MS));
    if (is_unix) printf(" got %s", outcome(recv(ends[0], bytes, 10, MSG_DONTWAIT)));
    if (flags & EPOLLONESHOT) epoll_ctl(epoll, EPOLL_CTL_MOD, ends[0], &event);
    // Now both have left, and nothing is there.
    printf(" %d", readable(way, epoll, ends[0], BRIEF_MS));
    if (send(ends[0], "there", 5, 0) != 5 || recv(ends[1], bytes, 5, MSG_WAITALL) != 5) perror("there");
    printf(" %d", readable(way, epoll, ends[0], BRIEF_MS));
    if (send(ends[1], "back", 4, 0) != 4) perror("back");
    printf(" %d", readable(way, epoll, ends[0], LONG_MS));
    printf(" got %s", outcome(recv(ends[0], bytes, 10, MSG_DONTWAIT)));
    if (flags & EPOLLONESHOT) epoll_ctl(epoll, EPOLL_CTL_MOD, ends[0], &event);
    printf(" %d\n", readable(way, epoll, ends[0], BRIEF_MS));
    both_closed(ends);
    close(epoll);
}

// A peek sees bytes on either side of the boundary as one stream.
static void peeks(int leaver) {
    int ends[2], there = 0;
    connected(false, ends);
    if (send(ends[0], "0123456789", 10, 0) != 10) perror("first");
    leave(false, ends[leaver]);
    if (send(ends[0], "abcdefghij", 10, 0) != 10) perror("second");
    printf("peek, %d leaves:", leaver);
    long got = recv(ends[1], bytes, 20, MSG_PEEK | MSG_WAITALL);
    printf(" %s %.*s", outcome(got), (int)got, bytes);
    ioctl(ends[1], FIONREAD, &there);
    printf(" %d there", there);
    got = recv(ends[1], bytes, 15, MSG_PEEK);
    printf(" %s %.*s", outcome(got), (int)got, bytes);
    got = recv(ends[1], bytes, 20, MSG_WAITALL);
    printf(" %s %.*s\n", outcome(got), (int)got, bytes);
    both_closed(ends);
}

// Bytes that nobody will read reset a connection, wherever they are.
static void unread(bool is_unix, int leaver, bool before) {
    int ends[2];
    connected(is_unix, ends);
    if (before && send(ends[0], "unread", 6, 0) != 6) perror("send");
    if (leaver >= 0) leave(is_unix, ends[leaver]);
    if (!before && send(ends[0], "unread", 6, 0) != 6) perror("send");
    usleep(20000);
    close(ends[1]);
    usleep(20000);
    printf("%s unread, %d leaves, %s:", is_unix ? "unix" : "tcp", leaver, before ? "before" : "after");
    for (int time = 0; time < 3; time++) printf(" %s", outcome(recv(ends[0], bytes, 10, MSG_DONTWAIT)));
    printf(" %s\n", outcome(send(ends[0], "x", 1, MSG_NOSIGNAL)));
    close(ends[0]);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    path = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    static const char *ways[] = {"poll", "select", "epoll", "epoll edge", "epoll once", "syscall poll", "syscall ppoll",
                                 "syscall select", "syscall pselect"};
    for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++) {
        uint32_t flags = !strcmp(ways[way], "epoll edge") ? EPOLLET : !strcmp(ways[way], "epoll once") ? EPOLLONESHOT : 0;
        for (int leaver = 0; leaver < 2; leaver++) waits(ways[way], flags, false, leaver);
        waits(ways[way], flags, true, 1);
    }
    for (int leaver = 0; leaver < 2; leaver++) peeks(leaver);
    for (int leaver = -1; leaver < 2; leaver++) {
        unread(false, leaver, true);
        unread(false, leaver, false);
    }
    unread(true, -1, false);
    return 0;
}
