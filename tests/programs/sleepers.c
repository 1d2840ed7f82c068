// Threads that sleep at once for connections that another made: none may take another's wake-up. First one in `poll` and one in
// `epoll_wait`. Then as many as there are connections, all in one instance, each waiting for the others after its read.
// `sleepers server PORT` prints "ready", `sleepers client IP PORT` prints the events received.
#include <poll.h>
#include <sys/epoll.h>
#include "serve.h"

enum { ALL = 4, ROUNDS = 500, PATIENCE_MS = 10000 };

static int fds[ALL], threads, heard, left, round_now, over, shared, flags = EPOLLIN;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all = PTHREAD_COND_INITIALIZER, next = PTHREAD_COND_INITIALIZER;

// Thread for `serve_each`: the last connection of each client is for commands, which ask for a byte each on a number of the
// others.
static void *serve_all(void *argument) {
    static int known[ALL];
    static int count;
    int fd = (int)(intptr_t)argument;
    char byte;
    pthread_mutex_lock(&lock);
    int place = count++ % (ALL + 1);
    if (place < ALL) known[place] = fd;
    pthread_mutex_unlock(&lock);
    if (write(fd, "h", 1) != 1) die("hello");
    if (place < ALL) return NULL;
    for (int turn = 0; read(fd, &byte, 1) == 1; turn++)
        for (int i = 0; i < byte; i++)
            if (write(known[(i + turn) % byte], "b", 1) != 1) die("write");
    for (int i = 0; i < ALL; i++) close(known[i]);
    close(fd);
    return NULL;
}

// Thread of a sleeper: the first one sleeps in `poll`, unless all share an instance.
static void *sleeper(void *argument) {
    int place = (int)(intptr_t)argument, epoll = shared;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[place]};
    if (epoll < 0) {
        epoll = epoll_create1(0);
        checked("add", epoll_ctl(epoll, EPOLL_CTL_ADD, fds[place], &event));
    }
    for (int round = 1;; round++) {
        // Outside all waits that the library sees: a wake-up taken from another thread stays taken.
        pthread_mutex_lock(&lock);
        while (round_now < round && !over) pthread_cond_wait(&next, &lock);
        int ends = over;
        pthread_mutex_unlock(&lock);
        if (ends) break;
        struct pollfd one = {fds[place], POLLIN, 0};
        int is_poll = shared < 0 && place == 0;
        char byte;
        do {
            int found = is_poll ? poll(&one, 1, PATIENCE_MS) : epoll_wait(epoll, &event, 1, PATIENCE_MS);
            if (found != 1) {
                SAY("thread %d was not woken in round %d", place, round);
                exit(1);
            }
            // Another thread of the instance may have been told of the same byte.
        } while (recv(event.data.fd, &byte, 1, MSG_DONTWAIT) != 1);
        struct epoll_event again = {.events = flags, .data.fd = event.data.fd};
        if (flags & EPOLLONESHOT) checked("again", epoll_ctl(epoll, EPOLL_CTL_MOD, event.data.fd, &again));
        pthread_mutex_lock(&lock);
        heard++;
        if (--left == 0) pthread_cond_signal(&all);
        pthread_mutex_unlock(&lock);
    }
    if (shared < 0) close(epoll);
    return NULL;
}

static void run(int command) {
    pthread_t running[ALL];
    round_now = over = heard = 0;
    for (int i = 0; i < threads; i++) pthread_create(&running[i], NULL, sleeper, (void *)(intptr_t)i);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_mutex_lock(&lock);
        left = threads;
        round_now++;
        pthread_cond_broadcast(&next);
        pthread_mutex_unlock(&lock);
        usleep(300); // until they sleep
        char count = (char)threads;
        if (write(command, &count, 1) != 1) die("command");
        pthread_mutex_lock(&lock);
        while (left > 0) pthread_cond_wait(&all, &lock);
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_lock(&lock);
    over = 1;
    pthread_cond_broadcast(&next);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < threads; i++) pthread_join(running[i], NULL);
    SAY("%d threads: %d", threads, heard);
}

int main(int argc, char **argv) {
    if (argc == 3) serve_each(atoi(argv[2]), serve_all);
    if (argc != 4) return 2;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &to.sin_addr);
    int command = -1;
    for (int i = 0; i <= ALL; i++) {
        int fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
        char byte;
        checked("connect", connect(fd, (void *)&to, sizeof to));
        if (recv(fd, &byte, 1, 0) != 1) die("hello");
        if (i < ALL) fds[i] = fd;
        else command = fd;
    }
    threads = 2, shared = -1;
    run(command);
    static const int kinds[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT};
    for (int kind = 0; kind < 3; kind++) {
        threads = ALL, shared = epoll_create1(0), flags = kinds[kind];
        for (int i = 0; i < ALL; i++) {
            struct epoll_event event = {.events = flags, .data.fd = fds[i]};
            checked("add", epoll_ctl(shared, EPOLL_CTL_ADD, fds[i], &event));
        }
        run(command);
        close(shared);
    }
}
