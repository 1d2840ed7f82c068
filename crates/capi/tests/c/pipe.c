/* Pipes on the ports `old` (a capture of 100 frames), `wan` (a generator of 2,000), `wire` and `tube` (links): frames lent and given
 * back in pieces, verdicts, both ends of a link in one epoll instance, bytes, and every error. */
#include "common.h"
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>

static void errors(void) {
    struct pd_frame frames[4];
    void *bytes;
    FAILS(pd_pipe_open(NULL, PD_PIPE_RECEIVE, NULL), EFAULT);
    FAILS(pd_pipe_open("old", 0, NULL), EINVAL);
    FAILS(pd_pipe_open("old", PD_PIPE_RECEIVE | 0x100, NULL), EINVAL);
    FAILS(pd_pipe_open("none", PD_PIPE_RECEIVE, NULL), ENOENT);
    struct pd_pipe_options options = {.ring_bytes = 5000};
    FAILS(pd_pipe_open("old", PD_PIPE_RECEIVE, &options), EINVAL);
    options = (struct pd_pipe_options){.reserved = 1};
    FAILS(pd_pipe_open("old", PD_PIPE_RECEIVE, &options), EINVAL);
    FAILS(pd_pipe_recv(7, frames, 4), EBADF);
    int epid = pd_epoll_create(0), sid = pd_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(epid >= 0 && sid >= 0);
    FAILS(pd_pipe_recv(epid, frames, 4), ENOTSOCK);
    FAILS(pd_pipe_wait(sid, 0), ENOTSOCK);

    int receiver = pd_pipe_open("wire.1", PD_PIPE_RECEIVE | PD_PIPE_NONBLOCK, NULL);
    int sender = pd_pipe_open("wire.0", PD_PIPE_SEND | PD_PIPE_NONBLOCK, NULL);
    CHECK(receiver >= 0 && sender >= 0);
    FAILS(pd_pipe_recv(receiver, NULL, 4), EFAULT);
    FAILS(pd_pipe_recv(receiver, frames, 0), EINVAL);
    FAILS(pd_pipe_recv(receiver, frames, 4), EAGAIN);
    FAILS(pd_pipe_done(receiver, frames, -1), EINVAL);
    FAILS(pd_pipe_done(receiver, frames, 1), EINVAL);
    FAILS(pd_pipe_wait(receiver, 1), EAGAIN);
    FAILS(pd_pipe_peek(receiver, &bytes), EOPNOTSUPP);
    FAILS(pd_pipe_recv(sender, frames, 4), EOPNOTSUPP);
    FAILS(pd_pipe_wait(sender, 0), EOPNOTSUPP);
    FAILS(pd_pipe_wait_room(sender, 1 << 20, 0), EINVAL);
    FAILS(pd_pipe_commit(sender, 60, 0), EINVAL);
    FAILS(pd_pipe_stat(sender, NULL), EFAULT);
    CHECK(pd_pipe_alloc(sender, 13) == NULL && errno == EMSGSIZE);
    CHECK(pd_pipe_alloc(receiver, 60) == NULL && errno == EOPNOTSUPP);
    CHECK(pd_pipe_alloc(sender, 60) != NULL);
    FAILS(pd_pipe_commit(sender, 61, 0), EINVAL);
    FAILS(pd_pipe_commit(sender, 5, 0), EMSGSIZE);
    FAILS(pd_pipe_commit(sender, 60, 70000), EINVAL);
    CHECK(pd_pipe_commit(sender, 0, 0) == 0);
    FAILS(pd_send(sender, "", 1), ENOTSOCK);
    struct pd_epoll_event event = {.events = PD_EPOLLIN};
    FAILS(pd_epoll_wait(sender, &event, 1, 0), EINVAL);
    FAILS(pd_epoll_ctl(epid, PD_EPOLL_CTL_MOD, receiver, &event), ENOENT);
    CHECK(pd_epoll_ctl(epid, PD_EPOLL_CTL_ADD, receiver, &event) == 0);
    FAILS(pd_epoll_ctl(epid, PD_EPOLL_CTL_ADD, receiver, &event), EEXIST);
    CHECK(pd_epoll_ctl(epid, PD_EPOLL_CTL_DEL, receiver, NULL) == 0);
    CHECK(pd_epoll_wait(epid, &event, 1, 0) == 0);

    pid_t child = fork();
    if (child == 0)
        _exit(pd_pipe_recv(receiver, frames, 1) == -1 && errno == EBADF ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(pd_close(receiver) == 0 && pd_close(sender) == 0 && pd_close(epid) == 0 && pd_close(sid) == 0);
    FAILS(pd_pipe_recv(receiver, frames, 1), EBADF);
}

/* Frame n has 60 bytes n. Lent seven at a time, given back three and four. */
static void capture(void) {
    struct pd_frame frames[7];
    int pid = pd_pipe_open("old", PD_PIPE_RECEIVE, NULL);
    CHECK(pid >= 0);
    for (int n = 0; n < 100;) {
        int count = pd_pipe_recv(pid, frames, 7);
        CHECK(count > 0 && count <= 7);
        for (int i = 0; i < count; i++, n++) {
            CHECK(frames[i].len == 60 && frames[i].to == PD_BACK);
            for (int at = 0; at < 60; at++)
                CHECK(((unsigned char *)frames[i].data)[at] == n);
        }
        int first = count < 3 ? count : 3;
        CHECK(pd_pipe_done(pid, frames, first) == 0);
        CHECK(pd_pipe_done(pid, frames + first, count - first) == 0);
    }
    struct pd_pipe_stat stat;
    CHECK(pd_pipe_stat(pid, &stat) == 0);
    CHECK(stat.frames_received == 100 && stat.bytes_received == 6000 && stat.bytes_lent == 0 && stat.error == 0);
    CHECK(stat.ring_bytes == 512 << 10 && stat.direction == PD_PIPE_RECEIVE);
    FAILS(pd_pipe_wait(pid, 1), EAGAIN);
    CHECK(pd_close(pid) == 0);
}

/* A generator checks what comes back. */
static void echo(void) {
    struct pd_frame frames[64];
    struct pd_pipe_options options = {.ring_bytes = 64 << 10, .protocol = 17, .source_port = 0};
    int pid = pd_pipe_open("wan", PD_PIPE_FORWARD, &options);
    CHECK(pid >= 0);
    for (int n = 0; n < 2000;) {
        CHECK(pd_pipe_wait(pid, -1) == 0);
        int count = pd_pipe_recv(pid, frames, 64);
        CHECK(count > 0);
        CHECK(pd_pipe_prefetch(pid) == 0);
        CHECK(pd_pipe_done(pid, frames, count) == 0);
        n += count;
    }
    struct pd_pipe_stat stat;
    CHECK(pd_pipe_stat(pid, &stat) == 0 && stat.frames_sent == 2000 && stat.frames_dropped == 0);
    /* What is not taken is lost with the pipe: the test closes it when all has come back. */
    CHECK(getchar() == '\n');
    CHECK(pd_close(pid) == 0);
}

enum { FRAMES = 5000 };

static size_t length(int n) { return 60 + (size_t)n * 7 % 1455; }

/* A thread sends, this one receives, sleeps in an instance of both, and drops nothing. */
static void link_both_ends(void) {
    int receiver = pd_pipe_open("wire.1", PD_PIPE_RECEIVE | PD_PIPE_NONBLOCK, NULL);
    int sender = pd_pipe_open("wire.0", PD_PIPE_SEND | PD_PIPE_NONBLOCK, NULL);
    int epid = pd_epoll_create(0);
    CHECK(receiver >= 0 && sender >= 0 && epid >= 0);
    struct pd_epoll_event in = {.events = PD_EPOLLIN, .data.fd = receiver};
    struct pd_epoll_event out = {.events = PD_EPOLLOUT, .data.fd = sender};
    CHECK(pd_epoll_ctl(epid, PD_EPOLL_CTL_ADD, receiver, &in) == 0);
    CHECK(pd_epoll_ctl(epid, PD_EPOLL_CTL_ADD, sender, &out) == 0);
    int sent = 0, received = 0;
    while (received < FRAMES) {
        struct pd_epoll_event events[2];
        int count = pd_epoll_wait(epid, events, 2, 20000);
        CHECK(count > 0);
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == sender) {
                CHECK(events[i].events == PD_EPOLLOUT);
                while (sent < FRAMES) {
                    unsigned char *place = pd_pipe_alloc(sender, 1514);
                    if (place == NULL) {
                        CHECK(errno == EAGAIN);
                        break;
                    }
                    for (size_t at = 0; at < length(sent); at++)
                        place[at] = byte_at((unsigned)sent, at);
                    CHECK(pd_pipe_commit(sender, length(sent), PD_BACK) == 0);
                    sent++;
                }
                CHECK(pd_pipe_flush(sender) == 0);
                if (sent == FRAMES)
                    CHECK(pd_epoll_ctl(epid, PD_EPOLL_CTL_DEL, sender, NULL) == 0);
            } else {
                CHECK(events[i].events == PD_EPOLLIN);
                struct pd_frame frames[32];
                int lent = pd_pipe_recv(receiver, frames, 32);
                CHECK(lent > 0);
                for (int n = 0; n < lent; n++, received++) {
                    CHECK(frames[n].len == length(received));
                    for (size_t at = 0; at < frames[n].len; at++)
                        CHECK(((unsigned char *)frames[n].data)[at] == byte_at((unsigned)received, at));
                }
                CHECK(pd_pipe_done(receiver, frames, lent) == 0);
            }
        }
    }
    CHECK(pd_pipe_wait_room(sender, 512 << 10, 20000) == 0);
    struct pd_pipe_stat stat;
    CHECK(pd_pipe_stat(sender, &stat) == 0 && stat.frames_sent == FRAMES && stat.bytes_free == 512 << 10);

    /* poll(2) of the descriptor, and pd_poll of the number. */
    int fd = pd_pipe_fd(receiver);
    CHECK(fd >= 0 && pd_pipe_arm(receiver) == 0);
    struct pollfd ready = {.fd = receiver, .events = POLLIN};
    CHECK(pd_poll(&ready, 1, 0) == 0);
    CHECK(pd_pipe_arm(receiver) == 0);
    CHECK(pd_pipe_alloc(sender, 60) != NULL && pd_pipe_commit(sender, 60, 0) == 0 && pd_pipe_flush(sender) == 0);
    struct pollfd kernel = {.fd = fd, .events = POLLIN};
    CHECK(poll(&kernel, 1, 20000) == 1);
    CHECK(pd_poll(&ready, 1, 20000) == 1 && ready.revents == POLLIN);
    CHECK(pd_pipe_arm(receiver) == 1);
    /* A pipe that is closed leaves the instance. */
    CHECK(pd_close(receiver) == 0 && pd_close(sender) == 0);
    CHECK(pd_epoll_wait(epid, &in, 1, 0) == 0 && pd_close(epid) == 0);
}

