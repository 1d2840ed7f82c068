// A program of socket calls from a seed: `calls FILE SIDE FIRST COUNT FORKS`. Two processes run it in lock-step, and print the
// result of each call. Both know the bytes on their way, so that only calls with determined results are made. Before each step
// everything sent has arrived, or there is a fault.
#include "meet.h"

#define CONNECTIONS 3
#define NUMBERS 3
#define STEPS 40
#define PENDING_MAX 12000
#define SETTLES_WITHIN_MS 20000
#define TIMEOUT_MS 15

// A side of a connection, as both processes know it.
struct end {
    bool open, nonblocking, times_out, shut_in, shut_out, lingers, small;
    // The peer has ended its stream; it takes nothing any more; it has reset the connection, or will.
    bool ended, refused, broken;
    unsigned numbers, pending, pieces;
    uint64_t sent, received;
    // In the side's epoll instance, and the events since the last look.
    uint32_t watched;
    bool news, armed, fresh;
};

struct connection {
    bool is_unix;
    // Number of sends, after which the side may be on the direct path.
    unsigned sends;
    struct end ends[2];
};

static unsigned side, step;
static uint64_t seed, common;
static struct connection connections[CONNECTIONS];
static int fds[CONNECTIONS][NUMBERS];
static int listeners[2] = {-1, -1}, epoll = -1;
static bool may_fork, in_child, stray;
static struct sockaddr_in tcp_address;
static struct sockaddr_un unix_address;
static uint8_t buffer[1 << 17];
static char line[1024];
static volatile unsigned pipes_broken;

static void count_signal(int number) {
    (void)number;
    pipes_broken++;
}

static unsigned pick(unsigned bound) { return below(&common, bound); }

static void flush(void) {
    size_t len = strlen(line);
    if (len && write(1, line, len) != (ssize_t)len) _exit(3);
    line[0] = 0;
}

#define SAY(...) snprintf(line + strlen(line), sizeof line - strlen(line), __VA_ARGS__)

static const char *error_name(int number) {
    static char other[16];
    switch (number) {
    case EAGAIN: return "EAGAIN";
    case EPIPE: return "EPIPE";
    case ECONNRESET: return "ECONNRESET";
    case ENOTCONN: return "ENOTCONN";
    case EBADF: return "EBADF";
    case EINVAL: return "EINVAL";
    case EINPROGRESS: return "EINPROGRESS";
    case ECONNREFUSED: return "ECONNREFUSED";
    case EISCONN: return "EISCONN";
    default: snprintf(other, sizeof other, "errno %d", number); return other;
    }
}

// Prints the result of a call. `expected`: the model's result, -1 for none; on a difference the two processes would diverge.
static void result(long value, long expected) {
    if (value < 0) SAY(" = %s", error_name(errno));
    else SAY(" = %ld", value);
    if (pipes_broken) SAY(" SIGPIPE %u", pipes_broken);
    pipes_broken = 0;
    if (expected >= 0 && value != expected) {
        SAY(" not %ld", expected);
        stray = true;
    }
}

// The number that the acting side uses; the other process makes the same choice.
static int acting_number(unsigned c, unsigned actor) {
    unsigned which = pick(connections[c].ends[actor].numbers);
    return actor == side ? fds[c][which] : -1;
}

static void begin(const char *what, unsigned c) {
    SAY("%llu/%u %s %c%u", (unsigned long long)seed, step, what, connections[c].is_unix ? 'u' : 't', c);
}

static void finish(void) {
    SAY("\n");
    flush();
}

static const char *words(char *text, unsigned events) {
    static const struct {
        unsigned bit;
        const char *name;
    } all[] = {{POLLIN, "in"},       {POLLPRI, "pri"},       {POLLOUT, "out"},       {POLLERR, "err"},
               {POLLHUP, "hup"},     {POLLNVAL, "nval"},     {POLLRDNORM, "rdnorm"}, {POLLRDBAND, "rdband"},
               {POLLWRNORM, "wrnorm"}, {POLLWRBAND, "wrband"}, {POLLRDHUP, "rdhup"}};
    text[0] = 0;
    for (size_t at = 0; at < sizeof all / sizeof *all; at++)
        if (events & all[at].bit) strcat(strcat(text, "+"), all[at].name);
    return text[0] ? text : "+nothing";
}

static unsigned poll_now(int fd, short events) {
    struct pollfd one = {.fd = fd, .events = events};
    return poll(&one, 1, 0) < 0 ? ~0u : (unsigned short)one.revents;
}

