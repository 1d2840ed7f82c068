/*
 * Programs that do something else before they make a socket: `begins_late server PORT` sends back what comes, and
 * `begins_late WAY ADDRESS PORT` makes a connection after `WAY`, which is a name of `ways`, and says what became of it. `none` makes none,
 * and says whether the library proper is in the process.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <limits.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

enum { BYTES = 20000, ROUNDS = 3 };
static struct sockaddr_in place;
static char *self, **given;

static void must(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(3);
    }
}

static int make(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0 && connect(fd, (struct sockaddr *)&place, sizeof place) == 0, "connect");
    return fd;
}

/* Sends bytes and receives them again. */
static int is_echoed(int fd) {
    char *out = malloc(BYTES), *in = malloc(BYTES);
    int is_right = out && in;
    for (int round = 0; is_right && round < ROUNDS; round++) {
        for (int n = 0; n < BYTES; n++)
            out[n] = (char)(n * 7 + round + fd);
        for (ssize_t sent = 0, got = 0, moved; is_right && got < BYTES; got += moved) {
            moved = sent < BYTES ? send(fd, out + sent, (size_t)(BYTES - sent), MSG_NOSIGNAL) : 0;
            is_right = moved >= 0;
            sent += moved;
            moved = recv(fd, in + got, (size_t)(BYTES - got), 0);
            is_right &= moved > 0;
        }
        is_right = is_right && !memcmp(in, out, BYTES);
    }
    free(out);
    free(in);
    return is_right;
}

static int talk(void) {
    int fd = make(), is_right = is_echoed(fd);
    close(fd);
    return is_right;
}

static int is_loaded(void) {
    char line[512];
    FILE *map = fopen("/proc/self/maps", "r");
    int found = 0;
    while (map && fgets(line, sizeof line, map))
        found |= strstr(line, "libpd_preload_core") != NULL;
    fclose(map);
    return found;
}

static int status_of(pid_t child) {
    int status = -1;
    must(waitpid(child, &status, 0) == child, "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

static int none(void) {
    printf("loaded %d\n", is_loaded());
    return 1;
}

static int after_errno(void) {
    errno = 77;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int kept = errno == 77;
    close(fd);
    return kept && talk();
}

static volatile sig_atomic_t handled;
static void handle(int signal) { handled += signal; }

static int after_handler(void) {
    struct sigaction action = {.sa_handler = handle};
    must(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
    signal(SIGPIPE, SIG_IGN);
    int fd = make();
    raise(SIGUSR1);
    return is_echoed(fd) && handled == SIGUSR1;
}

/* The first socket is a handler's, which has interrupted malloc. */
static volatile int made_by_handler;
static void connect_in_handler(int signal) {
    (void)signal;
    if (!made_by_handler)
        made_by_handler = make();
}

static int in_handler(void) {
    signal(SIGALRM, connect_in_handler);
    ualarm(2000, 0);
    for (void *block = NULL; !made_by_handler;) {
        block = malloc(3000 + (size_t)rand() % 100000);
        free(block);
    }
    return is_echoed(made_by_handler);
}

static int after_vfork(void) {
    pid_t child = vfork();
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        _exit(fd < 0 || close(fd));
    }
    return status_of(child) == 0 && talk();
}

static int in_forked(void) {
    pid_t child = fork();
    if (child == 0)
        _exit(!talk());
    return status_of(child) == 0 && talk();
}

static void *talk_in_thread(void *unused) { return talk() ? &place : unused; }
static int talk_in_c11_thread(void *unused) { return unused ? 0 : talk(); }

static int in_small_thread(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    void *result = NULL;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN);
    must(pthread_create(&thread, &attributes, talk_in_thread, NULL) == 0, "pthread_create");
    pthread_join(thread, &result);
    return result != NULL;
}

static int in_c11_thread(void) {
    thrd_t thread;
    int result = 0;
    must(thrd_create(&thread, talk_in_c11_thread, NULL) == thrd_success, "thrd_create");
    thrd_join(thread, &result);
    return result;
}

static int in_many_threads(void) {
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    int right = 1;
    for (int n = 0; n < THREADS; n++)
        must(pthread_create(&threads[n], NULL, talk_in_thread, NULL) == 0, "pthread_create");
    for (int n = 0; n < THREADS; n++) {
        void *result = NULL;
        pthread_join(threads[n], &result);
        right &= result != NULL;
    }
    return right;
}

static int after_clearenv(void) {
    clearenv();
    return talk();
}

static int after_overwriting(void) {
    for (char **each = environ; *each; each++)
        memset(*each, 'x', strlen(*each));
    return talk();
}

static int after_chroot(void) {
    char folder[] = "begins_late.XXXXXX";
    must(mkdtemp(folder) != NULL && chroot(folder) == 0 && chdir("/") == 0, "chroot");
    return talk();
}

static int after_user(void) {
    must(setresuid(65534, 65534, 65534) == 0, "setresuid");
    return talk();
}

/* A filter ends a process that opens or maps anything. */
static int after_filter(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0, "seccomp");
    return talk();
}

