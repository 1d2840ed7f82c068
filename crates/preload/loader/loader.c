/*
 * libpd_preload.so: what LD_PRELOAD names. Loads the library proper where it can run, and else leaves the program to
 * the kernel.
 *
 * An object without dependencies: it needs no C library, no symbol version, no libgcc_s, and instructions of the
 * oldest x86-64 only. So every dynamic linker takes it, musl's and an old glibc's too, and whether the library proper
 * can be loaded is found out by dlopen(3), where failure costs nothing: at the start of a program that was given a socket,
 * and else before the first call that may need it (later.h).
 *
 * Each function that the library proper stands in for is exported as a jump through a slot. A slot begins with a stub
 * that looks the next function of the name up and puts it there; with the library proper loaded it has the function
 * of that. Slots are single words, so any thread may jump through one while it changes.
 *
 * Functions that make a process or an image are exported, too, and go on in the C library. The library proper only learns of
 * each call, in a function that returns before the jump: some return twice, others have arguments without end.
 *
 * docs/design/portability.md has the reasons.
 */
#include <elf.h>
#include <stddef.h>

#define WEAK __attribute__((weak))
#define LOCAL __attribute__((visibility("hidden"), used))

enum { RTLD_LAZY_ = 1, RTLD_NOW_ = 2, RTLD_DEEPBIND_ = 8, RTLD_NODELETE_ = 0x1000, DLOPEN_PRIVATE = (int)0x80000000 };
enum { AT_PAGESZ_ = 6, AT_SECURE_ = 23, ENOMEM_ = 12, ENOSYS_ = 38, TEXT_BYTES = 1024 };
static void *const NEXT = (void *)-1L;

/* How `struct dl_phdr_info` begins. */
struct loaded {
    size_t base;
    const char *name;
    const Elf64_Phdr *parts;
    Elf64_Half count;
};

/* Any may be missing; a reference without a version takes what there is. */
extern void *dlsym(void *, const char *) WEAK;
extern void *dlopen(const char *, int) WEAK;
extern int dladdr(const void *, void *) WEAK;
extern char *dlerror(void) WEAK;
extern int *__errno_location(void) WEAK;
extern unsigned long getauxval(unsigned long) WEAK;
extern int dl_iterate_phdr(int (*)(struct loaded *, size_t, void *), void *) WEAK;
extern char **environ WEAK;
extern const char *gnu_get_libc_version(void) WEAK;
/* glibc's own: what else has gnu_get_libc_version (gcompat) has not this. */
extern char _rtld_global_ro WEAK;
/* glibc before 2.34 keeps the functions above in a library that a program need not have loaded. */
extern void *__libc_dlopen_mode(const char *, int) WEAK;
extern void *__libc_dlsym(void *, const char *) WEAK;
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) WEAK;

/* The functions of dlopen(3), wherever this C library keeps them; null where it does not have them. */
static void *(*sym)(void *, const char *);
static void *(*open_object)(const char *, int);
static int (*find_object)(const void *, void *);
static char *(*last_error)(void);

static void find_functions(void) {
    sym = dlsym;
    open_object = dlopen;
    find_object = dladdr;
    last_error = dlerror;
    if ((!sym || !open_object) && __libc_dlopen_mode && __libc_dlsym) {
        void *library = __libc_dlopen_mode("libdl.so.2", RTLD_NOW_ | DLOPEN_PRIVATE);
        if (library) {
            sym = __libc_dlsym(library, "dlsym");
            open_object = __libc_dlsym(library, "dlopen");
            find_object = __libc_dlsym(library, "dladdr");
            last_error = __libc_dlsym(library, "dlerror");
        }
    }
}

static long missing(void) {
    if (__errno_location)
        *__errno_location() = ENOSYS_;
    return -1;
}

static int is(const char *text, const char *other);
static long submit(long context, long count, long list);

/* The next function of a name behind this object. Not a tail call: dlsym looks at who calls it. */
static void *next(const char *name) {
    if (!sym)
        find_functions();
    void *found = sym ? sym(NEXT, name) : NULL;
    if (!found && is(name, "io_submit"))
        return (void *)submit;
    return found ? found : (void *)missing;
}

/* Hooks: HOOK(number, name) for each. Slots and first stubs are in jumps.h, for this processor. */
static const char *const names[] = {
#define HOOK(number, name) #name,
#include "hooks.inc"
#undef HOOK
};
enum { HOOKS = sizeof names / sizeof *names };
#include "jumps.h"
#include "later.h"

/* A function of libaio's, which need not be where dlsym looks. It has no more than the system call there. */
static long submit(long context, long count, long list) { return pd_call(PD_IO_SUBMIT, context, count, list); }

