//! A second table of descriptors, for those that clients pass. The driver's own are in the first.
//!
//! Closing a descriptor of a file system that never answers keeps its thread in the kernel, even when the process is killed. A
//! table stays until the last of its threads has ended. The driver's sockets must not stay with it: by their end clients and
//! the next driver know that this one has gone.
//!
//! A thread belongs to one of the tables for life ([`Side`]), and so do the numbers that it knows. Descriptors go from one
//! table to the other by a socket pair, each with a key. Threads of the far side log nothing and touch no mailbox: both use
//! descriptors of the near one.
use pd_shm::passed;
use rustix::io::{Errno, Result};
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Returns an unused key.
pub fn new_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Table of descriptors, with those received from the other table. Threads of that table alone may use and drop it.
#[derive(Debug)]
pub struct Side {
    bridge: OwnedFd,
    arrived: Mutex<HashMap<u64, Arc<OwnedFd>>>,
}

/// Access to the far side, for threads of the near one.
#[derive(Debug)]
pub struct Apart {
    near: Arc<Side>,
    /// Orders to the far side. None: it has no thread, and the caller does its part.
    wishes: Option<Sender<Wish>>,
    #[cfg(any(test, fuzzing, feature = "testing"))]
    far: Option<Side>,
}

/// Work of a thread of the far side.
type Work = Box<dyn FnOnce(&Side) + Send>;

/// An order to the first thread of the far side, which never blocks.
enum Wish {
    /// Starts another thread of this name.
    Thread(&'static str, Work, Sender<std::io::Result<()>>),
    /// Receives descriptors that have come.
    Receive,
    /// Sends a duplicate of the descriptor with this key to the near side.
    Show(u64, Sender<Result<()>>),
}

impl Side {
    fn new(bridge: OwnedFd) -> Self {
        Self { bridge, arrived: Mutex::default() }
    }

    /// Sends a descriptor to the other side; this side keeps its own. Never waits.
    ///
    /// # Errors
    /// Errors of `sendmsg`; `EAGAIN` if much was sent and not received.
    pub fn send(&self, key: u64, fd: impl AsFd) -> Result<()> {
        passed::send(&self.bridge, key, fd.as_fd())
    }

    /// Receives all descriptors that have come, and returns them. The driver sent all of them, and this does not block.
    fn arrived(&self) -> MutexGuard<'_, HashMap<u64, Arc<OwnedFd>>> {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        while let Ok((key, fd)) = passed::receive(&self.bridge) {
            arrived.insert(key, Arc::new(fd));
        }
        arrived
    }

    /// Returns the descriptor that was sent with this key.
    ///
    /// # Errors
    /// `EBADF` if there is none.
    pub fn get(&self, key: u64) -> Result<Arc<OwnedFd>> {
        self.arrived().get(&key).cloned().ok_or(Errno::BADF)
    }

    /// Sends a duplicate of the descriptor with this key back.
    ///
    /// # Errors
    /// As of [`Self::get`] and [`Self::send`].
    fn show(&self, key: u64) -> Result<()> {
        self.send(key, &*self.get(key)?)
    }

    /// Returns and removes the descriptor that was sent with this key.
    ///
    /// # Errors
    /// `EBADF` if there is none.
    pub fn take(&self, key: u64) -> Result<Arc<OwnedFd>> {
        self.arrived().remove(&key).ok_or(Errno::BADF)
    }
}

impl Apart {
    /// Makes the far side.
    ///
    /// # Errors
    /// Errors of a socket pair, a thread, `unshare` and `close_range` (Linux 5.9).
    pub fn new() -> std::io::Result<Self> {
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let near = Arc::new(Side::new(near));
        #[cfg(any(test, fuzzing, feature = "testing"))]
        if crate::calls::simulated::is_on() {
            return Ok(Self { near, wishes: None, far: Some(Side::new(far)) });
        }
        let (wishes, receiver) = channel();
        let (ready, is_ready) = channel();
        let number = far.as_raw_fd();
        let run = move || match separate(number) {
            Ok(bridge) => {
                let _ = ready.send(Ok(()));
                serve(&Arc::new(Side::new(bridge)), receiver);
            }
            Err(errno) => drop(ready.send(Err(errno))),
        };
        std::thread::Builder::new().name("pd-openers".into()).spawn(run)?;
        is_ready.recv().unwrap_or(Err(Errno::SRCH))?;
        // The far side has its own copy now.
        drop(far);
        Ok(Self {
            near,
            wishes: Some(wishes),
            #[cfg(any(test, fuzzing, feature = "testing"))]
            far: None,
        })
    }

    /// Returns the near side.
    pub fn near(&self) -> &Arc<Side> {
        &self.near
    }

    /// Sends a descriptor to the far side. See [`Side::send`].
    ///
    /// # Errors
    /// As of [`Side::send`].
    pub fn send(&self, key: u64, fd: impl AsFd) -> Result<()> {
        self.near.send(key, fd)?;
        // Received at once, so that unwanted descriptors do not fill the socket.
        match &self.wishes {
            Some(wishes) => wishes.send(Wish::Receive).map_err(|_| Errno::SRCH),
            None => Ok(()),
        }
    }

