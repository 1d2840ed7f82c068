//! Others: objects of a layer above that have a number and a descriptor, such as pipes of the C API, as members of epoll instances.
//!
//! The descriptor becomes readable when the object may have become ready, as an edge; then it is asked. The object makes sure in each
//! look that finds nothing that the descriptor tells of the next thing.
use super::item::{Interest, Item, Source};
use super::{absent, Epoll, Registration};
use crate::error::{Error, Result};
use crate::own::OwnFd;
use crate::turn::lock;
use rustix::io::Errno;
use std::any::Any;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Numbers of others among an instance's doorbells, which direct connections number from 0.
const FIRST_NUMBER: u64 = 1 << 60;
/// Name of others in an instance, so that no serial is mistaken for a socket's.
const NAME: u64 = u64::MAX;

static NUMBERS: AtomicU64 = AtomicU64::new(FIRST_NUMBER);

/// An object behind an [`Other`].
pub trait Readiness: Any + Send + Sync + Debug {
    /// The events of [`super::ready`] that hold now. Where none of `wanted` does, the descriptor tells of the next one.
    fn readiness(&self, wanted: u32) -> u32;

    /// The object itself.
    fn as_any(&self) -> &dyn Any;
}

/// An object that is no socket and can be waited for.
#[derive(Debug)]
pub struct Other {
    number: u64,
    object: Box<dyn Readiness>,
    registrations: Mutex<Vec<Registration>>,
}

impl Other {
    /// Of an object.
    pub fn new(object: impl Readiness) -> Arc<Self> {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { number, object: Box::new(object), registrations: Mutex::default() })
    }

    /// The object, if it is of this type.
    pub fn object<T: Any>(&self) -> Option<&T> {
        self.object.as_any().downcast_ref()
    }

    /// See [`Readiness::readiness`].
    pub fn ready(&self, wanted: u32) -> u32 {
        self.object.readiness(wanted)
    }

    /// Has all instances look at it again: it may have become ready though its descriptor tells nothing.
    pub fn look_again(&self) {
        let known = |known: &Registration| Some((known.epoll.upgrade()?, known.item.clone()));
        let known: Vec<_> = lock(&self.registrations).iter().filter_map(known).collect();
        for (epoll, item) in known {
            epoll.ready.push(&item);
            epoll.wake_all();
        }
    }

    /// Takes it out of all instances.
    pub fn leave_all(&self) {
        let registrations = std::mem::take(&mut *lock(&self.registrations));
        for registration in registrations {
            if let Some(epoll) = registration.epoll.upgrade() {
                epoll.forget_other(self);
            }
        }
    }
}

impl Source for Other {
    fn readiness(&self, wanted: u32) -> u32 {
        self.object.readiness(wanted)
    }

    fn leave(&self, item: &Arc<Item>) {
        lock(&self.registrations).retain(|known| !Arc::ptr_eq(&known.item, item));
    }
}

impl Epoll {
    /// Adds an object that is no socket; `fd` is a descriptor of its own of what tells of news.
    ///
    /// # Errors
    /// `EEXIST`, `EBADF`, `EMFILE`.
    pub fn add_other(&self, other: &Arc<Other>, fd: OwnedFd, events: u32, data: u64) -> Result<()> {
        self.check_usable()?;
        let source: Arc<dyn Source> = other.clone();
        let item = Item::new(
            Arc::downgrade(&source),
            Arc::downgrade(&self.ready),
            NAME,
            Interest::new(events, data),
        );
        {
            let mut items = lock(&self.items);
            if items.contains_key(&(other.number, NAME)) {
                return Err(Error::new(
                    Errno::EXIST,
                    "the pipe is in this epoll instance already; modify it",
                ));
            }
            items.insert((other.number, NAME), item.clone());
        }
        self.has_others.store(true, Ordering::Relaxed);
        lock(&other.registrations).push(self.registration(&item));
        // The item needs no doorbell of a peer: it has its own.
        item.doorbell_asked.store(true, Ordering::Relaxed);
        let added = self.kernel().map(|_| self.add_doorbell(other.number, Arc::new(OwnFd::new(fd)), &item));
        if !matches!(added, Ok(true)) {
            self.forget_other(other);
            return Err(added.err().unwrap_or_else(|| {
                Error::new(Errno::MFILE, "the pipe's descriptor cannot be watched: no descriptors left")
            }));
        }
        self.ready.push(&item);
        self.wake_all();
        Ok(())
    }

    /// Changes what is wanted of it, and enables it again if it was one-shot.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn modify_other(&self, other: &Other, events: u32, data: u64) -> Result<()> {
        self.modify_item((other.number, NAME), events, data)
    }

    /// Takes it out.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn remove_other(&self, other: &Other) -> Result<()> {
        self.check_usable()?;
        if self.forget_other(other) {
            Ok(())
        } else {
            Err(absent())
        }
    }

    fn forget_other(&self, other: &Other) -> bool {
        let Some(item) = lock(&self.items).remove(&(other.number, NAME)) else { return false };
        item.removed.store(true, Ordering::Release);
        lock(&other.registrations).retain(|known| !Arc::ptr_eq(&known.item, &item));
        self.leave_doorbell(&item);
        true
    }
}
