// POSIX aio on connections: `aio server PORT` echoes by requests, `aio client IP PORT [alone]` makes requests of each kind
// and prints what becomes of them, alone without a forked child, which does not depend on the transport of the bytes.
#define _GNU_SOURCE
#include "outcome.h"
#include "serve.h"
#include <aio.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdbool.h>
#include <sys/time.h>
#include <sys/wait.h>

#define MANY 12
#define BULK (4 << 20)

static const char *ip;
static int port;

static struct aiocb request(int fd, const void *bytes, size_t len) {
    return (struct aiocb){.aio_fildes = fd, .aio_buf = (void *)bytes, .aio_nbytes = len, .aio_sigevent.sigev_notify = SIGEV_NONE};
}

// Waits for a request, and returns its result or its error below nothing.
static long result(struct aiocb *one) {
    const struct aiocb *list[] = {one};
    while (aio_error(one) == EINPROGRESS) aio_suspend(list, 1, NULL);
    int error = aio_error(one);
    long result = aio_return(one);
    return error ? -error : result;
}

static void *serve(void *argument) {
    int fd = (int)(intptr_t)argument;
    static __thread char bytes[1 << 16];
    for (;;) {
        struct aiocb read = request(fd, bytes, sizeof bytes);
        long part = aio_read(&read) ? -1 : result(&read);
        if (part <= 0) break;
        struct aiocb write = request(fd, bytes, part);
        if (aio_write(&write) || result(&write) != part) break;
    }
    close(fd);
    return NULL;
}

static int connected(void) {
    int fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, ip, &to.sin_addr);
    checked("connect", connect(fd, (void *)&to, sizeof to));
    return fd;
}

static void say(int fd, const char *text) {
    if (write(fd, text, strlen(text)) != (ssize_t)strlen(text)) die("write");
}

static void simple(void) {
    int fd = connected();
    char bytes[10] = "";
    struct aiocb out = request(fd, "hello", 5), in = request(fd, bytes, sizeof bytes);
    printf("write %s", outcome(aio_write(&out)));
    printf(" %s", name(result(&out)));
    printf(", read %s", outcome(aio_read(&in)));
    long got = result(&in);
    SAY(" %s %.*s, again %s", name(got), (int)got, bytes, name(aio_error(&in)));

    in = request(fd, bytes, sizeof bytes);
    aio_read(&in);
    const struct aiocb *list[] = {NULL, &in};
    printf("waits: %s", name(-aio_error(&in)));
    printf(" %s", outcome(aio_suspend(list, 2, &(struct timespec){0, 0})));
    printf(" %s", outcome(aio_suspend(list, 2, &(struct timespec){0, 20000000})));
    say(fd, "later");
    printf(" %s", outcome(aio_suspend(list, 2, &(struct timespec){10, 0})));
    got = result(&in);
    SAY(" %s %.*s %s", name(got), (int)got, bytes, outcome(aio_suspend(list, 2, NULL)));

    in = request(fd, bytes, 0);
    aio_read(&in);
    printf("nothing: %s", name(result(&in)));
    out = request(fd, bytes, 0);
    aio_write(&out);
    printf(" %s", name(result(&out)));
    in = request(fd, bytes, 1), in.aio_reqprio = -1;
    printf(", low %s", outcome(aio_read(&in)));
    printf(" %s", name(-aio_error(&in)));
    in = request(fd, NULL, 0);
    printf(", sync %s", outcome(aio_fsync(77, &in)));
    printf(" %s", outcome(aio_fsync(O_SYNC, &in)));
    printf(" %s", name(result(&in)));
    aio_fsync(O_DSYNC, &in);
    SAY(" %s", name(result(&in)));

    fcntl(fd, F_SETFL, O_NONBLOCK);
    in = request(fd, bytes, sizeof bytes);
    aio_read(&in);
    printf("at once: %s", name(result(&in)));
    fcntl(fd, F_SETFL, 0);
    in = request(fd, bytes, sizeof bytes);
    aio_read(&in);
    usleep(20000);
    shutdown(fd, SHUT_WR);
    printf(", end %s", name(result(&in)));
    // Its signal is the thread's that writes.
    signal(SIGPIPE, SIG_DFL);
    out = request(fd, "x", 1);
    aio_write(&out);
    printf(" %s", name(result(&out)));
    close(fd);
    in = request(fd, bytes, 1);
    printf(", closed %s", outcome(aio_read(&in)));
    printf(" %s", name(result(&in)));
    fd = socket(AF_INET, SOCK_STREAM, 0);
    in = request(fd, bytes, 1);
    aio_read(&in);
    SAY(", alone %s", name(result(&in)));
    close(fd);
}

