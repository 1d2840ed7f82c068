//! The file socket of a client: on it the client passes descriptors of the files that it wants to be sent.
//!
//! Whoever has a file open may read it, so a descriptor that was passed is all the right there has to be. What else comes
//! this way may be anything, and may take as long to close as whoever made it likes. So only the payer's opener receives.
use super::apart::{new_key, Side};
use super::threads::{Handle, Reader, Readers};
use super::{Asker, Job, Opening, Replies, Wanted};
use crate::ids::Payer;
use crate::memory::Lease;
use pd_shm::passed;
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Descriptors of an earlier serial that are let go for one request: those of requests that were never made.
const SKIPPED_MAX: usize = 8;

/// The driver's end, which openers have ([`super::apart`]). Dropped anywhere, closed by the opener, with what was never received.
#[derive(Debug)]
pub struct FileSocket {
    key: u64,
    /// For the descriptor.
    lease: Option<Lease>,
    /// Of whoever pays for the client at present.
    reader: Mutex<Reader>,
    /// The descriptor of a refused request is to be received.
    is_refusing: AtomicBool,
}

impl FileSocket {
    /// The driver's end of a pair, whose other end is the client's of this payer.
    ///
    /// # Errors
    /// Those of starting threads, and of passing the end on to them.
    pub fn new(fd: OwnedFd, lease: Lease, payer: Payer, readers: &Readers) -> std::io::Result<Self> {
        let (key, reader) = (new_key(), readers.of(payer)?);
        readers.apart()?.send(key, &fd)?;
        Ok(Self { key, lease: Some(lease), reader: Mutex::new(reader), is_refusing: AtomicBool::new(false) })
    }

    fn reader(&self) -> Reader {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Of files that are opened for its client.
    pub(super) fn reader_of_files(&self) -> Handle {
        self.reader().reader
    }

    /// Its client is another payer's.
    pub fn set_reader(&self, reader: Reader) {
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = reader;
    }

    /// Has the file opened that was passed for this request, or the descriptor let go if the request is refused. The reader
    /// replies with [`Replies::file_opened`]. Never waits.
    ///
    /// # Errors
    /// Why the request is refused, while another one's refusal is still under way: there is no other answer then.
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

    /// Receives the descriptor that was passed for this request, and lets go of earlier ones. The opener's to call.
    ///
    /// # Errors
    /// Those of [`receive`].
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
/// `ESTALE` if nothing was passed with this serial, `EPROTO` if something else is there, `EMFILE` if there is no descriptor left.
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
    use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};

    #[test]
    fn requests_take_their_own_descriptors() {
        let (theirs, own) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let pass = |serial| passed::send(&theirs, serial, theirs.as_fd()).unwrap();
        assert_eq!(receive(&own, 1).unwrap_err(), Errno::STALE);
        pass(1);
        receive(&own, 1).unwrap();
        // Of requests that were not made.
        (2..=1 + SKIPPED_MAX as u64).for_each(pass);
        pass(20);
        receive(&own, 20).unwrap();
        // Of a request that comes later.
        pass(30);
        assert_eq!(receive(&own, 29).unwrap_err(), Errno::STALE);
        assert_eq!(receive(&own, 30).unwrap_err(), Errno::STALE);
        // More of them than one request may cost.
        (31..=33 + SKIPPED_MAX as u64).for_each(pass);
        assert_eq!(receive(&own, 40).unwrap_err(), Errno::STALE);
        receive(&own, 33 + SKIPPED_MAX as u64).unwrap();
        drop(theirs);
        assert_eq!(receive(&own, 50).unwrap_err(), Errno::PROTO);
    }
}
