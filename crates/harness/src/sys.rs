//! The few kernel calls that have no safe wrapper: leaving namespaces, signal masks and `signalfd`,
//! and a read-only mapping of a file. Everything else in this program is safe code.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use memmap2::{Mmap, MmapOptions};
use rustix::thread::UnshareFlags;

/// Moves the calling process into new namespaces. `NEWPID` takes effect for its next child.
pub fn unshare(flags: UnshareFlags) -> io::Result<()> {
    assert!(!flags.contains(UnshareFlags::FILES), "descriptor tables stay shared");
    // SAFETY: the only hazard is `CLONE_FILES`, which the assertion above excludes.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(io::Error::from)
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the whole set, `sigaddset` changes one bit of it and refuses
    // numbers that are no signals.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Blocks `signals` in the calling thread (and in what it starts later) and returns a non-blocking,
/// close-on-exec descriptor that reads them instead.
pub fn signal_fd(signals: &[i32]) -> io::Result<OwnedFd> {
    let set = signal_set(signals);
    // SAFETY: `set` is initialised and outlives both calls; the old mask is not asked for.
    let fd = unsafe {
        let rc = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if rc != 0 {
            return Err(io::Error::from_raw_os_error(rc));
        }
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is a descriptor just made that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Lets the program end quietly when nobody reads its output any more (`pd ls | head`). Not for
/// programs with peers: a write to a closed socket would end those, too.
pub fn end_on_closed_output() {
    // SAFETY: sets a default action; no handler of ours is replaced.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Unblocks every signal in the calling thread, so that what it starts begins with an empty mask.
pub fn unblock_signals() {
    let set = signal_set(&[]);
    // SAFETY: `set` is initialised and outlives the call; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) };
}

/// Has a command begin with an empty mask of signals, whatever its parent has blocked.
pub fn with_signals_unblocked(command: &mut Command) -> &mut Command {
    // SAFETY: what runs between fork and exec makes two calls that are safe there, and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            unblock_signals();
            Ok(())
        })
    }
}

/// Maps a whole file read-only, its pages resident before the call returns.
///
/// A file shortened by another process meanwhile ends this process with SIGBUS; only the
/// senders of benchmarks, processes of their own, map files.
pub fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the bytes are only fed to a checksum: should another process change them while they
    // are read, the checksums of sender and receiver differ and the round is reported as failed.
    unsafe { MmapOptions::new().populate().map(file) }
}
