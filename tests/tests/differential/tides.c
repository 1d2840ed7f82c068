// Two processes whose connection carries small messages, then bulk, then small messages: `tides FILE FAMILY SEED SIDE TIDES`. The
// calls of each follow from the seed. Ends when all bytes have arrived, each in place, and each side has seen the other's end.
#include "meet.h"

#define TALK_ROUNDS 150
#define TALK_BYTES_MAX 300
#define BULK_BYTES_MIN (4u << 20)
#define BULK_BYTES_MORE (12u << 20)
#define CHUNK_BYTES_MAX (256u << 10)
#define STALLED_AFTER_MS 10000

enum { BY_EPOLL, BY_EPOLL_EDGE, BY_POLL, BY_SELECT, WAYS };

static unsigned side, way;
static uint64_t seed, common, own, sent, received;
static uint8_t buffer[CHUNK_BYTES_MAX];
static int fd = -1, epoll = -1;
// Messages with descriptors are among the bytes. The connection leaves for one as soon as it has come back, and for nothing else.
static bool passes, abrupt;

static void fail(const char *what) {
    printf("%s: side %u, seed %llu, sent %llu, received %llu, errno %d\n", what, side, (unsigned long long)seed,
           (unsigned long long)sent, (unsigned long long)received, errno);
    fflush(stdout);
    _exit(1);
}

static void connect_both(bool is_unix, const char *path) {
    struct sockaddr_un file = {.sun_family = AF_UNIX};
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    snprintf(file.sun_path, sizeof file.sun_path, "%s.sock", path);
    struct sockaddr *address = is_unix ? (void *)&file : (void *)&tcp;
    socklen_t len = is_unix ? sizeof file : sizeof tcp;
    if (side == 0) {
        int listener = socket(address->sa_family, SOCK_STREAM, 0);
        unlink(file.sun_path);
        if (bind(listener, address, len) || listen(listener, 8)) fail("listen");
        getsockname(listener, address, &len);
        meeting->port = tcp.sin_port;
        if (!meet()) fail("no peer");
        fd = accept(listener, NULL, NULL);
        if (fd < 0) fail("accept");
    } else {
        fd = socket(address->sa_family, SOCK_STREAM, 0);
        if (!meet()) fail("no peer");
        tcp.sin_port = meeting->port;
        if (connect(fd, address, len)) fail("connect");
    }
    if (fcntl(fd, F_SETFL, O_NONBLOCK)) fail("fcntl");
    epoll = epoll_create1(0);
}

// Waits for one of these, in the way of this tide.
static void await(short events) {
    struct pollfd one = {.fd = fd, .events = events};
    struct epoll_event event = {.events = events | (way == BY_EPOLL_EDGE ? EPOLLET : 0)};
    struct timeval time = {.tv_sec = STALLED_AFTER_MS / 1000};
    fd_set reads, writes;
    int found = 0;
    switch (way) {
    case BY_POLL: found = poll(&one, 1, STALLED_AFTER_MS); break;
    case BY_SELECT:
        FD_ZERO(&reads);
        FD_ZERO(&writes);
        if (events & POLLIN) FD_SET(fd, &reads);
        if (events & POLLOUT) FD_SET(fd, &writes);
        found = select(fd + 1, &reads, &writes, NULL, &time);
        break;
    default:
        if (epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
        found = epoll_wait(epoll, &event, 1, STALLED_AFTER_MS);
    }
    if (found < 0) fail("wait");
    if (found == 0) fail("stalled");
}

// The library's log says that this process's connection came back.
static bool is_back(void) {
    static bool known;
    static char log[65536];
    const char *path = getenv("PD_PRELOAD_LOG");
    int file = known || !path ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return known;
    ssize_t len = read(file, log, sizeof log - 1);
    close(file);
    log[len > 0 ? len : 0] = 0;
    char own[32];
    snprintf(own, sizeof own, "[%d]", (int)getpid());
    for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
        known |= strstr(line, own) && strstr(line, "comes back");
    }
    return known;
}

