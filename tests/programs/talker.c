/* Carries out commands to listen and connect from its input, and prints the results. Built with a dynamic and with a static C library. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in at(const char *ip, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, ip, &address.sin_addr);
    return address;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int dial(const char *ip, int port) {
    struct sockaddr_in address = at(ip, port);
    struct sockaddr_in6 address6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    int is6 = inet_pton(AF_INET6, ip, &address6.sin6_addr) == 1, fd = socket(is6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    int failed = is6 ? connect(fd, (struct sockaddr *)&address6, sizeof address6) : connect(fd, (struct sockaddr *)&address, sizeof address);
    if (!failed) return fd;
    int error = errno;
    close(fd);
    return -error;
}

static void say(const struct sockaddr_storage *address, char *into) {
    char ip[64];
    int is6 = address->ss_family == AF_INET6;
    const struct sockaddr_in *four = (const void *)address;
    const struct sockaddr_in6 *six = (const void *)address;
    inet_ntop(address->ss_family, is6 ? (const void *)&six->sin6_addr : (const void *)&four->sin_addr, ip, sizeof ip);
    sprintf(into, "%s %d", ip, ntohs(is6 ? six->sin6_port : four->sin_port));
}

/* Stores an address without its port. Threads may race; the last one wins. */
static void note(const struct sockaddr_storage *address, char *into) {
    char own[96];
    say(address, own);
    *strchr(own, ' ') = 0;
    memcpy(into, own, sizeof own);
}

/* Address of the last peer of a listener. */
static char last_peer[96] = "-";

/* Greets, and reads to the end. */
static void *swallow(void *arg) {
    static __thread char bytes[1 << 16];
    int fd = (long)arg;
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    if (!getpeername(fd, (struct sockaddr *)&peer, &len)) {
        note(&peer, last_peer);
    }
    if (write(fd, "h", 1) == 1) {
        while (read(fd, bytes, sizeof bytes) > 0) {}
    }
    close(fd);
    return NULL;
}

/* Greets, and sends everything back. */
static void *echo(void *arg) {
    static __thread char bytes[1 << 16];
    int fd = (long)arg;
    if (write(fd, "h", 1) == 1)
        for (ssize_t got; (got = read(fd, bytes, sizeof bytes)) > 0;)
            for (ssize_t sent = 0, more; sent < got; sent += more)
                if ((more = write(fd, bytes + sent, got - sent)) <= 0) goto end;
end:
    close(fd);
    return NULL;
}

/* A listener, and the function that serves its connections. */
struct service {
    int listener;
    void *(*each)(void *);
};

static void *serve(void *arg) {
    struct service service = *(struct service *)arg;
    free(arg);
    for (;;) {
        long fd = accept(service.listener, NULL, NULL);
        pthread_t thread;
        if (fd < 0) return NULL;
        pthread_create(&thread, NULL, service.each, (void *)fd);
        pthread_detach(thread);
    }
}

static void start_serving(int listener, void *(*each)(void *)) {
    struct service *service = malloc(sizeof *service);
    pthread_t thread;
    *service = (struct service){listener, each};
    pthread_create(&thread, NULL, serve, service);
}

/* A conversation over a connection to an `echo`, in a thread of its own. */
struct talk {
    pthread_t thread;
    int fd, is_over, error;
    long bytes;
};

static void *converse(void *arg) {
    static __thread char said[1 << 15], back[1 << 15];
    struct talk *talk = arg;
    for (unsigned turn = 1; !__atomic_load_n(&talk->is_over, __ATOMIC_ACQUIRE); turn++) {
        ssize_t len = 1 + turn * 7919 % sizeof said, sent = 0, got = 0, more;
        for (ssize_t i = 0; i < len; i++) said[i] = (char)((turn * 2654435761u + i * 40503u) >> 7);
        for (; sent < len; sent += more)
            if ((more = write(talk->fd, said + sent, len - sent)) <= 0) goto failed;
        for (; got < len; got += more)
            if ((more = read(talk->fd, back + got, len - got)) <= 0) goto failed;
        if (memcmp(said, back, len)) {
            talk->error = EBADMSG;
            return NULL;
        }
        __atomic_fetch_add(&talk->bytes, len, __ATOMIC_RELAXED);
    }
    return NULL;
failed:
    talk->error = errno ? errno : EPIPE;
    return NULL;
}

