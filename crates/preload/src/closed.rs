//! A process that has a filter of system calls, or will in a moment ([`crate::sandbox`]): the library makes as few as it can.
use crate::real;
use libc::{c_int, timespec};
use std::io::Error;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// A forked child has the filter, too.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Returns whether the process has one.
#[inline]
pub(crate) fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// From now on it has one.
pub(crate) fn close() {
    CLOSED.store(true, Ordering::Relaxed);
    pd_client::core::never_yield();
}

/// Receives a byte if one is there, by calls that such programs allow themselves. Returns and sets errno as `recv` with
/// `MSG_DONTWAIT` does.
pub(crate) fn read_byte(fd: c_int, byte: &mut [u8; 1]) -> isize {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let zero = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one descriptor, and a time of this call's.
    if unsafe { real::ppoll(&mut poll, 1, &zero, ptr::null()) } == 0 {
        // SAFETY: the calling thread's errno.
        unsafe { *libc::__errno_location() = libc::EAGAIN };
        return -1;
    }
    loop {
        // SAFETY: room for a byte.
        let taken = unsafe { real::read(fd, byte.as_mut_ptr().cast(), 1) };
        if taken >= 0 || Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return taken;
        }
    }
}
