// Calls that make, connect, change, duplicate and end sockets.
#pragma once
#include "model.h"

#define TIMEOUT_MS 15

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
            // No other of the program's numbers: those may have gone to another connection.
            default: to = dup2(from, 40 + (int)step);
            }
            SAY(" %u", way);
            result(to, -1);
            fds[c][own->numbers] = to;
        }
        finish();
    }
    own->numbers += closes ? -1 : 1;
}

// Asks for what only the kernel has, so that the connection leaves the fabric.
static void depart(unsigned c, unsigned actor) {
    unsigned way = pick(2), is_tcp = !connections[c].is_unix;
    int fd = acting_number(c, actor);
    connections[c].has_departed = true;
    if (actor != side) return;
    begin("departs", c);
    SAY(" %u", way && is_tcp);
    if (way && is_tcp) result(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &(int){1}, sizeof(int)), 0);
    else result(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC), 0);
    finish();
}

// Puts a number of a connection in the place of another one of it, or of another connection.
static void replace(unsigned c, unsigned actor) {
    unsigned from = pick(CONNECTIONS);
    struct end *own = &connections[c].ends[actor], *source = &connections[from].ends[actor];
    bool cloexec = pick(2);
    // The number that epoll knows stays.
    if (!source->open || own->numbers < 2 || (from != c && source->numbers == NUMBERS)) return;
    if (actor == side) {
        int to = fds[c][own->numbers - 1], number = fds[from][0];
        begin("replaces", c);
        SAY(" by %u", from);
        result(cloexec ? dup3(number, to, O_CLOEXEC) : dup2(number, to), to);
        if (from != c) fds[from][source->numbers] = to;
        finish();
    }
    if (from != c) own->numbers--, source->numbers++;
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
    if (how != SHUT_RD) {
        // A second end is no news.
        peer->news |= !own->shut_out;
        own->shut_out = peer->ended = true;
    }
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
    // Bytes that lie unread on the fabric alone reset no connection of AF_UNIX that has left it: libpd_preload(7).
    if (own->pending && connections[c].is_unix && connections[c].has_departed) return;
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