// Waits until the own end agrees with the model.
static void settle(unsigned c) {
    struct end *own = &connections[c].ends[side];
    if (!own->open) return;
    uint64_t until = now_ns() + SETTLES_WITHIN_MS * 1000000ull;
    int fd = fds[c][0], there = -1;
    unsigned events = 0, wanted = own->broken ? POLLHUP : own->ended ? POLLRDHUP : 0;
    for (;;) {
        if (ioctl(fd, FIONREAD, &there)) there = -errno;
        events = wanted ? poll_now(fd, POLLIN | POLLOUT | POLLRDHUP) : 0;
        if (there == (int)own->pending && (events & wanted) == wanted) return;
        if (now_ns() > until) break;
        sched_yield();
    }
    char text[99];
    begin("unsettled", c);
    SAY(" %d of %u bytes, %s", there, own->pending, words(text, events));
    finish();
    stray = true;
}

// ---- actions of one side alone ----

static void send_some(unsigned c, unsigned actor) {
    struct end *own = &connections[c].ends[actor], *peer = &connections[c].ends[1 - actor];
    bool dead = own->shut_out || own->refused || own->broken;
    unsigned room = own->small || peer->small ? 2000 : PENDING_MAX;
    unsigned most = dead ? 100 : peer->pending >= room || peer->pieces >= 16 ? 0 : room - peer->pending;
    unsigned len = pick(8) == 0 ? 0 : most ? 1 + pick(pick(2) ? most : (most < 200 ? most : 200)) : 0;
    unsigned way = pick(9), flags = (pick(2) ? MSG_NOSIGNAL : 0) | (dead || pick(3) == 0 ? MSG_DONTWAIT : 0);
    unsigned cut = len ? pick(len) : 0;
    int fd = acting_number(c, actor);
    // Bytes for a TCP socket that is shut down both ways may cause a reset at any time.
    if (!connections[c].is_unix && peer->open && peer->shut_in && peer->shut_out) return;
    if (actor == side) {
        fill(side, own->sent, buffer, len);
        struct iovec pieces[3] = {{buffer, cut}, {NULL, 0}, {buffer + cut, len - cut}};
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 3};
        struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = pieces, .msg_iovlen = 1}},
                                      {.msg_hdr = {.msg_iov = pieces + 2, .msg_iovlen = 1}}};
        static const char *names[] = {"send", "write", "writev", "sendmsg", "sendto", "sendmmsg", "send", "write", "pwritev2"};
        begin(names[way], c);
        SAY(" %u flags %x", len, flags);
        long sent;
        switch (way) {
        case 1:
        case 7: sent = write(fd, buffer, len); break;
        case 2: sent = writev(fd, pieces, 3); break;
        case 3: sent = sendmsg(fd, &message, flags); break;
        case 4: sent = sendto(fd, buffer, len, flags, NULL, 0); break;
        case 5: sent = sendmmsg(fd, messages, 2, flags); break;
        case 8: sent = pwritev2(fd, pieces, 3, -1, 0); break;
        default: sent = send(fd, buffer, len, flags);
        }
        if (way == 5 && sent >= 0) {
            SAY(" messages %ld", sent);
            sent = (sent > 0 ? messages[0].msg_len : 0) + (sent > 1 ? messages[1].msg_len : 0);
        }
        result(sent, dead ? -1 : (long)len);
        finish();
    }
    if (dead) {
        // Bytes sent to a closed TCP connection cause a reset.
        if (!connections[c].is_unix && own->refused && !own->shut_out && len) own->broken = true;
        return;
    }
    own->sent += len;
    if (len) peer->pending += len, peer->pieces++, peer->news = true;
    connections[c].sends++;
}

