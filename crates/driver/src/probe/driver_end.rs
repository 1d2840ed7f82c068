//! The driver's end: starts the process that probes, sends questions, and reads replies. Never waits.
use super::wire::{Question, Verdict, REPLY_BYTES};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    recv, sendmsg, socketpair, AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use std::io::{IoSlice, Result};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Most replies that are read at once.
const REPLIES_MAX: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Prober {
    channel: OwnedFd,
}

/// The process that probes has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended;

impl Prober {
    /// Starts `PROGRAM internal-probe`, which calls [`super::supervise`]. The process ends when the driver's end of the channel is closed.
    ///
    /// # Errors
    /// Errors of making a process.
    pub fn start(program: &Path) -> Result<Self> {
        let (channel, theirs) = pair()?;
        let mut command = Command::new(program);
        command.arg("internal-probe").env_clear().stdin(Stdio::from(theirs)).stdout(Stdio::null());
        // A process group of its own, so that signals of the terminal do not end it before the driver.
        command.process_group(0).spawn()?;
        Ok(Self { channel })
    }

    /// Asks about a backend in a namespace. False: the channel is full, and the caller asks again later.
    ///
    /// # Errors
    /// [`Ended`].
    pub fn ask(&self, question: &Question, namespace: BorrowedFd<'_>) -> std::result::Result<bool, Ended> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut along = SendAncillaryBuffer::new(&mut space);
        let namespaces = [namespace];
        along.push(SendAncillaryMessage::ScmRights(&namespaces));
        let bytes = question.encode();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(&self.channel, &[IoSlice::new(&bytes)], &mut along, flags) {
            Ok(_) => Ok(true),
            // Descriptors in flight count as the driver's, and the kernel limits them by its limit on open files.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR | Errno::TOOMANYREFS) => Ok(false),
            Err(_) => Err(Ended),
        }
    }

    /// Reads the replies that have come. Malformed ones are left out.
    ///
    /// # Errors
    /// [`Ended`].
    pub fn replies(&self) -> std::result::Result<Vec<(u64, Verdict)>, Ended> {
        let mut replies = Vec::new();
        let mut bytes = [0; REPLY_BYTES + 1];
        for _ in 0..REPLIES_MAX {
            match recv(&self.channel, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Ended),
                Ok((len, _)) => replies.extend(Verdict::decode(&bytes[..len])),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => return Err(Ended),
            }
        }
        Ok(replies)
    }

    /// Returns the descriptor that is readable when replies have come, or the process has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Makes one with its other end, for tests.
    #[cfg(test)]
    pub fn with_other_end() -> (Self, OwnedFd) {
        let (channel, theirs) = pair().unwrap();
        (Self { channel }, theirs)
    }
}

fn pair() -> Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}
