// Requests of the kernel's asynchronous I/O on connections: `submit server PORT` echoes, `submit client IP PORT [moving]` prints what
// becomes of requests, or of those that move bytes, which does not depend on the transport of the bytes. Each case is a process of its own.
#define _GNU_SOURCE
#include "outcome.h"
#include "serve.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define BULK 300000

static aio_context_t context;
static const char *ip;
static int port;
static char bytes[BULK];

// libaio's function, if there is one, or the system call.
static long submit(long count, struct iocb **list) {
    static int (*function)(aio_context_t, long, struct iocb **);
    static int calls;
    if (!function) function = (void *)dlsym(RTLD_DEFAULT, "io_submit");
    if (function && calls++ % 2) return function(context, count, list);
    long result = syscall(SYS_io_submit, context, count, list);
    return result < 0 ? -errno : result;
}

static struct iocb request(int operation, int fd, const void *buffer, size_t len) {
    static unsigned number;
    return (struct iocb){.aio_lio_opcode = operation, .aio_fildes = fd, .aio_buf = (uintptr_t)buffer, .aio_nbytes = len,
                         .aio_data = 1000 + number++ % 2};
}

static const char *event_of(struct iocb *one, int timeout_ms) {
    struct io_event event;
    struct timespec time = {timeout_ms / 1000, timeout_ms % 1000 * 1000000};
    long got = syscall(SYS_io_getevents, context, 1, 1, &event, &time);
    if (got != 1) return got ? "failed" : "nothing";
    if ((struct iocb *)(uintptr_t)event.obj != one || event.data != one->aio_data) return "another";
    return name(event.res);
}

static const char *done(struct iocb one) {
    struct iocb *list[] = {&one}, before = one;
    long result = submit(1, list);
    if (result != 1) return name(result);
    const char *text = event_of(&one, 5000);
    one.aio_key = before.aio_key;
    return memcmp(&one, &before, sizeof one) ? "changed" : text;
}

static int connected(void) {
    int fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, ip, &to.sin_addr);
    checked("connect", connect(fd, (void *)&to, sizeof to));
    if (write(fd, "hello", 5) != 5 || recv(fd, bytes, 5, MSG_WAITALL) != 5) die("hello");
    return fd;
}

// Sends bytes, and waits until they are back.
static void echoes(int fd, const char *text) {
    int there = 0;
    if (write(fd, text, strlen(text)) != (ssize_t)strlen(text)) die("write");
    while (there < (int)strlen(text)) {
        usleep(1000);
        if (ioctl(fd, FIONREAD, &there)) die("FIONREAD");
    }
}

static void moves(void) {
    int fd = connected();
    echoes(fd, "before");
    char got[3][8] = {"", "", ""};
    struct iovec in[] = {{got[1], 2}, {got[2], 4}}, out[] = {{"pie", 3}, {"ces", 3}};
    printf("moves: %s", done(request(IOCB_CMD_PREAD, fd, got[0], 8)));
    printf(" %s", got[0]);
    printf(", %s", done(request(IOCB_CMD_PWRITE, fd, "whole", 5)));
    printf(" %s", done(request(IOCB_CMD_PWRITEV, fd, out, 2)));
    usleep(20000);
    printf(" %s", done(request(IOCB_CMD_PREAD, fd, got[0], 5)));
    printf(" %s", got[0]);
    printf(" %s", done(request(IOCB_CMD_PREADV, fd, in, 2)));
    printf(" %s%s", got[1], got[2]);
    printf(", none %s", done(request(IOCB_CMD_PREAD, fd, got[0], 0)));
    struct iocb odd = request(IOCB_CMD_PREAD, fd, got[0], 8);
    odd.aio_offset = 5;
    printf(", at 5 %s", done(odd));
    odd.aio_offset = 0, odd.aio_reserved2 = 1;
    printf(", reserved %s", done(odd));
    printf(", sync %s", done(request(IOCB_CMD_FSYNC, fd, NULL, 0)));
    SAY(", none such %s", done(request(77, fd, NULL, 0)));
    // Later bytes, whoever reads them.
    for (int round = 0; round < 3; round++) {
        echoes(fd, "0123456789");
        printf("%s", done(request(IOCB_CMD_PREAD, fd, got[0], 4)));
        printf(" %.4s", got[0]);
        printf(" %zd", read(fd, bytes, 3));
        printf(" %.3s", bytes);
        printf(" %s", done(request(IOCB_CMD_PREAD, fd, got[0], 8)));
        SAY(" %.3s", got[0]);
    }
    close(fd);
}

static void failures(void) {
    int fd = connected();
    char got[8];
    fcntl(fd, F_SETFL, O_NONBLOCK);
    printf("failures: %s", done(request(IOCB_CMD_PREAD, fd, got, 8)));
    echoes(fd, "now");
    printf(" %s", done(request(IOCB_CMD_PREAD, fd, got, 8)));
    fcntl(fd, F_SETFL, 0);
    shutdown(fd, SHUT_WR);
    printf(" end %s", done(request(IOCB_CMD_PREAD, fd, got, 8)));
    signal(SIGPIPE, SIG_IGN);
    printf(" shut %s", done(request(IOCB_CMD_PWRITE, fd, "x", 1)));
    close(fd);
    SAY(" closed %s", done(request(IOCB_CMD_PREAD, fd, got, 8)));
}

// A request that the kernel refuses has moved nothing: `resfd` is no eventfd.
static void refused(int fd, const char *what, int resfd) {
    char got[8] = "";
    struct iocb one = request(IOCB_CMD_PREAD, fd, got, 8);
    one.aio_flags = IOCB_FLAG_RESFD, one.aio_resfd = resfd;
    echoes(fd, "kept");
    printf(" %s %s", what, done(one));
    printf(" %zd,", recv(fd, bytes, 8, MSG_DONTWAIT));
    one.aio_lio_opcode = IOCB_CMD_PWRITE;
    printf(" written %s", done(one));
    usleep(20000);
    printf(" %s;", outcome(recv(fd, bytes, 8, MSG_DONTWAIT)));
}