// Requests of one descriptor have their turns by priority, reads and writes alike.
static void turns(void) {
    int fd = connected();
    char bytes[4][5] = {"", "", "", ""};
    struct aiocb all[4];
    int lowered[] = {0, 10, 5, 5};
    for (int n = 0; n < 4; n++) {
        all[n] = request(fd, bytes[n], 4), all[n].aio_reqprio = lowered[n];
        aio_read(&all[n]);
        usleep(20000);
    }
    struct aiocb out = request(fd, "never first", 11);
    aio_write(&out);
    usleep(20000);
    printf("turns: %s", name(-aio_error(&out)));
    say(fd, "aaaabbbbccccdddd");
    for (int n = 0; n < 4; n++) printf(" %s %s", name(result(&all[n])), bytes[n]);
    SAY(" %s", name(result(&out)));
    close(fd);
}

static void cancels(void) {
    int fd = connected();
    char bytes[16];
    struct aiocb all[4];
    for (int n = 0; n < 4; n++) {
        all[n] = request(fd, bytes, sizeof bytes);
        aio_read(&all[n]);
        usleep(20000);
    }
    all[1].aio_sigevent.sigev_notify = SIGEV_NONE;
    printf("cancels: first %s", outcome(aio_cancel(fd, &all[0])));
    printf(", second %s", outcome(aio_cancel(fd, &all[1])));
    printf(" %s", name(-aio_error(&all[1])));
    printf(" %ld", (long)aio_return(&all[1]));
    printf(", again %s", outcome(aio_cancel(fd, &all[1])));
    printf(", other %s", outcome(aio_cancel(0, &all[2])));
    printf(", none %s", outcome(aio_cancel(999, NULL)));
    printf(", all %s", outcome(aio_cancel(fd, NULL)));
    for (int n = 0; n < 4; n++) printf(" %s", name(-aio_error(&all[n])));
    say(fd, "done");
    printf(" %s", name(result(&all[0])));
    SAY(", rest %s", outcome(aio_cancel(fd, NULL)));
    close(fd);
}

static sem_t told;
static volatile int told_value;

static void called(union sigval value) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    told_value = value.sival_int + sigismember(&blocked, SIGUSR1) * 1000;
    sem_post(&told);
}

static void wait_told(const char *what) {
    sem_wait(&told);
    printf(" %s %d", what, told_value);
}

static void wait_signal(int signal, int timeout_ms) {
    sigset_t set;
    siginfo_t info;
    sigemptyset(&set), sigaddset(&set, signal);
    if (sigtimedwait(&set, &info, &(struct timespec){timeout_ms / 1000, timeout_ms % 1000 * 1000000}) < 0)
        printf(" none");
    else
        printf(" %d %d %d", info.si_code == SI_ASYNCIO, info.si_pid == getpid(), info.si_value.sival_int);
}

static struct sigevent by_signal(int value) {
    return (struct sigevent){.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = value};
}

static struct sigevent by_thread(int value) {
    return (struct sigevent){.sigev_notify = SIGEV_THREAD, .sigev_notify_function = called, .sigev_value.sival_int = value};
}