static void receive_some(unsigned c, unsigned actor) {
    struct end *own = &connections[c].ends[actor];
    bool over = own->ended || own->shut_in || own->broken;
    unsigned len = pick(12) == 0 ? 0 : pick(3) == 0 && own->pending ? own->pending : 1 + pick(pick(2) ? 3000 : 100);
    unsigned way = pick(8), flags = 0;
    if (pick(4) == 0) flags |= MSG_PEEK;
    if (pick(6) == 0) flags |= MSG_TRUNC;
    if (pick(4) == 0) flags |= MSG_WAITALL;
    if (pick(4) == 0) flags |= MSG_DONTWAIT;
    // This call reports errors before earlier bytes.
    if (way == 5 && own->broken) way = 0;
    bool reads = way == 1 || way == 2 || way == 7;
    if (reads) flags = 0;
    bool truncates = flags & MSG_TRUNC && !connections[c].is_unix;
    if (connections[c].is_unix) flags &= ~MSG_TRUNC;
    bool waits = !own->nonblocking && !(flags & MSG_DONTWAIT) && !(reads && len == 0);
    bool enough = own->pending >= (flags & MSG_WAITALL ? len : 1) && own->pending;
    if (waits && !enough && !over && !own->times_out) {
        if (reads) way = 0;
        reads = false;
        flags |= MSG_DONTWAIT;
    }
    unsigned cut = len ? pick(len) : 0, got = len < own->pending ? len : own->pending;
    int fd = acting_number(c, actor);
    if (actor == side) {
        memset(buffer, 0xee, len);
        struct iovec pieces[3] = {{buffer, cut}, {NULL, 0}, {buffer + cut, len - cut}};
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 3};
        struct mmsghdr messages = {.msg_hdr = {.msg_iov = pieces, .msg_iovlen = 3}};
        struct sockaddr_storage from;
        socklen_t from_len = sizeof from;
        static const char *names[] = {"recv", "read", "readv", "recvmsg", "recvfrom", "recvmmsg", "recv", "read"};
        begin(names[way], c);
        SAY(" %u flags %x", len, flags);
        long part;
        switch (way) {
        case 1:
        case 7: part = read(fd, buffer, len); break;
        case 2: part = readv(fd, pieces, 3); break;
        case 3: part = recvmsg(fd, &message, flags); break;
        case 4: part = recvfrom(fd, buffer, len, flags, (void *)&from, &from_len); break;
        case 5:
            part = recvmmsg(fd, &messages, 1, flags, NULL);
            if (part > 0) part = messages.msg_len;
            break;
        default: part = recv(fd, buffer, len, flags);
        }
        int failed = errno;
        if (way == 3 && part >= 0) SAY(" message flags %x control %zu", message.msg_flags, (size_t)message.msg_controllen);
        if (way == 4 && part >= 0) SAY(" from %s", part && from_len > 2 ? "a name" : "nobody");
        if (part > 0) {
            size_t right = truncates ? (size_t)part : verify(1 - side, own->received, buffer, part);
            if (right != (size_t)part) SAY(" wrong from %zu", right), stray = true;
            // Memory behind the received bytes is not touched, unless the message was truncated.
            if (truncates && buffer[0] != 0xee && !(flags & MSG_PEEK)) SAY(" written");
        }
        errno = failed;
        result(part, got ? (long)got : -1);
        finish();
    }
    if (!(flags & MSG_PEEK)) {
        own->received += got;
        own->pending -= got;
        if (!own->pending) own->pieces = 0;
    }
}

static void look(unsigned c, unsigned actor) {
    static const short all[] = {POLLIN, POLLOUT, POLLRDHUP, POLLPRI, POLLRDNORM, POLLWRNORM, POLLRDBAND};
    short events = 0;
    for (unsigned at = 0; at < 7; at++)
        if (pick(2)) events |= all[at];
    unsigned way = pick(4);
    int fd = acting_number(c, actor);
    if (actor != side) return;
    static const char *names[] = {"poll", "ppoll", "select", "pselect"};
    char text[200];
    begin(names[way], c);
    if (way < 2) {
        struct pollfd one[2] = {{.fd = -1}, {.fd = fd, .events = events}};
        struct timespec none = {0};
        int found = way ? ppoll(one, 2, &none, NULL) : poll(one, 2, 0);
        SAY(" %x: %s", (unsigned short)events, words(text, (unsigned short)one[1].revents));
        result(found, -1);
    } else {
        fd_set sets[3];
        for (unsigned set = 0; set < 3; set++) {
            FD_ZERO(&sets[set]);
            FD_SET(fd, &sets[set]);
        }
        struct timeval none = {0};
        struct timespec none_either = {0};
        int found = way == 2 ? select(fd + 1, &sets[0], &sets[1], &sets[2], &none)
                             : pselect(fd + 1, &sets[0], &sets[1], &sets[2], &none_either, NULL);
        for (unsigned set = 0; set < 3; set++) SAY(" %d", !!FD_ISSET(fd, &sets[set]));
        result(found, -1);
    }
    finish();
}

