//! Waiting for many sockets at once.
mod bells;
pub mod hosted;
mod kernel;
mod members;
pub mod other;
pub mod ready;
pub(crate) mod rest;
mod watch;

pub(crate) use ready::Item;
pub(crate) use watch::Watch;

use crate::channel::Channel;
use crate::error::{bad_socket, Error, Result};
use crate::forks::forks;
use crate::socket::Socket;
use crate::turn::{lock, SLEEP_MAX};
use bells::Bells;
use foldhash::HashMap;
use kernel::{Kernel, Member};
use pd_shm::Spin;
use ready::{collect, Interest, Queue, Source};
use rest::Resting;
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How often a change looks whether a waiting thread has noticed it.
const WAKES_MAX: u32 = 200;

/// An epoll instance.
#[derive(Debug)]
pub struct Epoll {
    forks: u32,
    this: Weak<Self>,
    /// By a socket's serial and the registration's name.
    items: Mutex<HashMap<(u64, u64), Arc<Item>>>,
    queue: Mutex<Queue>,
    resting: Mutex<Resting>,
    /// [`Self::fd`] has been called.
    exported: AtomicBool,
    /// It has or had an [`Other`], of which the kernel's instance alone tells.
    has_others: AtomicBool,
    spin: Mutex<Spin>,
    /// Channels that events of its sockets come to, and how many of its sockets each has.
    homes: Mutex<Vec<Home>>,
    kernel: OnceLock<Kernel>,
    bells: Mutex<Bells>,
    /// By the socket's serial.
    members: Mutex<HashMap<u64, Member>>,
    /// Counts what was queued, so that a thread about to sleep notices.
    changes: AtomicU32,
    sleepers: AtomicU32,
    /// Threads that sleep on the descriptor (see [`hosted`]).
    armed: AtomicU32,
}

#[derive(Debug)]
struct Home {
    channel: Arc<Channel>,
    sockets: Vec<u64>,
    /// In the kernel's epoll instance.
    registered: bool,
}

