/*
 * When the library proper is loaded. A program that was given what may be on the fabric has it from its start. Any other has it
 * from the first call that may need it, or behind which loading it would be unsafe: so a program that makes no socket, as most of
 * a shell script's, has the cost of this object only.
 *
 * Loading takes locks of the dynamic linker and of malloc(3). So it comes before the first thread, the first signal handler and the first
 * change of root, user or namespaces, in the process whose memory it is.
 */
#include <linux/stat.h>

/* Calls before which the library proper is loaded... */
enum when {
    ALWAYS,
    /* ...if the second argument is a handler... */
    HANDLER,
    /* ...or leads to one... */
    ACTION,
    /* ...if the process confines itself... */
    CONFINES,
};

static const struct beginning {
    const char *name;
    enum when when;
} beginnings[] = {
    /* Sockets, and what they are waited for in. */
    {"socket", ALWAYS}, {"bind", ALWAYS}, {"connect", ALWAYS}, {"__connect", ALWAYS}, {"listen", ALWAYS},
    {"accept", ALWAYS}, {"accept4", ALWAYS}, {"recvmsg", ALWAYS}, {"recvmmsg", ALWAYS}, {"pidfd_getfd", ALWAYS},
    {"epoll_create", ALWAYS}, {"epoll_create1", ALWAYS}, {"epoll_ctl", ALWAYS}, {"io_submit", ALWAYS},
    /* Any call. */
    {"syscall", ALWAYS},
    /* Threads, objects, processes that the C library does not tell of. */
    {"pthread_create", ALWAYS}, {"thrd_create", ALWAYS}, {"dlopen", ALWAYS}, {"clone", ALWAYS}, {"_Fork", ALWAYS},
    {"aio_read", ALWAYS}, {"aio_read64", ALWAYS}, {"aio_write", ALWAYS}, {"aio_write64", ALWAYS},
    {"aio_fsync", ALWAYS}, {"aio_fsync64", ALWAYS}, {"lio_listio", ALWAYS}, {"lio_listio64", ALWAYS},
    /* Handlers. */
    {"sigaction", ACTION}, {"__sigaction", ACTION}, {"signal", HANDLER}, {"bsd_signal", HANDLER}, {"ssignal", HANDLER},
    {"sysv_signal", HANDLER}, {"__sysv_signal", HANDLER}, {"sigset", HANDLER},
    /* Rights and limits. */
    {"prctl", CONFINES}, {"chroot", ALWAYS}, {"unshare", ALWAYS}, {"setns", ALWAYS}, {"setuid", ALWAYS},
    {"seteuid", ALWAYS}, {"setreuid", ALWAYS}, {"setresuid", ALWAYS}, {"setrlimit", ALWAYS}, {"setrlimit64", ALWAYS},
    {"prlimit", ALWAYS}, {"prlimit64", ALWAYS}, {"mlockall", ALWAYS},
};

/* The library proper is to be loaded. */
static int is_awaited;
/* The process that would load it. */
static long process;

/* Variables that the library proper reads. */
static const char *const variables[] = {"LD_PRELOAD", "PD_SOCKET", "PD_PRELOAD", "PD_PRELOAD_LOG", "PD_KERNEL"};
enum { VARIABLES = sizeof variables / sizeof *variables, KEPT_BYTES = 2048 };
/* Those that are set, and null. */
static const char *settings[VARIABLES + 1];

static size_t length(const char *text) {
    size_t n = 0;
    while (text[n])
        n++;
    return n;
}

static int is(const char *text, const char *other) {
    while (*text && *text == *other)
        text++, other++;
    return *text == *other;
}

/* The value in `NAME=value`; null where it is another's. */
static const char *value_of(const char *text, const char *name) {
    while (*name && *text == *name)
        text++, name++;
    return !*name && *text == '=' ? text + 1 : NULL;
}

/* A set-id program belongs to others than who set its environment. */
static int is_set_id(void) {
    if (getauxval)
        return getauxval(AT_SECURE_) != 0;
    return pd_call(PD_GETUID, 0, 0, 0) != pd_call(PD_GETEUID, 0, 0, 0) ||
           pd_call(PD_GETGID, 0, 0, 0) != pd_call(PD_GETEGID, 0, 0, 0);
}

static void find_settings(void) {
    size_t count = 0;
    for (size_t n = 0; n < VARIABLES && &environ && environ && !is_set_id(); n++) {
        char **each = environ;
        while (*each && !value_of(*each, variables[n]))
            each++;
        if (*each)
            settings[count++] = *each;
    }
}

static const char *setting(const char *name) {
    const char *value = NULL;
    for (const char **each = settings; *each && !value; each++)
        value = value_of(*each, name);
    return value;
}

/* A program may clear its environment, or write over it. */
static int keep_settings(void) {
    static char kept[KEPT_BYTES];
    size_t used = 0;
    for (const char **each = settings; *each; each++) {
        size_t bytes = length(*each) + 1;
        if (used + bytes > KEPT_BYTES)
            return 0;
        for (size_t n = 0; n < bytes; n++)
            kept[used + n] = (*each)[n];
        *each = kept + used;
        used += bytes;
    }
    return 1;
}

