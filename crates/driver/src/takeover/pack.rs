//! Descriptors of a state, which names each by its place among those that come with it.
use super::early::{Numbers, Rings};
use super::offer::FDS_MAX;
use crate::memory::{DirectRing, UnpaidRing};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{getrlimit, Resource};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Reason why a driver cannot be taken over.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{why}")]
pub struct Hindrance {
    why: String,
    /// Set if the hindrance may end in a moment.
    is_passing: bool,
}

/// A fault in a state.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Wrong(String);

impl Hindrance {
    /// Makes a hindrance that ends by itself.
    pub fn passing(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_passing: true }
    }

    /// Makes a hindrance that stays.
    pub fn lasting(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_passing: false }
    }

    /// Tells whether the hindrance may end in a moment.
    pub fn is_passing(&self) -> bool {
        self.is_passing
    }
}

impl Wrong {
    /// Makes a fault from a sentence.
    pub fn of(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// Fails with this fault unless `holds`.
    ///
    /// # Errors
    /// The fault.
    pub fn unless(holds: bool, what: impl FnOnce() -> String) -> Result<(), Self> {
        match holds {
            true => Ok(()),
            false => Err(Self(what())),
        }
    }
}

/// Descriptors that a driver opens in the meantime, for which there is room, too.
const MARGIN: u32 = 256;

/// Returns about how many descriptors this process has.
pub fn descriptors() -> u32 {
    // The kernel gives the lowest free number.
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).map_or(0, |fd| fd.as_raw_fd() as u32)
}

/// Has the kernel make room for `count` more descriptors. A table that grows makes its process wait for all processors, for
/// milliseconds each time.
pub fn make_room(count: u32) {
    let own = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
    let Ok(own) = own else { return };
    let last = (own.as_raw_fd() as u32).saturating_add(count).saturating_add(MARGIN);
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(FDS_MAX) as u32;
    // Without room the table grows when it has to.
    let _ = fcntl_dupfd_cloexec(&own, last.min(most.saturating_sub(1)) as i32);
}

/// Place of a descriptor among those of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fd(u32);

/// Descriptors that are given with a state. The giver keeps its own.
#[derive(Debug, Default)]
pub struct Pack<'early> {
    given: Vec<Given>,
    /// Direct rings that the other driver has already.
    early: Option<&'early Numbers>,
}

/// A descriptor that is given.
#[derive(Debug)]
enum Given {
    Again(OwnedFd),
    /// Descriptor that is not duplicated, which spares a system call and its undoing.
    Shared(Arc<OwnedFd>),
}

impl AsFd for Given {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Again(fd) => fd.as_fd(),
            Self::Shared(fd) => fd.as_fd(),
        }
    }
}

/// Descriptors and direct rings that have come with a state, or before it. Each is taken once.
#[derive(Debug)]
pub struct Unpacked {
    fds: Vec<Option<OwnedFd>>,
    early: Rings,
}

impl<'early> Pack<'early> {
    /// Makes a set for a driver that has these direct rings.
    pub fn beyond(early: &'early Numbers) -> Self {
        Self { given: Vec::new(), early: Some(early) }
    }

    /// Tells whether the other driver has a direct ring.
    pub fn has(&self, ring: &DirectRing) -> bool {
        self.early.is_some_and(|early| early.contains(&ring.number()))
    }

    /// Adds a descriptor that the giver shares.
    pub fn share(&mut self, fd: &Arc<OwnedFd>) -> Fd {
        self.push(Given::Shared(Arc::clone(fd)))
    }

    fn push(&mut self, given: Given) -> Fd {
        self.given.push(given);
        Fd(self.given.len() as u32 - 1)
    }

    /// Adds a descriptor.
    ///
    /// # Errors
    /// A hindrance, if no descriptor is left.
    pub fn add(&mut self, fd: impl AsFd) -> Result<Fd, Hindrance> {
        let own = fcntl_dupfd_cloexec(fd, 0).map_err(|errno| {
            Hindrance::lasting(format!(
                "no descriptors left to hand over: {errno}; raise its limit on open files"
            ))
        })?;
        Ok(self.push(Given::Again(own)))
    }

    /// Iterates over all descriptors, in order.
    pub fn fds(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.given.iter().map(AsFd::as_fd)
    }
}

impl Unpacked {
    /// Makes a set of received descriptors, in order, and of the direct rings that came before.
    pub fn new(fds: Vec<OwnedFd>, early: Rings) -> Self {
        Self { fds: fds.into_iter().map(Some).collect(), early }
    }

    /// Takes a direct ring that came before the state.
    ///
    /// # Errors
    /// If there is none of that number, or it was taken before.
    pub fn take_early(&mut self, number: u64) -> Result<UnpaidRing, Wrong> {
        self.early.remove(&number).ok_or_else(|| Wrong::of(format!("direct ring {number} is not there")))
    }

    /// Takes a descriptor.
    ///
    /// # Errors
    /// If the place is empty, or was taken before.
    pub fn take(&mut self, fd: Fd) -> Result<OwnedFd, Wrong> {
        let place = self.fds.get_mut(fd.0 as usize);
        place.and_then(Option::take).ok_or_else(|| Wrong::of(format!("descriptor {} is not there", fd.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_once() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut pack = Pack::default();
        let [first, second] = [pack.add(&reader).unwrap(), pack.add(&writer).unwrap()];
        let third =
            pack.share(&Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap()));
        let fds = pack.fds().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let mut unpacked = Unpacked::new(fds, Rings::new());
        assert!(unpacked.take_early(1).is_err() && unpacked.take(third).is_ok());
        let taken = unpacked.take(second).unwrap();
        rustix::io::write(&taken, b"x").unwrap();
        assert_eq!(rustix::io::read(unpacked.take(first).unwrap(), &mut [0; 2]), Ok(1));
        assert!(unpacked.take(first).is_err() && unpacked.take(Fd(7)).is_err());
    }
}
