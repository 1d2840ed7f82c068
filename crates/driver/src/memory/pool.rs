//! The budget that all payload regions come from.
use super::account::{Account, Amounts, Lease, Resource, Whose};
use crate::calls::{may, simulated, Call};
use crate::nodes;
use pd_abi::limits::{HUGEPAGE_BYTES, PAGE_BYTES};
use pd_shm::memfd::{self, Pages};
use pd_shm::shelf::{self, Shelf};
use pd_shm::{Mapping, Protection};
use rustix::fs::{fallocate, FallocateFlags, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Use of hugepages for regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HugepageUse {
    /// Hugepages if the machine has free ones, with one warning if not.
    #[default]
    Auto,
    /// No hugepages.
    Off,
    /// Hugepages only; otherwise the region is refused.
    Require,
}

/// Bytes that all regions together may have, and the kinds of memory for them.
#[derive(Debug)]
pub struct Pool {
    root: Arc<Account>,
    pub(super) hugepages: HugepageUse,
    /// Shelves of memory that only the driver writes.
    shelves: Shelves,
    warned: AtomicBool,
}

/// Places of memory that only the driver writes, which another driver can take over. Without a shelf the memory is sealed, and ends with
/// this process.
#[derive(Debug, Default)]
pub struct Shelves {
    ordinary: Option<Shelf>,
    huge: Option<Shelf>,
}

impl Shelves {
    /// Opens the shelves that the process may have. Logs the reason for each missing one.
    pub fn open(hugepages: HugepageUse) -> Self {
        let open = |pages| {
            let refused = |error: &std::io::Error| {
                tracing::debug!(?pages, %error, "memory that only the driver writes stays this process's");
            };
            Shelf::new(pages).inspect_err(refused).ok()
        };
        let huge = (hugepages != HugepageUse::Off).then(|| open(Pages::Huge)).flatten();
        Self { ordinary: open(Pages::Ordinary), huge }
    }

    fn of(&self, pages: Pages) -> Option<&Shelf> {
        match pages {
            Pages::Ordinary => self.ordinary.as_ref(),
            Pages::Huge => self.huge.as_ref(),
        }
    }
}

/// There is no memory for a region.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Exhausted {
    /// An account's limit.
    #[error("{}", remedy(*resource, *whose, *most))]
    Budget {
        /// The resource.
        resource: Resource,
        /// The kind of account.
        whose: Whose,
        /// The account's limit.
        most: u64,
    },
    /// A lack of hugepages, when they are required.
    #[error("no free hugepages: raise vm.nr_hugepages or set memory.hugepages = \"auto\"")]
    Hugepages,
    /// A lack of memory of the machine.
    #[error("out of memory: {0}")]
    Memory(Errno),
}

fn remedy(resource: Resource, whose: Whose, most: u64) -> String {
    match (resource, whose) {
        (Resource::Memory, Whose::Pool) => {
            format!("pool of {most} bytes exhausted: raise memory.budget_bytes")
        }
        (Resource::Memory, Whose::Client) => {
            "client's memory exhausted: raise memory.client_budget_bytes".to_owned()
        }
        (Resource::Memory, Whose::Tenant) => {
            format!("tenant's memory of {most} bytes exhausted: raise its memory_bytes_max in the policy")
        }
        (Resource::Clients, Whose::Tenant) => {
            format!("{most} clients of the tenant are attached: raise its clients_max in the policy")
        }
        (Resource::Clients, _) => "too many clients attached (clients_max)".to_owned(),
        (Resource::Descriptors, Whose::Tenant) => {
            format!("tenant's {most} descriptors in use: raise its descriptors_max in the policy")
        }
        (Resource::Descriptors, _) => {
            "no descriptors left in the driver: raise its limit on open files (LimitNOFILE)".to_owned()
        }
    }
}

impl Exhausted {
    /// Returns the errno that a client receives.
    pub fn errno(&self) -> Errno {
        match *self {
            Self::Budget { resource: Resource::Clients, .. } => Errno::USERS,
            Self::Budget { resource: Resource::Descriptors, .. } => Errno::MFILE,
            Self::Memory(errno) => errno,
            _ => Errno::NOMEM,
        }
    }

    /// Tells whether a smaller request may succeed, because bytes are short.
    pub fn is_of_bytes(&self) -> bool {
        !matches!(
            self,
            Self::Budget { resource: Resource::Clients | Resource::Descriptors, .. }
                | Self::Memory(Errno::MFILE)
        )
    }
}