/* Handlers of forks that the library proper has asked for. They have the place of the program's start among others. */
enum { HANDLERS_MAX = 4 };
static struct {
    void (*prepare)(void), (*parent)(void), (*child)(void);
} handlers[HANDLERS_MAX];
static int handler_count;

static void before_fork(void) {
    for (int n = handler_count; n-- > 0;)
        if (handlers[n].prepare)
            handlers[n].prepare();
}

static void in_parent(void) {
    for (int n = 0; n < handler_count; n++)
        if (handlers[n].parent)
            handlers[n].parent();
}

static void in_child(void) {
    process = pd_call(PD_GETPID, 0, 0, 0);
    for (int n = 0; n < handler_count; n++)
        if (handlers[n].child)
            handlers[n].child();
}

/* As pthread_atfork(3). */
static int at_fork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
    if (handler_count == HANDLERS_MAX)
        return ENOMEM_;
    handlers[handler_count].prepare = prepare;
    handlers[handler_count].parent = parent;
    handlers[handler_count].child = child;
    handler_count++;
    return 0;
}

enum { AT_CWD = -100 };

static int status_of(int folder, const char *path, struct statx *status) {
    enum { EMPTY_PATH = 0x1000 };
    unsigned wanted = STATX_TYPE | STATX_NLINK | STATX_INO | STATX_SIZE;
    return pd_call5(PD_STATX, folder, (long)path, EMPTY_PATH, wanted, (long)status) == 0;
}

/* A socket, an epoll instance, or a file without a name, as an image leaves to the next one. */
static int is_of_fabric(int fd) {
    struct statx status;
    if (!status_of(fd, "", &status))
        return 0;
    unsigned kind = status.stx_mode & S_IFMT;
    return kind == S_IFSOCK || kind == 0 || (kind == S_IFREG && status.stx_nlink == 0);
}

static const char descriptors[] = "/proc/self/fd";

/* Looks among the lowest numbers. Returns whether there is one, or -1 if the process has others than those. */
static int is_given_low(void) {
    enum { LOW = 128, INVALID = 0x20 };
    struct { int fd; short wanted, found; } all[LOW];
    for (int fd = 0; fd < LOW; fd++)
        all[fd].fd = fd, all[fd].wanted = 0, all[fd].found = INVALID;
    struct statx status;
    struct { long seconds, nanoseconds; } now = {0, 0};
    /* The folder's size is their count, since Linux 6.2. */
    if (!status_of(AT_CWD, descriptors, &status) || pd_call5(PD_PPOLL, (long)all, LOW, (long)&now, 0, 0) < 0)
        return -1;
    unsigned long long count = 0;
    for (int fd = 0; fd < LOW; fd++) {
        if (all[fd].found & INVALID)
            continue;
        if (is_of_fabric(fd))
            return 1;
        count++;
    }
    return count == status.stx_size ? 0 : -1;
}

/* Returns whether the program was given any. True also where that cannot be told. */
static int is_given_any(void) {
    enum { CLOEXEC = 02000000, LENGTH_AT = 16, NAME_AT = 19 };
    int found = is_given_low();
    if (found >= 0)
        return found;
    long folder = pd_call5(PD_OPENAT, AT_CWD, (long)descriptors, CLOEXEC, 0, 0), bytes = 0;
    found = folder < 0;
    while (!found) {
        /* Entries of an inode, an offset, a length, a kind and a name. */
        char entries[1024] __attribute__((aligned(8)));
        bytes = pd_call(PD_GETDENTS, folder, (long)entries, sizeof entries);
        if (bytes <= 0)
            break;
        for (long at = 0; at < bytes; at += *(unsigned short *)(entries + at + LENGTH_AT)) {
            int fd = 0;
            const char *digit = entries + at + NAME_AT;
            for (; *digit >= '0' && *digit <= '9'; digit++)
                fd = fd * 10 + (*digit - '0');
            found |= !*digit && is_of_fabric(fd);
        }
    }
    if (folder >= 0)
        pd_call(PD_CLOSE, folder, 0, 0);
    return found || bytes < 0;
}

static const struct beginning *beginning(const char *name) {
    for (size_t n = 0; n < sizeof beginnings / sizeof *beginnings; n++)
        if (is(name, beginnings[n].name))
            return &beginnings[n];
    return NULL;
}

static int is_handler(void *it) {
    /* SIG_DFL, SIG_IGN, SIG_HOLD, SIG_ERR. */
    return (size_t)it > 2 && it != (void *)-1L;
}

/* The library proper is to be there for this call. A child of vfork has another's memory, which it must not change. */
static int begins(const struct beginning *call, void **saved) {
    enum { SECCOMP = 22 };
    void *second = PD_ARGUMENT(saved, 1);
    switch (call->when) {
    case HANDLER:
        if (!is_handler(second))
            return 0;
        break;
    case ACTION:
        /* A structure of the C library's begins with the handler. */
        if (!second || !is_handler(*(void **)second))
            return 0;
        break;
    case CONFINES:
        if ((int)(long)PD_ARGUMENT(saved, 0) != SECCOMP)
            return 0;
        break;
    case ALWAYS: break;
    }
    return pd_call(PD_GETPID, 0, 0, 0) == process;
}
