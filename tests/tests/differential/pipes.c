// Two processes: one splices bytes of a connection through a pipe to another connection, and meanwhile makes all calls that a program
// may make on a pipe. The other one has the far ends, sends, and checks received bytes: `pipes FILE SIDE FIRST COUNT FORKS`. The
// calls follow from the seed. Prints the result of each; no byte may be lost, doubled or misplaced.
#include "meet.h"

#define STEPS 60
#define PENDING_MAX 20000
#define PIECES_MAX 6
#define BULK_BYTES_MIN 100000
#define BULK_BYTES_MORE 900000
#define SETTLES_WITHIN_MS 20000
#define SAY(...) printf(__VA_ARGS__)

static unsigned side, step;
static uint64_t seed, common;
static bool may_fork, stray, is_unix, nonblocking, ended;
static uint8_t buffer[1 << 20];
// Of side 0: from where bytes come and to where they go. Of side 1: the far ends.
static int source, sink, ends[2] = {-1, -1};
// Bytes sent, in the connection, and in the pipe.
static uint64_t sent, taken, arrived;
static unsigned pending, pieces, in_pipe, pipe_pieces;
// Set if the pipe may have held more bytes than its size, in pieces of whole packets.
static bool was_overfull;
#define PIPE_BYTES 65536
static _Atomic unsigned signals;

static void count_signal(int number) {
    (void)number;
    signals++;
}

static unsigned pick(unsigned bound) { return below(&common, bound); }

static void result(const char *what, unsigned len, long is, long should_be) {
    int failed = errno;
    SAY("%llu/%u %s %u: %ld", (unsigned long long)seed, step, what, len, is);
    if (is < 0) SAY(" errno %d", failed);
    if (signals) SAY(" signals %u", signals);
    signals = 0;
    if (should_be >= 0 && is != should_be) SAY(" not %ld", should_be), stray = true;
    SAY("\n");
}

static void expect(uint64_t position, const uint8_t *bytes, long len) {
    if (len > 0 && verify(0, position, bytes, len) != (size_t)len) {
        SAY("%llu/%u wrong bytes\n", (unsigned long long)seed, step);
        stray = true;
    }
}

static bool there(int fd, unsigned wanted) {
    int bytes = -1;
    for (uint64_t until = now_ns() + SETTLES_WITHIN_MS * 1000000ull; now_ns() < until; sched_yield())
        if (ioctl(fd, FIONREAD, &bytes) == 0 && bytes == (int)wanted) return true;
    SAY("%llu/%u unsettled: %d of %u\n", (unsigned long long)seed, step, bytes, wanted);
    stray = true;
    return false;
}

static unsigned some(unsigned most) { return 1 + pick(pick(2) ? most : (most < 100 ? most : 100)); }

static void more_comes(void) {
    if (pending >= PENDING_MAX || pieces >= PIECES_MAX || ended) return;
    unsigned len = some(PENDING_MAX / 4);
    if (side == 1) {
        fill(0, sent, buffer, len);
        result("send", len, send(source, buffer, len, MSG_NOSIGNAL), len);
    }
    sent += len, pending += len, pieces++;
    if (side == 0) there(source, pending);
}

// Splices at most `len` bytes. A call may move fewer than are available; repeats until all `there` are moved.
static long splice_all(int from, int to, unsigned len, unsigned flags, unsigned there) {
    long part = splice(from, NULL, to, NULL, len, flags), sum = part;
    while (part > 0 && sum < (long)there) {
        part = splice(from, NULL, to, NULL, there - sum, SPLICE_F_NONBLOCK);
        if (part > 0) sum += part;
    }
    return sum;
}

// Out of the connection into the pipe.
static void to_pipe(void) {
    unsigned flags = pick(2) ? SPLICE_F_NONBLOCK : 0, len = pick(3) ? some(PENDING_MAX) : 1 << 20, got = len < pending ? len : pending;
    bool waits = !nonblocking && (!is_unix || !flags) && !ended;
    unsigned way = pick(8);
    if ((!pending && waits) || pipe_pieces + pieces > 12) return;
    if (side == 0) {
        loff_t offset = 0;
        if (way == 0) result("splice at", len, splice(source, &offset, ends[1], NULL, len, flags), -1);
        if (way == 1) result("splice to", len, splice(source, NULL, ends[1], &offset, len, flags), -1);
        if (way == 2) result("splice none", len, splice(source, NULL, ends[1], NULL, 0, flags), 0);
        if (way == 3) result("splice so", len, splice(source, NULL, ends[1], NULL, len, 1 << 9), -1);
        if (way == 4) result("splice back", len, splice(source, NULL, ends[0], NULL, len, flags), -1);
        result("splice in", len, splice_all(source, ends[1], len, flags, got), got ? (long)got : ended ? 0 : -1);
        there(source, pending - got);
    }
    taken += got, in_pipe += got, pending -= got;
    was_overfull |= in_pipe > PIPE_BYTES;
    pipe_pieces += got ? pieces : 0;
    if (!pending) pieces = 0;
}

