/* Accepts from the listeners FD: takes_words INTO FD ... Appends the first bytes of each connection to INTO. If that is "-", sends all
 * bytes back. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int into = -1;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void *serve(void *number)
{
    int sock = (int)(intptr_t)number;
    char bytes[65537];
    ssize_t len;

    while ((len = recv(sock, bytes, sizeof bytes - 1, 0)) > 0) {
        if (into < 0) {
            for (ssize_t sent = 0; sent < len;) {
                ssize_t part = send(sock, bytes + sent, len - sent, MSG_NOSIGNAL);
                if (part < 0)
                    return NULL;
                sent += part;
            }
            continue;
        }
        bytes[len] = '\n';
        if (write(into, bytes, len + 1) != len + 1)
            fail("write");
        return NULL; /* The socket stays open. */
    }
    close(sock);
    return NULL;
}

static void begin(void *(*what)(void *), intptr_t number)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, what, (void *)number))
        fail("pthread_create");
}

static void *listens(void *listener)
{
    for (int sock; (sock = accept((int)(intptr_t)listener, NULL, NULL)) >= 0;)
        begin(serve, sock);
    fail("accept");
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 1;
    if (argv[1][0] != '-') {
        into = open(argv[1], O_WRONLY | O_APPEND | O_CREAT, 0600);
        if (into < 0)
            fail(argv[1]);
    }
    puts("ready");
    fflush(stdout);
    for (int n = 2; n < argc; n++)
        begin(listens, atoi(argv[n]));
    pause();
    return 0;
}
