/* Every errno that a BSD programmer expects, and that each failure leaves a sentence. */
#include "common.h"

/* On a port of its own: the client looks for the other. */
static void without_peer(const char *ip) {
    void *data;
    int one = 1;
    socklen_t len, size = sizeof one;
    struct sockaddr_storage addr = parse(ip, "0", &len);

    FAILS(pd_socket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
    FAILS(pd_socket(AF_INET, SOCK_DGRAM, 0), EPROTONOSUPPORT);
    FAILS(pd_socket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
    FAILS(pd_close(-1), EBADF);
    FAILS(pd_close(123456), EBADF);
    FAILS(pd_listen(1 << 30, 1), EBADF);

    int sid = pd_socket(addr.ss_family, SOCK_STREAM, IPPROTO_TCP);
    CHECK(sid >= 0);
    FAILS(pd_accept(sid, (struct sockaddr *)NULL, NULL), EINVAL);
    FAILS(pd_recv(sid, 1, &data), ENOTCONN);
    FAILS(pd_shutdown(sid, SHUT_WR), ENOTCONN);
    FAILS(pd_shutdown(sid, 9), EINVAL);
    FAILS(pd_getpeername(sid, &addr, &len), ENOTCONN);
    FAILS(pd_bind(sid, (struct sockaddr *)NULL, 0), EFAULT);
    FAILS(pd_bind(sid, &addr, 4), EINVAL);
    FAILS(pd_setsockopt(sid, SOL_SOCKET, SO_BROADCAST, &one, size), ENOPROTOOPT);
    FAILS(pd_setsockopt(sid, SOL_SOCKET, SO_SNDBUF, NULL, size), EFAULT);
    FAILS(pd_setsockopt(sid, SOL_SOCKET, SO_SNDBUF, &one, 1), EINVAL);
    FAILS(pd_recv_done(sid, 1), EINVAL);

    void *block = pd_malloc(100);
    CHECK(block != NULL);
    FAILS(pd_send(sid, block, 1), ENOTCONN);
    FAILS(pd_send(sid, &one, 1), EFAULT);
    FAILS(pd_send(sid, block, 1 << 20), EFAULT);
    CHECK(pd_send(sid, block, 0) == 0);
    FAILS(pd_free(&one), EINVAL);
    FAILS(pd_free((char *)block + 64), EINVAL);
    CHECK(pd_free(block) == 0);
    FAILS(pd_free(block), EINVAL);
    CHECK(pd_free(NULL) == 0);
    CHECK(pd_malloc((size_t)2 << 30) == NULL && errno == EMSGSIZE);

    CHECK(pd_bind(sid, &addr, len) == 0);
    FAILS(pd_bind(sid, &addr, len), EINVAL);
    CHECK(pd_getsockname(sid, &addr, &len) == 0);
    CHECK(pd_listen(sid, 5) == 0);
    int other = pd_socket(addr.ss_family, SOCK_STREAM, 0);
    CHECK(other >= 0);
    FAILS(pd_bind(other, &addr, len), EADDRINUSE);
    FAILS(pd_connect(sid, &addr, len), EOPNOTSUPP);

    struct sockaddr_storage elsewhere = parse("203.0.113.77", "1", &size);
    if (addr.ss_family == AF_INET)
        FAILS(pd_bind(other, &elsewhere, size), EADDRNOTAVAIL);

    int epid = pd_epoll_create(0);
    struct pd_epoll_event event = {.events = PD_EPOLLIN, .data = {.u64 = 1}};
    CHECK(epid >= 0);
    FAILS(pd_epoll_create(1), EINVAL);
    FAILS(pd_epoll_ctl(epid, PD_EPOLL_CTL_MOD, sid, &event), ENOENT);
    FAILS(pd_epoll_ctl(epid, PD_EPOLL_CTL_DEL, sid, NULL), ENOENT);
    CHECK(pd_epoll_ctl(epid, PD_EPOLL_CTL_ADD, sid, &event) == 0);
    FAILS(pd_epoll_ctl(epid, PD_EPOLL_CTL_ADD, sid, &event), EEXIST);
    FAILS(pd_epoll_ctl(epid, 9, sid, &event), EINVAL);
    FAILS(pd_epoll_ctl(sid, PD_EPOLL_CTL_ADD, sid, &event), EINVAL);
    FAILS(pd_epoll_wait(epid, &event, 0, 0), EINVAL);
    FAILS(pd_listen(epid, 1), ENOTSOCK);
    CHECK(pd_epoll_wait(epid, &event, 1, 0) == 0);
    CHECK(pd_close(epid) == 0);

    CHECK(pd_close(other) == 0);
    CHECK(pd_close(sid) == 0);
    FAILS(pd_close(sid), EBADF);
}

static void server(const char *ip, const char *port) {
    without_peer(ip);
    int listener = listen_on(ip, port);
    int sid = pd_accept4(listener, (struct sockaddr *)NULL, NULL, SOCK_NONBLOCK);
    CHECK(sid >= 0);
    void *data;
    FAILS(pd_recv(sid, 1, &data), EAGAIN);
    FAILS(pd_accept4(listener, (struct sockaddr *)NULL, NULL, 1), EINVAL);
    CHECK(pd_close(sid) == 0);
    CHECK(pd_close(listener) == 0);
}

static void client(const char *ip, const char *port) {
    socklen_t len;
    struct sockaddr_storage addr = parse(ip, port, &len);
    int sid = connect_to(ip, port);
    FAILS(pd_connect(sid, &addr, len), EISCONN);
    FAILS(pd_listen(sid, 1), EINVAL);
    FAILS(pd_recv_done(sid, 1), EINVAL);
    expect_end(sid);
    char *block = pd_malloc(4096);
    CHECK(block != NULL);
    ssize_t sent;
    while ((sent = pd_send(sid, block, 4096)) > 0)
        usleep(1000);
    CHECK(sent == -1 && (errno == EPIPE || errno == ECONNRESET));
    CHECK(pd_free(block) == 0);
    CHECK(pd_close(sid) == 0);
    sid = pd_socket(addr.ss_family, SOCK_STREAM, 0);
    /* Nobody listens any more once the server has closed. */
    for (int attempt = 0; pd_connect(sid, &addr, len) == 0 && attempt < 100; attempt++) {
        CHECK(pd_close(sid) == 0);
        usleep(10000);
        sid = pd_socket(addr.ss_family, SOCK_STREAM, 0);
    }
    FAILS(pd_connect(sid, &addr, len), ECONNREFUSED);
    CHECK(pd_close(sid) == 0);
}

int main(int argc, char **argv) {
    return play(argc, argv, server, client);
}
