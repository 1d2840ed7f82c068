/* A file system with one file, which can be opened and is silent from then on: hushed FOLDER. Says "ready" when it is there. */
#include <err.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static int fuse;

static void answer(struct fuse_in_header *to, const void *bytes, size_t len) {
    static char message[4096];
    struct fuse_out_header head = {.len = sizeof head + len, .unique = to->unique};
    memcpy(message, &head, sizeof head);
    memcpy(message + sizeof head, bytes, len);
    if (write(fuse, message, head.len) != (ssize_t)head.len) err(1, "write");
}

int main(int argc, char **argv) {
    if (argc < 2) errx(2, "hushed FOLDER");
    if ((fuse = open("/dev/fuse", O_RDWR)) < 0) err(1, "/dev/fuse");
    char options[100];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fuse);
    if (mount("hushed", argv[1], "fuse.hushed", MS_NOSUID | MS_NODEV, options)) err(1, "mount");
    static char bytes[1 << 20];
    struct fuse_in_header *in = (void *)bytes;
    for (int is_opened = 0; read(fuse, bytes, sizeof bytes) > 0;) {
        struct fuse_attr file = {.ino = 2, .size = 1 << 20, .mode = S_IFREG | 0444, .nlink = 1};
        struct fuse_attr root = {.ino = 1, .mode = S_IFDIR | 0555, .nlink = 2};
        if (in->opcode == FUSE_INIT) {
            struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096};
            answer(in, &init, sizeof init);
            puts("ready");
            fflush(stdout);
        } else if (is_opened) {
            /* Neither attributes, nor bytes, nor the end of a descriptor. */
        } else if (in->opcode == FUSE_LOOKUP) {
            struct fuse_entry_out entry = {.nodeid = 2, .attr = file};
            answer(in, &entry, sizeof entry);
        } else if (in->opcode == FUSE_GETATTR) {
            struct fuse_attr_out attributes = {.attr = in->nodeid == 2 ? file : root};
            answer(in, &attributes, sizeof attributes);
        } else if (in->opcode == FUSE_OPEN) {
            struct fuse_open_out open = {.fh = 1};
            answer(in, &open, sizeof open);
            is_opened = 1;
        }
    }
}
