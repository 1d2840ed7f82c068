// Signal handlers that use the program's sockets, at any point of the thread. `signals server PORT` prints "ready" and
// echoes; `signals client IP PORT [CASE]` prints lines for each case, which do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "serve.h"

static struct sockaddr_in where;

static void *serve(void *argument) {
    int fd = (int)(intptr_t)argument;
    char bytes[4096];
    ssize_t part;
    while ((part = read(fd, bytes, sizeof bytes)) > 0)
        for (ssize_t sent = 0; sent < part;) {
            ssize_t more = write(fd, bytes + sent, part - sent);
            if (more <= 0) goto end;
            sent += more;
        }
end:
    close(fd);
    return NULL;
}

static int made(void) {
    int fd = checked("socket", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    checked("connect", connect(fd, (void *)&where, sizeof where));
    return fd;
}

static void catch(int signal, void *handler, int flags) {
    struct sigaction action = {.sa_flags = flags};
    action.sa_sigaction = handler;
    checked("sigaction", sigaction(signal, &action, NULL));
}

// Signals for the thread, so often in a second, until it is stopped.
static timer_t storm(int signal, long every_ns) {
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = signal};
    event._sigev_un._tid = gettid();
    checked("timer_create", timer_create(CLOCK_MONOTONIC, &event, &timer));
    struct itimerspec time = {{0, every_ns}, {0, every_ns}};
    checked("timer_settime", timer_settime(timer, 0, &time, NULL));
    return timer;
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void nap(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

// Descriptors for handlers.
static int used = -1, extra = -1, epoll = -1, other = -1;
static volatile long wrote, runs, failed;

static void count(volatile long *what) { __atomic_fetch_add(what, 1, __ATOMIC_RELAXED); }

static void fail(void) { failed = failed ? failed : errno ? errno : -1; }

// A record of two bytes, whole or not at all.
static void writes(int signal) {
    int before = errno;
    (void)signal;
    count(&runs);
    ssize_t part = send(used, "hh", 2, MSG_DONTWAIT);
    if (part == 2)
        count(&wrote);
    else if (part >= 0 || errno != EAGAIN)
        fail();
    errno = before;
}

// Handlers within each other. On a busy machine one may last longer than the timer, and the stack has an end.
#define NESTED 32
static volatile int depth;

// Everything that a handler may call.
static void does_all(int signal) {
    int before = errno;
    (void)signal;
    count(&runs);
    if (depth >= NESTED) return;
    depth++;
    char byte;
    if (send(used, "hh", 2, MSG_DONTWAIT) == 2) count(&wrote);
    struct pollfd poller = {.fd = other, .events = POLLIN | POLLOUT};
    if (poll(&poller, 1, 0) < 0) fail();
    if (recv(other, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno != EAGAIN) fail();
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    if (epoll_ctl(epoll, EPOLL_CTL_MOD, other, &event) < 0) fail();
    int copy = dup(other);
    if (copy < 0 || close(copy) < 0) fail();
    fd_set set;
    FD_ZERO(&set);
    FD_SET(other, &set);
    if (select(other + 1, &set, NULL, NULL, &(struct timeval){0, 0}) < 0 && errno != EINTR) fail();
    depth--;
    errno = before;
}

#define MANY 60

// Sends and receives on the connection that the handler writes to as well, until the handler has run often. Counts returned bytes.
// Returns the bytes sent.
static long echo_all(int fd, long bytes, long *mine, long *handlers) {
    char piece[512], back[1024];
    memset(piece, 'm', sizeof piece);
    long sent = 0;
    while (*mine < bytes) {
        if (bytes - *mine < 4096 && runs <= MANY) bytes += 256 << 10;
        if (sent < bytes && sent - *mine < 32768) {
            ssize_t part = write(fd, piece, sizeof piece);
            if (part > 0) sent += part;
            else if (errno != EINTR && errno != EAGAIN) die("write");
        }
        ssize_t part = recv(fd, back, sizeof back, sent < bytes && sent - *mine < 16384 ? MSG_DONTWAIT : 0);
        if (part < 0 && errno != EAGAIN && errno != EINTR) die("recv");
        if (part == 0) die("end");
        for (ssize_t at = 0; at < part; at++) back[at] == 'm' ? ++*mine : ++*handlers;
    }
    return sent;
}

static void storm_of(const char *name, void *handler, int flags) {
    used = made(), other = made();
    epoll = checked("epoll", epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    checked("add", epoll_ctl(epoll, EPOLL_CTL_ADD, other, &event));
    wrote = runs = failed = 0;
    catch(SIGUSR1, handler, flags);
    long mine = 0, handlers = 0, bytes = 2 << 20;
    timer_t timer = storm(SIGUSR1, 50000);
    long sent = echo_all(used, bytes, &mine, &handlers);
    timer_delete(timer);
    signal(SIGUSR1, SIG_IGN);
    shutdown(used, SHUT_WR);
    char back[4096];
    ssize_t part;
    while ((part = read(used, back, sizeof back)) > 0) handlers += part;
    SAY("%s: mine %s, the handler's %s, failed %ld", name, mine == sent ? "all" : "LOST", handlers == 2 * wrote ? "all" : "LOST",
        failed);
    close(used), close(other), close(epoll);
}

static void case_storm(void) {
    storm_of("a handler that sends", writes, SA_RESTART);
    storm_of("one that interrupts", writes, 0);
    storm_of("one that does all there is", does_all, SA_RESTART);
    storm_of("one that does all and may nest", does_all, SA_RESTART | SA_NODEFER);
    char *stack = malloc(1 << 16);
    stack_t alternate = {.ss_sp = stack, .ss_size = 1 << 16};
    checked("sigaltstack", sigaltstack(&alternate, NULL));
    storm_of("one on its own stack", does_all, SA_RESTART | SA_ONSTACK);
}

// Handlers that use the same memory allocator as the call they may have interrupted.
static volatile int going = 1;

static void *storms(void *argument) {
    pthread_t thread = *(pthread_t *)argument;
    while (going) {
        pthread_kill(thread, SIGUSR2);
        for (int i = 0; i < 2000; i++) __asm__ volatile("");
    }
    return NULL;
}

static void opens(int signal) {
    int before = errno;
    (void)signal;
    runs++;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) fail();
    int flags = fcntl(fd, F_GETFL);
    if (fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) fail();
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 9};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0) fail();
    struct pollfd poller[3] = {{.fd = other, .events = POLLIN}, {.fd = fd, .events = POLLIN}, {.fd = used, .events = POLLIN}};
    if (poll(poller, 3, 0) < 0) fail();
    struct iovec pieces[3] = {{"h", 1}, {"h", 1}, {"", 0}};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 3};
    if (sendmsg(used, &message, MSG_DONTWAIT) == 2) wrote++;
    close(fd);
    errno = before;
}

