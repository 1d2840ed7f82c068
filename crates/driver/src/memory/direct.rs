//! Rings of the direct path: one memory file for each direction of a connection, written by one client and read
//! by the other.
use super::account::{Account, Amounts, Lease};
use super::pool::{Exhausted, HugepageUse, Pool};
use crate::calls::{may, simulated, Call};
use crate::ids::{Payer, DRIVER};
use crate::nodes;
use pd_abi::layout::direct;
use pd_abi::limits::{HUGEPAGE_BYTES, PAGE_BYTES};
use pd_shm::memfd::{self, Pages};
use pd_shm::{Mapping, Protection, Region, Theirs};
use rustix::fs::OFlags;
use rustix::io::{Errno, Result};
use rustix::process::{getrlimit, Resource};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Inverse of the part of the driver's descriptors that is not for rings, which take one each. It keeps descriptors for
/// attaching clients and for passing rings on.
const DESCRIPTORS_LEFT: u64 = 8;

/// Rings made by this process.
static RINGS: AtomicU64 = AtomicU64::new(0);

/// An index page and a ring. The driver maps the index page, to read. It maps the ring only when the end of its
/// reader goes to another client.
///
/// The memory stays on the budget until [`Self::is_let_go`]: clients may keep what they have mapped.
#[derive(Debug)]
pub struct DirectRing {
    file: RingFile,
    /// Number within this process, which is never reused.
    number: u64,
    /// Payer that counts the ring.
    pub payer: Payer,
    _lease: Lease,
}

/// File of a ring with its index page.
#[derive(Debug)]
struct RingFile {
    fd: Arc<OwnedFd>,
    index: Region<Theirs>,
    pages: Pages,
    bytes: u64,
    sealed: bool,
}

/// A ring that another driver has made, checked and mapped, for which nobody pays yet.
#[derive(Debug)]
pub struct UnpaidRing(RingFile);

/// Bytes of a direct flow that its previous receiver has not read. The sender may write more of them until it learns
/// that it must leave the ring.
#[derive(Debug)]
pub struct UndrainedRing {
    /// The sender's memory file, from its index page on.
    pub map: Mapping,
    /// Offset of the ring's first byte, behind the index page.
    pub ring_offset: usize,
    /// Size of the ring; a power of two.
    pub bytes: u64,
    /// Bytes read so far.
    pub read: u64,
    /// Set when the writer has left the ring.
    pub is_last: bool,
    /// Bytes of the ring that count, if that is fixed: the writer's end has gone to another client, too.
    pub end: Option<u64>,
}

/// Ends of the two rings for a side of a connection that another client has taken.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RingEnds {
    /// Bytes that count of the ring that the side writes.
    pub sent: u64,
    /// Bytes of its peer's ring that the side has received. The next owner receives those behind.
    pub received: u64,
}

impl Pool {
    /// Makes a ring of `bytes` bytes, a power of two of pages, behind an index page. It has hugepages if it fills one. `account`
    /// pays.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn direct_ring(
        &self,
        account: &Arc<Account>,
        bytes: u64,
    ) -> std::result::Result<DirectRing, Exhausted> {
        if bytes >= HUGEPAGE_BYTES as u64 && self.hugepages != HugepageUse::Off {
            match Self::direct_ring_of(account, bytes, Pages::Huge) {
                Ok(ring) => return Ok(ring),
                Err(Exhausted::Memory(_)) if self.hugepages == HugepageUse::Require => {
                    return Err(Exhausted::Hugepages)
                }
                Err(Exhausted::Memory(_)) => self.warn(),
                Err(exhausted) => return Err(exhausted),
            }
        }
        Self::direct_ring_of(account, bytes, Pages::Ordinary)
    }

    fn direct_ring_of(
        account: &Arc<Account>,
        bytes: u64,
        pages: Pages,
    ) -> std::result::Result<DirectRing, Exhausted> {
        let ring_offset = pages.bytes();
        let len = ring_offset + bytes as usize;
        let lease = account.lease(Amounts::region(len as u64))?;
        let make = || -> Result<(OwnedFd, Region<Theirs>)> {
            may(Call::MakeMemory)?;
            let made = memfd::create("pd-direct", len, pages)?;
            if account.near().is_some() {
                // Placement is a property of the file, set through any mapping.
                let map = Mapping::new(&made, len, Protection::Read)?;
                nodes::place(&map, account.near());
            }
            // A lack of memory shows here, not on a client's access.
            may(Call::Populate)?;
            memfd::allocate(&made, len)?;
            // Every file behind a lease has to be an opening of its own, to tell later whether clients hold it.
            may(Call::Reopen)?;
            let fd = memfd::reopen(&made, OFlags::RDWR)?;
            // The kernel gives the lowest free number, so that all numbers below are in use.
            let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            if fd.as_raw_fd() as u64 >= most - most / DESCRIPTORS_LEFT && !simulated::is_on() {
                return Err(Errno::MFILE);
            }
            may(Call::Map)?;
            let index = Region::<Theirs>::new(&fd, ring_offset)?;
            index.keep_in_memory();
            may(Call::Populate)?;
            index.populate(0, PAGE_BYTES)?;
            Ok((fd, index))
        };
        let (fd, index) = make().map_err(Exhausted::Memory)?;
        let fd = Arc::new(fd);
        Ok(DirectRing::of(RingFile { fd, index, pages, bytes, sealed: false }, DRIVER, lease))
    }
}

