//! Commands from one agent to another: in order, at control rates only. Senders bound the commands that clients cause
//! (`messages::Permit`). Two agents of one thread use no mailbox, whose lock, fence and copies would be a good part of
//! the cost of a connection. One calls the other, and takes the commands that the other has kept for it ([`Outbox`]).
use rustix::event::{eventfd, EventfdFlags};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

/// Queue of an agent's commands. Any thread may send; the owner drains.
#[derive(Debug)]
pub struct Mailbox<T> {
    queue: Mutex<VecDeque<T>>,
    filled: AtomicBool,
    asleep: AtomicBool,
    wake: OwnedFd,
}

impl<T> Mailbox<T> {
    /// Makes an empty mailbox.
    ///
    /// # Errors
    /// Errors of `eventfd`.
    pub fn new() -> rustix::io::Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self {
            queue: Mutex::new(VecDeque::new()),
            filled: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            wake,
        }))
    }

    /// Adds a command and wakes the owner if it sleeps.
    pub fn send(&self, item: T) {
        self.lock().push_back(item);
        self.filled.store(true, Ordering::Release);
        // SYNC POINT: mailbox-dekker
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            // Fails only when the counter is full, which wakes as well.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Tells whether there are commands to drain.
    pub fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Moves all commands into `into`, which is empty.
    pub fn drain(&self, into: &mut VecDeque<T>) {
        debug_assert!(into.is_empty(), "they would be lost");
        if self.is_filled() {
            let mut queue = self.lock();
            self.filled.store(false, Ordering::Relaxed);
            std::mem::swap(into, &mut queue);
        }
    }

    /// Records that the owner is about to sleep on [`Self::fd`], or is awake. The owner checks [`Self::is_filled`] after this.
    pub fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::Relaxed);
        // SYNC POINT: mailbox-dekker
        fence(Ordering::SeqCst);
    }

    /// Tells whether the owner sleeps, or is about to.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Returns the descriptor that is readable, edge-triggered, when a command came while the owner slept.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Changes the commands that have not been drained.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn tamper<R>(&self, change: impl FnOnce(&mut VecDeque<T>) -> R) -> R {
        change(&mut self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Way of an agent to another thread and back. The agent does not come back if nothing comes.
pub struct Loan<T> {
    pub to: Sender<Box<T>>,
    pub back: Receiver<Box<T>>,
}

impl<T> std::fmt::Debug for Loan<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Loan")
    }
}

/// Queue of an agent's commands to another one.
#[derive(Debug)]
pub enum Outbox<T> {
    /// Mailbox of an agent on another thread.
    Mailbox(Arc<Mailbox<T>>),
    /// Commands for an agent on the same thread, which takes them from here.
    Kept(RefCell<VecDeque<T>>),
}

impl<T> Outbox<T> {
    /// Queues a command.
    #[inline]
    pub fn send(&self, item: T) {
        match self {
            Self::Mailbox(mailbox) => mailbox.send(item),
            Self::Kept(kept) => kept.borrow_mut().push_back(item),
        }
    }

    /// Returns the number of commands kept for an agent of the same thread.
    pub fn kept(&self) -> Option<usize> {
        match self {
            Self::Mailbox(_) => None,
            Self::Kept(kept) => Some(kept.borrow().len()),
        }
    }

    /// Moves the kept commands into `into`, which is empty.
    pub fn drain(&self, into: &mut VecDeque<T>) {
        debug_assert!(into.is_empty(), "they would be lost");
        if let Self::Kept(kept) = self {
            std::mem::swap(into, &mut kept.borrow_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_in_order_and_once() {
        let outbox = Outbox::Kept(RefCell::default());
        (0..3).for_each(|n| outbox.send(n));
        let mut taken = VecDeque::new();
        outbox.drain(&mut taken);
        assert_eq!(taken, [0, 1, 2]);
        taken.clear();
        outbox.drain(&mut taken);
        assert!(taken.is_empty());
    }

    #[test]
    fn what_goes_to_another_thread_is_there_at_once() {
        let mailbox = Mailbox::new().unwrap();
        Outbox::Mailbox(mailbox.clone()).send(7);
        let mut taken = VecDeque::new();
        mailbox.drain(&mut taken);
        assert_eq!(taken, [7]);
    }
}
