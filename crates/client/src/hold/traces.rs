//! Finding out that a signal handler has run, by the traces that it leaves.
//!
//! The kernel ends a sleep with `EINTR` only if it slept when the handler was due. One that runs after the signals were
//! let through and before the system call is entered changes nothing that could be asked for, and so does one that
//! runs after a wake-up or a time-out and before the thread is on a core again: with many threads on few cores that is
//! milliseconds. But each handler writes its frame below the stack of the thread. So marks are put there first, into
//! memory that a signal at this point would take anyway, and looked at afterwards.
use pd_shm::Sleep;

/// Makes `sleep` with `mask` as the calling thread's signal mask, and blocks `held` again. Its result, and whether a
/// handler has run meanwhile; then it may not have been made. Handlers that run on a stack of their own leave no trace.
#[cfg(target_arch = "x86_64")]
pub(super) fn make(sleep: &Sleep<'_>, mask: &libc::sigset_t, held: &libc::sigset_t) -> (isize, bool) {
    let (number, [a, b, c, d, e, f]) = sleep.parts();
    let call = [number as usize, a, b, c, d, e, f, std::ptr::from_ref(held).expose_provenance()];
    let (result, handled): (isize, usize);
    // SAFETY: the kernel's convention for three system calls: two that change the mask, by sets that are there to be read, and
    // one that only sleeps. What is written lies below the stack pointer and its red zone of 128 bytes, which this block
    // leaves as they are; it holds nothing, and a signal's frame has room there.
    unsafe {
        std::arch::asm!(
            "mov rcx, r14",
            "neg rcx",
            "2:",
            "mov [rsp + rcx - 128], r13",
            "add rcx, {every}",
            "jnz 2b",
            "mov eax, {sigprocmask}",
            "mov edi, {setmask}",
            "mov rsi, r12",
            "xor edx, edx",
            "mov r10d, 8",
            "syscall",
            "mov rcx, r14",
            "neg rcx",
            "mov r12, -{interrupted}",
            "3:",
            "cmp [rsp + rcx - 128], r13",
            "jne 5f",
            "add rcx, {every}",
            "jnz 3b",
            "mov rax, [r15]",
            "mov rdi, [r15 + 8]",
            "mov rsi, [r15 + 16]",
            "mov rdx, [r15 + 24]",
            "mov r10, [r15 + 32]",
            "mov r8, [r15 + 40]",
            "mov r9, [r15 + 48]",
            "syscall",
            "mov r12, rax",
            "5:",
            "mov eax, {sigprocmask}",
            "mov edi, {block}",
            "mov rsi, [r15 + 56]",
            "xor edx, edx",
            "mov r10d, 8",
            "syscall",
            "xor r15d, r15d",
            "mov rcx, r14",
            "neg rcx",
            "4:",
            "cmp [rsp + rcx - 128], r13",
            "jne 6f",
            "add rcx, {every}",
            "jnz 4b",
            "jmp 7f",
            "6:",
            "mov r15d, 1",
            "7:",
            every = const MARK_EVERY,
            sigprocmask = const libc::SYS_rt_sigprocmask,
            setmask = const libc::SIG_SETMASK,
            block = const libc::SIG_BLOCK,
            interrupted = const libc::EINTR,
            inlateout("r12") std::ptr::from_ref(mask).expose_provenance() => result,
            in("r13") MARK,
            in("r14") frame_bytes(),
            inlateout("r15") call.as_ptr().expose_provenance() => handled,
            lateout("rax") _, lateout("rcx") _, lateout("rdx") _, lateout("rsi") _, lateout("rdi") _,
            lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    (result, handled != 0)
}

/// Elsewhere: without a look for traces.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn make(sleep: &Sleep<'_>, mask: &libc::sigset_t, held: &libc::sigset_t) -> (isize, bool) {
    super::restore(mask);
    let result = sleep.make();
    // SAFETY: a set of signals, of the calling thread alone.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, held, std::ptr::null_mut()) };
    (result, false)
}

/// Nobody else writes this.
#[cfg(target_arch = "x86_64")]
const MARK: u64 = 0xa5e1_7b3c_0d94_62f8;
/// A frame begins with the registers, which are longer than twice this.
#[cfg(target_arch = "x86_64")]
const MARK_EVERY: usize = 64;

/// The most that the kernel writes for a handler, a multiple of [`MARK_EVERY`].
#[cfg(target_arch = "x86_64")]
fn frame_bytes() -> usize {
    use std::sync::OnceLock;

    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        // SAFETY: only asks.
        let told = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
        // Not told before Linux 5.14: what AVX-512 needs.
        let bytes = if told == 0 { 4096 } else { told };
        bytes.clamp(1024, 32 << 10).next_multiple_of(MARK_EVERY)
    })
}
