// Answers of a server that closes right after them, while memory for sends is scarce. `scarce server PORT FILE` prints "ready";
// `scarce client IP PORT` prints a line for each way to serve, which does not depend on the transport of the bytes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include "serve.h"

#define BODY 1500000
#define CLIENTS 4
#define ROUNDS 3

static const char *const runs[] = {"thread", "fork", "loop"};
static const char *const sends[] = {"write", "writev", "sendfile", "both ways"};
static const char *const ends[] = {"close", "shutdown", "exit"};
static int file;
static unsigned char body[BODY];

// A client's request, which is also the first bytes of the answer.
struct request {
    unsigned char run, send, end;
    char rest[61];
};

static void fill(void) {
    uint64_t state = 1;
    for (int i = 0; i < BODY; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        body[i] = state >> 33;
    }
}

// An answer that is under way.
struct answer {
    struct request request;
    size_t asked, sent;
    int fd;
};

// Sends as much as possible at once: the request, and the body behind it. Returns the result of the send.
static ssize_t more(struct answer *it) {
    char *head = (char *)&it->request;
    size_t first = sizeof it->request;
    if (it->sent < first && it->request.send != 1) return write(it->fd, head + it->sent, first - it->sent);
    size_t at = it->sent < first ? 0 : it->sent - first;
    if (it->request.send == 0) return write(it->fd, body + at, BODY - at);
    if (it->request.send == 2) {
        off_t from = at;
        return sendfile(it->fd, file, &from, BODY - at);
    }
    struct iovec pieces[3] = {{head + it->sent, first - it->sent}, {body, 1000}, {body + 1000, BODY - 1000}};
    if (it->sent < first) return writev(it->fd, pieces, 3);
    struct iovec rest[2] = {{body + at, (BODY - at) / 2}, {body + at + (BODY - at) / 2, BODY - at - (BODY - at) / 2}};
    return writev(it->fd, rest, 2);
}

static int is_whole(const struct answer *it) { return it->sent == sizeof it->request + BODY; }

static void finish(struct answer *it) {
    char byte;
    if (it->request.end == 2) _exit(0);
    if (it->request.end == 1) {
        shutdown(it->fd, SHUT_WR);
        while (read(it->fd, &byte, 1) > 0) {}
    }
    close(it->fd);
}

// Sends received bytes back.
static void echo_all(int fd) {
    static _Thread_local char bytes[50000];
    ssize_t part;
    while ((part = read(fd, bytes, sizeof bytes)) > 0)
        for (ssize_t at = 0, sent; at < part; at += sent)
            if ((sent = write(fd, bytes + at, part - at)) <= 0) return (void)close(fd);
    close(fd);
}

static void *serve(void *argument) {
    struct answer *it = argument;
    ssize_t part;
    if (it->request.send == 3) {
        echo_all(it->fd);
    } else {
        while (!is_whole(it) && (part = more(it)) > 0) it->sent += part;
        finish(it);
    }
    free(it);
    return NULL;
}

static int loop;

// Serves its connections without waiting for one alone.
static void *turn(void *unused) {
    struct epoll_event event;
    int count;
    while ((count = epoll_wait(loop, &event, 1, -1)) == 1 || errno == EINTR) {
        // A process that was stopped, and goes on.
        if (count != 1) continue;
        struct answer *it = event.data.ptr;
        ssize_t part;
        while (!is_whole(it) && (part = more(it)) > 0) it->sent += part;
        if (!is_whole(it) && part < 0 && errno == EAGAIN) continue;
        epoll_ctl(loop, EPOLL_CTL_DEL, it->fd, NULL);
        finish(it);
        free(it);
    }
    return unused;
}

static void *accepted(void *argument) {
    struct answer *it = calloc(1, sizeof *it);
    pid_t child;
    it->fd = (int)(intptr_t)argument;
    while (it->asked < sizeof it->request) {
        ssize_t part = read(it->fd, (char *)&it->request + it->asked, sizeof it->request - it->asked);
        if (part <= 0) return close(it->fd), free(it), NULL;
        it->asked += part;
    }
    if (it->request.run == 0) return serve(it);
    if (it->request.run == 1) {
        if (!(child = checked("fork", fork()))) serve(it), _exit(0);
        close(it->fd);
        free(it);
        waitpid(child, NULL, 0);
        return NULL;
    }
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = it};
    fcntl(it->fd, F_SETFL, O_NONBLOCK);
    epoll_ctl(loop, EPOLL_CTL_ADD, it->fd, &event);
    return NULL;
}

static struct sockaddr_in to;
static struct request asked;
static atomic_int whole, turns;
static char said[200];

static void *upload(void *argument) {
    int fd = (int)(intptr_t)argument;
    for (size_t at = 0; at < BODY;) {
        ssize_t part = write(fd, body + at, BODY - at < 70000 ? BODY - at : 70000);
        if (part <= 0) break;
        at += part;
    }
    shutdown(fd, SHUT_WR);
    return NULL;
}

static void ask(void) {
    static _Thread_local unsigned char got[sizeof asked + BODY + 1];
    size_t count = 0, head = asked.send == 3 ? 0 : sizeof asked;
    ssize_t part;
    pthread_t uploads;
    int fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
    checked("connect", connect(fd, (void *)&to, sizeof to));
    if (write(fd, &asked, sizeof asked) != sizeof asked) die("write");
    if (asked.send == 3) pthread_create(&uploads, NULL, upload, (void *)(intptr_t)fd);
    while ((part = read(fd, got + count, sizeof got - count)) > 0) count += part;
    if (asked.send == 3) pthread_join(uploads, NULL);
    close(fd);
    if (part < 0) snprintf(said, sizeof said, "; after %zu bytes %s", count, strerrorname_np(errno));
    else if (count != head + BODY) snprintf(said, sizeof said, "; %zu bytes", count);
    else if (memcmp(got, &asked, head) || memcmp(got + head, body, BODY)) snprintf(said, sizeof said, "; other bytes");
    else whole++;
}

static void *client(void *unused) {
    (void)unused;
    while (turns++ < ROUNDS * CLIENTS) ask();
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[CLIENTS], turner;
    fill();
    if (argc == 4 && !strcmp(argv[1], "server")) {
        file = checked("open", open(argv[3], O_RDWR | O_CREAT | O_TRUNC, 0600));
        if (write(file, body, BODY) != BODY) die("write");
        close(file);
        file = checked("open", open(argv[3], O_RDONLY));
        loop = checked("epoll", epoll_create1(0));
        pthread_create(&turner, NULL, turn, NULL);
        serve_each(atoi(argv[2]), accepted);
    }
    if (argc != 4 || strcmp(argv[1], "client")) return 2;
    to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &to.sin_addr);
    for (int run = 0; run < 3; run++)
        for (int send = 0; send < 4; send++)
            for (int end = 0; end < 3; end++) {
                // Only a process of its own may end, and an echo is served to the end by a call that waits.
                if ((end == 2 && run != 1) || (send == 3 && (end || run == 2))) continue;
                asked = (struct request){run, send, end, "asked"};
                whole = 0;
                turns = 0;
                *said = 0;
                for (int i = 0; i < CLIENTS; i++) pthread_create(&threads[i], NULL, client, NULL);
                for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
                SAY("%s, %s, %s: %d whole%s", runs[run], sends[send], ends[end], whole, said);
            }
    return 0;
}
