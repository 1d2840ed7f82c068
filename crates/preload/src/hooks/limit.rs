//! Limits of the process: what the library knows of them is known no more. One that shall have no descriptors any more, as
//! sandboxes do, gets none of a connection on the fabric either; nor does one that locks its memory, and may lock hardly any.
use super::hooks;
use crate::{heap, reach, real, sandbox};
use libc::{c_int, c_uint, pid_t, rlimit};

hooks! {
    fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int {
        before(resource, limit);
        let result = real::setrlimit(resource, limit);
        heap::forget_limit();
        result
    }

    fn setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int {
        before(resource, limit);
        let result = real::setrlimit64(resource, limit);
        heap::forget_limit();
        result
    }

    fn prlimit(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        if process == 0 || process == libc::getpid() {
            before(resource, new);
        }
        let result = real::prlimit(process, resource, new, old);
        heap::forget_limit();
        result
    }

    fn prlimit64(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        if process == 0 || process == libc::getpid() {
            before(resource, new);
        }
        let result = real::prlimit64(process, resource, new, old);
        heap::forget_limit();
        result
    }

    fn mlockall(flags: c_int) -> c_int {
        let future = flags & libc::MCL_FUTURE != 0;
        if future && may_lock_little() {
            sandbox::before_loss_of_memory();
        }
        let result = real::mlockall(flags);
        if result == 0 {
            heap::locks(future);
        }
        result
    }

    fn munlockall() -> c_int {
        let result = real::munlockall();
        if result == 0 {
            heap::locks(false);
        }
        result
    }
}

/// Locked memory with less of which a process has no room for the rings of connections.
const LOCKED_BYTES_FEW: u64 = 64 << 20;

/// Returns whether the limit of locked memory holds for the process, and is low.
fn may_lock_little() -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let mut limit = rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    let (header, mut rights) = ([VERSION_3, 0], [[0u32; 3]; 2]);
    // SAFETY: room for a limit; then a header of the calling process, and room for two sets of rights, the effective ones first.
    let knows = unsafe {
        libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit);
        libc::syscall(libc::SYS_capget, header.as_ptr(), rights.as_mut_ptr()) == 0
    };
    let is_limited = !knows || rights[0][0] & 1 << CAP_IPC_LOCK == 0;
    is_limited && limit.rlim_cur < LOCKED_BYTES_FEW
}

/// Descriptors without which the library cannot take a connection over from another process.
const NUMBERS_MIN: u64 = 16;

/// # Safety
/// As for `setrlimit`.
unsafe fn before(resource: c_uint, new: *const rlimit) {
    if resource == libc::RLIMIT_NOFILE && !new.is_null() && reach::may_be(new, size_of::<rlimit>()) {
        // SAFETY: the caller's limit.
        if unsafe { (*new).rlim_max } < NUMBERS_MIN {
            sandbox::before();
        }
    }
}
