// Another image goes on with an epoll instance and its members. `resumes server PORT` prints "ready" and echoes; `resumes client IP
// PORT` prints lines for each case, which do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include "serve.h"

#define LONG_MS 5000
#define BRIEF_MS 50
#define ARGUMENTS 12

static struct sockaddr_in where;
static const char *self = "/proc/self/exe";

static int made(int flags) {
    int fd = checked("socket", socket(AF_INET, SOCK_STREAM | flags, 0));
    checked("connect", connect(fd, (void *)&where, sizeof where));
    return fd;
}

static int instance(void) { return checked("epoll_create1", epoll_create1(0)); }

static const char *control(int epoll, int operation, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(epoll, operation, fd, &event) < 0 ? strerrorname_np(errno) : "ok";
}

static void add(int epoll, int fd, uint32_t events, uint64_t data) {
    if (strcmp(control(epoll, EPOLL_CTL_ADD, fd, events, data), "ok")) die("add");
}

// An echo is under way.
static void ask(int fd) {
    if (write(fd, "x", 1) != 1) die("write");
}

static void take(int fd) {
    char byte;
    if (read(fd, &byte, 1) != 1) die("read");
}

// Events and data of each, in order of data.
static const char *waited(int epoll, int timeout) {
    static char text[512];
    struct epoll_event events[8];
    int count = epoll_wait(epoll, events, 8, timeout), at = 0;
    if (count < 0) return strerrorname_np(errno);
    at += sprintf(text, "%d", count);
    for (uint64_t data = 0; data < 100; data++)
        for (int i = 0; i < count; i++)
            if (events[i].data.u64 == data) at += sprintf(text + at, " %d:%x", (int)data, events[i].events);
    for (int i = 0; i < count; i++)
        if (events[i].data.u64 >= 100) at += sprintf(text + at, " STRANGE %llx", (unsigned long long)events[i].data.u64);
    return text;
}

static const char *soon(int epoll) { return waited(epoll, LONG_MS); }
static const char *now(int epoll) { return waited(epoll, BRIEF_MS); }

static const char *polled(int fd, int timeout) {
    static char text[64];
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    int count = poll(&poll_fd, 1, timeout);
    snprintf(text, sizeof text, "%d %x", count, poll_fd.revents);
    return text;
}

// Arguments of an image: its case, where the server is, and numbers up to -1.
static char **image_of(const char *name, ...) {
    static char texts[ARGUMENTS][32], *arguments[ARGUMENTS + 4];
    int count = 0;
    va_list numbers;
    arguments[count++] = (char *)self, arguments[count++] = (char *)name;
    inet_ntop(AF_INET, &where.sin_addr, texts[0], sizeof texts[0]);
    snprintf(texts[1], sizeof texts[1], "%d", ntohs(where.sin_port));
    arguments[count++] = texts[0], arguments[count++] = texts[1];
    va_start(numbers, name);
    for (int number, at = 2; (number = va_arg(numbers, int)) >= 0; at++) {
        snprintf(texts[at], sizeof texts[at], "%d", number);
        arguments[count++] = texts[at];
    }
    va_end(numbers);
    arguments[count] = NULL;
    return arguments;
}

static void ended(const char *name, pid_t child) {
    int status;
    checked("wait", waitpid(child, &status, 0));
    SAY("%s: ended with %x", name, status);
}

// A process that goes on as another image, which the kernel refuses at first.
static void replaced(void) {
    int epoll = instance(), other = dup(epoll), level = made(0), edge = made(0), once = made(0), unread = made(0);
    int closed = made(SOCK_CLOEXEC), removed = made(0), moved = made(0);
    add(epoll, level, EPOLLIN, 1);
    add(epoll, edge, EPOLLIN | EPOLLET, 2);
    add(epoll, once, EPOLLIN | EPOLLONESHOT, 3);
    add(epoll, unread, EPOLLIN, 4);
    add(epoll, closed, EPOLLIN, 5);
    add(epoll, removed, EPOLLIN, 6);
    add(epoll, moved, EPOLLIN, 7);
    ask(once);
    SAY("before: %s", soon(epoll));
    SAY("before: %s", control(epoll, EPOLL_CTL_DEL, removed, 0, 0));
    SAY("before: %s", control(epoll, EPOLL_CTL_MOD, moved, EPOLLOUT | EPOLLONESHOT, 8));
    SAY("before: %s", soon(epoll));
    execv("/nonexistent/program", image_of("resumed", -1));
    SAY("no such image: %s", strerrorname_np(errno));
    SAY("no such image: %s", now(epoll));
    ask(unread);
    SAY("no such image: %s", soon(epoll));
    fcntl(other, F_SETFD, FD_CLOEXEC);
    execv(self, image_of("resumed", epoll, level, edge, once, unread, removed, moved, -1));
    die("exec");
}

