//! The three memory files of a pipe, made by the agent and mapped by both sides.
//!
//! Memory that the agent alone writes is sealed before its descriptor is passed on. Memory that the program writes is mapped by the
//! program first, and then sealed ([`Files::seal`]). None of its pages may be missing: the agent must never wait for a page that the
//! program took away, or be killed by its absence. Making and sealing take time for each page, and need no agent: a user that lets
//! strangers open pipes does both in another thread.
use crate::shape::{Direction, Shape, Unit};
use crate::violation::Violation;
use pd_abi::limits::PAGE_BYTES;
use pd_abi::pipe::{table_bytes, FRAME_TABLE_OFFSET};
use pd_shm::memfd::{self, Pages};
use pd_shm::ringer::Ringer;
use pd_shm::shelf::{self, Shelf};
use pd_shm::{procfs, Own, Region, Theirs};
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::OFlags;
use rustix::io::{Errno, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// Descriptors that a program maps to use a pipe, with the shape.
#[derive(Debug)]
pub struct Offer {
    /// Direction, unit and size.
    pub shape: Shape,
    /// Status words, written by the agent, and sealed.
    pub status: OwnedFd,
    /// Control words, written by the program; sealed when the program has mapped them.
    pub control: OwnedFd,
    /// The ring. In a receiving pipe the agent writes it, and it is sealed; otherwise the program writes it.
    pub ring: OwnedFd,
    /// Eventfd that wakes the agent. No other program shares it.
    pub doorbell: OwnedFd,
}

/// A ring as one side maps it: twice in a row, so that every frame is contiguous.
#[derive(Debug)]
pub(crate) enum Ring {
    /// A ring that this side writes.
    Own(Region<Own>),
    /// A ring that the other side writes.
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

    /// Returns the address of `len` bytes at `offset`, inside the mapping.
    #[inline]
    pub fn address(&self, offset: usize, len: usize) -> NonNull<u8> {
        match self {
            Self::Own(region) => region.address(offset, len),
            Self::Theirs(region) => region.address(offset, len),
        }
    }

    /// Returns the ring, if this side writes it.
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

impl Shape {
    /// Returns the bytes of memory that a pipe of this shape takes.
    pub fn memory_bytes(self) -> u64 {
        self.ring_bytes() + 2 * status_bytes(self) as u64
    }
}

/// The agent's mappings of a pipe.
#[derive(Debug)]
pub(crate) struct AgentMemory {
    pub status: Region<Own>,
    pub control: Region<Theirs>,
    pub ring: Ring,
    /// Makes wake-ups that may take long, if the program is not trusted.
    pub ringer: OnceLock<Arc<Ringer>>,
}

/// The agent's descriptors of a pipe's memory.
#[derive(Debug)]
pub struct Files {
    shape: Shape,
    status: OwnedFd,
    control: OwnedFd,
    ring: OwnedFd,
}

/// A pipe without an agent yet.
#[derive(Debug)]
pub struct Made {
    pub(crate) shape: Shape,
    pub(crate) memory: Arc<AgentMemory>,
    pub(crate) doorbell: OwnedFd,
    /// Set if another agent has the pipe still.
    pub(crate) is_anothers: bool,
}

/// A hold on the agent's mappings of a pipe. The last holder unmaps them, which takes time that the agent does not spend.
#[derive(Debug)]
pub struct Mapped(Arc<AgentMemory>);

impl Mapped {
    /// Returns whether the agent still has the mappings.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// Makes a memory file with all its pages: returns the descriptor to keep, and one to pass on.
fn file(name: &str, bytes: usize) -> Result<(OwnedFd, OwnedFd)> {
    let made = memfd::create(name, bytes, Pages::Ordinary)?;
    memfd::allocate(&made, bytes)?;
    let own = memfd::reopen(made, OFlags::RDWR)?;
    let theirs = memfd::reopen(&own, OFlags::RDWR)?;
    Ok((own, theirs))
}

/// Makes memory that the agent alone writes, in the shelf if there is one: returns the descriptor to keep, and one to pass on. Without a
/// shelf the caller seals it when it has mapped it.
fn own_file(name: &str, bytes: usize, shelf: Option<&Shelf>) -> Result<(OwnedFd, OwnedFd)> {
    let Some(shelf) = shelf else { return file(name, bytes) };
    let (own, theirs) = shelf.make(bytes)?;
    memfd::allocate(&own, bytes)?;
    Ok((own, theirs))
}

/// Returns whether a descriptor is an eventfd.
pub(crate) fn is_eventfd(fd: &OwnedFd) -> bool {
    let link = procfs::read_link(&format!("self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|link| link.as_bytes() == b"anon_inode:[eventfd]")
}

impl Made {
    /// Has `ringer` make wake-ups of the program that may take long. Only the first call has an effect.
    pub fn set_ringer(&self, ringer: Arc<Ringer>) {
        let _ = self.memory.ringer.set(ringer);
    }

    /// Makes the memory and the doorbell of a pipe, which end with this process. Nothing moves before [`Files::seal`].
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM` and others of making and mapping memory.
    pub fn new(shape: Shape) -> Result<(Self, Files, Offer)> {
        Self::on(None, shape)
    }

    /// Makes a pipe as [`Self::new`] does. Memory that the agent alone writes lies in the shelf, if there is one, so that an agent of another
    /// process can go on with it ([`Files::resume`]).
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM` and others of making and mapping memory.
    pub fn on(shelf: Option<&Shelf>, shape: Shape) -> Result<(Self, Files, Offer)> {
        let (words, ring_bytes) = (status_bytes(shape), shape.ring_bytes() as usize);
        let (own_status, status) = own_file("pd-pipe-status", words, shelf)?;
        let (own_control, control) = file("pd-pipe-control", words)?;
        let (own_ring, ring) = match shape.sends() {
            true => file("pd-pipe-ring", ring_bytes)?,
            false => own_file("pd-pipe-ring", ring_bytes, shelf)?,
        };
        let memory = AgentMemory {
            status: Region::<Own>::new(&own_status, words)?,
            control: Region::<Theirs>::new(&own_control, words)?,
            ring: Ring::map(&own_ring, ring_bytes, shape.receives())?,
            ringer: OnceLock::new(),
        };
        if shelf.is_none() {
            memfd::seal_against_all(&own_status)?;
            if !shape.sends() {
                memfd::seal_against_all(&own_ring)?;
            }
        }
        let own_doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let doorbell = rustix::io::fcntl_dupfd_cloexec(&own_doorbell, 0)?;
        let files = Files { shape, status: own_status, control: own_control, ring: own_ring };
        let offer = Offer { shape, status, control, ring, doorbell };
        let made = Self { shape, memory: Arc::new(memory), doorbell: own_doorbell, is_anothers: false };
        Ok((made, files, offer))
    }

    /// Returns a hold on its mappings, to be kept until the agent has closed the pipe.
    pub fn mapped(&self) -> Mapped {
        Mapped(Arc::clone(&self.memory))
    }

    /// Returns direction, unit and size.
    pub fn shape(&self) -> Shape {
        self.shape
    }
}

impl Files {
    /// Descriptors that a pipe takes in the agent's process: these, and its doorbell.
    pub const DESCRIPTORS: u64 = 4;

    /// Seals the memory that the program has mapped.
    ///
    /// # Errors
    /// [`Violation::Holes`] where pages are missing, or a file cannot be sealed.
    pub fn seal(&self) -> std::result::Result<(), Violation> {
        let words = status_bytes(self.shape);
        let mut written = vec![(&self.control, words)];
        if self.shape.sends() {
            written.push((&self.ring, self.shape.ring_bytes() as usize));
        }
        for (fd, bytes) in written {
            memfd::seal_against_all(fd).map_err(|_| Violation::Holes)?;
            if !memfd::is_whole(fd, bytes).map_err(|_| Violation::Holes)? {
                return Err(Violation::Holes);
            }
        }
        Ok(())
    }

    /// Opens what the other end of a link reads of this pipe on the direct path: the control file, and the ring if the program writes it.
    /// `eventfds` are those of the other end.
    ///
    /// # Errors
    /// `EMFILE` and others of opening files.
    pub fn peer(&self, eventfds: Eventfds) -> Result<PeerOffer> {
        let open = |fd| memfd::reopen(fd, OFlags::RDONLY);
        let ring = self.shape.sends().then(|| open(&self.ring)).transpose()?;
        Ok(PeerOffer { ring_bytes: self.shape.ring_bytes(), control: open(&self.control)?, ring, eventfds })
    }

    /// Returns the files of status, control and ring, for an agent of another process.
    pub fn all(&self) -> [&OwnedFd; 3] {
        [&self.status, &self.control, &self.ring]
    }

    /// Returns direction, unit and size.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Goes on with the memory of a pipe that an agent of another process has made, in the order of [`Self::all`]. If it `is_mapped`, the program
    /// has mapped it, and it was sealed. The ring of a forwarding pipe, which both sides write, cannot be mapped for writing any more.
    ///
    /// # Errors
    /// `EINVAL` where it is no such memory; errors of mapping it.
    pub fn resume(shape: Shape, files: [OwnedFd; 3], is_mapped: bool) -> Result<(Self, Resumed)> {
        let [status, control, ring] = files;
        let (words, ring_bytes) = (status_bytes(shape), shape.ring_bytes() as usize);
        shelf::check(&status, words, Pages::Ordinary)?;
        memfd::check(&control, words, Pages::Ordinary, is_mapped)?;
        match shape.sends() {
            true => memfd::check(&ring, ring_bytes, Pages::Ordinary, is_mapped)?,
            false => shelf::check(&ring, ring_bytes, Pages::Ordinary)?,
        }
        let is_whole = |fd, bytes| memfd::is_whole(fd, bytes).map(|is| !is_mapped || is);
        if !is_whole(&status, words)? || !is_whole(&control, words)? || !is_whole(&ring, ring_bytes)? {
            return Err(Errno::INVAL);
        }
        let memory = AgentMemory {
            status: Region::<Own>::new(&status, words)?,
            control: Region::<Theirs>::new(&control, words)?,
            ring: Ring::map(&ring, ring_bytes, !shape.sends())?,
            ringer: OnceLock::new(),
        };
        Ok((Self { shape, status, control, ring }, Resumed { shape, memory: Arc::new(memory) }))
    }

    /// Returns whether no program holds the memory any more.
    pub fn are_let_go(&self) -> bool {
        [&self.status, &self.control, &self.ring].into_iter().all(memfd::is_let_go)
    }
}

/// Mappings of a pipe that another agent has made.
#[derive(Clone, Debug)]
pub struct Resumed {
    pub(crate) shape: Shape,
    pub(crate) memory: Arc<AgentMemory>,
}

impl Resumed {
    /// Has `ringer` make wake-ups of the program that may take long.
    pub fn set_ringer(&self, ringer: Arc<Ringer>) {
        let _ = self.memory.ringer.set(ringer);
    }

    /// Returns a hold on the mappings, as [`Made::mapped`] does.
    pub fn mapped(&self) -> Mapped {
        Mapped(Arc::clone(&self.memory))
    }

    /// Returns direction, unit and size.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the pipe with its doorbell, for an agent.
    ///
    /// # Errors
    /// `EINVAL` where the doorbell is no eventfd.
    pub fn with_doorbell(self, doorbell: OwnedFd) -> Result<Made> {
        match is_eventfd(&doorbell) {
            true => Ok(Made { shape: self.shape, memory: self.memory, doorbell, is_anothers: true }),
            false => Err(Errno::INVAL),
        }
    }
}

/// Memory of the other end of a link, which a program maps for reading.
#[derive(Debug)]
pub struct PeerOffer {
    /// Size of the other end's ring.
    pub ring_bytes: u64,
    /// Control words and frame table of the other end.
    pub control: OwnedFd,
    /// Ring of the other end, if it sends.
    pub ring: Option<OwnedFd>,
    /// Wake-up eventfds of this offer.
    pub eventfds: Eventfds,
}

/// Eventfds by which the two ends of a link wake programs that wait in `poll` or `epoll`.
#[derive(Debug, Default)]
pub struct Eventfds {
    /// The one that this end's program sleeps on, if it waits so.
    pub own: Option<OwnedFd>,
    /// The one that the other end's program sleeps on, if that waits so.
    pub peer: Option<OwnedFd>,
}

/// The mappings of that memory.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    pub control: Region<Theirs>,
    pub ring: Option<Region<Theirs>>,
}

impl PeerMemory {
    /// Maps an offer; of a sender with its frame table and ring.
    ///
    /// # Errors
    /// `EINVAL` for a ring of no such size; `ENOMEM` and others of `mmap`.
    pub fn map(offer: &PeerOffer) -> Result<Self> {
        let Some(ring) = &offer.ring else {
            return Ok(Self { control: Region::<Theirs>::new(&offer.control, PAGE_BYTES)?, ring: None });
        };
        let shape = Shape::new(Direction::Send, Unit::Frames, offer.ring_bytes)?;
        Ok(Self {
            control: Region::<Theirs>::new(&offer.control, status_bytes(shape))?,
            ring: Some(Region::<Theirs>::twice(ring, 0, offer.ring_bytes as usize, PAGE_BYTES)?),
        })
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
    /// Maps an offer. The descriptors may be closed afterwards.
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{fallocate, FallocateFlags};

    fn make(direction: Direction) -> (Made, Files, Offer) {
        Made::new(Shape::new(direction, Unit::Frames, 64 << 10).unwrap()).unwrap()
    }

    #[test]
    fn what_the_agent_writes_cannot_be_mapped_writable() {
        for direction in [Direction::Receive, Direction::Send, Direction::Forward] {
            let (_made, files, offer) = make(direction);
            let writable = |fd: &OwnedFd| Region::<Own>::new(fd, PAGE_BYTES).map(drop);
            assert_eq!(writable(&offer.status), Err(Errno::PERM));
            assert_eq!(writable(&offer.ring).is_err(), direction == Direction::Receive);
            let client = ClientMemory::map(&offer).unwrap();
            files.seal().unwrap();
            for fd in [&offer.status, &offer.control, &offer.ring] {
                assert_eq!(writable(fd), Err(Errno::PERM));
                assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
                assert!(rustix::fs::ftruncate(fd, 0).is_err());
            }
            assert!(!files.are_let_go());
            drop(offer);
            assert!(!files.are_let_go(), "it is mapped");
            drop(client);
            assert!(files.are_let_go());
        }
    }

    #[test]
    fn what_a_peer_is_offered_can_be_read_and_keeps_the_memory() {
        let (_made, files, offer) = make(Direction::Send);
        let client = ClientMemory::map(&offer).unwrap();
        files.seal().unwrap();
        let peer = files.peer(Eventfds::default()).unwrap();
        for fd in [&peer.control, peer.ring.as_ref().unwrap()] {
            assert!(Region::<Own>::new(fd, PAGE_BYTES).is_err());
            assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
        }
        let mapped = PeerMemory::map(&peer).unwrap();
        drop((offer, client, peer));
        assert!(!files.are_let_go());
        drop(mapped);
        assert!(files.are_let_go());
        let (_made, files, _offer) = make(Direction::Receive);
        assert!(files.peer(Eventfds::default()).unwrap().ring.is_none());
    }

    #[test]
    fn holes_made_before_sealing_are_found() {
        let (_made, files, offer) = make(Direction::Forward);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&offer.ring, hole, PAGE_BYTES as u64, PAGE_BYTES as u64).unwrap();
        assert_eq!(files.seal(), Err(Violation::Holes));
    }
}
