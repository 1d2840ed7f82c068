/* Closes or shuts a socket down beside another thread's send, at random moments: what the call says it has sent arrives, and then an orderly
 * end. The client sends on one connection how much it has sent on each of the others. */
#include "common.h"
#include <pthread.h>
#include <stdint.h>

#define ROUNDS 120
#define BULK ((size_t)2 << 20)

struct sender {
    int sid, way;
    pthread_barrier_t start;
    uint64_t sent;
};

static char bulk[BULK];

static ssize_t fill(void *place, size_t len, void *arg) {
    memcpy(place, arg, len);
    return (ssize_t)len;
}

static ssize_t send_once(const struct sender *sender, const char *block) {
    const char *at = (sender->way == 2 ? block : bulk) + sender->sent;
    size_t len = BULK - sender->sent;
    switch (sender->way) {
    case 0:
        return pd_write(sender->sid, at, len);
    case 1:
        return pd_send_with(sender->sid, len, fill, (void *)(uintptr_t)at);
    default:
        return pd_send(sender->sid, at, len);
    }
}

static void *work(void *arg) {
    struct sender *sender = arg;
    char *block = pd_malloc(BULK);
    CHECK(block != NULL);
    memcpy(block, bulk, BULK);
    pthread_barrier_wait(&sender->start);
    while (sender->sent < BULK) {
        ssize_t part = send_once(sender, block);
        if (part < 0) {
            CHECK(errno == EBADF || errno == EPIPE);
            break;
        }
        sender->sent += (uint64_t)part;
    }
    CHECK(pd_free(block) == 0);
    return NULL;
}

static void client(const char *ip, const char *port) {
    int control = connect_to(ip, port);
    uint32_t state = 12345;
    for (int round = 0; round < ROUNDS; round++) {
        struct sender sender = {.sid = connect_to(ip, port), .way = round % 3};
        CHECK(pthread_barrier_init(&sender.start, NULL, 2) == 0);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, work, &sender) == 0);
        pthread_barrier_wait(&sender.start);
        state = state * 1664525 + 1013904223;
        if (round % 5) usleep((state >> 8) % (round % 2 ? 200 : 3000));
        int shuts = round % 4 == 3;
        CHECK((shuts ? pd_shutdown(sender.sid, SHUT_WR) : pd_close(sender.sid)) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(!shuts || pd_close(sender.sid) == 0);
        CHECK(pthread_barrier_destroy(&sender.start) == 0);
        CHECK(pd_write(control, &sender.sent, sizeof sender.sent) == sizeof sender.sent);
        char byte;
        CHECK(pd_read(control, &byte, 1) == 1);
    }
    CHECK(pd_close(control) == 0);
}

static void server(const char *ip, const char *port) {
    int listener = listen_on(ip, port);
    int control = pd_accept(listener, (struct sockaddr *)NULL, NULL);
    CHECK(control >= 0);
    for (int round = 0; round < ROUNDS; round++) {
        int sid = pd_accept(listener, (struct sockaddr *)NULL, NULL);
        CHECK(sid >= 0);
        static char bytes[100000];
        uint64_t got = 0, sent = 0;
        ssize_t part;
        while ((part = pd_read(sid, bytes, sizeof bytes)) > 0) {
            CHECK(got + (uint64_t)part <= BULK && memcmp(bytes, bulk + got, (size_t)part) == 0);
            got += (uint64_t)part;
        }
        CHECK(part == 0);
        CHECK(pd_close(sid) == 0);
        CHECK(pd_read(control, &sent, sizeof sent) == sizeof sent);
        if (got != sent)
            fprintf(stderr, "round %d: sent %llu, got %llu\n", round, (unsigned long long)sent,
                    (unsigned long long)got);
        CHECK(got == sent);
        CHECK(pd_write(control, "", 1) == 1);
    }
    CHECK(pd_close(control) == 0);
    CHECK(pd_close(listener) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    for (size_t n = 0; n < BULK; n++)
        bulk[n] = (char)(n * 31 >> 5);
    if (strcmp(argv[1], "server") == 0)
        server(argv[2], argv[3]);
    else
        client(argv[2], argv[3]);
    return 0;
}
