//! Waiting for many sockets at once.
mod doorbells;
pub mod hosted;
mod item;
mod kernel;
mod look;
mod members;
pub mod other;
pub mod ready;
mod rest;
mod sockets;
mod source;
pub(crate) mod watch;

pub(crate) use item::{Item, Rest};

use crate::channel::Channel;
use crate::error::{bad_socket, Error, Result};
use crate::forks::forks;
use crate::turn::{lock, SLEEP_MAX};
use doorbells::Doorbells;
use foldhash::HashMap;
use item::{Interest, ReadyQueue};
use kernel::Kernel;
use look::collect;
use members::Member;
use pd_shm::Spin;
use rest::Resting;
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Attempts of a change to wake the threads that wait.
const WAKES_MAX: u32 = 200;

/// An epoll instance.
#[derive(Debug)]
pub struct Epoll {
    forks: u32,
    this: Weak<Self>,
    /// By a socket's serial and the registration's name.
    items: Mutex<HashMap<(u64, u64), Arc<Item>>>,
    ready: Arc<ReadyQueue>,
    resting: Mutex<Resting>,
    /// [`Self::fd`] has been called.
    exported: AtomicBool,
    /// Tells whether an [`Other`] is or was a member. Only the kernel's instance reports those.
    has_others: AtomicBool,
    spin: Mutex<Spin>,
    /// Channels that events of its sockets come to, and how many of its sockets each has.
    homes: Mutex<Vec<Home>>,
    doorbells: Mutex<Doorbells>,
    /// By the socket's serial.
    members: Mutex<HashMap<u64, Member>>,
    sleepers: AtomicU32,
}

/// An item, and the instance that it is in.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub(crate) item: Arc<Item>,
    pub(crate) epoll: Weak<Epoll>,
}

#[derive(Debug)]
struct Home {
    channel: Arc<Channel>,
    sockets: Vec<u64>,
    /// In the kernel's epoll instance.
    registered: bool,
}

impl Home {
    /// Has the kernel's instance tell of the channel.
    fn register(&mut self, kernel: &Kernel) -> Result<()> {
        kernel.add_pipe(self.channel.index(), self.channel.pipe()?)?;
        if let Some(attachment) = self.channel.attachment() {
            kernel.add_attachment(attachment.fd())?;
        }
        if !kernel.hosted() {
            self.channel.use_pipe()?;
        }
        self.registered = true;
        Ok(())
    }

    /// Takes [`Self::register`] back.
    fn leave(&self, kernel: &Kernel) {
        if let Ok(pipe) = self.channel.pipe() {
            kernel.remove_pipe(pipe);
        }
        if !kernel.hosted() {
            self.channel.leave_pipe();
        }
    }
}