static void arrive(unsigned len) {
    if (side == 1 && len) {
        long part = recv(sink, buffer, len, MSG_WAITALL);
        result("arrives", len, part, len);
        expect(arrived, buffer, part);
    }
    arrived += len, in_pipe -= len;
    if (!in_pipe) pipe_pieces = 0;
}

// Out of the pipe into the other connection.
static void from_pipe(void) {
    unsigned len = pick(3) ? some(PENDING_MAX) : 1 << 20, got = len < in_pipe ? len : in_pipe;
    unsigned flags = !in_pipe || pick(2) ? SPLICE_F_NONBLOCK : 0, way = pick(8);
    if (side == 0) {
        loff_t offset = 0;
        if (way == 0) result("splice at", len, splice(ends[0], &offset, sink, NULL, len, flags), -1);
        if (way == 1) result("splice to", len, splice(ends[0], NULL, sink, &offset, len, flags), -1);
        if (way == 2) result("splice back", len, splice(ends[1], NULL, sink, NULL, len, flags), -1);
        result("splice out", len, splice_all(ends[0], sink, len, flags, got), got ? (long)got : -1);
    }
    arrive(got);
}

// Makes another call on the pipe or on the connection.
static void use_otherwise(void) {
    unsigned way = pick(16), len = some(PENDING_MAX), value = 0;
    unsigned got = len < in_pipe ? len : in_pipe, given = len < pending ? len : pending;
    struct pollfd both[2] = {{.fd = ends[0], .events = POLLIN}, {.fd = ends[1], .events = POLLOUT}};
    long part;
    switch (way) {
    case 0:
        if (side == 0) result("FIONREAD", 0, ioctl(ends[0], FIONREAD, &value) ? -1 : (long)value, in_pipe);
        break;
    case 1:
        if (side == 0) {
            result("poll", 0, poll(both, 2, 0), -1);
            result("polled", 0, both[0].revents << 8 | both[1].revents, -1);
        }
        break;
    case 2:
        // A pipe that became the kernel's then stays larger.
        if (side == 0 && !was_overfull) result("F_GETPIPE_SZ", 0, fcntl(ends[0], F_GETPIPE_SZ), -1);
        break;
    case 3:
    case 4: // Reads the pipe, and sends what it has read.
        if (!in_pipe) break;
        if (side == 0) {
            part = read(ends[0], buffer, len);
            result("read", len, part, got);
            expect(arrived, buffer, part);
            result("send", got, send(sink, buffer, got, MSG_NOSIGNAL), got);
        }
        arrive(got);
        break;
    case 5:
    case 6: // Receives, and writes into the pipe what it has received.
        if (!pending || pipe_pieces > 10) break;
        if (side == 0) {
            part = recv(source, buffer, len, 0);
            result("recv", len, part, given);
            expect(taken, buffer, part);
            result("write", given, write(ends[1], buffer, given), given);
        }
        taken += given, in_pipe += given, pending -= given, pipe_pieces++;
        if (!pending) pieces = 0;
        break;
    case 7:
        if (side == 0 && pending) {
            part = recv(source, buffer, len, MSG_PEEK);
            result("peek", len, part, given);
            expect(taken, buffer, part);
        }
        break;
    case 8: { // Another number.
        if (side != 0) break;
        unsigned which = len & 1;
        int other = dup(ends[which]);
        if (len & 2) {
            // The number stands for another pipe's end for a moment.
            int second[2];
            if (pipe(second) || dup2(second[which], ends[which]) < 0) _exit(3);
            close(second[0]), close(second[1]);
        }
        close(ends[which]);
        ends[which] = other;
        break;
    }
    case 9: { // A second pipe.
        int second[2];
        if (side != 0 || !in_pipe) break;
        if (pipe(second)) _exit(3);
        part = tee(ends[0], second[1], len, SPLICE_F_NONBLOCK);
        result("tee", len, part, -1);
        long again = read(second[0], buffer, sizeof buffer);
        if (again != part) stray = true;
        expect(arrived, buffer, again);
        close(second[0]), close(second[1]);
        break;
    }
    case 10: { // Moves on to a second pipe.
        int second[2];
        if (!in_pipe || side != 0) break;
        if (pipe(second)) _exit(3);
        result("pipe to pipe", in_pipe, splice(ends[0], NULL, second[1], NULL, in_pipe, 0), in_pipe);
        close(ends[0]), close(ends[1]);
        ends[0] = second[0], ends[1] = second[1];
        break;
    }
    case 11: { // A child reads it.
        if (!may_fork || !in_pipe) break;
        if (side == 0) {
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                part = read(ends[0], buffer, len);
                bool right = part == (long)got && verify(0, arrived, buffer, got) == got;
                _exit(!right || send(sink, buffer, got, MSG_NOSIGNAL) != (long)got);
            }
            int status = -1;
            waitpid(child, &status, 0);
            result("child", got, status, 0);
        }
        arrive(got);
        break;
    }
    case 12: { // Another program may have it.
        if (side != 0 || !in_pipe) break;
        fflush(stdout);
        FILE *counts = popen("true", "r");
        pclose(counts);
        result("popen", 0, ioctl(ends[0], FIONREAD, &value) ? -1 : (long)value, in_pipe);
        break;
    }
    case 13: { // The write end is closed: available bytes are followed by the end.
        if (!in_pipe) break;
        if (side == 0) {
            int fresh[2];
            close(ends[1]);
            part = read(ends[0], buffer, sizeof buffer);
            result("rest", 0, part, in_pipe);
            expect(arrived, buffer, part);
            result("end", 0, read(ends[0], buffer + part, 10), 0);
            close(ends[0]);
            if (pipe(fresh)) _exit(3);
            ends[0] = fresh[0], ends[1] = fresh[1];
            result("send", part, send(sink, buffer, part, MSG_NOSIGNAL), part);
        }
        arrive(in_pipe);
        break;
    }
    case 14: { // Results of a splice without a pipe, and of sendfile.
        if (side != 0) break;
        loff_t offset = 0;
        result("no pipe", len, splice(source, NULL, sink, NULL, len, SPLICE_F_NONBLOCK), -1);
        result("sendfile", len, sendfile(sink, source, NULL, len), -1);
        result("sendfile at", len, sendfile(sink, source, &offset, len), -1);
        break;
    }
    default:
        if (side == 0 && !in_pipe) {
            close(ends[0]), close(ends[1]);
            if (pipe(ends)) _exit(3);
        }
    }
}

