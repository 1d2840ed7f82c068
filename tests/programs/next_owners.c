// A connection whose descriptor goes to another process, in every possible way. `next_owners server PORT PATH` prints "ready" and echoes, on a
// TCP port and on a file. `next_owners client IP PORT PATH` prints a line for each kind of connection and way, which do not depend on the
// transport of the bytes. A client that is stuck names the case, and ends.
#define _GNU_SOURCE
#include <linux/sched.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include "serve.h"

#define STUCK_S 8
// Numbers of the next_owner's end of the talk with its parent, and of the connection where it has no standard number.
#define TALK 60
#define OTHER 61
#define PART_MAX 60000
// Bytes after which a connection takes the direct path.
#define MUCH (320 << 10)

enum kind { TCP, FILE_, PAIR, KINDS };
static const char *const kinds[] = {"TCP", "file", "pair"};

enum way { FORK, RAW_FORK, BARE_FORK, CLONE, NAMESPACES, EXEC, VFORK, SPAWN, CLEAN, MESSAGE, WAYS };
static const char *const ways[] = {"fork", "fork by syscall", "_Fork", "clone", "namespaces of its own",
                                   "exec", "vfork", "spawn", "exec, clean", "message"};

// Actions on the connection, in order; capitals: by the parent. W, R: send and receive a part. O: set options. U: set an option that only
// the kernel has. S: shut down sending. E: receive to the end. X: close.
static const char *const plans[] = {
    "Xwrowrse",         // A server that inetd starts.
    "WrWrSe",           // One process sends, the other receives.
    "wRwRsE",
    "WRwrWRwrxWRSE",    // In turns, and the next_owner ends first.
    "xWRSE",
    "oWRosE",           // The next_owner has options and the end only.
    "WoxRSE",           // Bytes are under way when the next_owner ends...
    "wXrse",            // ...and when the parent is done.
    "WwRrWwrRSe",       // Both have bytes under way.
    "OwrOWRSeEx",
    // The connection goes on in the kernel, in both processes, and with bytes under way. Another image only has those of TCP.
    "wruwrWRwrsE",
    "WUrwRwrWRSe",
    "uWrWXrse",
};

static struct sockaddr_in where;
static struct sockaddr_un file = {.sun_family = AF_UNIX};
static char text[200];

// Positions in the streams of a connection: each byte follows from its place.
struct place {
    uint64_t sent, received;
};

// The parent's request to its next_owner, and the answer.
struct turn {
    int step;
    int ended;
    struct place at;
};

static unsigned char byte_at(uint64_t place) { return place * 167 + (place >> 8) * 13 + (place >> 16); }

static size_t part_of(uint64_t place) {
    uint64_t mixed = (place + 77) * 6364136223846793005ull;
    return mixed >> 60 ? 1 + (mixed >> 33) % 300 : 1 + (mixed >> 33) % PART_MAX;
}

static void fails(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", text, what, strerror(errno));
    printf("%s: %s\n", text, what);
    fflush(stdout);
    _exit(1);
}

static void stuck(int signal) {
    (void)signal;
    dprintf(2, "%s: stuck in process %d\n", text, (int)getpid());
    _exit(1);
}

static void send_some(int fd, size_t len, struct place *at) {
    static unsigned char bytes[PART_MAX];
    for (size_t part; len > 0; len -= part) {
        part = len < sizeof bytes ? len : sizeof bytes;
        for (size_t i = 0; i < part; i++) bytes[i] = byte_at(at->sent + i);
        for (size_t done = 0; done < part;) {
            ssize_t more = write(fd, bytes + done, part - done);
            if (more <= 0) fails("write");
            done += more;
        }
        at->sent += part;
    }
}

// Receives the bytes that the echo owes, or to the end.
static void receive_owed(int fd, struct place *at, int to_end) {
    static unsigned char bytes[PART_MAX];
    while (to_end || at->received < at->sent) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        if (at->received % 3 == 0 && poll(&one, 1, -1) != 1) fails("poll");
        ssize_t part = read(fd, bytes, sizeof bytes);
        if (part < 0) fails("read");
        if (part == 0 && !to_end) fails("an early end");
        if (part == 0) break;
        for (ssize_t i = 0; i < part; i++)
            if (bytes[i] != byte_at(at->received + i)) fails("another byte");
        at->received += part;
    }
    if (at->received != at->sent) fails("bytes are lost");
}

