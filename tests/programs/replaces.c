// A process that replaces itself after each byte that it receives, by calls that do not wait. `replaces server PORT` prints "ready" and serves
// each connection in a process of its own: takes in what is said to come before, peeks until all of the rest is there, and goes on as another
// image for each byte of that. Sends "all", or at which byte a call found nothing. `replaces client IP PORT` prints the answers.
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include "serve.h"

#define REST 60
// As many bytes have a connection take the direct path.
#define MUCH (600 << 10)

static char *image[] = {"replaces", "image", NULL, NULL, NULL};

static void answer(int fd, const char *text) {
    if (write(fd, text, strlen(text)) < 0) _exit(2);
    _exit(0);
}

// Receives one byte of the rest by a call that does not wait.
static int take(int fd, int number) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    int there = 0;
    char byte;
    if (number % 3 == 0 && recv(fd, &byte, 1, MSG_DONTWAIT) != 1) return 0;
    if (number % 3 == 1 && (poll(&one, 1, 0) != 1 || read(fd, &byte, 1) != 1)) return 0;
    if (number % 3 == 2 && (ioctl(fd, FIONREAD, &there) || there != REST - number || read(fd, &byte, 1) != 1)) return 0;
    return byte == (char)number;
}

static void next(int fd, int number) {
    static char fd_text[16], number_text[16];
    snprintf(fd_text, sizeof fd_text, "%d", fd), snprintf(number_text, sizeof number_text, "%d", number);
    image[2] = fd_text, image[3] = number_text;
    execv("/proc/self/exe", image);
    _exit(3);
}

static void *serve(void *argument) {
    static _Thread_local char bytes[MUCH + REST];
    int fd = (int)(intptr_t)argument;
    pid_t child = fork();
    if (child == 0) {
        uint32_t before = 0;
        if (recv(fd, &before, sizeof before, MSG_WAITALL) != sizeof before) _exit(1);
        for (size_t at = 0; at < before; at += 1000)
            if (recv(fd, bytes, 1000, MSG_WAITALL) != 1000 || write(fd, bytes, 1) != 1) _exit(1);
        while (recv(fd, bytes, REST, MSG_PEEK | MSG_WAITALL) != REST) {}
        next(fd, 0);
    }
    close(fd);
    waitpid(child, NULL, 0);
    return NULL;
}

static void ask(const struct sockaddr_in *to, uint32_t before) {
    static char bytes[1000];
    char text[100], *end = text;
    int fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
    ssize_t part;
    checked("connect", connect(fd, (const void *)to, sizeof *to));
    if (write(fd, &before, sizeof before) != sizeof before) die("write");
    for (uint32_t at = 0; at < before; at += sizeof bytes)
        if (write(fd, bytes, sizeof bytes) != sizeof bytes || read(fd, text, 1) != 1) die("echo");
    for (int i = 0; i < REST; i++) bytes[i] = i;
    if (write(fd, bytes, REST) != REST) die("write");
    while (end < text + sizeof text - 1 && (part = read(fd, end, text + sizeof text - 1 - end)) > 0) end += part;
    *end = 0;
    SAY("after %u: %s", before, text);
    close(fd);
}

int main(int count, char **arguments) {
    if (count == 4 && !strcmp(arguments[1], "image")) {
        int fd = atoi(arguments[2]), number = atoi(arguments[3]);
        char text[60];
        snprintf(text, sizeof text, "nothing at %d", number);
        if (number == REST) answer(fd, "all");
        if (!take(fd, number)) answer(fd, text);
        next(fd, number + 1);
    }
    if (count == 3 && !strcmp(arguments[1], "server")) serve_each(atoi(arguments[2]), serve);
    if (count != 4 || strcmp(arguments[1], "client")) return 2;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[3]))};
    inet_pton(AF_INET, arguments[2], &to.sin_addr);
    for (int round = 0; round < 2; round++) ask(&to, 0), ask(&to, MUCH / 1000 * 1000);
    return 0;
}
