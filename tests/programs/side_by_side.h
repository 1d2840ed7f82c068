// Parts of a program that mostly wait, each in a process of its own.
#ifndef SIDE_BY_SIDE_H
#define SIDE_BY_SIDE_H

#include "serve.h"
#include <sys/wait.h>

enum { PARTS_MAX = 16 };

// Runs `count` parts at once, each with its number and a path of its own, which begins with `path` and is removed. Prints what they print one behind
// the other. Returns 0 if all have ended well.
static int side_by_side(const char *path, int count, void (*part)(int number, const char *own)) {
    int outputs[PARTS_MAX], status, failed = 0;
    for (int n = 0; n < count; n++) {
        int ends[2];
        if (pipe(ends)) die("pipe");
        fflush(stdout);
        if (fork() == 0) {
            char own[100];
            snprintf(own, sizeof own, "%s%d", path, n);
            dup2(ends[1], 1);
            for (int fd = 3; fd <= ends[1]; fd++) close(fd);
            part(n, own);
            unlink(own);
            exit(0);
        }
        close(ends[1]);
        outputs[n] = ends[0];
    }
    for (int n = 0; n < count; n++) {
        char bytes[4096];
        ssize_t some;
        while ((some = read(outputs[n], bytes, sizeof bytes)) > 0)
            if (write(1, bytes, some) != some) die("write");
    }
    while (wait(&status) > 0) failed |= status;
    return failed != 0;
}

#endif
