// Calls that tell what a socket is ready for, or wait for it.
#pragma once
#include "model.h"

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
        own->watched = events | WATCHED;
        own->fresh = own->armed = true;
    }
}

static int by_connection(const void *left, const void *right) {
    const struct epoll_event *one = left, *other = right;
    return (int)one->data.u32 - (int)other->data.u32;
}

// Tells whether news of a connection may come a wait late, beside others': libpd_preload(7).
static bool may_be_late(unsigned c, const struct end *own) {
    return connections[c].has_departed && own->watched & (EPOLLET | EPOLLONESHOT);
}

static void wait_for_any(unsigned actor) {
    struct epoll_event events[8];
    uint32_t late[CONNECTIONS] = {0};
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
            if (c < CONNECTIONS && may_be_late(c, own)) {
                late[c] |= told;
                continue;
            }
            SAY(" %u: %s", c, words(text, told));
            said = true;
        }
        for (unsigned c = 0; c < CONNECTIONS; c++) {
            struct end *own = &connections[c].ends[actor];
            char text[200];
            if (round == 0 && may_be_late(c, own)) continue;
            if (late[c]) {
                SAY(" late %u: %s", c, words(text, late[c]));
                said = true;
            }
            own->fresh = own->news = false;
        }
        if (actor == side) {
            if (found < 0) result(found, -1);
            else if (!said) SAY(" nothing");
            finish();
        }
    }
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