static void case_memory(void) {
    used = made(), other = made();
    epoll = checked("epoll", epoll_create1(0));
    wrote = runs = failed = 0, going = 1;
    catch(SIGUSR2, opens, SA_RESTART);
    pthread_t self = pthread_self(), thread;
    pthread_create(&thread, NULL, storms, &self);
    void *blocks[64] = {0};
    long handlers = 0;
    char back[4096];
    long until = now_ms() + 250;
    for (unsigned i = 0; now_ms() < until || runs <= MANY; i++) {
        free(blocks[i % 64]);
        blocks[i % 64] = malloc(1 + i * 7919 % 3000);
        if (i % 16 == 0) {
            ssize_t part = recv(used, back, sizeof back, MSG_DONTWAIT);
            if (part > 0) handlers += part;
        }
    }
    going = 0;
    pthread_join(thread, NULL);
    signal(SIGUSR2, SIG_IGN);
    shutdown(used, SHUT_WR);
    ssize_t part;
    while ((part = read(used, back, sizeof back)) > 0) handlers += part;
    SAY("within malloc: the handler's %s, failed %ld", handlers == 2 * wrote ? "all" : "LOST", failed);
    close(used), close(other), close(epoll);
}

// The self-pipe trick over a connection: a handler writes to the descriptor that the thread waits for, in each kind of wait.
static void case_self_pipe(void) {
    static const char *names[] = {"poll", "ppoll", "select", "epoll_wait", "epoll_pwait", "read"};
    used = made(), extra = made();
    int waits = checked("epoll", epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1}, got;
    checked("add", epoll_ctl(waits, EPOLL_CTL_ADD, used, &event));
    event.data.u64 = 2;
    checked("add", epoll_ctl(waits, EPOLL_CTL_ADD, extra, &event));
    catch(SIGUSR1, writes, SA_RESTART);
    sigset_t none, usual;
    sigemptyset(&none);
    for (int kind = 0; kind < 6; kind++) {
        wrote = runs = failed = 0;
        int woken = 0, interrupted = 0, lost = 0;
        for (int round = 0; round < 100; round++) {
            long before = wrote;
            sigset_t set;
            sigemptyset(&set);
            sigaddset(&set, SIGUSR1);
            int masked = kind == 1 || kind == 4;
            if (masked) sigprocmask(SIG_BLOCK, &set, &usual);
            struct sigevent to = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
            to._sigev_un._tid = gettid();
            timer_t timer;
            checked("timer_create", timer_create(CLOCK_MONOTONIC, &to, &timer));
            struct itimerspec time = {{0, 0}, {0, 1 + round % 100 * 1000}};
            timer_settime(timer, 0, &time, NULL);
            char bytes[2];
            int result;
            for (int tries = 0; tries < 2; tries++) {
                struct pollfd polls[2] = {{.fd = used, .events = POLLIN}, {.fd = extra, .events = POLLIN}};
                fd_set reads;
                FD_ZERO(&reads);
                FD_SET(used, &reads);
                switch (kind) {
                case 0: result = poll(polls, 2, 5000); break;
                case 1: result = ppoll(polls, 2, &(struct timespec){5, 0}, &none); break;
                case 2: result = select(used + 1, &reads, NULL, NULL, &(struct timeval){5, 0}); break;
                case 3: result = epoll_wait(waits, &got, 1, 5000); break;
                case 4: result = epoll_pwait(waits, &got, 1, 5000, &none); break;
                default: result = recv(used, bytes, 1, MSG_PEEK); break;
                }
                if (result >= 0) break;
                if (errno != EINTR) die(names[kind]);
                interrupted++;
            }
            result > 0 ? woken++ : lost++;
            timer_delete(timer);
            if (masked) sigprocmask(SIG_SETMASK, &usual, NULL);
            while (wrote > before) {
                if (recv(used, bytes, 2, MSG_WAITALL) != 2) die("recv");
                before++;
            }
        }
        SAY("%s: woken %d, lost %d, handlers %ld, failed %ld, interrupted %s", names[kind], woken, lost, runs, failed,
            kind == 5 ? interrupted ? "SOMETIMES" : "never" : interrupted <= 100 ? "at most once" : "TOO OFTEN");
    }
    close(used), close(extra), close(waits);
}

