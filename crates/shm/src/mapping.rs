use crate::copy::copy;
use crate::Pod;
use rustix::io::{Errno, Result};
use rustix::mm::{
    madvise, mlock_with, mmap, mmap_anonymous, munmap, Advice, MapFlags, MlockFlags, ProtFlags,
};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// The error of a mapping. Where a process locks what it maps (`MCL_FUTURE`) the kernel says `EAGAIN` beyond `RLIMIT_MEMLOCK`: to callers it is
/// a lack of memory, not a reason to wait.
fn as_lack(error: Errno) -> Errno {
    if error == Errno::AGAIN {
        Errno::NOMEM
    } else {
        error
    }
}

/// A party's right to a region's bytes.
pub trait Access: Copy + std::fmt::Debug + Send + Sync + 'static {
    /// Returns the protection of the mapping.
    fn protection(self) -> Protection;
}

/// The right to store.
pub trait Writable: Access {
    /// Panics if the region is not mapped for stores. Does nothing where the type guarantees it.
    fn check(self) {}
}

/// This party's own memory: loads and stores.
#[derive(Clone, Copy, Debug)]
pub struct Own;

/// Another party's memory: loads only. A store does not compile:
///
/// ```compile_fail,E0599
/// # use pd_shm::{Region, Theirs};
/// fn forge(peer: &Region<Theirs>) {
///     peer.store_u64(0, 1, std::sync::atomic::Ordering::Release);
/// }
/// ```
///
/// A store into a [`Region<Own>`] does compile:
///
/// ```
/// # use pd_shm::{Own, Region};
/// fn publish(own: &Region<Own>) {
///     own.store_u64(0, 1, std::sync::atomic::Ordering::Release);
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Theirs;

/// The access that a mapping allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Loads only; stores panic.
    Read,
    /// Loads and stores.
    ReadWrite,
}

impl Access for Own {
    fn protection(self) -> Protection {
        Protection::ReadWrite
    }
}

impl Writable for Own {}

impl Access for Theirs {
    fn protection(self) -> Protection {
        Protection::Read
    }
}

impl Access for Protection {
    fn protection(self) -> Protection {
        self
    }
}

impl Writable for Protection {
    #[inline]
    fn check(self) {
        assert!(self == Self::ReadWrite, "store to a read-only mapping");
    }
}

/// A shared mapping of a memory file, unmapped when dropped: [`Own`] or [`Theirs`].
///
/// All access is by checked offset. An offset out of range or misaligned is a bug of the caller
/// (offsets come from constants and from numbers already validated) and panics.
#[derive(Debug)]
pub struct Region<A> {
    base: NonNull<c_void>,
    len: usize,
    access: A,
}

/// A region whose holder is known at run time only: stores are checked.
pub type Mapping = Region<Protection>;

// SAFETY: the mapping is plain shared memory that stays mapped until drop; all access goes through
// atomics or through raw addresses whose users take their own responsibility.
unsafe impl<A: Access> Send for Region<A> {}
// SAFETY: as above; no method touches the memory other than atomically.
unsafe impl<A: Access> Sync for Region<A> {}

impl Region<Own> {
    /// Maps the first `len` bytes of `fd` for loads and stores.
    ///
    /// # Errors
    /// The errors of `mmap`: `ENOMEM` when hugepages are short, `EPERM` when a seal forbids it.
    pub fn new(fd: impl AsFd, len: usize) -> Result<Self> {
        Self::map(fd, len, Own)
    }

    /// Maps `len` bytes of `fd` from `offset` on for loads and stores: a ring of the kernel.
    ///
    /// # Errors
    /// The errors of `mmap`.
    pub fn at(fd: impl AsFd, offset: u64, len: usize) -> Result<Self> {
        Self::map_at(fd, offset, len, Own)
    }

    /// Maps `len` bytes of `fd` from `offset` on twice, one right after the other, for loads and stores: a ring that this
    /// party writes, and any `len` consecutive bytes of which are contiguous in memory.
    ///
    /// # Errors
    /// The errors of `mmap`: `EPERM` when a seal forbids it.
    pub fn twice(fd: impl AsFd, offset: u64, len: usize, page_bytes: usize) -> Result<Self> {
        Self::in_a_row(fd, [(offset, len), (offset, len)], page_bytes, Own)
    }

    /// Maps the first `ring_offset` bytes of `fd`, then the `len` bytes behind them, and these once more, in a row, for loads and stores.
    ///
    /// # Errors
    /// The errors of `mmap`: `EPERM` when a seal forbids it.
    pub fn twice_behind(fd: impl AsFd, ring_offset: usize, len: usize, page_bytes: usize) -> Result<Self> {
        Self::in_a_row(fd, [(0, ring_offset + len), (ring_offset as u64, len)], page_bytes, Own)
    }
}

