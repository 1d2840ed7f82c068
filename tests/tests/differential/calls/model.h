// The connections of `calls`, as both processes know them, and its output.
#pragma once
#include "../meet.h"

#define CONNECTIONS 3
#define NUMBERS 3
#define SETTLES_WITHIN_MS 20000

// Bit of a registration that no events have.
#define WATCHED (1u << 27)

// A side of a connection, as both processes know it.
struct end {
    bool open, nonblocking, times_out, shut_in, shut_out, lingers, small;
    // The peer has ended its stream; it takes nothing any more; it has reset the connection, or will.
    bool ended, refused, broken;
    unsigned numbers, pending, pieces;
    uint64_t sent, received;
    // Events of the registration in the side's epoll instance, with `WATCHED`, and what came since the last look.
    uint32_t watched;
    bool news, armed, fresh;
};

struct connection {
    bool is_unix;
    // The kernel carries what is sent from now on.
    bool has_departed;
    // Number of sends, after which the side may be on the direct path.
    unsigned sends;
    struct end ends[2];
};

static unsigned side, step;
static uint64_t seed, common;
static struct connection connections[CONNECTIONS];
static int fds[CONNECTIONS][NUMBERS];
static int listeners[2] = {-1, -1}, epoll = -1;
static bool stray;
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
