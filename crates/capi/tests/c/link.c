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

/* The oldest frame kept is `first`, and the next to come is `next`. */
static void receive_frames(int nonblocking) {
    static struct pd_frame frames[SLOTS];
    struct pd_pipe_options options = {.ring_bytes = 64 << 10};
    int pid = pd_pipe_open("wire.1", PD_PIPE_RECEIVE | nonblocking, &options);
    CHECK(pid >= 0);
    int epid = pd_epoll_create(0);
    struct pd_epoll_event event = {.events = PD_EPOLLIN};
    CHECK(epid >= 0);
    if (nonblocking)
        CHECK(pd_epoll_ctl(epid, PD_EPOLL_CTL_ADD, pid, &event) == 0);
    for (uint64_t first = 0, next = 0;;) {
        if (nonblocking)
            CHECK(pd_epoll_wait(epid, &event, 1, 20000) == 1);
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
