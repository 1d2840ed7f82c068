// Servers that give up rights before they serve, as OpenSSH and vsftpd do. `sandbox server PORT` prints "ready", `sandbox client IP PORT`
// prints lines that do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "serve.h"

enum { BULK = 600 << 10, TALK = 60 };

// Rights that a worker gives up, in this order.
enum { ROOT = 1, USER = 2, NUMBERS = 4, CALLS = 8, BY_SYSCALL = 16, NO_FORK = 32 };
static const int kinds[] = {0, ROOT | USER, NUMBERS, CALLS, CALLS | BY_SYSCALL, ROOT | USER | NUMBERS | CALLS,
                            ROOT | USER | NO_FORK, CALLS | NO_FORK, ROOT | USER | NUMBERS | CALLS | NO_FORK};

#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void filter(int by_syscall) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read), ALLOW(write), ALLOW(close), ALLOW(ppoll), ALLOW(futex), ALLOW(mmap), ALLOW(munmap), ALLOW(mremap),
        ALLOW(brk), ALLOW(madvise), ALLOW(exit), ALLOW(exit_group), ALLOW(clock_gettime), ALLOW(getpid),
        ALLOW(rt_sigprocmask), ALLOW(rt_sigreturn), ALLOW(getrandom),
#ifdef __NR_poll
        ALLOW(poll),
#endif
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    checked("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (by_syscall) checked("seccomp", syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
    else checked("prctl", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

// Writes all; false at an end.
static int put(int fd, const char *bytes, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t part = write(fd, bytes + done, len - done);
        if (part < 0) return 0;
        done += part;
    }
    return 1;
}

static int get(int fd, char *bytes, size_t len) {
    for (size_t done = 0; done < len;) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        if (done % 2 && poll(&one, 1, 10000) != 1) return 0;
        ssize_t part = read(fd, bytes + done, len - done);
        if (part <= 0) return 0;
        done += part;
    }
    return 1;
}

// Talks, receives bulk and sends it back.
static int serves(int fd) {
    static char bulk[BULK];
    char line[64];
    for (int i = 0; i < TALK; i++)
        if (!get(fd, line, sizeof line) || !put(fd, line, sizeof line)) return 0;
    return get(fd, bulk, sizeof bulk) && put(fd, bulk, sizeof bulk);
}

static int narrowed(int fd, int kind) {
    if (kind & ROOT) checked("chroot", chroot("/tmp") | chdir("/"));
    if (kind & USER) checked("setresuid", setresgid(65534, 65534, 65534) | setresuid(65534, 65534, 65534));
    if (kind & NUMBERS) checked("setrlimit", setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, 0}));
    if (kind & CALLS) filter(kind & BY_SYSCALL);
    return serves(fd);
}

// Makes a process for the connection, and another one with fewer rights for its first bytes.
static void attend(int fd) {
    char which;
    if (!get(fd, &which, 1)) _exit(1);
    int kind = kinds[(int)which];
    if (kind & NO_FORK) _exit(narrowed(fd, kind) ? 0 : 2);
    pid_t worker = fork();
    if (worker == 0) _exit(narrowed(fd, kind) ? 0 : 2);
    int status = -1;
    waitpid(worker, &status, 0);
    char text[64] = {0};
    snprintf(text, sizeof text, "the worker ended with %d, signal %d", WEXITSTATUS(status), WTERMSIG(status));
    if (!put(fd, text, sizeof text)) _exit(3);
    _exit(serves(fd) ? 0 : 4);
}

static void server(int port) {
    int listener = listening(port, 0);
    signal(SIGCHLD, SIG_IGN);
    SAY("ready");
    for (;;) {
        int fd = checked("accept", accept(listener, NULL, NULL));
        if (fork() == 0) {
            signal(SIGCHLD, SIG_DFL);
            close(listener);
            attend(fd);
        }
        close(fd);
    }
}

// Checks that all bytes come back.
static const char *served(int fd, int first, int pause) {
    static char bulk[BULK], back[BULK];
    char line[64] = {0}, other[64];
    for (int i = first; i < TALK; i++) {
        snprintf(line, sizeof line, "line %d", i);
        if (!put(fd, line, sizeof line) || !get(fd, other, sizeof other)) return "the talk ends";
        if (memcmp(line, other, sizeof line)) return "the talk differs";
    }
    if (pause) usleep(5000);
    for (int i = 0; i < BULK; i++) bulk[i] = i * 2654435761u >> 13;
    if (!put(fd, bulk, sizeof bulk) || !get(fd, back, sizeof back)) return "the bulk ends";
    return memcmp(bulk, back, sizeof bulk) ? "the bulk differs" : "all came back";
}

int main(int count, char **arguments) {
    if (count >= 3 && !strcmp(arguments[1], "server")) server(atoi(arguments[2]));
    if (count < 4) return 2;
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[3]))};
    inet_pton(AF_INET, arguments[2], &where.sin_addr);
    signal(SIGPIPE, SIG_IGN);
    for (int which = 0; which < (int)(sizeof kinds / sizeof *kinds); which++)
        for (int early = 0; early < 2; early++) {
            int fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
            checked("connect", connect(fd, (void *)&where, sizeof where));
            char kind = which, line[64] = "line 0";
            put(fd, &kind, 1);
            // Bytes for the worker may arrive before it gives up any rights.
            if (early) put(fd, line, sizeof line);
            else usleep(10000);
            if (early && !get(fd, line, sizeof line)) SAY("kind %d: no first line", kinds[which]);
            SAY("kind %d, %s: %s", kinds[which], early ? "early" : "late", served(fd, early, which % 2));
            if (!(kinds[which] & NO_FORK)) {
                char text[64];
                SAY("%s", get(fd, text, sizeof text) ? text : "nothing of its parent");
                SAY("by the parent: %s", served(fd, 0, 0));
            }
            char end;
            SAY("then %zd", read(fd, &end, 1));
            close(fd);
        }
}
