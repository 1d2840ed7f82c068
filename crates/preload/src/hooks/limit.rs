//! Limits of the process: what the library knows of them is known no more.
use super::hooks;
use crate::{heap, real};
use libc::{c_int, c_uint, pid_t, rlimit};

hooks! {
    fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int {
        let result = real::setrlimit(resource, limit);
        heap::forget_limit();
        result
    }

    fn setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int {
        let result = real::setrlimit64(resource, limit);
        heap::forget_limit();
        result
    }

    fn prlimit(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        let result = real::prlimit(process, resource, new, old);
        heap::forget_limit();
        result
    }

    fn prlimit64(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        let result = real::prlimit64(process, resource, new, old);
        heap::forget_limit();
        result
    }
}