static void watch(unsigned c, unsigned actor) {
    struct end *own = &connections[c].ends[actor];
    static const uint32_t all[] = {EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLET, EPOLLONESHOT};
    uint32_t events = 0;
    for (unsigned at = 0; at < 5; at++)
        if (pick(2)) events |= all[at];
    unsigned operation = pick(5) == 0 ? EPOLL_CTL_DEL : own->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (pick(12) == 0) operation = EPOLL_CTL_ADD;
    if (actor == side) {
        struct epoll_event event = {.events = events, .data.u32 = c};
        begin("epoll_ctl", c);
        SAY(" %u %x", operation, events);
        result(epoll_ctl(epoll, operation, fds[c][0], &event), -1);
        finish();
    }
    if (operation == EPOLL_CTL_DEL) own->watched = 0;
    else if ((operation == EPOLL_CTL_ADD) == !own->watched) {
        own->watched = events | 1u << 31;
        own->fresh = own->armed = true;
    }
}

static int by_connection(const void *left, const void *right) {
    const struct epoll_event *one = left, *other = right;
    return (int)one->data.u32 - (int)other->data.u32;
}

static void wait_for_any(unsigned actor) {
    struct epoll_event events[8];
    for (unsigned round = 0; round < 2; round++) {
        int found = actor == side ? epoll_wait(epoll, events, 8, 0) : 0;
        if (actor == side) {
            begin("epoll_wait", 0);
            if (found > 0) qsort(events, found, sizeof *events, by_connection);
        }
        bool said = false;
        for (int at = 0; at < found; at++) {
            unsigned c = events[at].data.u32, told = events[at].events;
            struct end *own = &connections[c < CONNECTIONS ? c : 0].ends[side];
            char text[200];
            if (own->watched & EPOLLET) {
                // A spurious edge may be reported; a real one has to be.
                if (!own->fresh) told &= own->news ? ~EPOLLOUT : 0;
                if (!told) continue;
            }
            SAY(" %u: %s", c, words(text, told));
            said = true;
        }
        for (unsigned c = 0; c < CONNECTIONS; c++) {
            struct end *own = &connections[c].ends[actor];
            own->fresh = own->news = false;
        }
        if (actor == side) {
            if (found < 0) result(found, -1);
            else if (!said) SAY(" nothing");
            finish();
        }
    }
}

static void duplicate(unsigned c, unsigned actor) {
    struct end *own = &connections[c].ends[actor];
    unsigned way = pick(4), which = own->numbers > 1 ? pick(own->numbers) : 0;
    // The number that epoll knows stays.
    bool closes = own->numbers == NUMBERS || (own->numbers > 1 && pick(2));
    if (closes && which == 0) which = 1;
    if (actor == side) {
        begin(closes ? "close one" : "duplicate", c);
        if (closes) {
            result(close(fds[c][which]), -1);
            memmove(&fds[c][which], &fds[c][which + 1], (NUMBERS - 1 - which) * sizeof(int));
        } else {
            int from = fds[c][which], to = -1;
            switch (way) {
            case 0: to = dup(from); break;
            case 1: to = fcntl(from, F_DUPFD, 20); break;
            case 2: to = fcntl(from, F_DUPFD_CLOEXEC, 0); break;
            default: to = dup2(from, 40 + c * NUMBERS + own->numbers);
            }
            SAY(" %u", way);
            result(to, -1);
            fds[c][own->numbers] = to;
        }
        finish();
    }
    own->numbers += closes ? -1 : 1;
}

static void shut(unsigned c, unsigned actor) {
    struct end *own = &connections[c].ends[actor], *peer = &connections[c].ends[1 - actor];
    unsigned how = pick(5) < 3 ? SHUT_WR : pick(2) ? SHUT_RD : SHUT_RDWR;
    int fd = acting_number(c, actor);
    if (own->shut_in && own->shut_out) return;
    if (actor == side) {
        begin("shutdown", c);
        SAY(" %u", how);
        result(shutdown(fd, how), -1);
        finish();
    }
    if (how != SHUT_RD) own->shut_out = true, peer->ended = peer->news = true;
    if (how != SHUT_WR) {
        own->shut_in = own->news = true;
        if (connections[c].is_unix) peer->refused = true;
    }
    if (own->shut_out && own->shut_in && connections[c].is_unix) peer->refused = true;
}

