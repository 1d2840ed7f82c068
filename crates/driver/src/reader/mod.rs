//! Files that clients send (`sendfile`): opened, waited for and closed on threads of their own, for all of that may take
//! long. What is in the page cache movers read themselves.
//!
//! Each payer has two threads, so that nobody waits for another tenant's files:
//!
//! - The opener receives the descriptors that a client passes ([`FileSocket`]), opens the files anew ([`open`]), and closes
//!   what was passed, which can take as long as the client likes. What was passed is never in the driver's table ([`apart`]).
//! - The reader reads what movers found to be on a disk ([`ColdRead`]), and closes files that the driver has open ([`OpenFile`]).
//!   It waits for disks alone: flows have a place in the ring of somebody else while they wait for it.
//!
//! Neither looks at a process: a client passes what it can read, and nothing has a number. They know movers by [`Replies`] alone.
mod apart;
mod open;
mod socket;
#[cfg(any(test, fuzzing, feature = "hostile"))]
mod testing;
mod threads;

pub use socket::FileSocket;
#[cfg(any(test, fuzzing, feature = "hostile"))]
pub use threads::Kind;
pub use threads::Readers;

use crate::calls::{may, simulated, Call};
use crate::ids::{ClientId, FlowId};
use crate::memory::{ClientMemory, Lease};
use apart::Side;
use pd_shm::Mapping;
use rustix::io::{Errno, Result};
use std::fmt::Debug;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use threads::Handle;

/// A file that the driver has open for a client. Dropped anywhere, closed by the reader: with the last one a removed file
/// goes, which takes time.
#[derive(Debug)]
pub struct OpenFile {
    fd: Option<OwnedFd>,
    /// For the descriptor, until it is closed.
    lease: Option<Lease>,
    /// Of whoever paid for the client when it was opened.
    reader: Handle,
}

/// A client's file, as the client says.
#[derive(Debug)]
pub struct Wanted {
    /// What the descriptor was passed with.
    pub serial: u64,
    /// Of a descriptor of the driver's; or why the file is not opened.
    pub lease: Result<Lease>,
}

/// Who asked for a file.
#[derive(Debug)]
pub struct Asker {
    /// The client...
    pub client: ClientId,
    /// ...as long as it has this memory, which it does not have to keep until then.
    pub memory: Weak<ClientMemory>,
    /// Where the file goes; none if the request is refused.
    pub slot: Option<usize>,
    /// Where the answer goes.
    pub channel: usize,
    pub tag: u32,
}

/// Where a mover learns what came of its requests. Called by the threads of opener and reader, once for each request.
pub trait Replies: Debug + Send + Sync {
    /// The file of `asker` is open, or is not opened for this reason.
    fn file_opened(&self, asker: Asker, file: Result<Arc<OpenFile>>);

    /// The piece `entry_seq` of a flow is where it belongs, whole or not.
    fn file_read(&self, flow: FlowId, entry_seq: u16, whole: bool);
}

/// A piece of a file that is on a disk.
#[derive(Debug)]
pub struct ColdRead {
    pub file: Arc<OpenFile>,
    /// First byte of the piece.
    pub from: u64,
    /// Where it goes: bytes that the flow has reserved in its receive ring.
    pub map: Arc<Mapping>,
    pub offset: usize,
    pub len: usize,
    /// The flow's number of them.
    pub entry_seq: u16,
}

/// What a thread does.
#[derive(Debug)]
enum Job {
    /// The opener's.
    Open(Box<Opening>),
    /// The opener's: close the file socket of this key, which is charged until then.
    Forget(u64, Lease),
    /// The reader's, who takes from the opener what it has opened.
    Opened(Box<Opening>, Result<()>),
    /// The reader's.
    Read { read: ColdRead, flow: FlowId, to: Arc<dyn Replies> },
    /// The reader's. The descriptor is charged until it is closed.
    Close(OwnedFd, Lease),
    #[cfg(test)]
    Wait(std::sync::mpsc::Receiver<()>),
    #[cfg(test)]
    Say(std::sync::mpsc::Sender<()>),
}