static void resumed(char **numbers) {
    int at = 0, epoll = atoi(numbers[at++]), level = atoi(numbers[at++]), edge = atoi(numbers[at++]);
    int once = atoi(numbers[at++]), unread = atoi(numbers[at++]), removed = atoi(numbers[at++]), moved = atoi(numbers[at]);
    SAY("again %s", control(epoll, EPOLL_CTL_ADD, level, EPOLLIN, 1));
    SAY("removed before %s", control(epoll, EPOLL_CTL_DEL, removed, 0, 0));
    SAY("polled: %s", polled(epoll, LONG_MS));
    SAY("unread: %s", soon(epoll));
    take(unread);
    SAY("taken: %s", now(epoll));
    ask(level);
    SAY("level: %s", soon(epoll));
    SAY("level: %s", soon(epoll));
    take(level);
    ask(edge);
    SAY("edge: %s", soon(epoll));
    SAY("edge: %s", now(epoll));
    SAY("once: %s", control(epoll, EPOLL_CTL_MOD, once, EPOLLIN | EPOLLONESHOT, 9));
    SAY("once: %s", soon(epoll));
    SAY("moved: %s", control(epoll, EPOLL_CTL_MOD, moved, EPOLLIN, 10));
    ask(moved);
    SAY("moved: %s", soon(epoll));
    SAY("moved: %s", control(epoll, EPOLL_CTL_DEL, moved, 0, 0));
    SAY("left: %s", now(epoll));
    close(level), shutdown(unread, SHUT_RDWR);
    SAY("shut: %s", soon(epoll));
    // Once more, now that it was an image before.
    close(unread);
    if (numbers[7] == NULL) execv(self, image_of("resumed again", epoll, edge, -1));
}

static void resumed_again(char **numbers) {
    int epoll = atoi(numbers[0]), edge = atoi(numbers[1]);
    take(edge), ask(edge);
    SAY("twice: %s", soon(epoll));
}

// Registered before it was connected, and a listener.
static void unconnected(void) {
    int epoll = instance(), fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0)), any = listening(0, 0);
    add(epoll, fd, EPOLLIN, 1), add(epoll, any, EPOLLIN, 2);
    execv(self, image_of("connects", epoll, fd, any, -1));
    die("exec");
}

static void connects(char **numbers) {
    int epoll = atoi(numbers[0]), fd = atoi(numbers[1]), any = atoi(numbers[2]);
    checked("connect", connect(fd, (void *)&where, sizeof where));
    ask(fd);
    SAY("connected: %s", soon(epoll));
    take(fd);
    SAY("connected, taken: %s", now(epoll));
    struct sockaddr_in own;
    socklen_t len = sizeof own;
    checked("getsockname", getsockname(any, (void *)&own, &len));
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int peer = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
    // Connections that ask for this are always the kernel's.
    setsockopt(peer, SOL_SOCKET, SO_TIMESTAMPING, &(int){1}, sizeof(int));
    checked("connect", connect(peer, (void *)&own, sizeof own));
    SAY("a listener: %s", soon(epoll));
}

// A one-shot registration that has reported stays silent in a child, and in its next image, until it is changed.
static void reported(void) {
    int epoll = instance(), once = made(0), status;
    add(epoll, once, EPOLLIN | EPOLLONESHOT, 1);
    ask(once);
    SAY("reported: %s", soon(epoll));
    for (int execs = 0; execs < 2; execs++) {
        pid_t child = fork();
        if (child == 0 && execs) execv(self, image_of("silent", epoll, once, -1)), _exit(9);
        if (child == 0) {
            SAY("reported, a child: %s", now(epoll));
            SAY("reported, a child: %s", control(epoll, EPOLL_CTL_MOD, once, EPOLLIN | EPOLLONESHOT, 3));
            SAY("reported, a child: %s", soon(epoll));
            SAY("reported, a child: %s", now(epoll));
            fflush(stdout), _exit(0);
        }
        checked("wait", waitpid(child, &status, 0));
        SAY("reported, a child: ended with %x", status);
    }
    SAY("reported, the parent: %s", now(epoll));
    close(once), close(epoll);
}

