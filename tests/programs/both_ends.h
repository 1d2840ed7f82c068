// Both ends of a connection in one process.
#ifndef BOTH_ENDS_H
#define BOTH_ENDS_H

#include "serve.h"
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/un.h>

// Connects over AF_UNIX, by the file `path`, or TCP. `ends`: the one that connected, and the one that was accepted. If the pair `greets`, each end
// sends a few bytes and receives them.
static void connected(const char *path, bool is_unix, bool greets, int ends[2]) {
    struct sockaddr_un file = {.sun_family = AF_UNIX};
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    strncpy(file.sun_path, path, sizeof file.sun_path - 1);
    struct sockaddr *address = is_unix ? (void *)&file : (void *)&tcp;
    socklen_t len = is_unix ? sizeof file : sizeof tcp;
    int listener = checked("socket", socket(address->sa_family, SOCK_STREAM, 0));
    unlink(path);
    if (bind(listener, address, len) || listen(listener, 4)) die("listen");
    getsockname(listener, address, &len);
    ends[0] = checked("socket", socket(address->sa_family, SOCK_STREAM, 0));
    checked("connect", connect(ends[0], address, len));
    ends[1] = checked("accept", accept(listener, NULL, NULL));
    close(listener);
    char bytes[2];
    for (int from = 0; greets && from < 2; from++)
        if (send(ends[from], "hi", 2, 0) != 2 || recv(ends[1 - from], bytes, 2, MSG_WAITALL) != 2) die("greeting");
}

#endif
