// A process that forks while its other threads make and use connections: `forking server PORT` prints "ready"; `forking client IP PORT` prints how many
// children have had their bytes back.
#define _GNU_SOURCE
#include <aio.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include "serve.h"

#define CHILDREN 200
#define THREADS 3
#define ROUNDS 3
#define MOST 2000

enum wait { RECEIVES, POLLS, EPOLLS, SPLICES, REQUESTS, WAITS };

static struct sockaddr_in to;
static atomic_bool over;

// Receives by a pipe.
static ssize_t spliced(int fd, char *bytes, size_t most) {
    int ends[2];
    checked("pipe", pipe2(ends, O_CLOEXEC));
    ssize_t count = splice(fd, NULL, ends[1], NULL, most, 0);
    if (count > 0 && read(ends[0], bytes, most) != count) count = -1;
    close(ends[0]);
    close(ends[1]);
    return count;
}

static ssize_t requested(int fd, char *bytes, size_t most) {
    struct aiocb request = {.aio_fildes = fd, .aio_buf = bytes, .aio_nbytes = most};
    const struct aiocb *all[] = {&request};
    if (aio_read(&request)) return -1;
    while (aio_error(&request) == EINPROGRESS) aio_suspend(all, 1, NULL);
    return aio_return(&request);
}

// Sends bytes and receives them back, by a wait of its own. Returns whether all came.
static bool has_back(int fd, enum wait wait, size_t count) {
    char bytes[MOST] = {0};
    int instance = wait == EPOLLS ? checked("epoll", epoll_create1(0)) : -1;
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd one = {.fd = fd, .events = POLLIN};
    if (wait == EPOLLS) epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event);
    ssize_t part = send(fd, bytes, count, 0) == (ssize_t)count;
    for (size_t got = 0; part > 0 && got < count; got += part) {
        if (wait == EPOLLS) epoll_wait(instance, &event, 1, -1);
        if (wait == POLLS) poll(&one, 1, -1);
        part = wait == SPLICES    ? spliced(fd, bytes, sizeof bytes)
               : wait == REQUESTS ? requested(fd, bytes, sizeof bytes)
                                  : recv(fd, bytes, sizeof bytes, 0);
    }
    if (wait == EPOLLS) close(instance);
    return part > 0;
}

static bool talks(enum wait wait) {
    int fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0)), one = 1;
    bool is_whole = !connect(fd, (void *)&to, sizeof to);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (int round = 0; round < ROUNDS; round++) is_whole = is_whole && has_back(fd, wait, 100 + wait * 400);
    close(fd);
    return is_whole;
}

static void *talking(void *number) {
    for (unsigned wait = (intptr_t)number; !over; wait++)
        if (!talks(wait % WAITS)) die("a thread's bytes");
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    if (argc == 3 && !strcmp(argv[1], "server")) serve_each(atoi(argv[2]), echo);
    if (argc != 4 || strcmp(argv[1], "client")) return 2;
    to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &to.sin_addr);
    for (intptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, talking, (void *)i);
    int whole = 0, status;
    for (int child = 0; child < CHILDREN; child++) {
        pid_t process = checked("fork", fork());
        // The C library's own lock of its requests may be taken at the fork.
        if (!process) _exit(!talks(child % REQUESTS));
        whole += waitpid(process, &status, 0) == process && !status;
    }
    over = true;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    SAY("%d children of %d", whole, CHILDREN);
    return 0;
}
