/* What of the loader depends on the processor: jumps, system calls, and whether the processor suffices. */

#if defined(__x86_64__)

__asm__(".pushsection .text\n"
        /* The first call of a hook: its number is on the stack, below the caller's address. */
        ".type pd_first, @function\n"
        "pd_first:\n"
        "  push %rax\n  push %rdi\n  push %rsi\n  push %rdx\n  push %rcx\n  push %r8\n  push %r9\n"
        "  mov 56(%rsp), %rdi\n"
        "  mov %rsp, %rsi\n"
        /* The stack is 16-byte aligned here: caller's address, number and seven registers, and one more. */
        "  sub $8, %rsp\n"
        "  call pd_first_call\n"
        "  add $8, %rsp\n"
        "  mov %rax, %r11\n"
        "  pop %r9\n  pop %r8\n  pop %rcx\n  pop %rdx\n  pop %rsi\n  pop %rdi\n  pop %rax\n"
        "  add $8, %rsp\n"
        "  jmp *%r11\n"
        ".popsection\n");

/* The caller's n-th argument among the saved registers, which it is read from afterwards. */
#define PD_ARGUMENT(saved, n) (saved)[5 - (n)]

#define HOOK(number, name)                                        \
    __asm__(".pushsection .text\n"                                \
            ".globl " #name "\n"                                  \
            ".type " #name ", @function\n"                        \
            ".p2align 4\n" #name ":\n"                            \
            "  jmp *(pd_slots + 8 * " #number ")(%rip)\n"         \
            ".size " #name ", . - " #name "\n"                    \
            "pd_first_" #number ":\n"                             \
            "  push $" #number "\n"                               \
            "  jmp pd_first\n"                                    \
            ".popsection\n");
#include "hooks.inc"
#undef HOOK

/* A function with an ellipsis behind `named` arguments goes on in the slot of the one that takes a list of them. It is no jump:
   the list leads to registers that are saved on this stack. */
#define ELLIPSIS(name, listed, named, list_register)              \
    __asm__(".pushsection .text\n"                                \
            ".globl " #name "\n"                                  \
            ".type " #name ", @function\n"                        \
            ".p2align 4\n" #name ":\n"                            \
            "  .cfi_startproc\n"                                  \
            "  sub $216, %rsp\n"                                  \
            "  .cfi_adjust_cfa_offset 216\n"                      \
            "  mov %rdx, 48(%rsp)\n  mov %rcx, 56(%rsp)\n"         \
            "  mov %r8, 64(%rsp)\n  mov %r9, 72(%rsp)\n"           \
            "  test %al, %al\n"                                   \
            "  je 1f\n"                                           \
            "  movaps %xmm0, 80(%rsp)\n  movaps %xmm1, 96(%rsp)\n"    \
            "  movaps %xmm2, 112(%rsp)\n  movaps %xmm3, 128(%rsp)\n"  \
            "  movaps %xmm4, 144(%rsp)\n  movaps %xmm5, 160(%rsp)\n"  \
            "  movaps %xmm6, 176(%rsp)\n  movaps %xmm7, 192(%rsp)\n"  \
            "1:\n"                                                \
            "  movl $(8 * " #named "), 8(%rsp)\n"                 \
            "  movl $48, 12(%rsp)\n"                              \
            "  lea 224(%rsp), %rax\n"                             \
            "  mov %rax, 16(%rsp)\n"                              \
            "  lea 32(%rsp), %rax\n"                              \
            "  mov %rax, 24(%rsp)\n"                              \
            "  lea 8(%rsp), %" #list_register "\n"                \
            "  call *pd_slot_of_" #listed "(%rip)\n"              \
            "  add $216, %rsp\n"                                  \
            "  .cfi_adjust_cfa_offset -216\n"                     \
            "  ret\n"                                             \
            "  .cfi_endproc\n"                                    \
            ".size " #name ", . - " #name "\n"                    \
            ".popsection\n");
ELLIPSIS(dprintf, vdprintf, 2, rdx)
ELLIPSIS(__dprintf_chk, __vdprintf_chk, 3, rcx)
#undef ELLIPSIS