// Much at once, by splices that do not wait.
static void bulk(void) {
    if (ended) return;
    unsigned more = BULK_BYTES_MIN + pick(BULK_BYTES_MORE), len = pick(2) ? 1 << 20 : 1 + pick(100000);
    unsigned disturbs = pick(4);
    was_overfull |= more + pending + in_pipe > PIPE_BYTES;
    if (side == 1) {
        unsigned out = 0, in = 0, all = more + pending + in_pipe;
        fcntl(source, F_SETFL, O_NONBLOCK);
        while (in < all) {
            unsigned part = more - out < 60000 ? more - out : 60000;
            fill(0, sent + out, buffer, part);
            long moved = part ? send(source, buffer, part, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
            if (moved > 0) out += moved;
            moved = recv(sink, buffer, sizeof buffer, MSG_DONTWAIT);
            if (moved == 0) break;
            if (moved > 0) expect(arrived + in, buffer, moved), in += moved;
            else if (part == 0) poll(&(struct pollfd){.fd = sink, .events = POLLIN}, 1, 5000);
        }
        fcntl(source, F_SETFL, 0);
        result("bulk", all, in, all);
    } else {
        int flags[2] = {fcntl(source, F_GETFL), fcntl(sink, F_GETFL)};
        fcntl(source, F_SETFL, O_NONBLOCK), fcntl(sink, F_SETFL, O_NONBLOCK);
        unsigned left = more + pending, held = in_pipe, turns = 0;
        while (left || held) {
            long in = left ? splice(source, NULL, ends[1], NULL, len < left ? len : left, SPLICE_F_NONBLOCK) : 0;
            if (in > 0) left -= in, held += in;
            if (in == 0 && left) break;
            int there = 0;
            // Other calls on the pipe from time to time; the order stays.
            if (disturbs == 0 && ++turns % 7 == 0 && ioctl(ends[0], FIONREAD, &there) == 0 && there != (int)held) stray = true;
            if (disturbs == 1 && held && ++turns % 5 == 0 && held < 60000) {
                long part = read(ends[0], buffer, 1000);
                if (part > 0) {
                    for (long done = 0; done < part;) {
                        long out = send(sink, buffer + done, part - done, MSG_NOSIGNAL);
                        if (out > 0) done += out;
                        else poll(&(struct pollfd){.fd = sink, .events = POLLOUT}, 1, 5000);
                    }
                    held -= part;
                }
            }
            long out = held ? splice(ends[0], NULL, sink, NULL, held, SPLICE_F_NONBLOCK) : 0;
            if (out > 0) held -= out;
            struct pollfd both[2] = {{.fd = source, .events = left && !held ? POLLIN : 0}, {.fd = sink, .events = held ? POLLOUT : 0}};
            if (in <= 0 && out <= 0 && (left || held) && poll(both, 2, 5000) != 1) break;
        }
        fcntl(source, F_SETFL, flags[0]), fcntl(sink, F_SETFL, flags[1]);
        result("pumped", more, left + held, 0);
    }
    sent += more;
    taken += more + pending;
    arrived += more + pending + in_pipe;
    pending = pieces = in_pipe = pipe_pieces = 0;
}

static void end_source(void) {
    if (ended || pending > 0 || pick(4)) return;
    ended = true;
    if (side == 1) result("shutdown", 0, shutdown(source, SHUT_WR), 0);
    else if (poll(&(struct pollfd){.fd = source, .events = POLLRDHUP}, 1, SETTLES_WITHIN_MS) != 1) stray = true;
}

static void connect_both(const char *path) {
    struct sockaddr_un file = {.sun_family = AF_UNIX};
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    snprintf(file.sun_path, sizeof file.sun_path, "%s.sock", path);
    struct sockaddr *address = is_unix ? (void *)&file : (void *)&tcp;
    socklen_t len = is_unix ? sizeof file : sizeof tcp;
    if (side == 0) {
        int listener = socket(address->sa_family, SOCK_STREAM, 0);
        unlink(file.sun_path);
        if (bind(listener, address, len) || listen(listener, 8)) _exit(4);
        getsockname(listener, address, &len);
        meeting->port = tcp.sin_port;
        poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 0);
        if (!meet()) _exit(5);
        source = accept4(listener, NULL, NULL, nonblocking ? SOCK_NONBLOCK : 0);
        sink = accept(listener, NULL, NULL);
        if (source < 0 || sink < 0 || pipe(ends)) _exit(4);
        close(listener);
        unlink(file.sun_path);
    } else {
        source = socket(address->sa_family, SOCK_STREAM, 0);
        sink = socket(address->sa_family, SOCK_STREAM, 0);
        if (!meet()) _exit(5);
        tcp.sin_port = meeting->port;
        if (connect(source, address, len) || connect(sink, address, len)) _exit(4);
    }
}