extern void *pd_slots[HOOKS] __attribute__((visibility("hidden")));
extern void *const pd_hooks[HOOKS] __attribute__((visibility("hidden")));

/* Of functions from FIRST_LEAVING on: found with the library proper, for some are called where dlsym must not be. */
static void *leaving_found[FIRST_BEGINNING - FIRST_LEAVING];

/* Facts for the library proper. src/start.rs has the same. */
struct facts {
    /* Finds the next function of a name. Never null. */
    void *(*next)(const char *name);
    /* Thread-local memory, from the thread pointer. */
    long local_offset;
    size_t local_bytes;
    /* pthread_atfork(3), in the place of the program's start. */
    int (*at_fork)(void (*prepare)(void), void (*parent)(void), void (*child)(void));
    /* Variables of the environment as the program was given them; ends with null. */
    char *const *settings;
    /* The program may have been given descriptors of what is on the fabric. */
    int is_given_any;
};

/* The environment that an image is to have, for one that the program would give it, and what becomes of that. */
enum { OF_CHILD = 1, FOR_GOOD = 2 };

/* The library proper. src/start.rs has the same. */
struct core {
    /* PD_BUILD: both were built from the same files. */
    unsigned long long build;
    /* Returns whether hooks are to be put in place. */
    int (*start)(const struct facts *);
    /* Called before each call of a function from FIRST_LEAVING on, but dlopen. */
    void (*leaving)(void);
    /* The environment for an image, given the program's. */
    char **(*environment)(char **, int);
    /* Takes bind_deep_objects, to call it. */
    void (**deep)(void);
    /* The hooks, in the order of the slots. */
    void *hooks[FIRST_LEAVING];
};
/* Null until it has started. */
static const struct core *core;

/* An image needs the library to go on with what is on the fabric. */
static void keep_library(const char *name, void **saved) {
    static const struct {
        const char *name;
        int at, use;
    } places[] = {
        {"execve", 2, 0},      {"execvpe", 2, 0},      {"fexecve", 2, 0},        {"execveat", 3, 0},
        {"posix_spawn", 5, OF_CHILD}, {"posix_spawnp", 5, OF_CHILD},
        {"execl", -1, FOR_GOOD},      {"execlp", -1, FOR_GOOD},
        {"execv", -1, FOR_GOOD},      {"execvp", -1, FOR_GOOD},
        {"system", -1, FOR_GOOD},     {"popen", -1, FOR_GOOD},
    };
    for (size_t n = 0; n < sizeof places / sizeof *places; n++) {
        if (!is(name, places[n].name))
            continue;
        if (places[n].at >= 0)
            PD_ARGUMENT(saved, places[n].at) = core->environment(PD_ARGUMENT(saved, places[n].at), places[n].use);
        else if (&environ)
            environ = core->environment(environ, places[n].use);
    }
}

/*
 * An object that is loaded with RTLD_DEEPBIND finds the C library's functions before the hooks: what a program has made by
 * these would be used past them. So its references are led to the hooks, before the next socket.
 */
static struct {
    void *function[HOOKS];
    size_t lowest, highest;
} behind;
/* An object was bound so before the library proper was there. */
static int is_deep;

/* The hook that a reference should lead to; -1 if it is none to a function behind the hooks. */
static long hook_of(size_t value, int may_be_name, const char *name) {
    if (value >= behind.lowest && value <= behind.highest)
        for (long n = 0; n < HOOKS; n++)
            if ((size_t)behind.function[n] == value)
                return n;
    for (long n = 0; may_be_name && n < HOOKS; n++)
        if (is(name, names[n]))
            return n;
    return -1;
}

