// Threads that are cancelled in calls on connections: `cancelled PATH`, or at any moment: `cancelled PATH ROUNDS`. Both ends are in this process.
// Prints lines that do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include "asleep.h"
#include "both_ends.h"
#include "chance.h"
#include "outcome.h"
#include "side_by_side.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define FULL_BYTES (64 << 20)
#define LONG_MS 5000

static const char *path;

enum way {
    RECV, RECVFROM, RECVMSG, RECVMMSG, WHOLE, READ, READV, POLL, PPOLL, SELECT, PSELECT, EPOLL, EPOLL_PWAIT,
    RECEIVING, ACCEPT = RECEIVING, ACCEPT4, WAITING, SEND = WAITING, SENDTO, SENDMSG, WRITE, WRITEV, CONNECT, WAYS
};
static const char *ways[] = {
    "recv", "recvfrom", "recvmsg", "recvmmsg", "recv of all", "read", "readv", "poll", "ppoll", "select", "pselect", "epoll_wait", "epoll_pwait",
    "accept", "accept4", "send", "sendto", "sendmsg", "write", "writev", "connect"};

// ASLEEP: cancelled in the call. BEFORE: before the call, which would find something. OFF: asleep in the call, when it must not be.
enum when { ASLEEP, BEFORE, OFF, TIMES };
static const char *times[] = {"asleep", "before", "with cancellation off"};

struct call {
    atomic_int thread;
    atomic_bool over, may_begin;
    enum way way;
    enum when when;
    int fd, epoll;
    struct sockaddr_storage at;
    socklen_t len;
    bool cleaned;
    long result;
};

static char full[FULL_BYTES];

static void cleans(void *argument) { ((struct call *)argument)->cleaned = true; }

static long calls(struct call *call) {
    bool sends = call->way >= WAITING;
    struct iovec part = {full, sends ? sizeof full : 10};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    struct pollfd poll_of = {.fd = call->fd, .events = POLLIN};
    struct epoll_event event;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(call->fd, &set);
    switch (call->way) {
    case RECV: return recv(call->fd, full, 10, 0);
    case RECVFROM: return recvfrom(call->fd, full, 10, 0, NULL, NULL);
    case RECVMSG: return recvmsg(call->fd, &message.msg_hdr, 0);
    case RECVMMSG: return recvmmsg(call->fd, &message, 1, 0, NULL);
    case WHOLE: return recv(call->fd, full, 4, MSG_WAITALL);
    case READ: return read(call->fd, full, 10);
    case READV: return readv(call->fd, &part, 1);
    case POLL: return poll(&poll_of, 1, -1);
    case PPOLL: return ppoll(&poll_of, 1, NULL, NULL);
    case SELECT: return select(call->fd + 1, &set, NULL, NULL, NULL);
    case PSELECT: return pselect(call->fd + 1, &set, NULL, NULL, NULL, NULL);
    case EPOLL: return epoll_wait(call->epoll, &event, 1, -1);
    case EPOLL_PWAIT: return epoll_pwait(call->epoll, &event, 1, -1, NULL);
    case ACCEPT: return accept(call->fd, NULL, NULL);
    case ACCEPT4: return accept4(call->fd, NULL, NULL, SOCK_CLOEXEC);
    case SEND: return send(call->fd, full, sizeof full, 0);
    case SENDTO: return sendto(call->fd, full, sizeof full, 0, NULL, 0);
    case SENDMSG: return sendmsg(call->fd, &message.msg_hdr, 0);
    case WRITE: return write(call->fd, full, sizeof full);
    case WRITEV: return writev(call->fd, &part, 1);
    default: return connect(call->fd, (void *)&call->at, call->len);
    }
}

