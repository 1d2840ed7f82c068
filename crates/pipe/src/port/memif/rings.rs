//! Rings of memif in memory of a client, which may write anything into them at any moment.
//!
//! An index and a descriptor are loaded once and bounded; bytes are copied once, and the copy is used. This side keeps its own
//! indices privately, and only stores them.
use super::message::{Refused, RING_LOG_MAX};
use pd_abi::pipe::FRAME_BYTES_MIN;
use pd_shm::copy::copy;
use pd_shm::{Mapping, Protection};
use rustix::fs::{fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, SealFlags};
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, Ordering};

/// Largest file of a region: freeing its pages takes some milliseconds.
pub const REGION_BYTES_MAX: u64 = 64 << 20;
/// Most descriptors of a frame.
const PIECES_MAX: u16 = 16;

/// First word of a ring.
const COOKIE: u32 = 0x03e3_1f20;
/// Offsets in a ring: head (after cookie and flags), tail, and descriptors.
const HEAD: usize = 4;
const TAIL: usize = 64;
const ENTRIES: usize = 128;
const ENTRY_BYTES: usize = 16;
/// Flag of a ring, in the word of the head: the reader polls (`MEMIF_RING_FLAG_MASK_INT`).
const MASK_INT: u16 = 1;
/// Flag of a descriptor: the frame continues in the next one.
const NEXT: u16 = 1;
/// `TMPFS_MAGIC`: the file system of memory with ordinary pages.
const ORDINARY: u32 = 0x0102_1994;

/// Memory of a client.
#[derive(Debug)]
pub struct Shared(Mapping);

impl Shared {
    /// Maps a region. Its file can neither shrink, so that no access fails, nor grow.
    ///
    /// The kernel has a fault in the region wait while its owner punches holes into the file. The bound on the file's pages is one on
    /// that time.
    ///
    /// # Errors
    /// A sentence, for a file that is no such memory.
    pub fn map(fd: &OwnedFd, bytes: u64) -> Result<Self, Refused> {
        let wrong = Refused("a region is a memfd of ordinary pages, sealed against shrinking");
        // Only files of memory have seals. Any other call may wait for a client's own file system.
        if !fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Err(wrong);
        }
        if !fstatfs(fd).is_ok_and(|facts| facts.f_type as u64 == u64::from(ORDINARY)) {
            return Err(wrong);
        }
        let _ = fcntl_add_seals(fd, SealFlags::GROW);
        if !fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::GROW)) {
            return Err(Refused("a region can be sealed against growing, or is"));
        }
        let facts = fstat(fd).map_err(|_| wrong)?;
        // The file may have pages behind its end.
        let (has, takes) = (facts.st_size as u64, facts.st_blocks as u64 * 512);
        if bytes == 0 || bytes > has || has.max(takes) > REGION_BYTES_MAX {
            return Err(Refused("a region has its bytes, and at most 64 MiB"));
        }
        let mapped = Mapping::new(fd, bytes as usize, Protection::ReadWrite);
        mapped.map(Self).map_err(|_| Refused("the region cannot be mapped"))
    }
}

/// A descriptor, loaded once.
#[derive(Clone, Copy)]
struct Piece {
    flags: u16,
    region: u16,
    length: u32,
    offset: u32,
}

/// Result of taking a frame from a ring.
#[derive(Debug, PartialEq, Eq)]
pub enum Got {
    /// A frame of this length, copied.
    Frame(usize),
    /// A frame that no pipe can carry was taken and dropped.
    Skipped,
    /// The ring is empty.
    Nothing,
}

/// A ring of a client. This side advances the tail.
#[derive(Debug)]
pub struct Ring {
    at: usize,
    entries: u16,
    tail: u16,
    published: u16,
}

