// Learns at once of what the other side has done: `at_once PATH [EXPECTED]`. Prints, for each way, act and look, what a call that does not wait
// finds. The kernel shows all of it as soon as the other side's call has returned.
//
// Where this process has both ends, the first look counts. Where another process has the other end, and tells of its act by a pipe or by ending, one
// of many tries is to print the line of the file EXPECTED: on a busy machine the others may be early.
#define _GNU_SOURCE
#include "both_ends.h"
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>

#define TRIES 40
// Time after which the others' lines are taken as expected: the machine is too busy to tell.
#define BUSY_AFTER_S 60

enum way { SAME, PIPE, WAITPID, WAYS };
static const char *ways[] = {"the same process", "a pipe", "waitpid"};
enum act { SENDS, CLOSES, SHUTS_WRITING, SHUTS_READING, SHUTS_BOTH, SENDS_AND_CLOSES, ACTS };
static const char *acts[] = {"sends", "closes", "shuts writing", "shuts reading", "shuts both", "sends and closes"};
enum look { RECEIVES, POLLS, EPOLLS, COUNTS, SENDS_ONE, SENDS_TWO, LOOKS };
static const char *looks[] = {"recv", "poll", "epoll_wait", "FIONREAD", "send", "second send"};

static const char *path;

static void act_of(enum act act, int fd) {
    if ((act == SENDS || act == SENDS_AND_CLOSES) && send(fd, "abc", 3, 0) != 3) die("send");
    if (act == SHUTS_WRITING) shutdown(fd, SHUT_WR);
    if (act == SHUTS_READING) shutdown(fd, SHUT_RD);
    if (act == SHUTS_BOTH) shutdown(fd, SHUT_RDWR);
    if (act == CLOSES || act == SENDS_AND_CLOSES) close(fd);
}

// Events of the end, by an instance that has had it since before the talk.
static uint32_t waited(int epoll) {
    struct epoll_event event = {0};
    return epoll_wait(epoll, &event, 1, 0) == 1 ? event.events : 0;
}

static void look_of(enum look look, int fd, int epoll, char *found, size_t room) {
    char bytes[8] = "";
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN | POLLRDHUP | POLLOUT};
    int result = 0;
    switch (look) {
    case RECEIVES: result = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT); break;
    case POLLS: poll(&poll_fd, 1, 0), result = poll_fd.revents; break;
    case EPOLLS: result = waited(epoll); break;
    case COUNTS: ioctl(fd, FIONREAD, &result); break;
    case SENDS_TWO: send(fd, "x", 1, MSG_NOSIGNAL); // fall through
    default: result = send(fd, "x", 1, MSG_NOSIGNAL);
    }
    const char *error = result < 0 ? strerrorname_np(errno) : "";
    snprintf(found, room, "%d %s%s", result, error, bytes);
    if (look == POLLS || look == EPOLLS) snprintf(found, room, "events %x", result);
}

// Has small messages go at once, which TCP otherwise keeps until the ones before are acknowledged.
static int prompt(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

// The other process. What it does by ending comes after its word by the pipe.
static _Noreturn void peer_of(int fd, enum way way, enum act act, int talk, int tells) {
    char byte;
    for (int n = 0; n < talk; n++)
        if (recv(fd, &byte, 1, 0) != 1 || send(fd, &byte, 1, 0) != 1) die("talk");
    act_of(act, fd);
    if (way == PIPE) {
        if (write(tells, "x", 1) != 1) die("write");
        pause();
    }
    _exit(0);
}

static void try_of(bool is_unix, enum way way, enum act act, enum look look, int talk, char *found, size_t room) {
    struct sockaddr_storage at;
    socklen_t len;
    int ends[2] = {-1, -1}, told[2], listener = listens_at(path, is_unix, &at, &len);
    if (pipe(told)) die("pipe");
    pid_t child = way == SAME ? -1 : fork();
    if (child == 0) peer_of(prompt(connects_to(&at, len)), way, act, talk, told[1]);
    if (way == SAME) ends[1] = prompt(connects_to(&at, len));
    ends[0] = prompt(checked("accept", accept(listener, NULL, NULL)));
    close(listener);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLOUT};
    int epoll = checked("epoll_create1", epoll_create1(0));
    checked("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
    char byte = 'x';
    for (int n = 0; n < talk; n++) {
        if (send(ends[0], &byte, 1, 0) != 1) die("talk");
        if (way == SAME && (recv(ends[1], &byte, 1, 0) != 1 || send(ends[1], &byte, 1, 0) != 1)) die("talk");
        if (recv(ends[0], &byte, 1, 0) != 1) die("answer");
    }
    if (way == SAME) act_of(act, ends[1]);
    if (way == PIPE && read(told[0], &byte, 1) != 1) die("read");
    if (way == WAITPID) waitpid(child, NULL, 0);
    look_of(look, ends[0], epoll, found, room);
    if (way == PIPE) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    close(ends[0]), close(epoll);
    if (way == SAME && act != CLOSES && act != SENDS_AND_CLOSES) close(ends[1]);
    close(told[0]), close(told[1]);
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    path = arguments[1];
    FILE *expected = count > 2 ? fopen(arguments[2], "r") : NULL;
    int early = 0;
    time_t begin = time(NULL);
    for (int is_unix = 0; is_unix < 2; is_unix++)
        for (enum way way = 0; way < WAYS; way++)
            for (enum act act = 0; act < ACTS; act++)
                for (enum look look = 0; look < LOOKS; look++)
                    for (int talk = 0; talk <= 200; talk += 100) {
                        // Rings of the direct path come with the hundredth message.
                        char found[60], line[200], known[200] = "";
                        if (way != SAME && talk != 100) continue;
                        if (expected && !fgets(known, sizeof known, expected)) die("expected");
                        for (int n = 0; n < TRIES; n++, early++) {
                            try_of(is_unix, way, act, look, talk, found, sizeof found);
                            snprintf(line, sizeof line, "%s, %s, %s, %s after %d: %s\n", is_unix ? "unix" : "tcp", ways[way], acts[act], looks[look], talk, found);
                            if (way == SAME || !expected || strcmp(line, known) == 0) break;
                            if (time(NULL) - begin > BUSY_AFTER_S) {
                                strcpy(line, known);
                                break;
                            }
                        }
                        fputs(line, stdout);
                    }
    fprintf(stderr, "%d looks were early\n", early);
    return 0;
}
