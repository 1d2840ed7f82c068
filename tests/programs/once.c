// A wait on an epoll instance reports each registration once, also of connections that leave the fabric: a program that closes a
// connection has no use for a second event in the same batch. `once server PORT` prints "ready" and echoes; it leaves at each accept, and
// ends at the first batch with a registration twice. `once client IP PORT` prints the bytes that came back right.
#include <fcntl.h>
#include <sys/epoll.h>
#include "serve.h"

enum { AT_ONCE = 5, ROUNDS = 40, MESSAGES = 400, BYTES = 100, BATCH = 32, QUEUE = 8192 };

struct connection {
    int fd, ended, length;
    char queue[QUEUE];
};

static void answer(int epoll, struct connection *one) {
    ssize_t got = 0;
    if (one->length < QUEUE) got = read(one->fd, one->queue + one->length, QUEUE - one->length);
    if (got > 0) one->length += got;
    if (got == 0 && one->length < QUEUE) one->ended = 1;
    ssize_t sent = one->length > 0 ? write(one->fd, one->queue, one->length) : 0;
    if (sent > 0) memmove(one->queue, one->queue + sent, one->length -= sent);
    if (one->ended && one->length == 0) {
        close(one->fd);
        free(one);
        return;
    }
    uint32_t wanted = (one->ended ? 0 : EPOLLIN) | (one->length ? EPOLLOUT : 0);
    struct epoll_event event = {.events = wanted, .data.ptr = one};
    checked("modify", epoll_ctl(epoll, EPOLL_CTL_MOD, one->fd, &event));
}

static void serve(int listener) {
    int epoll = epoll_create1(0), yes = 1;
    struct epoll_event batch[BATCH] = {{.events = EPOLLIN}};
    checked("add", epoll_ctl(epoll, EPOLL_CTL_ADD, listener, batch));
    for (;;) {
        int found = epoll_wait(epoll, batch, BATCH, -1);
        for (int i = 0; i < found; i++)
            for (int earlier = 0; earlier < i; earlier++)
                if (batch[i].data.ptr == batch[earlier].data.ptr) die("a registration is in a batch twice");
        for (int i = 0; i < found; i++) {
            if (batch[i].data.ptr) {
                answer(epoll, batch[i].data.ptr);
                continue;
            }
            struct connection *one = calloc(1, sizeof *one);
            one->fd = checked("accept", accept(listener, NULL, NULL));
            fcntl(one->fd, F_SETFL, O_NONBLOCK);
            checked("urgent data in line", setsockopt(one->fd, SOL_SOCKET, SO_OOBINLINE, &yes, sizeof yes));
            struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
            checked("add", epoll_ctl(epoll, EPOLL_CTL_ADD, one->fd, &event));
        }
    }
}

static char byte_at(int place) { return (char)(place * 2654435761u >> 24); }

static void *sender(void *argument) {
    int fd = (int)(intptr_t)argument;
    char message[BYTES];
    for (int place = 0; place < MESSAGES * BYTES;) {
        for (int i = 0; i < BYTES; i++) message[i] = byte_at(place++);
        if (send(fd, message, BYTES, MSG_NOSIGNAL) != BYTES) break;
    }
    shutdown(fd, SHUT_WR);
    return NULL;
}

static void ask(const struct sockaddr_in *to) {
    long right = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int fds[AT_ONCE];
        pthread_t senders[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) {
            fds[i] = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
            checked("connect", connect(fds[i], (const void *)to, sizeof *to));
            pthread_create(&senders[i], NULL, sender, (void *)(intptr_t)fds[i]);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            char got[4096];
            ssize_t length;
            for (int place = 0; (length = read(fds[i], got, sizeof got)) > 0;)
                for (int at = 0; at < length; at++) right += got[at] == byte_at(place++);
            pthread_join(senders[i], NULL);
            close(fds[i]);
        }
    }
    SAY("%ld bytes came back", right);
}

int main(int argc, char **argv) {
    if (argc == 3) {
        int listener = listening(atoi(argv[2]), SOCK_NONBLOCK);
        SAY("ready");
        serve(listener);
    }
    if (argc != 4) return 2;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &to.sin_addr);
    ask(&to);
}
