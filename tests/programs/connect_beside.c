// A thread closes a descriptor, or gives its number to a pipe, at about the time that another one connects it: `connect_beside PATH ROUNDS`. All is
// in this process. The connection ends if it was made, and the number is the pipe's. Prints lines that do not depend on the transport.
#define _GNU_SOURCE
#include "both_ends.h"
#include "chance.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/time.h>

#define SPREAD_US 400

enum act { CLOSES, REPLACES, ACTS };
static const char *acts[] = {"closed", "replaced"};

struct server {
    int listener, lost;
};

struct caller {
    int fd;
    const struct sockaddr_storage *at;
    socklen_t len;
    pthread_barrier_t *start;
};

// Waits for the end of each connection, up to one that sends. Counts those that do not end.
static void *serves(void *argument) {
    struct server *server = argument;
    for (char byte = 0; !byte;) {
        struct timeval time = {.tv_sec = 10};
        int fd = checked("accept", accept(server->listener, NULL, NULL));
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
        server->lost += recv(fd, &byte, 1, 0) < 0 && errno == EAGAIN;
        close(fd);
    }
    return NULL;
}

static void *connects(void *argument) {
    struct caller *caller = argument;
    pthread_barrier_wait(caller->start);
    // Fails in any way where the number is closed, or the server's next connection's.
    connect(caller->fd, (void *)caller->at, caller->len);
    return NULL;
}

// Prints what is wrong, and returns whether that is something.
static bool round_of(struct caller *caller, bool waits, enum act act) {
    int ends[2];
    char bytes[8] = "";
    pthread_t thread;
    if (pipe(ends) || write(ends[1], "marker", 6) != 6) die("pipe");
    caller->fd = checked("socket", socket(caller->at->ss_family, SOCK_STREAM | (waits ? 0 : SOCK_NONBLOCK), 0));
    pthread_create(&thread, NULL, connects, caller);
    pthread_barrier_wait(caller->start);
    spins(next() % SPREAD_US);
    if (act == CLOSES) close(caller->fd);
    else dup2(ends[0], caller->fd);
    pthread_join(thread, NULL);
    bool is_wrong = false;
    if (act == REPLACES) {
        ssize_t part = read(caller->fd, bytes, 7);
        if (part != 6 || strcmp(bytes, "marker")) is_wrong = true, printf("the number's file gave %zd, %s\n", part, bytes);
        close(caller->fd);
    }
    close(ends[0]), close(ends[1]);
    return is_wrong;
}

static void rounds_of(const char *path, bool is_unix, bool waits, enum act act, int rounds) {
    struct sockaddr_storage at;
    struct server server = {0};
    pthread_barrier_t start;
    struct caller caller = {.at = &at, .start = &start};
    server.listener = listens_at(path, is_unix, &at, &caller.len);
    pthread_t thread;
    pthread_create(&thread, NULL, serves, &server);
    pthread_barrier_init(&start, NULL, 2);
    for (int n = 0; n < rounds && !round_of(&caller, waits, act); n++) {}
    int last = connects_to(&at, caller.len);
    if (send(last, "q", 1, 0) != 1) die("send");
    pthread_join(thread, NULL);
    printf("%s, %s, %s: %d lost\n", is_unix ? "unix" : "tcp", waits ? "blocking" : "non-blocking", acts[act], server.lost);
    fflush(stdout);
    close(last), close(server.listener);
    unlink(path);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    signal(SIGPIPE, SIG_IGN);
    for (int n = 0; n < 4 * ACTS; n++) rounds_of(argv[1], n % 2, n / 2 % 2, n / 4, atoi(argv[2]));
}