static void tube(void) {
    int receiver = pd_pipe_open("tube.1", PD_PIPE_RECEIVE | PD_PIPE_BYTES, NULL);
    int sender = pd_pipe_open("tube.0", PD_PIPE_SEND | PD_PIPE_BYTES, NULL);
    CHECK(receiver >= 0 && sender >= 0);
    for (size_t at = 0; at < 1 << 20;) {
        unsigned char *place = pd_pipe_alloc(sender, 70001);
        CHECK(place != NULL);
        for (size_t i = 0; i < 70001; i++)
            place[i] = byte_at(3, at + i);
        CHECK(pd_pipe_commit(sender, 70001, 0) == 0 && pd_pipe_flush(sender) == 0);
        for (size_t end = at + 70001; at < end;) {
            void *bytes;
            ssize_t len = pd_pipe_peek(receiver, &bytes);
            CHECK(len > 0);
            for (ssize_t i = 0; i < len; i++)
                CHECK(((unsigned char *)bytes)[i] == byte_at(3, at + (size_t)i));
            FAILS(pd_pipe_consume(receiver, (size_t)len + (1 << 20)), EINVAL);
            CHECK(pd_pipe_consume(receiver, (size_t)len) == 0);
            at += (size_t)len;
        }
    }
    CHECK(pd_close(receiver) == 0 && pd_close(sender) == 0);
}