static void options(int fd) {
    int one = 1, value = 0, tcp = 0;
    socklen_t len = sizeof value;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &tcp, &len)) fails("SO_DOMAIN");
    if (setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one)) fails("SO_KEEPALIVE");
    len = sizeof value;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len) || value) fails("SO_ERROR");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one)) fails("SO_RCVLOWAT");
    struct linger none = {0};
    if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none)) fails("SO_LINGER");
    if (tcp != AF_UNIX && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one)) fails("TCP_NODELAY");
    struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
    if (poll(&poll_fd, 1, 0) != 1) fails("not writable");
}

// Carries out a step. Returns 1 when the connection is done with.
static int do_step(int step, int read_fd, int write_fd, struct place *at) {
    switch (step) {
    case 'w': return send_some(write_fd, part_of(at->sent), at), 0;
    case 'r': return receive_owed(read_fd, at, 0), 0;
    case 'o': return options(read_fd), 0;
    case 'u': return setsockopt(read_fd, SOL_SOCKET, SO_OOBINLINE, &(int){1}, sizeof(int)) ? fails("SO_OOBINLINE") : (void)0, 0;
    case 's': return shutdown(write_fd, SHUT_WR) ? fails("shutdown") : (void)0, 0;
    case 'e': return receive_owed(read_fd, at, 1), 0;
    default: close(read_fd); return write_fd == read_fd ? 1 : (close(write_fd), 1);
    }
}

// Carries out the parent's requests.
static void inherit(int read_fd, int write_fd, int talk) {
    struct turn turn;
    signal(SIGALRM, stuck);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(talk, &turn, sizeof turn) == sizeof turn) {
        snprintf(text, sizeof text, "next_owner at %c", turn.step);
        alarm(STUCK_S);
        turn.ended = do_step(turn.step, read_fd, write_fd, &turn.at);
        if (write(talk, &turn, sizeof turn) != sizeof turn) fails("talk");
        if (turn.ended) break;
    }
    fflush(stdout);
    _exit(0);
}

// Moves the connection to its numbers, and carries out the parent's requests.
static void inherit_as(int fd, int standard, int talk) {
    if (!standard) inherit(fd, fd, talk);
    dup2(fd, 0), dup2(fd, 1), close(fd);
    inherit(0, 1, talk);
}

struct start {
    int fd, standard, talk, listener;
};

static int inherit_by_clone(void *argument) {
    struct start *start = argument;
    close(start->listener);
    inherit_as(start->fd, start->standard, start->talk);
    return 0;
}

static int receive_number(int from) {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(from, &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) fails("recvmsg");
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static void send_number(int to, int fd) {
    char byte = 'n', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(to, &message, 0) != 1) fails("sendmsg");
}

static char *image[] = {"next_owners", "next_owner", "0", "0", NULL};
static char *clean[] = {"HOME=/", NULL};
extern char **environ;

// A process that has the connection, and its number.
static pid_t next_owner(enum way way, int fd, int standard, int talk, int parents_talk) {
    static char stack[1 << 20] __attribute__((aligned(16)));
    struct start start = {fd, standard, talk, parents_talk};
    pid_t child = -1;
    image[3] = standard ? "s" : "o";
    switch (way) {
    case FORK: child = fork(); break;
    case RAW_FORK: child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); break;
    case BARE_FORK: child = _Fork(); break;
    case CLONE: return clone(inherit_by_clone, stack + sizeof stack, SIGCHLD, &start);
    case NAMESPACES:
        child = syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | SIGCHLD, 0, 0, 0, 0);
        // Without the right to.
        if (child < 0 && errno == EPERM) child = fork();
        break;
    case EXEC:
    case CLEAN:
        if ((child = fork()) == 0) {
            dup2(talk, TALK);
            if (standard) dup2(fd, 0), dup2(fd, 1), close(fd);
            else dup2(fd, OTHER);
            execve("/proc/self/exe", image, way == CLEAN ? clean : environ);
            _exit(9);
        }
        return child;
    case VFORK:
        if ((child = vfork()) == 0) {
            dup2(talk, TALK);
            if (standard) dup2(fd, 0), dup2(fd, 1);
            else dup2(fd, OTHER);
            execv("/proc/self/exe", image);
            _exit(9);
        }
        return child;
    case SPAWN: {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, talk, TALK);
        posix_spawn_file_actions_adddup2(&actions, fd, standard ? 0 : OTHER);
        if (standard) posix_spawn_file_actions_adddup2(&actions, fd, 1);
        if (posix_spawn(&child, "/proc/self/exe", &actions, NULL, image, environ)) fails("posix_spawn");
        posix_spawn_file_actions_destroy(&actions);
        return child;
    }
    case MESSAGE:
        if ((child = fork()) == 0) {
            close(fd), close(parents_talk);
            inherit_as(receive_number(talk), standard, talk);
        }
        send_number(parents_talk, fd);
        return child;
    default: break;
    }
    if (child == 0) {
        close(parents_talk);
        inherit_as(fd, standard, talk);
    }
    return child;
}