/* Connections that a transparent proxy has seen, with original destination and peer of the last one. */
static int seen, passed[256];
static char seen_asked[96] = "-", seen_peer[96] = "-";

struct ends {
    int from, to;
};

static void *relay(void *arg) {
    struct ends ends = *(struct ends *)arg;
    char bytes[1 << 14];
    ssize_t got;
    free(arg);
    while ((got = read(ends.from, bytes, sizeof bytes)) > 0)
        for (ssize_t sent = 0; sent < got;) {
            ssize_t more = write(ends.to, bytes + sent, got - sent);
            if (more <= 0) break;
            sent += more;
        }
    shutdown(ends.to, SHUT_WR);
    return NULL;
}

static void start_relay(pthread_t *thread, int from, int to) {
    struct ends *ends = malloc(sizeof *ends);
    *ends = (struct ends){from, to};
    pthread_create(thread, NULL, relay, ends);
}

/* Relays a connection of a transparent proxy to its original destination. */
static void *pass(void *arg) {
    int fd = (long)arg;
    struct sockaddr_storage asked, peer;
    socklen_t len = sizeof peer;
    pthread_t there, back;
    getpeername(fd, (struct sockaddr *)&peer, &len);
    note(&peer, seen_peer);
    int is4 = peer.ss_family == AF_INET;
    len = sizeof asked;
    /* SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST are the same number. */
    if (getsockopt(fd, is4 ? IPPROTO_IP : IPPROTO_IPV6, 80, &asked, &len)) {
        sprintf(seen_asked, "errno %d", errno);
        __sync_fetch_and_add(&seen, 1);
        close(fd);
        return NULL;
    }
    say(&asked, seen_asked);
    int number = __sync_fetch_and_add(&seen, 1);
    if (number < 256) passed[number] = fd;
    int on = socket(asked.ss_family, SOCK_STREAM, 0);
    if (connect(on, (struct sockaddr *)&asked, len)) {
        close(on), close(fd);
        return NULL;
    }
    start_relay(&there, fd, on);
    start_relay(&back, on, fd);
    pthread_join(there, NULL), pthread_join(back, NULL);
    close(on), close(fd);
    return NULL;
}