static void close_all(unsigned c, unsigned actor) {
    struct end *own = &connections[c].ends[actor], *peer = &connections[c].ends[1 - actor];
    bool lingers = !connections[c].is_unix && pick(4) == 0 && !own->shut_out && !(peer->shut_in && peer->shut_out);
    // A connection that has ended both ways causes no reset.
    if (own->pending && ((own->shut_in && own->shut_out) || (peer->shut_in && peer->shut_out))) return;
    if (actor == side) {
        begin("close", c);
        SAY(" %u", own->numbers);
        struct linger none = {.l_onoff = 1};
        if (lingers) SAY(" lingering %d", setsockopt(fds[c][0], SOL_SOCKET, SO_LINGER, &none, sizeof none));
        while (own->numbers > 0) result(close(fds[c][--own->numbers]), 0);
        finish();
    }
    if (lingers || own->pending) peer->broken = true;
    if (peer->shut_out && peer->ended && !lingers) peer->broken = peer->broken && connections[c].is_unix;
    peer->ended = peer->refused = peer->news = true;
    *own = (struct end){0};
}

static void flags_of(unsigned c, unsigned actor) {
    struct end *own = &connections[c].ends[actor];
    unsigned way = pick(2);
    bool wanted = pick(2);
    int fd = acting_number(c, actor), value = wanted;
    if (actor == side) {
        begin("nonblocking", c);
        int flags = fcntl(fd, F_GETFL);
        SAY(" %u %d was %x", way, wanted, flags & ~O_LARGEFILE);
        result(way ? ioctl(fd, FIONBIO, &value)
                   : fcntl(fd, F_SETFL, wanted ? flags | O_NONBLOCK : flags & ~O_NONBLOCK), -1);
        finish();
    }
    own->nonblocking = wanted;
}

static void option(unsigned c, unsigned actor) {
    struct end *own = &connections[c].ends[actor];
    unsigned way = pick(6);
    // AF_UNIX's count of bytes on their way is an internal matter.
    if (way == 4 && connections[c].is_unix) way = 5;
    bool wanted = pick(2);
    int fd = acting_number(c, actor), value = 0;
    socklen_t len = sizeof value;
    struct timeval time = {.tv_usec = wanted ? TIMEOUT_MS * 1000 : 0};
    struct sockaddr_storage name = {0};
    if (actor == side) switch (way) {
        case 0:
            begin("SO_RCVTIMEO", c);
            result(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time), 0);
            break;
        case 1:
            begin("SO_ERROR", c);
            result(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len), -1);
            SAY(" %s", value ? error_name(value) : "none");
            break;
        case 2:
        case 3:
            begin(way == 2 ? "getpeername" : "getsockname", c);
            len = sizeof name;
            result(way == 2 ? getpeername(fd, (void *)&name, &len) : getsockname(fd, (void *)&name, &len), -1);
            if (!connections[c].is_unix)
                SAY(" %d", ((struct sockaddr_in *)&name)->sin_port == tcp_address.sin_port);
            SAY(" family %d length %d", name.ss_family, connections[c].is_unix && len > 2 ? 3 : (int)len);
            break;
        case 4: {
            value = 16384;
            begin("small buffers", c);
            result(setsockopt(fd, SOL_SOCKET, wanted ? SO_SNDBUF : SO_RCVBUF, &value, sizeof value), 0);
            getsockopt(fd, SOL_SOCKET, wanted ? SO_SNDBUF : SO_RCVBUF, &value, &len);
            SAY(" %d", value);
            break;
        }
        default: {
            static const int names[] = {SO_TYPE, SO_ACCEPTCONN, SO_DOMAIN, SO_PROTOCOL, SO_RCVLOWAT, SO_KEEPALIVE};
            begin("options", c);
            for (unsigned at = 0; at < 6; at++) {
                getsockopt(fd, SOL_SOCKET, names[at], &value, &len);
                SAY(" %d", value);
            }
        }
    }
    if (way == 0) own->times_out = wanted;
    if (way == 4) own->small = true;
    if (actor == side) finish();
}

// ---- actions of both sides ----

// Sends `bytes` in pieces, waiting in one way or another.
static bool stream_out(int fd, unsigned c, uint64_t position, unsigned bytes, unsigned way, unsigned piece) {
    unsigned done = 0;
    while (done < bytes) {
        unsigned len = bytes - done < piece ? bytes - done : piece;
        fill(side, position + done, buffer, len);
        long part = send(fd, buffer, len, MSG_NOSIGNAL | (way ? MSG_DONTWAIT : 0));
        if (part > 0) done += part;
        else if (errno != EAGAIN) break;
        else {
            struct pollfd one = {.fd = fd, .events = POLLOUT};
            if (way == 1) sched_yield();
            else if (poll(&one, 1, 10000) != 1) break;
        }
    }
    begin("stream out", c);
    SAY(" %u of %u", done, bytes);
    if (done < bytes) SAY(" %s", error_name(errno));
    return done == bytes;
}