static size_t some(size_t most) { return 1 + below(&own, most); }

// Reports where in the stream bytes belong that are at the wrong place.
static void fail_at(size_t right, size_t len) {
    const uint8_t *bytes = buffer + right;
    size_t sure = len - right < 16 ? len - right : 16;
    uint64_t at = 0, end = received + (64 << 20);
    while (at < end && verify(1 - side, at, bytes, sure) != sure) at++;
    printf("of %zu bytes %zu are right, the next %zu begin with %02x and are those of %lld; ", len, right, sure, *bytes,
           at < end ? (long long)at : -1);
    fail("wrong bytes");
}

// Receives at most `most` bytes. Returns the number; 0: none were available.
static size_t take(size_t most) {
    int there = 0, flags = 0;
    size_t shown = 0;
    switch (below(&own, 8)) {
    case 0:
        if (ioctl(fd, FIONREAD, &there)) fail("FIONREAD");
        shown = there;
        break;
    case 1: {
        ssize_t seen = recv(fd, buffer, some(most), MSG_PEEK);
        if (seen < 0 && errno != EAGAIN) fail("peek");
        if (seen > 0) {
            shown = seen;
            if (verify(1 - side, received, buffer, shown) != shown) fail("wrong bytes were peeked at");
        }
        break;
    }
    case 2: flags = MSG_WAITALL; break;
    }
    // Shown bytes are available at once, unless a message with a descriptor lies between.
    size_t wanted = shown > 0 && shown < most ? shown : most;
    struct iovec pieces[2] = {{buffer, wanted / 3}, {buffer + wanted / 3, wanted - wanted / 3}};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
    ssize_t part = below(&own, 2) ? recv(fd, buffer, wanted, flags) : recvmsg(fd, &message, flags);
    if (part == 0) fail("the stream ends early");
    if (part < 0) {
        if (errno != EAGAIN) fail("recv");
        part = 0;
    }
    if (part < (ssize_t)(shown < wanted ? shown : wanted) && !passes) fail("less than was there");
    size_t right = verify(1 - side, received, buffer, part);
    if (right != (size_t)part) fail_at(right, part);
    received += part;
    meeting->moved[side] = received;
    return part;
}

// Sends at most `most` bytes. Returns the number; 0: there is no room.
static size_t give(size_t most) {
    fill(side, sent, buffer, most);
    struct iovec pieces[2] = {{buffer, most / 2}, {buffer + most / 2, most - most / 2}};
    ssize_t part = below(&own, 2) ? send(fd, buffer, most, MSG_NOSIGNAL) : writev(fd, pieces, 2);
    if (part < 0) {
        if (errno != EAGAIN) fail("send");
        part = 0;
    }
    sent += part;
    return part;
}

static void take_all(size_t bytes) {
    while (bytes > 0) {
        size_t part = take(bytes < sizeof buffer ? bytes : sizeof buffer);
        if (part == 0) await(POLLIN);
        bytes -= part;
    }
}

static void give_all(size_t bytes) {
    while (bytes > 0) {
        size_t part = give(bytes);
        if (part == 0) await(POLLOUT);
        bytes -= part;
    }
}

static void talk(void) {
    for (int round = 0; round < TALK_ROUNDS; round++) {
        size_t question = 1 + below(&common, TALK_BYTES_MAX), answer = 1 + below(&common, TALK_BYTES_MAX);
        if (side == 1) {
            usleep(200);
            give_all(question);
            take_all(answer);
        } else {
            take_all(question);
            give_all(answer);
        }
    }
}

