/* Socket options, addresses, time-outs. */
#include "common.h"
#include <netinet/tcp.h>
#include <sys/time.h>
#include <time.h>

static int get(int sid, int level, int option) {
    int value = -1;
    socklen_t len = sizeof value;
    CHECK(pd_getsockopt(sid, level, option, &value, &len) == 0 && len == sizeof value);
    return value;
}

static void set(int sid, int level, int option, int value) {
    CHECK(pd_setsockopt(sid, level, option, &value, sizeof value) == 0);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static unsigned port_of(const struct sockaddr_storage *addr) {
    return ntohs(addr->ss_family == AF_INET ? ((const struct sockaddr_in *)addr)->sin_port
                                            : ((const struct sockaddr_in6 *)addr)->sin6_port);
}

/* The driver's policy says the path of connections; what is not connected has none. */
static const char *expected_path(int sid) {
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    const char *direct = getenv("PD_TEST_PATH");
    return direct != NULL && pd_getpeername(sid, &peer, &len) == 0 ? direct : "offloaded";
}

static void common(int sid) {
    CHECK(get(sid, SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
    CHECK(get(sid, SOL_SOCKET, SO_ERROR) == 0);
    CHECK(get(sid, SOL_SOCKET, SO_SNDBUF) == 4 << 20 && get(sid, SOL_SOCKET, SO_RCVBUF) == 4 << 20);
    set(sid, SOL_SOCKET, SO_SNDBUF, 100000);
    CHECK(get(sid, SOL_SOCKET, SO_SNDBUF) == 131072);
    set(sid, SOL_SOCKET, SO_SNDBUF, 1);
    CHECK(get(sid, SOL_SOCKET, SO_SNDBUF) == 65536);
    set(sid, SOL_SOCKET, SO_RCVBUF, 1 << 20);
    CHECK(get(sid, SOL_SOCKET, SO_RCVBUF) == 1 << 20);
    set(sid, SOL_SOCKET, SO_REUSEADDR, 1);
    set(sid, IPPROTO_TCP, TCP_NODELAY, 1);
    CHECK(get(sid, SOL_PD, PD_NONBLOCK) == 0);
    set(sid, SOL_PD, PD_NONBLOCK, 1);
    CHECK(get(sid, SOL_PD, PD_NONBLOCK) == 1);
    set(sid, SOL_PD, PD_NONBLOCK, 0);
    struct linger linger = {1, 5};
    CHECK(pd_setsockopt(sid, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    char path[32];
    socklen_t len = sizeof path;
    CHECK(pd_getsockopt(sid, SOL_PD, PD_PATH, path, &len) == 0 && strcmp(path, expected_path(sid)) == 0);
}

static void server(const char *ip, const char *port) {
    int listener = listen_on(ip, port);
    CHECK(get(listener, SOL_SOCKET, SO_ACCEPTCONN) == 1);
    common(listener);
    struct sockaddr_storage local, peer;
    socklen_t len = sizeof local;
    CHECK(pd_getsockname(listener, &local, &len) == 0 && port_of(&local) == (unsigned)atoi(port));
    len = sizeof peer;
    int sid = pd_accept(listener, &peer, &len);
    CHECK(sid >= 0);
    CHECK(port_of(&peer) != 0);
    len = sizeof local;
    CHECK(pd_getsockname(sid, &local, &len) == 0 && port_of(&local) == (unsigned)atoi(port));
    CHECK(get(sid, SOL_SOCKET, SO_ACCEPTCONN) == 0);

    /* A receive waits no longer than it may; one for many bytes waits for all of them. */
    struct timeval timeout = {0, 200000}, got;
    CHECK(pd_setsockopt(sid, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
    len = sizeof got;
    CHECK(pd_getsockopt(sid, SOL_SOCKET, SO_RCVTIMEO, &got, &len) == 0 && got.tv_usec == 200000);
    void *data;
    double start = now();
    FAILS(pd_recv(sid, 1, &data), EAGAIN);
    CHECK(now() - start > 0.15 && now() - start < 2);
    timeout.tv_usec = 0;
    CHECK(pd_setsockopt(sid, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
    set(sid, SOL_SOCKET, SO_RCVLOWAT, 300);
    void *go = pd_malloc(1);
    CHECK(pd_send(sid, go, 1) == 1);
    CHECK(pd_recv(sid, 1000, &data) == 300);
    CHECK(pd_recv_done(sid, 300) == 0);
    expect_end(sid);
    CHECK(pd_free(go) == 0);
    CHECK(pd_close(sid) == 0 && pd_close(listener) == 0);
}

static void client(const char *ip, const char *port) {
    int sid = connect_to(ip, port);
    common(sid);
    struct sockaddr_storage local, peer;
    socklen_t len = sizeof local;
    CHECK(pd_getsockname(sid, &local, &len) == 0 && port_of(&local) != 0);
    len = sizeof peer;
    CHECK(pd_getpeername(sid, &peer, &len) == 0 && port_of(&peer) == (unsigned)atoi(port));
    void *data;
    CHECK(pd_recv(sid, 1, &data) == 1 && pd_recv_done(sid, 1) == 0);
    char *block = pd_malloc(300);
    CHECK(block != NULL);
    memset(block, 1, 300);
    for (int i = 0; i < 3; i++) {
        CHECK(pd_send(sid, block + 100 * i, 100) == 100);
        usleep(20000);
    }
    CHECK(pd_free(block) == 0);
    CHECK(pd_close(sid) == 0);
}

int main(int argc, char **argv) {
    return play(argc, argv, server, client);
}
