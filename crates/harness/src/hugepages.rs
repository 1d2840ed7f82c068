//! The machine's pool of 2 MB hugepages: reading it, and raising it for a while.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::container::state::{orphans, owned, Lock};
use crate::sysctl;

/// Bytes of one page of the pool.
pub const PAGE_BYTES: u64 = 2 << 20;

/// The name of notes of added pages.
const NOTE: &str = "hugepages";

/// A pool, as sysfs shows it.
#[derive(Clone, Debug)]
pub struct Pool {
    dir: PathBuf,
}

/// Numbers of pages of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Pages that the pool is to keep. Pages in use when it was lowered are not counted: they leave the pool when they are freed.
    pub total: u64,
    /// Pages that nobody has mapped.
    pub free: u64,
}

impl Pool {
    /// Returns this machine's pool of 2 MB pages.
    pub fn system() -> Pool {
        Pool { dir: PathBuf::from("/sys/kernel/mm/hugepages/hugepages-2048kB") }
    }

    fn read(&self, file: &str) -> Result<u64> {
        sysctl::read(&self.dir.join(file))
    }

    /// Returns the present numbers.
    pub fn counts(&self) -> Result<Counts> {
        let all = self.read("nr_hugepages")?;
        let total = all.saturating_sub(self.read("surplus_hugepages")?);
        Ok(Counts { total, free: self.read("free_hugepages")? })
    }

    fn set_total(&self, pages: u64) -> Result<()> {
        sysctl::write(&self.dir.join("nr_hugepages"), pages)
    }

    /// Makes at least `pages` free pages, adding no more than are missing. The kernel may give fewer.
    fn add(&self, pages: u64) -> Result<u64> {
        let before = self.counts()?;
        let missing = pages.saturating_sub(before.free);
        if missing > 0 {
            self.set_total(before.total + missing)?;
        }
        Ok(self.counts()?.total.saturating_sub(before.total))
    }

    fn take_back(&self, pages: u64) -> Result<()> {
        self.set_total(self.counts()?.total.saturating_sub(pages))
    }
}

/// Pages added to the pool; taken out again when dropped, or by the next sweep if this process is
/// killed.
pub struct Guard {
    pool: Pool,
    added: u64,
    note: PathBuf,
}

impl Guard {
    /// Makes at least `bytes` of free hugepages. On failure prints one warning and goes on: ordinary pages
    /// work, more slowly.
    pub fn raise(bytes: u64, _lock: &Lock) -> Guard {
        Guard::raise_in(Pool::system(), bytes, owned(NOTE))
    }

    fn raise_in(pool: Pool, bytes: u64, note: PathBuf) -> Guard {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let added = pool.add(pages).and_then(|added| {
            // Written before anything can go wrong, so that a sweep finds it.
            fs::write(&note, added.to_string())?;
            let free = pool.counts()?.free;
            anyhow::ensure!(free >= pages, "{free} of {pages} hugepages of 2 MB are free");
            Ok(added)
        });
        let added = added.unwrap_or_else(|e| {
            eprintln!("pd: warning: {e:#}; ordinary pages are used, which is slower (see pd doctor)");
            fs::read_to_string(&note).ok().and_then(|n| n.parse().ok()).unwrap_or(0)
        });
        Guard { pool, added, note }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The lock is held to change the pool, for the number is read and then written.
        let _lock = Lock::acquire();
        if self.added > 0 {
            if let Err(e) = self.pool.take_back(self.added) {
                eprintln!("pd: warning: {} hugepages were not given back: {e:#}", self.added);
            }
        }
        let _ = fs::remove_file(&self.note);
    }
}

/// Gives back the pages that killed processes added.
pub fn sweep(_lock: &Lock) {
    for note in orphans(NOTE) {
        let added = fs::read_to_string(&note).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
        if added > 0 {
            let _ = Pool::system().take_back(added);
        }
        let _ = fs::remove_file(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(total: u64, free: u64) -> (tempfile::TempDir, Pool) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("nr_hugepages"), format!("{total}\n")).unwrap();
        fs::write(dir.path().join("free_hugepages"), format!("{free}\n")).unwrap();
        fs::write(dir.path().join("surplus_hugepages"), "0\n").unwrap();
        let pool = Pool { dir: dir.path().to_owned() };
        (dir, pool)
    }

    #[test]
    fn only_missing_pages_are_added_and_they_are_taken_back() {
        let (_dir, pool) = pool(10, 4);
        assert_eq!(pool.add(6).unwrap(), 2);
        assert_eq!(pool.counts().unwrap().total, 12);
        pool.take_back(2).unwrap();
        assert_eq!(pool.counts().unwrap(), Counts { total: 10, free: 4 });
        assert_eq!(pool.add(3).unwrap(), 0);
    }

    #[test]
    fn pages_on_their_way_out_are_not_kept() {
        // Another program has lowered the pool by 9 while all 18 were in use.
        let (dir, pool) = pool(18, 0);
        fs::write(dir.path().join("surplus_hugepages"), "9\n").unwrap();
        pool.take_back(9).unwrap();
        assert_eq!(pool.read("nr_hugepages").unwrap(), 0);
    }

    #[test]
    fn a_missing_pool_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = Pool { dir: dir.path().join("none") }.counts().unwrap_err();
        assert!(format!("{error:#}").contains("none/nr_hugepages"));
    }
}
