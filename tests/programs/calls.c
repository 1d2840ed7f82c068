// Every family of socket calls on a TCP connection, with an answer for each that does not depend on the
// transport of the bytes. `calls server PORT` prints "ready" and serves; `calls client IP PORT` prints a line
// for each case. The first byte of a connection selects the server's action: 'E' echo until the end, then
// send "bye"; 'X' close at once; 'Q' send nothing until the end.
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "serve.h"

static struct sockaddr_in where;
static const char *self;

// The result of a call, and errno if it failed.
#define TELL(name, call) do { \
    long result_ = (call); \
    SAY(name ": %ld %s", result_, result_ < 0 ? strerrorname_np(errno) : "ok"); \
} while (0)

static void all_out(int fd, const void *bytes, size_t len) {
    for (const char *at = bytes; len > 0;) {
        ssize_t part = write(fd, at, len);
        if (part < 0) die("write");
        at += part, len -= part;
    }
}

static size_t all_in(int fd, void *bytes, size_t len) {
    size_t got = 0;
    while (got < len) {
        ssize_t part = read(fd, (char *)bytes + got, len - got);
        if (part < 0) die("read");
        if (part == 0) break;
        got += part;
    }
    return got;
}

static void *serve(void *argument) {
    int fd = (int)(intptr_t)argument;
    char first, *bytes = malloc(1 << 16);
    if (read(fd, &first, 1) == 1 && first != 'X') {
        ssize_t part;
        while ((part = read(fd, bytes, 1 << 16)) > 0)
            if (first == 'E') all_out(fd, bytes, part);
        if (first == 'E' && part == 0) all_out(fd, "bye", 3);
    }
    close(fd);
    free(bytes);
    return NULL;
}

static int make(char kind) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (connect(fd, (void *)&where, sizeof where)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    all_out(fd, &kind, 1);
    return fd;
}

static void expect(const char *name, int fd, const char *text) {
    char got[64] = {0};
    size_t len = all_in(fd, got, strlen(text));
    SAY("%s: %s", name, len == strlen(text) && !strcmp(got, text) ? "ok" : got);
}

static void end(const char *name, int fd) {
    char got[64] = {0};
    shutdown(fd, SHUT_WR);
    size_t len = all_in(fd, got, sizeof got - 1);
    SAY("%s: end after %zu bytes: %s", name, len, got);
    close(fd);
}

static void reads_and_writes(void) {
    int fd = make('E');
    char a[4] = {0}, b[4] = {0};
    all_out(fd, "abc", 3);
    expect("read", fd, "abc");
    struct iovec out[3] = {{"12", 2}, {"", 0}, {"3456", 4}}, in[2] = {{a, 3}, {b, 3}};
    SAY("writev: %zd", writev(fd, out, 3));
    struct msghdr message = {.msg_iov = in, .msg_iovlen = 2};
    ssize_t received = recvmsg(fd, &message, MSG_WAITALL);
    SAY("recvmsg: %zd %s %s", received, a, b);
    send(fd, "peek", 4, MSG_NOSIGNAL);
    recv(fd, a, 2, MSG_PEEK | MSG_WAITALL);
    SAY("peek: %.2s", a);
    struct pollfd poll_in = {fd, POLLIN, 0};
    int there = 0;
    while (ioctl(fd, FIONREAD, &there) == 0 && there < 4) usleep(1000);
    int found = poll(&poll_in, 1, 1000);
    SAY("FIONREAD: %d, poll %d %x", there, found, poll_in.revents);
    expect("after the peek", fd, "peek");
    TELL("nothing there", recv(fd, a, 1, MSG_DONTWAIT));
    struct mmsghdr many[2] = {{.msg_hdr = {.msg_iov = &out[0], .msg_iovlen = 1}},
                              {.msg_hdr = {.msg_iov = &out[2], .msg_iovlen = 1}}};
    found = sendmmsg(fd, many, 2, 0);
    SAY("sendmmsg: %d %u %u", found, many[0].msg_len, many[1].msg_len);
    expect("what it sent", fd, "123456");
    static char parts[3][4];
    struct iovec places[3] = {{parts[0], 2}, {parts[1], 3}, {parts[2], 4}};
    struct mmsghdr got[3] = {{.msg_hdr = {.msg_iov = &places[0], .msg_iovlen = 1}},
                             {.msg_hdr = {.msg_iov = &places[1], .msg_iovlen = 1}},
                             {.msg_hdr = {.msg_iov = &places[2], .msg_iovlen = 1}}};
    struct timespec none = {0, 0}, never = {0, -1}, minute = {60, 0};
    sendto(fd, "1234567", 7, 0, NULL, 0);
    while (ioctl(fd, FIONREAD, &there) == 0 && there < 7) usleep(1000);
    TELL("recvmmsg until never", recvmmsg(fd, got, 3, 0, &never));
    found = recvmmsg(fd, got, 3, 0, &none);
    SAY("recvmmsg at once: %d %u, %ld left", found, got[0].msg_len, none.tv_sec);
    found = recvmmsg(fd, got, 3, MSG_WAITFORONE, &minute);
    SAY("recvmmsg: %d %u %u", found, got[0].msg_len, got[1].msg_len);
    SAY("time is left: %d", minute.tv_sec > 30);
    sendto(fd, "to", 2, 0, NULL, 0);
    struct sockaddr_storage from;
    socklen_t from_len = sizeof from;
    SAY("recvfrom: %zd", recvfrom(fd, a, 2, MSG_WAITALL, (void *)&from, &from_len));
    shutdown(fd, SHUT_WR);
    found = recvmmsg(fd, got, 3, 0, NULL);
    SAY("recvmmsg at the end: %d %u %u %u", found, got[0].msg_len, got[1].msg_len, got[2].msg_len);
    end("half close", fd);
}

