//! Commands from one agent to another: in order, at control rates only. Senders bound what clients make them
//! send (`messages::Forwarded`). What an agent has to tell one of its own thread is gathered ([`Outbox`]): a lock and a fence for each
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

/// The mailboxes that an agent sends to. If the two are one thread, what it has to tell is gathered until the end of its
/// turn; nobody sees a difference. Otherwise each command is there before the agent does anything else, which others may
/// see: a client that was told of something asks for more of it, and is not to be ahead of the command.
#[derive(Debug)]
pub struct Outbox<T> {
    mailboxes: Vec<Arc<Mailbox<T>>>,
    gathered: Option<RefCell<VecDeque<T>>>,
}

impl<T> Outbox<T> {
    /// Gathers what it has to tell if the mailbox, which is one then, is of an agent of the same thread.
    pub fn new(mailboxes: Vec<Arc<Mailbox<T>>>, same_thread: bool) -> Self {
        debug_assert!(!same_thread || mailboxes.len() == 1, "all is delivered to the first");
        Self { mailboxes, gathered: same_thread.then(RefCell::default) }
    }

    /// How many mailboxes they are.
    pub fn len(&self) -> usize {
        self.mailboxes.len()
    }

    /// Tells the owner of a mailbox, at the latest by the next [`Self::flush`].
    #[inline(always)]
    pub fn send(&self, to: usize, item: T) {
        match &self.gathered {
            Some(gathered) => gathered.borrow_mut().push_back(item),
            None => self.mailboxes[to].send(item),
        }
    }

    /// Delivers all that was gathered.
    pub fn flush(&self) {
        if let Some(gathered) = self.gathered.as_ref().filter(|gathered| !gathered.borrow().is_empty()) {
            self.mailboxes[0].send_all(&mut gathered.borrow_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(mailbox: &Mailbox<u32>) -> Vec<u32> {
        let mut items = VecDeque::new();
        mailbox.drain(&mut items);
        items.into()
    }

    #[test]
    fn within_a_thread_commands_are_gathered_and_come_in_order() {
        let mailbox = Mailbox::new().unwrap();
        let outbox = Outbox::new(vec![mailbox.clone()], true);
        (0..3).for_each(|n| outbox.send(0, n));
        assert!(!mailbox.is_filled() && drained(&mailbox).is_empty());
        outbox.flush();
        assert_eq!(drained(&mailbox), [0, 1, 2]);
        outbox.send(0, 11);
        mailbox.send(10);
        outbox.flush();
        assert_eq!(drained(&mailbox), [10, 11]);
        outbox.flush();
        assert!(!mailbox.is_filled());
    }

    #[test]
    fn between_threads_commands_are_there_at_once() {
        let mailboxes = [0, 1].map(|_| Mailbox::new().unwrap());
        let outbox = Outbox::new(mailboxes.to_vec(), false);
        assert_eq!(outbox.len(), 2);
        outbox.send(1, 7);
        assert!(drained(&mailboxes[0]).is_empty() && drained(&mailboxes[1]) == [7]);
    }
}
