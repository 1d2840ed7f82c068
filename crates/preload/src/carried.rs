//! Registrations in epoll instances that go with a process into another image (`execve`), or into the image of a child. The kernel
//! keeps an instance across that, and in it its own members only. So the registrations on the fabric are written into a memory file
//! that the new image inherits. That image finds the file by its name, reads it when it starts, and closes it.
use crate::real;
use libc::c_int;
use pd_client::core::OwnFd;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::sync::{Mutex, PoisonError};

/// Name of the file, and what the system's file tree makes of it.
const NAME: &std::ffi::CStr = c"pd_preload_members";
const LINK: &str = "/memfd:pd_preload_members (deleted)";
/// A file of more registrations is not read.
const RECORDS_MAX: usize = 1 << 20;
const RECORD_BYTES: usize = 32;

/// The file that children may inherit: this process's last one.
pub(crate) static LAST: Mutex<Option<OwnFd>> = Mutex::new(None);

/// One registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Number of the instance.
    pub(crate) epoll: c_int,
    /// Number of the member.
    pub(crate) fd: c_int,
    /// The member's inode: its number may be another's by then.
    pub(crate) inode: u64,
    pub(crate) event: (u32, u64),
    /// The kernel has it, too.
    pub(crate) in_kernel: bool,
}

impl Record {
    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&self.epoll.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.fd.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.inode.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.event.1.to_ne_bytes());
        bytes[24..28].copy_from_slice(&self.event.0.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let long = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
        let (epoll, fd) = (word(0)? as c_int, word(4)? as c_int);
        Some(Self { epoll, fd, inode: long(8)?, event: (word(24)?, long(16)?), in_kernel: false })
    }
}

/// The inode behind a number.
pub(crate) fn inode(fd: c_int) -> Option<u64> {
    // SAFETY: room for what the call writes; zeroes are a value of it.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut status) == 0).then_some(status.st_ino)
    }
}

/// Tells whether the number stays open in another image.
pub(crate) fn is_kept(fd: c_int) -> bool {
    // SAFETY: only asks.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFD, 0) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Leaves registrations for the images to come, instead of the last ones. `own`: the process has the memory for itself, not its
/// parent's.
pub(crate) fn leave(records: &[Record], own: bool) {
    let mut last = own.then(|| LAST.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(last) = last.as_mut() {
        last.take();
    }
    if records.is_empty() {
        return;
    }
    // SAFETY: makes a descriptor, which then is the file's.
    let mut file = unsafe {
        let fd = libc::memfd_create(NAME.as_ptr(), 0);
        if fd < 0 {
            return;
        }
        File::from_raw_fd(fd)
    };
    let bytes: Vec<u8> = records.iter().flat_map(|record| record.to_bytes()).collect();
    if file.write_all(&bytes).is_err() {
        return;
    }
    let Some(last) = last.as_mut() else {
        // A child with its parent's memory: the number is the image's.
        std::mem::forget(file);
        return;
    };
    **last = OwnFd::copy(file.as_fd());
    if let Some(kept) = last.as_ref() {
        // SAFETY: changes the number's flag alone.
        unsafe { real::fcntl(kept.as_raw_fd(), libc::F_SETFD, 0) };
    }
}

/// The registrations in the file with this number, if it is such a file, which is closed then.
pub(crate) fn read(fd: c_int) -> Vec<Record> {
    let is_one = std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|name| name.as_os_str() == LINK);
    if !is_one {
        return Vec::new();
    }
    // SAFETY: the library's, of the image before; nobody else knows of it.
    let file = unsafe { File::from_raw_fd(fd) };
    let mut bytes = Vec::new();
    let most = (RECORDS_MAX * RECORD_BYTES) as u64;
    // The position is where the last image has stopped writing.
    let read = std::io::Seek::rewind(&mut &file).and_then(|()| (&file).take(most).read_to_end(&mut bytes));
    match read {
        Ok(_) => bytes.chunks_exact(RECORD_BYTES).filter_map(Record::from_bytes).collect(),
        Err(_) => Vec::new(),
    }
}

/// The members that the kernel has in an instance, as it tells them.
pub(crate) fn in_kernel(epoll: c_int) -> Vec<Record> {
    let Ok(text) = std::fs::read_to_string(format!("/proc/self/fdinfo/{epoll}")) else { return Vec::new() };
    let member = |line: &str| {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        let fd = words.next()?.parse().ok()?;
        let mut hexadecimal = |name: &str| {
            let mut word = words.find_map(|word| word.strip_prefix(name))?;
            if word.is_empty() {
                word = words.next()?;
            }
            u64::from_str_radix(word, 16).ok()
        };
        let (events, data, inode) = (hexadecimal("events:")?, hexadecimal("data:")?, hexadecimal("ino:")?);
        Some(Record { epoll, fd, inode, event: (events as u32, data), in_kernel: true })
    };
    text.lines().filter_map(member).collect()
}
