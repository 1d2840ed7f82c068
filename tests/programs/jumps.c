// Handlers that leave a call by a jump, or close its descriptor: `jumps PATH`. Both ends are in this process. Prints lines that do not depend on the
// transport of the bytes.
#define _GNU_SOURCE
#include "both_ends.h"
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <sys/time.h>

// More than all buffers take.
#define BULK (64 << 20)

enum act { JUMPS, CLOSES, REPLACES };

static sigjmp_buf back;
static volatile enum act act;
static volatile int used;
static char bulk[BULK];

static void handler(int signal) {
    (void)signal;
    if (act == JUMPS) siglongjmp(back, 1);
    if (act == CLOSES) close(used);
    if (act == REPLACES) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, used), close(null);
    }
}

// Prints the end that the peer sees once it has received all.
static void peer_sees(int peer) {
    static char bytes[100000];
    struct pollfd one = {.fd = peer, .events = POLLIN};
    ssize_t part = -1;
    long all = 0;
    while (poll(&one, 1, 5000) == 1 && (part = recv(peer, bytes, sizeof bytes, 0)) > 0) all += part;
    printf(", peer got %s, end %zd\n", all > 0 ? "some" : "none", part);
}

// Has an end go on in the kernel while the call sleeps.
static void *leaves(void *argument) {
    int fd = *(int *)argument;
    usleep(15000);
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC)) die("O_ASYNC");
    return NULL;
}

// `leaver`: the end of the call, 0, or its peer, 1, leaves before the handler runs; -1: none does.
static void round_of(const char *path, bool is_unix, bool sends, int flags, int leaver) {
    static const char *names[] = {"jumps", "closes", "replaces"};
    int ends[2];
    connected(path, is_unix, true, ends);
    used = ends[0];
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval soon = {.it_value.tv_usec = leaver < 0 ? 30000 : 60000}, never = {0};
    sigset_t blocked, before;
    pthread_t thread;
    // The handler is for the calling thread.
    sigemptyset(&blocked), sigaddset(&blocked, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    if (leaver >= 0) pthread_create(&thread, NULL, leaves, &ends[leaver]);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    printf("%s %s, %d leaves, handler %s%s:", is_unix ? "unix" : "tcp", sends ? "send" : "recv", leaver, names[act], flags ? ", restarts" : "");
    if (sigsetjmp(back, 1)) {
        printf(" jumped");
    } else {
        setitimer(ITIMER_REAL, &soon, NULL);
        char bytes[10];
        ssize_t result = sends ? send(used, bulk, BULK, 0) : recv(used, bytes, sizeof bytes, 0);
        int error = result < 0 ? errno : 0;
        printf(" %s %d", result > 0 && result < BULK ? "part" : result < 0 ? "failed" : "whole", error);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    if (leaver >= 0) pthread_join(thread, NULL);
    // A call on the number finds what it stands for by now, and the close is the last.
    printf(", close %d", close(used));
    peer_sees(ends[1]);
    close(ends[1]);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    signal(SIGPIPE, SIG_IGN);
    for (int is_unix = 0; is_unix < 2; is_unix++)
        for (int sends = 0; sends < 2; sends++)
            for (int restarts = 0; restarts < 2; restarts++)
                for (int n = 0; n < 3; n++) {
                    act = n;
                    // A call in the kernel that begins anew finds a closed number, not the file that has it.
                    for (int leaver = -1; leaver < (n == REPLACES ? 0 : 2); leaver++)
                        round_of(argv[1], is_unix, sends, restarts ? SA_RESTART : 0, leaver);
                }
    return 0;
}
