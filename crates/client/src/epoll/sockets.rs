//! Sockets in epoll instances: they are added, changed and taken out.
use super::item::{Interest, Item, Source};
use super::{absent, Epoll, Registration};
use crate::error::{Error, Result};
use crate::socket::{Control, Socket};
use crate::turn::lock;
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::sync::Arc;

impl Epoll {
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
        self.add_with(socket, name, Interest::new(events, data))
    }

    /// Adds a one-shot registration that has reported already: [`Self::modify_as`] enables it.
    ///
    /// # Errors
    /// As [`Self::add_as`].
    pub fn add_spent_as(&self, socket: &Arc<Socket>, name: u64, events: u32, data: u64) -> Result<()> {
        self.add_with(socket, name, Interest { enabled: false, ..Interest::new(events, data) })
    }

    fn add_with(&self, socket: &Arc<Socket>, name: u64, interest: Interest) -> Result<()> {
        self.check_usable()?;
        socket.check_usable()?;
        socket.adopt()?;
        let source: Arc<dyn Source> = socket.clone();
        let item = Item::new(Arc::downgrade(&source), Arc::downgrade(&self.ready), name, interest);
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
        socket.watch(&control, self.registration(&item));
        drop(control);
        if let Err(error) = socket.join(&item, self) {
            self.forget(socket, name);
            return Err(error);
        }
        self.ready.push(&item);
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

    /// Changes what is wanted of a socket that was added by a name.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn modify_as(&self, socket: &Socket, name: u64, events: u32, data: u64) -> Result<()> {
        self.modify_item((socket.serial(), name), events, data)
    }

    /// Returns whether a one-shot registration has reported since it was enabled.
    pub fn is_spent(&self, socket: &Socket, name: u64) -> bool {
        let item = lock(&self.items).get(&(socket.serial(), name)).cloned();
        item.is_some_and(|item| !lock(&item.interest).enabled)
    }

    /// Returns [`Self::is_spent`] of an instance of the parent's, in a forked child. Does not wait for locks that the parent's threads held.
    pub fn was_spent(&self, socket: &Socket, name: u64) -> bool {
        let item = self.items.try_lock().ok().and_then(|items| items.get(&(socket.serial(), name)).cloned());
        item.is_some_and(|item| item.interest.try_lock().is_ok_and(|interest| !interest.enabled))
    }

    /// Notes that a one-shot registration has reported elsewhere.
    pub fn spend(&self, socket: &Socket, name: u64) {
        if let Some(item) = lock(&self.items).get(&(socket.serial(), name)) {
            lock(&item.interest).enabled = false;
        }
    }

    /// Takes a socket out. Closing it does so, too.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn remove(&self, socket: &Socket) -> Result<()> {
        self.remove_as(socket, 0)
    }

    /// Takes out a socket that was added by a name.
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

    fn forget(&self, socket: &Socket, name: u64) -> bool {
        let control = lock(&socket.control);
        let Some(item) = lock(&self.items).remove(&(socket.serial(), name)) else { return false };
        item.removed.store(true, Ordering::Release);
        socket.unwatch(&control, &item);
        self.leave_doorbell(&item);
        self.part(socket.serial(), &item);
        self.unsettle(socket.serial());
        true
    }
}

impl Socket {
    /// Leaves all epoll instances.
    pub(crate) fn unwatch_all(&self) {
        let registrations = lock(&self.registrations).clone();
        for Registration { item, epoll } in registrations {
            if let Some(epoll) = epoll.upgrade() {
                epoll.forget(self, item.name);
            }
        }
    }

    /// Subscribes again after the link was replaced.
    pub(crate) fn rewatch(&self, control: &Control) {
        let registrations = lock(&self.registrations).clone();
        if registrations.is_empty() {
            return;
        }
        self.subscribe(control);
        for epoll in registrations.iter().filter_map(|known| known.epoll.upgrade()) {
            // Once for each item: so often does the instance know the previous home.
            epoll.rehome(self.serial(), &control.link.home);
        }
    }
}
