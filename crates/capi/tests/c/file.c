/* A file from its first byte to its last, in pieces of odd sizes: by offset, by position, without waiting. */
#include "common.h"
#include <fcntl.h>
#include <poll.h>

static const size_t TOTAL = (9 << 20) + 1;

static void server(const char *ip, const char *port) {
    int listener = listen_on(ip, port);
    int sid = pd_accept(listener, (struct sockaddr *)NULL, NULL);
    CHECK(sid >= 0);
    for (int way = 0; way < 3; way++)
        recv_pattern(sid, 5, TOTAL, 1 << 20);
    expect_end(sid);
    CHECK(pd_close(sid) == 0);
    CHECK(pd_close(listener) == 0);
}

static int pattern_file(void) {
    FILE *file = tmpfile();
    CHECK(file != NULL);
    for (size_t at = 0; at < TOTAL; at++)
        CHECK(putc(byte_at(5, at), file) != EOF);
    CHECK(fflush(file) == 0);
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(file));
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && fclose(file) == 0);
    return fd;
}

static void client(const char *ip, const char *port) {
    int sid = connect_to(ip, port), fd = pattern_file();
    off_t at = 0;
    while ((size_t)at < TOTAL) {
        off_t before = at;
        size_t wanted = 1 + (size_t)at % 1500007;
        ssize_t sent = pd_sendfile(sid, fd, &at, wanted);
        CHECK(sent > 0 && at == before + sent);
        CHECK((size_t)sent == wanted || (size_t)at == TOTAL);
    }
    CHECK(pd_sendfile(sid, fd, &at, 100) == 0 && (size_t)at == TOTAL);

    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    ssize_t sent;
    for (at = 0; (sent = pd_sendfile(sid, fd, NULL, 3 << 20)) > 0; at += sent)
        CHECK(lseek(fd, 0, SEEK_CUR) == at + sent);
    CHECK(sent == 0 && (size_t)at == TOTAL);

    int on = 1;
    CHECK(pd_setsockopt(sid, SOL_PD, PD_NONBLOCK, &on, sizeof on) == 0);
    for (at = 0; (size_t)at < TOTAL;) {
        if (pd_sendfile(sid, fd, &at, TOTAL) < 0) {
            CHECK(errno == EAGAIN);
            poll(NULL, 0, 1);
        }
    }

    on = 0;
    CHECK(pd_setsockopt(sid, SOL_PD, PD_NONBLOCK, &on, sizeof on) == 0);
    FAILS(pd_sendfile(sid, -1, NULL, 1), EBADF);
    at = -1;
    FAILS(pd_sendfile(sid, fd, &at, 1), EINVAL);
    FAILS(pd_sendfile(-1, fd, NULL, 1), EBADF);
    int ends[2];
    CHECK(pipe(ends) == 0);
    FAILS(pd_sendfile(sid, ends[0], NULL, 1), ESPIPE);
    CHECK(pd_shutdown(sid, SHUT_WR) == 0);
    at = 0;
    FAILS(pd_sendfile(sid, fd, &at, TOTAL), EPIPE);
    expect_end(sid);
    CHECK(pd_close(sid) == 0);
}

int main(int argc, char **argv) {
    return play(argc, argv, server, client);
}