static int bind_object(struct loaded *info, size_t size, void *unused) {
    (void)size, (void)unused;
    size_t from = (size_t)-1, to = 0, fixed_from = 0, fixed_to = 0;
    const Elf64_Dyn *dynamic = NULL;
    for (int n = 0; n < info->count; n++) {
        const Elf64_Phdr *part = &info->parts[n];
        size_t begin = info->base + part->p_vaddr, end = begin + part->p_memsz;
        if (part->p_type == PT_DYNAMIC)
            dynamic = (const void *)begin;
        if (part->p_type == PT_GNU_RELRO)
            fixed_from = begin, fixed_to = end;
        if (part->p_type == PT_LOAD)
            from = begin < from ? begin : from, to = end > to ? end : to;
    }
    const Elf64_Sym *symbols = NULL;
    const char *texts = NULL;
    struct { size_t at, bytes; } tables[2] = {{0, 0}, {0, 0}};
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        switch (dynamic->d_tag) {
        case DT_SYMTAB: symbols = (const void *)dynamic->d_un.d_ptr; break;
        case DT_STRTAB: texts = (const void *)dynamic->d_un.d_ptr; break;
        case DT_RELA: tables[0].at = dynamic->d_un.d_ptr; break;
        case DT_RELASZ: tables[0].bytes = dynamic->d_un.d_val; break;
        case DT_JMPREL: tables[1].at = dynamic->d_un.d_ptr; break;
        case DT_PLTRELSZ: tables[1].bytes = dynamic->d_un.d_val; break;
        }
    }
    size_t page = getauxval ? getauxval(AT_PAGESZ_) : 4096;
    for (int table = 0; table < 2 && symbols && texts; table++) {
        const Elf64_Rela *each = (const void *)tables[table].at, *end = (const void *)(tables[table].at + tables[table].bytes);
        /* The kernel's own object has addresses that nobody has moved, and no references. */
        for (; tables[table].at >= from && each < end; each++) {
            unsigned long type = ELF64_R_TYPE(each->r_info);
            const Elf64_Sym *symbol = &symbols[ELF64_R_SYM(each->r_info)];
            if ((type != PD_JUMP && type != PD_DATA && type != PD_ABSOLUTE) || symbol->st_shndx != SHN_UNDEF)
                continue;
            size_t *place = (size_t *)(info->base + each->r_offset), value = *place;
            /* One that was not used yet leads into its own object. */
            int is_open = type == PD_JUMP && value >= from && value < to;
            long hook = hook_of(value, is_open, texts + symbol->st_name);
            if (hook < 0)
                continue;
            int is_fixed = (size_t)place >= fixed_from && (size_t)place < fixed_to;
            size_t start = (size_t)place & ~(page - 1);
            if (is_fixed && pd_call(PD_MPROTECT, (long)start, (long)page, 3) != 0)
                continue;
            __atomic_store_n(place, (size_t)pd_hooks[hook], __ATOMIC_RELEASE);
            if (is_fixed)
                pd_call(PD_MPROTECT, (long)start, (long)page, 1);
        }
    }
    return 0;
}

static void bind_deep_objects(void) {
    if (!behind.highest) {
        size_t lowest = (size_t)-1, highest = 0;
        for (int n = 0; n < HOOKS; n++) {
            void *found = next(names[n]);
            if (found == (void *)missing || found == (void *)submit)
                continue;
            behind.function[n] = found;
            lowest = (size_t)found < lowest ? (size_t)found : lowest;
            highest = (size_t)found > highest ? (size_t)found : highest;
        }
        behind.lowest = lowest, behind.highest = highest;
    }
    if (dl_iterate_phdr)
        dl_iterate_phdr(bind_object, NULL);
}

static void *leave(unsigned long number, void **saved) {
    void **found = &leaving_found[number - FIRST_LEAVING];
    if (!*found)
        *found = next(names[number]);
    if (is(names[number], "dlopen")) {
        /* An old glibc has it in a library that came later, and is asked for it another way. */
        if (*found == (void *)missing && open_object && open_object != dlopen)
            *found = open_object;
        if ((size_t)PD_ARGUMENT(saved, 1) & RTLD_DEEPBIND_) {
            if (core)
                __atomic_store_n(core->deep, bind_deep_objects, __ATOMIC_RELEASE);
            is_deep = 1;
        }
        return *found;
    }
    if (core) {
        core->leaving();
        keep_library(names[number], saved);
    }
    return *found;
}

/* Text of bounded length; what is too long is cut. */
struct text {
    char bytes[TEXT_BYTES];
    size_t len;
};

static void add(struct text *text, const char *more) {
    while (*more && text->len < TEXT_BYTES - 1)
        text->bytes[text->len++] = *more++;
    text->bytes[text->len] = 0;
}

static void add_number(struct text *text, unsigned long number) {
    char digits[24], *at = digits + sizeof digits;
    *--at = 0;
    do
        *--at = '0' + number % 10;
    while (number /= 10);
    add(text, at);
}

/* Says why the program stays on the kernel, where PD_PRELOAD_LOG asks for it. */
static void step_aside(const char *why, const char *detail) {
    const char *place = setting("PD_PRELOAD_LOG");
    if (!place || !*place)
        return;
    struct text line = {.len = 0};
    add(&line, "pd_preload[");
    add_number(&line, (unsigned long)pd_call(PD_GETPID, 0, 0, 0));
    add(&line, "]: the program stays on the kernel: ");
    add(&line, why);
    add(&line, detail);
    if (line.len == TEXT_BYTES - 1)
        line.len--;
    line.bytes[line.len++] = '\n';
    if (is(place, "-")) {
        pd_call(PD_WRITE, 2, (long)line.bytes, (long)line.len);
        return;
    }
    long file = pd_open_log(place);
    if (file >= 0) {
        pd_call(PD_WRITE, file, (long)line.bytes, (long)line.len);
        pd_call(PD_CLOSE, file, 0, 0);
    }
}