impl Mapping {
    /// Maps the first `len` bytes of `fd`.
    ///
    /// # Errors
    /// The errors of `mmap`: `ENOMEM` when hugepages are short, `EPERM` when a seal forbids it.
    pub fn new(fd: impl AsFd, len: usize, protection: Protection) -> Result<Self> {
        Self::map(fd, len, protection)
    }
}

impl Region<Theirs> {
    /// Maps the first `len` bytes of `fd` for loads.
    ///
    /// # Errors
    /// The errors of `mmap`.
    pub fn new(fd: impl AsFd, len: usize) -> Result<Self> {
        Self::map(fd, len, Theirs)
    }

    /// Maps `len` bytes of `fd` from `offset` on twice, one right after the other and read-only, so
    /// that any `len` consecutive bytes of a ring are contiguous in memory.
    ///
    /// # Errors
    /// The errors of `mmap`.
    pub fn twice(fd: impl AsFd, offset: u64, len: usize, page_bytes: usize) -> Result<Self> {
        Self::in_a_row(fd, [(offset, len), (offset, len)], page_bytes, Theirs)
    }

    /// Maps the first `ring_offset` bytes of `fd`, then the `len` bytes behind them, and these once more, all
    /// read-only and in a row.
    ///
    /// # Errors
    /// The errors of `mmap`.
    pub fn twice_behind(fd: impl AsFd, ring_offset: usize, len: usize, page_bytes: usize) -> Result<Self> {
        Self::in_a_row(fd, [(0, ring_offset + len), (ring_offset as u64, len)], page_bytes, Theirs)
    }
}

impl<A: Writable> Region<A> {
    /// Copies `len` bytes at `from` to `offset`.
    ///
    /// # Safety
    /// `from` points to `len` readable bytes, which do not lie in this mapping. Nobody else writes the
    /// bytes at `offset`, in this process or another: they are the caller's by the protocol of the region.
    pub unsafe fn copy_in(&self, offset: usize, from: *const u8, len: usize) {
        self.access.check();
        let to = self.address(offset, len);
        // SAFETY: `to` has `len` bytes, checked; the rest is the caller's promise.
        unsafe { copy(to.as_ptr(), from, len) };
    }

    /// Reads `file` from byte `from` on into the `len` bytes at `offset`. Returns how many bytes there were: fewer at the
    /// file's end, and with `at_once` up to where a disk would have to be waited for.
    ///
    /// # Errors
    /// The errors of `preadv2`: with `at_once`, `EAGAIN` if the first byte is on a disk only, and `EOPNOTSUPP` if the file
    /// system cannot tell.
    ///
    /// # Safety
    /// As for [`Self::copy_in`].
    pub unsafe fn read_file(
        &self,
        offset: usize,
        len: usize,
        file: impl AsFd,
        from: u64,
        at_once: bool,
    ) -> Result<usize> {
        self.access.check();
        let piece = libc::iovec { iov_base: self.address(offset, len).as_ptr().cast(), iov_len: len };
        let flags = if at_once { libc::RWF_NOWAIT } else { 0 };
        let from = i64::try_from(from).map_err(|_| Errno::INVAL)?;
        // SAFETY: the piece lies in the mapping (checked), and is the caller's.
        let read = unsafe { libc::preadv2(file.as_fd().as_raw_fd(), &piece, 1, from, flags) };
        usize::try_from(read)
            .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }

    /// Asks for the cache line at `offset`, to be written soon. Nothing but the time that takes depends on it.
    #[inline]
    pub fn prefetch_to_write(&self, offset: usize) {
        let line = self.address(offset, 1);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a hint, which writes nothing and never faults.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line.as_ptr(), options(nostack, preserves_flags, readonly));
        }
        #[cfg(any(not(target_arch = "x86_64"), miri))]
        let _ = line;
    }

    /// Stores a word.
    pub fn store_u64(&self, offset: usize, value: u64, ordering: Ordering) {
        self.access.check();
        self.atomic_u64(offset).store(value, ordering);
    }

    /// Stores a half word.
    pub fn store_u32(&self, offset: usize, value: u32, ordering: Ordering) {
        self.access.check();
        self.atomic_u32(offset).store(value, ordering);
    }

    /// Stores a quarter word, beside whatever another party stores into the rest of the word.
    pub fn store_u16(&self, offset: usize, value: u16, ordering: Ordering) {
        self.access.check();
        self.check(offset, 2, 2);
        // SAFETY: as for `atomic_u64`.
        let word = unsafe { AtomicU16::from_ptr(self.base.byte_add(offset).cast().as_ptr()) };
        word.store(value, ordering);
    }

    /// Copies an entry in, word by word.
    pub fn write<T: Pod>(&self, offset: usize, value: &T) {
        self.check(offset, size_of::<T>(), 8);
        self.access.check();
        for index in 0..size_of::<T>() / 8 {
            // SAFETY: inside `value`, which is initialised throughout (no padding).
            let word = unsafe { ptr::from_ref(value).cast::<u64>().add(index).read_unaligned() };
            self.atomic_u64(offset + index * 8).store(word, Ordering::Relaxed);
        }
    }
}

