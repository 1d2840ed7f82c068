//! Anonymous shared memory: made, sealed, checked.
//!
//! The driver makes every region. Memory that only the driver writes is sealed before its descriptor
//! leaves the driver ([`seal_against_all`]): from then on the client can map it read-only and in no
//! other way, also through `/proc`. Memory that the client writes is passed on, mapped by the
//! client, and then sealed the same way: existing writable mappings stay, new ones, `write`,
//! truncation and hole punching are refused by the kernel for good.
use pd_abi::limits::{HUGEPAGE_BYTES, PAGE_BYTES};
use rustix::fs::{fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, OwnedFd};

/// What a region's memory is made of.
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

/// Seals against new writers: no new writable mapping, no `write`, no hole punching, no more seals.
///
/// # Errors
/// Those of `fcntl(F_ADD_SEALS)`.
pub fn seal_against_all(fd: impl AsFd) -> Result<()> {
    fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
}

/// Whether `fd` is sealed as [`create`] and [`seal_against_all`] do together.
pub fn is_sealed(fd: impl AsFd) -> bool {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(all))
}