static int after_memory_limit(void) {
    struct rlimit limit = {64 << 20, 64 << 20};
    must(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
    return talk();
}

static int after_no_descriptors(void) {
    int last = -1, fd;
    while ((fd = open("/dev/null", O_RDONLY)) >= 0)
        last = fd;
    close(last);
    return talk();
}

static int connection_at_fork = -1;
static void send_in_child(void) {
    if (connection_at_fork >= 0)
        must(send(connection_at_fork, "child", 5, 0) == 5, "send in a fork's handler");
}

/* A handler of forks that the program has before the library proper is there. */
static int after_atfork(void) {
    char answer[6] = "";
    pthread_atfork(NULL, NULL, send_in_child);
    connection_at_fork = make();
    int right = is_echoed(connection_at_fork);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    right &= status_of(child) == 0 && recv(connection_at_fork, answer, 5, MSG_WAITALL) == 5;
    return right && !strcmp(answer, "child") && is_echoed(connection_at_fork);
}

static int after_epoll(void) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = 5}, found;
    int instance = epoll_create1(0), fd = make(), pipes[2];
    must(pipe(pipes) == 0 && epoll_ctl(instance, EPOLL_CTL_ADD, pipes[0], &event) == 0, "epoll_ctl");
    event.data.fd = 6;
    must(epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event) == 0 && send(fd, "a", 1, 0) == 1, "epoll_ctl");
    char byte;
    int right = epoll_wait(instance, &found, 1, -1) == 1 && found.data.fd == 6 && recv(fd, &byte, 1, 0) == 1;
    must(write(pipes[1], "b", 1) == 1, "write");
    return right && epoll_wait(instance, &found, 1, -1) == 1 && found.data.fd == 5 && is_echoed(fd);
}

/* A child that has had no socket but one of a pair gets a connection in a message. */
static int by_message(void) {
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    pid_t child = fork();
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = "";
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    if (child == 0) {
        int fd;
        must(recvmsg(pair[1], &message, 0) == 1, "recvmsg");
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        _exit(!is_echoed(fd));
    }
    int fd = make(), right = is_echoed(fd);
    part->cmsg_level = SOL_SOCKET, part->cmsg_type = SCM_RIGHTS, part->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(part), &fd, sizeof fd);
    must(sendmsg(pair[0], &message, 0) == 1, "sendmsg");
    return status_of(child) == 0 && right && is_echoed(fd);
}

/* Another image gets a connection by a high number, or a low one. */
static int by_image_at(int number) {
    int fd = make(), right = is_echoed(fd);
    must(dup2(fd, number) == number && close(fd) == 0, "dup2");
    pid_t child = fork();
    if (child == 0) {
        char text[16];
        snprintf(text, sizeof text, "%d", number);
        execl(self, self, "given", text, given[3], NULL);
        _exit(127);
    }
    return status_of(child) == 0 && right && is_echoed(number);
}

static int by_image_high(void) { return by_image_at(700); }
static int by_image_low(void) { return by_image_at(7); }

/* The library's name is relative, and the program goes elsewhere. */
static int after_chdir(void) {
    const char *library = getenv("LD_PRELOAD"), *name = library ? strrchr(library, '/') : NULL;
    char relative[PATH_MAX], folder[PATH_MAX];
    if (!name || library[0] != '/')
        return chdir("/") == 0 && talk();
    snprintf(relative, sizeof relative, ".%s", name);
    snprintf(folder, sizeof folder, "%.*s", (int)(name - library), library);
    must(chdir(folder) == 0 && setenv("LD_PRELOAD", relative, 1) == 0, "chdir");
    execv(self, given);
    return 0;
}

static const struct {
    const char *name;
    int (*make)(void);
} ways[] = {
    {"none", none},
    {"errno", after_errno},
    {"handler", after_handler},
    {"in_handler", in_handler},
    {"vfork", after_vfork},
    {"forked", in_forked},
    {"small_thread", in_small_thread},
    {"c11_thread", in_c11_thread},
    {"many_threads", in_many_threads},
    {"chdir", after_chdir},
    {"clearenv", after_clearenv},
    {"overwritten", after_overwriting},
    {"chroot", after_chroot},
    {"user", after_user},
    {"filter", after_filter},
    {"memory", after_memory_limit},
    {"descriptors", after_no_descriptors},
    {"atfork", after_atfork},
    {"epoll", after_epoll},
    {"message", by_message},
    {"image_high", by_image_high},
    {"image_low", by_image_low},
};

static void *echo(void *connection) {
    int fd = (int)(long)connection;
    char bytes[8192];
    for (ssize_t got; (got = recv(fd, bytes, sizeof bytes, 0)) > 0;)
        for (ssize_t sent = 0, more; sent < got; sent += more)
            if ((more = send(fd, bytes + sent, (size_t)(got - sent), MSG_NOSIGNAL)) <= 0)
                return (void *)(long)close(fd);
    return (void *)(long)close(fd);
}

static void serve(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    must(bind(listener, (struct sockaddr *)&place, sizeof place) == 0 && listen(listener, 64) == 0, "listen");
    puts("ready");
    fflush(stdout);
    for (pthread_t thread;;) {
        int fd = accept(listener, NULL, NULL);
        must(fd >= 0 && pthread_create(&thread, NULL, echo, (void *)(long)fd) == 0, "accept");
        pthread_detach(thread);
    }
}

int main(int count, char **arguments) {
    must(count >= 3, "begins_late server PORT | WAY ADDRESS PORT");
    self = arguments[0], given = arguments;
    int is_server = !strcmp(arguments[1], "server");
    place.sin_family = AF_INET;
    place.sin_port = htons((uint16_t)atoi(arguments[is_server ? 2 : 3]));
    if (is_server)
        serve();
    if (!strcmp(arguments[1], "given"))
        return !is_echoed(atoi(arguments[2]));
    must(inet_pton(AF_INET, arguments[2], &place.sin_addr) == 1, "an address");
    for (size_t n = 0; n < sizeof ways / sizeof *ways; n++)
        if (!strcmp(arguments[1], ways[n].name)) {
            int is_right = ways[n].make();
            printf("%s %s\n", ways[n].name, is_right ? "right" : "wrong");
            return !is_right;
        }
    must(0, "a way");
}
