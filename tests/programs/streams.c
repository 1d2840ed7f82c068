// Standard streams of the C library whose numbers become connections. `streams server PORT FILE` listens at both and prints "ready"; `streams
// client IP PORT FILE` prints lines that do not depend on the transport of the bytes. `streams image` answers on its standard streams.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <wchar.h>
#include "serve.h"

enum { LINES = 3000 };

// Answers each line of standard input on standard output, by functions of streams alone.
static void answer_lines(void) {
    char line[100];
    while (fgets(line, sizeof line, stdin)) {
        printf("got %s", line);
        if (!strcmp(line, "last\n")) break;
        fflush(stdout);
    }
    puts("end");
    fflush(stdout);
}

static void become(int fd, int number) {
    checked("dup2", dup2(fd, number));
}

// Functions that a program compiled with checks calls, and names that the C library has for its own sake.
extern int __dprintf_chk(int, int, const char *, ...);
extern ssize_t __read(int, void *, size_t), __write(int, const void *, size_t), __send(int, const void *, size_t, int);
extern int __poll(struct pollfd *, nfds_t, int), __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);
extern int __dup2(int, int), __close(int), __fcntl(int, int, ...);

static int print_list(int fd, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int printed = vdprintf(fd, format, list);
    va_end(list);
    return printed;
}

// Prints on a descriptor, without a stream: short and long texts, arguments in all kinds of registers and on the stack.
static void print_on(int fd) {
    char line[100];
    FILE *from = fdopen(dup(fd), "r");
    while (fgets(line, sizeof line, from) && strcmp(line, "last\n")) dprintf(fd, "got %s", line);
    static char text[100000];
    memset(text, 'x', sizeof text - 1);
    for (int at = 60; at < (int)sizeof text; at += 61) text[at] = '\n';
    int lens[] = {
        dprintf(fd, "%d %s %.2f %c\n", 7, "seven", 7.5, '7'),
        dprintf(fd, "%d %d %d %d %d %d %d %s\n", 1, 2, 3, 4, 5, 6, 7, "eight"),
        dprintf(fd, "%g %g %g %g %g %g %g %g %g %g\n", .1, .2, .3, .4, .5, .6, .7, .8, .9, 1.),
        dprintf(fd, "%s%.3Lf\n", text, 1.25L),
        __dprintf_chk(fd, 1, "%d %s %g %d %d %d\n", 1, text, 2.5, 3, 4, 5),
        print_list(fd, "%s %d %g\n", "in a list", 1, .5),
        dprintf(fd, "%s", ""),
    };
    for (size_t n = 0; n < sizeof lens / sizeof *lens; n++) dprintf(fd, "%d\n", lens[n]);
    fclose(from);
}

// Calls functions by their second names.
static void call_by_second_names(int fd) {
    char line[100];
    fd_set readable;
    struct pollfd one = {fd, POLLIN, 0};
    int other = __dup2(fd, 50);
    for (unsigned n = 0;; n++) {
        FD_ZERO(&readable);
        FD_SET(fd, &readable);
        if ((n % 2 ? __poll(&one, 1, -1) : __select(fd + 1, &readable, NULL, NULL, NULL)) != 1) die("no line");
        // Reads byte by byte: a line may come in parts.
        size_t len = 0;
        while (__read(other, line + len, 1) == 1 && line[len++] != '\n') {}
        if (!len) die("end");
        if (n % 2) __write(fd, line, len);
        else __send(fd, line, len, 0);
        if (len == 5 && !memcmp(line, "last\n", 5)) break;
    }
    int third = __fcntl(fd, F_DUPFD, 60);
    __close(other);
    __write(third, "end\n", 4);
}

// Has streams of connections lead to files instead.
static void reopen(int fd) {
    become(fd, 0), become(fd, 1);
    char line[100];
    for (int n = 0; n < 10 && fgets(line, sizeof line, stdin); n++) printf("got %s", line), fflush(stdout);
    errno = 0;
    long place = ftell(stdout);
    printf("place %ld, errno %d\n", place, errno);
    bool is_new = freopen("/dev/null", "w", stdout) == stdout;
    printf("nowhere\n");
    fflush(stdout);
    int out = fileno(stdout), left = ftell(stdout);
    bool is_ended = freopen("/etc/hostname", "r", stdin) && fgetc(stdin) != EOF;
    FILE *own = fdopen(dup(fd), "w");
    fprintf(own, "before\n");
    int number = fileno(own);
    bool again = freopen("/dev/null", "w", own) == own;
    bool same = fileno(own) == number;
    bool closed = !freopen(NULL, "w", fdopen(dup(fd), "w"));
    char text[200];
    int len = snprintf(text, sizeof text, "%d %d %d %d %d %d %d\n", is_new, out, left, is_ended, again, same, closed);
    write(fd, text, len);
    shutdown(fd, SHUT_WR);
    // The rest that the client sends.
    while (read(fd, text, sizeof text) > 0) {}
}

