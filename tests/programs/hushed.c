/* A file system with one file, which can be opened and is silent from then on: hushed FOLDER. Says "ready" when it is there. */
#include "fuse.h"
#include <sys/stat.h>

int main(int argc, char **argv) {
    if (argc < 2) errx(2, "hushed FOLDER");
    begin(argv[1]);
    puts("ready");
    fflush(stdout);
    for (int is_opened = 0; takes();) {
        struct fuse_attr file = {.ino = 2, .size = 1 << 20, .mode = S_IFREG | 0444, .nlink = 1};
        struct fuse_attr root = {.ino = 1, .mode = S_IFDIR | 0555, .nlink = 2};
        if (is_opened) {
            /* Neither attributes, nor bytes, nor the end of a descriptor. */
        } else if (request.head.opcode == FUSE_LOOKUP) {
            struct fuse_entry_out entry = {.nodeid = 2, .attr = file};
            answer(&entry, sizeof entry);
        } else if (request.head.opcode == FUSE_GETATTR) {
            struct fuse_attr_out attributes = {.attr = request.head.nodeid == 2 ? file : root};
            answer(&attributes, sizeof attributes);
        } else if (request.head.opcode == FUSE_OPEN) {
            struct fuse_open_out open = {.fh = 1};
            answer(&open, sizeof open);
            is_opened = 1;
        }
    }
}
