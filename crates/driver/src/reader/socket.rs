//! The file socket of a client: the client passes descriptors of files to send on it.
//!
//! A process that has a file open may read it, so a passed descriptor proves all the right that is needed. Other
//! descriptors may be passed as well, and closing one may take as long as its maker likes. So only the payer's opener
//! receives.
use super::apart::{new_key, Side};
use super::threads::{Handle, Reader, Readers};
use super::{Asker, Job, Opening, Replies, Wanted};
use crate::ids::Payer;
use crate::memory::Lease;
use pd_shm::passed;
use rustix::io::{Errno, Result};
use rustix::net::{sockopt, AddressFamily, SocketType};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most descriptors of an earlier serial that one request closes: those of requests that were never made.
const SKIPPED_MAX: usize = 8;

/// The driver's end, which openers hold ([`super::apart`]). May be dropped anywhere; the opener closes it, with all that was
/// never received.
#[derive(Debug)]
pub struct FileSocket {
    key: u64,
    /// Lease of the descriptor.
    lease: Option<Lease>,
    /// Threads of the client's present payer.
    reader: Mutex<Reader>,
    /// Set while the descriptor of a refused request is to be received.
    is_refusing: AtomicBool,
}

impl FileSocket {
    /// Hands the driver's end of a pair to the openers. A client of this payer has the other end.
    ///
    /// # Errors
    /// Errors of starting threads, and of passing the end on to them.
    pub fn new(fd: OwnedFd, lease: Lease, payer: Payer, readers: &Readers) -> std::io::Result<Self> {
        let (key, reader) = (new_key(), readers.of(payer)?);
        readers.apart()?.send(key, &fd)?;
        Ok(Self { key, lease: Some(lease), reader: Mutex::new(reader), is_refusing: AtomicBool::new(false) })
    }

    /// Takes the driver's end from another driver, whose openers have let go of it.
    ///
    /// # Errors
    /// `EPROTO` if it is no such socket. Errors as of [`Self::new`].
    pub fn resume(fd: OwnedFd, lease: Lease, payer: Payer, readers: &Readers) -> std::io::Result<Self> {
        let is_it = sockopt::socket_domain(&fd)? == AddressFamily::UNIX
            && sockopt::socket_type(&fd)? == SocketType::SEQPACKET
            && !sockopt::socket_acceptconn(&fd)?;
        match is_it {
            true => Self::new(fd, lease, payer, readers),
            false => Err(Errno::PROTO.into()),
        }
    }

    /// Returns a duplicate of the driver's end, for another driver. The openers have to be its last holders in this process.
    ///
    /// # Errors
    /// Errors of passing it: see [`super::apart`].
    pub fn end(&self, readers: &Readers) -> std::io::Result<Arc<OwnedFd>> {
        Ok(readers.apart()?.borrow(self.key)?)
    }

    fn reader(&self) -> Reader {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the reader of files that are opened for the client.
    pub(super) fn reader_of_files(&self) -> Handle {
        self.reader().reader
    }

    /// Sets the threads of the client's new payer.
    pub fn set_reader(&self, reader: Reader) {
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = reader;
    }

    /// Queues the opening of the file passed for this request, or the closing of its descriptor if the request is refused.
    /// The reader replies with [`Replies::file_opened`]. Never waits.
    ///
    /// # Errors
    /// The reason of the refusal, while another refusal is still under way: there is no other answer then.
    pub fn open(self: &Arc<Self>, wanted: Wanted, asker: Asker, to: Arc<dyn Replies>) -> Result<()> {
        if let Err(errno) = wanted.lease {
            if self.is_refusing.swap(true, Ordering::Relaxed) {
                return Err(errno);
            }
        }
        let reader = self.reader();
        reader.opener.give(Job::Open(Box::new(Opening {
            socket: Arc::clone(self),
            key: new_key(),
            wanted,
            asker,
            to,
        })));
        Ok(())
    }

    /// Receives the descriptor that was passed for this request, and closes earlier ones. For the opener alone.
    ///
    /// # Errors
    /// Errors of [`receive`].
    pub(super) fn receive(&self, wanted: &Wanted, side: &Side) -> Result<OwnedFd> {
        if wanted.lease.is_err() {
            self.is_refusing.store(false, Ordering::Relaxed);
        }
        receive(&*side.get(self.key)?, wanted.serial)
    }
}

impl Drop for FileSocket {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.reader().opener.give(Job::Forget(self.key, lease));
        }
    }
}

/// # Errors
/// `ESTALE` if nothing was passed with this serial, `EPROTO` if another message is there, `EMFILE` if there is no descriptor
/// left.
fn receive(socket: impl AsFd, serial: u64) -> Result<OwnedFd> {
    for _ in 0..=SKIPPED_MAX {
        let (found, file) = match passed::receive(&socket) {
            Err(Errno::AGAIN) => break,
            received => received?,
        };
        if found == serial {
            return Ok(file);
        }
        if found > serial {
            break;
        }
    }
    Err(Errno::STALE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{socketpair, SocketFlags};

    #[test]
    fn requests_take_their_own_descriptors() {
        let (theirs, own) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let pass = |serial| passed::send(&theirs, serial, theirs.as_fd()).unwrap();
        assert_eq!(receive(&own, 1).unwrap_err(), Errno::STALE);
        pass(1);
        receive(&own, 1).unwrap();
        // Descriptors of requests that were not made.
        (2..=1 + SKIPPED_MAX as u64).for_each(pass);
        pass(20);
        receive(&own, 20).unwrap();
        // Descriptor of a later request.
        pass(30);
        assert_eq!(receive(&own, 29).unwrap_err(), Errno::STALE);
        assert_eq!(receive(&own, 30).unwrap_err(), Errno::STALE);
        // More descriptors than one request may cost.
        (31..=33 + SKIPPED_MAX as u64).for_each(pass);
        assert_eq!(receive(&own, 40).unwrap_err(), Errno::STALE);
        receive(&own, 33 + SKIPPED_MAX as u64).unwrap();
        drop(theirs);
        assert_eq!(receive(&own, 50).unwrap_err(), Errno::PROTO);
    }
}