// Serves one connection in a process of its own, in the way that its first byte names.
static void serve(int fd, const char *self) {
    char way;
    if (read(fd, &way, 1) != 1) exit(1);
    int in = fcntl(0, F_DUPFD_CLOEXEC, 10), out = fcntl(1, F_DUPFD_CLOEXEC, 10);
    switch (way) {
    case 'd': // Copies over both.
        become(fd, 0), become(fd, 1);
        answer_lines();
        break;
    case 'f': // The lowest free numbers.
        close(0), dup(fd);
        close(1), fcntl(fd, F_DUPFD, 1);
        answer_lines();
        break;
    case 'p': // What was printed before goes where the stream leads when it is flushed.
        printf("printed before\n");
        become(fd, 0), become(fd, 1);
        answer_lines();
        break;
    case 'e': // Errors.
        become(fd, 2);
        fprintf(stderr, "an error\n");
        errno = EPERM;
        perror("another");
        break;
    case 'r': // There and back, as a shell's redirections.
        for (int n = 0; n < 100; n++) {
            become(fd, 1);
            printf("redirected %d\n", n);
            fflush(stdout);
            become(out, 1);
        }
        become(fd, 0);
        char line[100];
        if (fgets(line, sizeof line, stdin)) write(fd, line, strlen(line));
        become(in, 0);
        break;
    case 'c': // A child without another image.
        if (fork() == 0) {
            become(fd, 0), become(fd, 1);
            answer_lines();
            _exit(0);
        }
        wait(NULL);
        break;
    case 'o': // No stream.
        print_on(fd);
        break;
    case 's': // Second names.
        call_by_second_names(fd);
        break;
    case 'n': // Files, later.
        reopen(fd);
        break;
    case 'i': // Another image.
        become(fd, 0), become(fd, 1);
        execl(self, self, "image", NULL);
        _exit(1);
    }
    exit(0);
}

static int listening_at(const char *file) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strncpy(at.sun_path, file, sizeof at.sun_path - 1);
    unlink(file);
    int fd = checked("socket", socket(AF_UNIX, SOCK_STREAM, 0));
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, 16)) die("listen");
    return fd;
}

static void serve_both(int port, const char *file, const char *self) {
    struct pollfd fds[2] = {{listening(port, 0), POLLIN, 0}, {listening_at(file), POLLIN, 0}};
    signal(SIGCHLD, SIG_IGN);
    SAY("ready");
    for (;;) {
        if (poll(fds, 2, -1) < 0) continue;
        for (int n = 0; n < 2; n++) {
            if (!fds[n].revents) continue;
            int fd = checked("accept", accept(fds[n].fd, NULL, NULL));
            if (fork() == 0) {
                signal(SIGCHLD, SIG_DFL);
                serve(fd, self);
            }
            close(fd);
        }
    }
}

static int connected(const char *ip, int port, const char *file) {
    int fd = checked("socket", socket(file ? AF_UNIX : AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    inet_pton(AF_INET, ip, &to.sin_addr);
    if (file) strncpy(at.sun_path, file, sizeof at.sun_path - 1);
    checked("connect", file ? connect(fd, (void *)&at, sizeof at) : connect(fd, (void *)&to, sizeof to));
    return fd;
}

// Receives to the end, and prints how much came, its sum and its first and last bytes.
static void print_rest(char way, const char *kind, FILE *stream) {
    char line[100], first[100] = "", last[100] = "";
    unsigned lines = 0, sum = 0;
    while (fgets(line, sizeof line, stream)) {
        for (char *at = line; *at; at++) sum = sum * 31 + *at;
        if (!lines++) strcpy(first, line);
        strcpy(last, line);
    }
    first[strcspn(first, "\n")] = last[strcspn(last, "\n")] = 0;
    SAY("%c over %s: %u lines, %x, '%s' to '%s'", way, kind, lines, sum, first, last);
}

static void ask(char way, const char *ip, int port, const char *file) {
    int fd = connected(ip, port, file);
    FILE *to = fdopen(fd, "w"), *from = fdopen(dup(fd), "r");
    fprintf(to, "%c", way);
    fflush(to);
    if (way == 'n') {
        for (int n = 0; n < 10; n++) fprintf(to, "line %d\n", n);
    } else if (!strchr("er", way)) {
        // In turns at first, then without waiting.
        for (int n = 0; n < LINES; n++) {
            char line[100];
            fprintf(to, "line %d\n", n);
            if (n > 100) continue;
            fflush(to);
            if (way == 'p' && n == 0 && !fgets(line, sizeof line, from)) die("no first line");
            if (!fgets(line, sizeof line, from)) die("no line");
        }
        fprintf(to, "last\n");
    } else if (way == 'r') {
        fprintf(to, "one line\n");
    }
    fflush(to);
    print_rest(way, file ? "AF_UNIX" : "TCP", from);
    SAY("a wide character %d", fgetwc(from) != WEOF);
    fclose(to);
    fclose(from);
}

int main(int argc, char **argv) {
    alarm(60);
    if (argc == 4 && !strcmp(argv[1], "server")) {
        alarm(0);
        serve_both(atoi(argv[2]), argv[3], argv[0]);
    } else if (argc == 5 && !strcmp(argv[1], "client")) {
        signal(SIGPIPE, SIG_IGN);
        for (const char *way = "dfperciosn"; *way; way++) {
            ask(*way, argv[2], atoi(argv[3]), NULL);
            ask(*way, argv[2], atoi(argv[3]), argv[4]);
        }
    } else if (argc == 2 && !strcmp(argv[1], "image")) {
        answer_lines();
    }
    return 0;
}