static void *thread_of(void *argument) {
    struct call *call = argument;
    pthread_cleanup_push(cleans, call);
    if (call->when != ASLEEP) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    call->thread = syscall(SYS_gettid);
    if (call->when == BEFORE) {
        while (!call->may_begin) usleep(1000);
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    }
    long result = calls(call);
    call->result = result < 0 ? -errno : result;
    call->over = true;
    if (call->when == OFF) {
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
        pthread_testcancel();
    }
    pthread_cleanup_pop(0);
    return NULL;
}

// Receives until `bytes` have come, or nothing comes any more.
static void drains(int fd, size_t bytes) {
    static char some[1 << 16];
    struct pollfd there = {.fd = fd, .events = POLLIN};
    ssize_t part;
    while (bytes > 0 && poll(&there, 1, 300) == 1 && (part = recv(fd, some, sizeof some, 0)) > 0) bytes -= part;
}

// Both ends of a connection talk until it has come wherever it goes.
static void talks(int ends[2]) {
    char bytes[100] = "";
    for (int turn = 0; turn < 400; turn++)
        if (send(ends[turn % 2], bytes, 100, 0) != 100 || recv(ends[1 - turn % 2], bytes, 100, MSG_WAITALL) != 100) die("talk");
}

static void call_of(bool is_unix, enum way way, enum when when, bool has_talked) {
    struct call call = {.way = way, .when = when, .epoll = -1};
    int ends[2] = {-1, -1}, filling[200], filled = 0;
    bool listens = way == ACCEPT || way == ACCEPT4 || way == CONNECT;
    if (listens) {
        ends[0] = listens_at(path, is_unix, &call.at, &call.len);
        if (way == CONNECT && is_unix) {
            // A connect waits for room in the queue of the listener.
            if (listen(ends[0], 0)) die("listen");
            filling[filled++] = connects_to(&call.at, call.len);
        }
        call.fd = way == CONNECT ? checked("socket", socket(call.at.ss_family, SOCK_STREAM, 0)) : ends[0];
    } else {
        connected(path, is_unix, true, ends);
        if (has_talked) talks(ends);
        call.fd = ends[0];
    }
    if (way == EPOLL || way == EPOLL_PWAIT) {
        struct epoll_event event = {.events = EPOLLIN};
        call.epoll = epoll_create1(0);
        epoll_ctl(call.epoll, EPOLL_CTL_ADD, ends[0], &event);
    }
    if (when == BEFORE && way < RECEIVING && send(ends[1], "data", 4, 0) != 4) die("send");
    if (when == BEFORE && (way == ACCEPT || way == ACCEPT4)) filling[filled++] = connects_to(&call.at, call.len);
    pthread_t thread;
    pthread_create(&thread, NULL, thread_of, &call);
    if (when == BEFORE) {
        while (!call.thread) usleep(1000);
        pthread_cancel(thread);
        call.may_begin = true;
    } else {
        await_asleep(&call.thread, &call.over);
        pthread_cancel(thread);
    }
    if (when == OFF) {
        // The call goes on.
        usleep(30000);
        bool over = call.over;
        if (way < RECEIVING) {
            if (send(ends[1], "data", 4, 0) != 4) die("send");
        } else if (way == CONNECT) {
            close(checked("accept", accept(ends[0], NULL, NULL)));
        } else if (listens) {
            filling[filled++] = connects_to(&call.at, call.len);
        } else {
            drains(ends[1], FULL_BYTES);
        }
        printf("%s", over ? "over too early, " : "");
    }
    void *left;
    pthread_join(thread, &left);
    printf("%s %s %s%s: %s%s", is_unix ? "unix" : "tcp", ways[way], times[when], has_talked ? ", after talk" : "",
           left == PTHREAD_CANCELED ? "cancelled" : "not cancelled", call.cleaned ? ", cleaned up" : "");
    if (when == OFF) printf(", result %s", listens ? name(call.result < 0 ? call.result : 0) : name(call.result));
    if (when == OFF && (way == ACCEPT || way == ACCEPT4) && call.result >= 0) close(call.result);
    // The connection is as before.
    if (listens) {
        if (way != CONNECT && when != OFF) {
            if (filled == 0) filling[filled++] = connects_to(&call.at, call.len);
            int fd = accept(ends[0], NULL, NULL);
            printf(", next accept %s", fd >= 0 ? "works" : name(-errno));
            if (fd >= 0) close(fd);
        }
    } else if (way < RECEIVING) {
        if (when == ASLEEP && send(ends[1], "data", 4, 0) != 4) die("send");
        char bytes[10];
        struct pollfd there = {.fd = ends[0], .events = POLLIN};
        bool is_there = poll(&there, 1, when == OFF && way < POLL ? 0 : LONG_MS) == 1;
        printf(", then %s", !is_there ? "nothing" : outcome(recv(ends[0], bytes, 10, MSG_DONTWAIT)));
    } else {
        if (when == BEFORE) {
            struct pollfd there = {.fd = ends[1], .events = POLLIN};
            printf(", arrived %d", poll(&there, 1, 20));
        } else if (when == ASLEEP) {
            drains(ends[1], FULL_BYTES);
            char byte = 0;
            ssize_t sent = send(ends[0], "x", 1, 0), got = recv(ends[1], &byte, 1, 0);
            printf(", then %zd %zd %c", sent, got, byte);
        }
    }
    printf("\n");
    fflush(stdout);
    for (int n = 0; n < filled; n++) close(filling[n]);
    if (call.epoll >= 0) close(call.epoll);
    if (way == CONNECT) close(call.fd);
    close(ends[0]);
    if (ends[1] >= 0) close(ends[1]);
}

