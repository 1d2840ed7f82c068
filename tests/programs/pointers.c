// Calls with invalid pointers: `pointers PATH`. Both ends are in this process. Prints the result of each, which must not depend
// on the transport of the bytes.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

static const char *path;
static char bytes[64];
static char *hole;

#define TELL(call)                                                                                      \
    do {                                                                                                \
        errno = 0;                                                                                      \
        long result = (long)(call);                                                                     \
        printf("%s %s: %ld %s\n", about, #call, result, result < 0 ? strerrorname_np(errno) : "");     \
    } while (0)

// Two ends that have both sent and received, `there` bytes unread at the first.
static void connected(int family, int ends[2], size_t there) {
    struct sockaddr_un file = {.sun_family = AF_UNIX};
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    strncpy(file.sun_path, path, sizeof file.sun_path - 1);
    struct sockaddr *address = family == AF_UNIX ? (void *)&file : (void *)&tcp;
    socklen_t len = family == AF_UNIX ? sizeof file : sizeof tcp;
    int listener = socket(family, SOCK_STREAM, 0);
    unlink(path);
    if (bind(listener, address, len) || listen(listener, 4)) perror("listen");
    getsockname(listener, address, &len);
    ends[0] = socket(family, SOCK_STREAM, 0);
    if (connect(ends[0], address, len)) perror("connect");
    ends[1] = accept(listener, NULL, NULL);
    close(listener);
    for (int from = 0; from < 2; from++)
        if (send(ends[from], "hi", 2, 0) != 2 || recv(ends[1 - from], bytes, 2, MSG_WAITALL) != 2) perror("greeting");
    if (send(ends[1], bytes, there, 0) != (ssize_t)there) perror("send");
    while (recv(ends[0], bytes, sizeof bytes, MSG_PEEK) < (ssize_t)there) usleep(1000);
}

// Calls that carry bytes. `at` is no address.
static void carrying(const char *about, int fd, char *at) {
    struct iovec to_nowhere[2] = {{bytes, 2}, {at, 2}}, endless = {bytes, (size_t)-1}, small = {bytes, 2};
    struct msghdr message = {.msg_iov = &to_nowhere[1], .msg_iovlen = 1}, no_list = {.msg_iov = (void *)at, .msg_iovlen = 1};
    struct msghdr too_long = {.msg_iov = &endless, .msg_iovlen = 1}, many = {.msg_iov = &small, .msg_iovlen = 2000};
    TELL(send(fd, at, 2, MSG_DONTWAIT));
    TELL(write(fd, at, 2));
    TELL(sendto(fd, at, 2, MSG_DONTWAIT, NULL, 0));
    TELL(writev(fd, &to_nowhere[1], 1));
    TELL(writev(fd, (void *)at, 1));
    TELL(sendmsg(fd, (void *)at, MSG_DONTWAIT));
    TELL(sendmsg(fd, &message, MSG_DONTWAIT));
    TELL(sendmsg(fd, &no_list, MSG_DONTWAIT));
    TELL(sendmsg(fd, &too_long, MSG_DONTWAIT));
    TELL(sendmsg(fd, &many, MSG_DONTWAIT));
    TELL(sendmmsg(fd, (void *)at, 1, MSG_DONTWAIT));
    TELL(recv(fd, at, 2, MSG_DONTWAIT));
    TELL(read(fd, at, 2));
    TELL(readv(fd, &to_nowhere[1], 1));
    TELL(readv(fd, (void *)at, 1));
    TELL(recvmsg(fd, (void *)at, MSG_DONTWAIT));
    TELL(recvmsg(fd, &message, MSG_DONTWAIT));
    TELL(recvmsg(fd, &no_list, MSG_DONTWAIT));
    TELL(recvmsg(fd, &many, MSG_DONTWAIT));
    TELL(recvmmsg(fd, (void *)at, 1, MSG_DONTWAIT, NULL));
}

// Calls that tell of readiness. The set of descriptors is one.
static void waiting(const char *about, int fd, char *at) {
    int instance = epoll_create1(0), bare = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd one = {.fd = fd, .events = POLLIN};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    TELL(epoll_ctl(instance, EPOLL_CTL_ADD, fd, (void *)at));
    TELL(epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event));
    TELL(epoll_ctl(instance, EPOLL_CTL_MOD, fd, (void *)at));
    TELL(epoll_wait(instance, (void *)at, 1, 0));
    TELL(epoll_wait(instance, &event, 1, 0));
    TELL(epoll_wait(bare, (void *)at, 1, 0));
    TELL(at ? epoll_pwait2(bare, &event, 1, (void *)at, NULL) : 0);
    TELL(at ? epoll_pwait2(instance, &event, 1, (void *)at, NULL) : 0);
    TELL(epoll_ctl(instance, EPOLL_CTL_DEL, fd, (void *)at));
    TELL(poll((void *)at, 1, 0));
    // The C library's functions read a time-out themselves.
    TELL(at ? syscall(SYS_ppoll, &one, 1, at, NULL, 8) : 0);
    TELL(at ? select(fd + 1, (void *)at, NULL, NULL, &(struct timeval){0, 0}) : 0);
    TELL(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, &(struct timespec){0, 0}, at));
    close(instance);
    close(bare);
}

