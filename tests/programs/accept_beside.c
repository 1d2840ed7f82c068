// A thread closes, replaces or shuts down a listener at about the time that another one begins to accept from it: `accept_beside ROUNDS`. All is in
// this process. A connection that is made all the same is served, or ends. Prints lines that do not depend on the transport.
#define _GNU_SOURCE
#include "both_ends.h"
#include "chance.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/time.h>

// Of an accept that began beside the end.
#define SPREAD_US 600

enum way { ACCEPTS, POLLS, WAYS };
static const char *ways[] = {"accept", "poll and accept"};
enum act { CLOSES, REPLACES, SHUTS, ACTS };
static const char *acts[] = {"closed", "replaced", "shut down"};

struct listener {
    int fd;
    enum way way;
    pthread_barrier_t start;
};

// Accepts until that fails, or nobody has come for a while. Answers all that comes.
static void *accepts(void *argument) {
    struct listener *listener = argument;
    pthread_barrier_wait(&listener->start);
    for (;;) {
        struct pollfd poll_of = {.fd = listener->fd, .events = POLLIN};
        if (listener->way == POLLS && poll(&poll_of, 1, 20) <= 0) return NULL;
        if (listener->way == POLLS && poll_of.revents != POLLIN) return NULL;
        int fd = accept(listener->fd, NULL, NULL);
        if (fd < 0) return NULL;
        char bytes[100];
        while (read(fd, bytes, sizeof bytes) > 0) {}
        if (write(fd, "bye", 3) != 3) die("write");
        close(fd);
    }
}

// Returns false once nobody listens. Counts a connection of which nothing is heard.
static bool is_served(const struct sockaddr_storage *at, socklen_t len, int *lost) {
    int fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
    struct timeval time = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    bool is_connected = connect(fd, (void *)at, len) == 0;
    if (!is_connected && errno != ECONNREFUSED && errno != ECONNRESET) die("connect");
    if (is_connected) {
        char bytes[8];
        send(fd, "hello", 5, MSG_NOSIGNAL);
        shutdown(fd, SHUT_WR);
        *lost += recv(fd, bytes, sizeof bytes, 0) < 0 && errno == EAGAIN;
    }
    close(fd);
    return is_connected;
}

// Returns how many connections were lost.
static int round_of(enum way way, enum act act, int before) {
    struct sockaddr_storage at;
    socklen_t len;
    struct listener listener = {.fd = listens_at("", false, &at, &len), .way = way};
    for (int n = 0; n < before; n++) {
        int from = connects_to(&at, len), to = checked("accept", accept(listener.fd, NULL, NULL));
        char byte = 0;
        if (write(from, &byte, 1) != 1 || read(to, &byte, 1) != 1) die("greeting");
        close(from), close(to);
    }
    int lost = 0, null = checked("open", open("/dev/null", O_RDWR));
    pthread_t thread;
    pthread_barrier_init(&listener.start, NULL, 2);
    pthread_create(&thread, NULL, accepts, &listener);
    pthread_barrier_wait(&listener.start);
    spins(next() % SPREAD_US);
    switch (act) {
    case CLOSES: close(listener.fd); break;
    case REPLACES: dup2(null, listener.fd); break;
    default: shutdown(listener.fd, SHUT_RDWR);
    }
    for (int n = 0; n < 4 && is_served(&at, len, &lost); n++) {}
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&listener.start);
    if (act != CLOSES) close(listener.fd);
    close(null);
    return lost;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    for (int way = 0; way < WAYS; way++)
        for (int act = 0; act < ACTS; act++) {
            int lost = 0;
            for (int n = 0; n < atoi(argv[1]) && !lost; n++) lost += round_of(way, act, n % 3);
            printf("%s, %s: %d lost\n", ways[way], acts[act], lost);
            fflush(stdout);
        }
}
