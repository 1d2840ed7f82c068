/* Bytes there and back, from 1 byte to 8 MB, in messages and pieces of odd sizes; then half close.
 * The server's bytes are written where they are sent from. */
#include "common.h"

static const size_t TOTALS[] = {1, 63, 64, 4095, 4097, 65536, 1000003, 8 << 20};
#define ROUNDS (sizeof TOTALS / sizeof *TOTALS)

struct next {
    unsigned seed;
    size_t at;
};

static ssize_t write_next(void *place, size_t len, void *arg) {
    struct next *next = arg;
    for (size_t i = 0; i < len; i++)
        ((unsigned char *)place)[i] = byte_at(next->seed, next->at + i);
    return (ssize_t)len;
}

static ssize_t fail_to_write(void *place, size_t len, void *arg) {
    CHECK(place != NULL && len == 10 && arg == NULL);
    errno = ENOLINK;
    return -1;
}

static void send_written(int sid, unsigned seed, size_t total, size_t message) {
    struct next next = {seed, 0};
    while (next.at < total) {
        size_t len = total - next.at < message ? total - next.at : message;
        CHECK(pd_send_with(sid, len, write_next, &next) == (ssize_t)len);
        next.at += len;
    }
    FAILS(pd_send_with(sid, 10, fail_to_write, NULL), ENOLINK);
    FAILS(pd_send_with(sid, 10, NULL, NULL), EFAULT);
    CHECK(pd_send_with(sid, 0, fail_to_write, &next) == 0);
}

static void server(const char *ip, const char *port) {
    int listener = listen_on(ip, port);
    int sid = pd_accept(listener, (struct sockaddr *)NULL, NULL);
    CHECK(sid >= 0);
    for (unsigned round = 0; round < ROUNDS; round++) {
        recv_pattern(sid, round, TOTALS[round], 3000 + 7919 * round);
        send_written(sid, round + 100, TOTALS[round], 1 + 65537 * (round % 3));
    }
    expect_end(sid);
    /* The other direction is still open. */
    send_pattern(sid, 7, 1000, 100);
    CHECK(pd_close(sid) == 0);
    CHECK(pd_close(listener) == 0);
    FAILS(pd_close(listener), EBADF);
}

static void client(const char *ip, const char *port) {
    int sid = connect_to(ip, port);
    for (unsigned round = 0; round < ROUNDS; round++) {
        send_pattern(sid, round, TOTALS[round], 1 + 50021 * (round % 4));
        recv_pattern(sid, round + 100, TOTALS[round], 1 << 20);
    }
    CHECK(pd_shutdown(sid, SHUT_WR) == 0);
    void *buffer = pd_malloc(1);
    CHECK(buffer != NULL);
    FAILS(pd_send(sid, buffer, 1), EPIPE);
    CHECK(pd_free(buffer) == 0);
    recv_pattern(sid, 7, 1000, 1000);
    expect_end(sid);
    CHECK(pd_close(sid) == 0);
}

int main(int argc, char **argv) {
    return play(argc, argv, server, client);
}
