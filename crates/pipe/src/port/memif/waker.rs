//! Wakes a client that sleeps on the eventfd of its receive ring.
//!
//! Each client has a thread that signals ([`Signaller`]), because a client chooses the number of waiters that a signal has to go through.
//! The agent leaves a note for the thread, in a channel with room for one, and never waits. No signal blocks, so that the thread ends soon
//! after its client has gone.
use super::message::Refused;
use crate::signaller::Signaller;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::thread::JoinHandle;

/// A thread, and the channel of its notes.
#[derive(Debug)]
struct Thread {
    notes: SyncSender<()>,
    handle: JoinHandle<()>,
}

/// Wakes one client. The thread starts with the first wake-up, so that a client that polls costs none.
#[derive(Debug)]
pub struct Waker {
    /// The eventfd, until the thread has it.
    doorbell: Option<OwnedFd>,
    thread: Option<Thread>,
}

impl Waker {
    /// Makes a waker by `doorbell`, an eventfd.
    pub fn new(doorbell: OwnedFd) -> Self {
        Self { doorbell: Some(doorbell), thread: None }
    }

    /// Queues a wake-up of the client. Never blocks.
    ///
    /// # Errors
    /// A sentence, if there is no thread or no context of asynchronous requests.
    pub fn wake(&mut self) -> Result<(), Refused> {
        if self.doorbell.is_some() {
            let signaller =
                Signaller::new().map_err(|_| Refused("no request can wake a client: see fs.aio-max-nr"))?;
            let (notes, taken) = sync_channel(1);
            // Not before: closing an eventfd may take long.
            let Some(doorbell) = self.doorbell.take() else { return Ok(()) };
            let thread = std::thread::Builder::new().name("pd-wake".into());
            let started = thread.spawn(move || run(&signaller, &doorbell, &taken));
            let handle = started.map_err(|_| Refused("no thread can wake a client"))?;
            self.thread = Some(Thread { notes, handle });
        }
        // A pending note stands for this one as well.
        let _ = self.thread.as_ref().map(|thread| thread.notes.try_send(()));
        Ok(())
    }
}

impl Drop for Waker {
    /// Ends the thread after its last note, and waits for it.
    fn drop(&mut self) {
        if let Some(Thread { notes, handle }) = self.thread.take() {
            drop(notes);
            let _ = handle.join();
        }
    }
}

fn run(signaller: &Signaller, doorbell: &OwnedFd, notes: &Receiver<()>) {
    for () in notes {
        // A failure is repeated with the next note: the client is not woken, which is its own fault.
        let _ = signaller.signal(doorbell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{eventfd, EventfdFlags};
    use rustix::io::{read, write};
    use std::os::fd::AsFd;

    fn waker(doorbell: &OwnedFd) -> Waker {
        Waker::new(doorbell.as_fd().try_clone_to_owned().unwrap())
    }

    #[test]
    fn wake_ups_are_counted_together_and_a_client_that_polls_costs_no_thread() {
        let doorbell = eventfd(0, EventfdFlags::empty()).unwrap();
        let mut waking = waker(&doorbell);
        for _ in 0..50 {
            waking.wake().unwrap();
            std::thread::yield_now();
        }
        // The last note is handled before the end.
        drop(waking);
        let mut count = [0; 8];
        read(&doorbell, &mut count).unwrap();
        assert!((1..=50).contains(&u64::from_ne_bytes(count)), "{count:?}");
        assert!(waker(&doorbell).thread.is_none());
    }

    /// The counter is full, the description blocks, and nobody reads: the thread ends, and with it the drop.
    #[test]
    fn a_thread_ends_whatever_its_client_does_with_the_eventfd() {
        let doorbell = eventfd(0, EventfdFlags::empty()).unwrap();
        write(&doorbell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let mut waking = waker(&doorbell);
        for _ in 0..100 {
            waking.wake().unwrap();
            std::thread::yield_now();
        }
        drop(waking);
    }
}
