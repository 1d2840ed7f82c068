// Descriptors that one thread closes while another one is in a call on them: `outlives PATH`. The call goes on, and the peer learns of the
// end afterwards. Both ends are in this process. Prints lines that do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include "asleep.h"
#include "both_ends.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>

#define BULK (8 << 20)

static const char *path;

struct call {
    // Of the thread, once it is about to call.
    atomic_int thread;
    int fd;
    bool sends, all;
    long result;
    char bytes[16];
};

static char bulk[BULK];

static void *calls(void *argument) {
    struct call *call = argument;
    call->thread = syscall(SYS_gettid);
    if (call->sends)
        call->result = send(call->fd, bulk, BULK, 0);
    else
        call->result = recv(call->fd, call->bytes, call->all ? 10 : 16, call->all ? MSG_WAITALL : 0);
    if (call->result < 0) call->result = -errno;
    return NULL;
}

// Begins a call in a thread of its own. Returns when it has slept for a while, in the call therefore.
static pthread_t begun(struct call *call) {
    pthread_t thread;
    pthread_create(&thread, NULL, calls, call);
    await_asleep(&call->thread, NULL);
    return thread;
}

// Has an end of the fabric go on in the kernel.
static void leave(int fd) {
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC)) die("O_ASYNC");
}

// Gives a number to a file that takes no bytes, and has endless ones that differ from all that are sent.
static void reuse(int fd) {
    int full = checked("open", open("/dev/full", O_RDWR));
    if (full != fd && (dup2(full, fd) != fd || close(full))) die("dup2");
}

// `leaves`: the end of the closed number, 0, or the other one, 1, leaves before the close; -1: none does.
static void receives(bool is_unix, bool all, int leaves) {
    int ends[2];
    connected(path, is_unix, true, ends);
    struct call call = {.fd = ends[0], .all = all};
    pthread_t thread = begun(&call);
    if (leaves >= 0) leave(ends[leaves]);
    printf("%s %s %d: close %d", is_unix ? "unix" : "tcp", all ? "all" : "some", leaves, close(ends[0]));
    // The number is free, and a call that begins now is none on the connection.
    char byte;
    printf(" %d", read(ends[0], &byte, 1) < 0 && errno == EBADF);
    reuse(ends[0]);
    struct pollfd one = {.fd = ends[1], .events = POLLIN};
    printf(", peer %d", poll(&one, 1, 50));
    printf(" %zd", send(ends[1], "later", 5, 0));
    if (all) {
        usleep(20000);
        printf(" %zd", send(ends[1], "still", 5, 0));
    }
    pthread_join(thread, NULL);
    printf(", got %ld %.10s", call.result, call.bytes);
    printf(", peer %d", poll(&one, 1, 5000));
    printf(" %zd\n", recv(ends[1], &byte, 1, 0));
    close(ends[1]), close(ends[0]);
}

static void sends(bool is_unix, int leaves) {
    int ends[2];
    connected(path, is_unix, true, ends);
    struct call call = {.fd = ends[0], .sends = true};
    pthread_t thread = begun(&call);
    if (leaves >= 0) leave(ends[leaves]);
    printf("%s sends %d: close %d", is_unix ? "unix" : "tcp", leaves, close(ends[0]));
    reuse(ends[0]);
    size_t got = 0, wrong = 0;
    static char bytes[50000];
    ssize_t part;
    while ((part = recv(ends[1], bytes, sizeof bytes, 0)) > 0) {
        for (ssize_t n = 0; n < part; n++) wrong += bytes[n] != bulk[got + n];
        got += part;
    }
    pthread_join(thread, NULL);
    printf(", sent %ld, got %zu, %zu wrong, end %zd\n", call.result, got, wrong, part);
    close(ends[1]), close(ends[0]);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    path = argv[1];
    signal(SIGPIPE, SIG_IGN);
    for (int n = 0; n < BULK; n++) bulk[n] = n * 31 >> 5;
    for (int is_unix = 0; is_unix < 2; is_unix++) {
        for (int leaves = -1; leaves < 2; leaves++) {
            for (int all = 0; all < 2; all++) receives(is_unix, all, leaves);
            sends(is_unix, leaves);
        }
        // Many at once, each of which has the number of the one before.
        int ends[20][2];
        struct call call[20] = {0};
        pthread_t thread[20];
        for (int n = 0; n < 20; n++) {
            connected(path, is_unix, true, ends[n]);
            call[n].fd = ends[n][0];
            thread[n] = begun(&call[n]);
            close(ends[n][0]);
        }
        for (int n = 19; n >= 0; n--) {
            send(ends[n][1], "many", 4, 0);
            pthread_join(thread[n], NULL);
            char byte;
            printf("%ld %zd ", call[n].result, recv(ends[n][1], &byte, 1, 0));
            close(ends[n][1]);
        }
        printf("\n");
    }
    return 0;
}
