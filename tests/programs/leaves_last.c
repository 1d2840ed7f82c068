// Ends that go on in the kernel, send more than the peer has read, and are closed at once, or end with their process: `leaves_last PATH`. All bytes
// reach the peer, and then an orderly end. Prints lines that do not depend on the transport.
#define _GNU_SOURCE
#include "both_ends.h"
#include <fcntl.h>
#include <sys/wait.h>

static char bulk[1500000];

// Sends without waiting, what the kernel's buffers take. `early`: some of it before the end leaves. Returns bytes.
static long leaves(int fd, bool early) {
    int room = 4 << 20;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    long sent = early ? send(fd, bulk, 1000, 0) : 0;
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC)) die("O_ASYNC");
    sent += send(fd, bulk + sent, sizeof bulk - sent, MSG_DONTWAIT);
    return sent;
}

static void receives(int peer, long sent) {
    static char bytes[50000];
    long got = 0, wrong = 0;
    ssize_t part;
    while ((part = recv(peer, bytes, sizeof bytes, 0)) > 0) {
        for (ssize_t n = 0; n < part; n++) wrong += bytes[n] != bulk[got + n];
        got += part;
    }
    printf("%s, %ld wrong, end %zd\n", got == sent ? "all" : got < sent ? "less" : "more", wrong, part);
    close(peer);
}

static void by_close(const char *path, bool is_unix, bool early, int side) {
    int ends[2];
    connected(path, is_unix, true, ends);
    long sent = leaves(ends[side], early);
    close(ends[side]);
    printf("%s closed%s, side %d: ", is_unix ? "unix" : "tcp", early ? " early" : "", side);
    receives(ends[1 - side], sent);
}

static void by_exit(bool early) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof to;
    int told[2], listener = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
    if (bind(listener, (void *)&to, len) || listen(listener, 4) || pipe(told)) die("listen");
    getsockname(listener, (void *)&to, &len);
    fflush(stdout);
    if (fork() == 0) {
        char byte;
        int fd = checked("socket", socket(AF_INET, SOCK_STREAM, 0));
        checked("connect", connect(fd, (void *)&to, len));
        if (send(fd, "a", 1, 0) != 1 || recv(fd, &byte, 1, 0) != 1) die("greeting");
        long sent = leaves(fd, early);
        if (write(told[1], &sent, sizeof sent) != sizeof sent) die("write");
        exit(0);
    }
    char byte;
    long sent;
    int peer = checked("accept", accept(listener, NULL, NULL));
    if (recv(peer, &byte, 1, 0) != 1 || send(peer, "b", 1, 0) != 1) die("greeting");
    wait(NULL);
    if (read(told[0], &sent, sizeof sent) != sizeof sent) die("read");
    printf("tcp ended%s: ", early ? " early" : "");
    receives(peer, sent);
    close(listener), close(told[0]), close(told[1]);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    for (unsigned n = 0; n < sizeof bulk; n++) bulk[n] = n * 31 >> 5;
    for (int early = 0; early < 2; early++) {
        for (int is_unix = 0; is_unix < 2; is_unix++)
            for (int side = 0; side < 2; side++) by_close(argv[1], is_unix, early, side);
        by_exit(early);
    }
    return 0;
}