/*
 * Thread-local memory for the library proper, in every thread from its start: an object from dlopen(3) would get its own by
 * malloc(3), or out of the little that the dynamic linker keeps for such objects.
 */
enum { LOCAL_BYTES = 1024 };
static __thread char local[LOCAL_BYTES] __attribute__((tls_model("initial-exec"), aligned(64)));

/* The library proper lies beside this object. */
static int own_folder(struct text *path) {
    struct { const char *file; void *base; const char *name; void *address; } found;
    if (!find_object || !find_object((void *)names, &found) || !found.file)
        return 0;
    add(path, found.file);
    while (path->len && path->bytes[path->len - 1] != '/')
        path->len--;
    path->bytes[path->len] = 0;
    return 1;
}

/* Where the library proper is, and which file it was when the program began. */
static struct text path;
static struct statx file;

static void open_core(int is_given) {
    struct statx now;
    /* A program may have changed its root, and a file there is others'. */
    if (!status_of(AT_CWD, path.bytes, &now) || now.stx_ino != file.stx_ino || now.stx_dev_major != file.stx_dev_major ||
        now.stx_dev_minor != file.stx_dev_minor)
        return step_aside(path.bytes, ": no such file, or another one than at the program's start");
    void *library = open_object(path.bytes, RTLD_NOW_ | RTLD_NODELETE_);
    if (!library) {
        const char *why = last_error ? last_error() : NULL;
        return step_aside("", why ? why : "the library proper cannot be loaded");
    }
    const struct core *found = sym(library, "pd_preload_core");
    if (!found || found->build != PD_BUILD)
        return step_aside(path.bytes, " is of another version");
    const struct facts facts = {next, local - pd_thread_pointer(), LOCAL_BYTES, at_fork, (char *const *)settings, is_given};
    if (!found->start(&facts))
        return step_aside(path.bytes, " does not fit this loader");
    for (int number = FIRST_LEAVING; number < FIRST_BEGINNING; number++)
        leaving_found[number - FIRST_LEAVING] = next(names[number]);
    if (is_deep)
        __atomic_store_n(found->deep, bind_deep_objects, __ATOMIC_RELEASE);
    __atomic_store_n(&core, found, __ATOMIC_RELEASE);
    for (int number = 0; number < FIRST_LEAVING; number++)
        __atomic_store_n(&pd_slots[number], found->hooks[number], __ATOMIC_RELEASE);
}

/* Loads the library proper, once. Errno stays as it is. */
static void load(int is_given) {
    if (!__atomic_exchange_n(&is_awaited, 0, __ATOMIC_ACQ_REL))
        return;
    int *place = __errno_location ? __errno_location() : NULL, before = place ? *place : 0;
    open_core(is_given);
    if (place)
        *place = before;
}

/* A call by the stub of its slot: before the library proper is there, of a function without a hook, or the first one. */
LOCAL void *pd_first_call(unsigned long number, void **saved) {
    void *was = __atomic_load_n(&pd_slots[number], __ATOMIC_ACQUIRE);
    const struct beginning *may_begin = is_awaited ? beginning(names[number]) : NULL;
    if (may_begin && begins(may_begin, saved)) {
        load(0);
        may_begin = NULL;
    }
    if (number >= FIRST_LEAVING && number < FIRST_BEGINNING)
        return leave(number, saved);
    const struct core *has = __atomic_load_n(&core, __ATOMIC_ACQUIRE);
    if (has && number < FIRST_LEAVING)
        return has->hooks[number];
    void *found = next(names[number]);
    /* One that may begin later keeps its stub. */
    if (!may_begin)
        __atomic_compare_exchange_n(&pd_slots[number], &was, found, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return found;
}

__attribute__((constructor)) static void begin(void) {
    find_settings();
    const char *mode = setting("PD_PRELOAD");
    if (mode && (is(mode, "off") || is(mode, "0")))
        return;
    if (!gnu_get_libc_version || !&_rtld_global_ro)
        return step_aside("the C library is not glibc", "");
    if (!pd_processor_suffices())
        return step_aside("the processor is below x86-64-v2", "");
    find_functions();
    if (!sym || !open_object || !__register_atfork || !own_folder(&path))
        return step_aside("this glibc is too old: ", gnu_get_libc_version());
    add(&path, "libpd_preload_core.so");
    if (!status_of(AT_CWD, path.bytes, &file))
        return step_aside(path.bytes, ": no such file");
    process = pd_call(PD_GETPID, 0, 0, 0);
    __register_atfork(before_fork, in_parent, in_child, NULL);
    is_awaited = 1;
    int is_given = is_given_any();
    /* A relative name leads elsewhere once the program has changed its folder. */
    if (is_given || path.bytes[0] != '/' || !keep_settings())
        load(is_given);
}
