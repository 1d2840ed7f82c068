//! System calls of sleeps that a handler, or a cancellation, ends whichever instant it comes.
pub(super) use call::{make, skip};
use std::cell::Cell;

/// Reasons for which a sleep ends, or does not begin. It looks at both at once.
#[repr(C, align(2))]
pub(super) struct Stops {
    /// A signal waits for the end of the call.
    pub(super) put_off: Cell<bool>,
    /// Another thread cancels this one.
    pub(super) cancelled: Cell<bool>,
}

/// A system call that is not begun if a signal was put off before it, or the thread was cancelled, at whichever instant.
#[cfg(target_arch = "x86_64")]
mod call {
    use super::Stops;
    use std::arch::global_asm;

    // From `begin` to the call itself all depends on the flag, and nothing has happened yet: a handler that is put
    // off there has the thread go on at `skip`. So it does with a call that the kernel is about to begin again.
    global_asm!(
        ".pushsection .text.pd_sleep,\"ax\",@progbits",
        ".p2align 4",
        ".globl pd_sleep, pd_sleep_begin, pd_sleep_call, pd_sleep_skip",
        ".hidden pd_sleep, pd_sleep_begin, pd_sleep_call, pd_sleep_skip",
        ".type pd_sleep,@function",
        "pd_sleep:",
        ".cfi_startproc",
        "mov rcx, rdi",
        "mov rax, [rsi]",
        "mov rdi, [rsi + 8]",
        "mov rdx, [rsi + 24]",
        "mov r10, [rsi + 32]",
        "mov r8, [rsi + 40]",
        "mov r9, [rsi + 48]",
        "mov rsi, [rsi + 16]",
        "pd_sleep_begin:",
        "cmp word ptr [rcx], 0",
        "jne pd_sleep_skip",
        "pd_sleep_call:",
        "syscall",
        "ret",
        "pd_sleep_skip:",
        "mov rax, -{interrupted}",
        "ret",
        ".cfi_endproc",
        ".size pd_sleep, . - pd_sleep",
        ".popsection",
        interrupted = const libc::EINTR,
    );

    extern "C" {
        fn pd_sleep(stops: *const Stops, call: *const [usize; 7]) -> isize;
        static pd_sleep_begin: u8;
        static pd_sleep_call: u8;
        static pd_sleep_skip: u8;
    }

    /// Makes the call unless there is a reason to stop.
    ///
    /// # Safety
    /// The requirements of the call.
    pub(in super::super) unsafe fn make(
        stops: *const Stops,
        number: libc::c_long,
        [a, b, c, d, e, f]: [usize; 6],
    ) -> isize {
        // SAFETY: the caller's promise; the reasons are the thread's.
        unsafe { pd_sleep(stops, &[number as usize, a, b, c, d, e, f]) }
    }

    /// In a handler that has set the flag.
    ///
    /// # Safety
    /// The context is the handler's.
    pub(in super::super) unsafe fn skip(context: *mut libc::ucontext_t) {
        // SAFETY: the caller's promise; the addresses are of code.
        unsafe {
            let [begin, call, skip] =
                [&raw const pd_sleep_begin, &raw const pd_sleep_call, &raw const pd_sleep_skip];
            let at = &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
            if (begin.addr()..=call.addr()).contains(&(*at as usize)) {
                *at = skip.addr() as libc::greg_t;
            }
        }
    }
}

/// Elsewhere: a signal that comes between the look at the flag and the call ends it only if the call has begun.
#[cfg(not(target_arch = "x86_64"))]
mod call {
    use super::Stops;

    pub(in super::super) unsafe fn make(
        stops: *const Stops,
        number: libc::c_long,
        [a, b, c, d, e, f]: [usize; 6],
    ) -> isize {
        // SAFETY: the thread's.
        let (put_off, cancelled) = unsafe { ((*stops).put_off.get(), (*stops).cancelled.get()) };
        if put_off || cancelled {
            return -(libc::EINTR as isize);
        }
        // SAFETY: the caller's promise.
        let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
        if result >= 0 {
            return result as isize;
        }
        // SAFETY: the calling thread's errno.
        -(unsafe { *libc::__errno_location() } as isize)
    }

    pub(in super::super) unsafe fn skip(_context: *mut libc::ucontext_t) {}
}
