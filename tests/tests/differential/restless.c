// Two processes that send each other bytes and never wait: `restless FILE FAMILY SEED SIDE BYTES LEAVES`. The calls of
// each follow from the seed. Ends when all bytes have arrived, or prints where the stream stands still.
#include "meet.h"

#define STALLED_AFTER_S 10
#define SLOW_AFTER_S 1
#define BYTES_MAX 65536

// Actions of a side, each with a weight of its own.
enum {
    RECEIVE,
    PEEK_FIRST,
    COUNT_FIRST,
    SEND,
    NOTHING_IN,
    NOTHING_OUT,
    POLL,
    SELECT,
    EPOLL,
    SLEEP,
    YIELD,
    KINDS
};

// Origin of its connection, and the actions taken once.
static unsigned late_ms, fork_at, pass_at;
static bool unseen;

static unsigned side;
static uint64_t seed, random_state, bytes_each, sent, received;
static uint8_t buffer[BYTES_MAX];
static int fd = -1, epoll = -1;

static void fail(const char *what) {
    printf("%s: side %u, seed %llu, sent %llu, received %llu of %llu, errno %d\n", what, side,
           (unsigned long long)seed, (unsigned long long)sent, (unsigned long long)received,
           (unsigned long long)bytes_each, errno);
    fflush(stdout);
    _exit(1);
}

static int raw_accept(int listener) { return raw_call(SYS_accept4, listener, 0, 0); }

static void connect_both(const char *family, const char *path) {
    bool is_unix = !strcmp(family, "unix");
    struct sockaddr_un file = {.sun_family = AF_UNIX};
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    snprintf(file.sun_path, sizeof file.sun_path, "%s.sock", path);
    struct sockaddr *address = is_unix ? (void *)&file : (void *)&tcp;
    socklen_t len = is_unix ? sizeof file : sizeof tcp;
    if (side == 0) {
        int listener = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
        unlink(file.sun_path);
        if (bind(listener, address, len) || listen(listener, 8)) fail("listen");
        getsockname(listener, address, &len);
        meeting->port = tcp.sin_port;
        if (unseen) {
            // The library does not see this accept.
            struct pollfd poll_one = {.fd = listener, .events = POLLIN};
            poll(&poll_one, 1, 0);
        }
        if (!meet()) fail("no peer");
        usleep(late_ms * 1000);
        // A mode for short connections is asked whether something has come.
        fcntl(listener, F_SETFL, O_NONBLOCK);
        while ((fd = unseen ? raw_accept(listener) : accept(listener, NULL, NULL)) < 0)
            if (errno != EAGAIN) fail("accept");
        close(listener);
    } else {
        fd = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
        if (!meet()) fail("no peer");
        tcp.sin_port = meeting->port;
        if (connect(fd, address, len)) fail("connect");
    }
    if (fcntl(fd, F_SETFL, O_NONBLOCK)) fail("fcntl");
}

static ssize_t checked(ssize_t result, const char *what) {
    if (result < 0 && errno != EAGAIN) fail(what);
    return result;
}

static void take(size_t wanted) {
    ssize_t part = checked(recv(fd, buffer, wanted, 0), "recv");
    if (part == 0 && wanted > 0) fail("the stream ends early");
    if (part <= 0) return;
    if (verify(1 - side, received, buffer, part) != (size_t)part) fail("wrong bytes");
    received += part;
    meeting->moved[side] = received;
}

// Tells whether bytes lie in the kernel's socket, past every library: a peer that was slow to accept has a plain connection.
static bool is_kernels(void) {
    int there = 0;
    long result = raw_call(SYS_ioctl, fd, FIONREAD, (long)&there);
    return result == 0 && there > 1;
}

// Reads a message only when all of it has arrived.
static void take_whole(bool peeks) {
    static size_t wanted;
    if (wanted == 0) wanted = 1 + below(&random_state, 2000);
    size_t most = wanted;
    if (most > bytes_each - received) most = bytes_each - received;
    if (peeks) {
        if (checked(recv(fd, buffer, most, MSG_PEEK), "peek") < (ssize_t)most) return;
    } else {
        int there = 0;
        if (ioctl(fd, FIONREAD, &there)) fail("FIONREAD");
        if (there < (int)most) return;
    }
    uint64_t before = received;
    take(most);
    if (received - before != most) fail("less than was there");
    wanted = 0;
}

static void give(size_t wanted) {
    if (wanted > bytes_each - sent) wanted = bytes_each - sent;
    if (wanted == 0) return;
    fill(side, sent, buffer, wanted);
    ssize_t part = checked(send(fd, buffer, wanted, MSG_NOSIGNAL), "send");
    if (part > 0) sent += part;
}

static void look(unsigned kind) {
    struct pollfd poll_one = {.fd = fd, .events = POLLIN | POLLOUT};
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
    struct timeval none = {0};
    fd_set reads;
    if (kind == POLL) checked(poll(&poll_one, 1, 0), "poll");
    if (kind == SELECT) {
        FD_ZERO(&reads);
        FD_SET(fd, &reads);
        checked(select(fd + 1, &reads, NULL, NULL, &none), "select");
    }
    if (kind == EPOLL) {
        if (epoll < 0) {
            epoll = epoll_create1(0);
            epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
        }
        checked(epoll_wait(epoll, &event, 1, 0), "epoll_wait");
    }
}

