// A thread closes a descriptor at about the time that another one duplicates it, or passes it in a message: `dup_beside PATH ROUNDS`. Both ends are in
// this process. Where there is a duplicate, the connection goes on with it, and ends with it. Prints lines that do not depend on the transport.
#define _GNU_SOURCE
#include "both_ends.h"
#include "chance.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/time.h>

#define SPREAD 400

enum way { DUP, FCNTL, DUP2, DUP3, PASSES, WAYS };

struct copier {
    int fd, spare, copy, message[2];
    enum way way;
    pthread_barrier_t start;
};

static void takes(unsigned turns) {
    for (volatile unsigned n = 0; n < turns; n++) {}
}

// Passes a descriptor to this process itself. Returns the new one, or -1.
static int passed(int fd, const int ends[2]) {
    int copy;
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = "";
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(control), &fd, sizeof fd);
    bool is_sent = sendmsg(ends[0], &message, 0) == 1;
    if (is_sent && recvmsg(ends[1], &message, 0) != 1) die("recvmsg");
    if (is_sent) memcpy(&copy, CMSG_DATA(control), sizeof copy);
    return is_sent ? copy : -1;
}

static void *copies(void *argument) {
    struct copier *copier = argument;
    unsigned turns = next() % SPREAD;
    pthread_barrier_wait(&copier->start);
    takes(turns);
    switch (copier->way) {
    case DUP: copier->copy = dup(copier->fd); break;
    case FCNTL: copier->copy = fcntl(copier->fd, F_DUPFD_CLOEXEC, 0); break;
    case DUP2: copier->copy = dup2(copier->fd, copier->spare); break;
    case DUP3: copier->copy = dup3(copier->fd, copier->spare, O_CLOEXEC); break;
    default: copier->copy = passed(copier->fd, copier->message);
    }
    return NULL;
}

// Returns what is wrong, or NULL.
static const char *round_of(const char *path, bool is_unix, enum way way) {
    int ends[2];
    connected(path, is_unix, true, ends);
    struct timeval time = {.tv_sec = 5};
    setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    struct copier copier = {.fd = ends[0], .spare = checked("open", open("/dev/null", O_RDWR)), .way = way};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, copier.message)) die("socketpair");
    unsigned turns = next() % SPREAD;
    pthread_t thread;
    pthread_barrier_init(&copier.start, NULL, 2);
    pthread_create(&thread, NULL, copies, &copier);
    pthread_barrier_wait(&copier.start);
    takes(turns);
    close(ends[0]);
    pthread_join(thread, NULL);
    const char *wrong = NULL;
    char bytes[8];
    if (copier.copy >= 0) {
        setsockopt(copier.copy, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
        if (send(copier.copy, "there", 5, MSG_NOSIGNAL) != 5) wrong = "the copy sends nothing";
        else if (recv(ends[1], bytes, 8, 0) != 5) wrong = "the peer receives nothing";
        else if (send(ends[1], "back", 4, MSG_NOSIGNAL) != 4) wrong = "the peer sends nothing";
        else if (recv(copier.copy, bytes, 8, 0) != 4) wrong = "the copy receives nothing";
        close(copier.copy);
    }
    if (!wrong && recv(ends[1], bytes, 8, 0) != 0) wrong = "no end";
    if (copier.copy != copier.spare) close(copier.spare);
    close(ends[1]), close(copier.message[0]), close(copier.message[1]);
    return wrong;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    static const char *ways[] = {"dup", "fcntl", "dup2", "dup3", "message"};
    signal(SIGPIPE, SIG_IGN);
    for (int n = 0; n < 2 * WAYS; n++) {
        const char *wrong = NULL;
        for (int round = 0; round < atoi(argv[2]) && !wrong; round++) wrong = round_of(argv[1], n % 2, n / 2);
        printf("%s of %s: %s\n", ways[n / 2], n % 2 ? "unix" : "tcp", wrong ? wrong : "well");
        fflush(stdout);
    }
    unlink(argv[1]);
}
