//! The few kernel calls that have no safe wrapper: leaving namespaces, what a child does before its image, a filter of system calls,
//! and a read-only mapping of a file; beside them signal masks. Everything else in this program is safe code.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use memmap2::{Mmap, MmapOptions};
use nix::sys::signal::{signal, SigHandler, SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{getpid, setpgid, Pid};
use rustix::thread::UnshareFlags;

/// Moves the calling process into new namespaces. `NEWPID` takes effect for its next child.
pub fn unshare(flags: UnshareFlags) -> io::Result<()> {
    assert!(!flags.contains(UnshareFlags::FILES), "descriptor tables stay shared");
    // SAFETY: the only hazard is `CLONE_FILES`, which the assertion above excludes.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(io::Error::from)
}

/// Blocks `signals` in the calling thread (and in its later children) and returns a non-blocking,
/// close-on-exec descriptor that reads them instead.
pub fn signal_fd(signals: &[Signal]) -> io::Result<SignalFd> {
    let set = signals.iter().copied().collect::<SigSet>();
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Lets the program end quietly when nobody reads its output any more (`pd ls | head`). Not for
/// programs with peers: a write to a closed socket would end those, too.
pub fn end_on_closed_output() {
    // SAFETY: sets a default action; no handler of ours is replaced.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

/// Unblocks every signal in the calling thread, so that its children begin with an empty mask.
pub fn unblock_signals() {
    // Fails for an unknown `how` only.
    let _ = SigSet::empty().thread_set_mask();
}

/// Makes a command begin in a process group of its own, with an empty mask of signals, whatever its parent has
/// blocked. In the foreground the group gets the terminal on standard input.
pub fn in_own_group(command: &mut Command, foreground: bool) -> &mut Command {
    // SAFETY: what runs between fork and exec makes calls that are safe there, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            setpgid(None, None)?;
            if foreground {
                set_foreground(getpid())?;
            }
            unblock_signals();
            Ok(())
        })
    }
}

/// Makes a command and its children begin under a filter of system calls. The caller has `CAP_SYS_ADMIN`.
pub fn under_filter(command: &mut Command, filter: Vec<libc::sock_filter>) -> &mut Command {
    let install = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // The filter confines, it hides nothing: no need to speculate less.
        let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
        // SAFETY: the kernel reads the instructions, which live through the call, and keeps nothing of them.
        let done = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                std::ptr::from_ref(&program),
            )
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: what runs between fork and exec is one call that is safe there, and allocates nothing.
    unsafe { command.pre_exec(install) }
}

/// Makes programs that this process starts begin with standard input, output and error alone. A caller may have left others open: a folder
/// of the host leads past what a container hides.
///
/// # Errors
/// Errors of `close_range`.
pub fn keep_standard_streams_only() -> io::Result<()> {
    // SAFETY: the call reads no memory, and closes nothing before the next program.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the terminal that is standard input to a process group of the caller's session. The calling thread is not stopped
/// for that, whichever group it is in.
pub fn set_foreground(group: Pid) -> io::Result<()> {
    let before = SigSet::from(Signal::SIGTTOU).thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let given = rustix::termios::tcsetpgrp(rustix::stdio::stdin(), group);
    before.thread_set_mask()?;
    given.map_err(io::Error::from)
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
