// All events of an epoll instance, with connections as members. `instances server PORT` prints "ready" and echoes;
// `instances client IP PORT [CASE]` prints lines for each case, which do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "serve.h"

#define LONG_MS 5000
#define BRIEF_MS 50

static struct sockaddr_in where;
static const char *self;

static int made(void) {
    int fd = checked("socket", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    checked("connect", connect(fd, (void *)&where, sizeof where));
    return fd;
}

static int instance(void) { return checked("epoll_create1", epoll_create1(EPOLL_CLOEXEC)); }

static int control(int epoll, int operation, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(epoll, operation, fd, &event);
}

static void add(int epoll, int fd, uint64_t data) { checked("add", control(epoll, EPOLL_CTL_ADD, fd, EPOLLIN, data)); }

// An echo is under way.
static void ask(int fd) {
    if (write(fd, "x", 1) != 1) die("write");
}

static void take(int fd) {
    char byte;
    if (read(fd, &byte, 1) != 1) die("read");
}

static void nap(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

// Returns the result of a wait: events and data of each, in order of data.
static const char *waited(int epoll, int timeout) {
    static _Thread_local char text[512];
    struct epoll_event events[8];
    int count = epoll_wait(epoll, events, 8, timeout), at = 0;
    if (count < 0) return strerrorname_np(errno);
    at += sprintf(text, "%d", count);
    for (uint64_t below = 0; below < 1000; below++)
        for (int i = 0; i < count; i++)
            if (events[i].data.u64 == below)
                at += sprintf(text + at, " %llu:%x", (unsigned long long)below, events[i].events);
    for (int i = 0; i < count; i++)
        if (events[i].data.u64 >= 1000)
            at += sprintf(text + at, " STRANGE %llx", (unsigned long long)events[i].data.u64);
    return text;
}

static const char *soon(int epoll) { return waited(epoll, LONG_MS); }
static const char *now(int epoll) { return waited(epoll, BRIEF_MS); }

// Returns the result of a wait once `count` events have come, perhaps one after the other.
static const char *gathered(int epoll, int count) {
    const char *text = soon(epoll);
    for (int i = 0; i < LONG_MS && atoi(text) != count && atoi(text) > 0; i++) nap(1), text = soon(epoll);
    return text;
}

static const char *named(int result) { return result < 0 ? strerrorname_np(errno) : "ok"; }

// Ways to a second number.
static int by_message(int fd, int keep) {
    int pair[2], got = -1;
    char byte = 0, space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    checked("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    checked("sendmsg", sendmsg(pair[0], &message, 0));
    if (!keep) close(fd);
    message.msg_controllen = sizeof space;
    checked("recvmsg", recvmsg(pair[1], &message, 0));
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    close(pair[0]), close(pair[1]);
    return got;
}

// A system call past every library.
static int raw_dup(int fd) {
    long number = SYS_dup;
    asm volatile("syscall" : "+a"(number) : "D"((long)fd) : "rcx", "r11", "memory");
    return number;
}

static int another(const char *way, int fd) {
    if (!strcmp(way, "dup")) return dup(fd);
    if (!strcmp(way, "dup2")) return dup2(fd, fd == 200 ? 202 : 200);
    if (!strcmp(way, "dup3")) return dup3(fd, fd == 201 ? 203 : 201, O_CLOEXEC);
    if (!strcmp(way, "F_DUPFD")) return fcntl(fd, F_DUPFD, 100);
    if (!strcmp(way, "F_DUPFD_CLOEXEC")) return fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (!strcmp(way, "unseen")) return raw_dup(fd);
    return by_message(fd, 1);
}

static const char *ways[] = {"dup", "dup2", "dup3", "F_DUPFD", "F_DUPFD_CLOEXEC", "unseen", "message"};

static void numbers(const char *way) {
    // The second number before the first member; each is added by one and waited for by the other.
    int epoll = instance(), second = checked(way, another(way, epoll)), first_fd = made(), second_fd = made();
    add(epoll, first_fd, 1);
    ask(first_fd);
    SAY("%s before, waiting by the other: %s", way, soon(second));
    add(second, second_fd, 2);
    take(first_fd), ask(second_fd);
    SAY("%s before, waiting by the first: %s", way, soon(epoll));
    SAY("%s: again %s", way, named(control(second, EPOLL_CTL_ADD, first_fd, EPOLLIN, 3)));
    SAY("%s: changed %s", way, named(control(second, EPOLL_CTL_MOD, first_fd, EPOLLIN | EPOLLOUT, 4)));
    SAY("%s: %s", way, soon(epoll));
    SAY("%s: removed %s", way, named(control(second, EPOLL_CTL_DEL, first_fd, 0, 0)));
    SAY("%s: removed %s", way, named(control(epoll, EPOLL_CTL_DEL, first_fd, 0, 0)));
    SAY("%s: changed %s", way, named(control(epoll, EPOLL_CTL_MOD, first_fd, EPOLLIN, 0)));
    SAY("%s: %s", way, soon(epoll));
    // A third one after that, and the others closed.
    int third = checked(way, another(way, second));
    close(epoll);
    SAY("%s after, one closed: %s", way, soon(third));
    close(second);
    take(second_fd);
    SAY("%s after, two closed: %s", way, now(third));
    ask(second_fd);
    SAY("%s after, two closed: %s", way, soon(third));
    close(third);
    // No state is left where the numbers are used again.
    int fresh = instance();
    SAY("%s, new one: %s", way, now(fresh));
    add(fresh, first_fd, 5);
    ask(first_fd);
    SAY("%s, new one: %s", way, soon(fresh));
    close(fresh), close(first_fd), close(second_fd);
}

static void fresh_sockets(void) {
    // Registered before they are connected, by a number that is closed then.
    int epoll = instance(), second = dup(epoll), fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
    add(epoll, fd, 1);
    SAY("not connected: %s", now(second));
    close(epoll);
    checked("connect", connect(fd, (void *)&where, sizeof where));
    SAY("connected: %s", now(second));
    ask(fd);
    SAY("connected, told: %s", soon(second));
    SAY("connected, removed: %s", named(control(second, EPOLL_CTL_DEL, fd, 0, 0)));
    SAY("connected, removed: %s", now(second));
    close(fd), close(second);
}

static sem_t awake;

static void *sleeper(void *epoll) {
    void *told = strdup(waited((int)(intptr_t)epoll, LONG_MS));
    sem_post(&awake);
    return told;
}

static void threads(const char *name, int unseen) {
    // Both threads sleep since before there is a member, by different numbers. A one-shot event wakes one of them.
    int epoll = instance(), second = unseen ? raw_dup(epoll) : dup(epoll);
    pthread_t threads[2];
    sem_init(&awake, 0, 0);
    pthread_create(&threads[0], NULL, sleeper, (void *)(intptr_t)epoll);
    pthread_create(&threads[1], NULL, sleeper, (void *)(intptr_t)second);
    nap(BRIEF_MS);
    int fds[2] = {made(), made()};
    for (int i = 0; i < 2; i++) checked("add", control(epoll, EPOLL_CTL_ADD, fds[i], EPOLLIN | EPOLLET, 1));
    for (int i = 0; i < 2; i++) {
        nap(BRIEF_MS);
        ask(fds[i]);
        // The second one comes when only one is left: a wait that begins late would take both.
        sem_wait(&awake);
    }
    for (int i = 0; i < 2; i++) {
        void *told;
        pthread_join(threads[i], &told);
        SAY("%s: %s", name, (char *)told);
    }
    close(epoll), close(second), close(fds[0]), close(fds[1]);
}

static void timeouts(void) {
    int epoll = instance(), fd = made();
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    SAY("nothing, empty: %s", now(epoll));
    add(epoll, fd, 1);
    SAY("nothing, a member: %s", now(epoll));
    control(epoll, EPOLL_CTL_DEL, fd, 0, 0);
    SAY("nothing, none again: %s", now(epoll));
    clock_gettime(CLOCK_MONOTONIC, &end);
    long ms = (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000;
    SAY("in time: %d", ms >= 3 * BRIEF_MS - 3 && ms < LONG_MS);
    close(fd), close(epoll);
}

static void ended(const char *name, pid_t child) {
    int status;
    checked("wait", waitpid(child, &status, 0));
    SAY("%s: ended with %x", name, status);
}

static void forks(void) {
    // A child goes on with its inherited instance.
    int epoll = instance(), second = dup(epoll), fd = made();
    add(epoll, fd, 1);
    pid_t child = fork();
    if (child == 0) {
        ask(fd);
        SAY("child: %s", soon(second));
        take(fd);
        SAY("child, taken: %s", now(epoll));
        SAY("child: changed %s", named(control(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT, 2)));
        SAY("child: %s", soon(epoll));
        int own = made();
        add(second, own, 3);
        ask(own);
        control(epoll, EPOLL_CTL_DEL, fd, 0, 0);
        SAY("child, its own: %s", soon(epoll));
        close(own);
        SAY("child, closed: %s", now(epoll));
        exit(0);
    }
    ended("child", child);
    close(fd), close(epoll), close(second);

    // A child that only adds and removes its own members; the parent waits for its own at the same time.
    epoll = instance(), fd = made();
    add(epoll, fd, 1);
    child = fork();
    if (child == 0) {
        int own = made();
        add(epoll, own, 1);
        nap(2 * BRIEF_MS);
        control(epoll, EPOLL_CTL_DEL, own, 0, 0);
        close(own);
        exit(0);
    }
    SAY("parent beside a child: %s", now(epoll));
    ask(fd);
    SAY("parent beside a child: %s", soon(epoll));
    ended("child", child);
    SAY("parent after its child: %s", soon(epoll));
    close(fd), close(epoll);

    // An instance without members that the child gets one for, and the parent does.
    epoll = instance();
    child = fork();
    fd = made();
    add(epoll, fd, child == 0 ? 1 : 2);
    if (child == 0) {
        ask(fd);
        nap(BRIEF_MS);
        char text[64];
        snprintf(text, sizeof text, "%.3s", soon(epoll));
        SAY("a child's: %s", text);
        exit(0);
    }
    ended("child", child);
    close(fd), close(epoll);
}

static char **program_of(const char *way, int epoll) {
    static char number[16], ip[32], port[16], *arguments[8];
    snprintf(number, sizeof number, "%d", epoll);
    snprintf(port, sizeof port, "%d", ntohs(where.sin_port));
    inet_ntop(AF_INET, &where.sin_addr, ip, sizeof ip);
    char *all[] = {(char *)self, (char *)way, ip, port, number, NULL};
    memcpy(arguments, all, sizeof all);
    return arguments;
}

// Another image, with an instance that it was started with.
static void image(int epoll) {
    SAY("image: %s", now(epoll));
    int fd = made();
    add(epoll, fd, 7);
    ask(fd);
    SAY("image, its own: %s", soon(epoll));
}

static void images(void) {
    int epoll = checked("epoll_create1", epoll_create1(0)), fd = made();
    add(epoll, fd, 1);
    control(epoll, EPOLL_CTL_DEL, fd, 0, 0);
    pid_t child = vfork();
    if (child == 0) {
        dup2(epoll, 77);
        close(epoll);
        execv(self, program_of("image", 77));
        _exit(9);
    }
    ended("vfork", child);
    add(epoll, fd, 2);
    ask(fd);
    SAY("after vfork: %s", soon(epoll));
    child = fork();
    if (child == 0) {
        control(epoll, EPOLL_CTL_DEL, fd, 0, 0);
        execv(self, program_of("image", epoll));
        _exit(9);
    }
    ended("fork and exec", child);
    close(fd), close(epoll);
}

static void messages(void) {
    // In a message while it has no number.
    int epoll = instance(), fd = made();
    add(epoll, fd, 1);
    epoll = by_message(epoll, 0);
    ask(fd);
    SAY("in a message, closed: %s", soon(epoll));
    close(epoll);
    int fresh = instance();
    SAY("in a message, new one: %s", now(fresh));
    close(fresh), close(fd);

    // To another process, which uses it alone.
    int pair[2];
    checked("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pid_t child = fork();
    char byte = 0, space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (child == 0) {
        checked("recvmsg", recvmsg(pair[1], &message, 0));
        memcpy(&epoll, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof epoll);
        SAY("another process: %s", now(epoll));
        fd = made();
        add(epoll, fd, 3);
        ask(fd);
        SAY("another process: %s", soon(epoll));
        exit(0);
    }
    epoll = instance(), fd = made();
    add(epoll, fd, 2);
    control(epoll, EPOLL_CTL_DEL, fd, 0, 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof epoll);
    memcpy(CMSG_DATA(header), &epoll, sizeof epoll);
    checked("sendmsg", sendmsg(pair[0], &message, 0));
    ended("another process", child);
    add(epoll, fd, 4);
    ask(fd);
    SAY("sent to another process: %s", soon(epoll));
    close(fd), close(epoll), close(pair[0]), close(pair[1]);
}

static void closing(void) {
    // Numbers closed in ranges, and used again.
    int epoll = instance(), second = fcntl(epoll, F_DUPFD, 300), fd = made();
    add(epoll, fd, 1);
    ask(fd);
    checked("close_range", close_range(300, 310, 0));
    SAY("a range closed: %s, %s", soon(epoll), named(epoll_wait(second, &(struct epoll_event){0}, 1, 0)));
    second = dup2(epoll, 300);
    checked("close_range", close_range(epoll, epoll, 0));
    SAY("the first closed: %s", soon(second));
    checked("close_range", close_range(300, 310, CLOSE_RANGE_CLOEXEC));
    SAY("to be closed later: %s", soon(second));
    // Another thing by the number.
    checked("dup2", dup2(STDOUT_FILENO, 300));
    SAY("no instance: %s", now(300));
    close(300);
    epoll = instance();
    SAY("a new instance: %s", now(epoll));
    // An instance contains the other.
    second = instance();
    add(epoll, fd, 2);
    checked("dup2", dup2(second, epoll));
    SAY("replaced: %s", now(epoll));
    add(second, fd, 3);
    SAY("replaced: %s", soon(epoll));
    close(epoll), close(second), close(fd);
}

static void members(void) {
    // A member leaves with its last number only, and may be there by several.
    int epoll = instance(), fd = made(), other = dup(fd);
    add(epoll, fd, 1);
    ask(fd);
    SAY("member: %s", soon(epoll));
    close(fd);
    SAY("a number of it closed: %s", soon(epoll));
    close(other);
    SAY("all closed: %s", now(epoll));
    fd = made(), other = dup(fd);
    add(epoll, fd, 2), add(epoll, other, 3);
    ask(fd);
    SAY("by two numbers: %s", gathered(epoll, 2));
    SAY("one changed: %s", named(control(epoll, EPOLL_CTL_MOD, other, EPOLLIN | EPOLLOUT, 4)));
    SAY("by two numbers: %s", soon(epoll));
    SAY("one removed: %s", named(control(epoll, EPOLL_CTL_DEL, fd, 0, 0)));
    SAY("by one number: %s", soon(epoll));
    shutdown(fd, SHUT_RDWR), close(fd), close(other);
    SAY("closed: %s", now(epoll));
    // No events were requested for the present file of the number.
    fd = made();
    ask(fd);
    SAY("another by the number: %s", now(epoll));
    SAY("another by the number: %s", named(control(epoll, EPOLL_CTL_MOD, fd, EPOLLIN, 5)));
    close(fd), close(epoll);
}

static const char *polled(int fd, int timeout) {
    static _Thread_local char text[64];
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    int count = poll(&poll_fd, 1, timeout);
    snprintf(text, sizeof text, "%d %x", count, poll_fd.revents);
    return text;
}

static void *poller(void *fd) { return strdup(polled((int)(intptr_t)fd, LONG_MS)); }

// A wait on an outer instance may report an inner event that another thread has taken: then it is repeated.
static const char *told_rightly(int outer, int inner) {
    for (int i = 0; i < 10 && epoll_wait(outer, &(struct epoll_event){0}, 1, BRIEF_MS) > 0; i++)
        if (epoll_wait(inner, &(struct epoll_event){0}, 1, 0) > 0) return "something";
    return "nothing";
}

static void nests(void) {
    for (int before = 0; before < 2; before++) {
        const char *name = before ? "nested before" : "nested after";
        int inner = instance(), outer = instance(), fd = made(), number = dup(inner);
        if (!before) add(inner, fd, 1);
        add(outer, number, 2);
        if (before) add(inner, fd, 1);
        SAY("%s: %s", name, told_rightly(outer, inner));
        ask(fd);
        SAY("%s: %s", name, soon(outer));
        SAY("%s: inside %s", name, soon(inner));
        SAY("%s: polled %s", name, polled(inner, LONG_MS));
        take(fd);
        SAY("%s: inside, taken %s", name, now(inner));
        SAY("%s: taken %s", name, told_rightly(outer, inner));
        SAY("%s: polled %s", name, polled(inner, BRIEF_MS));
        ask(fd);
        fd_set set;
        FD_ZERO(&set);
        FD_SET(inner, &set);
        int count = select(inner + 1, &set, NULL, NULL, &(struct timeval){LONG_MS / 1000, 0});
        SAY("%s: selected %d %d", name, count, FD_ISSET(inner, &set) != 0);
        struct pollfd both[2] = {{.fd = outer, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
        SAY("%s: both %d", name, ppoll(both, 2, &(struct timespec){LONG_MS / 1000, 0}, NULL));
        close(fd), close(inner), close(number), close(outer);
    }
    // A thread sleeps in a poll when the first member is added.
    int epoll = instance();
    pthread_t thread;
    void *told;
    pthread_create(&thread, NULL, poller, (void *)(intptr_t)epoll);
    nap(BRIEF_MS);
    int fd = made();
    add(epoll, fd, 1);
    ask(fd);
    pthread_join(thread, &told);
    SAY("a poll that slept: %s, %s", (char *)told, soon(epoll));
    close(fd), close(epoll);
}

static int handled_fd = -1, handled_other;

static void handler(int number) {
    (void)number;
    int saved = errno;
    if (handled_fd < 0) return;
    if (write(handled_fd, "h", 1) != 1) die("write in a handler");
    close(handled_other);
    errno = saved;
}

static void handlers(void) {
    int epoll = instance(), fd = made(), other = made();
    handled_other = dup(other);
    close(other);
    add(epoll, fd, 1), add(epoll, handled_other, 2);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    // Again and again, for the first may come before the wait.
    const struct timeval brief = {0, BRIEF_MS * 1000}, never = {0};
    setitimer(ITIMER_REAL, &(struct itimerval){brief, brief}, NULL);
    SAY("a handler runs: %s", soon(epoll));
    setitimer(ITIMER_REAL, &(struct itimerval){never, never}, NULL);
    // A handled signal is unblocked in the wait only.
    sigset_t alarms, before;
    sigemptyset(&alarms), sigaddset(&alarms, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarms, &before);
    handled_fd = fd;
    setitimer(ITIMER_REAL, &(struct itimerval){never, brief}, NULL);
    SAY("a handler writes: %s", named(epoll_pwait(epoll, &(struct epoll_event){0}, 1, LONG_MS, &before)));
    handled_fd = -1;
    sigprocmask(SIG_SETMASK, &before, NULL);
    SAY("what it wrote: %s", soon(epoll));
    take(fd);
    SAY("what it closed: %s", now(epoll));
    close(fd), close(epoll);
}

static void unhooked(void) {
    // By the C library's own means to make any call.
    int epoll = syscall(SYS_epoll_create1, 0), fd = made();
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 6}, got;
    checked("epoll_ctl", syscall(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, fd, &event));
    ask(fd);
    int count = syscall(SYS_epoll_pwait, epoll, &got, 1, LONG_MS, NULL, 8);
    SAY("syscall: %d %d %llu", epoll >= 0, count, (unsigned long long)got.data.u64);
    close(epoll), close(fd);
}

// Uses up all numbers but `spare`.
static void exhaust(int spare) {
    struct rlimit limits;
    getrlimit(RLIMIT_NOFILE, &limits);
    if (limits.rlim_cur > 64) limits.rlim_cur = 64;
    if (setrlimit(RLIMIT_NOFILE, &limits)) die("setrlimit");
    int first = dup(STDOUT_FILENO);
    while (dup(STDOUT_FILENO) >= 0) continue;
    SAY("no more: %s", strerrorname_np(errno));
    for (; spare > 0; spare--) close(first++);
}

static void echoed(const char *name, int epoll, int fd) {
    SAY("%s: nothing %s", name, now(epoll));
    ask(fd);
    SAY("%s: %s", name, soon(epoll));
    take(fd);
    ask(fd);
    SAY("%s: polled %s", name, polled(fd, LONG_MS));
    take(fd);
    SAY("%s: polled %s", name, polled(fd, BRIEF_MS));
}

static void *of_a_thread(void *fd) {
    ask((int)(intptr_t)fd);
    void *told = strdup(polled((int)(intptr_t)fd, LONG_MS));
    take((int)(intptr_t)fd);
    return told;
}

// All numbers are used up.
static void exhausted(int before, int spare) {
    int epoll = instance(), outer = instance(), fds[4] = {-1, -1, -1, -1}, listener = -1;
    add(outer, epoll, 9);
    for (int i = 0; i < before; i++) fds[i] = made();
    struct sockaddr_in any = {.sin_family = AF_INET};
    socklen_t len = sizeof any;
    listener = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
    if (bind(listener, (void *)&any, len) || listen(listener, 8) || getsockname(listener, (void *)&any, &len)) die("listen");
    exhaust(spare);
    for (int i = before; i < before + spare; i++) fds[i] = made();
    SAY("one more: %s", named(socket(AF_INET, SOCK_STREAM, 0)));
    SAY("an instance: %s", named(epoll_create1(0)));
    for (int i = 0; i < before + spare; i++) {
        char name[16];
        snprintf(name, sizeof name, "connection %d", i);
        add(epoll, fds[i], i);
        echoed(name, epoll, fds[i]);
    }
    pthread_t thread;
    void *told;
    checked("thread", -pthread_create(&thread, NULL, of_a_thread, (void *)(intptr_t)fds[0]));
    pthread_join(thread, &told);
    SAY("a thread: %s", (char *)told);
    for (int i = 0; i < before + spare; i++) ask(fds[i]);
    SAY("all: %s", gathered(epoll, before + spare));
    SAY("removed: %s", named(control(epoll, EPOLL_CTL_DEL, fds[0], 0, 0)));
    // Without a number for it, an accept fails, and succeeds later.
    close(fds[0]);
    fds[0] = checked("socket", socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    // Connections that ask for this are always the kernel's.
    setsockopt(fds[0], SOL_SOCKET, SO_TIMESTAMPING, &(int){1}, sizeof(int));
    if (connect(fds[0], (void *)&any, len) && errno != EINPROGRESS) die("connect");
    SAY("a listener: %s", polled(listener, LONG_MS));
    SAY("accepted: %s", named(accept(listener, NULL, NULL)));
    close(outer);
    int accepted = checked("accept", accept(listener, NULL, NULL));
    if (write(fds[0], "y", 1) != 1) die("write");
    take(accepted);
    SAY("accepted");
}

// In a process of its own; with `limit` as another image, which has never had more numbers.
static void exhausts(int before, int spare, int limit) {
    pid_t child = fork();
    if (child == 0 && !limit) {
        exhausted(before, spare);
        exit(0);
    }
    if (child == 0) {
        if (setrlimit(RLIMIT_NOFILE, &(struct rlimit){limit, limit})) die("setrlimit");
        execv(self, program_of("exhausted", before * 10 + spare));
        _exit(9);
    }
    ended("exhausted", child);
}

static void all_exhausted(void) {
    // From the first connection on; after some; without a number left over for anything.
    for (int limit = 0; limit <= 64; limit += 64) {
        exhausts(0, 2, limit);
        exhausts(1, 1, limit);
        exhausts(2, 2, limit);
        exhausts(3, 0, limit);
    }
}

static void all_numbers(void) {
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) numbers(ways[i]);
}

static void all_threads(void) {
    threads("sleepers", 0);
    threads("sleepers unseen", 1);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"numbers", all_numbers}, {"fresh", fresh_sockets}, {"threads", all_threads}, {"timeouts", timeouts},
    {"forks", forks},         {"images", images},       {"messages", messages},   {"closing", closing},
    {"members", members},     {"nests", nests},         {"handlers", handlers},   {"unhooked", unhooked},
    {"exhausted", all_exhausted},
};

int main(int count, char **arguments) {
    self = "/proc/self/exe";
    if (count > 2 && !strcmp(arguments[1], "server")) serve_each(atoi(arguments[2]), echo);
    where = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(arguments[3]))};
    inet_pton(AF_INET, arguments[2], &where.sin_addr);
    if (!strcmp(arguments[1], "image")) {
        image(atoi(arguments[4]));
        return 0;
    }
    if (!strcmp(arguments[1], "exhausted")) {
        exhausted(atoi(arguments[4]) / 10, atoi(arguments[4]) % 10);
        return 0;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (count < 5 || !strcmp(arguments[4], cases[i].name)) cases[i].run();
    return 0;
}
