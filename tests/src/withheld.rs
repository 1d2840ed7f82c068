//! Memory by which a process has the kernel wait, with whatever locks it holds.
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const PAGE: usize = 4096;

/// Faults on pages that do not exist.
pub const MISSING: u64 = 1;
/// Faults on pages of a file that exist, and that the mapping does not have.
pub const MINOR: u64 = 4;

/// Withholds the pages of a private or shared mapping from faults of these kinds, until the descriptor is dropped.
///
/// # Panics
/// Without the right to `userfaultfd`, or if the kernel has it not for this kind of memory.
pub fn withhold(at: usize, bytes: usize, faults: u64) -> OwnedFd {
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: nobody else has it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    // `UFFD_FEATURE_MINOR_SHMEM`.
    let features = if faults & MINOR == 0 { 0 } else { 1 << 10 };
    // `struct uffdio_api`, and `struct uffdio_register`.
    let mut api = [0xaa_u64, features, 0];
    let mut register = [at as u64, bytes as u64, faults, 0];
    // SAFETY: the kernel writes the two arrays, of the sizes in the requests' numbers.
    unsafe {
        let made = libc::ioctl(fd.as_raw_fd(), 0xc018_aa3f, api.as_mut_ptr());
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        let made = libc::ioctl(fd.as_raw_fd(), 0xc020_aa00, register.as_mut_ptr());
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    }
    fd
}

/// A page of memory that does not come before this is dropped (userfaultfd(2)). It stays mapped.
#[derive(Debug)]
pub struct Withheld {
    at: usize,
    faults: OwnedFd,
}

impl Withheld {
    /// Makes one.
    ///
    /// # Panics
    /// Without the right to `userfaultfd`.
    #[expect(clippy::new_without_default, reason = "it is no plain value")]
    pub fn new() -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, of which there are no references.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE) };
        let at = at.unwrap() as usize;
        let faults = withhold(at, PAGE, MISSING);
        Self { at, faults }
    }

    /// Returns its address.
    pub fn address(&self) -> usize {
        self.at
    }

    /// Waits until somebody wants the page.
    ///
    /// # Panics
    /// After 10 s.
    pub fn wait_wanted(&self) {
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&self.faults, PollFlags::IN)], Some(&limit)), Ok(1), "no fault");
    }
}
