//! A lock in the kernel's file of a socket.
use crate::real;
use libc::c_int;

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
        // SAFETY: zeroes are a value of the type; the call reads it.
        unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = kind as libc::c_short;
            real::fcntl(fd, libc::F_SETLKW, (&raw const lock).expose_provenance() as libc::c_ulong)
        }
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
