/* Level and edge triggered, one-shot, RDHUP and HUP, writability, nesting in an ordinary epoll. */
#include "common.h"
#include <sys/epoll.h>

_Static_assert(sizeof(struct pd_epoll_event) == sizeof(struct epoll_event), "same layout");
_Static_assert(PD_EPOLLIN == EPOLLIN && PD_EPOLLET == EPOLLET && PD_EPOLLRDHUP == EPOLLRDHUP, "same values");

static int epid;

static void ctl(int op, int sid, uint32_t events) {
    struct pd_epoll_event event = {.events = events, .data = {.u64 = (uint64_t)sid}};
    CHECK(pd_epoll_ctl(epid, op, sid, &event) == 0);
}

/* The events of the one socket that has some, or 0. */
static uint32_t wait_ms(int timeout_ms) {
    struct pd_epoll_event events[4];
    int count = pd_epoll_wait(epid, events, 4, timeout_ms);
    CHECK(count >= 0 && count <= 1);
    return count ? events[0].events : 0;
}

static void take(int sid, ssize_t expected) {
    void *data;
    CHECK(pd_recv(sid, 1 << 20, &data) == expected && pd_recv_done(sid, (size_t)expected) == 0);
}

/* Asks the peer to do something: one byte. */
static void ask(int sid, char what) {
    static char *block;
    if (block == NULL)
        CHECK((block = pd_malloc(1)) != NULL);
    void *buffer = block;
    CHECK(pd_buf_refresh(sid, &buffer, 1) == 1);
    *block = what;
    CHECK(pd_send(sid, block, 1) == 1);
}