/// A request on its way. The opener passes it on as a whole: the mover's mailbox has a descriptor of the near side.
#[derive(Debug)]
struct Opening {
    socket: Arc<FileSocket>,
    /// The opened file's, between the two sides.
    key: u64,
    wanted: Wanted,
    asker: Asker,
    to: Arc<dyn Replies>,
}

impl OpenFile {
    /// Reads into bytes of a receive ring what is in the page cache.
    ///
    /// # Errors
    /// Those of [`Mapping::read_file`].
    ///
    /// # Safety
    /// Those of [`Mapping::read_file`].
    pub unsafe fn read(&self, map: &Mapping, offset: usize, len: usize, from: u64) -> Result<usize> {
        let fd = self.fd.as_ref().ok_or(Errno::BADF)?;
        let len = simulated::readable(Call::ReadCached, fd.as_fd(), len)?;
        // Memory of the simulation has no reads that do not wait.
        let at_once = !simulated::is_on();
        // SAFETY: the caller's promise.
        unsafe { map.read_file(offset, len, fd, from, at_once) }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let (Some(fd), Some(lease)) = (self.fd.take(), self.lease.take()) {
            self.reader.give(Job::Close(fd, lease));
        }
    }
}

impl ColdRead {
    /// Has the piece read by its file's reader, which replies with [`Replies::file_read`].
    pub fn start(self, flow: FlowId, to: Arc<dyn Replies>) {
        let reader = self.file.reader.clone();
        reader.give(Job::Read { read: self, flow, to });
    }

    /// Whether all of it could be read.
    fn carry_out(&self) -> bool {
        let mut done = 0;
        while done < self.len {
            let Some(fd) = &self.file.fd else { return false };
            let (to, from) = (self.offset + done, self.from + done as u64);
            let read = simulated::readable(Call::ReadDisk, fd.as_fd(), self.len - done).and_then(|len| {
                // SAFETY: the flow has reserved these bytes of its ring for the piece until it hears of the end.
                unsafe { self.map.read_file(to, len, fd, from, false) }
            });
            match read {
                Ok(0) => return false,
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot read a client's file");
                    return false;
                }
            }
        }
        true
    }
}

impl Job {
    /// Does it, on a thread of this side.
    fn carry_out(self, side: &Side) {
        match self {
            Self::Open(opening) => {
                let reader = opening.socket.reader_of_files();
                let passed = opening.socket.receive(&opening.wanted, side);
                let opened = match (&opening.wanted.lease, &passed) {
                    (Ok(_), Ok(passed)) => {
                        let file = may(Call::OpenFile).and_then(|()| open::open_anew(passed));
                        file.and_then(|file| side.send(opening.key, &file))
                    }
                    (Err(errno), _) | (_, Err(errno)) => Err(*errno),
                };
                reader.give(Self::Opened(opening, opened));
                // Last: it may take as long as the client likes.
                drop(passed);
            }
            Self::Forget(key, _lease) => drop(side.take(key)),
            Self::Opened(opening, opened) => {
                let Opening { socket, key, wanted, asker, to } = *opening;
                let take = |lease| {
                    opened?;
                    let fd = Arc::into_inner(side.take(key)?);
                    Ok(Arc::new(OpenFile { fd, lease: Some(lease), reader: socket.reader_of_files() }))
                };
                let file = wanted.lease.and_then(take);
                to.file_opened(asker, file);
            }
            Self::Read { read, flow, to } => {
                let whole = read.carry_out();
                to.file_read(flow, read.entry_seq, whole);
            }
            Self::Close(fd, _lease) => drop(fd),
            #[cfg(test)]
            Self::Wait(until) => drop(until.recv()),
            #[cfg(test)]
            Self::Say(to) => drop(to.send(())),
        }
    }
}