static int made(enum kind kind, pid_t *peer) {
    int fds[2];
    *peer = 0;
    if (kind == PAIR) {
        checked("socketpair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
        if ((*peer = fork()) == 0) {
            close(fds[0]);
            echo((void *)(intptr_t)fds[1]);
            _exit(0);
        }
        close(fds[1]);
        return fds[0];
    }
    int fd = checked("socket", socket(kind == TCP ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (kind == TCP) checked("connect", connect(fd, (void *)&where, sizeof where));
    else checked("connect", connect(fd, (void *)&file, sizeof file));
    if (kind == TCP) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}

static void run_case(enum kind kind, enum way way, const char *plan, int standard, int much) {
    int talk[2];
    pid_t peer, child;
    struct place at = {0, 0};
    alarm(STUCK_S);
    snprintf(text, sizeof text, "%s, %s, %s, %d, %d", kinds[kind], ways[way], plan, standard, much);
    int fd = made(kind, &peer);
    send_some(fd, 100, &at), receive_owed(fd, &at, 0);
    for (int left = much; left > 0; left -= PART_MAX) send_some(fd, PART_MAX, &at), receive_owed(fd, &at, 0);
    checked("socketpair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk));
    child = next_owner(way, fd, standard, talk[1], talk[0]);
    if (child < 0) fails("no process");
    close(talk[1]);
    for (const char *step = plan; *step; step++) {
        snprintf(text, sizeof text, "%s, %s, %s at %ld, %d, %d", kinds[kind], ways[way], plan, (long)(step - plan), standard, much);
        if (*step < 'a') {
            do_step(*step | 0x20, fd, fd, &at);
            continue;
        }
        struct turn turn = {.step = *step, .at = at};
        if (write(talk[0], &turn, sizeof turn) != sizeof turn || read(talk[0], &turn, sizeof turn) != sizeof turn) fails("the next_owner has ended");
        at = turn.at;
    }
    if (!strchr(plan, 'X')) close(fd);
    close(talk[0]);
    int status = -1;
    if (waitpid(child, &status, 0) != child || status) fails("the next_owner's status");
    if (peer && waitpid(peer, &status, 0) != peer) fails("the peer's status");
    alarm(0);
}

static void *serve_file(void *listener) {
    for (;;) {
        pthread_t thread;
        int fd = checked("accept", accept((int)(intptr_t)listener, NULL, NULL));
        pthread_create(&thread, NULL, echo, (void *)(intptr_t)fd);
        pthread_detach(thread);
    }
    return NULL;
}

static void *echo_at_once(void *argument) {
    setsockopt((int)(intptr_t)argument, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return echo(argument);
}

int main(int count, char **arguments) {
    signal(SIGPIPE, SIG_IGN), signal(SIGALRM, stuck);
    if (count > 3 && !strcmp(arguments[1], "next_owner")) {
        if (*arguments[3] == 's') inherit(0, 1, TALK);
        inherit(OTHER, OTHER, TALK);
    }
    if (count < 4) return 2;
    strncpy(file.sun_path, arguments[count - 1], sizeof file.sun_path - 1);
    if (!strcmp(arguments[1], "server")) {
        pthread_t thread;
        int fd = checked("socket", socket(AF_UNIX, SOCK_STREAM, 0));
        unlink(file.sun_path);
        if (bind(fd, (void *)&file, sizeof file) || listen(fd, 128)) die("listen");
        pthread_create(&thread, NULL, serve_file, (void *)(intptr_t)fd);
        serve_each(atoi(arguments[2]), echo_at_once);
    }
    where = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(arguments[3]))};
    inet_pton(AF_INET, arguments[2], &where.sin_addr);
    int number = 0;
    for (int kind = 0; kind < KINDS; kind++)
        for (int way = 0; way < WAYS; way++) {
            // Network namespaces take long to make, and to end.
            size_t count = way != NAMESPACES ? sizeof plans / sizeof *plans : kind == TCP ? 6 : 1;
            for (size_t plan = 0; plan < count; plan++, number++) {
                if (kind != TCP && way >= EXEC && strpbrk(plans[plan], "uU")) continue;
                for (int standard = 0; standard < 2; standard++)
                    run_case(kind, way, plans[plan], standard, kind != PAIR && (number + standard) % 4 == 0 ? MUCH : 0);
            }
            SAY("%s, %s: all bytes", kinds[kind], ways[way]);
        }
    return 0;
}
