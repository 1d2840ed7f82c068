// Two processes that receive from one connection at once, while its peer leaves the fabric. `marks server PORT` prints "ready";
// `marks client IP PORT COUNT` prints in how many of COUNT connections every byte came to one of the two.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include "serve.h"

#define BEFORE 300
#define AFTER 700

// Counts received bytes, to the end.
static int count_all(int fd) {
    unsigned char bytes[64];
    int count = 0;
    for (ssize_t part; (part = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) != 0;) {
        if (part > 0) count += part;
        else if (errno != EAGAIN) return -1000000 * errno;
    }
    return count;
}

static void serve(int fd) {
    static int *counts;
    int status;
    if (!counts) counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    counts[1] = -1;
    // The peer knows from this that the connection is accepted.
    if (write(fd, "", 1) != 1) die("write");
    pid_t child = checked("fork", fork());
    int count = count_all(fd);
    if (!child) {
        counts[1] = count;
        _exit(0);
    }
    waitpid(child, &status, 0);
    count += counts[1];
    if (write(fd, &count, sizeof count) < 0) die("write");
    close(fd);
}

static int ask(struct sockaddr_in to) {
    char bytes[AFTER] = {0};
    int count = 0, fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
    checked("connect", connect(fd, (void *)&to, sizeof to));
    if (write(fd, bytes, BEFORE) != BEFORE || read(fd, bytes, 1) != 1) die("write");
    // The kernel alone has this.
    setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &(int){1}, sizeof(int));
    for (int at = 0; at < AFTER; at += 7)
        if (write(fd, bytes, 7) != 7) die("write");
    shutdown(fd, SHUT_WR);
    if (read(fd, &count, sizeof count) != sizeof count) count = -1;
    close(fd);
    if (count != BEFORE + AFTER) SAY("%d bytes", count);
    return count == BEFORE + AFTER;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "server")) {
        int listener = listening(atoi(argv[2]), 0);
        SAY("ready");
        for (;;) serve(checked("accept", accept(listener, NULL, NULL)));
    }
    if (argc != 5 || strcmp(argv[1], "client")) return 2;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &to.sin_addr);
    int whole = 0, count = atoi(argv[4]);
    for (int i = 0; i < count; i++) whole += ask(to);
    SAY("%d whole", whole);
    return 0;
}