impl Ring {
    /// Makes a ring of `1 << log` entries at `offset`.
    ///
    /// # Errors
    /// A sentence, if the ring does not lie in the region.
    pub fn new(memory: &Shared, offset: u32, log: u8) -> Result<Self, Refused> {
        if !(1..=RING_LOG_MAX).contains(&log) {
            return Err(Refused("a ring has 2 to 4096 entries"));
        }
        let (at, entries) = (offset as usize, 1u16 << log);
        let end = at + ENTRIES + usize::from(entries) * ENTRY_BYTES;
        if at % 8 != 0 || end > memory.0.len() {
            return Err(Refused("a ring lies in its region, at a multiple of 8"));
        }
        if memory.0.load_u32(at, Ordering::Acquire) != COOKIE {
            return Err(Refused("a ring begins with the cookie"));
        }
        Ok(Self { at, entries, tail: 0, published: 0 })
    }

    /// Returns the number of entries between this side's tail and the client's head.
    fn filled(&self, memory: &Shared) -> Result<u16, Refused> {
        let head = (memory.0.load_u32(self.at + HEAD, Ordering::Acquire) >> 16) as u16;
        let filled = head.wrapping_sub(self.tail);
        if filled > self.entries {
            return Err(Refused("a ring has no more entries than its size"));
        }
        Ok(filled)
    }

    fn entry(&self, index: u16) -> usize {
        self.at + ENTRIES + usize::from(index % self.entries) * ENTRY_BYTES
    }

    fn piece(&self, memory: &Shared, index: u16) -> Piece {
        let entry = self.entry(index);
        let first = memory.0.load_u64(entry, Ordering::Relaxed);
        let offset = memory.0.load_u32(entry + 8, Ordering::Relaxed);
        Piece { flags: first as u16, region: (first >> 16) as u16, length: (first >> 32) as u32, offset }
    }

    /// Takes the oldest frame, with all its entries, and copies it into `frame`.
    ///
    /// # Errors
    /// A sentence, for a violation of the protocol.
    pub fn take(&mut self, memory: &Shared, frame: &mut [u8]) -> Result<Got, Refused> {
        let filled = self.filled(memory)?;
        if filled == 0 {
            return Ok(Got::Nothing);
        }
        let (mut len, mut fits) = (0, true);
        for number in 0..filled.min(PIECES_MAX) {
            let piece = self.piece(memory, self.tail.wrapping_add(number));
            let (offset, length) = (piece.offset as usize, piece.length as usize);
            let inside = offset.checked_add(length).is_some_and(|end| end <= memory.0.len());
            if piece.region != 0 || !inside {
                return Err(Refused("a descriptor names bytes of the region"));
            }
            fits &= len + length <= frame.len();
            if fits {
                let from = memory.0.address(offset, length);
                // SAFETY: `length` bytes of the mapping, checked, and of a private buffer. The source may change meanwhile: the copy
                // is used.
                unsafe { copy(frame[len..].as_mut_ptr(), from.as_ptr(), length) };
                len += length;
            }
            if piece.flags & NEXT == 0 {
                self.tail = self.tail.wrapping_add(number + 1);
                let possible = fits && len >= usize::from(FRAME_BYTES_MIN);
                return Ok(if possible { Got::Frame(len) } else { Got::Skipped });
            }
        }
        Err(Refused("a frame has at most 16 descriptors, all of them there"))
    }