/* Lent frames leave too little room for the longest frame, in the own ring or in that of the sender: no wait sleeps. */
static void lends_too_much(const struct pd_pipe_options *options) {
    static struct pd_frame frames[1024];
    int receiver = pd_pipe_open("wire.1", PD_PIPE_RECEIVE | PD_PIPE_NONBLOCK, options);
    int sender = pd_pipe_open("wire.0", PD_PIPE_SEND | PD_PIPE_NONBLOCK, options);
    CHECK(receiver >= 0 && sender >= 0);
    int lent = 0;
    for (;;) {
        while (pd_pipe_alloc(sender, 60) != NULL)
            CHECK(pd_pipe_commit(sender, 60, 0) == 0);
        CHECK(errno == EAGAIN && pd_pipe_flush(sender) == 0);
        if (pd_pipe_wait(receiver, 2000) == -1)
            break;
        int count = pd_pipe_recv(receiver, frames + lent, 1024 - lent);
        CHECK(count > 0);
        lent += count;
    }
    CHECK(errno == ENOBUFS && lent >= (32768 - 9216) / 64);
    FAILS(pd_pipe_wait_more(receiver, 2000), ENOBUFS);
    for (int count; lent < 1024 && (count = pd_pipe_recv(receiver, frames + lent, 1024 - lent)) > 0;)
        lent += count;
    FAILS(pd_pipe_recv(receiver, frames, 1), ENOBUFS);
    CHECK(pd_pipe_fd(receiver) >= 0);
    FAILS(pd_pipe_arm(receiver), ENOBUFS);
    struct pollfd polled = {.fd = receiver, .events = POLLIN};
    CHECK(pd_poll(&polled, 1, 2000) == 1 && polled.revents == (POLLIN | POLLERR));
    CHECK(pd_pipe_done(receiver, frames, lent) == 0);
    /* Now there is room for the longest. */
    while (pd_pipe_alloc(sender, 9216) == NULL)
        CHECK(errno == EAGAIN && (pd_pipe_recv(receiver, frames, 1) != 1 || pd_pipe_done(receiver, frames, 1) == 0));
    CHECK(pd_pipe_commit(sender, 9216, 0) == 0 && pd_pipe_flush(sender) == 0);
    do {
        CHECK(pd_pipe_wait(receiver, 20000) == 0);
        CHECK(pd_pipe_recv(receiver, frames, 1) == 1 && pd_pipe_done(receiver, frames, 1) == 0);
    } while (frames[0].len != 9216);
    CHECK(pd_close(receiver) == 0 && pd_close(sender) == 0);
}

