//! Taking snapshots: the state while all agents stand still, handed to a thread that stores it.
//!
//! A snapshot is a socket whose queue holds a file with the state, and all descriptors of the state. The manager is given the socket when all
//! of it is there, and lets go of the snapshot before.
use super::marks::Marks;
use super::store::Manager;
use crate::takeover::early::Numbers;
use crate::takeover::giving::gather;
use crate::takeover::pack::Pack;
use crate::takeover::state::{State, Stops};
use crate::takeover::Agents;
use rustix::fs::MemfdFlags;
use rustix::net::{
    sendmsg, socketpair, sockopt, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketFlags, SocketType,
};
use std::fs::File;
use std::io::{Error, IoSlice, Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Names under which the manager has what is stored.
pub const ATTACH: &str = "pd-attach";
pub const ADMIN: &str = "pd-admin";
pub const MARKS: &str = "pd-marks";
pub const SNAPSHOT: &str = "pd-snapshot-";

/// Descriptors in a message.
pub const BATCH: usize = 253;
/// Begin of a snapshot's file: this, the snapshot's number, the number of further descriptors, and the bytes of the state.
pub const MAGIC: u64 = u64::from_le_bytes(*b"pd-snap1");
pub const HEAD_BYTES: usize = 32;

/// Shortest time from one snapshot to the next.
const REST: Duration = Duration::from_millis(50);
/// Time from one snapshot to the next, in stops: agents stand still for a fiftieth of the time at most.
const REST_STOPS: u32 = 50;
/// Shortest and longest time until another attempt, while something stands in the way.
const AGAIN: Duration = Duration::from_millis(10);
const HINDERED: Duration = Duration::from_secs(1);
/// Space for a snapshot's descriptors, if the system allows it: each [`BATCH`] takes about a kilobyte.
const QUEUE_BYTES: usize = 8 << 20;

/// A snapshot that is to be stored.
struct Snapshot {
    epoch: u64,
    state: State,
    pack: Pack<'static>,
}

/// Takes snapshots when they are due. The conductor's thread has it.
#[derive(Debug)]
pub struct Keeping {
    marks: Arc<Marks>,
    snapshots: Sender<Box<Snapshot>>,
    /// Set while the thread stores a snapshot.
    is_busy: Arc<AtomicBool>,
    next: Instant,
    /// Time until the next attempt after one that was hindered.
    patience: Duration,
    /// Set when it was said that none can be taken.
    is_said: bool,
}

/// The thread that stores snapshots. It ends when nobody takes snapshots any more, and has the manager let go of everything.
#[derive(Debug)]
pub struct StoreThread(Option<JoinHandle<()>>);

impl Keeping {
    /// Starts the thread that stores snapshots. `former`: names of former ones, which go when the first is there.
    ///
    /// # Errors
    /// Errors of making a thread.
    pub fn start(manager: Manager, marks: Arc<Marks>, former: Vec<String>) -> Result<(StoreThread, Self)> {
        let ((snapshots, taken), is_busy) = (channel(), Arc::new(AtomicBool::new(false)));
        let busy = Arc::clone(&is_busy);
        let run = move || store_all(&manager, &taken, former, &busy);
        let thread = std::thread::Builder::new().name("pd-store".into()).spawn(run)?;
        let (next, patience) = (Instant::now(), AGAIN);
        let this = Self { marks, snapshots, is_busy, next, patience, is_said: false };
        Ok((StoreThread(Some(thread)), this))
    }

    /// Returns the time until a snapshot is due. None: nothing has changed, or the last one is not stored yet.
    pub fn due_in(&self) -> Option<Duration> {
        let is_wanted = self.marks.is_changed() && !self.is_busy.load(Ordering::Acquire);
        is_wanted.then(|| self.next.saturating_duration_since(Instant::now()))
    }

    /// Notes that another driver has this one's place: nobody goes on with what was stored.
    pub fn hand_over(&self) {
        self.marks.invalidate();
    }

    /// Takes a snapshot if nothing stands in the way. The caller holds all agents since `begun`.
    pub fn take(&mut self, begun: Instant, agents: &mut Agents<'_>) {
        static NONE: LazyLock<Numbers> = LazyLock::new(Numbers::new);
        match gather(Stops::default(), &NONE, agents) {
            Ok((state, pack)) => {
                let epoch = self.marks.end_snapshot();
                self.is_busy.store(true, Ordering::Release);
                // A thread that has ended is noticed by who runs the driver.
                let _ = self.snapshots.send(Box::new(Snapshot { epoch, state, pack }));
                let stop = begun.elapsed();
                tracing::debug!(epoch, ?stop, "snapshot");
                self.next = Instant::now() + REST.max(stop * REST_STOPS);
                self.patience = AGAIN;
            }
            Err(hindrance) => {
                if !hindrance.is_passing() && !std::mem::replace(&mut self.is_said, true) {
                    tracing::warn!(%hindrance, "connections would not outlive a crash of the driver");
                }
                tracing::trace!(%hindrance, "no snapshot");
                let patience = if hindrance.is_passing() { self.patience } else { HINDERED };
                self.next = Instant::now() + patience;
                self.patience = (2 * patience).min(HINDERED);
            }
        }
    }
}

impl StoreThread {
    /// Tells whether the thread has not ended.
    pub fn is_running(&self) -> bool {
        self.0.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for StoreThread {
    fn drop(&mut self) {
        if self.0.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of snapshots panicked");
        }
    }
}

/// Stores snapshots until nobody takes any more. Then the manager is to let go of everything.
fn store_all(
    manager: &Manager,
    snapshots: &Receiver<Box<Snapshot>>,
    mut former: Vec<String>,
    is_busy: &AtomicBool,
) {
    let mut is_said = false;
    while let Ok(snapshot) = snapshots.recv() {
        match store(manager, &snapshot) {
            Ok(name) => {
                for name in former.drain(..) {
                    let _ = manager.remove(&name);
                }
                former.push(name);
            }
            Err(error) if !std::mem::replace(&mut is_said, true) => {
                tracing::warn!(%error, "a snapshot cannot be stored: connections would not outlive a crash of the driver");
            }
            Err(_) => {}
        }
        is_busy.store(false, Ordering::Release);
    }
    former.extend([MARKS, ATTACH, ADMIN].map(str::to_owned));
    for name in former {
        let _ = manager.remove(&name);
    }
}

/// Stores a snapshot. Returns its name.
fn store(manager: &Manager, snapshot: &Snapshot) -> Result<String> {
    let state = snapshot.state.to_bytes()?;
    let file = write(snapshot.epoch, snapshot.pack.fds().len(), &state)?;
    let fds: Vec<_> = std::iter::once(file.as_fd()).chain(snapshot.pack.fds()).collect();
    let socket = fill(&fds)?;
    let name = format!("{SNAPSHOT}{}", snapshot.epoch);
    manager.store(&name, &[socket.as_fd()])?;
    Ok(name)
}

/// Writes a snapshot's file.
fn write(epoch: u64, fds: usize, state: &[u8]) -> Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("pd-snapshot", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(fd);
    for word in [MAGIC, epoch, fds as u64, state.len() as u64] {
        file.write_all(&word.to_le_bytes())?;
    }
    file.write_all(state)?;
    Ok(file.into())
}

/// Returns a socket whose queue holds the descriptors, in order.
pub fn fill(fds: &[BorrowedFd<'_>]) -> Result<OwnedFd> {
    let (to, from) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_send_buffer_size(&to, QUEUE_BYTES)?;
    for batch in fds.chunks(BATCH) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(batch)) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&to, &[IoSlice::new(b"+")], &mut ancillary, flags).map_err(|errno| {
            let count = fds.len();
            Error::other(format!(
                "{count} descriptors do not fit into a socket: {errno}; raise net.core.wmem_max, or the limit on open files (LimitNOFILE)"
            ))
        })?;
    }
    Ok(from)
}