impl UnpaidRing {
    /// Checks and maps a ring of `bytes` bytes that another driver has made.
    ///
    /// # Errors
    /// `EINVAL` if it is not such a file; errors of mapping memory.
    pub fn new(fd: OwnedFd, (pages, bytes, sealed): (Pages, u64, bool)) -> Result<Self> {
        let ring_offset = pages.bytes();
        let len = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| ring_offset.checked_add(bytes))
            .ok_or(Errno::INVAL)?;
        if !bytes.is_power_of_two() || bytes < PAGE_BYTES as u64 {
            return Err(Errno::INVAL);
        }
        memfd::check(&fd, len, pages, sealed)?;
        let index = Region::<Theirs>::new(&fd, ring_offset)?;
        index.keep_in_memory();
        index.populate(0, PAGE_BYTES)?;
        Ok(Self(RingFile { fd: Arc::new(fd), index, pages, bytes, sealed }))
    }

    /// Takes over the ring. `account` pays.
    ///
    /// # Errors
    /// The account may not hold it.
    pub fn pay(self, account: &Arc<Account>, payer: Payer) -> std::result::Result<DirectRing, Exhausted> {
        let lease = account.lease(Amounts::region(self.0.pages.bytes() as u64 + self.0.bytes))?;
        Ok(DirectRing::of(self.0, payer, lease))
    }

    /// Returns the bytes of the ring.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }
}

impl DirectRing {
    fn of(file: RingFile, payer: Payer, lease: Lease) -> Self {
        Self { file, number: RINGS.fetch_add(1, Ordering::Relaxed), payer, _lease: lease }
    }

    /// Returns the ring's number within this process.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the ring's file, for another driver.
    pub fn file(&self) -> &Arc<OwnedFd> {
        &self.file.fd
    }

    /// Opens the file for its owner, which maps and seals it before [`Self::check_sealed`].
    ///
    /// # Errors
    /// Errors of opening a file.
    pub fn for_owner(&self) -> Result<OwnedFd> {
        may(Call::Reopen)?;
        memfd::reopen(&self.file.fd, OFlags::RDWR)
    }

    /// Checks that the owner has sealed the file: it cannot be mapped writable any more. To seal it here would wait for the owner, which can
    /// hold the file's lock as long as it likes.
    ///
    /// # Errors
    /// `EPERM` if it is not sealed. `EFAULT` if its owner has punched a hole before: without memory to fill it, the reader would be killed.
    pub fn check_sealed(&mut self) -> Result<()> {
        if !memfd::is_sealed(&self.file.fd) {
            return Err(Errno::PERM);
        }
        if !memfd::is_whole(&self.file.fd, self.file.pages.bytes() + self.file.bytes as usize)? {
            return Err(Errno::FAULT);
        }
        self.file.sealed = true;
        Ok(())
    }

