// A thread ends a connection at a random moment of another thread's send on it, by close, dup2, close_range or shutdown: `close_beside PATH ROUNDS`.
// Both ends are in this process. In some rounds a third thread has one of the ends leave the fabric about then (`O_ASYNC`). All that a send says it has sent reaches the peer, and then an orderly end. Prints lines that do not depend on
// the transport.
#define _GNU_SOURCE
#include "both_ends.h"
#include "chance.h"
#include <fcntl.h>

#define BULK (4 << 20)

static const char *path;
static int dead;
static char bulk[BULK];

struct sender {
    int fd;
    pthread_barrier_t *start;
    long sent;
    int error;
};

static void *sends(void *argument) {
    struct sender *sender = argument;
    pthread_barrier_wait(sender->start);
    size_t done = 0;
    while (done < BULK) {
        ssize_t part = send(sender->fd, bulk + done, BULK - done, MSG_NOSIGNAL);
        if (part < 0) {
            sender->error = errno;
            break;
        }
        done += part;
    }
    sender->sent = done;
    return NULL;
}

struct leaver {
    int fd;
    unsigned wait_us;
    pthread_barrier_t *start;
};

static void *leaves(void *argument) {
    struct leaver *leaver = argument;
    pthread_barrier_wait(leaver->start);
    if (leaver->wait_us) usleep(leaver->wait_us);
    // Fails if the descriptor is closed already.
    if (fcntl(leaver->fd, F_SETFL, O_ASYNC) && errno != EBADF) die("fcntl");
    return NULL;
}

// Returns what is wrong, or NULL.
static const char *round_of(bool is_unix, bool greets, unsigned wait_us) {
    int ends[2];
    pthread_t thread, third;
    pthread_barrier_t start;
    unsigned who = next() % 4;
    bool is_left = who < 2;
    pthread_barrier_init(&start, NULL, is_left ? 3 : 2);
    connected(path, is_unix, greets, ends);
    struct sender sender = {.fd = ends[next() % 2], .start = &start};
    int peer = sender.fd == ends[0] ? ends[1] : ends[0];
    struct leaver leaver = {.fd = who ? peer : sender.fd, .wait_us = wait_us ? next() % (2 * wait_us) : 0, .start = &start};
    pthread_create(&thread, NULL, sends, &sender);
    if (is_left) pthread_create(&third, NULL, leaves, &leaver);
    pthread_barrier_wait(&start);
    if (wait_us) usleep(wait_us);
    unsigned way = next() % 6;
    if (way == 0)
        close_range(sender.fd, sender.fd, 0);
    else if (way == 1)
        dup2(dead, sender.fd), close(sender.fd);
    else if (way < 4)
        shutdown(sender.fd, way == 2 ? SHUT_WR : SHUT_RDWR);
    else
        close(sender.fd);
    size_t got = 0;
    static char bytes[100000];
    ssize_t part;
    bool differs = false;
    while ((part = recv(peer, bytes, sizeof bytes, 0)) > 0) {
        differs |= got + part > BULK || memcmp(bytes, bulk + got, part);
        got += part;
    }
    int end = part < 0 ? errno : 0;
    pthread_join(thread, NULL);
    if (is_left) pthread_join(third, NULL);
    bool is_shut = way == 2 || way == 3;
    if (is_shut) close(sender.fd);
    close(peer);
    pthread_barrier_destroy(&start);
    static char wrong[200];
    snprintf(wrong, sizeof wrong, "%s sent %ld (error %d), got %zu, end %d, after %u us, way %u%s%s%s", is_unix ? "unix" : "tcp", sender.sent,
             sender.error, got, end, wait_us, way, greets ? ", greeted" : "", sender.fd == ends[1] ? ", by the accepted" : "",
             is_left ? who ? ", the peer leaves" : ", the sender leaves" : "");
    bool is_whole = sender.error ? sender.error == (is_shut ? EPIPE : EBADF) : sender.sent == BULK;
    return !differs && end == 0 && got == (size_t)sender.sent && is_whole ? NULL : wrong;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    path = argv[1];
    // Sends on its duplicates fail as on a closed number.
    dead = checked("open", open("/", O_PATH));
    for (int n = 0; n < BULK; n++) bulk[n] = n * 31 >> 5;
    for (int is_unix = 0; is_unix < 2; is_unix++)
        for (int greets = 0; greets < 2; greets++) {
            int wrong = 0;
            for (int n = 0; n < atoi(argv[2]); n++) {
                unsigned waits[] = {0, next() % 300, next() % 3000, next() % 30000};
                const char *what = round_of(is_unix, greets, waits[n % 4]);
                if (what) {
                    wrong++;
                    fprintf(stderr, "%s\n", what);
                }
            }
            printf("%s%s: %d wrong\n", is_unix ? "unix" : "tcp", greets ? " after a greeting" : "", wrong);
        }
    return 0;
}