impl Epoll {
    /// A new instance, without sockets.
    pub fn new() -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            forks: forks(),
            this: this.clone(),
            items: Mutex::default(),
            ready: Arc::default(),
            resting: Mutex::default(),
            exported: AtomicBool::new(false),
            has_others: AtomicBool::new(false),
            spin: Mutex::default(),
            homes: Mutex::default(),
            doorbells: Mutex::default(),
            members: Mutex::default(),
            sleepers: AtomicU32::new(0),
        })
    }

    /// Names the instance, for the owner of an item.
    fn registration(&self, item: &Arc<Item>) -> Registration {
        Registration { item: item.clone(), epoll: self.this.clone() }
    }

    fn check_usable(&self) -> Result<()> {
        if self.forks == forks() {
            Ok(())
        } else {
            Err(bad_socket())
        }
    }

    fn modify_item(&self, key: (u64, u64), events: u32, data: u64) -> Result<()> {
        self.check_usable()?;
        let item = lock(&self.items).get(&key).cloned().ok_or_else(absent)?;
        *lock(&item.interest) = Interest::new(events, data);
        self.ready.push(&item);
        self.wake_all();
        Ok(())
    }

    /// Takes all sockets out and ends the instance.
    pub fn close(&self) {
        if self.check_usable().is_err() {
            return;
        }
        let items: Vec<_> = lock(&self.items).drain().collect();
        for ((serial, _), item) in items {
            item.removed.store(true, Ordering::Release);
            if let Some(socket) = item.source.upgrade() {
                socket.leave(&item);
            }
            self.leave_doorbell(&item);
            self.part(serial, &item);
            self.unsettle(serial);
        }
    }

    /// The socket's events now come to another channel.
    fn rehome(&self, serial: u64, home: &Arc<Channel>) {
        self.unsettle(serial);
        // Without the pipe a wait still looks at the channel every 250 ms.
        let _ = self.settle(serial, home);
    }

    fn settle(&self, serial: u64, channel: &Arc<Channel>) -> Result<()> {
        let mut homes = lock(&self.homes);
        if let Some(home) = homes.iter_mut().find(|home| Arc::ptr_eq(&home.channel, channel)) {
            home.sockets.push(serial);
            return Ok(());
        }
        let mut home = Home { channel: channel.clone(), sockets: vec![serial], registered: false };
        if let Some(kernel) = self.ready.kernel.get() {
            match home.register(kernel) {
                Ok(()) => {}
                // Before a thread sleeps on it, it is tried again.
                Err(_) if kernel.hosted() => {}
                Err(error) => return Err(error),
            }
        }
        homes.push(home);
        Ok(())
    }

    fn unsettle(&self, serial: u64) {
        let mut homes = lock(&self.homes);
        for place in 0..homes.len() {
            let home = &mut homes[place];
            if let Some(at) = home.sockets.iter().position(|&known| known == serial) {
                home.sockets.swap_remove(at);
                if home.sockets.is_empty() {
                    let home = homes.swap_remove(place);
                    if let Some(kernel) = self.ready.kernel.get().filter(|_| home.registered) {
                        home.leave(kernel);
                    }
                }
                return;
            }
        }
    }

    /// Makes waiting threads look at what was queued outside of the driver's events. A thread may be about to sleep, and
    /// miss one attempt.
    fn wake_all(&self) {
        for _ in 0..WAKES_MAX {
            if self.sleepers.load(Ordering::SeqCst) == 0 {
                return;
            }
            for home in lock(&self.homes).iter() {
                home.channel.wake_all();
            }
            pd_shm::yield_now();
        }
    }

    /// A descriptor that is readable whenever [`Self::wait`] may have something to report; to be
    /// nested in an ordinary epoll, poll or select. It belongs to the instance: never read from it and
    /// never close it. After it was readable call [`Self::wait`] with a time-out of zero.
    ///
    /// # Errors
    /// `EMFILE`; those of asking the driver for wake pipes.
    pub fn fd(&self) -> Result<RawFd> {
        self.check_usable()?;
        let fd = self.kernel()?.raw_fd();
        if !self.exported.swap(true, Ordering::AcqRel) {
            // The holder of the descriptor may sleep at any time.
            self.begin_sleep();
        }
        Ok(fd)
    }

    fn kernel(&self) -> Result<&Kernel> {
        let mut homes = lock(&self.homes);
        if self.ready.kernel.get().is_none() {
            let _ = self.ready.kernel.set(Kernel::new(false)?);
        }
        let kernel = self.ready.kernel.get().ok_or_else(bad_socket)?;
        for home in homes.iter_mut().filter(|home| !home.registered) {
            home.register(kernel)?;
        }
        drop(homes);
        self.ready.signal(&mut lock(&self.ready.queue));
        Ok(kernel)
    }

    /// Reports at most `max` events, `(events, data)` each; waits for the first, at most `timeout`
    /// (none: for ever). Returns how many.
    ///
    /// # Errors
    /// `EINVAL` if `max` is 0; `EBADF`.
    pub fn wait(
        &self,
        max: usize,
        timeout: Option<Duration>,
        report: &mut dyn FnMut(u32, u64),
    ) -> Result<usize> {
        self.check_usable()?;
        if max == 0 {
            return Err(Error::invalid("a wait needs room for at least one event"));
        }
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        // Doorbells and pipes are for sleepers; of kernel sockets and of others nothing else tells.
        let asks = self.exported.load(Ordering::Acquire)
            || self.has_others.load(Ordering::Relaxed)
            || !lock(&self.members).is_empty();
        let kernel = self.ready.kernel.get().filter(|_| asks);
        let mut found = kernel.map(|kernel| kernel.poll(Duration::ZERO)).unwrap_or_default();
        loop {
            let seen = self.ready.changes.load(Ordering::Acquire);
            self.take_events(&found);
            let count =
                collect(&self.ready.queue, &self.resting, max, &mut |events, data, _| report(events, data));
            self.ready.signal(&mut lock(&self.ready.queue));
            if self.exported.load(Ordering::Relaxed) {
                self.ask_when_exported();
            }
            if count > 0 {
                return Ok(count);
            }
            let left = match (timeout, until) {
                (None, _) | (_, None) => SLEEP_MAX,
                (Some(_), Some(until)) => match until.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => left.min(SLEEP_MAX),
                    _ => return Ok(0),
                },
            };
            found = self.sleep(left, seen)?;
        }
    }

    fn take_events(&self, found: &kernel::Found) {
        let mut lost = false;
        self.rung(&found.doorbells);
        self.called(&found.members);
        for home in lock(&self.homes).iter() {
            if found.pipes.contains(&home.channel.index()) {
                let _ = home.channel.empty_pipe();
            }
            lost |= home.channel.take_events().is_err();
            if found.hang_up || found.timed_out {
                lost |= home.channel.attachment().is_none_or(|attachment| !attachment.check_alive());
            }
        }
        if lost {
            self.lose();
        }
    }

    /// A driver has gone: every socket tells for itself how it is.
    fn lose(&self) {
        if let Some(kernel) = self.ready.kernel.get() {
            for attachment in lock(&self.homes).iter().filter_map(|home| home.channel.attachment()) {
                if !attachment.alive() {
                    kernel.remove_attachment(attachment.fd());
                }
            }
        }
        let items: Vec<_> = lock(&self.items).values().cloned().collect();
        for item in items {
            self.ready.push(&item);
        }
    }

    /// Looks for a while at what is at rest, which would otherwise have to send an event. Says whether there is news.
    fn spin_for_resting(&self, seen: u32) -> bool {
        if lock(&self.resting).is_empty() {
            return false;
        }
        let homes: Vec<_> = lock(&self.homes).iter().map(|home| home.channel.clone()).collect();
        let news = || {
            let events = homes.iter().any(|channel| channel.has_events());
            events || self.ready.changes.load(Ordering::Acquire) != seen || lock(&self.resting).has_news()
        };
        let mut spin = lock(&self.spin).clone();
        let found = spin.until(news);
        if !found {
            spin.slept();
        }
        *lock(&self.spin) = spin;
        found
    }

    /// Has events come of what is at rest, until [`rest::end_sleep`].
    fn begin_sleep(&self) {
        let items = lock(&self.resting).begin_sleep();
        self.ask_for_doorbells(items.iter().map(|(_, item)| item));
        items.iter().filter(|(rest, item)| item.arm_rested(rest)).for_each(|(_, item)| self.ready.push(item));
    }

    fn sleep(&self, timeout: Duration, seen: u32) -> Result<kernel::Found> {
        if self.spin_for_resting(seen) {
            return Ok(kernel::Found::default());
        }
        self.begin_sleep();
        let found = self.sleep_for_events(timeout, seen);
        rest::end_sleep(&self.resting, &self.ready.queue);
        found
    }

    fn sleep_for_events(&self, timeout: Duration, seen: u32) -> Result<kernel::Found> {
        let only = match lock(&self.homes).as_slice() {
            [home] if lock(&self.doorbells).is_empty() && lock(&self.members).is_empty() => {
                Some(home.channel.clone())
            }
            _ => None,
        };
        let Some(channel) = only else { return Ok(self.kernel()?.poll(timeout)) };
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let result = channel.wait_events(timeout, || self.ready.changes.load(Ordering::Acquire) != seen);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        // A broken channel is found out by the look at its attachment.
        Ok(kernel::Found { timed_out: result.unwrap_or(true), ..kernel::Found::default() })
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        self.close();
    }
}

fn absent() -> Error {
    Error::new(Errno::NOENT, "the socket is not in this epoll instance; add it")
}
