// Handlers that leave a call by a jump, or close its descriptor: `jumps PATH`. Both ends are in this process. Prints lines that do not depend on the
// transport of the bytes.
#define _GNU_SOURCE
#include "asleep.h"
#include "both_ends.h"
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

// More than all buffers take.
#define BULK (64 << 20)

enum act { JUMPS, CLOSES, REPLACES };
// Calls that sleep. The splices wait for a pipe: one that is empty, and one that is full.
enum call { RECEIVES, SENDS, SENDS_FILE, SPLICES_IN, SPLICES_OUT, CALLS };

static sigjmp_buf back;
static volatile enum act act;
static volatile int used;
static char bulk[BULK];
static int file, ends_of_pipe[2];

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
    ssize_t part = -2;
    long all = 0;
    while (poll(&one, 1, 5000) == 1 && (part = recv(peer, bytes, sizeof bytes, 0)) > 0) all += part;
    printf(", peer got %s, end %zd\n", all > 0 ? "some" : "none", part);
}

// The thread that calls, once it is about to, and the end that leaves; -1: none does.
static atomic_int caller;
static int leaver_fd;

// Has an end go on in the kernel while the call sleeps, and then a handler run.
static void *interrupts(void *thread) {
    await_asleep(&caller, NULL);
    if (leaver_fd >= 0) {
        if (fcntl(leaver_fd, F_SETFL, fcntl(leaver_fd, F_GETFL) | O_ASYNC)) die("O_ASYNC");
        await_asleep(&caller, NULL);
    }
    pthread_kill(*(pthread_t *)thread, SIGALRM);
    return NULL;
}

static ssize_t called(enum call call) {
    char bytes[10];
    off_t from = 0;
    switch (call) {
    case RECEIVES: return recv(used, bytes, sizeof bytes, 0);
    case SENDS: return send(used, bulk, BULK, 0);
    case SENDS_FILE: return sendfile(used, file, &from, BULK);
    case SPLICES_IN: return splice(ends_of_pipe[0], NULL, used, NULL, BULK, 0);
    default: return splice(used, NULL, ends_of_pipe[1], NULL, BULK, 0);
    }
}

// A pipe that no byte can be taken from, or be put into. `is_used`: by other calls than splices.
static void make_pipe(enum call call, bool is_used) {
    char byte;
    if (pipe(ends_of_pipe)) die("pipe");
    if (is_used && (write(ends_of_pipe[1], "a", 1) != 1 || read(ends_of_pipe[0], &byte, 1) != 1)) die("used");
    if (call != SPLICES_OUT) return;
    fcntl(ends_of_pipe[1], F_SETFL, O_NONBLOCK);
    while (write(ends_of_pipe[1], bulk, 4096) > 0) {}
    fcntl(ends_of_pipe[1], F_SETFL, 0);
}

// `leaver`: the end of the call, 0, or its peer, 1, leaves before the handler runs; -1: none does.
static void round_of(const char *path, bool is_unix, enum call call, int flags, int leaver) {
    static const char *names[] = {"jumps", "closes", "replaces"}, *calls[] = {"recv", "send", "sendfile", "splice in", "splice out"};
    int ends[2];
    connected(path, is_unix, true, ends);
    used = ends[0];
    make_pipe(call, leaver >= 0);
    // A close with bytes unread resets an AF_UNIX connection, but not one that left with them (libpd_preload(7)).
    bool is_ended = is_unix && leaver == 0;
    if (call == SPLICES_OUT && !is_ended && send(ends[1], "more", 4, 0) != 4) die("send");
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(SIGALRM, &action, NULL);
    pthread_t self = pthread_self(), thread;
    caller = 0;
    leaver_fd = leaver < 0 ? -1 : ends[leaver];
    pthread_create(&thread, NULL, interrupts, &self);
    printf("%s %s, %d leaves, handler %s%s:", is_unix ? "unix" : "tcp", calls[call], leaver, names[act], flags ? ", restarts" : "");
    if (sigsetjmp(back, 1)) {
        printf(" jumped");
    } else {
        caller = gettid();
        ssize_t result = called(call);
        int error = result < 0 ? errno : 0;
        printf(" %s %d", result > 0 && result < BULK ? "part" : result < 0 ? "failed" : "whole", error);
    }
    pthread_join(thread, NULL);
    // A call on the number finds what it stands for by now, and the close is the last.
    printf(", close %d", close(used));
    peer_sees(ends[1]);
    close(ends[1]), close(ends_of_pipe[0]), close(ends_of_pipe[1]);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    signal(SIGPIPE, SIG_IGN);
    file = checked("memfd", memfd_create("bulk", 0));
    if (ftruncate(file, BULK)) die("ftruncate");
    for (int is_unix = 0; is_unix < 2; is_unix++)
        for (enum call call = RECEIVES; call < CALLS; call++)
            for (int restarts = 0; restarts < 2; restarts++)
                for (int n = 0; n < 3; n++) {
                    act = n;
                    // A splice that begins anew waits for its pipe for ever.
                    if (call >= SPLICES_IN && n == REPLACES) continue;
                    // A call in the kernel that begins anew finds a closed number, not the file that has it.
                    for (int leaver = -1; leaver < (n == REPLACES ? 0 : 2); leaver++)
                        round_of(argv[1], is_unix, call, restarts ? SA_RESTART : 0, leaver);
                }
    return 0;
}