// Calls that carry no bytes, also with a page that cannot be read.
static void others(const char *about, int fd, int fresh, char *at) {
    int pair[2], file = open("/proc/self/exe", O_RDONLY);
    TELL(connect(fresh, (void *)at, sizeof(struct sockaddr_in)));
    TELL(connect(fresh, (void *)at, 4096));
    TELL(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, at, sizeof(int)));
    TELL(setsockopt(fresh, SOL_SOCKET, SO_OOBINLINE, at, sizeof(int)));
    TELL(getsockopt(fd, SOL_SOCKET, SO_ERROR, at, &(socklen_t){sizeof(int)}));
    TELL(getsockopt(fd, SOL_SOCKET, SO_ERROR, bytes, (void *)at));
    TELL(getsockname(fd, (void *)at, &(socklen_t){16}));
    TELL(getpeername(fd, (void *)bytes, (void *)at));
    TELL(ioctl(fd, FIONREAD, at));
    TELL(ioctl(fd, FIONBIO, at));
    TELL(ioctl(fresh, FIONBIO, at));
    TELL(at ? sendfile(fd, file, (void *)at, 2) : 0);
    TELL(epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, fd, (void *)at));
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) perror("socketpair");
    TELL(send(pair[0], "hi", 2, 0));
    TELL(sendmsg(pair[0], (void *)at, MSG_DONTWAIT));
    TELL(recvmsg(pair[1], (void *)at, MSG_DONTWAIT));
    TELL(recv(pair[1], at, 2, MSG_DONTWAIT));
    TELL(readv(fresh, (void *)at, 1) < 0);
    TELL(sendmsg(fresh, (void *)at, 0) < 0);
    close(pair[0]);
    close(pair[1]);
    close(file);
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    path = arguments[1];
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *const nowhere[] = {NULL, (char *)16, (char *)0x7fffffffffff0000, (char *)0xdeadbeefdeadbeef, (char *)-8, hole};
    const char *const names[] = {"null", "low", "wide", "poison", "last", "hole"};
    for (int which = 0; which < 12; which++) {
        int ends[2], family = which % 2 ? AF_UNIX : AF_INET, fresh = socket(family, SOCK_STREAM, 0);
        char about[32], *at = nowhere[which / 2];
        snprintf(about, sizeof about, "%s %s", family == AF_UNIX ? "unix" : "tcp", names[which / 2]);
        connected(family, ends, 8);
        if (at != hole) {
            carrying(about, ends[0], at);
            waiting(about, ends[0], at);
        }
        others(about, ends[0], fresh, at);
        TELL(recv(ends[0], bytes, sizeof bytes, MSG_DONTWAIT));
        close(ends[0]);
        close(ends[1]);
        close(fresh);
    }
}