impl<A: Access> Region<A> {
    /// Maps two pieces of `fd` one right after the other.
    fn in_a_row(fd: impl AsFd, pieces: [(u64, usize); 2], page_bytes: usize, access: A) -> Result<Self> {
        let page = page_bytes as u64;
        if pieces.iter().any(|&(offset, len)| len == 0 || len % page_bytes != 0 || offset % page != 0) {
            return Err(Errno::INVAL);
        }
        // A reservation large enough to hold them at a multiple of the page size.
        let len = pieces[0].1 + pieces[1].1;
        let reserved = len + page_bytes;
        // SAFETY: a new inaccessible mapping at an address of the kernel's choice.
        let area = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                reserved,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
            .map_err(as_lack)?
        };
        let start = (area as usize).next_multiple_of(page_bytes);
        let before = start - area as usize;
        let after = reserved - before - len;
        let protection = access.protection().flags();
        let piece = |at: usize, (offset, len): (u64, usize)| {
            let at = at as *mut c_void;
            // SAFETY: MAP_FIXED over a part of the reservation made above, which nothing else uses.
            unsafe { mmap(at, len, protection, MapFlags::SHARED | MapFlags::FIXED, fd.as_fd(), offset) }
        };
        let mapped = piece(start, pieces[0]).and_then(|_| piece(start + pieces[0].1, pieces[1]));
        // SAFETY: the parts of the reservation before and after the pieces are unused; on error
        // the whole reservation is given back and nothing refers to it.
        unsafe {
            if let Err(error) = mapped {
                munmap(area, reserved)?;
                return Err(as_lack(error));
            }
            if before > 0 {
                munmap(area, before)?;
            }
            if after > 0 {
                munmap((start + len) as *mut c_void, after)?;
            }
        }
        let base = NonNull::new(start as *mut c_void).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len, access })
    }

    fn map(fd: impl AsFd, len: usize, access: A) -> Result<Self> {
        Self::map_at(fd, 0, len, access)
    }

    fn map_at(fd: impl AsFd, offset: u64, len: usize, access: A) -> Result<Self> {
        let protection = access.protection().flags();
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, fd, offset) };
        let base = base.map_err(as_lack)?;
        Ok(Self { base: NonNull::new(base).ok_or(Errno::NOMEM)?, len, access })
    }

    /// Places new pages of the mapped file on a node of the machine's memory, if there is room. It does not matter which
    /// process touches a page first.
    ///
    /// # Errors
    /// `ENOSYS` without CONFIG_NUMA, `EPERM` where it is forbidden, `EINVAL` for a node that there is not.
    pub fn prefer_node(&self, node: u32) -> Result<()> {
        const NODES_MAX: usize = 1024;
        let mut mask = [0 as libc::c_ulong; NODES_MAX / libc::c_ulong::BITS as usize];
        let word = mask.get_mut(node as usize / libc::c_ulong::BITS as usize).ok_or(Errno::INVAL)?;
        *word = 1 << (node % libc::c_ulong::BITS);
        // SAFETY: the range is this mapping; the kernel reads `mask`, and changes no byte of the mapping.
        let result = unsafe {
            // The kernel takes one bit less than it is told of.
            let (mode, bits, flags) = (libc::MPOL_PREFERRED, NODES_MAX + 1, 0);
            libc::syscall(libc::SYS_mbind, self.base.as_ptr(), self.len, mode, mask.as_ptr(), bits, flags)
        };
        if result == 0 {
            return Ok(());
        }
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }

    /// Keeps pages from being swapped out, from the moment at which this mapping has them. What a peer has made is charged to the peer's
    /// control group, which would otherwise choose when it is swapped out: reading it would then wait for a disk, and for that group.
    /// Returns whether the process may lock so much (`RLIMIT_MEMLOCK`).
    pub fn keep_in_memory(&self) -> bool {
        // SAFETY: the range is this mapping; locking changes no byte.
        unsafe { mlock_with(self.base.as_ptr(), self.len, MlockFlags::ONFAULT) }.is_ok()
    }

    /// Brings the pages of a range into being, so that later accesses neither fault nor fail.
    ///
    /// # Errors
    /// `ENOMEM` or `EFAULT` when there is no memory left.
    pub fn populate(&self, offset: usize, len: usize) -> Result<()> {
        self.check(offset, len, 1);
        let advice = match self.access.protection() {
            Protection::Read => Advice::LinuxPopulateRead,
            Protection::ReadWrite => Advice::LinuxPopulateWrite,
        };
        // SAFETY: the range lies in this mapping; populating changes no byte.
        unsafe { madvise(self.base.as_ptr().byte_add(offset), len, advice) }
    }

    /// Bytes mapped (twice the ring for [`Region::twice`]).
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the mapping is empty: never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Address of `len` bytes at `offset`, for an engine or a client's program.
    pub fn address(&self, offset: usize, len: usize) -> NonNull<u8> {
        self.check(offset, len, 1);
        // SAFETY: the offset is inside the mapping.
        unsafe { self.base.byte_add(offset).cast() }
    }

    /// The offset of `address`, if it points into the mapping.
    pub fn offset_of(&self, address: *const u8) -> Option<usize> {
        let offset = (address as usize).checked_sub(self.base.as_ptr() as usize)?;
        (offset < self.len).then_some(offset)
    }

    /// Loads a word.
    pub fn load_u64(&self, offset: usize, ordering: Ordering) -> u64 {
        self.atomic_u64(offset).load(ordering)
    }

    /// Loads a half word.
    pub fn load_u32(&self, offset: usize, ordering: Ordering) -> u32 {
        self.atomic_u32(offset).load(ordering)
    }

    /// Copies an entry out, word by word. The words may be of different times if the other side
    /// breaks the protocol; the copy is what gets checked and used.
    pub fn read<T: Pod>(&self, offset: usize) -> T {
        self.check(offset, size_of::<T>(), 8);
        let mut value = MaybeUninit::<T>::uninit();
        for index in 0..size_of::<T>() / 8 {
            let word = self.atomic_u64(offset + index * 8).load(Ordering::Relaxed);
            // SAFETY: `value` is private, large enough, and written unaligned.
            unsafe { value.as_mut_ptr().cast::<u64>().add(index).write_unaligned(word) };
        }
        // SAFETY: every byte was written (the size is a multiple of 8), and any bytes are valid.
        unsafe { value.assume_init() }
    }

    fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8, 8);
        // SAFETY: in range and aligned (checked; the base is page aligned), mapped as long as `self`
        // lives, and only ever accessed atomically by this crate.
        unsafe { AtomicU64::from_ptr(self.base.byte_add(offset).cast().as_ptr()) }
    }

    pub(crate) fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4, 4);
        // SAFETY: as for `atomic_u64`.
        unsafe { AtomicU32::from_ptr(self.base.byte_add(offset).cast().as_ptr()) }
    }

    #[inline]
    fn check(&self, offset: usize, len: usize, align: usize) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if offset % align != 0 || !inside {
            outside(offset, len, self.len);
        }
    }
}

