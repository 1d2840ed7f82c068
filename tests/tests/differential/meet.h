// Shared parts of this folder's programs: two processes that map one file to meet in, a generator, and bytes that
// encode their place in a stream.
#pragma once
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// No pair of processes takes a hundredth of this between two meetings.
#define HANGS_AFTER_S 30

// The beginning of the file.
struct meeting {
    _Atomic uint32_t arrived, round;
    _Atomic uint32_t port;
    // Bytes received, by direction; the last is a count that has to advance.
    _Atomic uint64_t moved[2];
    _Atomic uint32_t done;
};

static struct meeting *meeting;

// A system call past every library, with errors as the C library has them; the fourth argument is 0.
__attribute__((unused)) static long raw_call(long number, long a, long b, long c) {
    register long d asm("r10") = 0;
    asm volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(d) : "rcx", "r11", "memory");
    if (number >= 0) return number;
    errno = -number;
    return -1;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void *map_file(const char *path, size_t bytes) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(fd);
    return map;
}

// Waits for the other process; false: it does not come. Not by a call that is under test.
static bool meet(void) {
    uint32_t round = meeting->round;
    if (++meeting->arrived == 2) {
        meeting->arrived = 0;
        meeting->round++;
        syscall(SYS_futex, &meeting->round, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return true;
    }
    for (int look = 0; look < 200 && meeting->round == round; look++) sched_yield();
    for (uint64_t until = now_ns() + HANGS_AFTER_S * 1000000000ull; meeting->round == round;) {
        struct timespec second = {.tv_sec = 1};
        if (now_ns() > until) return false;
        syscall(SYS_futex, &meeting->round, FUTEX_WAIT, round, &second, NULL, 0);
    }
    return true;
}

// splitmix64
static uint64_t mixed(uint64_t word) {
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
    word = (word ^ word >> 27) * 0x94d049bb133111eb;
    return word ^ word >> 31;
}

static uint64_t next(uint64_t *state) { return mixed(*state += 0x9e3779b97f4a7c15); }

static uint64_t below(uint64_t *state, uint64_t bound) { return next(state) % bound; }

// Byte number `position` of a stream.
static uint8_t pattern(unsigned stream, uint64_t position) {
    return mixed(position / 8 * 2 + stream) >> position % 8 * 8;
}

static void fill(unsigned stream, uint64_t position, uint8_t *bytes, size_t len) {
    for (size_t at = 0; at < len; at++) bytes[at] = pattern(stream, position + at);
}

// Returns the offset of the first of `len` bytes that differs from the stream; `len` if none does.
static size_t verify(unsigned stream, uint64_t position, const uint8_t *bytes, size_t len) {
    size_t at = 0;
    while (at < len && bytes[at] == pattern(stream, position + at)) at++;
    return at;
}

// Sends a byte and standard input with it, which only the kernel can carry.
__attribute__((unused)) static ssize_t send_descriptor(int fd, uint8_t byte) {
    struct iovec piece = {&byte, 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &(int){0}, sizeof(int));
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}
