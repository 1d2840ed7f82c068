// Descriptors that one thread closes, or gives to another file, while another one waits for them: `waits_beside PATH`. Both ends are in this
// process. Prints lines that do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include "asleep.h"
#include "both_ends.h"
#include "side_by_side.h"
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>

// Of a wait that nothing ends.
#define TIME_MS 400
#define LONG_MS 5000
#define TRIES 5

static const char *path;

enum way { POLLS, SELECTS, POLLS_TWO, EPOLLS, WAYS };
static const char *ways[] = {"poll", "select", "poll of two", "epoll"};

struct wait {
    // Of the thread, once it is about to wait.
    atomic_int thread;
    struct timespec begin;
    atomic_bool over;
    enum way way;
    bool early;
    int fd, other, epoll;
    char result[200];
};

// Milliseconds since a time.
static long since(const struct timespec *begin) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - begin->tv_sec) * 1000 + (now.tv_nsec - begin->tv_nsec) / 1000000;
}

static void *waits(void *argument) {
    struct wait *wait = argument;
    struct pollfd two[2] = {{.fd = wait->fd, .events = POLLIN | POLLRDHUP}, {.fd = wait->other, .events = POLLIN}};
    struct timeval time = {.tv_usec = TIME_MS * 1000};
    struct epoll_event event = {0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(wait->fd, &set);
    int found = -1;
    clock_gettime(CLOCK_MONOTONIC, &wait->begin);
    wait->thread = syscall(SYS_gettid);
    switch (wait->way) {
    case POLLS: found = poll(two, 1, TIME_MS); break;
    case POLLS_TWO: found = poll(two, 2, TIME_MS); break;
    case SELECTS: found = select(wait->fd + 1, &set, NULL, NULL, &time); break;
    default: found = epoll_wait(wait->epoll, &event, 1, TIME_MS);
    }
    int error = found < 0 ? errno : 0, len = snprintf(wait->result, sizeof wait->result, "%d %d", found, error);
    char *rest = wait->result + len;
    size_t room = sizeof wait->result - len;
    switch (wait->way) {
    case POLLS: snprintf(rest, room, " events %x", two[0].revents); break;
    case POLLS_TWO: snprintf(rest, room, " events %x %x", two[0].revents, two[1].revents); break;
    case SELECTS: snprintf(rest, room, " set %d", found > 0 && FD_ISSET(wait->fd, &set)); break;
    default: if (found > 0) snprintf(rest, room, " events %x of %u", event.events, event.data.u32);
    }
    wait->early = since(&wait->begin) < TIME_MS - 1;
    wait->over = true;
    return NULL;
}

// Begins a wait in a thread of its own. Returns when it has slept for a while, in the wait therefore.
static pthread_t begun(struct wait *wait) {
    pthread_t thread;
    pthread_create(&thread, NULL, waits, wait);
    await_asleep(&wait->thread, &wait->over);
    return thread;
}

enum act { CLOSES, IDLE, READY, ACTS };
static const char *acts[] = {"closed", "an idle one's", "a ready one's"};
enum end { TIME, BYTES, ENDS, OTHER, ENDINGS };
static const char *endings[] = {"time", "bytes", "an end", "other bytes"};

// Prints what a wait tells, and what the peer learns. Returns false, and prints nothing, if the wait was over before all was done: on a busy machine,
// or woken without a reason. The last try prints it all the same.
static bool round_of(bool is_unix, enum way way, enum act act, enum end end, bool is_last) {
    int ends[2], idle[2], ready[2], second[2];
    connected(path, is_unix, true, ends);
    connected(path, is_unix, true, idle);
    connected(path, is_unix, true, ready);
    connected(path, is_unix, true, second);
    if (send(ready[1], "there", 5, 0) != 5) die("send");
    struct pollfd there = {.fd = ready[0], .events = POLLIN};
    poll(&there, 1, LONG_MS);
    struct wait wait = {.way = way, .fd = ends[0], .other = second[0], .epoll = -1};
    if (way == EPOLLS) {
        wait.epoll = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u32 = 7};
        epoll_ctl(wait.epoll, EPOLL_CTL_ADD, ends[0], &event);
        event.data.u32 = 8;
        epoll_ctl(wait.epoll, EPOLL_CTL_ADD, second[0], &event);
    }
    pthread_t thread = begun(&wait);
    int fd = way == EPOLLS ? wait.epoll : ends[0];
    switch (act) {
    case CLOSES: close(fd); break;
    case IDLE: dup2(idle[0], fd); break;
    default: dup2(ready[0], fd);
    }
    usleep(10000);
    // The file that the wait holds has not ended.
    struct pollfd peer = {.fd = ends[1], .events = POLLIN | POLLRDHUP};
    int before = poll(&peer, 1, 0);
    // A call whose time is up lets the file go before its thread has said so.
    bool is_over = wait.over || since(&wait.begin) >= TIME_MS - 1;
    short seen = before > 0 ? peer.revents : 0;
    switch (end) {
    case BYTES: send(ends[1], "some", 4, MSG_NOSIGNAL); break;
    case ENDS: shutdown(ends[1], SHUT_WR); break;
    case OTHER: send(second[1], "some", 4, MSG_NOSIGNAL); break;
    default: break;
    }
    pthread_join(thread, NULL);
    // Without a reason a wait may wake, too, and tells then what it would have told in time.
    bool of_own = (end == BYTES || end == ENDS) && (act != IDLE || way == EPOLLS);
    bool wakes = of_own || (end == OTHER && (way == POLLS_TWO || way == EPOLLS));
    bool is_whole = !is_over && (wait.early || !wakes);
    if (is_whole || is_last) {
        printf("%s %s, number %s, then %s: waits %d, peer %d %x", is_unix ? "unix" : "tcp", ways[way], acts[act], endings[end], !is_over, before, seen);
        printf(", %s: %s", !wakes ? "then" : wait.early ? "early" : "in time", wait.result);
        if (way != EPOLLS) {
            // By now the file has ended.
            int after = poll(&peer, 1, LONG_MS);
            char bytes[8];
            printf(", peer %d", after);
            ssize_t got = recv(ends[1], bytes, sizeof bytes, 0);
            printf(" %zd %s", got, got < 0 ? strerrorname_np(errno) : "");
        }
        printf("\n");
        fflush(stdout);
    }
    for (int n = 0; n < 2; n++) close(ends[n]), close(idle[n]), close(ready[n]), close(second[n]);
    if (wait.epoll >= 0) close(wait.epoll);
    return is_whole;
}