static void silent(char **numbers) {
    int epoll = atoi(numbers[0]), once = atoi(numbers[1]);
    SAY("silent: %s", now(epoll));
    SAY("silent: %s", control(epoll, EPOLL_CTL_MOD, once, EPOLLIN | EPOLLONESHOT, 4));
    SAY("silent: %s", soon(epoll));
}

static void in_own_process(const char *name, void (*run)(void)) {
    pid_t child = fork();
    if (child == 0) {
        run();
        exit(0);
    }
    ended(name, child);
}

extern char **environ;

// A second process has the instance, in turns with the first.
static void shared(const char *way) {
    int epoll = instance(), fd = made(0), number = epoll;
    add(epoll, fd, EPOLLIN, 1);
    ask(fd);
    SAY("%s: %s", way, soon(epoll));
    pid_t child = -1;
    char *clean[] = {"HOME=/", NULL}, **before = environ;
    if (!strcmp(way, "spawn, clean")) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, fd, number = 91);
        posix_spawn_file_actions_adddup2(&actions, epoll, 92);
        if (posix_spawn(&child, self, &actions, NULL, image_of("echoes", number, -1), clean)) die("spawn");
    } else if (!strcmp(way, "fork, clean")) {
        if ((child = fork()) == 0) execve(self, image_of("echoes", fd, -1), clean), _exit(9);
    } else if (!strcmp(way, "fork, environ clean")) {
        if ((child = fork()) == 0) environ = clean, execv(self, image_of("echoes", fd, -1)), _exit(9);
    } else if (!strcmp(way, "vfork, clean")) {
        if ((child = vfork()) == 0) {
            dup2(fd, 0);
            execve(self, image_of("echoes", 0, -1), clean);
            _exit(9);
        }
    } else if (!strcmp(way, "spawn")) {
        if (posix_spawn(&child, self, NULL, NULL, image_of("shares", epoll, fd, -1), environ)) die("spawn");
    } else if (!strcmp(way, "fork")) {
        if ((child = fork()) == 0) execv(self, image_of("shares", epoll, fd, -1)), _exit(9);
    } else if ((child = vfork()) == 0) {
        if (!strcmp(way, "vfork, another number")) dup2(epoll, number = 90);
        execv(self, image_of("shares", number, fd, -1));
        _exit(9);
    }
    environ = before;
    ended(way, child);
    ask(fd);
    SAY("%s, after it: %s", way, soon(epoll));
    close(fd), close(epoll);
}

static void shares(char **numbers) {
    int epoll = atoi(numbers[0]), fd = atoi(numbers[1]);
    SAY("shares: %s", soon(epoll));
    take(fd);
    SAY("shares: %s", now(epoll));
    ask(fd);
    SAY("shares: %s", soon(epoll));
    take(fd);
}

// With an environment that the program has made, as of inetd's servers.
static void echoes(char **numbers) {
    int fd = atoi(numbers[0]);
    SAY("echoes: %s", polled(fd, LONG_MS));
    take(fd), ask(fd), take(fd);
}

int main(int count, char **arguments) {
    if (count > 2 && !strcmp(arguments[1], "server")) serve_each(atoi(arguments[2]), echo);
    where = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(arguments[3]))};
    inet_pton(AF_INET, arguments[2], &where.sin_addr);
    const struct {
        const char *name;
        void (*run)(char **);
    } images[] = {{"resumed", resumed}, {"resumed again", resumed_again}, {"connects", connects}, {"shares", shares},
                {"echoes", echoes}, {"silent", silent}};
    for (size_t i = 0; i < sizeof images / sizeof *images; i++)
        if (!strcmp(arguments[1], images[i].name)) return images[i].run(arguments + 4), 0;
    in_own_process("replaced", replaced);
    in_own_process("unconnected", unconnected);
    in_own_process("reported", reported);
    const char *ways[] = {"spawn", "fork", "vfork", "vfork, another number",
                          "spawn, clean", "fork, clean", "fork, environ clean", "vfork, clean"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) shared(ways[i]);
    return 0;
}
