//! The budget that all payload regions come from.
use pd_abi::limits::{HUGEPAGE_BYTES, PAGE_BYTES};
use pd_shm::memfd::{self, Pages};
use pd_shm::{Mapping, Protection};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// Whether regions are made of hugepages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HugepageUse {
    /// If the machine has free ones, with a warning once if not.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always; no region otherwise.
    Require,
}

/// Bytes that all regions together may have, and what they are made of.
#[derive(Debug)]
pub struct Pool {
    budget: u64,
    used: AtomicU64,
    pub(super) hugepages: HugepageUse,
    warned: AtomicBool,
}

/// There is no memory for a region.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Exhausted {
    /// The pool's budget.
    #[error("pool of {budget} bytes exhausted: raise memory.budget_bytes")]
    Budget {
        /// Bytes that the pool may have.
        budget: u64,
    },
    /// The machine's hugepages, when they are required.
    #[error("no free hugepages: raise vm.nr_hugepages or set memory.hugepages = \"auto\"")]
    Hugepages,
    /// The machine's memory.
    #[error("out of memory: {0}")]
    Memory(Errno),
}

/// Bytes taken from a [`Pool`], given back when dropped.
#[derive(Debug)]
pub struct Lease {
    pool: Arc<Pool>,
    bytes: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A region as the driver holds it: every page exists, and the budget knows of it.
#[derive(Debug)]
pub struct Region {
    /// The driver's mapping.
    pub map: Arc<Mapping>,
    /// Its pages.
    pub pages: Pages,
    /// Its share of the budget, given back with it.
    _lease: Lease,
}

impl Pool {
    /// A pool of `budget` bytes.
    pub fn new(budget: u64, hugepages: HugepageUse) -> Arc<Self> {
        Arc::new(Self { budget, used: AtomicU64::new(0), hugepages, warned: AtomicBool::new(false) })
    }

    /// Bytes in use and bytes in all.
    pub fn usage(&self) -> (u64, u64) {
        (self.used.load(Ordering::Relaxed), self.budget)
    }

    pub(super) fn lease(self: &Arc<Self>, bytes: u64) -> Result<Lease, Exhausted> {
        let took = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&sum| sum <= self.budget)
        });
        took.map_err(|_| Exhausted::Budget { budget: self.budget })?;
        Ok(Lease { pool: Arc::clone(self), bytes })
    }

    /// A region of at least `bytes` bytes for rings of `ring_bytes`, that only the driver writes: sealed already. A
    /// ring has pages of its own, so that only large ones lie in hugepages.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn receive_region(
        self: &Arc<Self>,
        bytes: u64,
        ring_bytes: u64,
    ) -> Result<(Region, OwnedFd), Exhausted> {
        let (region, fd) = self.region("pd-receive", bytes, ring_bytes >= HUGEPAGE_BYTES as u64)?;
        memfd::seal_against_all(&fd).map_err(Exhausted::Memory)?;
        Ok((region, fd))
    }

    /// A region for a client to write: the driver's mapping is read-only. Seal it when the client has
    /// mapped it.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn send_region(self: &Arc<Self>, bytes: u64) -> Result<(Region, OwnedFd), Exhausted> {
        let (mut region, fd) = self.region("pd-send", bytes, bytes >= HUGEPAGE_BYTES as u64)?;
        let map = Mapping::new(&fd, region.map.len(), Protection::Read).map_err(Exhausted::Memory)?;
        map.populate(0, map.len()).map_err(Exhausted::Memory)?;
        region.map = Arc::new(map);
        Ok((region, fd))
    }

    fn region(self: &Arc<Self>, name: &str, bytes: u64, large: bool) -> Result<(Region, OwnedFd), Exhausted> {
        if large && self.hugepages != HugepageUse::Off {
            match self.region_of(name, bytes, Pages::Huge) {
                Ok(region) => return Ok(region),
                Err(Exhausted::Memory(_)) if self.hugepages == HugepageUse::Require => {
                    return Err(Exhausted::Hugepages)
                }
                Err(Exhausted::Memory(_)) => self.warn(),
                Err(exhausted) => return Err(exhausted),
            }
        }
        self.region_of(name, bytes, Pages::Ordinary)
    }

    fn region_of(
        self: &Arc<Self>,
        name: &str,
        bytes: u64,
        pages: Pages,
    ) -> Result<(Region, OwnedFd), Exhausted> {
        let bytes = bytes.next_multiple_of(pages.bytes() as u64);
        let lease = self.lease(bytes)?;
        let made = memfd::create(name, bytes as usize, pages).and_then(|fd| {
            let map = Mapping::new(&fd, bytes as usize, Protection::ReadWrite)?;
            map.populate(0, map.len())?;
            Ok((map, fd))
        });
        let (map, fd) = made.map_err(Exhausted::Memory)?;
        Ok((Region { map: Arc::new(map), pages, _lease: lease }, fd))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_kept_and_comes_back() {
        let pool = Pool::new(1 << 20, HugepageUse::Off);
        let (region, fd) = pool.receive_region(1 << 20, 4096).unwrap();
        assert!(memfd::is_sealed(&fd));
        assert_eq!(pool.receive_region(4096, 4096).unwrap_err(), Exhausted::Budget { budget: 1 << 20 });
        assert_eq!(pool.usage(), (1 << 20, 1 << 20));
        drop(region);
        assert_eq!(pool.usage().0, 0);
        pool.send_region(4096).unwrap();
    }
}
