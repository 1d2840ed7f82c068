//! Limits of the process: what the library knows of them is known no more. One that shall have no descriptors any more, as
//! sandboxes do, gets none of a connection on the fabric either.
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
