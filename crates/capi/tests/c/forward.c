/* What one connection receives goes out by another: waiting, without waiting, in pieces, to the end. */
#include "common.h"
#include <pthread.h>

enum { SEED = 7 };
static const size_t TOTAL = 6 << 20;

static void set_nonblocking(int sid, int on) {
    CHECK(pd_setsockopt(sid, SOL_PD, PD_NONBLOCK, &on, sizeof on) == 0);
}

static void server(const char *ip, const char *port) {
    int listener = listen_on(ip, port);
    int from = pd_accept(listener, (struct sockaddr *)NULL, NULL);
    int to = pd_accept(listener, (struct sockaddr *)NULL, NULL);
    CHECK(from >= 0 && to >= 0);
    FAILS(pd_forward(-1, to, 1), EBADF);
    FAILS(pd_forward(from, -1, 1), EBADF);
    CHECK(pd_forward(from, to, 0) == 0);

    /* Waits for the first byte, and moves no more than is wanted. */
    size_t moved = 0;
    while (moved < TOTAL / 2) {
        size_t wanted = 1 + moved % 300007;
        ssize_t part = pd_forward(from, to, wanted < TOTAL / 2 - moved ? wanted : TOTAL / 2 - moved);
        CHECK(part > 0 && (size_t)part <= wanted);
        moved += (size_t)part;
    }
    /* What is handed out cannot go on as well. */
    void *bytes;
    ssize_t lent = pd_recv(from, 10, &bytes);
    CHECK(lent > 0);
    FAILS(pd_forward(from, to, 1), EBUSY);
    CHECK(pd_write(to, bytes, (size_t)lent) == lent);
    CHECK(pd_recv_done(from, (size_t)lent) == 0);
    moved += (size_t)lent;
    /* The receiver reads nothing meanwhile: what there is no room for stays received. */
    set_nonblocking(from, 1), set_nonblocking(to, 1);
    for (;;) {
        ssize_t part = pd_forward(from, to, TOTAL);
        if (part == 0)
            break;
        if (part < 0) {
            CHECK(errno == EAGAIN);
            struct pollfd both[2] = {{.fd = from, .events = POLLIN}, {.fd = to, .events = POLLOUT}};
            CHECK(pd_poll(both, 2, 10000) > 0);
            if (both[0].revents && both[1].revents)
                continue;
            both[both[0].revents ? 0 : 1].events = 0;
            CHECK(pd_poll(both, 2, 10000) > 0);
            continue;
        }
        moved += (size_t)part;
    }
    CHECK(moved == TOTAL);
    CHECK(pd_close(to) == 0 && pd_close(from) == 0 && pd_close(listener) == 0);
}

static void *send_all(void *sid) {
    send_pattern(*(int *)sid, SEED, TOTAL, 100003);
    CHECK(pd_shutdown(*(int *)sid, SHUT_WR) == 0);
    return NULL;
}

static void client(const char *ip, const char *port) {
    int out = connect_to(ip, port), in = connect_to(ip, port);
    pthread_t sender;
    CHECK(pthread_create(&sender, NULL, send_all, &out) == 0);
    usleep(50000);
    recv_pattern(in, SEED, TOTAL, 1 << 20);
    expect_end(in);
    CHECK(pthread_join(sender, NULL) == 0);
    CHECK(pd_close(in) == 0 && pd_close(out) == 0);
}

int main(int argc, char **argv) { return play(argc, argv, server, client); }
