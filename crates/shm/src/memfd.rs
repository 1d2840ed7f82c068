//! Anonymous shared memory: made, sealed, checked.
//!
//! The driver makes every region. Memory that only the driver writes is sealed before its descriptor
//! leaves the driver ([`seal_against_all`]): from then on the client can map it read-only and in no
//! other way, also through `/proc`. Memory that the client writes is passed on, mapped by the
//! client, and then sealed the same way, by the client or by a thread of the driver that may wait for it (sealing takes the
//! file's lock, which a writer holds): existing writable mappings stay, new ones, `write`,
//! truncation and hole punching are refused by the kernel for good.
use pd_abi::limits::{HUGEPAGE_BYTES, PAGE_BYTES};
use rustix::fs::{
    fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create, FallocateFlags, MemfdFlags,
    OFlags, SealFlags,
};
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The kind of memory of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB pages.
    Ordinary,
    /// 2 MiB hugepages.
    Huge,
}

impl Pages {
    /// Bytes of one page.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Ordinary => PAGE_BYTES,
            Self::Huge => HUGEPAGE_BYTES,
        }
    }

    /// The kind of pages of `bytes` bytes.
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        match bytes as usize {
            PAGE_BYTES => Some(Self::Ordinary),
            HUGEPAGE_BYTES => Some(Self::Huge),
            _ => None,
        }
    }
}

/// Makes a memory file of `bytes` bytes, which can be sealed. No page of it exists yet.
///
/// # Errors
/// `EINVAL` if `bytes` is not a positive multiple of the page size; those of `memfd_create` and
/// `ftruncate`.
pub fn create(name: &str, bytes: usize, pages: Pages) -> Result<OwnedFd> {
    if bytes == 0 || bytes % pages.bytes() != 0 {
        return Err(Errno::INVAL);
    }
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if pages == Pages::Huge {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let fd = memfd_create(name, flags)?;
    ftruncate(&fd, bytes as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(fd)
}

/// Gives the file all its pages.
///
/// # Errors
/// When there is no memory.
pub fn allocate(fd: impl AsFd, bytes: usize) -> Result<()> {
    fallocate(fd, FallocateFlags::empty(), 0, bytes as u64)
}

/// Returns whether the file still has all its pages. A party that had it writable may have punched holes before it was
/// sealed. The next reader of a hole needs new memory, or dies.
///
/// # Errors
/// The errors of `fstat`.
pub fn is_whole(fd: impl AsFd, bytes: usize) -> Result<bool> {
    /// The unit of `st_blocks`, in bytes.
    const BLOCK_BYTES: u64 = 512;
    Ok(fstat(fd)?.st_blocks as u64 * BLOCK_BYTES >= bytes as u64)
}

/// Seals against new writers: no new writable mapping, no `write`, no hole punching, no more seals.
///
/// # Errors
/// The errors of `fcntl(F_ADD_SEALS)`.
pub fn seal_against_all(fd: impl AsFd) -> Result<()> {
    fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
}

/// Opens the same file anew, for another party to hold. [`is_let_go`] can tell when that party holds it no more.
///
/// # Errors
/// The errors of opening it, with `/proc`.
pub fn reopen(fd: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
    crate::procfs::open(&format!("self/fd/{}", fd.as_fd().as_raw_fd()), flags)
}

/// Returns whether no other party has the file open or mapped. `fd` and the descriptors of others come from [`reopen`].
/// A lease for writing is granted to the only opener alone.
pub fn is_let_go(fd: impl AsFd) -> bool {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: plain system calls on a descriptor that the caller holds; no memory is involved.
    unsafe {
        libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) == 0
            && libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) == 0
    }
}

/// Returns whether `fd` is sealed as [`create`] and [`seal_against_all`] do together.
pub fn is_sealed(fd: impl AsFd) -> bool {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(all))
}

/// Checks a memory file that another process has made: exactly `bytes` bytes of such pages, which nobody can take away; and where it
/// `is_sealed`, as [`is_sealed`] says.
///
/// # Errors
/// `EINVAL` if it is not such a file; those of `fstat` and `fcntl`.
pub fn check(fd: impl AsFd, bytes: usize, pages: Pages, is_sealed: bool) -> Result<()> {
    let (seals, file) = (fcntl_get_seals(&fd)?, fstat(&fd)?);
    let mut wanted = SealFlags::SHRINK | SealFlags::GROW;
    if is_sealed {
        wanted |= SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    }
    // The kernel tells the pages of a file system of hugepages as its blocks.
    let is_huge = file.st_blksize as usize >= HUGEPAGE_BYTES;
    let fits = file.st_size as usize == bytes && bytes > 0 && bytes % pages.bytes() == 0;
    match seals.contains(wanted) && fits && is_huge == (pages == Pages::Huge) {
        true => Ok(()),
        false => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapping, Protection};

    #[test]
    fn files_of_others_are_checked() {
        let fd = create("test", 4 * PAGE_BYTES, Pages::Ordinary).unwrap();
        let check = |bytes, pages, is_sealed| check(&fd, bytes, pages, is_sealed);
        assert_eq!(check(4 * PAGE_BYTES, Pages::Ordinary, false), Ok(()));
        assert_eq!(check(4 * PAGE_BYTES, Pages::Ordinary, true), Err(Errno::INVAL));
        for bytes in [0, 3 * PAGE_BYTES, 5 * PAGE_BYTES, HUGEPAGE_BYTES] {
            assert_eq!(check(bytes, Pages::Ordinary, false), Err(Errno::INVAL));
        }
        assert_eq!(check(4 * PAGE_BYTES, Pages::Huge, false), Err(Errno::INVAL));
        seal_against_all(&fd).unwrap();
        assert_eq!(check(4 * PAGE_BYTES, Pages::Ordinary, true), Ok(()));
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        assert!(super::check(pipe, PAGE_BYTES, Pages::Ordinary, false).is_err());
    }

    #[test]
    fn holes_are_found() {
        let fd = create("test", 4 * PAGE_BYTES, Pages::Ordinary).unwrap();
        assert!(!is_whole(&fd, 4 * PAGE_BYTES).unwrap());
        allocate(&fd, 4 * PAGE_BYTES).unwrap();
        assert!(is_whole(&fd, 4 * PAGE_BYTES).unwrap());
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&fd, hole, PAGE_BYTES as u64, PAGE_BYTES as u64).unwrap();
        assert!(!is_whole(&fd, 4 * PAGE_BYTES).unwrap());
        seal_against_all(&fd).unwrap();
        assert_eq!(fallocate(&fd, hole, 0, PAGE_BYTES as u64), Err(Errno::PERM));
    }

    #[test]
    fn what_others_hold_is_told_from_what_they_let_go() {
        let made = create("test", PAGE_BYTES, Pages::Ordinary).unwrap();
        let own = reopen(&made, OFlags::RDWR).unwrap();
        drop(made);
        assert!(is_let_go(&own));
        for (flags, protection) in [(OFlags::RDWR, Protection::ReadWrite), (OFlags::RDONLY, Protection::Read)]
        {
            let theirs = reopen(&own, flags).unwrap();
            assert!(!is_let_go(&own));
            let map = Mapping::new(&theirs, PAGE_BYTES, protection).unwrap();
            drop(theirs);
            assert!(!is_let_go(&own));
            drop(map);
            assert!(is_let_go(&own));
        }
    }
}