/// A region as the driver holds it: every page exists, and the budget counts it. It stays in the budget until
/// [`Self::is_let_go`]: clients may keep their mappings, and pass the file on.
#[derive(Debug)]
pub struct Region {
    /// The driver's mapping.
    pub map: Arc<Mapping>,
    /// The kind of the region's pages.
    pub pages: Pages,
    fd: OwnedFd,
    /// Read-only descriptor for the client, of a region that lies in a shelf.
    readable: Option<OwnedFd>,
    /// Set if the driver can take the pages back: no seal forbids it.
    is_emptiable: bool,
    /// Set while another thread may enter the region's pages: see [`Self::make_cold`].
    warming: Option<Arc<Mutex<bool>>>,
    /// The region's share of the budget, given back on drop.
    lease: Lease,
}

/// A region whose pages exist and are not in the tables of this process yet.
#[derive(Debug)]
pub struct Cold {
    map: Arc<Mapping>,
    /// False once the region's pages may be taken back.
    may: Arc<Mutex<bool>>,
}

impl Cold {
    /// Returns the bytes of the region.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Enters pages into the tables of this process. Returns false if the region's pages may be gone.
    ///
    /// # Errors
    /// Errors of `madvise`.
    pub fn warm(&self, offset: usize, len: usize) -> rustix::io::Result<bool> {
        let may = self.may.lock().unwrap_or_else(PoisonError::into_inner);
        match *may {
            true => self.map.populate(offset, len).map(|()| true),
            false => Ok(false),
        }
    }
}

impl Pool {
    /// Makes a pool of `budget` bytes, and of any number of clients and descriptors.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn new(budget: u64, hugepages: HugepageUse) -> Arc<Self> {
        let (clients, descriptors, lines_bytes) = (u64::MAX, u64::MAX, u64::MAX);
        let total = Amounts { clients, descriptors, lines_bytes, memory_bytes: budget };
        Self::of(total, hugepages, Shelves::default())
    }

    /// Makes a pool with these totals.
    pub fn of(total: Amounts, hugepages: HugepageUse, shelves: Shelves) -> Arc<Self> {
        Arc::new(Self { root: Account::new(total), hugepages, shelves, warned: AtomicBool::new(false) })
    }

    /// Returns the shelf for lines that only the driver writes.
    pub fn shelf(&self) -> Option<&Shelf> {
        self.shelves.of(Pages::Ordinary)
    }

    /// Returns the bytes in use and the bytes in all.
    pub fn usage(&self) -> (u64, u64) {
        (self.root.used().memory_bytes, self.root.total().memory_bytes)
    }

    /// Returns the account that all others draw on.
    pub fn root(&self) -> &Arc<Account> {
        &self.root
    }

    /// Returns the bytes that a region of at least `bytes` bytes takes: whole hugepages, if it may have them.
    pub fn bytes_of(&self, bytes: u64, is_large: bool) -> u64 {
        let page = if is_large && self.hugepages != HugepageUse::Off { HUGEPAGE_BYTES } else { PAGE_BYTES };
        bytes.next_multiple_of(page as u64)
    }

    /// Makes a region of the lease's bytes ([`Self::bytes_of`]) for rings of `ring_bytes`, sealed, which only the driver
    /// writes. A ring has pages of its own, so that only large ones lie in hugepages.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn receive_region(&self, lease: Lease, ring_bytes: u64) -> Result<(Region, OwnedFd), Exhausted> {
        let large = ring_bytes >= HUGEPAGE_BYTES as u64;
        let mut region = self.region("pd-receive", lease, large, Some(&self.shelves))?;
        region.is_emptiable |= region.readable.is_some();
        if let Some(fd) = region.readable.take() {
            return Ok((region, fd));
        }
        memfd::seal_against_all(&region.fd).map_err(Exhausted::Memory)?;
        let fd = region.for_client()?;
        Ok((region, fd))
    }

    /// Makes a region of the lease's bytes ([`Self::bytes_of`]) for a client to write. The driver's mapping is read-only.
    /// Seal it when the client has mapped it.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn send_region(&self, lease: Lease) -> Result<(Region, OwnedFd), Exhausted> {
        let large = lease.bytes() >= HUGEPAGE_BYTES as u64;
        let mut region = self.region("pd-send", lease, large, None)?;
        let map = || {
            may(Call::Map)?;
            let map = Mapping::new(&region.fd, region.map.len(), Protection::Read)?;
            map.keep_in_memory();
            may(Call::Populate)?;
            map.populate(0, map.len())?;
            Ok(Arc::new(map))
        };
        region.map = map().map_err(Exhausted::Memory)?;
        let fd = region.for_client()?;
        Ok((region, fd))
    }

    fn region(
        &self,
        name: &str,
        lease: Lease,
        large: bool,
        shelves: Option<&Shelves>,
    ) -> Result<Region, Exhausted> {
        let (bytes, near) = (lease.bytes() as usize, lease.near());
        let of =
            |pages| Self::pages(name, bytes, near, (pages, shelves.and_then(|shelves| shelves.of(pages))));
        let made = match self.hugepages {
            HugepageUse::Require if large => of(Pages::Huge).map_err(|_| Exhausted::Hugepages),
            HugepageUse::Auto if large => of(Pages::Huge).or_else(|_| {
                self.warn();
                of(Pages::Ordinary).map_err(Exhausted::Memory)
            }),
            _ => of(Pages::Ordinary).map_err(Exhausted::Memory),
        };
        let (map, pages, fd, readable) = made?;
        let is_emptiable = simulated::is_on();
        Ok(Region { map: Arc::new(map), pages, fd, readable, is_emptiable, warming: None, lease })
    }

    /// Makes memory. Returns the mapping, the kind of pages, the driver's descriptor, and the descriptor of a client that only
    /// reads.
    fn pages(
        name: &str,
        bytes: usize,
        near: Option<u32>,
        (pages, shelf): (Pages, Option<&Shelf>),
    ) -> rustix::io::Result<(Mapping, Pages, OwnedFd, Option<OwnedFd>)> {
        // Every file behind a lease has to be an opening of its own, to tell later whether clients hold it.
        may(Call::MakeMemory)?;
        let (fd, readable) = match shelf {
            Some(shelf) => shelf.make(bytes).map(|(own, theirs)| (own, Some(theirs)))?,
            None => {
                let made = memfd::create(name, bytes, pages)?;
                may(Call::Reopen)?;
                (memfd::reopen(made, OFlags::RDWR)?, None)
            }
        };
        may(Call::Map)?;
        let map = Mapping::new(&fd, bytes, Protection::ReadWrite)?;
        nodes::place(&map, near);
        may(Call::Populate)?;
        map.populate(0, map.len())?;
        Ok((map, pages, fd, readable))
    }

    pub(super) fn warn(&self) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "no free hugepages: regions are made of {PAGE_BYTES}-byte pages, which costs throughput; \
                 raise vm.nr_hugepages (pd doctor says how far)"
            );
        }
    }
}