// Sends back what comes, until the end.
static void *echoes(void *argument) {
    char bytes[1000];
    ssize_t part;
    int fd = *(int *)argument;
    while ((part = recv(fd, bytes, sizeof bytes, 0)) > 0)
        if (send(fd, bytes, part, 0) != part) die("echo");
    return NULL;
}

static void *talks_on(void *argument) {
    char bytes[1000] = "";
    int fd = *(int *)argument;
    for (;;) {
        struct pollfd there = {.fd = fd, .events = POLLIN};
        if (send(fd, bytes, 100, 0) != 100) die("send");
        if (next() % 2) poll(&there, 1, -1);
        if (recv(fd, bytes, sizeof bytes, 0) <= 0) die("recv");
        if (next() % 8 == 0) usleep(1);
    }
    return NULL;
}

// One thread after the other talks on a connection until it is cancelled.
static void at_any_moment(bool is_unix, int rounds) {
    int ends[2], cancelled = 0;
    connected(path, is_unix, true, ends);
    pthread_t peer, thread;
    pthread_create(&peer, NULL, echoes, &ends[1]);
    for (int round = 0; round < rounds; round++) {
        void *left;
        pthread_create(&thread, NULL, talks_on, &ends[0]);
        spins(next() % 300);
        if (next() % 4 == 0) usleep(200);
        pthread_cancel(thread);
        pthread_join(thread, &left);
        cancelled += left == PTHREAD_CANCELED;
    }
    shutdown(ends[0], SHUT_WR);
    pthread_join(peer, NULL);
    printf("%s: %d\n", is_unix ? "unix" : "tcp", cancelled);
    close(ends[0]);
    close(ends[1]);
}

static void calls_of(int number, const char *own) {
    bool is_unix = number % 2, has_talked = number / 2;
    path = own;
    for (int way = 0; way < WAYS; way++)
        for (int when = 0; when < TIMES; when++) {
            // Over TCP a connect waits for no accept.
            if (way == CONNECT && (!is_unix || has_talked || when == BEFORE)) continue;
            call_of(is_unix, way, when, has_talked);
        }
}

int main(int argc, char **argv) {
    if (argc == 3) {
        path = argv[1];
        for (int is_unix = 0; is_unix < 2; is_unix++) at_any_moment(is_unix, atoi(argv[2]));
        return 0;
    }
    if (argc != 2) return 2;
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    return side_by_side(argv[1], 4, calls_of);
}
