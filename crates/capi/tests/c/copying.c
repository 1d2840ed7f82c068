/* Calls that copy, pd_poll, several connections at once, and numbers that are no descriptors. */
#define _GNU_SOURCE 1
#include "common.h"
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>

enum { BYTES = 3000000 };

static unsigned char *pattern(void) {
    unsigned char *bytes = malloc(BYTES);
    CHECK(bytes != NULL);
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * 7 + i / 251);
    return bytes;
}

static void set(int sid, int level, int option, int value) {
    CHECK(pd_setsockopt(sid, level, option, &value, sizeof value) == 0);
}

/* Neither side takes the other's numbers. */
static void numbers(int sid) {
    char byte = 0;
    struct pd_epoll_event event = {.events = PD_EPOLLIN, .data = {.u64 = 1}};
    int fd = eventfd(0, EFD_NONBLOCK), epid = pd_epoll_create(0);
    CHECK(fd >= 0 && epid >= 0 && sid >= 0x40000000 && epid >= 0x40000000);
    CHECK(write(sid, &byte, 1) == -1 && errno == EBADF);
    CHECK(fcntl(sid, F_GETFD) == -1 && errno == EBADF);
    FAILS(pd_epoll_ctl(epid, PD_EPOLL_CTL_ADD, fd, &event), EBADF);
    FAILS(pd_write(fd, &byte, 1), EBADF);
    FAILS(pd_close(fd), EBADF);
    CHECK(close(fd) == 0 && pd_close(epid) == 0);
}

static void bad_calls(int sid) {
    char byte = 0;
    struct iovec none = {NULL, 5}, some = {&byte, 1};
    FAILS(pd_read(sid, NULL, 1), EFAULT);
    FAILS(pd_write(sid, NULL, 1), EFAULT);
    FAILS(pd_readv(sid, NULL, 1), EFAULT);
    FAILS(pd_writev(sid, &none, 1), EFAULT);
    FAILS(pd_readv(sid, &some, -1), EINVAL);
    FAILS(pd_writev(sid, &some, 1025), EINVAL);
    FAILS(pd_recv_into(sid, &byte, 1, MSG_OOB), EINVAL);
    FAILS(pd_recv_into(sid, &byte, 1, MSG_DONTWAIT), EAGAIN);
    CHECK(pd_read(sid, NULL, 0) == 0 && pd_write(sid, NULL, 0) == 0 && pd_writev(sid, NULL, 0) == 0);
}

/* What pd_poll says of one socket, and of a descriptor and a number that is none beside it. */
static void polls(int sid, int there) {
    int fd = eventfd(0, EFD_NONBLOCK);
    struct pollfd fds[] = {
        {sid, POLLIN | POLLOUT, 0}, {-1, POLLIN, 0}, {fd, POLLIN, 0}, {0x7fffffff, POLLIN, 0}, {sid, POLLIN, 0},
    };
    CHECK(fd >= 0);
    CHECK(pd_poll(fds, 3, 0) == 1);
    CHECK(fds[0].revents == (there ? POLLIN | POLLOUT : POLLOUT) && fds[1].revents == 0 && fds[2].revents == 0);
    CHECK(pd_poll(fds, 5, -1) == (there ? 3 : 2));
    CHECK(fds[3].revents == POLLNVAL && fds[4].revents == (there ? POLLIN : 0));
    uint64_t one = 1;
    CHECK(write(fd, &one, sizeof one) == sizeof one);
    fds[0].events = POLLIN;
    CHECK(pd_poll(fds, 3, -1) == 1 + there && fds[2].revents == POLLIN);
    CHECK(read(fd, &one, sizeof one) == sizeof one && close(fd) == 0);
    FAILS(pd_poll(NULL, 1, 0), EFAULT);
    CHECK(pd_poll(NULL, 0, 1) == 0);
}

