/*
 * Threads that send and receive. `digests server PORT` prints "ready" and answers each connection with a digest of the
 * received bytes; `digests client IP PORT` prints those of its connections, which do not depend on the transport of the bytes.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS = 3, PIECES = 40, PIECE_BYTES = 30000 };

static void check(int fine, const char *what) {
    if (!fine) {
        perror(what);
        exit(1);
    }
}

static void *answer(void *argument) {
    int connection = (int)(intptr_t)argument;
    unsigned char *buffer = malloc(PIECE_BYTES);
    uint64_t digest = 1, bytes = 0;
    ssize_t n;
    while ((n = recv(connection, buffer, PIECE_BYTES, 0)) > 0) {
        for (ssize_t i = 0; i < n; i++)
            digest = digest * 1099511628211u + buffer[i];
        bytes += n;
    }
    check(n == 0, "recv");
    char text[64];
    snprintf(text, sizeof text, "%llu bytes, %016llx", (unsigned long long)bytes, (unsigned long long)digest);
    check(send(connection, text, strlen(text), 0) == (ssize_t)strlen(text), "send");
    close(connection);
    free(buffer);
    return NULL;
}

static void serve(int port) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    check(bind(listener, (void *)&at, sizeof at) == 0, "bind");
    check(listen(listener, 16) == 0, "listen");
    puts("ready");
    fflush(stdout);
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        check(connection >= 0, "accept");
        pthread_t thread;
        check(pthread_create(&thread, NULL, answer, (void *)(intptr_t)connection) == 0, "pthread_create");
        pthread_detach(thread);
    }
}

struct job {
    struct sockaddr_in at;
    int number;
    char text[64];
    pthread_t thread;
};

static void *ask(void *argument) {
    struct job *job = argument;
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(connection, (void *)&job->at, sizeof job->at) == 0, "connect");
    unsigned char *piece = malloc(PIECE_BYTES);
    for (int n = 0; n < PIECES; n++) {
        memset(piece, 7 * n + job->number, PIECE_BYTES);
        for (size_t sent = 0; sent < PIECE_BYTES;) {
            ssize_t some = write(connection, piece + sent, PIECE_BYTES - sent);
            check(some > 0, "write");
            sent += some;
        }
    }
    free(piece);
    check(shutdown(connection, SHUT_WR) == 0, "shutdown");
    size_t got = 0;
    ssize_t n;
    while (got < sizeof job->text - 1 && (n = read(connection, job->text + got, sizeof job->text - 1 - got)) > 0)
        got += n;
    close(connection);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "server"))
        serve(atoi(argv[2]));
    if (argc != 4)
        return 2;
    struct job jobs[CONNECTIONS];
    memset(jobs, 0, sizeof jobs);
    for (int n = 0; n < CONNECTIONS; n++) {
        jobs[n].number = n;
        jobs[n].at.sin_family = AF_INET;
        jobs[n].at.sin_port = htons(atoi(argv[3]));
        check(inet_pton(AF_INET, argv[2], &jobs[n].at.sin_addr) == 1, "inet_pton");
        check(pthread_create(&jobs[n].thread, NULL, ask, &jobs[n]) == 0, "pthread_create");
    }
    for (int n = 0; n < CONNECTIONS; n++) {
        pthread_join(jobs[n].thread, NULL);
        printf("connection %d: %s\n", n, jobs[n].text);
    }
    return 0;
}
