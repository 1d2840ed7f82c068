//! The three memory files of a pipe, made by the agent and mapped by both sides.
//!
//! What the agent alone writes is sealed before its descriptor is passed on. What the program writes is mapped by the program first;
//! then the agent seals it ([`AgentMemory::seal`]) and looks that no page is missing, so that it never waits for a page, or dies of
//! one, that the program took away.
use crate::shape::{Direction, Shape};
use crate::violation::Violation;
use pd_abi::limits::PAGE_BYTES;
use pd_abi::pipe::{table_bytes, FRAME_TABLE_OFFSET};
use pd_shm::memfd::{self, Pages};
use pd_shm::{Own, Region, Theirs};
use rustix::io::Result;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// What a program maps to use a pipe: descriptors to be passed to it, with the shape.
#[derive(Debug)]
pub struct Offer {
    /// Direction, unit and size.
    pub shape: Shape,
    /// Written by the agent, and sealed.
    pub status: OwnedFd,
    /// Written by the program; sealed when it has mapped it.
    pub control: OwnedFd,
    /// Written by the agent in a receiving pipe, which is sealed; else by the program.
    pub ring: OwnedFd,
    /// Eventfd that wakes the agent. It is this program's alone.
    pub doorbell: OwnedFd,
}

/// A ring as one side maps it: twice, so that every frame is contiguous.
#[derive(Debug)]
pub(crate) enum Ring {
    /// This side writes it.
    Own(Region<Own>),
    /// The other side writes it.
    Theirs(Region<Theirs>),
}

impl Ring {
    fn map(fd: &OwnedFd, bytes: usize, writes: bool) -> Result<Self> {
        Ok(if writes {
            Self::Own(Region::<Own>::twice(fd, 0, bytes, PAGE_BYTES)?)
        } else {
            Self::Theirs(Region::<Theirs>::twice(fd, 0, bytes, PAGE_BYTES)?)
        })
    }

    /// Address of `len` bytes at `offset`, inside the mapping.
    #[inline]
    pub fn address(&self, offset: usize, len: usize) -> NonNull<u8> {
        match self {
            Self::Own(region) => region.address(offset, len),
            Self::Theirs(region) => region.address(offset, len),
        }
    }

    /// The ring, if this side writes it.
    pub fn own(&self) -> Option<&Region<Own>> {
        match self {
            Self::Own(region) => Some(region),
            Self::Theirs(_) => None,
        }
    }
}

fn status_bytes(shape: Shape) -> usize {
    FRAME_TABLE_OFFSET + table_bytes(shape.ring_bytes())
}

/// The agent's mappings of a pipe.
#[derive(Debug)]
pub(crate) struct AgentMemory {
    pub status: Region<Own>,
    pub control: Region<Theirs>,
    pub ring: Ring,
    /// Files that the program maps writable, and that are not sealed yet.
    unsealed: Vec<(OwnedFd, usize)>,
}

impl AgentMemory {
    /// Makes the files of a pipe. `doorbell` goes with the offer.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM` and others of making and mapping memory.
    pub fn make(shape: Shape, doorbell: OwnedFd) -> Result<(Self, Offer)> {
        let (words, ring_bytes) = (status_bytes(shape), shape.ring_bytes() as usize);
        let made = |name, bytes| -> Result<OwnedFd> {
            let fd = memfd::create(name, bytes, Pages::Ordinary)?;
            memfd::allocate(&fd, bytes)?;
            Ok(fd)
        };
        let (status, control) = (made("pd-pipe-status", words)?, made("pd-pipe-control", words)?);
        let ring = made("pd-pipe-ring", ring_bytes)?;
        let mut memory = Self {
            status: Region::<Own>::new(&status, words)?,
            control: Region::<Theirs>::new(&control, words)?,
            ring: Ring::map(&ring, ring_bytes, shape.receives())?,
            unsealed: vec![(control.try_clone().map_err(errno)?, words)],
        };
        memfd::seal_against_all(&status)?;
        match shape.direction() {
            Direction::Receive => memfd::seal_against_all(&ring)?,
            _ => memory.unsealed.push((ring.try_clone().map_err(errno)?, ring_bytes)),
        }
        Ok((memory, Offer { shape, status, control, ring, doorbell }))
    }

    /// Returns whether the program's memory is sealed.
    pub fn is_sealed(&self) -> bool {
        self.unsealed.is_empty()
    }

    /// Seals what the program has mapped. Nothing of it is read before.
    ///
    /// # Errors
    /// [`Violation::Holes`] where pages are missing, or the file cannot be sealed.
    pub fn seal(&mut self) -> std::result::Result<(), Violation> {
        for (fd, bytes) in &self.unsealed {
            memfd::seal_against_all(fd).map_err(|_| Violation::Holes)?;
            if !memfd::is_whole(fd, *bytes).map_err(|_| Violation::Holes)? {
                return Err(Violation::Holes);
            }
        }
        self.unsealed.clear();
        Ok(())
    }
}

/// The program's mappings of a pipe.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    pub status: Region<Theirs>,
    pub control: Region<Own>,
    pub ring: Ring,
}

impl ClientMemory {
    /// Maps what was offered. The descriptors are not needed any more.
    ///
    /// # Errors
    /// `ENOMEM` and others of `mmap`.
    pub fn map(offer: &Offer) -> Result<Self> {
        let (shape, words) = (offer.shape, status_bytes(offer.shape));
        Ok(Self {
            status: Region::<Theirs>::new(&offer.status, words)?,
            control: Region::<Own>::new(&offer.control, words)?,
            ring: Ring::map(&offer.ring, shape.ring_bytes() as usize, shape.sends())?,
        })
    }
}

/// The errno of a call of the standard library.
pub(crate) fn errno(error: std::io::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Unit;
    use rustix::event::{eventfd, EventfdFlags};
    use rustix::fs::{fallocate, FallocateFlags};
    use rustix::io::Errno;

    fn make(direction: Direction) -> (AgentMemory, Offer) {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        AgentMemory::make(Shape::new(direction, Unit::Frames, 64 << 10).unwrap(), doorbell).unwrap()
    }

    #[test]
    fn what_the_agent_writes_cannot_be_mapped_writable() {
        for direction in [Direction::Receive, Direction::Send, Direction::Forward] {
            let (mut memory, offer) = make(direction);
            let writable = |fd: &OwnedFd| Region::<Own>::new(fd, PAGE_BYTES).map(drop);
            assert_eq!(writable(&offer.status), Err(Errno::PERM));
            assert_eq!(writable(&offer.ring).is_err(), direction == Direction::Receive);
            let client = ClientMemory::map(&offer).unwrap();
            memory.seal().unwrap();
            for fd in [&offer.status, &offer.control, &offer.ring] {
                assert_eq!(writable(fd), Err(Errno::PERM));
                assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
                assert!(rustix::fs::ftruncate(fd, 0).is_err());
            }
            drop(client);
        }
    }

    #[test]
    fn holes_made_before_sealing_are_found() {
        let (mut memory, offer) = make(Direction::Forward);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&offer.ring, hole, PAGE_BYTES as u64, PAGE_BYTES as u64).unwrap();
        assert_eq!(memory.seal(), Err(Violation::Holes));
        assert!(!memory.is_sealed());
    }
}