static void options(void) {
    int fd = make('E'), error = 1;
    socklen_t len = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    struct sockaddr_in name;
    len = sizeof name;
    getpeername(fd, (void *)&name, &len);
    SAY("SO_ERROR %d, peer %d", error, name.sin_port == where.sin_port);
    struct timeval limit = {0, 50000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    char byte;
    TELL("SO_RCVTIMEO", read(fd, &byte, 1));
    limit = (struct timeval){-1, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    TELL("no time", read(fd, &byte, 1));
    limit.tv_sec = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    int on = 1;
    ioctl(fd, FIONBIO, &on);
    TELL("FIONBIO", read(fd, &byte, 1));
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    end("options", fd);
}

static void on_alarm(int signal) { (void)signal; }

static void signals(void) {
    int fd = make('E');
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    ualarm(50000, 0);
    char byte;
    TELL("a handler ends a read", read(fd, &byte, 1));
    action.sa_handler = SIG_DFL;
    sigaction(SIGALRM, &action, NULL);
    end("signals", fd);
    fd = make('X');
    SAY("closed by the peer: %zd", read(fd, &byte, 1));
    signal(SIGPIPE, SIG_IGN);
    int tries = 0;
    errno = 0;
    while (send(fd, "x", 1, 0) == 1 && ++tries < 1000) usleep(1000);
    SAY("then: %s", errno == EPIPE || errno == ECONNRESET ? "EPIPE" : strerrorname_np(errno));
    signal(SIGPIPE, SIG_DFL);
    close(fd);
}

static void waits(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), epoll = epoll_create1(0), outer = epoll_create1(0);
    struct epoll_event event = {EPOLLOUT | EPOLLIN | EPOLLET, {.u64 = 77}}, got[4];
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    int result = connect(fd, (void *)&where, sizeof where);
    if (result && errno != EINPROGRESS) die("non-blocking connect");
    int found = epoll_wait(epoll, got, 4, 2000), error = 1;
    while (found == 1 && got[0].events & EPOLLHUP) found = epoll_wait(epoll, got, 4, 2000);
    socklen_t len = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    SAY("connected: %d %d %d error %d", found, !!(got[0].events & EPOLLOUT), (int)got[0].data.u64, error);
    while (epoll_wait(epoll, got, 4, 0) > 0) {}
    all_out(fd, "E1", 2);
    char byte;
    found = epoll_wait(epoll, got, 4, 2000);
    SAY("edge: %d %d", found, !!(got[0].events & EPOLLIN));
    SAY("edge again: %d", epoll_wait(epoll, got, 4, 50));
    SAY("read: %zd", read(fd, &byte, 1));
    event = (struct epoll_event){EPOLLIN, {.u64 = 78}};
    epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
    SAY("level, nothing: %d", epoll_wait(epoll, got, 4, 20));
    all_out(fd, "2", 1);
    found = epoll_wait(epoll, got, 4, 2000);
    SAY("level: %d %d", found, (int)got[0].data.u64);
    SAY("level again: %d", epoll_wait(epoll, got, 4, 0));
    struct epoll_event nested = {EPOLLIN, {.u64 = 1}};
    epoll_ctl(outer, EPOLL_CTL_ADD, epoll, &nested);
    SAY("nested: %d", epoll_wait(outer, got, 4, 2000));
    SAY("read: %zd", read(fd, &byte, 1));
    epoll_wait(epoll, got, 4, 0);
    SAY("nested, nothing: %d", epoll_wait(outer, got, 4, 20));
    all_out(fd, "3", 1);
    SAY("nested: %d", epoll_wait(outer, got, 4, 2000));
    SAY("read: %zd", read(fd, &byte, 1));
    event.events = EPOLLIN | EPOLLONESHOT;
    epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
    all_out(fd, "4", 1);
    SAY("one shot: %d", epoll_wait(epoll, got, 4, 2000));
    SAY("one shot again: %d", epoll_wait(epoll, got, 4, 0));
    TELL("added twice", epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(fd, &in);
    FD_SET(fd, &out);
    struct timeval limit = {2, 0};
    found = select(fd + 1, &in, &out, NULL, &limit);
    SAY("select: %d %d %d", found, FD_ISSET(fd, &in) != 0, FD_ISSET(fd, &out) != 0);
    SAY("read: %zd", read(fd, &byte, 1));
    int pipes[2];
    if (pipe(pipes)) die("pipe");
    struct pollfd polled[2] = {{fd, POLLIN | POLLRDHUP, 0}, {pipes[0], POLLIN, 0}};
    SAY("poll, nothing: %d", poll(polled, 2, 20));
    all_out(fd, "5", 1);
    found = poll(polled, 2, 2000);
    SAY("poll: %d %x %x", found, polled[0].revents, polled[1].revents);
    SAY("read: %zd", read(fd, &byte, 1));
    all_out(pipes[1], "p", 1);
    struct timespec time = {2, 0};
    found = ppoll(polled, 2, &time, NULL);
    SAY("ppoll: %d %x %x", found, polled[0].revents, polled[1].revents);
    epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
    fcntl(fd, F_SETFL, 0);
    end("waits", fd);
    close(pipes[0]), close(pipes[1]), close(epoll), close(outer);
}

static void descriptors(void) {
    int fd = make('E'), second = dup(fd), third = 100;
    close(fd);
    dup2(second, third);
    all_out(third, "dup", 3);
    expect("dup", second, "dup");
    int fourth = fcntl(second, F_DUPFD_CLOEXEC, 50);
    close(second), close(third);
    all_out(fourth, "four", 4);
    expect("F_DUPFD", fourth, "four");
    end("descriptors", fourth);
    FILE *stream = fdopen(make('E'), "r+");
    char line[32] = "";
    fprintf(stream, "a line\n");
    fflush(stream);
    SAY("stdio: %s", fgets(line, sizeof line, stream) && !strcmp(line, "a line\n") ? "ok" : line);
    SAY("fclose: %d", fclose(stream));
}

static void moves(void) {
    int fd = make('E'), pipes[2];
    char path[] = "/tmp/calls.XXXXXX";
    int file = mkstemp(path);
    unlink(path);
    char *bytes = malloc(200000), *back = malloc(200000);
    for (int i = 0; i < 200000; i++) bytes[i] = i * 31 >> 3;
    all_out(file, bytes, 200000);
    off_t offset = 1000;
    size_t sent = 0;
    while (sent < 150000) {
        ssize_t part = sendfile(fd, file, &offset, 150000 - sent);
        if (part <= 0) die("sendfile");
        sent += part;
    }
    size_t got = all_in(fd, back, 150000);
    SAY("sendfile: %zu %ld %s", got, (long)offset, memcmp(back, bytes + 1000, got) ? "differ" : "same");
    if (pipe(pipes)) die("pipe");
    all_out(pipes[1], "through a pipe", 14);
    SAY("splice: %zd", splice(pipes[0], NULL, fd, NULL, 14, 0));
    SAY("splice back: %zd", splice(fd, NULL, pipes[1], NULL, 14, 0));
    expect("it is", pipes[0], "through a pipe");
    end("moves", fd);
    close(file), close(pipes[0]), close(pipes[1]), free(bytes), free(back);
}

static void *feed(void *argument) {
    int fd = (int)(intptr_t)argument;
    uint64_t *bytes = malloc(1 << 16), next = 0;
    for (int i = 0; i < 256; i++) {
        for (int j = 0; j < 1 << 13; j++) bytes[j] = next++;
        all_out(fd, bytes, 1 << 16);
    }
    shutdown(fd, SHUT_WR);
    free(bytes);
    return NULL;
}

static void bulk(void) {
    int fd = make('E');
    pthread_t thread;
    pthread_create(&thread, NULL, feed, (void *)(intptr_t)fd);
    uint64_t bytes[1000], next = 0, wrong = 0;
    size_t got;
    while ((got = all_in(fd, bytes, sizeof bytes)) >= 8)
        for (size_t i = 0; i < got / 8; i++) wrong += bytes[i] != next++;
    SAY("bulk: %lu words, %lu wrong, then %zu", (unsigned long)next, (unsigned long)wrong, got);
    pthread_join(thread, NULL);
    close(fd);
}

static void processes(void) {
    int fd = make('E');
    all_out(fd, "0", 1);
    expect("before the fork", fd, "0");
    // Sent and not received before the fork: the next reader gets it.
    all_out(fd, "1", 1);
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            char text[2] = {'2' + i, 0}, got = 0;
            all_in(fd, &got, 1);
            SAY("child %d reads %c", i, got);
            all_out(fd, text, 1);
            exit(0);
        }
        waitpid(child, NULL, 0);
    }
    expect("the parent reads the last", fd, "3");
    pid_t quiet = fork();
    if (quiet == 0) {
        pause();
        _exit(0);
    }
    all_out(fd, "4", 1);
    expect("beside a child", fd, "4");
    kill(quiet, SIGKILL), waitpid(quiet, NULL, 0);

    pid_t spawned;
    char *arguments[] = {"true", NULL}, *none[] = {NULL};
    posix_spawn(&spawned, "/bin/true", NULL, NULL, arguments, none);
    waitpid(spawned, NULL, 0);
    pid_t v = vfork();
    if (v == 0) {
        dup2(fd, 90), close(fd);
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    waitpid(v, NULL, 0);
    all_out(fd, "5", 1);
    expect("after vfork and posix_spawn", fd, "5");

    all_out(fd, "6", 1);
    if (fork() == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", fd);
        execl(self, self, "image", number, NULL);
        _exit(1);
    }
    close(fd);
    wait(NULL);

    fd = make('E');
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    if (fork() == 0) {
        // Holds no copy of its own: it gets one in a message.
        close(fd), close(pair[0]);
        char data, control[CMSG_SPACE(sizeof(int))];
        struct iovec piece = {&data, 1};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(pair[1], &message, 0) != 1) die("recvmsg");
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        usleep(100000);
        all_out(fd, "passed", 6);
        expect("in a message", fd, "passed");
        end("passed on", fd);
        exit(0);
    }
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec piece = {"d", 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    sendmsg(pair[0], &message, 0);
    close(fd);
    wait(NULL);
    close(pair[0]), close(pair[1]);
}

int main(int count, char **arguments) {
    self = "/proc/self/exe";
    if (count == 3 && !strcmp(arguments[1], "server")) serve_each(atoi(arguments[2]), serve);
    if (count == 3 && !strcmp(arguments[1], "image")) {
        int fd = atoi(arguments[2]);
        expect("in another image", fd, "6");
        all_out(fd, "image", 5);
        expect("and back", fd, "image");
        end("image", fd);
        return 0;
    }
    if (count != 4) return 2;
    where = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(arguments[3]))};
    inet_pton(AF_INET, arguments[2], &where.sin_addr);
    reads_and_writes();
    options();
    signals();
    waits();
    descriptors();
    moves();
    bulk();
    processes();
    return 0;
}