static void events(void) {
    int fd = connected();
    char bytes[16];
    struct aiocb in = request(fd, bytes, sizeof bytes), behind = in;
    in.aio_sigevent = by_signal(41);
    aio_read(&in);
    printf("events:");
    wait_signal(SIGRTMIN, 20);
    say(fd, "one");
    wait_signal(SIGRTMIN, 10000);
    printf(" %s", name(result(&in)));
    in.aio_sigevent = by_thread(42);
    aio_read(&in);
    say(fd, "three");
    wait_told("thread");
    printf(" %s", name(result(&in)));
    in.aio_sigevent.sigev_notify = SIGEV_NONE;
    aio_read(&in);
    usleep(20000);
    behind.aio_sigevent = by_thread(43);
    aio_read(&behind);
    aio_cancel(fd, &behind);
    wait_told("cancelled");
    say(fd, "end");
    SAY(" %s", name(result(&in)));
    close(fd);
}

static void lists(void) {
    int fds[2] = {connected(), connected()}, ends[2], zero = open("/dev/zero", O_RDONLY);
    char bytes[4][8];
    checked("pipe", pipe(ends));
    struct aiocb all[5] = {request(fds[0], "first", 5), request(ends[1], "pipe", 4), request(fds[1], "second", 6),
                           request(zero, bytes[0], 8), request(99, NULL, 0)};
    struct aiocb *list[] = {&all[0], NULL, &all[1], &all[2], &all[3], &all[4]};
    for (int n = 0; n < 3; n++) all[n].aio_lio_opcode = LIO_WRITE;
    all[3].aio_lio_opcode = LIO_READ, all[4].aio_lio_opcode = LIO_NOP;
    printf("lists: %s", outcome(lio_listio(LIO_WAIT, list, 6, NULL)));
    for (int n = 0; n < 4; n++) printf(" %s", name(result(&all[n])));

    int in[3] = {fds[0], ends[0], fds[1]};
    for (int n = 0; n < 3; n++) {
        all[n] = request(in[n], bytes[n], 8), all[n].aio_lio_opcode = LIO_READ;
        list[n] = &all[n];
    }
    printf(", back %s", outcome(lio_listio(LIO_WAIT, list, 3, NULL)));
    for (int n = 0; n < 3; n++) printf(" %s", name(result(&all[n])));

    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    printf(", failing %s", (say(fds[0], "x"), say(ends[1], "y"), outcome(lio_listio(LIO_WAIT, list, 3, NULL))));
    for (int n = 0; n < 3; n++) printf(" %s", name(result(&all[n])));
    fcntl(fds[1], F_SETFL, 0);
    printf(", wrong %s", outcome(lio_listio(7, list, 3, NULL)));
    SAY(" %s", outcome(lio_listio(LIO_NOWAIT, list, 0, NULL)));

    for (int thread = 0; thread < 2; thread++) {
        struct sigevent event = thread ? by_thread(51) : by_signal(50);
        printf("list told by %s: %s", thread ? "thread" : "signal", outcome(lio_listio(LIO_NOWAIT, list, 3, &event)));
        say(fds[1], "b");
        printf(" %s", name(result(&all[2])));
        say(ends[1], "p");
        printf(" %s", name(result(&all[1])));
        wait_signal(SIGRTMIN, 20);
        say(fds[0], "a");
        if (thread)
            wait_told("thread");
        else
            wait_signal(SIGRTMIN, 10000);
        SAY(" %s", name(result(&all[0])));
    }
    // A wait for requests of both kinds, of which either may be the first to be done.
    for (int first = 0; first < 2; first++) {
        lio_listio(LIO_NOWAIT, list, 2, NULL);
        const struct aiocb *both[] = {&all[0], &all[1]};
        printf("either:");
        printf(" %s", outcome(aio_suspend(both, 2, &(struct timespec){0, 20000000})));
        say(first ? fds[0] : ends[1], "1");
        printf(" %s", outcome(aio_suspend(both, 2, &(struct timespec){10, 0})));
        printf(" %s", name(result(&all[1 - first])));
        printf(" %s", name(-aio_error(&all[first])));
        say(first ? ends[1] : fds[0], "2");
        SAY(" %s", name(result(&all[first])));
    }
    close(fds[0]), close(fds[1]), close(ends[0]), close(ends[1]), close(zero);
}

static volatile sig_atomic_t alarms;

static void alarmed(int signal) { (void)signal, alarms++; }