    /// Opens the file for the reader.
    ///
    /// # Errors
    /// `EAGAIN` before it is sealed; errors of opening a file.
    pub fn for_peer(&self) -> Result<OwnedFd> {
        if !self.file.sealed {
            return Err(Errno::AGAIN);
        }
        may(Call::Reopen)?;
        memfd::reopen(&self.file.fd, OFlags::RDONLY)
    }

    /// Returns the bytes of the ring.
    pub fn bytes(&self) -> u64 {
        self.file.bytes
    }

    /// Returns the bytes of a page, which the index page takes.
    pub fn page_bytes(&self) -> u64 {
        self.file.pages.bytes() as u64
    }

    /// Returns the bytes and sends that the owner says it has written. Hostile.
    pub fn said(&self) -> (u64, u64) {
        let load = |word| self.file.index.load_u64(word, Ordering::Relaxed);
        (load(direct::PRODUCER), load(direct::MESSAGES))
    }

    /// Returns the bytes of the peer's ring that the owner says it has given back. Hostile.
    pub fn said_read(&self) -> u64 {
        self.file.index.load_u64(direct::CONSUMER, Ordering::Relaxed)
    }

    /// Returns the bytes that the owner has written, or is about to publish. Hostile.
    pub fn said_sent(&self) -> u64 {
        let load = |word| self.file.index.load_u64(word, Ordering::Acquire);
        load(direct::SENT).max(load(direct::PRODUCER))
    }

    /// Returns the bytes of the peer's ring that the owner has received, or is about to give back. Hostile.
    pub fn said_received(&self) -> u64 {
        let load = |word| self.file.index.load_u64(word, Ordering::Acquire);
        load(direct::RECEIVED).max(load(direct::CONSUMER))
    }

    /// Tells whether the ring is sealed, so that its owner has mapped it and may write.
    pub fn is_sealed(&self) -> bool {
        self.file.sealed
    }

    /// Maps the whole ring, to read it for a client that cannot.
    ///
    /// # Errors
    /// Errors of `mmap`; a lack of memory.
    pub fn undrained(&self, read: u64, is_last: bool, end: Option<u64>) -> Result<UndrainedRing> {
        let ring_offset = self.file.pages.bytes();
        let len = ring_offset + self.file.bytes as usize;
        may(Call::Map)?;
        let map = Mapping::new(&self.file.fd, len, Protection::Read)?;
        may(Call::Populate)?;
        // The file has all its pages. A lack of memory for page tables shows here, not on a copy's access.
        map.populate(0, len)?;
        Ok(UndrainedRing { map, ring_offset, bytes: self.file.bytes, read, is_last, end })
    }

    /// Tells whether no client holds the ring any more.
    pub fn is_let_go(&self) -> bool {
        simulated::is_let_go(self.file.fd.as_fd()).unwrap_or_else(|| memfd::is_let_go(&self.file.fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_written_by_its_owner_only_and_let_go_by_both() {
        for (bytes, pages) in [(4096, Pages::Ordinary), (4 << 20, Pages::Ordinary)] {
            let pool = Pool::new(8 << 20, HugepageUse::Off);
            let mut ring = pool.direct_ring(pool.root(), bytes).unwrap();
            assert_eq!((ring.file.pages, pool.usage().0), (pages, bytes + 4096));
            assert!(ring.is_let_go() && ring.for_peer().is_err());
            let len = bytes as usize + 4096;
            let owner = ring.for_owner().unwrap();
            let map = Mapping::new(&owner, len, Protection::ReadWrite).unwrap();
            assert_eq!(ring.check_sealed(), Err(Errno::PERM));
            memfd::seal_against_all(&owner).unwrap();
            ring.check_sealed().unwrap();
            map.store_u64(direct::PRODUCER, 5, Ordering::Relaxed);
            assert_eq!(ring.said(), (5, 0));
            let peer = ring.for_peer().unwrap();
            for fd in [&owner, &peer] {
                let again = memfd::reopen(fd, OFlags::RDWR).unwrap();
                assert!(Mapping::new(&again, len, Protection::ReadWrite).is_err());
            }
            let read = Mapping::new(&peer, len, Protection::Read).unwrap();
            drop((owner, peer, map));
            assert!(!ring.is_let_go());
            drop(read);
            assert!(ring.is_let_go());
            drop(ring);
            assert_eq!(pool.usage().0, 0);
        }
    }
}
