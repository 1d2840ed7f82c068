//! Commands from one agent to another: in order, at control rates only. Senders bound what clients make them
//! send (`messages::Forwarded`). An agent gathers what it has to tell another ([`Outbox`]): a lock and a fence for each
//! command would be a good part of what a connection costs.
use rustix::event::{eventfd, EventfdFlags};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Where an agent finds its commands. Any thread may send; the owner drains.
#[derive(Debug)]
pub struct Mailbox<T> {
    queue: Mutex<VecDeque<T>>,
    filled: AtomicBool,
    asleep: AtomicBool,
    wake: OwnedFd,
}

impl<T> Mailbox<T> {
    /// An empty mailbox.
    ///
    /// # Errors
    /// Those of `eventfd`.
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
        self.tell();
    }

    /// Moves all of `items` here, in their order, and wakes the owner if it sleeps.
    fn send_all(&self, items: &mut VecDeque<T>) {
        let mut queue = self.lock();
        match queue.is_empty() {
            true => std::mem::swap(&mut *queue, items),
            false => queue.append(items),
        }
        drop(queue);
        self.tell();
    }

    fn tell(&self) {
        self.filled.store(true, Ordering::Release);
        // SYNC POINT: mailbox-dekker
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            // Fails only when the counter is full, which wakes as well.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Whether there is something to drain.
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

    /// The owner is about to sleep on [`Self::fd`]. Look at [`Self::is_filled`] after this.
    pub fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::Relaxed);
        // SYNC POINT: mailbox-dekker
        fence(Ordering::SeqCst);
    }

    /// Readable, edge-triggered, when a command came while the owner slept.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Mailboxes that one agent sends to, and what it has to tell the one that it wrote to last.
#[derive(Debug)]
pub struct Outbox<T> {
    mailboxes: Vec<Arc<Mailbox<T>>>,
    gathered: RefCell<Gathered<T>>,
}

#[derive(Debug)]
struct Gathered<T> {
    to: usize,
    items: VecDeque<T>,
}

impl<T> Outbox<T> {
    /// Nothing to tell yet.
    pub fn new(mailboxes: Vec<Arc<Mailbox<T>>>) -> Self {
        Self { mailboxes, gathered: RefCell::new(Gathered { to: 0, items: VecDeque::new() }) }
    }

    /// How many mailboxes they are.
    pub fn len(&self) -> usize {
        self.mailboxes.len()
    }

    /// Tells the owner of a mailbox, at the latest by the next [`Self::flush`]. What was sent to another before is there
    /// before.
    pub fn send(&self, to: usize, item: T) {
        let mut gathered = self.gathered.borrow_mut();
        if gathered.to != to {
            self.deliver(&mut gathered);
            gathered.to = to;
        }
        gathered.items.push_back(item);
    }

    /// Delivers all that was sent. Call before waiting.
    pub fn flush(&self) {
        self.deliver(&mut self.gathered.borrow_mut());
    }

    fn deliver(&self, Gathered { to, items }: &mut Gathered<T>) {
        if !items.is_empty() {
            self.mailboxes[*to].send_all(items);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gathered_comes_in_order_and_before_what_is_sent_to_others_later() {
        let mailboxes = [0, 1].map(|_| Mailbox::new().unwrap());
        let drained = |index: usize| {
            let mut items = VecDeque::new();
            mailboxes[index].drain(&mut items);
            Vec::from(items)
        };
        let outbox = Outbox::new(mailboxes.to_vec());
        assert_eq!(outbox.len(), 2);
        (0..3).for_each(|n| outbox.send(0, n));
        assert!(drained(0).is_empty());
        outbox.send(1, 10);
        assert_eq!((drained(0), drained(1)), (vec![0, 1, 2], vec![]));
        mailboxes[1].send(9);
        outbox.send(1, 11);
        outbox.flush();
        assert_eq!((drained(0), drained(1)), (vec![], vec![9, 10, 11]));
        outbox.flush();
        assert!(!mailboxes[0].is_filled() && !mailboxes[1].is_filled());
    }
}