// The connection leaves the fabric: a message with a descriptor. Received as any byte.
static void pass_descriptor(void) {
    if (checked(send_descriptor(fd, pattern(side, sent)), "sendmsg") == 1) {
        sent++;
        pass_at = 0;
    }
}

// The rest is a child's.
static void go_on_in_child(void) {
    fork_at = 0;
    pid_t child = fork();
    if (child == 0) return;
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) fail("fork");
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

int main(int argc, char **argv) {
    if (argc != 7) return 2;
    meeting = map_file(argv[1], sizeof *meeting);
    seed = strtoull(argv[3], NULL, 10);
    side = atoi(argv[4]);
    bytes_each = strtoull(argv[5], NULL, 10);
    // Both know these.
    uint64_t common = mixed(seed);
    bool is_unix = !strcmp(argv[2], "unix"), forks = !strcmp(argv[2], "tcp") || is_unix;
    unseen = below(&common, 5) == 0 && strcmp(argv[2], "short");
    late_ms = below(&common, 4) == 0 ? 20 + below(&common, 700) : 0;
    unsigned passes = is_unix ? below(&common, 8) : 0, forked = 0;
    if (forks && !unseen) forked = below(&common, 8);
    random_state = mixed(seed * 2 + side);
    if (forked == 1 + side || forked == 3) fork_at = 1 + below(&random_state, bytes_each);
    if (passes == 1 + side || passes == 3) pass_at = 1 + below(&random_state, bytes_each);
    // Ways of receiving: a side uses one of three, or all. A side that waits for more bytes by counting the available ones
    // may stand still for ever. On the kernel, a buffer counts as full until all of a packet is read, and a message with a
    // descriptor may come next. A connection may also leave the direct path.
    bool by_kernel = unseen || late_ms > 0 || (passes > 0 && passes < 4) || !strcmp(argv[2], "kernel");
    bool leaves = (forked > 0 && forked < 4) || atoi(argv[6]);
    unsigned way = by_kernel || leaves ? RECEIVE : below(&random_state, 4);
    unsigned weights[KINDS] = {0}, total = 0;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        bool receives = kind <= COUNT_FIRST;
        if (receives ? way == kind || way == 3 : kind == SEND || below(&random_state, 3) == 0)
            weights[kind] = 1 + below(&random_state, receives || kind == SEND ? 20 : 4);
        total += weights[kind];
    }
    size_t most_in = 1 + below(&random_state, BYTES_MAX), most_out = 1 + below(&random_state, BYTES_MAX);
    if (below(&random_state, 2)) most_in = 1 + below(&random_state, 3000);
    if (below(&random_state, 2)) most_out = 1 + below(&random_state, 3000);

    connect_both(is_unix ? "unix" : "tcp", argv[1]);
    uint64_t before = 0, since = now_ns();
    for (uint64_t round = 1; received < bytes_each || sent < bytes_each; round++) {
        uint64_t pick = below(&random_state, total);
        unsigned kind = 0;
        while (pick >= weights[kind]) pick -= weights[kind++];
        switch (kind) {
        case RECEIVE: take(1 + below(&random_state, most_in)); break;
        case PEEK_FIRST: take_whole(true); break;
        case COUNT_FIRST: take_whole(false); break;
        case SEND: give(1 + below(&random_state, most_out)); break;
        case NOTHING_IN: checked(recv(fd, buffer, 0, 0), "recv of nothing"); break;
        case NOTHING_OUT: checked(send(fd, buffer, 0, MSG_NOSIGNAL), "send of nothing"); break;
        case SLEEP: usleep(below(&random_state, 60)); break;
        case YIELD: sched_yield(); break;
        default: look(kind);
        }
        if (fork_at && received >= fork_at) go_on_in_child();
        if (pass_at && sent >= pass_at && sent < bytes_each) pass_descriptor();
        if (round % 64) continue;
        uint64_t moved = meeting->moved[0] + meeting->moved[1];
        if (moved != before) before = moved, since = now_ns();
        uint64_t still = (now_ns() - since) / 1000000000;
        if (still >= SLOW_AFTER_S && way != RECEIVE && is_kernels()) take(1 + below(&random_state, most_in));
        if (still >= STALLED_AFTER_S) fail("stalled");
    }
    // Sent bytes have arrived when the peer has them.
    meeting->done++;
    since = now_ns();
    while (meeting->done < 2) {
        if (meeting->moved[1 - side] != before) before = meeting->moved[1 - side], since = now_ns();
        if (now_ns() - since > 3 * STALLED_AFTER_S * 1000000000ull) fail("the peer does not end");
        usleep(1000);
    }
    ssize_t more = checked(recv(fd, buffer, 1, 0), "recv");
    if (more >= 0) fail(more ? "more than was sent" : "the peer ended first");
    if (!meet()) fail("the peer is gone");
    printf("done\n");
    return 0;
}
