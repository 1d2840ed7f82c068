//! Wakes a client that sleeps on the eventfd of its receive ring.
//!
//! A client shares the eventfd's description: its counter and its status flags. A write blocks where the counter is full and
//! `O_NONBLOCK` is clear, and a client can bring that about between any check and the write. No flag of a write prevents it: an eventfd
//! has `RWF_NOWAIT` for reads alone. So a thread for each client writes. The agent leaves a note for it, in a channel with room for one,
//! and never waits. A client can block only the thread that wakes this client.
//!
//! A thread that is blocked when its client goes is kept ([`Blocked`]). Reads of the eventfd that do not block set it free.
use super::message::Refused;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::{preadv2, write, ReadWriteFlags};
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;
use std::time::Duration;

/// Position of a file that has none.
const NO_POSITION: u64 = u64::MAX;
/// Time after which the end of a client's read is visible here.
const SETTLED: Duration = Duration::from_micros(50);

/// Wakes one client. Its thread starts with the first wake-up, so that a client that polls costs none.
#[derive(Debug)]
pub struct Waker {
    doorbell: Arc<OwnedFd>,
    notes: Option<SyncSender<()>>,
}

impl Waker {
    /// Wakes by `doorbell`, an eventfd.
    pub fn new(doorbell: OwnedFd) -> Self {
        Self { doorbell: Arc::new(doorbell), notes: None }
    }

    /// Has the client woken, if no wake-up is outstanding. Never blocks.
    ///
    /// # Errors
    /// A sentence, where there is no thread to be had.
    pub fn wake(&mut self) -> Result<(), Refused> {
        if self.notes.is_none() {
            let (notes, taken) = sync_channel(1);
            let doorbell = Arc::clone(&self.doorbell);
            let thread = std::thread::Builder::new().name("pd-wake".into());
            thread
                .spawn(move || run(&doorbell, &taken))
                .map_err(|_| Refused("no thread can wake a client"))?;
            self.notes = Some(notes);
        }
        // A note that is there already stands for this one as well.
        let _ = self.notes.as_ref().map(|notes| notes.try_send(()));
        Ok(())
    }

    /// Ends the thread. Returns it where it may still be writing.
    pub fn end(self) -> Option<Blocked> {
        drop(self.notes);
        Some(Blocked(self.doorbell)).filter(Blocked::is_running)
    }
}

fn run(doorbell: &OwnedFd, notes: &Receiver<()>) {
    for () in notes {
        // A client resets the counter before it looks at its ring. Its look may come before its reset is visible here, but not for long.
        let is_outstanding = is_ready(doorbell, PollFlags::IN) && {
            std::thread::sleep(SETTLED);
            is_ready(doorbell, PollFlags::IN)
        };
        if !is_outstanding {
            let _ = write(doorbell, &1u64.to_ne_bytes());
        }
    }
}

/// Returns whether an eventfd can be read or written now.
fn is_ready(doorbell: &OwnedFd, what: PollFlags) -> bool {
    // The tail was stored before.
    fence(Ordering::SeqCst);
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(doorbell, what)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// A thread of a client that has gone.
#[derive(Debug)]
pub struct Blocked(Arc<OwnedFd>);

impl Blocked {
    fn is_running(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Empties a full eventfd. Never blocks. Returns whether the thread is still there: a client that fills the eventfd again can keep it.
    pub fn free(&self) -> bool {
        // An eventfd with room blocks no write, and may be in use by a new connection.
        if !is_ready(&self.0, PollFlags::OUT) {
            let mut count = [0; 8];
            let _ = preadv2(&self.0, &mut [IoSliceMut::new(&mut count)], NO_POSITION, ReadWriteFlags::NOWAIT);
        }
        self.is_running()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{eventfd, EventfdFlags};
    use std::os::fd::AsFd;

    fn doorbell() -> OwnedFd {
        eventfd(0, EventfdFlags::empty()).unwrap()
    }

    fn waker(doorbell: &OwnedFd) -> Waker {
        Waker::new(doorbell.as_fd().try_clone_to_owned().unwrap())
    }

    #[test]
    fn a_wake_up_is_written_once_until_it_is_read() {
        let doorbell = doorbell();
        for _ in 0..3 {
            let mut waker = waker(&doorbell);
            for _ in 0..50 {
                waker.wake().unwrap();
                std::thread::yield_now();
            }
            let ended = waker.end();
            while ended.as_ref().is_some_and(Blocked::free) {
                std::thread::yield_now();
            }
            let mut count = [0; 8];
            rustix::io::read(&doorbell, &mut count).unwrap();
            assert_eq!(u64::from_ne_bytes(count), 1);
        }
        assert!(waker(&doorbell).end().is_none(), "no thread for a client that was never woken");
    }

    /// The counter is full and the description blocks: the thread waits, and neither a wake-up nor the end does.
    #[test]
    fn a_full_eventfd_blocks_its_own_thread_alone_and_is_emptied_at_the_end() {
        let doorbell = doorbell();
        let most = (u64::MAX - 1).to_ne_bytes();
        // Emptied between the looks of the thread and its write a counter would be full at the write, too.
        let (notes, taken) = sync_channel(1);
        let shared = Arc::new(doorbell.as_fd().try_clone_to_owned().unwrap());
        let writer = Arc::clone(&shared);
        write(&doorbell, &most).unwrap();
        let thread = std::thread::spawn(move || {
            taken.recv().unwrap();
            write(&*writer, &1u64.to_ne_bytes()).unwrap();
        });
        let mut waker = Waker { doorbell: shared, notes: Some(notes) };
        for _ in 0..100 {
            waker.wake().unwrap();
        }
        let blocked = waker.end().expect("it is there");
        while blocked.free() {
            std::thread::yield_now();
        }
        thread.join().unwrap();
        assert!(is_ready(&doorbell, PollFlags::OUT));
    }
}
