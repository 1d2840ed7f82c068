// A program that has used up its memory or its descriptors: `limits KIND STEP`. KIND: memory (`RLIMIT_AS`), locked (`RLIMIT_MEMLOCK`,
// with all memory locked that is mapped later), soft or hard (`RLIMIT_NOFILE`). STEP: the step before which the limit is set. Both ends
// are in this process. Prints the result of each call, which does not depend on the transport of the bytes.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *kind;
static int at, step;
static char bytes[100000];

static long result(const char *what, long value) {
    char text[100];
    int len = snprintf(text, sizeof text, "%s %s\n", what, value < 0 ? strerrorname_np(errno) : "done");
    if (write(1, text, len) != len) _exit(3);
    return value;
}

static void limit(int resource, rlim_t soft, int hard) {
    struct rlimit limit;
    getrlimit(resource, &limit);
    limit.rlim_cur = soft == RLIM_INFINITY ? limit.rlim_max : soft;
    if (hard) limit.rlim_max = limit.rlim_cur;
    setrlimit(resource, &limit);
}

static void *volatile kept;

// Locked memory has no limit for who has the capability.
static void lock_memory(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct rights[2];
    if (syscall(SYS_capget, &header, rights)) _exit(3);
    rights[0].effective &= ~(1u << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &header, rights)) _exit(3);
    limit(RLIMIT_MEMLOCK, 64 << 10, 0);
    result("mlockall", mlockall(MCL_FUTURE));
    if (mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) _exit(3);
}

static void use_up(void) {
    if (!strcmp(kind, "locked")) return lock_memory();
    if (strcmp(kind, "memory")) {
        int next = dup(0);
        close(next);
        limit(RLIMIT_NOFILE, next, !strcmp(kind, "hard"));
        return;
    }
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1) _exit(3);
    fclose(file);
    limit(RLIMIT_AS, pages * sysconf(_SC_PAGESIZE), 0);
    while ((kept = malloc(1000))) {}
    while ((kept = malloc(16))) {}
}

// Raises the limit, to repeat a call that failed for lack of a number.
static void give_back(void) { limit(RLIMIT_NOFILE, RLIM_INFINITY, 0); }

static void next(void) {
    if (step++ == at) use_up();
}

static int tcp(int flags) {
    int fd = result("socket", socket(AF_INET, SOCK_STREAM | flags, 0));
    if (fd >= 0) return fd;
    give_back();
    return socket(AF_INET, SOCK_STREAM | flags, 0);
}

static int accepted(int listener) {
    int fd = result("accept", accept(listener, NULL, NULL));
    if (fd >= 0) return fd;
    give_back();
    return result("accept", accept(listener, NULL, NULL));
}

static void wait_for(int fd) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    result("poll", poll(&one, 1, 5000));
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    kind = argv[1], at = atoi(argv[2]);
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    next();
    int listener = tcp(0);
    if (listener < 0) return 0;
    if (bind(listener, (void *)&address, len) || listen(listener, 16) || getsockname(listener, (void *)&address, &len)) return 3;
    next();
    int made = tcp(0);
    if (made < 0) return 0;
    next();
    result("connect", connect(made, (void *)&address, len));
    next();
    int taken = accepted(listener);
    if (taken < 0) return 0;
    next();
    result("send", send(made, bytes, 50, 0));
    next();
    wait_for(taken);
    // Bytes on their way to a process without a free number or address space for a ring wait there.
    if ((at <= 5 && !strcmp(kind, "hard")) || (at == 5 && !strcmp(kind, "memory"))) return 0;
    next();
    result("recv", recv(taken, bytes, 50, MSG_WAITALL));
    next();
    int epoll = result("epoll_create1", epoll_create1(0));
    if (epoll < 0) {
        give_back();
        epoll = epoll_create1(0);
    }
    if (epoll < 0) return 0;
    next();
    struct epoll_event event = {.events = EPOLLIN};
    result("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, taken, &event));
    next();
    for (int round = 0; round < 200; round++) {
        if (send(made, bytes, 1000, 0) != 1000) result("send", -1);
        if (epoll_wait(epoll, &event, 1, 5000) != 1) result("epoll_wait", -1);
        if (recv(taken, bytes, 1000, MSG_WAITALL) != 1000) result("recv", -1);
    }
    next();
    result("send", send(made, bytes, sizeof bytes, 0));
    result("recv", recv(taken, bytes, sizeof bytes, MSG_WAITALL));
    next();
    if (strcmp(kind, "hard")) {
        pid_t child = fork();
        if (child == 0) {
            result("send", send(made, bytes, 10, 0));
            _exit(0);
        }
        int status = 0;
        if (child > 0) waitpid(child, &status, 0);
        result("fork", child > 0 && status == 0 ? 0 : -1);
        result("recv", recv(taken, bytes, 10, MSG_WAITALL));
    }
    next();
    shutdown(made, SHUT_WR);
    result("recv", recv(taken, bytes, 10, 0));
    wait_for(taken);
    close(made), close(taken), close(epoll);
    next();
    // Of numbers that are free again the library may have one for a moment: the driver sends regions when it has them.
    if (!strcmp(kind, "hard") && at < 13) return 0;
    for (int count = 0; count < 8; count++) {
        int ends[2] = {tcp(SOCK_NONBLOCK), -1};
        connect(ends[0], (void *)&address, len);
        ends[1] = accepted(listener);
        if (ends[0] < 0 || ends[1] < 0) return 0;
        result("send", send(ends[1], bytes, 100, 0));
        wait_for(ends[0]);
        result("recv", recv(ends[0], bytes, 100, 0));
        if (count % 2) close(ends[0]), close(ends[1]);
    }
    return 0;
}
