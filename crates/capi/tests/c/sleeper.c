/* A thread sleeps in pd_epoll_wait, or on the instance's descriptor, for each message of its peer, on one connection of one channel. */
#include "common.h"
#include <poll.h>
#include <time.h>

enum { ROUNDS = 400 };

/* Sends a byte that the peer answers with one. */
static void send_byte(int sid) {
    static char *block;
    if (block == NULL)
        CHECK((block = pd_malloc(1)) != NULL);
    void *buffer = block;
    CHECK(pd_buf_refresh(sid, &buffer, 1) == 1);
    CHECK(pd_send(sid, block, 1) == 1);
}

static void shared(int sid) {
    int on = 1;
    CHECK(pd_setsockopt(sid, SOL_PD, PD_RECV_SHARED, &on, sizeof on) == 0);
}

static void server(const char *ip, const char *port) {
    int epid = pd_epoll_create(0), listener = listen_on(ip, port);
    int sid = pd_accept(listener, (struct sockaddr *)NULL, NULL);
    CHECK(epid >= 0 && sid >= 0);
    shared(sid);
    struct pd_epoll_event event = {.events = PD_EPOLLIN};
    CHECK(pd_epoll_ctl(epid, PD_EPOLL_CTL_ADD, sid, &event) == 0);
    struct pollfd outer = {.fd = -1, .events = POLLIN};
    for (int round = 0; round < 2 * ROUNDS; round++) {
        if (round == ROUNDS)
            CHECK((outer.fd = pd_epoll_fd(epid)) >= 0);
        int count = 0;
        while (count == 0) {
            if (outer.fd >= 0)
                CHECK(poll(&outer, 1, 10000) == 1);
            count = pd_epoll_wait(epid, &event, 1, outer.fd >= 0 ? 0 : 10000);
        }
        CHECK(count == 1 && event.events == PD_EPOLLIN);
        void *data;
        CHECK(pd_recv(sid, 100, &data) == 1 && pd_recv_done(sid, 1) == 0);
        send_byte(sid);
    }
    CHECK(pd_close(sid) == 0 && pd_close(listener) == 0 && pd_close(epid) == 0);
}

static void client(const char *ip, const char *port) {
    int sid = connect_to(ip, port);
    shared(sid);
    for (int round = 0; round < 2 * ROUNDS; round++) {
        /* The peer sleeps by then. */
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
        send_byte(sid);
        void *data;
        CHECK(pd_recv(sid, 1, &data) == 1 && pd_recv_done(sid, 1) == 0);
    }
    CHECK(pd_close(sid) == 0);
}

int main(int argc, char **argv) {
    return play(argc, argv, server, client);
}