static void send_bytes(int sender, size_t len) {
    CHECK(pd_pipe_alloc(sender, len) != NULL && pd_pipe_commit(sender, len, 0) == 0 && pd_pipe_flush(sender) == 0);
}

/* Fewer bytes than are needed are as none, however a program waits. */
static void needs(const struct pd_pipe_options *options) {
    int flags = PD_PIPE_RECEIVE | PD_PIPE_BYTES;
    for (int nonblocking = 0; nonblocking < 2; nonblocking++) {
        int receiver = pd_pipe_open("tube.1", flags | (nonblocking ? PD_PIPE_NONBLOCK : 0), options);
        int sender = pd_pipe_open("tube.0", PD_PIPE_SEND | PD_PIPE_BYTES, options);
        int epid = pd_epoll_create(0);
        CHECK(receiver >= 0 && sender >= 0 && epid >= 0);
        void *bytes;
        FAILS(pd_pipe_need(sender, 5), EOPNOTSUPP);
        struct pd_epoll_event event = {.events = PD_EPOLLIN};
        struct pollfd polled = {.fd = receiver, .events = POLLIN}, kernel = {.fd = pd_pipe_fd(receiver), .events = POLLIN};
        CHECK(kernel.fd >= 0 && pd_epoll_ctl(epid, PD_EPOLL_CTL_ADD, receiver, &event) == 0);
        for (int round = 0; round < 50; round++) {
            send_bytes(sender, 10);
            CHECK(pd_pipe_wait(receiver, 20000) == 0 && pd_pipe_peek(receiver, &bytes) == 10);
            CHECK(pd_epoll_wait(epid, &event, 1, 0) == 1 && pd_poll(&polled, 1, 0) == 1 && pd_pipe_arm(receiver) == 1);
            CHECK(pd_pipe_need(receiver, 1000) == 0);
            CHECK(pd_epoll_wait(epid, &event, 1, 1) == 0 && pd_poll(&polled, 1, 1) == 0);
            FAILS(pd_pipe_wait(receiver, 1), EAGAIN);
            if (nonblocking)
                FAILS(pd_pipe_peek(receiver, &bytes), EAGAIN);
            /* As much as is there becomes enough. */
            CHECK(pd_pipe_need(receiver, 5) == 0 && pd_epoll_wait(epid, &event, 1, 0) == 1);
            CHECK(pd_pipe_need(receiver, 1000) == 0 && pd_epoll_wait(epid, &event, 1, 0) == 0);
            CHECK(pd_pipe_arm(receiver) == 0);
            send_bytes(sender, 500);
            CHECK(pd_epoll_wait(epid, &event, 1, 1) == 0);
            send_bytes(sender, 500);
            switch (round % 5) {
            case 0:
                CHECK(pd_epoll_wait(epid, &event, 1, 20000) == 1 && event.events == PD_EPOLLIN);
                break;
            case 1:
                CHECK(pd_poll(&polled, 1, 20000) == 1 && polled.revents == POLLIN);
                break;
            case 2:
                while (pd_pipe_arm(receiver) == 0)
                    CHECK(poll(&kernel, 1, 20000) == 1);
                break;
            case 3:
                CHECK(pd_pipe_wait(receiver, 20000) == 0);
                break;
            }
            while (nonblocking && pd_pipe_peek(receiver, &bytes) < 1000)
                CHECK(pd_pipe_wait_more(receiver, 20000) == 0);
            CHECK(pd_pipe_peek(receiver, &bytes) >= 1000);
            CHECK(pd_pipe_wait(receiver, 20000) == 0);
            CHECK(pd_pipe_consume(receiver, 999) == 0);
            CHECK(pd_epoll_wait(epid, &event, 1, 20000) == 1);
            CHECK(pd_pipe_need(receiver, 11) == 0 && pd_pipe_wait(receiver, 20000) == 0);
            CHECK(pd_pipe_peek(receiver, &bytes) == 11 && pd_pipe_consume(receiver, 11) == 0);
        }
        CHECK(pd_close(receiver) == 0 && pd_close(sender) == 0 && pd_close(epid) == 0);
    }
}

