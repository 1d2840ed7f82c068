// A connection that another process takes by `pidfd_getfd`: `getfd IP PORT WAY`. WAY: function, syscall or unix. Both use it in turn. Prints
// lines that do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include "serve.h"
#include <poll.h>
#include <stdbool.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static char bytes[300000];

static void talk(const char *who, int fd, size_t len) {
    memset(bytes, who[0], len);
    ssize_t sent = write(fd, bytes, len), got = 0, part;
    memset(bytes, 0, len);
    for (; got < (ssize_t)len && (part = read(fd, bytes + got, len - got)) > 0; got += part) {}
    SAY("%s: %zd sent, %zd back, %d", who, sent, got, bytes[0] == who[0] && bytes[len - 1] == who[0]);
}

static void turn(int to, int from, char *word) {
    if (to >= 0 && write(to, word, 1) != 1) die("turn");
    if (from >= 0 && read(from, word, 1) != 1) die("turn");
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    bool is_call = !strcmp(argv[3], "syscall");
    int there[2], back[2];
    checked("pipe", pipe(there)), checked("pipe", pipe(back));
    pid_t holder = fork();
    char word = 0;
    if (holder == 0) {
        int fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
        inet_pton(AF_INET, argv[1], &to.sin_addr);
        checked("connect", connect(fd, (void *)&to, sizeof to));
        talk("holder", fd, 200000);
        if (write(fd, "left for another", 16) != 16) die("write");
        word = fd;
        for (int round = 0; round < 4; round++) {
            turn(back[1], there[0], &word);
            talk("holder", fd, round % 2 ? 10 : 200000);
        }
        turn(back[1], -1, &word);
        _exit(0);
    }
    turn(-1, back[0], &word);
    int process = checked("pidfd_open", syscall(SYS_pidfd_open, holder, 0));
    int fd = is_call ? syscall(SYS_pidfd_getfd, process, word, 0) : pidfd_getfd(process, word, 0);
    checked("pidfd_getfd", fd);
    printf("wrong: %d\n", is_call ? (int)syscall(SYS_pidfd_getfd, process, 999, 0) : pidfd_getfd(process, 999, 0));
    struct pollfd one = {.fd = fd, .events = POLLIN};
    printf("poll %d\n", poll(&one, 1, 5000));
    ssize_t got = 0, part;
    for (; got < 16 && (part = read(fd, bytes + got, 16 - got)) > 0; got += part) {}
    SAY("got %.*s", (int)got, bytes);
    for (int round = 0; round < 4; round++) {
        talk("taker", fd, round % 2 ? 200000 : 10);
        turn(there[1], back[0], &word);
    }
    waitpid(holder, NULL, 0);
    talk("taker", fd, 200000);
    // A descriptor of its own is a second number.
    int own = checked("pidfd_open", syscall(SYS_pidfd_open, getpid(), 0));
    int second = checked("pidfd_getfd", pidfd_getfd(own, fd, 0));
    talk("second", second, 100);
    talk("first", fd, 100);
    close(fd);
    talk("second", second, 200000);
    shutdown(second, SHUT_WR);
    SAY("end %zd", read(second, bytes, 10));
    return 0;
}