/// Takes its arguments by value: a panic with them in place would have each access store them for it.
#[cold]
fn outside(offset: usize, len: usize, mapped: usize) -> ! {
    panic!("offset {offset} + {len} is outside a mapping of {mapped} bytes or misaligned")
}

impl Protection {
    fn flags(self) -> ProtFlags {
        match self {
            Self::Read => ProtFlags::READ,
            Self::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

impl<A> Drop for Region<A> {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; no reference outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::{create, seal_against_all, Pages};
    use pd_abi::Request;

    #[test]
    fn words_and_entries() {
        let fd = create("test", 4096, Pages::Ordinary).unwrap();
        let map = Region::<Own>::new(&fd, 4096).unwrap();
        let request = Request { operation: 3, socket: 9, payload: [7; 16], ..Request::default() };
        map.write(64, &request);
        assert_eq!(map.read::<Request>(64), request);
        map.store_u64(0, 5, Ordering::Relaxed);
        assert_eq!(map.load_u32(0, Ordering::Relaxed), 5);
        assert!(std::panic::catch_unwind(|| map.load_u64(4092, Ordering::Relaxed)).is_err());
    }

    #[test]
    fn memory_may_prefer_a_node() {
        let fd = create("test", 8192, Pages::Ordinary).unwrap();
        let map = Region::<Own>::new(&fd, 8192).unwrap();
        match map.prefer_node(0) {
            Ok(()) => assert_eq!(map.prefer_node(1023), Err(Errno::INVAL), "no such node"),
            Err(errno) => assert!([Errno::NOSYS, Errno::PERM].contains(&errno), "{errno}"),
        }
        assert_eq!(map.prefer_node(1024), Err(Errno::INVAL));
        map.populate(0, 8192).unwrap();
    }

    #[test]
    fn twice_is_contiguous() {
        let fd = create("test", 4 * 4096, Pages::Ordinary).unwrap();
        let map = Region::<Own>::new(&fd, 4 * 4096).unwrap();
        map.store_u64(4096, 1, Ordering::Relaxed);
        map.store_u64(3 * 4096 - 8, 2, Ordering::Relaxed);
        let ring = Region::<Theirs>::twice(&fd, 4096, 2 * 4096, 4096).unwrap();
        assert_eq!(ring.load_u64(2 * 4096 - 8, Ordering::Relaxed), 2);
        assert_eq!(ring.load_u64(2 * 4096, Ordering::Relaxed), 1);
        assert_eq!(ring.load_u64(4 * 4096 - 8, Ordering::Relaxed), 2);
    }

    #[test]
    fn a_ring_behind_its_index_page_is_contiguous_and_copied_into() {
        let fd = create("test", 3 * 4096, Pages::Ordinary).unwrap();
        let own = Region::<Own>::new(&fd, 3 * 4096).unwrap();
        let peer = Region::<Theirs>::twice_behind(&fd, 4096, 2 * 4096, 4096).unwrap();
        own.store_u64(0, 7, Ordering::Relaxed);
        // SAFETY: eight private bytes; nobody else writes the ring.
        unsafe { own.copy_in(4096, 9u64.to_ne_bytes().as_ptr(), 8) };
        assert_eq!((peer.len(), peer.load_u64(0, Ordering::Relaxed)), (5 * 4096, 7));
        assert_eq!(peer.load_u64(4096, Ordering::Relaxed), 9);
        assert_eq!(peer.load_u64(3 * 4096, Ordering::Relaxed), 9);
    }

    #[test]
    fn files_are_read_in_place_and_end_where_they_end() {
        let fd = create("test", 2 * 4096, Pages::Ordinary).unwrap();
        let map = Region::<Own>::new(&fd, 2 * 4096).unwrap();
        let file = create("file", 4096, Pages::Ordinary).unwrap();
        Region::<Own>::new(&file, 4096).unwrap().store_u64(4088, 9, Ordering::Relaxed);
        // SAFETY: nobody else has this mapping.
        let read = |offset, len, from| unsafe { map.read_file(offset, len, &file, from, false) };
        assert_eq!(read(4096, 4096, 4088), Ok(8));
        assert_eq!(map.load_u64(4096, Ordering::Relaxed), 9);
        assert_eq!((read(0, 8, 4096), read(0, 8, u64::MAX)), (Ok(0), Err(Errno::INVAL)));
        assert!(std::panic::catch_unwind(|| read(4096, 4097, 0)).is_err());
    }

    #[test]
    fn sealed_memory_takes_no_new_writer() {
        let fd = create("test", 4096, Pages::Ordinary).unwrap();
        let map = Region::<Own>::new(&fd, 4096).unwrap();
        seal_against_all(&fd).unwrap();
        map.store_u64(0, 5, Ordering::Relaxed);
        assert_eq!(Region::<Own>::new(&fd, 4096).unwrap_err(), Errno::PERM);
        let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&fd));
        let again = std::fs::File::options().read(true).write(true).open(path).unwrap();
        assert_eq!(Region::<Own>::new(&again, 4096).unwrap_err(), Errno::PERM);
        assert_eq!(rustix::fs::ftruncate(&fd, 0).unwrap_err(), Errno::PERM);
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(&fd, punch, 0, 4096).unwrap_err(), Errno::PERM);
        let read_only = Region::<Theirs>::new(&fd, 4096).unwrap();
        assert_eq!(read_only.load_u64(0, Ordering::Relaxed), 5);
        // SAFETY: changes the protection of a page of this test's own mapping; it must fail.
        let upgrade =
            unsafe { rustix::mm::mprotect(read_only.base.as_ptr(), 4096, rustix::mm::MprotectFlags::WRITE) };
        assert_eq!(upgrade.unwrap_err(), Errno::ACCESS);
    }
}