enum { PD_WRITE = 1, PD_CLOSE = 3, PD_MPROTECT = 10, PD_GETPID = 39, PD_GETUID = 102, PD_GETGID = 104, PD_GETEUID = 107, PD_GETEGID = 108, PD_IO_SUBMIT = 209, PD_GETDENTS = 217, PD_OPENAT = 257, PD_PPOLL = 271, PD_STATX = 332 };
enum { PD_ABSOLUTE = R_X86_64_64, PD_DATA = R_X86_64_GLOB_DAT, PD_JUMP = R_X86_64_JUMP_SLOT };

static long pd_call5(long number, long a, long b, long c, long d, long e) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}

static char *pd_thread_pointer(void) {
    char *pointer;
    __asm__("mov %%fs:0, %0" : "=r"(pointer));
    return pointer;
}

/* What glibc has asked the processor for, since 2.33: by leaf, whose numbers are glibc's. */
struct leaf {
    unsigned eax, ebx, ecx, edx;
};
extern const struct leaf *__x86_get_cpuid_feature_leaf(unsigned leaf) WEAK;

/* The instruction takes microseconds in a virtual machine. */
static struct leaf ask_processor(unsigned number, unsigned leaf) {
    if (__x86_get_cpuid_feature_leaf)
        return *__x86_get_cpuid_feature_leaf(leaf);
    struct leaf found = {.eax = number};
    __asm__ volatile("cpuid" : "+a"(found.eax), "=b"(found.ebx), "+c"(found.ecx), "=d"(found.edx));
    return found;
}

/* x86-64-v2: SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT, and LAHF. */
static int pd_processor_suffices(void) {
    unsigned wanted = 1u << 0 | 1u << 9 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 23;
    return (ask_processor(1, 0).ecx & wanted) == wanted && (ask_processor(0x80000001, 2).ecx & 1) != 0;
}

#elif defined(__aarch64__)

__asm__(".pushsection .text\n"
        ".type pd_first, %function\n"
        "pd_first:\n"
        "  stp x29, x30, [sp, #-96]!\n"
        "  stp x0, x1, [sp, #16]\n  stp x2, x3, [sp, #32]\n  stp x4, x5, [sp, #48]\n  stp x6, x7, [sp, #64]\n"
        "  str x8, [sp, #80]\n"
        "  mov x29, sp\n"
        "  mov x0, x17\n"
        "  add x1, sp, #16\n"
        "  bl pd_first_call\n"
        "  mov x16, x0\n"
        "  ldr x8, [sp, #80]\n"
        "  ldp x6, x7, [sp, #64]\n  ldp x4, x5, [sp, #48]\n  ldp x2, x3, [sp, #32]\n  ldp x0, x1, [sp, #16]\n"
        "  ldp x29, x30, [sp], #96\n"
        "  br x16\n"
        ".popsection\n");

#define PD_ARGUMENT(saved, n) (saved)[n]

#define HOOK(number, name)                                        \
    __asm__(".pushsection .text\n"                                \
            ".globl " #name "\n"                                  \
            ".type " #name ", %function\n"                        \
            ".p2align 4\n" #name ":\n"                            \
            "  adrp x16, pd_slots + 8 * " #number "\n"            \
            "  ldr x16, [x16, :lo12:(pd_slots + 8 * " #number ")]\n" \
            "  br x16\n"                                          \
            ".size " #name ", . - " #name "\n"                    \
            "pd_first_" #number ":\n"                             \
            "  mov x17, #" #number "\n"                           \
            "  b pd_first\n"                                      \
            ".popsection\n");
#include "hooks.inc"
#undef HOOK

/* A function with an ellipsis behind `named` arguments goes on in the slot of the one that takes a list of them. It is no jump:
   the list leads to registers that are saved on this stack. */
