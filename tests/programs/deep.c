// A program whose plugin finds the C library before anything else: `deep server PORT PLUGIN` echoes, `deep client IP PORT PLUGIN` prints
// answers. Connections are made here and used in turn here and there. The plugin is this file, compiled with -DPLUGIN.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include "serve.h"

#ifdef PLUGIN

// By references of three kinds: in the code, of a variable, and not looked up before its first use.
static ssize_t (*const receives)(int, void *, size_t, int) = recv;

int talk(int fd, const char *text, char *answer, size_t room) {
    struct pollfd one = {fd, POLLIN, 0};
    if (write(fd, text, strlen(text)) < 0 || poll(&one, 1, 5000) != 1) return -1;
    return receives(fd, answer, room, 0);
}

int dial(struct sockaddr_in *to) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return connect(fd, (void *)to, sizeof *to) ? -1 : fd;
}

void leave(int fd) { close(fd); }

#else

int main(int argc, char **argv) {
    alarm(60);
    void *plugin = dlopen(argv[argc - 1], RTLD_LAZY | RTLD_DEEPBIND);
    if (!plugin) die(dlerror());
    int (*talk)(int, const char *, char *, size_t) = (int (*)(int, const char *, char *, size_t))dlsym(plugin, "talk");
    int (*dial)(struct sockaddr_in *) = (int (*)(struct sockaddr_in *))dlsym(plugin, "dial");
    void (*leave)(int) = (void (*)(int))dlsym(plugin, "leave");
    if (argc == 4) {
        alarm(0);
        serve_each(atoi(argv[2]), echo);
    }
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &to.sin_addr);
    for (int round = 0; round < 4; round++) {
        int fd = round % 2 ? dial(&to) : socket(AF_INET, SOCK_STREAM, 0);
        if (!(round % 2)) checked("connect", connect(fd, (void *)&to, sizeof to));
        int sum = 0;
        for (int n = 0; n < 200; n++) {
            char text[32], answer[32] = "";
            snprintf(text, sizeof text, "message %d", n);
            if (n % 3) {
                sum += talk(fd, text, answer, sizeof answer - 1);
            } else {
                if (send(fd, text, strlen(text), 0) < 0) die("send");
                sum += recv(fd, answer, sizeof answer - 1, 0);
            }
            if (strcmp(text, answer)) die("another answer");
        }
        leave(fd);
        int again = socket(AF_INET, SOCK_STREAM, 0);
        SAY("round %d: %d bytes, number %s", round, sum, again == fd ? "again" : "new");
        close(again);
    }
}

#endif
