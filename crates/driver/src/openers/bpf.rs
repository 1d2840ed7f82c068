//! The call of bpf(2) that has an interface's frames pass a program while a descriptor is open.
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::{Errno, Result};
use std::ffi::c_int;

/// `BPF_LINK_CREATE` and `BPF_XDP` of linux/bpf.h.
const LINK_CREATE: c_int = 28;
const XDP: u32 = 37;

/// Attaches a program to an interface of the thread's network namespace. It is detached when the last descriptor of the link is
/// closed, in whichever way the holder ends.
///
/// # Errors
/// `EBUSY`, `EEXIST` where the interface has a program; `ENODEV`; `EPERM`.
pub fn link_to_interface(program: &impl AsFd, index: u32) -> Result<OwnedFd> {
    // Program, interface, kind, flags: the kernel's choice of the driver's hook or the generic one.
    let attr = [program.as_fd().as_raw_fd() as u32, index, XDP, 0, 0, 0, 0, 0];
    // SAFETY: the kernel reads `attr`, which lives through the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, LINK_CREATE, attr.as_ptr(), size_of_val(&attr)) };
    match c_int::try_from(result) {
        // SAFETY: a new descriptor, which nothing else has.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