static void eventfds(void) {
    int first = connected(), second = connected();
    printf("eventfds:");
    refused(first, "closed", 999);
    refused(second, "a file", checked("open", open("/dev/zero", O_RDWR)));
    SAY(" end");
    close(first), close(second);
}

static void lists(void) {
    int fds[] = {connected(), connected()}, zero = open("/dev/zero", O_RDWR), told = eventfd(0, EFD_NONBLOCK);
    char got[4][8] = {"", "", "", "x"};
    echoes(fds[0], "first"), echoes(fds[1], "second");
    struct iocb all[] = {request(IOCB_CMD_PREAD, zero, got[3], 8), request(IOCB_CMD_PREAD, fds[0], got[0], 8),
                         request(IOCB_CMD_PREAD, zero, got[3], 7), request(IOCB_CMD_PWRITE, zero, got[3], 6),
                         request(IOCB_CMD_PREAD, fds[1], got[1], 8), request(IOCB_CMD_PWRITE, fds[1], "back", 4)};
    struct iocb *list[6];
    for (int n = 0; n < 6; n++) list[n] = &all[n], all[n].aio_data = n, all[n].aio_flags = IOCB_FLAG_RESFD, all[n].aio_resfd = told;
    printf("lists: %s", name(submit(6, list)));
    for (int n = 0; n < 6; n++) printf(" %s", event_of(&all[n], 5000));
    uint64_t count = 0;
    printf(" %s %s, told %zd", got[0], got[1], read(told, &count, sizeof count));
    printf(" %d", (int)count);
    all[1].aio_fildes = 999;
    printf(", wrong %s", name(submit(2, list)));
    printf(" %s", event_of(&all[0], 5000));
    printf(" %s", name(submit(1, list + 1)));
    printf(" %s", name(submit(0, list)));
    SAY(" %s", name(submit(-1, list)));
    for (int n = 0; n < 2; n++) close(fds[n]);
}

// The kernel tells of more than was asked for, if it has waited.
static int readable(const char *events) { return atoi(events) & POLLIN; }

static void polls(int there) {
    int fd = connected();
    if (there) echoes(fd, "there");
    struct iocb one = request(IOCB_CMD_POLL, fd, NULL, 0), *list[] = {&one};
    one.aio_buf = POLLIN;
    printf("poll: %s", name(submit(1, list)));
    if (!there) {
        const char *early = event_of(&one, 100);
        int none = 1;
        // A wait may be told, once, of bytes that are none.
        if (readable(early) && !ioctl(fd, FIONREAD, &none) && !none && submit(1, list) == 1) early = event_of(&one, 30);
        printf(" %s", early);
        if (write(fd, "later", 5) != 5) die("write");
    }
    printf(" %d", readable(event_of(&one, 5000)));
    printf(" %zd", recv(fd, bytes, 5, MSG_WAITALL));
    one.aio_buf = POLLOUT;
    printf(", out %s", name(submit(1, list)));
    printf(" %s", event_of(&one, 5000));
    for (int round = 0; round < 10; round++) {
        one.aio_buf = POLLIN;
        submit(1, list);
        if (write(fd, "round", 5) != 5) die("write");
        printf(" %d", readable(event_of(&one, 5000)));
        printf(" %zd", recv(fd, bytes, 5, MSG_WAITALL));
    }
    SAY(" end");
    close(fd);
}

static void *writes_bulk(void *argument) {
    int fd = (int)(intptr_t)argument;
    static char out[BULK];
    for (int n = 0; n < BULK; n++) out[n] = n * 31 >> 5;
    for (int at = 0; at < BULK;) {
        ssize_t part = write(fd, out + at, BULK - at < 7000 ? BULK - at : 7000);
        if (part <= 0) die("write");
        at += part;
    }
    return NULL;
}

// Nothing is lost or doubled while a connection is used so in the middle of its bytes.
static void bulk(void) {
    for (int round = 0; round < 3; round++) {
        int fd = connected(), wrong = 0;
        pthread_t thread;
        pthread_create(&thread, NULL, writes_bulk, (void *)(intptr_t)fd);
        for (int at = 0; at < BULK;) {
            ssize_t part;
            if (at < 50000 * round)
                part = read(fd, bytes + at, 3000 < BULK - at ? 3000 : BULK - at);
            else
                part = atol(done(request(IOCB_CMD_PREAD, fd, bytes + at, 5000 < BULK - at ? 5000 : BULK - at)));
            if (part <= 0) die("read");
            at += part;
        }
        pthread_join(thread, NULL);
        for (int n = 0; n < BULK; n++) wrong += bytes[n] != (char)(n * 31 >> 5);
        SAY("bulk: %d wrong", wrong);
        close(fd);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    if (!strcmp(argv[1], "server")) serve_each(atoi(argv[2]), echo);
    ip = argv[2], port = atoi(argv[3]);
    for (int which = 0; which < 7; which++) {
        if (argc > 4 && (which == 3 || which == 4)) continue;
        pid_t child = fork();
        if (child == 0) {
            checked("io_setup", syscall(SYS_io_setup, 64, &context));
            which == 0 ? moves() : which == 1 ? failures() : which == 2 ? lists() : which < 5 ? polls(which - 3) : which == 5 ? bulk() : eventfds();
            fflush(stdout);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (status) SAY("case %d: %#x", which, status);
    }
    return 0;
}
