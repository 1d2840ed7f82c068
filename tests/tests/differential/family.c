// Two families of processes that send each other bytes over one connection: `family FILE KIND SEED SIDE BYTES MEMBER FD`. The members of a
// family take turns: the connection goes from one to another by fork, in another image, and in messages. The seed determines each member's
// actions. Ends when all bytes have arrived, or prints where the stream stands still.
#include "meet.h"
#include <stdatomic.h>

#define STALLED_AFTER_S 15
#define MEMBERS 5
#define BYTES_MAX 40000

// State of a family, in the file behind the meeting.
struct family {
    // Members that have the connection, and all that were begun.
    _Atomic uint32_t holders, begun;
    // Members whose turn it is to send, and to receive.
    _Atomic uint32_t turn[2];
    _Atomic uint32_t locked, done, leaves;
    // Images so far: the actions of one follow from its number, so that none repeats an earlier one for ever.
    _Atomic uint32_t images;
    _Atomic uint64_t sent, received;
};

static struct family *family;
static unsigned side, me;
static uint64_t seed, random_state, bytes_each;
static uint8_t buffer[BYTES_MAX];
static int fd = -1, epoll = -1, late[2] = {-1, -1};
static char **words;
// Set if one member sends while another receives. All are made by fork then: other images share no lock with this one.
static bool apart;

static void fail(const char *what) __attribute__((noreturn));

static void fail(const char *what) {
    int errno_was = errno;
    printf("%s: side %u, member %u of %x, seed %llu, sent %llu, received %llu of %llu, turns %u %u, errno %d\n", what, side, me,
           family->holders, (unsigned long long)seed, (unsigned long long)family->sent, (unsigned long long)family->received,
           (unsigned long long)bytes_each, family->turn[0], family->turn[1], errno_was);
    fflush(stdout);
    family->done = 2;
    _exit(1);
}

static void hold(void) {
    while (atomic_exchange(&family->locked, 1)) usleep(50);
}

static void let_go(void) { family->locked = 0; }

static void connect_both(const char *kind, const char *path) {
    bool is_unix = !strcmp(kind, "unix");
    struct sockaddr_un file = {.sun_family = AF_UNIX};
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    snprintf(file.sun_path, sizeof file.sun_path, "%s.sock", path);
    struct sockaddr *address = is_unix ? (void *)&file : (void *)&tcp;
    socklen_t len = is_unix ? sizeof file : sizeof tcp;
    int made = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
    if (side == 0) {
        unlink(file.sun_path);
        if (bind(made, address, len) || listen(made, 8)) fail("listen");
        getsockname(made, address, &len);
        meeting->port = tcp.sin_port;
        if (!meet()) fail("no peer");
        if ((fd = accept(made, NULL, NULL)) < 0) fail("accept");
        close(made);
    } else {
        if (!meet()) fail("no peer");
        tcp.sin_port = meeting->port;
        if (connect(made, address, len)) fail("connect");
        fd = made;
    }
    if (fcntl(fd, F_SETFL, O_NONBLOCK)) fail("fcntl");
}

static ssize_t checked(ssize_t result, const char *what) {
    if (result < 0 && errno != EAGAIN) fail(what);
    return result;
}

static void take(size_t wanted) {
    uint64_t received = family->received;
    ssize_t part = checked(recv(fd, buffer, wanted, 0), "recv");
    if (part == 0) fail("the stream ends early");
    if (part < 0) return;
    size_t right = verify(1 - side, received, buffer, part);
    if (right != (size_t)part) {
        // Place of the wrong bytes in the stream, if anywhere.
        size_t len = part - right < 16 ? part - right : 16;
        uint64_t at = 0;
        while (at < bytes_each && verify(1 - side, at, buffer + right, len) != len) at++;
        printf("%zd bytes at %llu, of which %zu are right; then those of %llu\n", part, (unsigned long long)received, right,
               (unsigned long long)at);
        fail("wrong bytes");
    }
    family->received = received + part;
    meeting->moved[side] = received + part;
}

static void give(size_t wanted) {
    uint64_t sent = family->sent;
    if (wanted > bytes_each - sent) wanted = bytes_each - sent;
    fill(side, sent, buffer, wanted);
    ssize_t part = checked(send(fd, buffer, wanted, MSG_NOSIGNAL), "send");
    if (part > 0) family->sent = sent + part;
}

static void look(unsigned way) {
    struct pollfd one = {.fd = fd, .events = way & 2 ? POLLIN : POLLIN | POLLOUT};
    if (way & 1) {
        checked(poll(&one, 1, 2), "poll");
        return;
    }
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll < 0) {
        epoll = epoll_create1(EPOLL_CLOEXEC);
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    }
    checked(epoll_wait(epoll, &event, 1, 2), "epoll_wait");
}

static void run(void) __attribute__((noreturn));

static void become(unsigned member) {
    me = member;
    random_state = mixed(seed * 64 + side * 8 + me) + family->sent + family->received + mixed(family->images++);
}

// Replaces the image of this process.
static void replace(void) __attribute__((noreturn));

static void replace(void) {
    char numbers[2][16];
    snprintf(numbers[0], sizeof numbers[0], "%u", me);
    snprintf(numbers[1], sizeof numbers[1], "%d", fd);
    char *image[] = {words[0], words[1], words[2], words[3], words[4], words[5], numbers[0], numbers[1], NULL};
    execv("/proc/self/exe", image);
    fail("exec");
}