impl Epoll {
    /// A new instance, without sockets.
    pub fn new() -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            forks: forks(),
            this: this.clone(),
            items: Mutex::default(),
            queue: Mutex::default(),
            resting: Mutex::default(),
            exported: AtomicBool::new(false),
            has_others: AtomicBool::new(false),
            spin: Mutex::default(),
            homes: Mutex::default(),
            kernel: OnceLock::new(),
            bells: Mutex::default(),
            members: Mutex::default(),
            changes: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            armed: AtomicU32::new(0),
        })
    }

    fn check_usable(&self) -> Result<()> {
        if self.forks == forks() {
            Ok(())
        } else {
            Err(bad_socket())
        }
    }

    /// Adds a socket: `events` of [`ready`], `data` comes back with them.
    ///
    /// # Errors
    /// `EEXIST`, `EBADF`.
    pub fn add(&self, socket: &Arc<Socket>, events: u32, data: u64) -> Result<()> {
        self.add_as(socket, 0, events, data)
    }

    /// Adds a socket by a name: it may be in the instance once by each.
    ///
    /// # Errors
    /// `EEXIST`, `EBADF`.
    pub fn add_as(&self, socket: &Arc<Socket>, name: u64, events: u32, data: u64) -> Result<()> {
        self.check_usable()?;
        socket.check_usable()?;
        socket.adopt()?;
        let source: Arc<dyn Source> = socket.clone();
        let (this, interest) = (self.this.clone(), Interest::new(events, data));
        let item = Item::new(Arc::downgrade(&source), this, name, interest);
        let control = lock(&socket.control);
        let key = (socket.serial(), name);
        {
            let mut items = lock(&self.items);
            if items.contains_key(&key) {
                return Err(Error::new(
                    Errno::EXIST,
                    "the socket is in this epoll instance already; modify it",
                ));
            }
            items.insert(key, item.clone());
        }
        // Of a connection of the kernel's no event comes from the driver.
        let settled = match socket.kernel.get() {
            None => self.settle(socket.serial(), &control.link.home),
            Some(_) => Ok(()),
        };
        if let Err(error) = settled {
            lock(&self.items).remove(&key);
            return Err(error);
        }
        socket.watch(&control, item.clone());
        drop(control);
        if let Err(error) = socket.join(&item) {
            self.forget(socket, name);
            return Err(error);
        }
        self.queue(&item);
        self.wake_all();
        Ok(())
    }

    /// Changes what is wanted of a socket, and enables it again if it was one-shot.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn modify(&self, socket: &Socket, events: u32, data: u64) -> Result<()> {
        self.modify_as(socket, 0, events, data)
    }

    /// The same of what was added by a name.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn modify_as(&self, socket: &Socket, name: u64, events: u32, data: u64) -> Result<()> {
        self.modify_item((socket.serial(), name), events, data)
    }

    fn modify_item(&self, key: (u64, u64), events: u32, data: u64) -> Result<()> {
        self.check_usable()?;
        let item = lock(&self.items).get(&key).cloned().ok_or_else(absent)?;
        *lock(&item.interest) = Interest::new(events, data);
        self.queue(&item);
        self.wake_all();
        Ok(())
    }

    /// Events wanted of a member, by its name: of a one-shot that has told, its flag alone. None: it is not in here.
    pub fn wanted_as(&self, socket: &Socket, name: u64) -> Option<u32> {
        let item = lock(&self.items).get(&(socket.serial(), name)).cloned()?;
        let interest = lock(&item.interest);
        Some(if interest.enabled { interest.events } else { ready::ONESHOT })
    }

    /// Takes a socket out. Closing it does so, too.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn remove(&self, socket: &Socket) -> Result<()> {
        self.remove_as(socket, 0)
    }

    /// The same of what was added by a name.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn remove_as(&self, socket: &Socket, name: u64) -> Result<()> {
        self.check_usable()?;
        if self.forget(socket, name) {
            Ok(())
        } else {
            Err(absent())
        }
    }

    pub(crate) fn forget(&self, socket: &Socket, name: u64) -> bool {
        let control = lock(&socket.control);
        let Some(item) = lock(&self.items).remove(&(socket.serial(), name)) else { return false };
        item.removed.store(true, Ordering::Release);
        socket.unwatch(&control, &item);
        self.leave_bell(&item);
        self.part(socket.serial(), &item);
        self.unsettle(socket.serial());
        true
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
            self.leave_bell(&item);
            self.part(serial, &item);
            self.unsettle(serial);
        }
    }

    /// The socket's events now come to another channel.
    pub(crate) fn rehome(&self, socket: &Socket, home: &Arc<Channel>) {
        self.unsettle(socket.serial());
        // Without the pipe a wait still looks at the channel every 250 ms.
        let _ = self.settle(socket.serial(), home);
    }

    fn settle(&self, serial: u64, channel: &Arc<Channel>) -> Result<()> {
        let mut homes = lock(&self.homes);
        if let Some(home) = homes.iter_mut().find(|home| Arc::ptr_eq(&home.channel, channel)) {
            home.sockets.push(serial);
            return Ok(());
        }
        let mut home = Home { channel: channel.clone(), sockets: vec![serial], registered: false };
        if let Some(kernel) = self.kernel.get() {
            match kernel.add(channel) {
                Ok(()) => home.registered = true,
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
                    if let Some(kernel) = self.kernel.get().filter(|_| home.registered) {
                        kernel.remove(&home.channel);
                    }
                }
                return;
            }
        }
    }

    /// Queues an item to be looked at in the next wait.
    pub(crate) fn queue(&self, item: &Arc<Item>) {
        let mut queue = lock(&self.queue);
        queue.push(item);
        self.changes.fetch_add(1, Ordering::Release);
        self.signal(&mut queue);
    }

    fn signal(&self, queue: &mut Queue) {
        if let Some(kernel) = self.kernel.get() {
            if kernel.hosted() {
                return self.signal_armed(kernel, queue);
            }
            match (queue.is_empty(), queue.signalled) {
                (false, false) => kernel.set_signal(),
                (true, true) => kernel.clear_signal(),
                _ => return,
            }
            queue.signalled = !queue.signalled;
        }
    }

    /// Makes waiting threads look at what was queued outside of the driver's events. They may be just
    /// about to sleep: hence more than once.
    fn wake_all(&self) {
        for _ in 0..WAKES_MAX {
            if self.sleepers.load(Ordering::SeqCst) == 0 {
                return;
            }
            for home in lock(&self.homes).iter() {
                home.channel.wake_all();
            }
            std::thread::yield_now();
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
            // Whoever has it may sleep at any time.
            self.begin_sleep();
        }
        Ok(fd)
    }

    fn kernel(&self) -> Result<&Kernel> {
        let mut homes = lock(&self.homes);
        if self.kernel.get().is_none() {
            let _ = self.kernel.set(Kernel::new(false)?);
        }
        let kernel = self.kernel.get().ok_or_else(bad_socket)?;
        for home in homes.iter_mut().filter(|home| !home.registered) {
            kernel.add(&home.channel)?;
            home.registered = true;
        }
        drop(homes);
        self.signal(&mut lock(&self.queue));
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
        // Bells and pipes are for sleepers; of kernel sockets and of others nothing else tells.
        let asks = self.exported.load(Ordering::Acquire)
            || self.has_others.load(Ordering::Relaxed)
            || !lock(&self.members).is_empty();
        let kernel = self.kernel.get().filter(|_| asks);
        let mut found = kernel.map(|kernel| kernel.poll(Duration::ZERO)).unwrap_or_default();
        loop {
            let seen = self.changes.load(Ordering::Acquire);
            self.take_events(&found);
            let count = collect(&self.queue, &self.resting, max, report);
            self.signal(&mut lock(&self.queue));
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
        self.rung(&found.bells);
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
        if let Some(kernel) = self.kernel.get() {
            for attachment in lock(&self.homes).iter().filter_map(|home| home.channel.attachment()) {
                if !attachment.alive() {
                    kernel.remove_attachment(attachment.fd());
                }
            }
        }
        let items: Vec<_> = lock(&self.items).values().cloned().collect();
        for item in items {
            self.queue(&item);
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
            events || self.changes.load(Ordering::Acquire) != seen || lock(&self.resting).has_news()
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
        self.ask_for_bells(items.iter().map(|(_, item)| item));
        items.iter().filter(|(rest, item)| item.arm_rested(rest)).for_each(|(_, item)| self.queue(item));
    }

    fn sleep(&self, timeout: Duration, seen: u32) -> Result<kernel::Found> {
        if self.spin_for_resting(seen) {
            return Ok(kernel::Found::default());
        }
        self.begin_sleep();
        let found = self.sleep_for_events(timeout, seen);
        rest::end_sleep(&self.resting, &self.queue);
        found
    }

    fn sleep_for_events(&self, timeout: Duration, seen: u32) -> Result<kernel::Found> {
        let only = match lock(&self.homes).as_slice() {
            [home] if lock(&self.bells).is_empty() && lock(&self.members).is_empty() => {
                Some(home.channel.clone())
            }
            _ => None,
        };
        let Some(channel) = only else { return Ok(self.kernel()?.poll(timeout)) };
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let result = channel.wait_events(timeout, || self.changes.load(Ordering::Acquire) != seen);
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
