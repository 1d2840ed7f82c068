/* One end of the link `wire`, until it is killed: `link send`, `link receive` or `link wait`. The sender numbers frames. The receiver keeps
 * 150 frames at least, whoever brings the next ones, and looks at each when it comes and when it is given back. */
#include "common.h"

enum { KEPT = 150, BATCH = 64, SLOTS = 1024 };

static size_t length(uint64_t number) { return 60 + number * 7 % 300; }

static void send_frames(void) {
    struct pd_pipe_options options = {.ring_bytes = 64 << 10};
    int pid = pd_pipe_open("wire.0", PD_PIPE_SEND, &options);
    CHECK(pid >= 0);
    for (uint64_t number = 0;; number++) {
        unsigned char *place = pd_pipe_alloc(pid, length(number));
        CHECK(place != NULL);
        memcpy(place, &number, sizeof number);
        memset(place + sizeof number, (int)(number & 0xff), length(number) - sizeof number);
        CHECK(pd_pipe_commit(pid, length(number), PD_BACK) == 0);
        if (number % 16 == 0)
            CHECK(pd_pipe_flush(pid) == 0);
    }
}

static void check(const struct pd_frame *frame, uint64_t number) {
    const unsigned char *bytes = frame->data;
    uint64_t found;
    memcpy(&found, bytes, sizeof found);
    CHECK(found == number && frame->len == length(number));
    for (size_t at = sizeof number; at < frame->len; at++)
        CHECK(bytes[at] == (unsigned char)number);
}

/* A connection of this process with itself: `ends[1]` is in the instance, too. */
static void connect_to_self(int epid, int ends[2]) {
    struct pd_epoll_event event = {.events = PD_EPOLLIN, .data = {.u64 = 1}};
    struct sockaddr_storage addr;
    socklen_t len = sizeof addr;
    int listener = listen_on("127.0.0.1", "0");
    CHECK(pd_getsockname(listener, &addr, &len) == 0);
    CHECK((ends[0] = pd_socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(pd_connect(ends[0], &addr, len) == 0);
    CHECK((ends[1] = pd_accept(listener, NULL, NULL)) >= 0);
    CHECK(pd_epoll_ctl(epid, PD_EPOLL_CTL_ADD, ends[1], &event) == 0);
}

/* The oldest frame kept is `first`, and the next to come is `next`. */
static void receive_frames(int nonblocking) {
    static struct pd_frame frames[SLOTS];
    struct pd_pipe_options options = {.ring_bytes = 64 << 10};
    int pid = pd_pipe_open("wire.1", PD_PIPE_RECEIVE | nonblocking, &options);
    CHECK(pid >= 0);
    int epid = pd_epoll_create(0);
    struct pd_epoll_event event = {.events = PD_EPOLLIN};
    CHECK(epid >= 0);
    int ends[2] = {-1, -1};
    uint64_t asked = 0;
    if (nonblocking) {
        CHECK(pd_epoll_ctl(epid, PD_EPOLL_CTL_ADD, pid, &event) == 0);
        connect_to_self(epid, ends);
        CHECK(pd_write(ends[0], "?", 1) == 1);
    }
    for (uint64_t first = 0, next = 0;;) {
        if (nonblocking) {
            struct pd_epoll_event events[2];
            int count = pd_epoll_wait(epid, events, 2, 20000);
            char byte;
            CHECK(count > 0);
            /* Frames come all the time: the socket is heard among them. */
            CHECK(next - asked < 1000000);
            if (events[0].data.u64 == 1 || events[count - 1].data.u64 == 1) {
                CHECK(pd_read(ends[1], &byte, 1) == 1 && pd_write(ends[0], "?", 1) == 1);
                asked = next;
                if (count == 1)
                    continue;
            }
        }
        struct pd_frame *batch = &frames[next % SLOTS];
        size_t room = SLOTS - next % SLOTS;
        int count = pd_pipe_recv(pid, batch, room < BATCH ? (int)room : BATCH);
        if (count == -1 && errno == EAGAIN && nonblocking)
            continue;
        CHECK(count > 0);
        for (int n = 0; n < count; n++)
            check(&batch[n], next + (uint64_t)n);
        next += (uint64_t)count;
        while (next - first > KEPT) {
            size_t at = first % SLOTS, most = next - first - KEPT;
            size_t back = most < SLOTS - at ? most : SLOTS - at;
            for (size_t n = 0; n < back; n++)
                check(&frames[at + n], first + n);
            CHECK(pd_pipe_done(pid, &frames[at], (int)back) == 0);
            first += back;
        }
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (strcmp(argv[1], "send") == 0)
        send_frames();
    receive_frames(strcmp(argv[1], "wait") == 0 ? PD_PIPE_NONBLOCK : 0);
    return 0;
}
