//! Conversation of two drivers while one takes the other's place: over a connection to the admin socket, after the question.
//!
//! ```text
//!    new                                                old
//!     │ Ask::TakeOver (versions) ─────────────────────▶ │ root or its user alone, as for any question
//!     │ ◀─────────────────── offer: policy, sockets, maps │
//!     │ loads programs, makes agents                    │ goes on as before
//!     │ early ────────────────────────────────────────▶ │
//!     │ ◀──────────────────────────────── direct rings │
//!     │ checks and maps them                            │
//!     │ now ──────────────────────────────────────────▶ │ stands still
//!     │ ◀──────────────────────────── state, descriptors │
//!     │ checks and maps all                             │ stands still, for a second at most
//!     │ ready ────────────────────────────────────────▶ │
//!     │ ◀────────────────────────────────────────── yours │ touches nothing any more, and ends
//!     │ begins                                          │
//! ```
//!
//! Before `yours` the old driver can go on as if nothing had been said, and does so on any failure.
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};
use std::io::{Error, IoSlice, IoSliceMut, Read, Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Version of the handed-over state. A driver takes only the version that it writes itself.
pub const FORMAT: u32 = 11;
/// Longest time until the other driver says `now`.
pub const PREPARATION: Duration = Duration::from_secs(60);
/// Most descriptors that Linux passes in a message (`SCM_MAX_FD`).
const BATCH: usize = 253;
/// Longest state in bytes, and most descriptors.
const BYTES_MAX: u64 = 1 << 30;
pub const FDS_MAX: u64 = 1 << 22;
const MAGIC: [u8; 8] = *b"pd-state";

/// Facts that the other driver needs before it is ready.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// The text of the policy in force; none: it equals that of the other driver's settings.
    pub policy: Option<String>,
    /// Tells whether the kernel refuses descriptors at the attach socket.
    pub is_safe: bool,
    /// About as many descriptors come with the state.
    pub descriptors: u32,
}

/// Words between the two drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Early,
    Now,
    Ready,
    Yours,
}

impl Word {
    const fn line(self) -> &'static [u8; 6] {
        match self {
            Self::Early => b"early\n",
            Self::Now => b"now..\n",
            Self::Ready => b"ready\n",
            Self::Yours => b"yours\n",
        }
    }
}

/// Fails unless a driver that knows these versions can take this one over.
///
/// # Errors
/// A sentence with the remedy.
pub fn check(format: u32, abi: u32) -> std::result::Result<(), String> {
    if (format, abi) == (FORMAT, pd_abi::VERSION) {
        return Ok(());
    }
    Err(format!(
        "the running driver hands over format {FORMAT} of layout {}, and this one takes format {format} of layout {abi}: \
         stop the running driver and start this one, which resets its connections",
        pd_abi::VERSION
    ))
}

/// Sends a word.
///
/// # Errors
/// If the other driver has gone, or does not read.
pub fn say(mut stream: &UnixStream, word: Word) -> Result<()> {
    stream.write_all(word.line())
}

/// Waits for a word.
///
/// # Errors
/// The sentence that the other driver sent instead; an error if it has gone, or is silent.
pub fn expect(mut stream: &UnixStream, word: Word) -> Result<()> {
    let mut said = [0; 6];
    stream.read_exact(&mut said)?;
    if &said == word.line() {
        return Ok(());
    }
    // The rest of a sentence with the reason.
    let mut rest = String::new();
    let _ = stream.take(4096).read_to_string(&mut rest);
    Err(Error::other(format!("{}{rest}", String::from_utf8_lossy(&said)).trim().to_owned()))
}

/// Sends a state and its descriptors.
///
/// # Errors
/// Errors of `sendmsg`.
pub fn send<'fd>(
    mut stream: &UnixStream,
    bytes: &[u8],
    fds: impl ExactSizeIterator<Item = BorrowedFd<'fd>>,
) -> Result<()> {
    let fds: Vec<_> = fds.collect();
    let mut head = [0; 24];
    head[..8].copy_from_slice(&MAGIC);
    head[8..16].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    head[16..].copy_from_slice(&(fds.len() as u64).to_le_bytes());
    stream.write_all(&head)?;
    for batch in fds.chunks(BATCH) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(batch)) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        sendmsg(stream, &[IoSlice::new(b"+")], &mut ancillary, SendFlags::NOSIGNAL)?;
    }
    stream.write_all(bytes)
}

/// Receives a state and its descriptors, or a sentence with the reason why there is none.
///
/// # Errors
/// The sentence of the other driver; an error if the state is malformed; errors of `recvmsg`.
pub fn receive(mut stream: &UnixStream) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut head = [0; 24];
    let mut there = 0;
    while there < head.len() {
        match stream.read(&mut head[there..])? {
            0 => break,
            more => there += more,
        }
    }
    if there < head.len() || head[..8] != MAGIC {
        let mut rest = String::new();
        let _ = stream.take(4096).read_to_string(&mut rest);
        let said = format!("{}{rest}", String::from_utf8_lossy(&head[..there]));
        let said = said.trim();
        let said = if said.is_empty() { "the running driver says nothing" } else { said };
        return Err(Error::other(said.to_owned()));
    }
    let word = |at: usize| head[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let (len, count) = (word(8), word(16));
    if len > BYTES_MAX || count > FDS_MAX {
        return Err(Error::other("a state of impossible size"));
    }
    let mut fds = Vec::new();
    while (fds.len() as u64) < count {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let into = &mut [IoSliceMut::new(&mut byte)];
        let received = recvmsg(stream, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let before = fds.len();
        for item in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = item {
                fds.extend(more);
            }
        }
        if received.bytes == 0 || fds.len() == before {
            return Err(Error::other("descriptors are missing: raise the limit on open files (LimitNOFILE)"));
        }
    }
    if fds.len() as u64 != count {
        return Err(Error::other("descriptors too many"));
    }
    let mut bytes = Vec::new();
    stream.take(len).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != len {
        return Err(Error::other("the state ends early"));
    }
    Ok((bytes, fds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_with_its_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        let bytes: Vec<u8> = (0..1_000_000u32).map(|n| n as u8).collect();
        let fds: Vec<OwnedFd> = (0..450)
            .map(|_| rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap())
            .collect();
        std::thread::scope(|scope| {
            scope.spawn(|| send(&a, &bytes, fds.iter().map(std::os::fd::AsFd::as_fd)).unwrap());
            let (got, more) = receive(&b).unwrap();
            assert_eq!((got == bytes, more.len()), (true, 450));
        });
        say(&a, Word::Ready).unwrap();
        assert!(expect(&b, Word::Ready).is_ok());
        (&a).write_all(b"3 ports of pipes are open\n").unwrap();
        drop(a);
        assert_eq!(receive(&b).unwrap_err().to_string(), "3 ports of pipes are open");
    }

    #[test]
    fn others_versions_are_named_with_the_remedy() {
        assert_eq!(check(FORMAT, pd_abi::VERSION), Ok(()));
        for (format, abi) in [(FORMAT + 1, pd_abi::VERSION), (FORMAT, pd_abi::VERSION + 1)] {
            assert!(check(format, abi).unwrap_err().contains("stop the running driver"));
        }
    }
}
