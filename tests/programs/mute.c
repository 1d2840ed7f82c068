/* A file system that answers to its mounting, and to nothing more: mute FOLDER COMMAND... The command runs when it is there. */
#include "fuse.h"

int main(int argc, char **argv) {
    if (argc < 3) errx(2, "mute FOLDER COMMAND...");
    begin(argv[1]);
    if (fork() == 0) {
        execvp(argv[2], argv + 2);
        err(1, "%s", argv[2]);
    }
    /* Requests are taken, and never answered. */
    while (takes()) {}
    pause();
}