// Gives the connection to one more process, in some way.
static void beget(void) {
    hold();
    if (family->begun == MEMBERS) return let_go();
    unsigned member = family->begun++;
    unsigned way = apart ? 0 : below(&random_state, 3);
    if (way == 2 && late[0] >= 0) {
        struct iovec piece = {&member, sizeof member};
        union {
            struct cmsghdr header;
            char bytes[CMSG_SPACE(sizeof(int))];
        } control = {0};
        struct msghdr message = {
            .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        control.header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
        if (sendmsg(late[0], &message, MSG_NOSIGNAL) != sizeof member) fail("sendmsg");
        close(late[0]);
        late[0] = -1;
        family->holders |= 1u << member;
        return let_go();
    }
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        close(late[0]);
        late[0] = epoll = -1;
        become(member);
        if (way == 1) replace();
        run();
    }
    family->holders |= 1u << member;
    let_go();
}

// Waits for the connection, which comes in a message, or never.
static void inherit_late(void) {
    unsigned member;
    struct iovec piece = {&member, sizeof member};
    char control[CMSG_SPACE(sizeof(int))];
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    close(late[0]);
    late[0] = -1;
    if (recvmsg(late[1], &message, 0) != sizeof member || !CMSG_FIRSTHDR(&message)) _exit(0);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    close(late[1]);
    become(member);
    run();
}

// The turn goes to any member that has the connection.
static void pass(unsigned what) {
    hold();
    unsigned to;
    do to = below(&random_state, MEMBERS);
    while (!(family->holders & 1u << to));
    family->turn[what] = to;
    if (!apart) family->turn[1 - what] = to;
    let_go();
}

// Tells whether this process gives up the connection. It must not have a turn, or be the only holder.
static bool quits(void) {
    hold();
    bool may = family->turn[0] != me && family->turn[1] != me && family->holders != 1u << me;
    if (may) family->holders &= ~(1u << me);
    let_go();
    return may;
}

// The first member of all: waits for the others.
static void end(void) __attribute__((noreturn));

static void end(void) {
    if (me != 0) _exit(0);
    int status, bad = 0;
    close(late[0]);
    while (wait(&status) > 0) bad |= status;
    if (bad || family->done != 1) fail("another member");
    if (!meet()) fail("the peer is gone");
    printf("done\n");
    fflush(stdout);
    _exit(0);
}

static void run(void) {
    uint64_t before = 0, since = now_ns();
    size_t most = below(&random_state, 2) ? 500 : BYTES_MAX;
    while (!family->done) {
        uint64_t moved = meeting->moved[0] + meeting->moved[1] + meeting->done;
        if (moved != before) before = moved, since = now_ns();
        if (now_ns() - since > STALLED_AFTER_S * 1000000000ull) fail("stalled");
        bool sends = family->turn[0] == me, receives = family->turn[1] == me;
        if (!sends && !receives) {
            if (below(&random_state, 3000) == 0 && quits()) {
                close(fd);
                while (me == 0 && !family->done) usleep(1000);
                end();
            }
            usleep(100);
            continue;
        }
        for (unsigned calls = 1 + below(&random_state, 12); calls > 0; calls--) {
            unsigned kind = below(&random_state, 10);
            if (kind == 0) look(below(&random_state, 4));
            else if (kind < 5 && sends && family->sent < bytes_each) give(1 + below(&random_state, most));
            else if (receives && family->received < bytes_each) take(1 + below(&random_state, most));
        }
        if (family->leaves && family->sent >= family->leaves && sends) {
            family->leaves = 0;
            setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &(int){1}, sizeof(int));
        }
        if (receives && family->sent == bytes_each && family->received == bytes_each) {
            // Sent bytes have arrived when the peer has them.
            meeting->done |= 1u << side;
            if (meeting->done != 3) {
                usleep(500);
            } else {
                if (checked(recv(fd, buffer, 1, 0), "recv") > 0) fail("more than was sent");
                family->done = 1;
            }
        } else if (below(&random_state, 12) == 0) {
            beget();
        } else if (!apart && below(&random_state, 40) == 0) {
            replace();
        }
        if (sends && below(&random_state, 3) == 0) pass(0);
        if (receives && apart && below(&random_state, 3) == 0) pass(1);
    }
    end();
}

int main(int argc, char **argv) {
    if (argc != 8) return 2;
    words = argv;
    meeting = map_file(argv[1], 4096);
    side = atoi(argv[4]);
    family = (struct family *)((char *)meeting + 1024) + side;
    seed = strtoull(argv[3], NULL, 10);
    bytes_each = strtoull(argv[5], NULL, 10);
    apart = mixed(seed * 2 + side) % 3 == 0;
    become(atoi(argv[6]));
    if (me == 0) signal(SIGPIPE, SIG_IGN);
    if ((fd = atoi(argv[7])) >= 0) run();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, late)) return 2;
    pid_t child = fork();
    if (child == 0) inherit_late();
    close(late[1]);
    family->begun = family->holders = 1;
    if (below(&random_state, 3) == 0 && strcmp(argv[2], "unix")) family->leaves = 1 + below(&random_state, bytes_each);
    connect_both(argv[2], argv[1]);
    run();
}