static bool stream_in(int fd, unsigned c, uint64_t position, unsigned bytes, unsigned way, unsigned piece) {
    unsigned done = 0;
    bool right = true;
    while (done < bytes && right) {
        unsigned len = bytes - done < piece ? bytes - done : piece;
        long part = recv(fd, buffer, len, way ? MSG_DONTWAIT : piece % 2 ? MSG_WAITALL : 0);
        if (part > 0) {
            right = verify(1 - side, position + done, buffer, part) == (size_t)part;
            done += part;
        } else if (part == 0 || errno != EAGAIN) break;
        else {
            struct pollfd one = {.fd = fd, .events = POLLIN};
            if (way == 1) sched_yield();
            else if (poll(&one, 1, 10000) != 1) break;
        }
    }
    begin("stream in", c);
    SAY(" %u of %u%s", done, bytes, right ? "" : " wrong");
    if (done < bytes) SAY(" %s", error_name(errno));
    return done == bytes && right;
}

static void stream(unsigned c, unsigned actor) {
    struct end *own = &connections[c].ends[actor], *peer = &connections[c].ends[1 - actor];
    unsigned more = pick(3) == 0 ? 100000 + pick(400000) : 1 + pick(60000), piece = 1 + pick(pick(2) ? 500 : 40000);
    if (more / piece > 3000) more = piece * 3000;
    unsigned ways[2] = {pick(3), pick(3)}, piece_in = 1 + pick(pick(2) ? 3000 : 100000);
    int from = acting_number(c, actor), to = acting_number(c, 1 - actor);
    bool right = actor == side ? stream_out(from, c, own->sent, more, ways[0], piece)
                               : stream_in(to, c, peer->received, peer->pending + more, ways[1], piece_in);
    finish();
    stray |= !right;
    own->sent += more;
    peer->received += peer->pending + more;
    peer->pending = peer->pieces = 0;
    peer->news = true;
    connections[c].sends = 100;
}

// Waits on one side for the other's bytes.
static void wait_for_other(unsigned c, unsigned actor) {
    struct end *own = &connections[c].ends[actor], *peer = &connections[c].ends[1 - actor];
    unsigned way = pick(4), len = 1 + pick(1000), delay_us = pick(3) * pick(600);
    int fd = acting_number(c, actor), other = acting_number(c, 1 - actor);
    if (actor == side) {
        char text[200];
        fd_set reads;
        struct pollfd one = {.fd = fd, .events = POLLIN | POLLRDHUP};
        struct timeval long_time = {.tv_sec = 10};
        struct epoll_event event = {.events = EPOLLIN};
        long got = 0;
        begin("wait", c);
        switch (way) {
        case 0:
            got = poll(&one, 1, 10000);
            SAY(" poll %s", words(text, (unsigned short)one.revents));
            break;
        case 1:
            FD_ZERO(&reads);
            FD_SET(fd, &reads);
            got = select(fd + 1, &reads, NULL, NULL, &long_time);
            SAY(" select");
            break;
        case 2: {
            int own_epoll = epoll_create1(0);
            epoll_ctl(own_epoll, EPOLL_CTL_ADD, fd, &event);
            got = epoll_wait(own_epoll, &event, 1, 10000);
            SAY(" epoll %s", words(text, event.events));
            close(own_epoll);
            break;
        }
        default:
            if (own->nonblocking || own->times_out) break;
            got = recv(fd, buffer, own->pending + len, MSG_WAITALL | MSG_PEEK);
            if (connections[c].is_unix) got = got > 0;
            SAY(" recv");
        }
        result(got, -1);
        finish();
    } else {
        if (delay_us) usleep(delay_us);
        fill(side, peer->sent, buffer, len);
        begin("meanwhile send", c);
        result(send(other, buffer, len, MSG_NOSIGNAL), len);
        finish();
    }
    peer->sent += len;
    own->pending += len;
    own->pieces++;
    own->news = true;
}

