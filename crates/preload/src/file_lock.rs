//! Locks in the kernel's file of a socket: one between processes that share it, a mark that it has a twin, and a note of another process.
//!
//! A process that gets a socket and has no room to attach cannot ask the driver whether there is a twin. The mark tells. It stays in the open
//! file, whichever process has that, until the connection is the kernel's.
use crate::real;
use libc::{c_int, off_t};

/// Bytes of the file that these lie on.
const LOCK_AT: off_t = 0;
const MARK_AT: off_t = 1;
const PASSED_AT: off_t = 2;

/// Makes or ends a lock on a byte of the file, or asks for one.
fn control(fd: c_int, command: c_int, kind: c_int, at: off_t) -> (c_int, c_int) {
    // SAFETY: zeroes are a value of the type; the call reads it, and may write it.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_start, lock.l_len) = (kind as libc::c_short, at, 1);
        let result = real::fcntl(fd, command, (&raw mut lock).expose_provenance() as libc::c_ulong);
        (result, lock.l_type.into())
    }
}

/// Marks the file of a socket that has a twin, before another process or image may get it.
pub(crate) fn mark(fd: c_int) {
    // Refused only where the kernel has no memory for it.
    control(fd, libc::F_OFD_SETLK, libc::F_WRLCK, MARK_AT);
}

/// Takes the mark off: the connection is the kernel's.
pub(crate) fn unmark(fd: c_int) {
    control(fd, libc::F_OFD_SETLK, libc::F_UNLCK, MARK_AT);
}

/// Tells whether the file is marked.
pub(crate) fn is_marked(fd: c_int) -> bool {
    // A process's lock conflicts with one of the open file, also of a file of its own.
    control(fd, libc::F_GETLK, libc::F_WRLCK, MARK_AT) == (0, libc::F_WRLCK)
}

/// Notes in the file of a socket that another process has it, of whom this one need not know.
pub(crate) fn note_passed(fd: c_int) {
    control(fd, libc::F_OFD_SETLK, libc::F_WRLCK, PASSED_AT);
}

/// Tells whether that is noted.
pub(crate) fn is_passed(fd: c_int) -> bool {
    control(fd, libc::F_GETLK, libc::F_WRLCK, PASSED_AT) == (0, libc::F_WRLCK)
}

/// A lock between processes that share a descriptor, which ends with its holder.
pub(crate) struct FileLock(c_int);

impl FileLock {
    pub(crate) fn new(fd: c_int) -> Self {
        // Refused only where the kernel has no memory for it; then there is none.
        while Self::set(fd, libc::F_WRLCK) < 0
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
        {}
        Self(fd)
    }

    fn set(fd: c_int, kind: c_int) -> c_int {
        control(fd, libc::F_SETLKW, kind, LOCK_AT).0
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // SAFETY: the thread's own errno.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            Self::set(self.0, libc::F_UNLCK);
            *errno = before;
        }
    }
}
