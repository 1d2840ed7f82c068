/* Many threads: a socket each; two directions of one socket; memory freed by another thread; fork. */
#include "common.h"
#include <pthread.h>
#include <sys/wait.h>

#define THREADS 8
#define TOTAL ((size_t)2 << 20)

static const char *ip, *port;

static void *serve(void *arg) {
    int sid = (int)(intptr_t)arg;
    recv_pattern(sid, 1, TOTAL, 100000);
    send_pattern(sid, 2, TOTAL, 30000);
    expect_end(sid);
    CHECK(pd_close(sid) == 0);
    return NULL;
}

static void *receive(void *arg) {
    recv_pattern((int)(intptr_t)arg, 2, TOTAL, 50000);
    return NULL;
}

static void *work(void *arg) {
    (void)arg;
    int sid = connect_to(ip, port);
    pthread_t receiver;
    CHECK(pthread_create(&receiver, NULL, receive, (void *)(intptr_t)sid) == 0);
    send_pattern(sid, 1, TOTAL, 70000);
    CHECK(pthread_join(receiver, NULL) == 0);
    CHECK(pd_close(sid) == 0);
    return pd_malloc(12345);
}

static void server(void) {
    int listener = listen_on(ip, port);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        int sid = pd_accept(listener, (struct sockaddr *)NULL, NULL);
        CHECK(sid >= 0);
        CHECK(pthread_create(&threads[i], NULL, serve, (void *)(intptr_t)sid) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(pd_close(listener) == 0);
}

static void client(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
    for (int i = 0; i < THREADS; i++) {
        void *block;
        CHECK(pthread_join(threads[i], &block) == 0);
        CHECK(block != NULL && pd_free(block) == 0);
    }
    int sid = pd_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(sid >= 0);
    pid_t child = fork();
    if (child == 0) {
        FAILS(pd_close(sid), EBADF);
        int own = pd_socket(AF_INET, SOCK_STREAM, 0);
        CHECK(own >= 0 && pd_close(own) == 0);
        exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(pd_close(sid) == 0);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    ip = argv[2], port = argv[3];
    if (strcmp(argv[1], "server") == 0)
        server();
    else
        client();
    return 0;
}
