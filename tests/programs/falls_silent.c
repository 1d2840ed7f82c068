/* Connects, sends a word, and makes no further call on the connection: falls_silent HOW TARGET [PORT]
 *
 * TARGET is an address with PORT, or the path of a socket of AF_UNIX. HOW is what the program does then, until it is killed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A failure ends the program before anybody can send its word. */
#define CHECK(condition)                                     \
    do {                                                     \
        if (!(condition)) {                                  \
            fprintf(stderr, "line %d: ", __LINE__);          \
            perror(#condition);                              \
            _exit(1);                                        \
        }                                                    \
    } while (0)

static int ends[2];
static pid_t child;
static int listener;

static void *sleeper(void *unused)
{
    char byte;
    (void)unused;
    return read(ends[0], &byte, 1) == 1 ? ends : NULL;
}

static void computes(void)
{
    for (volatile unsigned long n = 0;; n++)
        ;
}

static void does(const char *how)
{
    const struct timespec long_time = {600, 0};
    sigset_t none, child_ends;
    pthread_t thread;
    char byte;
    struct sockaddr_in any = {.sin_family = AF_INET};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};

    sigemptyset(&none);
    sigemptyset(&child_ends);
    sigaddset(&child_ends, SIGCHLD);
    if (!strcmp(how, "sleep"))
        sleep(600);
    else if (!strcmp(how, "usleep"))
        usleep(600000000);
    else if (!strcmp(how, "unshare")) {
        /* EINVAL for a process with further threads. */
        usleep(100000);
        CHECK(unshare(CLONE_NEWUSER) == 0);
        pause();
    } else if (!strcmp(how, "nanosleep"))
        nanosleep(&long_time, NULL);
    else if (!strcmp(how, "clock_nanosleep"))
        clock_nanosleep(CLOCK_MONOTONIC, 0, &long_time, NULL);
    else if (!strcmp(how, "pause"))
        pause();
    else if (!strcmp(how, "sigsuspend"))
        sigsuspend(&none);
    else if (!strcmp(how, "sigwait")) {
        int signal;
        sigprocmask(SIG_BLOCK, &child_ends, NULL);
        sigwait(&child_ends, &signal);
    } else if (!strcmp(how, "waitpid"))
        waitpid(child, NULL, 0);
    else if (!strcmp(how, "wait"))
        wait(NULL);
    else if (!strcmp(how, "waitid"))
        waitid(P_PID, child, &(siginfo_t){0}, WEXITED);
    else if (!strcmp(how, "read"))
        CHECK(read(ends[0], &byte, 1) == 1);
    else if (!strcmp(how, "accept"))
        CHECK(accept(listener, NULL, NULL) >= 0);
    else if (!strcmp(how, "recv") || !strcmp(how, "recvmsg")) {
        int datagrams = socket(AF_INET, SOCK_DGRAM, 0);
        CHECK(datagrams >= 0 && bind(datagrams, (struct sockaddr *)&any, sizeof any) == 0);
        CHECK((strcmp(how, "recv") ? recvmsg(datagrams, &message, 0) : recv(datagrams, &byte, 1, 0)) >= 0);
    } else if (!strcmp(how, "join")) {
        CHECK(pthread_create(&thread, NULL, sleeper, NULL) == 0);
        pthread_join(thread, NULL);
    } else
        computes();
}

int main(int argc, char **argv)
{
    const char *how = argc > 2 ? argv[1] : "";
    struct sockaddr_un file = {.sun_family = AF_UNIX};
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(argc > 3 ? atoi(argv[3]) : 0)};
    pthread_t thread;

    CHECK(argc > 2 && pipe(ends) == 0);
    if (!strncmp(how, "wait", 4)) {
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            char byte;
            close(ends[1]);
            _exit(read(ends[0], &byte, 1) == 1);
        }
    }
    if (!strcmp(how, "computes") || !strcmp(how, "join"))
        CHECK(pthread_create(&thread, NULL, sleeper, NULL) == 0);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(listener >= 0 && listen(listener, 1) == 0);

    int sock = socket(argc > 3 ? AF_INET : AF_UNIX, SOCK_STREAM, 0);
    CHECK(sock >= 0);
    if (argc > 3) {
        CHECK(inet_pton(AF_INET, argv[2], &place.sin_addr) == 1);
        CHECK(connect(sock, (struct sockaddr *)&place, sizeof place) == 0);
    } else {
        strncpy(file.sun_path, argv[2], sizeof file.sun_path - 1);
        CHECK(connect(sock, (struct sockaddr *)&file, sizeof file) == 0);
    }
    CHECK(send(sock, how, strlen(how), 0) == (ssize_t)strlen(how));
    puts("ready");
    fflush(stdout);
    does(how);
    return 1;
}
