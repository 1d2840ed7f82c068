//! Files that clients send (`sendfile`). They are opened, read from disks and closed on threads of their own, since all
//! of that may take long. Movers themselves read the parts that are in the page cache.
//!
//! Each payer has two threads, so that no tenant waits for another's files:
//!
//! - The opener receives the descriptors that a client passes ([`FileSocket`]), opens the files anew ([`open`]), and closes
//!   the passed descriptors, which can take as long as the client likes. Passed descriptors are never in the driver's table
//!   ([`apart`]).
//! - The reader reads the pieces that movers found to be on a disk ([`ColdRead`]), and closes files that the driver has open
//!   ([`OpenFile`]). It waits for disks alone: flows hold space in another client's ring while they wait for it.
//!
//! Neither looks at a process: a client passes descriptors that it can read, never a number. Both know movers by [`Replies`]
//! alone.
mod apart;
mod open;
mod socket;
#[cfg(any(test, fuzzing, feature = "testing"))]
mod testing;
mod threads;

pub use socket::FileSocket;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub use threads::Kind;
pub use threads::Readers;

use crate::calls::{may, simulated, Call};
use crate::ids::{ClientId, FlowId, Payer};
use crate::memory::{ClientMemory, Lease};
use apart::Side;
use pd_shm::Mapping;
use rustix::io::{Errno, Result};
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use threads::Handle;

/// A file that the driver has open for a client. May be dropped anywhere; the reader closes it. Closing the last
/// descriptor of a removed file frees it, which takes time.
#[derive(Debug)]
pub struct OpenFile {
    fd: Option<OwnedFd>,
    /// Lease of the descriptor, until it is closed.
    lease: Option<Lease>,
    /// The reader of the payer at the time of opening.
    reader: Handle,
}

/// A client's request for a file, with the client's values.
#[derive(Debug)]
pub struct Wanted {
    /// Serial that the descriptor was passed with.
    pub serial: u64,
    /// Lease of a descriptor of the driver; or the reason why the file is not opened.
    pub lease: Result<Lease>,
}

/// The party that asked for a file.
#[derive(Debug)]
pub struct Asker {
    /// The client.
    pub client: ClientId,
    /// The client's memory, to tell whether the number still means this client. Not kept alive.
    pub memory: Weak<ClientMemory>,
    /// Slot of the file; none if the request is refused.
    pub slot: Option<usize>,
    /// Channel of the answer.
    pub channel: usize,
    pub tag: u32,
}

/// Receiver of results for a mover. Called by the threads of opener and reader, once for each request.
pub trait Replies: Debug + Send + Sync {
    /// Reports that the file of `asker` is open, or is not opened for this reason.
    fn file_opened(&self, asker: Asker, file: Result<Arc<OpenFile>>);

    /// Reports that the piece `entry_seq` of a flow has been read, completely or not.
    fn file_read(&self, flow: FlowId, entry_seq: u16, whole: bool);
}

/// A piece of a file that is on a disk.
#[derive(Debug)]
pub struct ColdRead {
    pub file: Arc<OpenFile>,
    /// First byte of the piece.
    pub from: u64,
    /// Destination: bytes that the flow has reserved in its receive ring.
    pub map: Arc<Mapping>,
    pub offset: usize,
    pub len: usize,
    /// The flow's number of the reserved bytes.
    pub entry_seq: u16,
}

/// A job of a thread.
#[derive(Debug)]
enum Job {
    /// For the opener: a request.
    Open(Box<Opening>),
    /// For the opener: closes the file socket of this key, which is charged until then.
    Forget(u64, Lease),
    /// For the reader, which takes the opened file from the opener.
    Opened(Box<Opening>, Result<()>),
    /// For the reader: a piece to read.
    Read { read: ColdRead, flow: FlowId, to: Arc<dyn Replies> },
    /// For the reader: closes the descriptor, which is charged until then.
    Close(OwnedFd, Lease),
    #[cfg(test)]
    Wait(std::sync::mpsc::Receiver<()>),
    #[cfg(test)]
    Say(std::sync::mpsc::Sender<()>),
}

/// A request on its way. The opener forwards the whole of it: the mover's mailbox has a descriptor of the near side.
#[derive(Debug)]
struct Opening {
    socket: Arc<FileSocket>,
    /// Key of the opened file between the two sides.
    key: u64,
    wanted: Wanted,
    asker: Asker,
    to: Arc<dyn Replies>,
}

impl OpenFile {
    /// Takes a file that another driver has opened for a client of this payer.
    ///
    /// # Errors
    /// If it is not such a file: see [`open::check_opened`]. Errors of starting threads.
    pub fn resume(fd: OwnedFd, lease: Lease, payer: Payer, readers: &Readers) -> std::io::Result<Self> {
        open::check_opened(&fd)?;
        let reader = readers.of(payer)?.reader;
        Ok(Self { fd: Some(fd), lease: Some(lease), reader })
    }

    /// Makes one that has no descriptor.
    #[cfg(test)]
    pub fn of_nobody() -> Self {
        let payer = crate::ids::payer(crate::ids::TenantId::new(0), 0);
        let reader = Readers::default().of(payer).expect("a thread").reader;
        Self { fd: None, lease: None, reader }
    }

    /// Returns its descriptor.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Reads the part in the page cache into bytes of a receive ring.
    ///
    /// # Errors
    /// Errors of [`Mapping::read_file`].
    ///
    /// # Safety
    /// As for [`Mapping::read_file`].
    pub unsafe fn read(&self, map: &Mapping, offset: usize, len: usize, from: u64) -> Result<usize> {
        let fd = self.fd.as_ref().ok_or(Errno::BADF)?;
        let len = simulated::readable(Call::ReadCached, fd.as_fd(), len)?;
        // Memory files of the simulation have no reads that do not wait.
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
    /// Queues the piece for its file's reader, which replies with [`Replies::file_read`].
    pub fn start(self, flow: FlowId, to: Arc<dyn Replies>) {
        let reader = self.file.reader.clone();
        reader.give(Job::Read { read: self, flow, to });
    }

    /// Reads the piece. Returns whether all of it could be read.
    fn run(&self) -> bool {
        let mut done = 0;
        while done < self.len {
            let Some(fd) = &self.file.fd else { return false };
            let (to, from) = (self.offset + done, self.from + done as u64);
            let read = simulated::readable(Call::ReadDisk, fd.as_fd(), self.len - done).and_then(|len| {
                // SAFETY: the flow has reserved these bytes of its ring for the piece until it learns of the end.
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
    /// Carries out the job, on a thread of this side.
    fn run(self, side: &Side) {
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
                let whole = read.run();
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