/* A message that is there in part, and one that is longer than the ring. */
static void waits_for_more(void) {
    struct pd_pipe_options options = {.ring_bytes = 32 << 10};
    int receiver = pd_pipe_open("tube.1", PD_PIPE_RECEIVE | PD_PIPE_BYTES | PD_PIPE_NONBLOCK, &options);
    int sender = pd_pipe_open("tube.0", PD_PIPE_SEND | PD_PIPE_BYTES, &options);
    CHECK(receiver >= 0 && sender >= 0);
    void *bytes;
    FAILS(pd_pipe_wait_more(sender, 0), EOPNOTSUPP);
    CHECK(pd_pipe_alloc(sender, 10) != NULL && pd_pipe_commit(sender, 10, 0) == 0 && pd_pipe_flush(sender) == 0);
    CHECK(pd_pipe_wait(receiver, 20000) == 0 && pd_pipe_peek(receiver, &bytes) == 10);
    FAILS(pd_pipe_wait_more(receiver, 1), EAGAIN);
    CHECK(pd_pipe_alloc(sender, 32 << 10) != NULL && pd_pipe_commit(sender, 32 << 10, 0) == 0);
    CHECK(pd_pipe_flush(sender) == 0);
    while (pd_pipe_peek(receiver, &bytes) < 32 << 10)
        CHECK(pd_pipe_wait_more(receiver, 20000) == 0);
    FAILS(pd_pipe_wait_more(receiver, 2000), EMSGSIZE);
    FAILS(pd_pipe_need(receiver, (32 << 10) + 1), EMSGSIZE);
    CHECK(pd_pipe_consume(receiver, 10) == 0 && pd_pipe_wait_more(receiver, 20000) == 0);
    CHECK(pd_close(receiver) == 0 && pd_close(sender) == 0);
    needs(&options);

    lends_too_much(&options);
}

static int waited_for;

static void *wait_for_ever(void *unused) {
    (void)unused;
    int result;
    /* The other thread may be in its call. */
    do
        result = pd_pipe_wait(waited_for, -1);
    while (result == -1 && errno == EBUSY);
    CHECK(result == -1 && errno == EBADF && *pd_errmsg() != 0);
    return NULL;
}

/* While a thread waits others are refused, and a close ends the wait. */
static void two_threads(void) {
    struct pd_frame frame;
    waited_for = pd_pipe_open("wire.1", PD_PIPE_RECEIVE | PD_PIPE_NONBLOCK, NULL);
    CHECK(waited_for >= 0);
    pthread_t waiter;
    CHECK(pthread_create(&waiter, NULL, wait_for_ever, NULL) == 0);
    do
        CHECK(pd_pipe_recv(waited_for, &frame, 1) == -1 && (errno == EAGAIN || errno == EBUSY));
    while (errno == EAGAIN);
    CHECK(pd_close(waited_for) == 0);
    CHECK(pthread_join(waiter, NULL) == 0);
}

int main(void) {
    errors();
    capture();
    link_both_ends();
    tube();
    waits_for_more();
    two_threads();
    echo();
    return 0;
}