static sigjmp_buf back;

static void jumps(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

struct listener {
    bool is_unix;
    int fd;
    struct sockaddr_un file;
    struct sockaddr_in tcp;
    socklen_t len;
};

static struct sockaddr *address_of(struct listener *listener) {
    return listener->is_unix ? (void *)&listener->file : (void *)&listener->tcp;
}

static int connects(struct listener *listener) {
    int fd = checked("socket", socket(address_of(listener)->sa_family, SOCK_STREAM, 0));
    if (connect(fd, address_of(listener), listener->len) == 0) return fd;
    printf(" %s", strerrorname_np(errno));
    close(fd);
    return -1;
}

// Accepts a connection and answers all that comes.
static void *accepts(void *argument) {
    struct listener *listener = argument;
    char bytes[100];
    ssize_t part, all = 0;
    int fd = accept(listener->fd, NULL, NULL);
    if (fd < 0) {
        printf(" accept %s", strerrorname_np(errno));
        return NULL;
    }
    while ((part = read(fd, bytes, sizeof bytes)) > 0) all += part;
    printf(" accepted %zd", all);
    if (write(fd, "bye", 3) != 3) die("write");
    close(fd);
    return NULL;
}

// A listener that another thread closes, replaces or shuts down while one accepts, or that a handler jumps away from. It has accepted `before`.
static void accept_of(bool is_unix, int before, int act) {
    static const char *names[] = {"closed", "replaced", "shut down", "left by a jump"};
    struct listener listener = {.is_unix = is_unix, .len = is_unix ? sizeof listener.file : sizeof listener.tcp};
    listener.file.sun_family = AF_UNIX;
    // An address of its own: another process may get the port once this listener is shut down.
    in_addr_t own = INADDR_LOOPBACK | (in_addr_t)(getpid() & 0xffff) << 8;
    listener.tcp = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(own)};
    strncpy(listener.file.sun_path, path, sizeof listener.file.sun_path - 1);
    unlink(path);
    listener.fd = checked("socket", socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0));
    if (bind(listener.fd, address_of(&listener), listener.len) || listen(listener.fd, 4)) die("listen");
    getsockname(listener.fd, address_of(&listener), &listener.len);
    char bytes[200] = "";
    for (int n = 0; n < before; n++) {
        int from = connects(&listener), to = accept(listener.fd, NULL, NULL);
        if (write(from, bytes, 1) != 1 || read(to, bytes, 1) != 1) die("greeting");
        close(from), close(to);
    }
    printf("%s listener after %d, %s:", is_unix ? "unix" : "tcp", before, names[act]);
    pthread_t thread;
    if (act == 3) {
        signal(SIGALRM, jumps);
        if (!sigsetjmp(back, 1)) {
            ualarm(30000, 0);
            accept(listener.fd, NULL, NULL);
        }
        close(listener.fd);
    } else {
        pthread_create(&thread, NULL, accepts, &listener);
        usleep(40000);
        int null = act == 1 ? open("/dev/null", O_RDWR) : -1;
        if (act == 0) close(listener.fd);
        if (act == 1) dup2(null, listener.fd), close(null);
        if (act == 2) shutdown(listener.fd, SHUT_RDWR), pthread_join(thread, NULL);
        usleep(10000);
    }
    int fd = connects(&listener);
    if (fd >= 0) {
        printf(" sent %zd", send(fd, bytes, 150, 0));
        shutdown(fd, SHUT_WR);
        ssize_t got = recv(fd, bytes, 3, MSG_WAITALL);
        pthread_join(thread, NULL);
        printf(" got %zd %.3s", got, bytes);
        close(fd);
        close(connects(&listener));
    }
    printf("\n");
    fflush(stdout);
    close(listener.fd);
}

static void rounds(bool is_unix, enum way way) {
    for (int act = 0; act < ACTS; act++)
        for (int end = 0; end < ENDINGS; end++)
            for (int left = TRIES; left > 0 && !round_of(is_unix, way, act, end, left == 1);) left--;
}

static void listeners(bool is_unix) {
    for (int before = 0; before < 3; before++)
        for (int act = 0; act < 4; act++) accept_of(is_unix, before, act);
}

// Each way is a process of its own, for most of the time they wait.
static void waits_of(int number, const char *own) {
    path = own;
    if (number / 2 < WAYS) rounds(number % 2, number / 2);
    else listeners(number % 2);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    signal(SIGPIPE, SIG_IGN);
    return side_by_side(argv[1], 2 * (WAYS + 1), waits_of);
}