static void server(const char *ip, const char *port) {
    int listener = listen_on(ip, port);
    int sid = pd_accept(listener, (struct sockaddr *)NULL, NULL);
    CHECK(sid >= 0);
    numbers(sid);
    bad_calls(sid);
    polls(sid, 0);
    unsigned char *sent = pattern(), *got = calloc(1, BYTES), part[1000];
    CHECK(got != NULL);
    CHECK(pd_write(sid, "go", 2) == 2);
    struct pollfd wait = {sid, POLLIN, 0};
    CHECK(pd_poll(&wait, 1, -1) == 1 && wait.revents == POLLIN);
    int fd = eventfd(0, EFD_NONBLOCK);
    struct pollfd both[] = {{fd, POLLIN, 0}, {sid, POLLIN, 0}};
    CHECK(pd_poll(both, 2, -1) == 1 && both[0].revents == 0 && both[1].revents == POLLIN && close(fd) == 0);

    /* Peeking leaves what it saw; lending and copying take turns. */
    CHECK(pd_recv_into(sid, part, 10, MSG_PEEK) == 10 && memcmp(part, sent, 10) == 0);
    CHECK(pd_recv_into(sid, part, 20, MSG_PEEK) == 20 && memcmp(part, sent, 20) == 0);
    void *lent;
    CHECK(pd_recv(sid, 7, &lent) == 7 && memcmp(lent, sent, 7) == 0);
    FAILS(pd_read(sid, part, 1), EBUSY);
    CHECK(pd_recv_done(sid, 7) == 0);
    CHECK(pd_read(sid, part, 13) == 13 && memcmp(part, sent + 7, 13) == 0);
    struct iovec pieces[] = {{part, 30}, {NULL, 0}, {part + 30, 70}};
    size_t at = 20 + (size_t)pd_readv(sid, pieces, 3);
    CHECK(at > 20 && at <= 120 && memcmp(part, sent + 20, at - 20) == 0);
    CHECK(pd_recv_into(sid, got + at, BYTES - at, MSG_WAITALL) == (ssize_t)(BYTES - at));
    CHECK(memcmp(got + at, sent + at, BYTES - at) == 0);

    /* A receive waits for as many as it is told, and no longer than it may. */
    int least = 100;
    CHECK(pd_setsockopt(sid, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0);
    CHECK(pd_write(sid, "lo", 2) == 2);
    CHECK(pd_read(sid, part, sizeof part) == 120);
    least = 1;
    CHECK(pd_setsockopt(sid, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0);
    struct timeval brief = {0, 50000};
    CHECK(pd_setsockopt(sid, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief) == 0);
    CHECK(pd_write(sid, "ab", 2) == 2);
    ssize_t len;
    while ((len = pd_recv_into(sid, part, sizeof part, MSG_WAITALL)) == -1 && errno == EAGAIN) {
    }
    CHECK(len == 5 && memcmp(part, "short", 5) == 0);

    /* A peer that closes has ended its stream; that is no hang-up, as long as this side may send. */
    CHECK(pd_write(sid, "!", 1) == 1);
    while (pd_poll(&wait, 1, -1) == 1 && pd_read(sid, part, 1) == -1)
        CHECK(errno == EAGAIN);
    struct pollfd end = {sid, POLLIN | POLLRDHUP, 0};
    CHECK(pd_poll(&end, 1, -1) == 1 && end.revents == (POLLIN | POLLRDHUP));
    CHECK(pd_shutdown(sid, SHUT_WR) == 0);
    CHECK(pd_poll(&end, 1, -1) == 1 && end.revents == (POLLIN | POLLRDHUP | POLLHUP));
    CHECK(pd_close(sid) == 0);

    /* Several at once; the last one resets. */
    for (int i = 0; i < 5; i++) {
        sid = pd_accept(listener, (struct sockaddr *)NULL, NULL);
        CHECK(sid >= 0 && pd_read(sid, part, 1) == 1);
        len = pd_read(sid, part + 1, 1);
        CHECK(part[0] < 4 ? len == 0 : len == -1 && errno == ECONNRESET);
        CHECK(pd_close(sid) == 0);
    }
    CHECK(pd_close(listener) == 0);
    free(sent);
    free(got);
}

static void client(const char *ip, const char *port) {
    int sid = connect_to(ip, port);
    unsigned char *sent = pattern(), part[10];
    set(sid, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(sid, IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set(sid, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set(sid, IPPROTO_TCP, TCP_KEEPCNT, 5);
    set(sid, IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
    CHECK(pd_recv_into(sid, part, 2, MSG_WAITALL) == 2 && memcmp(part, "go", 2) == 0);
    struct iovec pieces[] = {{sent, 1}, {sent + 1, 0}, {sent + 1, 999999}, {sent + 1000000, BYTES - 1000000}};
    CHECK(pd_writev(sid, pieces, 4) == BYTES);
    CHECK(pd_recv_into(sid, part, 2, MSG_WAITALL) == 2 && memcmp(part, "lo", 2) == 0);
    for (int i = 0; i < 3; i++) {
        CHECK(pd_write(sid, sent, 40) == 40);
        usleep(10000);
    }
    CHECK(pd_recv_into(sid, part, 2, MSG_WAITALL) == 2 && memcmp(part, "ab", 2) == 0);
    CHECK(pd_write(sid, "short", 5) == 5);
    CHECK(pd_recv_into(sid, part, 1, MSG_WAITALL) == 1 && part[0] == '!');
    CHECK(pd_close(sid) == 0);

    socklen_t len;
    struct sockaddr_storage addr = parse(ip, port, &len);
    int sids[5];
    FAILS(pd_connect_several(&addr, len, 1, sids, 5), EINVAL);
    FAILS(pd_connect_several(&addr, len, 0, NULL, 5), EFAULT);
    CHECK(pd_connect_several(&addr, len, 0, sids, 5) == 0);
    for (unsigned char i = 0; i < 5; i++) {
        struct linger reset = {1, 0}, got;
        socklen_t size = sizeof got;
        if (i == 4)
            CHECK(pd_setsockopt(sids[i], SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
        CHECK(pd_getsockopt(sids[i], SOL_SOCKET, SO_LINGER, &got, &size) == 0 && got.l_onoff == (i == 4));
        CHECK(pd_write(sids[i], &i, 1) == 1);
    }
    usleep(100000);
    for (int i = 0; i < 5; i++)
        CHECK(pd_close(sids[i]) == 0);
    free(sent);
}

int main(int argc, char **argv) {
    return play(argc, argv, server, client);
}
