/* A process that listens, and whose folder of descriptors in /proc nobody can list: one thread lists it into memory that does not come, another
   wants to make a file there, and the kernel has later ones wait behind that one. */
#include <err.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *list(void *page) {
    int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
    syscall(SYS_getdents64, folder, page, 4096);
    return 0;
}

static void *make(void *unused) {
    open("/proc/self/fd/new", O_WRONLY | O_CREAT, 0600);
    return unused;
}

int main(void) {
    int faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register all = {.range = {(unsigned long)page, 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &all)) err(1, "userfaultfd");
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(4445)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 1)) err(1, "listen");
    pthread_t one, two;
    pthread_create(&one, 0, list, page);
    struct pollfd fault = {.fd = faults, .events = POLLIN};
    poll(&fault, 1, -1);
    pthread_create(&two, 0, make, 0);
    pause();
}