impl Region {
    /// Takes over a region of the lease's bytes that another driver has made and a client writes. `is_sealed`: the client has
    /// mapped it.
    ///
    /// # Errors
    /// `EINVAL` if it is not such a file; errors of mapping memory.
    pub fn resume_send(fd: OwnedFd, lease: Lease, pages: Pages, is_sealed: bool) -> rustix::io::Result<Self> {
        memfd::check(&fd, lease.bytes() as usize, pages, is_sealed)?;
        Self::resume(fd, lease, pages, Protection::Read)
    }

    /// Takes over a region that the driver writes.
    ///
    /// # Errors
    /// As of [`Self::resume_send`].
    pub fn resume_receive(fd: OwnedFd, lease: Lease, pages: Pages) -> rustix::io::Result<Self> {
        shelf::check(&fd, lease.bytes() as usize, pages)?;
        Ok(Self { is_emptiable: true, ..Self::resume(fd, lease, pages, Protection::ReadWrite)? })
    }

    fn resume(fd: OwnedFd, lease: Lease, pages: Pages, protection: Protection) -> rustix::io::Result<Self> {
        let map = Mapping::new(&fd, lease.bytes() as usize, protection)?;
        if protection == Protection::Read {
            map.keep_in_memory();
        }
        let map = Arc::new(map);
        Ok(Self { map, pages, fd, readable: None, is_emptiable: false, warming: None, lease })
    }

    /// Returns the region as a thread sees it that enters its pages. A resumed region lacks them.
    pub fn make_cold(&mut self) -> Cold {
        let may = self.warming.insert(Arc::new(Mutex::new(true)));
        Cold { map: Arc::clone(&self.map), may: Arc::clone(may) }
    }

    /// Returns the region's file, for another driver.
    pub fn file(&self) -> &OwnedFd {
        &self.fd
    }

    fn for_client(&self) -> Result<OwnedFd, Exhausted> {
        may(Call::Reopen).and_then(|()| memfd::reopen(&self.fd, OFlags::RDWR)).map_err(Exhausted::Memory)
    }