// A handler that interrupts: each wait ends, whichever instant the signal comes.
static void counts(int signal) {
    (void)signal;
    runs++;
}

static void *sends_later(void *argument) {
    (void)argument;
    nap(2000);
    if (write(used, "x", 1) != 1) fail();
    return NULL;
}

static void case_interrupts(void) {
    used = made(), failed = 0;
    for (int flags = 0; flags < 2; flags++) {
        int ended = 0, slow = 0, ran = 0, rounds = flags ? 1 : 150;
        catch(SIGALRM, counts, flags ? SA_RESTART : 0);
        for (int round = 0; round < rounds; round++) {
            pthread_t thread;
            if (flags) pthread_create(&thread, NULL, sends_later, NULL);
            runs = 0;
            // A signal before the call is followed by another.
            struct itimerval time = {{0, 20000}, {0, 1 + round % 150}}, none = {{0, 0}, {0, 0}};
            setitimer(ITIMER_REAL, &time, NULL);
            char byte;
            long start = now_ms();
            ssize_t part = read(used, &byte, 1);
            if (part < 0 && errno == EINTR) ended++;
            setitimer(ITIMER_REAL, &none, NULL);
            if (now_ms() - start > 1500) slow++;
            if (runs) ran++;
            if (flags) pthread_join(thread, NULL);
        }
        SAY("%s: ended %d, long %d, handlers in %d, failed %ld", flags ? "one that restarts" : "one that interrupts", ended,
            slow, ran, failed);
    }
    signal(SIGALRM, SIG_IGN);
    close(used);
}

// Out of a handler by a jump, from the middle of every call.
static sigjmp_buf back_there;
static volatile int may_jump;

static void jumps(int signal) {
    (void)signal;
    runs++;
    if (may_jump) {
        may_jump = 0;
        siglongjmp(back_there, 1);
    }
}