#define ELLIPSIS(name, listed, named, list_register)              \
    __asm__(".pushsection .text\n"                                \
            ".globl " #name "\n"                                  \
            ".type " #name ", %function\n"                        \
            ".p2align 4\n" #name ":\n"                            \
            "  .cfi_startproc\n"                                  \
            "  stp x29, x30, [sp, #-240]!\n"                      \
            "  .cfi_def_cfa_offset 240\n"                         \
            "  .cfi_offset 29, -240\n  .cfi_offset 30, -232\n"    \
            "  mov x29, sp\n"                                     \
            "  stp x2, x3, [sp, #64]\n  stp x4, x5, [sp, #80]\n  stp x6, x7, [sp, #96]\n"   \
            "  stp q0, q1, [sp, #112]\n  stp q2, q3, [sp, #144]\n"  \
            "  stp q4, q5, [sp, #176]\n  stp q6, q7, [sp, #208]\n"  \
            "  add x9, sp, #240\n"                                \
            "  add x10, sp, #112\n"                               \
            "  stp x9, x10, [sp, #16]\n"                          \
            "  str x9, [sp, #32]\n"                               \
            "  mov w9, #-(8 * (8 - " #named "))\n"                \
            "  mov w10, #-128\n"                                  \
            "  stp w9, w10, [sp, #40]\n"                          \
            "  add " #list_register ", sp, #16\n"                 \
            "  adrp x16, pd_slot_of_" #listed "\n"                \
            "  ldr x16, [x16, :lo12:pd_slot_of_" #listed "]\n"    \
            "  blr x16\n"                                         \
            "  ldp x29, x30, [sp], #240\n"                        \
            "  .cfi_def_cfa_offset 0\n"                           \
            "  .cfi_restore 29\n  .cfi_restore 30\n"              \
            "  ret\n"                                             \
            "  .cfi_endproc\n"                                    \
            ".size " #name ", . - " #name "\n"                    \
            ".popsection\n");
ELLIPSIS(dprintf, vdprintf, 2, x2)
ELLIPSIS(__dprintf_chk, __vdprintf_chk, 3, x3)
#undef ELLIPSIS

enum { PD_IO_SUBMIT = 2, PD_OPENAT = 56, PD_CLOSE = 57, PD_WRITE = 64, PD_GETPID = 172, PD_GETUID = 174, PD_GETEUID = 175, PD_GETGID = 176, PD_GETEGID = 177, PD_GETDENTS = 61, PD_PPOLL = 73, PD_MPROTECT = 226, PD_STATX = 291 };
enum { PD_ABSOLUTE = R_AARCH64_ABS64, PD_DATA = R_AARCH64_GLOB_DAT, PD_JUMP = R_AARCH64_JUMP_SLOT };

static long pd_call5(long number, long a, long b, long c, long d, long e) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}

static char *pd_thread_pointer(void) {
    char *pointer;
    __asm__("mrs %0, tpidr_el0" : "=r"(pointer));
    return pointer;
}

static int pd_processor_suffices(void) { return 1; }

#else
#error "no jumps for this processor"
#endif

static long pd_call(long number, long a, long b, long c) { return pd_call5(number, a, b, c, 0, 0); }

static long pd_open_log(const char *place) {
    enum { CWD = -100, WRONLY = 1, CREAT = 0100, APPEND = 02000, CLOEXEC = 02000000 };
    return pd_call5(PD_OPENAT, CWD, (long)place, WRONLY | CREAT | APPEND | CLOEXEC, 0644, 0);
}

/* Slots, each with the stub of its first call. */
__asm__(".pushsection .data\n"
        ".p2align 3\n"
        ".hidden pd_slots\n"
        ".globl pd_slots\n"
        "pd_slots:\n"
#define HOOK(number, name) "pd_slot_of_" #name ":\n  .quad pd_first_" #number "\n"
#include "hooks.inc"
#undef HOOK
        ".popsection\n");

/* What objects find under the names of the hooks. */
__asm__(".pushsection .data\n"
        ".p2align 3\n"
        ".hidden pd_hooks\n"
        ".globl pd_hooks\n"
        "pd_hooks:\n"
#define HOOK(number, name) "  .quad " #name "\n"
#include "hooks.inc"
#undef HOOK
        ".popsection\n");
