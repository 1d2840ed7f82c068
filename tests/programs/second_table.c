// A thread that gets descriptors of its own, and closes there what others go on with: `second_table PATH`. Both ends are in this process. Prints
// lines that do not depend on the transport of the bytes.
#define _GNU_SOURCE
#include "both_ends.h"
#include "outcome.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum way { UNSHARE, CLOSE_RANGE, WAYS };

static enum way way;
static int ends[2];

static void exchanges(const char *when) {
    static char bytes[4000];
    long sent = 0, got = 0;
    for (int turn = 0; turn < 200; turn++) {
        ssize_t part = send(ends[turn % 2], bytes, sizeof bytes, MSG_NOSIGNAL);
        sent = part < 0 ? part : sent + part;
        part = recv(ends[1 - turn % 2], bytes, sizeof bytes, MSG_WAITALL);
        got = part < 0 ? part : got + part;
        if (part <= 0 || sent < 0) break;
    }
    printf("%s: sent %s, received %s\n", when, outcome(sent), outcome(got));
    fflush(stdout);
}

static void *parts(void *argument) {
    (void)argument;
    // The range has no descriptor.
    int failed = way == UNSHARE ? unshare(CLONE_FILES) : (int)syscall(SYS_close_range, 900, 950, 2);
    if (failed) {
        // Containers may be denied that.
        printf("%s, ", outcome(failed));
        return NULL;
    }
    close(ends[0]);
    // The numbers are another file's, in this thread.
    int other = checked("open", open("/dev/null", O_RDWR));
    if (dup2(other, ends[0]) != ends[0] || dup2(other, ends[1]) != ends[1]) die("dup2");
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int failed = 0;
    for (int round = 0; round < 2 * WAYS; round++) {
        fflush(stdout);
        if (fork() == 0) {
            way = round / 2;
            connected(argv[1], round % 2, true, ends);
            printf("%s by %s: ", round % 2 ? "unix" : "tcp", way == UNSHARE ? "unshare" : "close_range");
            exchanges("before");
            pthread_t thread;
            pthread_create(&thread, NULL, parts, NULL);
            pthread_join(thread, NULL);
            exchanges("after");
            unlink(argv[1]);
            exit(0);
        }
        int status;
        wait(&status);
        failed |= status;
    }
    return failed != 0;
}
