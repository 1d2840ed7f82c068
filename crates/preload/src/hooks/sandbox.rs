//! Rights that a program gives up: system calls, its root, its user.
use super::hooks;
use crate::claim::watch;
use crate::{real, sandbox};
use libc::{c_char, c_int, c_ulong, uid_t};

hooks! {
    // Of the C library's ellipsis it passes four words on, too.
    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
        if option == libc::PR_SET_SECCOMP {
            sandbox::before();
        }
        real::prctl(option, a, b, c, d)
    }

    fn chroot(path: *const c_char) -> c_int {
        sandbox::before_loss_of_root();
        let result = real::chroot(path);
        if result == 0 {
            sandbox::after_loss_of_root();
        }
        result
    }

    fn unshare(flags: c_int) -> c_int {
        if flags & libc::CLONE_FILES != 0 {
            sandbox::before_second_table();
        }
        watch::without(|| real::unshare(flags))
    }

    fn setns(fd: c_int, kind: c_int) -> c_int {
        watch::without(|| real::setns(fd, kind))
    }

    fn setuid(user: uid_t) -> c_int {
        sandbox::before_loss_of_reach();
        real::setuid(user)
    }

    fn seteuid(user: uid_t) -> c_int {
        sandbox::before_loss_of_reach();
        real::seteuid(user)
    }

    fn setreuid(user: uid_t, effective: uid_t) -> c_int {
        sandbox::before_loss_of_reach();
        real::setreuid(user, effective)
    }

    fn setresuid(user: uid_t, effective: uid_t, saved: uid_t) -> c_int {
        sandbox::before_loss_of_reach();
        real::setresuid(user, effective, saved)
    }
}

/// `seccomp`, for which the C library has no function: what sets a filter or the strict mode.
pub(super) fn is_filter(operation: usize) -> bool {
    [libc::SECCOMP_SET_MODE_STRICT as usize, libc::SECCOMP_SET_MODE_FILTER as usize].contains(&operation)
}