static void *says_later(void *argument) {
    usleep(60000);
    say((int)(intptr_t)argument, "later");
    return NULL;
}

static void signals(void) {
    int fd = connected();
    char bytes[8];
    for (int restarts = 0; restarts < 2; restarts++) {
        struct sigaction action = {.sa_handler = alarmed, .sa_flags = restarts ? SA_RESTART : 0};
        sigaction(SIGALRM, &action, NULL);
        struct aiocb in = request(fd, bytes, sizeof bytes);
        const struct aiocb *list[] = {&in};
        aio_read(&in);
        struct itimerval timer = {.it_value.tv_usec = 20000};
        setitimer(ITIMER_REAL, &timer, NULL);
        pthread_t thread;
        if (restarts) pthread_create(&thread, NULL, says_later, (void *)(intptr_t)fd);
        printf("alarm: %s", outcome(aio_suspend(list, 1, NULL)));
        printf(" %d", alarms);
        if (!restarts) say(fd, "now");
        SAY(" %s", name(result(&in)));
        if (restarts) pthread_join(thread, NULL);
    }
    close(fd);
}

// Requests are those of the process that made them.
static void forks(void) {
    int fd = connected(), status = 0;
    char bytes[8] = "";
    struct aiocb in = request(fd, bytes, sizeof bytes);
    aio_read(&in);
    usleep(20000);
    pid_t child = fork();
    if (child == 0) {
        // The C library's queues are of no use in a child.
        say(fd, "child");
        _exit(aio_error(&in) != EINPROGRESS);
    }
    waitpid(child, &status, 0);
    printf("fork: %d", status);
    SAY(" %s %.5s", name(result(&in)), bytes);
    close(fd);
}

static void *reads_bulk(void *argument) {
    int fd = (int)(intptr_t)argument;
    uint64_t sum = 0;
    for (size_t at = 0; at < BULK;) {
        unsigned char bytes[10000];
        ssize_t part = read(fd, bytes, sizeof bytes);
        if (part <= 0) break;
        for (ssize_t n = 0; n < part; n++) sum += (at + n) * bytes[n];
        at += part;
    }
    return (void *)(uintptr_t)sum;
}

static void bulk(void) {
    int fd = connected();
    unsigned char *bytes = malloc(BULK);
    uint64_t sum = 0;
    for (size_t n = 0; n < BULK; n++) sum += n * (bytes[n] = n * 31 >> 5);
    pthread_t thread;
    pthread_create(&thread, NULL, reads_bulk, (void *)(intptr_t)fd);
    struct aiocb out = request(fd, bytes, BULK);
    aio_write(&out);
    printf("bulk: %s", name(result(&out)));
    void *got;
    pthread_join(thread, &got);
    SAY(" %d", (uintptr_t)got == sum);
    // Many descriptors, fewer than the C library has threads.
    int fds[MANY];
    char all[MANY][8];
    struct aiocb many[MANY];
    for (int n = 0; n < MANY; n++) {
        fds[n] = connected();
        many[n] = request(fds[n], all[n], 8);
        aio_read(&many[n]);
    }
    long count = 0;
    for (int n = 0; n < MANY; n++) {
        say(fds[n], "many");
        count += result(&many[n]);
    }
    for (int n = 0; n < MANY; n++) close(fds[n]);
    SAY("many: %ld", count);
    for (int n = 0; n < 200; n++) {
        struct aiocb in = request(fd, bytes, 100);
        out = request(fd, "small", 5);
        if (aio_write(&out) || result(&out) != 5 || aio_read(&in) || result(&in) != 5) die("small");
    }
    close(fd);
    free(bytes);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    if (!strcmp(argv[1], "server")) serve_each(atoi(argv[2]), serve);
    ip = argv[2], port = atoi(argv[3]);
    sigset_t blocked;
    sigemptyset(&blocked), sigaddset(&blocked, SIGRTMIN), sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    sem_init(&told, 0, 0);
    simple();
    turns();
    cancels();
    events();
    lists();
    signals();
    if (argc == 4) forks();
    bulk();
    return 0;
}