// Disturbs the connection at some moment, which may be that of its return. The event makes it stay, or leave again, or does not
// concern it.
static void disturb(bool is_unix) {
    static unsigned done;
    switch (done++ < 2 ? below(&own, 4) : 4) {
    case 0: {
        int other = dup(fd);
        close(fd);
        fd = other;
        // Registrations are of the number.
        close(epoll);
        epoll = epoll_create1(0);
        break;
    }
    case 1: {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child < 0 || waitpid(child, NULL, 0) != child) fail("fork");
        break;
    }
    case 2:
        if (!is_unix && setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &(int){1}, sizeof(int))) fail("SO_OOBINLINE");
        break;
    case 3:
        if (is_unix) shutdown(fd, SHUT_RDWR + 1);
        break;
    }
}

// A message with a descriptor, which only the kernel can carry; received as any byte.
static void pass_descriptor(void) {
    ssize_t part = send_descriptor(fd, pattern(side, sent));
    if (part < 0 && errno != EAGAIN) fail("sendmsg");
    if (part == 1) sent++;
}

static void bulk(bool is_unix, bool disturbs) {
    size_t left[2];
    unsigned ways = 1 + below(&common, 3);
    for (int from = 0; from < 2; from++) {
        size_t bytes = BULK_BYTES_MIN + below(&common, BULK_BYTES_MORE);
        left[from] = ways & (1 << from) ? bytes : 0;
    }
    size_t most_out = 4096 + below(&own, CHUNK_BYTES_MAX - 4096), most_in = 16384 + below(&own, CHUNK_BYTES_MAX - 16384);
    while (left[0] + left[1] > 0) {
        size_t moved = 0;
        if (disturbs && !abrupt && below(&own, 40) == 0) disturb(is_unix);
        // The peer's sends find no room.
        if (abrupt && below(&own, 4) == 0) usleep(1000);
        if (disturbs && is_unix && left[side] > 0 && (abrupt ? is_back() && below(&own, 2) : below(&own, 60) == 0)) {
            uint64_t before = sent;
            pass_descriptor();
            left[side] -= sent - before;
        }
        if (left[side] > 0) {
            size_t part = give(left[side] < most_out ? left[side] : most_out);
            left[side] -= part;
            moved += part;
        }
        if (left[1 - side] > 0) {
            size_t part = take(left[1 - side] < most_in ? left[1 - side] : most_in);
            left[1 - side] -= part;
            moved += part;
        }
        if (moved == 0) await((left[side] > 0 ? POLLOUT : 0) | (left[1 - side] > 0 ? POLLIN : 0));
    }
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    meeting = map_file(argv[1], sizeof *meeting);
    seed = strtoull(argv[3], NULL, 10);
    side = atoi(argv[4]);
    common = mixed(seed);
    own = mixed(seed * 2 + side + 77);
    bool is_unix = !strcmp(argv[2], "unix");
    // Every third seed has one tide from which on it is disturbed.
    int calm = seed % 3 == 2 ? 1 + 2 * below(&common, 3) : INT_MAX;
    connect_both(is_unix, argv[1]);
    passes = is_unix && calm < INT_MAX;
    abrupt = is_unix && seed % 6 == 5;
    for (int tide = 0; tide < atoi(argv[5]); tide++) {
        way = below(&own, WAYS);
        if (tide % 2 == 0) talk();
        else bulk(is_unix, tide >= calm);
    }
    // Last words: one side ends its stream, and hears all that the other one has still to say.
    unsigned first = below(&common, 2);
    way = BY_POLL;
    if (side == first) {
        if (shutdown(fd, SHUT_WR)) fail("shutdown");
        take_all(100000);
    } else {
        char byte;
        await(POLLIN);
        if (recv(fd, &byte, 1, 0) != 0) fail("no end");
        give_all(100000);
        if (shutdown(fd, SHUT_WR)) fail("shutdown");
    }
    if (side == first) {
        char byte;
        await(POLLIN);
        if (recv(fd, &byte, 1, 0) != 0) fail("no end");
    }
    if (!meet()) fail("the peer is gone");
    printf("done\n");
    return 0;
}