static void make_connection(unsigned c) {
    struct connection *made = &connections[c];
    *made = (struct connection){.is_unix = pick(2)};
    unsigned way = pick(3), accepts = pick(3);
    struct sockaddr *address = made->is_unix ? (void *)&unix_address : (void *)&tcp_address;
    socklen_t len = made->is_unix ? sizeof unix_address : sizeof tcp_address;
    int kind = SOCK_STREAM | (way == 1 ? SOCK_NONBLOCK : 0);
    char text[200];
    if (side == 0) {
        int listener = listeners[made->is_unix];
        struct sockaddr_storage from = {0};
        socklen_t from_len = sizeof from;
        struct pollfd one = {.fd = listener, .events = POLLIN};
        if (accepts == 1) poll(&one, 1, 10000);
        fds[c][0] = accepts == 2 ? accept4(listener, (void *)&from, &from_len, SOCK_NONBLOCK | SOCK_CLOEXEC)
                                 : accept(listener, (void *)&from, &from_len);
        begin("accept", c);
        SAY(" %u", accepts);
        result(fds[c][0], -1);
        SAY(" family %d length %u flags %x", from.ss_family, from_len, fcntl(fds[c][0], F_GETFL) & ~O_LARGEFILE);
    } else {
        int fd = fds[c][0] = socket(made->is_unix ? AF_UNIX : AF_INET, kind, 0);
        begin("connect", c);
        SAY(" %u", way);
        if (way == 2) {
            // A socket that is not connected.
            SAY(" %s", words(text, poll_now(fd, POLLIN | POLLOUT | POLLRDHUP)));
            result(recv(fd, buffer, 10, MSG_DONTWAIT), -1);
            result(send(fd, buffer, 10, MSG_DONTWAIT | MSG_NOSIGNAL), -1);
        }
        result(connect(fd, address, len), -1);
        struct pollfd one = {.fd = fd, .events = POLLOUT};
        if (way == 1) {
            poll(&one, 1, 10000);
            int error = 0;
            socklen_t error_len = sizeof error;
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_len);
            SAY(" %s error %d", words(text, (unsigned short)one.revents), error);
        }
        SAY(" number %d", fd);
    }
    finish();
    for (unsigned of = 0; of < 2; of++) made->ends[of] = (struct end){.open = true, .numbers = 1};
    made->ends[0].nonblocking = accepts == 2;
    made->ends[1].nonblocking = way == 1;
    if (fds[c][0] < 0) stray = true;
}

static void refused(void) {
    bool is_unix = pick(2), nonblocking = pick(2);
    if (side == 0) return;
    struct sockaddr_un nowhere = {.sun_family = AF_UNIX, .sun_path = "/nonexistent/socket"};
    struct sockaddr_in closed = {.sin_family = AF_INET, .sin_port = htons(1), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM | (nonblocking ? SOCK_NONBLOCK : 0), 0), error = 0;
    struct pollfd one = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
    socklen_t len = sizeof error;
    char text[200];
    SAY("%llu/%u refused %d", (unsigned long long)seed, step, is_unix);
    result(is_unix ? connect(fd, (void *)&nowhere, sizeof nowhere) : connect(fd, (void *)&closed, sizeof closed), -1);
    poll(&one, 1, 1000);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    SAY(" %s error %d", words(text, (unsigned short)one.revents), error);
    result(recv(fd, buffer, 1, MSG_DONTWAIT), -1);
    result(close(fd), 0);
    finish();
}

static void accept_none(void) {
    unsigned which = pick(2), way = pick(2);
    if (side == 1) return;
    int listener = listeners[which], flags = fcntl(listener, F_GETFL);
    char text[200];
    SAY("%llu/%u accept nobody", (unsigned long long)seed, step);
    fcntl(listener, F_SETFL, flags | O_NONBLOCK);
    result(way ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : accept(listener, NULL, NULL), -1);
    SAY(" %s", words(text, poll_now(listener, POLLIN | POLLOUT)));
    fcntl(listener, F_SETFL, flags);
    result(recv(listener, buffer, 1, MSG_DONTWAIT), -1);
    finish();
}

// ---- the program ----

static bool usable(unsigned c, unsigned actor) { return connections[c].ends[actor].open; }

static bool flows(unsigned c, unsigned actor) {
    struct end *own = &connections[c].ends[actor], *peer = &connections[c].ends[1 - actor];
    return own->open && peer->open && !own->shut_out && !own->refused && !own->broken && !peer->shut_in && !peer->broken;
}

// Tells whether unread bytes stay with their process: the directions of the connection have ended, or it takes no more bytes.
static bool over(unsigned c, const struct end *own) {
    bool shut_in = own->shut_in && (own->shut_out || connections[c].is_unix);
    return own->broken || shut_in || (own->ended && (own->shut_out || own->refused));
}

// A peer sees no more than the rest of a direct ring until it has read that, when the end that wrote it moves.
static bool lags(unsigned c, unsigned actor) { return connections[c].sends > 20 && connections[c].ends[actor].pending; }