    /// Returns a duplicate of the descriptor that was sent to the far side with this key, and stays there.
    ///
    /// # Errors
    /// Errors of passing it back; `EBADF` if there is none; `SRCH` without the far side's thread.
    pub fn borrow(&self, key: u64) -> Result<Arc<OwnedFd>> {
        match &self.wishes {
            Some(wishes) => {
                let (answer, shown) = channel();
                wishes.send(Wish::Show(key, answer)).map_err(|_| Errno::SRCH)?;
                shown.recv().map_err(|_| Errno::SRCH)??;
            }
            #[cfg(any(test, fuzzing, feature = "testing"))]
            None => self.far.as_ref().ok_or(Errno::SRCH)?.show(key)?,
            #[cfg(not(any(test, fuzzing, feature = "testing")))]
            None => return Err(Errno::SRCH),
        }
        self.near.take(key)
    }

    /// Returns the far side, where it has no thread.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn far(&self) -> Option<&Side> {
        self.far.as_ref()
    }

    /// Starts a thread of the far side. `name`: at most 15 bytes.
    ///
    /// # Errors
    /// Errors of starting a thread.
    pub fn spawn(&self, name: &'static str, work: Work) -> std::io::Result<()> {
        let (answer, started) = channel();
        let gone = || std::io::Error::from(Errno::SRCH);
        let wishes = self.wishes.as_ref().ok_or_else(gone)?;
        wishes.send(Wish::Thread(name, work, answer)).map_err(|_| gone())?;
        started.recv().map_err(|_| gone())?
    }
}

/// Gives the calling thread a table of its own, with standard input, output and errors, and `bridge`.
fn separate(bridge: RawFd) -> Result<OwnedFd> {
    // SAFETY: none of this thread's objects has a descriptor, and those of others keep theirs, in their table.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES)? };
    let close = |first: RawFd, last: libc::c_uint| {
        if first as libc::c_uint > last {
            return Ok(());
        }
        // SAFETY: as above: in this table they are copies that no object knows of.
        match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    };
    close(3, (bridge - 1).max(0) as libc::c_uint)?;
    close((bridge + 1).max(3), libc::c_uint::MAX)?;
    // SAFETY: in this table nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(bridge) })
}

/// Runs the first thread of the far side, while anybody can send orders.
fn serve(side: &Arc<Side>, wishes: Receiver<Wish>) {
    for wish in wishes {
        match wish {
            Wish::Receive => drop(side.arrived()),
            Wish::Show(key, answer) => drop(answer.send(side.show(key))),
            Wish::Thread(name, work, answer) => {
                let side = Arc::clone(side);
                let thread = std::thread::Builder::new().name(name.into()).spawn(move || work(&side));
                let _ = answer.send(thread.map(drop));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{read_dir, File};
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn what_is_borrowed_stays_at_the_far_side() {
        let apart = Apart::new().unwrap();
        let (file, key) = (File::open("/proc/self/exe").unwrap(), new_key());
        apart.send(key, &file).unwrap();
        for _ in 0..2 {
            let again = Arc::into_inner(apart.borrow(key).unwrap()).unwrap();
            assert_eq!(File::from(again).metadata().unwrap().ino(), file.metadata().unwrap().ino());
        }
        assert_eq!(apart.borrow(new_key()).unwrap_err(), Errno::BADF);
    }

    #[test]
    fn each_side_has_descriptors_of_its_own() {
        let file = File::open("/proc/self/exe").unwrap();
        let inode = file.metadata().unwrap().ino();
        let has_it = move || {
            let fds = read_dir("/proc/thread-self/fd").unwrap().flatten();
            fds.filter_map(|fd| std::fs::metadata(fd.path()).ok())
                .filter(|known| known.ino() == inode)
                .count()
        };
        let apart = Apart::new().unwrap();
        let (there, back) = (new_key(), new_key());
        let (answer, answers) = channel();
        let work = move |side: &Side| {
            answer.send((has_it(), side.get(there).is_err())).unwrap();
            while side.get(there).is_err() {
                std::thread::yield_now();
            }
            answer.send((has_it(), false)).unwrap();
            let fd = side.take(there).unwrap();
            side.send(back, &fd).unwrap();
            drop(fd);
            answer.send((has_it(), side.get(there).is_err())).unwrap();
        };
        apart.spawn("pd-test", Box::new(work)).unwrap();
        assert_eq!(answers.recv(), Ok((0, true)));
        let before = has_it();
        apart.send(there, &file).unwrap();
        assert_eq!(answers.recv(), Ok((1, false)));
        assert_eq!(answers.recv(), Ok((0, true)));
        let came = Arc::into_inner(apart.near().take(back).unwrap()).unwrap();
        assert_eq!(has_it(), before + 1);
        assert_eq!(File::from(came).metadata().unwrap().ino(), inode);
        assert_eq!(apart.near().get(back).unwrap_err(), Errno::BADF);
    }
}