static void server(const char *ip, const char *port) {
    CHECK((epid = pd_epoll_create(0)) >= 0);
    int listener = listen_on(ip, port);
    ctl(PD_EPOLL_CTL_ADD, listener, PD_EPOLLIN);
    CHECK(wait_ms(10000) == PD_EPOLLIN);
    int sid = pd_accept(listener, (struct sockaddr *)NULL, NULL);
    CHECK(sid >= 0);
    CHECK(wait_ms(0) == 0);

    /* Level: as long as something is there. */
    ctl(PD_EPOLL_CTL_ADD, sid, PD_EPOLLIN);
    ask(sid, 's');
    CHECK(wait_ms(10000) == PD_EPOLLIN);
    CHECK(wait_ms(0) == PD_EPOLLIN);
    take(sid, 100);
    CHECK(wait_ms(0) == 0);

    /* Edge: once for each arrival. */
    ctl(PD_EPOLL_CTL_MOD, sid, PD_EPOLLIN | PD_EPOLLET);
    ask(sid, 's');
    CHECK(wait_ms(10000) == PD_EPOLLIN);
    CHECK(wait_ms(50) == 0);
    ask(sid, 's');
    CHECK(wait_ms(10000) == PD_EPOLLIN);
    CHECK(wait_ms(50) == 0);
    take(sid, 200);

    /* One-shot: not again until modified. */
    ctl(PD_EPOLL_CTL_MOD, sid, PD_EPOLLIN | PD_EPOLLONESHOT);
    ask(sid, 's');
    CHECK(wait_ms(10000) == PD_EPOLLIN);
    ask(sid, 's');
    CHECK(wait_ms(50) == 0);
    ctl(PD_EPOLL_CTL_MOD, sid, PD_EPOLLIN | PD_EPOLLONESHOT);
    CHECK(wait_ms(10000) == PD_EPOLLIN);
    usleep(50000);
    take(sid, 200);

    /* Writable; then full until the peer reads. */
    int on = 1;
    CHECK(pd_setsockopt(sid, SOL_PD, PD_NONBLOCK, &on, sizeof on) == 0);
    ctl(PD_EPOLL_CTL_MOD, sid, PD_EPOLLOUT | PD_EPOLLET);
    CHECK(wait_ms(0) == PD_EPOLLOUT);
    CHECK(wait_ms(0) == 0);
    void *block = pd_malloc(65536);
    CHECK(block != NULL);
    memset(block, 'x', 65536);
    /* Each edge says that there is room again; in the end both rings are full. */
    do {
        ssize_t len;
        while ((len = pd_send(sid, block, 65536)) > 0)
            ;
        CHECK(len == -1 && errno == EAGAIN);
    } while (wait_ms(100) == PD_EPOLLOUT);
    on = 0;
    CHECK(pd_setsockopt(sid, SOL_PD, PD_NONBLOCK, &on, sizeof on) == 0);
    /* The peer reads after a while. */
    CHECK(wait_ms(10000) == PD_EPOLLOUT);
    char *last = pd_malloc(1);
    CHECK(last != NULL);
    *last = 'q';
    CHECK(pd_send(sid, last, 1) == 1);

    /* In an ordinary epoll. */
    ctl(PD_EPOLL_CTL_MOD, sid, PD_EPOLLIN | PD_EPOLLRDHUP);
    int outer = epoll_create1(0), inner = pd_epoll_fd(epid);
    CHECK(outer >= 0 && inner >= 0);
    struct epoll_event event = {.events = EPOLLIN, .data = {.fd = inner}};
    CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event) == 0);
    uint32_t got = 0;
    for (int attempt = 0; got == 0 && attempt < 100; attempt++) {
        CHECK(epoll_wait(outer, &event, 1, 10000) == 1 && event.data.fd == inner);
        got = wait_ms(0);
    }
    CHECK(got == PD_EPOLLIN);
    take(sid, 3);
    CHECK(wait_ms(0) == 0);
    CHECK(epoll_wait(outer, &event, 1, 50) == 0);
    ask(sid, 'e');
    for (got = 0; got == 0;) {
        CHECK(epoll_wait(outer, &event, 1, 10000) == 1);
        got = wait_ms(0);
    }
    CHECK(got == (PD_EPOLLIN | PD_EPOLLRDHUP));
    CHECK(pd_shutdown(sid, SHUT_WR) == 0);
    CHECK(wait_ms(1000) == (PD_EPOLLIN | PD_EPOLLRDHUP | PD_EPOLLHUP));
    ctl(PD_EPOLL_CTL_DEL, sid, 0);
    CHECK(wait_ms(0) == 0);
    CHECK(pd_free(block) == 0 && pd_free(last) == 0);
    CHECK(pd_close(sid) == 0 && pd_close(listener) == 0 && pd_close(epid) == 0);
    close(outer);
}

static void client(const char *ip, const char *port) {
    int sid = connect_to(ip, port);
    char *block = pd_malloc(100);
    CHECK(block != NULL);
    memset(block, 1, 100);
    for (;;) {
        void *data;
        ssize_t len = pd_recv(sid, 1, &data);
        CHECK(len == 1);
        char what = *(char *)data;
        CHECK(pd_recv_done(sid, 1) == 0);
        if (what == 's') {
            CHECK(pd_send(sid, block, 100) == 100);
            continue;
        }
        CHECK(what == 'x');
        /* The server fills everything; let it, then read all. */
        usleep(300000);
        do {
            len = pd_recv(sid, 1 << 20, &data);
            CHECK(len > 0);
            what = ((char *)data)[len - 1];
            CHECK(pd_recv_done(sid, (size_t)len) == 0);
        } while (what != 'q');
        break;
    }
    usleep(50000);
    CHECK(pd_send(sid, block, 3) == 3);
    void *data;
    CHECK(pd_recv(sid, 1, &data) == 1 && *(char *)data == 'e' && pd_recv_done(sid, 1) == 0);
    CHECK(pd_shutdown(sid, SHUT_WR) == 0);
    expect_end(sid);
    CHECK(pd_close(sid) == 0 && pd_free(block) == 0);
}

int main(int argc, char **argv) {
    return play(argc, argv, server, client);
}
