// A program of socket calls from a seed: `calls FILE SIDE FIRST COUNT FORKS`. Two processes run it in lock-step, and print the
// result of each call. Both know the bytes on their way, so that only calls with determined results are made. Before each step
// everything sent has arrived, or there is a fault.
#include "calls/bytes.h"
#include "calls/model.h"
#include "calls/sockets.h"
#include "calls/waits.h"

#define STEPS 40

// Programs from this number on have further kinds of calls. Those of earlier ones stay the same.
#define FURTHER_FROM 1000000

static bool may_fork;

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
    if (seed >= FURTHER_FROM && pick(3) == 0) {
        unsigned further = pick(10);
        if (further < 4) send_file(c, actor);
        else if (further < 7) splice_some(c, actor);
        else if (further < 9) replace(c, actor);
        else depart(c, actor);
        return;
    }
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