int main(void) {
    static char line[256], bytes[1 << 16];
    static int held[64];
    static struct talk talks[64];
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IONBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        char ip[64] = "", path[256] = "";
        int port = 0, name = 0, listener;
        double arg = 0;
        if (sscanf(line, "listen %d", &port) == 1) {
            struct sockaddr_in any = at("0.0.0.0", port);
            int on = 1;
            listener = socket(AF_INET, SOCK_STREAM, 0);
            setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
            if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 64)) {
                printf("error %d listen\n", errno);
                continue;
            }
            printf("ok \n");
            start_serving(listener, swallow);
        } else if (sscanf(line, "connect %d %63s %d", &name, ip, &port) == 3) {
            int fd = dial(ip, port);
            if (fd < 0) printf("error %d connect\n", -fd);
            else if (errno = 0, read(fd, bytes, 1) != 1) printf("error %d nobody\n", errno);
            else held[name] = fd, printf("ok \n");
        } else if (sscanf(line, "enter %255s", path) == 1) {
            /* Moves this thread alone into a network namespace. */
            int space = open(path, O_RDONLY | O_CLOEXEC);
            if (space < 0 || setns(space, CLONE_NEWNET)) printf("error %d enter\n", errno);
            else printf("ok \n");
            if (space >= 0) close(space);
        } else if (sscanf(line, "hear6 %d", &port) == 1 || sscanf(line, "echo6 %d", &port) == 1) {
            struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
            listener = socket(AF_INET6, SOCK_STREAM, 0);
            if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 64)) {
                printf("error %d listen\n", errno);
                continue;
            }
            printf("ok \n");
            start_serving(listener, line[0] == 'e' ? echo : swallow);
        } else if (sscanf(line, "proxy %d", &port) == 1) {
            /* On two sockets, as in programs that want plain IPv4 addresses. */
            for (int is6 = 0; is6 < 2; is6++) {
                struct sockaddr_in four = at("0.0.0.0", port);
                struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
                int on = 1;
                listener = socket(is6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
                setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
                if (is6) setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
                if (bind(listener, is6 ? (void *)&six : (void *)&four, is6 ? sizeof six : sizeof four) || listen(listener, 64)) {
                    printf("error %d listen\n", errno);
                    continue;
                }
                start_serving(listener, pass);
            }
            printf("ok \n");
        } else if (strcmp(line, "seen\n") == 0) {
            printf("ok %d %s %s\n", seen, seen_asked, seen_peer);
        } else if (sscanf(line, "asked %d", &name) == 1) {
            /* Original destination of a connection of the proxy that is still open, the first one being 0. */
            struct sockaddr_storage asked;
            socklen_t len = sizeof asked;
            if (getsockopt(passed[name], IPPROTO_IP, 80, &asked, &len)) printf("error %d asked\n", errno);
            else say(&asked, bytes), printf("ok %s\n", bytes);
        } else if (strcmp(line, "last\n") == 0) {
            printf("ok %s\n", last_peer);
        } else if (sscanf(line, "peer %d", &name) == 1) {
            /* Destination of a connection, as the program sees it. */
            struct sockaddr_storage peer;
            socklen_t len = sizeof peer;
            if (getpeername(held[name], (struct sockaddr *)&peer, &len)) {
                printf("error %d peer\n", errno);
                continue;
            }
            int is6 = peer.ss_family == AF_INET6;
            struct sockaddr_in *four = (void *)&peer;
            struct sockaddr_in6 *six = (void *)&peer;
            inet_ntop(peer.ss_family, is6 ? (void *)&six->sin6_addr : (void *)&four->sin_addr, bytes, sizeof bytes);
            printf("ok %s %d\n", bytes, ntohs(is6 ? six->sin6_port : four->sin_port));
        } else if (sscanf(line, "end %d %lf", &name, &arg) >= 1) {
            /* Waits for the end of a connection, 2 s or as many ms as are given: an errno, or 0. */
            struct pollfd one = {.fd = held[name], .events = POLLIN};
            int result = poll(&one, 1, arg > 0 ? (int)arg : 2000);
            if (result == 0) printf("error %d open\n", ETIMEDOUT);
            else result = read(held[name], bytes, 1), printf("ok %d\n", result < 0 ? errno : 0);
        } else if (sscanf(line, "close %d", &name) == 1) {
            close(held[name]);
            printf("ok \n");
        } else if (sscanf(line, "talk %d", &name) == 1) {
            /* Begins a conversation; `talked` tells its bytes so far, `hush` ends it and tells them. */
            talks[name] = (struct talk){.fd = held[name]};
            pthread_create(&talks[name].thread, NULL, converse, &talks[name]);
            printf("ok \n");
        } else if (sscanf(line, "talked %d", &name) == 1) {
            printf("ok %ld\n", __atomic_load_n(&talks[name].bytes, __ATOMIC_RELAXED));
        } else if (sscanf(line, "hush %d", &name) == 1) {
            __atomic_store_n(&talks[name].is_over, 1, __ATOMIC_RELEASE);
            pthread_join(talks[name].thread, NULL);
            if (talks[name].error) printf("error %d talk\n", talks[name].error);
            else printf("ok %ld\n", talks[name].bytes);
        } else if (sscanf(line, "times %63s %d %lf", ip, &port, &arg) == 3) {
            /* Microseconds of the median connect. */
            static double took[4096];
            int count = arg;
            for (int i = 0; i < count; i++) {
                double begin = now();
                int fd = dial(ip, port);
                took[i] = now() - begin;
                if (fd < 0) took[i] = 1;
                else close(fd);
            }
            for (int i = 1; i < count; i++)
                for (int j = i; j > 0 && took[j] < took[j - 1]; j--) {
                    double swap = took[j];
                    took[j] = took[j - 1], took[j - 1] = swap;
                }
            printf("ok %.2f\n", took[count / 2] * 1e6);
        } else if (sscanf(line, "pour %d %lf", &name, &arg) == 2) {
            /* Bytes sent in a number of seconds. */
            double end = now() + arg, sum = 0;
            while (now() < end) {
                ssize_t sent = send(held[name], bytes, sizeof bytes, MSG_DONTWAIT);
                struct pollfd one = {.fd = held[name], .events = POLLOUT};
                if (sent > 0) sum += sent;
                else poll(&one, 1, 20);
            }
            printf("ok %.0f\n", sum);
        } else {
            printf("error %d what?\n", EINVAL);
        }
    }
    return 0;
}