static void run(const char *path) {
    common = mixed(seed);
    stray = ended = was_overfull = false;
    is_unix = pick(3) == 0, nonblocking = pick(2);
    sent = taken = arrived = pending = pieces = in_pipe = pipe_pieces = 0;
    connect_both(path);
    for (step = 0; step < STEPS; step++) {
        unsigned kind = pick(32);
        if (kind < 9) more_comes();
        else if (kind < 16) to_pipe();
        else if (kind < 22) from_pipe();
        else if (kind < 28) use_otherwise();
        else if (kind < 31) bulk();
        else end_source();
        if (stray) meeting->done = 1;
        if (!meet()) _exit(5);
        if (meeting->done) break;
        if (!meet()) _exit(5);
    }
    if (!meeting->done) {
        // The connection is closed before the pipe is empty, and after its own peer.
        if (side == 0) {
            uint8_t *bytes = buffer;
            close(source);
            long part = in_pipe ? read(ends[0], bytes, sizeof buffer) : 0;
            result("after the close", in_pipe, part, in_pipe);
            expect(arrived, bytes, part);
        }
    } else if (side == 0) close(source);
    if (side == 1) close(source);
    close(sink);
    if (side == 0) close(ends[0]), close(ends[1]);
    int lowest = dup(0);
    SAY("%llu ends, lowest number %d\n", (unsigned long long)seed, lowest);
    fflush(stdout);
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
    for (int fd = 3; fd < 64; fd++) close(fd);
    signal(SIGPIPE, count_signal);
    for (seed = first; seed < first + count; seed++) run(argv[1]);
    return 0;
}