static void alone(unsigned c, unsigned actor) {
    if (pick(2)) send_some(c, actor);
    else receive_some(c, actor);
}

static void step_once(void) {
    unsigned c = pick(CONNECTIONS), actor = pick(2), kind = pick(40);
    if (!usable(c, 0) && !usable(c, 1)) {
        if (kind < 4) refused();
        else if (kind < 8) accept_none();
        else make_connection(c);
        return;
    }
    if (!usable(c, actor)) actor = 1 - actor;
    if (kind < 9) send_some(c, actor);
    else if (kind < 18) receive_some(c, actor);
    else if (kind < 22) look(c, actor);
    else if (kind < 24) watch(c, actor);
    else if (kind < 27) wait_for_any(actor);
    else if (kind < 29) duplicate(c, actor);
    else if (kind < 30) shut(c, actor);
    else if (kind < 31) close_all(c, actor);
    else if (kind < 32) flags_of(c, actor);
    else if (kind < 35) option(c, actor);
    else if (kind < 37 && flows(c, actor)) stream(c, actor);
    else if (kind < 39 && flows(c, 1 - actor)) wait_for_other(c, actor);
    else if (may_fork && !over(c, &connections[c].ends[actor]) && !lags(c, 1 - actor)) {
        unsigned times = 1 + pick(3);
        pid_t child = actor == side ? fork() : -1;
        if (actor == side && child == 0) in_child = true;
        bool acts = actor != side || child == 0;
        // The parent knows its child's actions, and does not repeat them.
        unsigned own_side = side;
        if (!acts) side = 2;
        // Bytes that the parent has not read come to the child a moment later.
        else if (child == 0) settle(c);
        for (unsigned time = 0; time < times; time++)
            if (!lags(c, 1 - actor)) alone(c, actor);
        side = own_side;
        if (child == 0) _exit(stray);
        int status = 0;
        if (child > 0 && (waitpid(child, &status, 0) != child || status)) stray = true;
    }
}

static void listen_both(const char *path) {
    tcp_address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    unix_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(unix_address.sun_path, sizeof unix_address.sun_path, "%s.sock", path);
    if (side == 0) {
        socklen_t len = sizeof tcp_address;
        unlink(unix_address.sun_path);
        listeners[0] = socket(AF_INET, SOCK_STREAM, 0);
        listeners[1] = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(listeners[0], (void *)&tcp_address, len) || listen(listeners[0], 8) ||
            bind(listeners[1], (void *)&unix_address, sizeof unix_address) || listen(listeners[1], 8))
            _exit(4);
        getsockname(listeners[0], (void *)&tcp_address, &len);
        meeting->port = tcp_address.sin_port;
        // A wait by the server starts its support of short connections.
        poll_now(listeners[0], POLLIN);
    }
}

static void run(void) {
    common = mixed(seed);
    stray = false;
    memset(connections, 0, sizeof connections);
    epoll = epoll_create1(0);
    for (step = 0; step < STEPS; step++) {
        step_once();
        for (unsigned c = 0; c < CONNECTIONS; c++) settle(c);
        if (stray) meeting->done = 1;
        if (!meet()) {
            SAY("%llu/%u the other process is missing\n", (unsigned long long)seed, step);
            flush();
            _exit(5);
        }
        if (meeting->done) break;
        if (!meet()) _exit(5);
    }
    for (unsigned c = 0; c < CONNECTIONS; c++)
        while (connections[c].ends[side].numbers > 0) close(fds[c][--connections[c].ends[side].numbers]);
    close(epoll);
    int lowest = dup(0);
    SAY("%llu ends, lowest number %d\n", (unsigned long long)seed, lowest);
    flush();
    close(lowest);
    if (!meet()) _exit(5);
    meeting->done = 0;
    if (!meet()) _exit(5);
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    meeting = map_file(argv[1], sizeof *meeting);
    side = atoi(argv[2]);
    uint64_t first = strtoull(argv[3], NULL, 10), count = strtoull(argv[4], NULL, 10);
    may_fork = atoi(argv[5]);
    // Descriptor numbers are part of the results.
    for (int fd = 3; fd < 64; fd++) close(fd);
    signal(SIGPIPE, count_signal);
    listen_both(argv[1]);
    if (!meet()) return 5;
    tcp_address.sin_port = meeting->port;
    for (seed = first; seed < first + count; seed++) run();
    if (side == 0) unlink(unix_address.sun_path);
    return 0;
}
