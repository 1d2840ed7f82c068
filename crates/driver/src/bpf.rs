//! The calls of bpf(2) that a confined driver makes: entries of its maps, and attaching its programs.
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{Errno, Result};
use std::ffi::{c_int, c_long};

/// Commands, as linux/bpf.h numbers them.
pub const MAP_UPDATE_ELEM: c_int = 2;
pub const MAP_DELETE_ELEM: c_int = 3;
pub const PROG_ATTACH: c_int = 8;
pub const PROG_DETACH: c_int = 9;
/// Commands that the filter of system calls lets through.
pub const COMMANDS: [c_int; 4] = [MAP_UPDATE_ELEM, MAP_DELETE_ELEM, PROG_ATTACH, PROG_DETACH];

/// `BPF_F_ALLOW_MULTI`: other programs stay attached.
const ALLOW_MULTI: u64 = 2;
/// `BPF_F_REPLACE`: the program takes the place of another.
const REPLACE: u64 = 4;

/// Plain data of fixed layout without padding, as maps hold it.
///
/// # Safety
/// All bytes are initialized.
pub unsafe trait Plain: Copy {}

// SAFETY: a number.
unsafe impl Plain for u32 {}
// SAFETY: a number.
unsafe impl Plain for u64 {}

/// Calls bpf(2). `attr`: `union bpf_attr` of these commands, six words at most.
fn bpf(command: c_int, attr: &[u64; 8]) -> Result<()> {
    // SAFETY: the kernel reads `attr`, and what it points to, which lives through the call.
    let result: c_long = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of_val(attr)) };
    match result {
        0.. => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

fn number(fd: &impl AsFd) -> u64 {
    fd.as_fd().as_raw_fd() as u64
}

/// Adds or replaces an entry.
///
/// # Errors
/// `ENOMEM`, `ENOSPC`.
pub fn update<K: Plain, V: Plain>(map: &impl AsFd, key: &K, value: &V) -> Result<()> {
    let (key, value) = (std::ptr::from_ref(key) as u64, std::ptr::from_ref(value) as u64);
    bpf(MAP_UPDATE_ELEM, &[number(map), key, value, 0, 0, 0, 0, 0])
}

/// Removes an entry.
///
/// # Errors
/// `ENOENT`.
pub fn delete<K: Plain>(map: &impl AsFd, key: &K) -> Result<()> {
    bpf(MAP_DELETE_ELEM, &[number(map), std::ptr::from_ref(key) as u64, 0, 0, 0, 0, 0, 0])
}

/// Attaches a program to a control group and all groups below it.
///
/// # Errors
/// `EPERM`, `E2BIG` if there are too many.
pub fn attach(group: &impl AsFd, program: &impl AsFd, kind: u32) -> Result<()> {
    // Target and program are two halves of a word, as are kind and flags.
    let first = number(group) | number(program) << 32;
    bpf(PROG_ATTACH, &[first, u64::from(kind) | ALLOW_MULTI << 32, 0, 0, 0, 0, 0, 0])
}

/// Attaches a program in the place of another, in one step.
///
/// # Errors
/// `ENOENT` if the other one is not attached there.
pub fn replace(group: &impl AsFd, program: &impl AsFd, previous: &impl AsFd, kind: u32) -> Result<()> {
    let first = number(group) | number(program) << 32;
    let second = u64::from(kind) | (ALLOW_MULTI | REPLACE) << 32;
    bpf(PROG_ATTACH, &[first, second, number(previous), 0, 0, 0, 0, 0])
}

/// Detaches a program: the opposite of [`attach`].
///
/// # Errors
/// `ENOENT`.
pub fn detach(group: &impl AsFd, program: &impl AsFd, kind: u32) -> Result<()> {
    let first = number(group) | number(program) << 32;
    bpf(PROG_DETACH, &[first, u64::from(kind), 0, 0, 0, 0, 0, 0])
}
