//! The file socket of a client: on it the client passes descriptors of the files that it wants to be sent.
//!
//! Whoever has a file open may read it, so a descriptor that was passed is all the right there has to be. What else comes
//! this way may be anything, and may take as long to close as whoever made it likes. So only the payer's opener receives.
use super::threads::Reader;
use super::{Asker, Job, Wanted};
use crate::mailbox::Mailbox;
use crate::memory::Lease;
use crate::messages::ToMover;
use pd_shm::passed;
use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Descriptors of an earlier serial that are let go for one request: those of requests that were never made.
const SKIPPED_MAX: usize = 8;

/// The driver's end. Dropped anywhere, closed by the opener, with what was never received.
#[derive(Debug)]
pub struct FileSocket {
    fd: Option<OwnedFd>,
    /// For the descriptor.
    lease: Option<Lease>,
    /// Of whoever pays for the client at present.
    reader: Mutex<Reader>,
    /// The descriptor of a refused request is to be received.
    is_refusing: AtomicBool,
}

impl FileSocket {
    /// The driver's end of a pair, whose other end is a client's.
    pub fn new(fd: OwnedFd, lease: Lease, reader: Reader) -> Self {
        Self {
            fd: Some(fd),
            lease: Some(lease),
            reader: Mutex::new(reader),
            is_refusing: AtomicBool::new(false),
        }
    }

    fn reader(&self) -> Reader {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its client is another payer's.
    pub fn set_reader(&self, reader: Reader) {
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = reader;
    }

    /// Has the file opened that was passed for this request, or the descriptor let go if the request is refused; `to` gets
    /// a [`ToMover::FileOpened`]. Never waits.
    ///
    /// # Errors
    /// Why the request is refused, while another one's refusal is still under way: there is no other answer then.
    pub fn open(self: &Arc<Self>, wanted: Wanted, asker: Asker, to: &Arc<Mailbox<ToMover>>) -> Result<()> {
        if let Err(errno) = wanted.lease {
            if self.is_refusing.swap(true, Ordering::Relaxed) {
                return Err(errno);
            }
        }
        let reader = self.reader();
        let job = Job::Open { socket: Arc::clone(self), wanted, asker, to: Arc::clone(to) };
        reader.opener.give(job);
        Ok(())
    }

    /// Receives the descriptor that was passed for this request, and lets go of earlier ones. The opener's to call.
    ///
    /// # Errors
    /// `ESTALE` if there is none, `EPROTO` if something else is there, `EMFILE` if the driver has no descriptor left.
    pub(super) fn take(&self, wanted: &Wanted) -> Result<OwnedFd> {
        if wanted.lease.is_err() {
            self.is_refusing.store(false, Ordering::Relaxed);
        }
        let fd = self.fd.as_ref().ok_or(Errno::BADF)?;
        for _ in 0..=SKIPPED_MAX {
            let (serial, file) = match passed::receive(fd) {
                Err(Errno::AGAIN) => break,
                received => received?,
            };
            if serial == wanted.serial {
                return Ok(file);
            }
            if serial > wanted.serial {
                break;
            }
        }
        Err(Errno::STALE)
    }

    /// Of files that it has opened.
    pub(super) fn reader_of_files(&self) -> super::threads::Handle {
        self.reader().reader
    }
}

impl Drop for FileSocket {
    fn drop(&mut self) {
        if let (Some(fd), Some(lease)) = (self.fd.take(), self.lease.take()) {
            self.reader().opener.give(Job::Close(fd, lease));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::threads::Readers;
    use super::*;
    use crate::memory::{Amounts, HugepageUse, Pool};
    use crate::messages::payer;
    use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
    use std::os::fd::AsFd;

    fn lease() -> Lease {
        Pool::new(0, HugepageUse::Off).root().lease(Amounts::descriptor()).unwrap()
    }

    fn wanted(serial: u64) -> Wanted {
        Wanted { serial, lease: Ok(lease()) }
    }

    #[test]
    fn requests_take_their_own_descriptors() {
        let (theirs, fd) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let readers = Readers::default();
        let socket = FileSocket::new(fd, lease(), readers.of(payer(1, 0)).unwrap());
        let pass = |serial| passed::send(&theirs, serial, theirs.as_fd()).unwrap();
        assert_eq!(socket.take(&wanted(1)).unwrap_err(), Errno::STALE);
        pass(1);
        socket.take(&wanted(1)).unwrap();
        // Of requests that were not made.
        (2..=1 + SKIPPED_MAX as u64).for_each(pass);
        pass(20);
        socket.take(&wanted(20)).unwrap();
        // Of a request that comes later.
        pass(30);
        assert_eq!(socket.take(&wanted(29)).unwrap_err(), Errno::STALE);
        assert_eq!(socket.take(&wanted(30)).unwrap_err(), Errno::STALE);
        // More of them than one request may cost.
        (31..=33 + SKIPPED_MAX as u64).for_each(pass);
        assert_eq!(socket.take(&wanted(40)).unwrap_err(), Errno::STALE);
        socket.take(&wanted(33 + SKIPPED_MAX as u64)).unwrap();
        drop(theirs);
        assert_eq!(socket.take(&wanted(50)).unwrap_err(), Errno::PROTO);
    }
}