    /// Copies a frame into the client's next buffer. Returns false where there is none, or a shorter one.
    ///
    /// # Errors
    /// A sentence, for a violation of the protocol.
    pub fn put(&mut self, memory: &Shared, frame: &[u8]) -> Result<bool, Refused> {
        if self.filled(memory)? == 0 {
            return Ok(false);
        }
        let piece = self.piece(memory, self.tail);
        if frame.len() > piece.length as usize {
            return Ok(false);
        }
        let offset = piece.offset as usize;
        let inside = offset.checked_add(frame.len()).is_some_and(|end| end <= memory.0.len());
        if piece.region != 0 || !inside {
            return Err(Refused("a descriptor names bytes of the region"));
        }
        let to = memory.0.address(offset, frame.len());
        // SAFETY: bytes of the mapping, checked; a client that writes there, too, spoils what it receives itself.
        unsafe { copy(to.as_ptr(), frame.as_ptr(), frame.len()) };
        // No flags, region 0, the length.
        memory.0.store_u64(self.entry(self.tail), (frame.len() as u64) << 32, Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
        Ok(true)
    }

    /// Publishes the new tail to the client. Returns whether it has changed.
    pub fn publish(&mut self, memory: &Shared) -> bool {
        let is_news = self.published != self.tail;
        if is_news {
            self.published = self.tail;
            // The other half of the word is unused.
            memory.0.store_u32(self.at + TAIL, self.tail.into(), Ordering::Release);
        }
        is_news
    }

    /// Returns whether the client has to be woken after [`Self::publish`]. A client that is about to sleep clears the flag, and then checks
    /// the tail once more.
    pub fn wants_wakeup(&self, memory: &Shared) -> bool {
        fence(Ordering::SeqCst);
        memory.0.load_u32(self.at + HEAD, Ordering::Relaxed) & u32::from(MASK_INT) == 0
    }

    /// Sets whether this side polls a ring that it reads: then the client need not ring. The head lies in the other half of the word.
    pub fn set_polled(&self, memory: &Shared, is_polled: bool) {
        memory.0.store_u16(self.at + HEAD, if is_polled { MASK_INT } else { 0 }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pd_shm::memfd::{create, Pages};
    use proptest::prelude::*;
    use rustix::fs::{fallocate, ftruncate, memfd_create, FallocateFlags, MemfdFlags};

    const BYTES: usize = 64 << 10;

    fn memory() -> (OwnedFd, Shared) {
        let fd = create("memif", BYTES, Pages::Ordinary).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let shared = Shared::map(&fd, BYTES as u64).unwrap();
        shared.0.store_u32(0, COOKIE, Ordering::Relaxed);
        (fd, shared)
    }

    fn set_head(shared: &Shared, head: u16) {
        shared.0.store_u32(HEAD, u32::from(head) << 16, Ordering::Release);
    }

    fn set(shared: &Shared, index: usize, flags: u16, region: u16, length: u32, offset: u32) {
        let first = u64::from(flags) | u64::from(region) << 16 | u64::from(length) << 32;
        shared.0.store_u64(ENTRIES + index * ENTRY_BYTES, first, Ordering::Relaxed);
        shared.0.store_u64(ENTRIES + index * ENTRY_BYTES + 8, offset.into(), Ordering::Relaxed);
    }

    #[test]
    fn frames_are_taken_and_put_as_they_are() {
        let (_fd, shared) = memory();
        let mut ring = Ring::new(&shared, 0, 3).unwrap();
        let mut frame = [0; 4000];
        assert_eq!(ring.take(&shared, &mut frame), Ok(Got::Nothing));
        for at in 0..600 {
            shared.0.store_u32(8192 + at * 4, at as u32, Ordering::Relaxed);
        }
        // Frames of one piece, of three, one that is too long, and one that is too short.
        set(&shared, 0, 0, 0, 64, 8192);
        set(&shared, 1, NEXT, 0, 100, 8192);
        set(&shared, 2, NEXT, 0, 100, 8292);
        set(&shared, 3, 0, 0, 1000, 8392);
        set(&shared, 4, NEXT, 0, 3000, 8192);
        set(&shared, 5, 0, 0, 1001, 8192);
        set(&shared, 6, 0, 0, 13, 8192);
        set_head(&shared, 7);
        assert_eq!(ring.take(&shared, &mut frame), Ok(Got::Frame(64)));
        assert_eq!(ring.take(&shared, &mut frame), Ok(Got::Frame(1200)));
        let words = frame[..1200].chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
        assert!(words.eq(0..300));
        assert_eq!(ring.take(&shared, &mut frame), Ok(Got::Skipped));
        assert_eq!(ring.take(&shared, &mut frame), Ok(Got::Skipped));
        ring.publish(&shared);
        assert_eq!(shared.0.load_u32(TAIL, Ordering::Relaxed), 7);
        // Towards the client: a buffer that is too short takes nothing.
        set(&shared, 7, 0, 0, 60, 32 << 10);
        set_head(&shared, 8);
        assert_eq!((ring.put(&shared, &[7; 61]), ring.put(&shared, &[7; 60])), (Ok(false), Ok(true)));
        assert_eq!(ring.put(&shared, &[7; 60]), Ok(false));
        assert_eq!(shared.0.load_u32(32 << 10, Ordering::Relaxed), 0x0707_0707);
    }

    #[test]
    fn what_is_no_memory_is_no_region() {
        let fd = memfd_create("memif", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, BYTES as u64).unwrap();
        assert!(Shared::map(&fd, BYTES as u64).is_err(), "not sealed");
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        for bytes in [0, BYTES as u64 + 1, u64::MAX, REGION_BYTES_MAX + 1] {
            assert!(Shared::map(&fd, bytes).is_err(), "{bytes}");
        }
        // Freeing pages, or punching holes, takes a time that grows with the file, not with the region.
        let other = |size: u64, from: u64, len: u64, seals: SealFlags| {
            let fd = memfd_create("memif", MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&fd, size).unwrap();
            fallocate(&fd, FallocateFlags::KEEP_SIZE, from, len).unwrap();
            fcntl_add_seals(&fd, SealFlags::SHRINK | seals).unwrap();
            fd
        };
        let (page, none) = (4096, SealFlags::empty());
        let grows = other(REGION_BYTES_MAX, 0, page, none);
        assert!(Shared::map(&grows, page).is_ok());
        assert!(ftruncate(&grows, REGION_BYTES_MAX + page).is_err(), "it is sealed");
        assert!(Shared::map(&other(REGION_BYTES_MAX + page, 0, page, none), page).is_err(), "a long file");
        assert!(Shared::map(&other(page, 0, REGION_BYTES_MAX + page, none), page).is_err(), "pages behind");
        assert!(Shared::map(&other(page, 0, page, SealFlags::SEAL), page).is_err(), "it may grow");
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(Shared::map(&file, 4096).is_err());
        let shared = Shared::map(&fd, BYTES as u64).unwrap();
        // No cookie, no alignment, no room, no such size.
        assert!(Ring::new(&shared, 0, 3).is_err());
        shared.0.store_u32(0, COOKIE, Ordering::Relaxed);
        for (offset, log) in [(4, 3), (BYTES as u32 - 128, 3), (u32::MAX - 7, 3), (0, 0), (0, 13), (0, 255)] {
            assert!(Ring::new(&shared, offset, log).is_err(), "{offset} {log}");
        }
        assert!(Ring::new(&shared, 0, 3).is_ok());
    }

    proptest! {
        /// With any words of the client, no byte outside the region is reached, and no call takes more than the ring has.
        #[test]
        fn any_words_are_taken_or_refused(
            head in any::<u16>(),
            words in prop::collection::vec((any::<u16>(), 0..2u16, any::<u32>(), any::<u32>()), 8),
            small in any::<bool>(),
            length in 14..2000usize,
        ) {
            let (_fd, shared) = memory();
            let (mut from, mut to) = (Ring::new(&shared, 0, 3).unwrap(), Ring::new(&shared, 0, 3).unwrap());
            for (index, &(flags, region, length, offset)) in words.iter().enumerate() {
                let (length, offset) = if small { (length % 2048, offset % 65_536) } else { (length, offset) };
                set(&shared, index, flags, region, length, offset);
            }
            set_head(&shared, if small { head % 9 } else { head });
            let mut frame = [0; 9216];
            let mut taken = 0;
            while let Ok(Got::Frame(_) | Got::Skipped) = from.take(&shared, &mut frame) {
                taken += 1;
                prop_assert!(taken <= 8);
            }
            // A frame may overwrite the ring's own words: the caller bounds the number.
            for _ in 0..32 {
                if to.put(&shared, &frame[..length]) != Ok(true) {
                    break;
                }
            }
        }
    }
}