static void case_jump(void) {
    used = made(), other = made();
    epoll = checked("epoll", epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    checked("add", epoll_ctl(epoll, EPOLL_CTL_ADD, other, &event));
    catch(SIGUSR1, jumps, SA_RESTART);
    runs = 0;
    volatile long jumped = 0;
    for (volatile int round = 0; round < 240; round++) {
        timer_t timer = 0;
        struct sigevent to = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
        to._sigev_un._tid = gettid();
        checked("timer_create", timer_create(CLOCK_MONOTONIC, &to, &timer));
        volatile timer_t kept = timer;
        if (sigsetjmp(back_there, 1) == 0) {
            may_jump = 1;
            struct itimerspec time = {{0, 0}, {0, 1 + round % 120 * 1000}};
            timer_settime(timer, 0, &time, NULL);
            struct pollfd poller = {.fd = other, .events = POLLIN};
            char byte;
            switch (round % 4) {
            case 0: (void)!read(used, &byte, 1); break;
            case 1: poll(&poller, 1, -1); break;
            case 2: epoll_wait(epoll, &event, 1, -1); break;
            default:
                for (;;)
                    if (send(used, "y", 1, MSG_DONTWAIT) == 1 && recv(used, &byte, 1, 0) != 1) die("recv");
            }
        } else
            jumped++;
        timer_delete(kept);
        // The connection still works.
        char byte = 0, bytes[64];
        while (recv(used, bytes, sizeof bytes, MSG_DONTWAIT) > 0) continue;
        if (write(used, "z", 1) != 1) die("write");
        long until = now_ms() + 5000;
        while (byte != 'z' && now_ms() < until)
            if (recv(used, &byte, 1, 0) != 1) die("recv");
        if (byte != 'z') die("nothing comes back");
    }
    SAY("jumped %ld times of %ld", jumped, runs);
    if (write(other, "w", 1) != 1) die("write");
    event.data.u64 = 0;
    int told = epoll_wait(epoll, &event, 1, 5000);
    SAY("told %d of %llu", told, (unsigned long long)event.data.u64);
    close(used), close(other), close(epoll);
}

// Prints a signal's information.
static void informed(int signal, siginfo_t *info, void *context) {
    sigset_t set;
    sigprocmask(SIG_BLOCK, NULL, &set);
    SAY("signal %d code %d value %d context %d blocked %d %d", signal, info->si_code, info->si_value.sival_int, context != NULL,
        sigismember(&set, SIGUSR1), sigismember(&set, SIGUSR2));
}

static const char *name_of(void *handler) {
    return handler == (void *)SIG_DFL ? "default" : handler == (void *)SIG_IGN ? "ignored" : handler == (void *)counts ? "counts"
         : handler == (void *)informed ? "informed" : "STRANGE";
}

static void shown(int signal) {
    struct sigaction now;
    checked("sigaction", sigaction(signal, NULL, &now));
    SAY("now %s flags %x mask %d", name_of((void *)now.sa_sigaction), (unsigned)now.sa_flags & ~0x04000000u,
        sigismember(&now.sa_mask, SIGUSR2));
}

static void interrupt(int signal, int interrupts) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    siginterrupt(signal, interrupts);
#pragma GCC diagnostic pop
}

static void case_read_back(void) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_RESTART}, old;
    action.sa_sigaction = informed;
    sigaddset(&action.sa_mask, SIGUSR2);
    signal(SIGUSR1, SIG_DFL);
    checked("sigaction", sigaction(SIGUSR1, &action, &old));
    SAY("before %s", name_of((void *)old.sa_sigaction));
    shown(SIGUSR1);
    sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 42});
    SAY("signal returns %s", name_of((void *)signal(SIGUSR1, counts)));
    shown(SIGUSR1);
    interrupt(SIGUSR1, 1);
    shown(SIGUSR1);
    interrupt(SIGUSR1, 0);
    SAY("signal returns %s", name_of((void *)signal(SIGUSR1, SIG_IGN)));
    shown(SIGUSR1);
    action.sa_flags = SA_RESETHAND;
    action.sa_handler = counts;
    struct sigaction *same = &action;
    __asm__("" : "+r"(same));
    checked("sigaction", sigaction(SIGUSR1, &action, same));
    SAY("into the same place: %s", name_of((void *)action.sa_sigaction));
    shown(SIGUSR1);
    runs = 0;
    raise(SIGUSR1);
    SAY("ran %ld", runs);
    shown(SIGUSR1);
    int refused = sigaction(SIGKILL, &action, NULL);
    SAY("refused: %d %s", refused, strerrorname_np(errno));
    refused = signal(SIGSTOP, counts) == SIG_ERR;
    SAY("refused: %d %s", refused, strerrorname_np(errno));
    refused = sigaction(1000, &action, NULL);
    SAY("refused: %d %s", refused, strerrorname_np(errno));
    int pid = vfork();
    if (pid == 0) {
        signal(SIGALRM, SIG_DFL);
        signal(SIGUSR2, counts);
        _exit(0);
    }
    shown(SIGUSR2);
    signal(SIGUSR2, counts);
    pid = fork();
    if (pid == 0) {
        raise(SIGUSR2);
        _exit(runs == 2 ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    SAY("in a child: %d", status);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"storm", case_storm},           {"memory", case_memory}, {"self_pipe", case_self_pipe},
    {"interrupts", case_interrupts}, {"jump", case_jump},     {"read_back", case_read_back},
};

int main(int count, char **arguments) {
    if (count >= 3 && !strcmp(arguments[1], "server")) serve_each(atoi(arguments[2]), serve);
    if (count < 4) return 2;
    where = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(arguments[3]))};
    inet_pton(AF_INET, arguments[2], &where.sin_addr);
    alarm(0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (count > 4 && strcmp(cases[i].name, arguments[4])) continue;
        SAY("%s", cases[i].name);
        cases[i].run();
    }
    return 0;
}
