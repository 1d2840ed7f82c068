// Calls that send and receive bytes.
#pragma once
#include "model.h"

#define PENDING_MAX 12000

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

// Sends bytes of a file.
static void send_file(unsigned c, unsigned actor) {
    struct end *own = &connections[c].ends[actor], *peer = &connections[c].ends[1 - actor];
    unsigned room = own->small || peer->small ? 2000 : PENDING_MAX, before = pick(3) * pick(100), by_position = pick(2);
    unsigned most = peer->pending >= room || peer->pieces >= 16 ? 0 : room - peer->pending;
    unsigned len = most ? 1 + pick(most) : 0, short_by = pick(4) ? 0 : pick(300);
    int fd = acting_number(c, actor);
    if (own->shut_out || own->refused || own->broken || !peer->open || peer->shut_in || !len) return;
    if (actor == side) {
        // The file may end before the call does.
        static int file = -1;
        if (file < 0) file = fcntl(memfd_create("bytes", MFD_CLOEXEC), F_DUPFD_CLOEXEC, 200);
        off_t offset = before;
        fill(side, own->sent, buffer, len);
        if (ftruncate(file, 0) || pwrite(file, buffer, len, before) != (ssize_t)len) _exit(3);
        lseek(file, by_position ? before : 7, SEEK_SET);
        begin("sendfile", c);
        SAY(" %u of %u", len, len + short_by);
        result(sendfile(fd, file, by_position ? NULL : &offset, len + short_by), len);
        SAY(" offset %ld position %ld", (long)offset - before, (long)lseek(file, 0, SEEK_CUR) - (by_position ? before : 0));
        finish();
    }
    own->sent += len, peer->pending += len, peer->pieces++, peer->news = true;
    connections[c].sends++;
}

// Receives into a pipe, and reads that.
static void splice_some(unsigned c, unsigned actor) {
    struct end *own = &connections[c].ends[actor];
    unsigned len = 1 + pick(pick(2) ? 3000 : 100), got = len < own->pending ? len : own->pending, later = pick(2);
    int fd = acting_number(c, actor);
    if (!got) return;
    if (actor == side) {
        int ends[2];
        long part, sum = 0;
        if (pipe(ends)) _exit(3);
        begin("splice", c);
        SAY(" %u", len);
        // A call may move fewer than there are.
        while (sum < (long)got && (part = splice(fd, NULL, ends[1], NULL, got - sum, sum || later ? SPLICE_F_NONBLOCK : 0)) > 0) sum += part;
        result(sum, got);
        part = read(ends[0], buffer, sizeof buffer);
        if (part != (long)got || verify(1 - side, own->received, buffer, got) != got) SAY(" wrong %ld", part), stray = true;
        close(ends[0]), close(ends[1]);
        finish();
    }
    own->received += got, own->pending -= got;
    if (!own->pending) own->pieces = 0;
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