    /// Duplicates the driver's descriptor, to seal the file.
    ///
    /// # Errors
    /// Errors of `dup`.
    pub fn descriptor(&self) -> rustix::io::Result<OwnedFd> {
        may(Call::Duplicate)?;
        rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)
    }

    /// Tells whether [`Self::empty`] may take the pages back.
    pub fn is_emptiable(&self) -> bool {
        self.is_emptiable && !self.is_empty()
    }

    /// Tells whether the region has no pages. Nothing may lie in it then.
    pub fn is_empty(&self) -> bool {
        self.lease.bytes() == 0
    }

    /// Takes the pages back and gives their bytes back to the account. Mappings stay, and read zeros. A client that reads there has pages
    /// made, which the kernel charges to the client's control group.
    ///
    /// # Errors
    /// Errors of `fallocate`. The region stays as it is, for good.
    pub fn empty(&mut self) -> rustix::io::Result<()> {
        if let Some(may) = self.warming.take() {
            *may.lock().unwrap_or_else(PoisonError::into_inner) = false;
        }
        if simulated::emptied(&self.map).is_none() {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punched = fallocate(&self.fd, mode, 0, self.map.len() as u64);
            punched.inspect_err(|_| self.is_emptiable = false)?;
        }
        self.lease.give_bytes();
        Ok(())
    }

    /// Takes the bytes of an empty region from the account. [`Self::fill`] has to follow.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn reserve(&mut self) -> Result<(), Exhausted> {
        self.lease.take_bytes(self.map.len() as u64)
    }

    /// Makes the pages of a region that was empty.
    ///
    /// # Errors
    /// [`Exhausted::Memory`]. The region is empty again.
    pub fn fill(&mut self) -> Result<(), Exhausted> {
        let filled = may(Call::Populate).and_then(|()| self.map.populate(0, self.map.len()));
        filled.map_err(|errno| {
            // Without pages or with some of them: nothing lies there.
            let _ = self.empty();
            Exhausted::Memory(errno)
        })
    }

    /// Tells whether no client holds the region any more.
    pub fn is_let_go(&self) -> bool {
        simulated::is_let_go(self.fd.as_fd()).unwrap_or_else(|| memfd::is_let_go(&self.fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Cap, Caps};

    #[test]
    fn an_empty_region_costs_nothing_until_it_is_filled() {
        let of = |memory_bytes| Amounts { clients: 9, descriptors: 9, lines_bytes: 0, memory_bytes };
        let pool = Pool::of(of(2 << 20), HugepageUse::Off, Shelves::open(HugepageUse::Off));
        let client = pool.root().payer(Caps::default()).client(u64::MAX);
        let (mut region, fd) =
            pool.receive_region(client.lease_ring(Amounts::region(1 << 20)).unwrap(), 4096).unwrap();
        if pool.shelf().is_none() {
            println!("SKIPPED: no CAP_SYS_ADMIN: memory is sealed, and keeps its pages");
            assert!(!region.is_emptiable());
            return;
        }
        let theirs = Mapping::new(&fd, 1 << 20, Protection::Read).unwrap();
        region.map.store_u64(4096, 7, Ordering::Relaxed);
        let blocks = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_blocks;
        assert_eq!((theirs.load_u64(4096, Ordering::Relaxed), blocks(region.file())), (7, 2048));
        region.empty().unwrap();
        assert_eq!((pool.usage().0, blocks(region.file()), client.leases()), (0, 0, 0));
        assert!(region.is_empty() && !region.is_emptiable());
        assert_eq!(client.used().descriptors, 1, "the file stays open");
        // Others may have the memory meanwhile.
        let others = client.lease(Amounts::memory(1 << 20)).unwrap();
        assert!(region.reserve().is_err());
        drop(others);
        region.reserve().unwrap();
        region.fill().unwrap();
        region.map.store_u64(4096, 8, Ordering::Relaxed);
        assert_eq!((theirs.load_u64(4096, Ordering::Relaxed), blocks(region.file())), (8, 2048));
        assert_eq!((pool.usage().0, client.leases()), (1 << 20, 1));
        drop(region);
        assert_eq!(client.used(), Amounts::default());
    }

    #[test]
    fn budget_is_kept_and_comes_back() {
        let pool = Pool::new(1 << 20, HugepageUse::Off);
        let caps = Caps { memory_bytes: Cap { most: Some(2 << 20), reserved: 0 }, ..Caps::default() };
        let client = pool.root().payer(caps).client(2 << 20);
        let lease = |bytes| client.lease(Amounts::memory(bytes));
        let (region, fd) = pool.receive_region(lease(1 << 20).unwrap(), 4096).unwrap();
        assert!(memfd::is_sealed(&fd));
        let exhausted = lease(4096).unwrap_err();
        assert_eq!(exhausted.to_string(), "pool of 1048576 bytes exhausted: raise memory.budget_bytes");
        assert_eq!(pool.usage(), (1 << 20, 1 << 20));
        assert!(!region.is_let_go());
        let held = Mapping::new(&fd, 1 << 20, Protection::Read).unwrap();
        drop(fd);
        assert!(!region.is_let_go(), "it is mapped");
        drop(held);
        assert!(region.is_let_go());
        drop(region);
        assert_eq!(pool.usage().0, 0);
        pool.send_region(lease(4096).unwrap()).unwrap();
    }
}
