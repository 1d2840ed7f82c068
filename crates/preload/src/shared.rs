//! Twins that several processes hold after a fork: who has the fabric end, and one lock, in memory that
//! the whole family of processes shares. A process that does not have the end takes it over first.
use crate::aside::Progress;
use crate::real;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Twins that can be shared at a time in one family. Beyond, a child has the parent's connection for
/// closing only.
const SLOTS: usize = 1 << 16;
/// Processes that a slot knows; with more of them it is never used again.
const HOLDERS: usize = 12;
const PAGE: usize = 4096;
/// Wait for the lock before one checks that its holder lives.
const LOOK_AFTER_NS: i64 = 50_000_000;

/// One twin.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// 0: free; otherwise the process that holds it, and [`WAITED`].
    lock: AtomicU32,
    /// 0: free; otherwise the process that takes the mark off the kernel's connection, and [`WAITED`].
    marking: AtomicU32,
    owner: AtomicU32,
    /// Times in a row that it went to another process for little.
    turns: AtomicU32,
    /// Tells whether it is taken.
    taken: AtomicU32,
    /// Children that are being forked and do not stand in `holders` yet.
    coming: AtomicU32,
    /// Its way into the kernel.
    pub(crate) progress: Progress,
    /// Of the first slot: process namespaces that the family has got to.
    namespaces: AtomicU32,
    /// Processes that hold descriptors; 0: a free place. Who dies leaves its number behind.
    holders: [AtomicU32; HOLDERS],
}

/// Looks for a lock's holder in another process namespace, which cannot be asked about, until it counts as dead.
const LOOKS_MAX: u32 = 200;
/// Process numbers are smaller. Above them is the number of the process namespace in the family.
const ID_BITS: u32 = 22;
const NAMESPACES: u32 = 1 << (31 - ID_BITS);

static SLOTS_AT: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());
/// The process namespace of this process: 0 is the one where the family began.
static NAMESPACE: AtomicU32 = AtomicU32::new(0);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Of a lock: somebody waits for it. Process numbers are smaller.
const WAITED: u32 = 1 << 31;

/// Where this process's number stands: on a page that the kernel empties in each forked child, however it was forked.
static OWN_ID: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// The number of the process whose memory this is, with its namespace's; in a child of `vfork` its parent's. No system call but the
/// first one.
#[inline]
pub(crate) fn own_id() -> u32 {
    let page = OWN_ID.load(Ordering::Acquire);
    if page.is_null() {
        return learn_id();
    }
    // SAFETY: mapped for good, and all access is atomic.
    let known = unsafe { &*page };
    match known.load(Ordering::Relaxed) {
        0 => {
            let id = asked_id();
            known.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

fn asked_id() -> u32 {
    std::process::id() | NAMESPACE.load(Ordering::Relaxed) << ID_BITS
}

/// This is a forked child. The first process of a process namespace has the number 1, as its parent may have in another.
pub(crate) fn in_child() {
    if std::process::id() != 1 {
        return;
    }
    // Without slots nothing is shared.
    let Some(slots) = existing_slots() else { return };
    let namespace = 1 + slots[0].namespaces.fetch_add(1, Ordering::Relaxed) % (NAMESPACES - 1);
    NAMESPACE.store(namespace, Ordering::Relaxed);
    let page = OWN_ID.load(Ordering::Acquire);
    if !page.is_null() {
        // SAFETY: mapped for good, and all access is atomic.
        unsafe { &*page }.store(0, Ordering::Relaxed);
    }
}

#[cold]
fn learn_id() -> u32 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new page, wherever the kernel likes; nothing else lies there.
    let page = unsafe {
        let map = libc::mmap(ptr::null_mut(), PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if map == libc::MAP_FAILED {
            return asked_id();
        }
        if libc::madvise(map, PAGE, libc::MADV_WIPEONFORK) < 0 {
            libc::munmap(map, PAGE);
            return asked_id();
        }
        map
    };
    let free = ptr::null_mut();
    if OWN_ID.compare_exchange(free, page.cast(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
        // SAFETY: never shown to anybody.
        unsafe { libc::munmap(page, PAGE) };
    }
    own_id()
}

fn slots() -> Option<&'static [Slot]> {
    if SLOTS_AT.load(Ordering::Acquire).is_null() {
        let bytes = SLOTS * size_of::<Slot>();
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let map =
            unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return None;
        }
        SLOTS_AT.store(map.cast(), Ordering::Release);
    }
    existing_slots()
}

fn existing_slots() -> Option<&'static [Slot]> {
    let at = SLOTS_AT.load(Ordering::Acquire);
    // SAFETY: mapped for good, zeroes are slots, and all access is atomic.
    (!at.is_null()).then(|| unsafe { std::slice::from_raw_parts(at, SLOTS) })
}

impl Slot {
    /// A slot for a twin that this process has. Only called before a fork, one thread at a time.
    pub(crate) fn new() -> Option<&'static Self> {
        let slots = slots()?;
        let first = NEXT.load(Ordering::Relaxed) as usize;
        for step in 0..SLOTS {
            let slot = &slots[(first + step) % SLOTS];
            let free = slot.taken.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if free {
                slot.holders[0].store(own_id(), Ordering::Release);
            }
            if free || slot.inherit() {
                slot.lock.store(0, Ordering::Relaxed);
                slot.marking.store(0, Ordering::Relaxed);
                slot.turns.store(0, Ordering::Relaxed);
                slot.progress.copy(&Progress::default());
                slot.owner.store(own_id(), Ordering::Release);
                NEXT.store((first + step + 1) as u32, Ordering::Relaxed);
                return Some(slot);
            }
        }
        None
    }

    /// Takes a slot whose holders have all died without letting go.
    fn inherit(&self) -> bool {
        let holders = self.holders.each_ref().map(|holder| holder.load(Ordering::Acquire));
        let Some(place) = holders.iter().position(|&holder| holder != 0) else { return false };
        if self.coming.load(Ordering::Acquire) > 0
            || holders.iter().any(|&holder| holder != 0 && is_alive(holder))
        {
            return false;
        }
        let holder = &self.holders[place];
        if holder.compare_exchange(holders[place], own_id(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.holders[place + 1..].iter().for_each(|holder| holder.store(0, Ordering::Release));
        true
    }

    /// One more process is about to hold descriptors: a child that is being forked.
    pub(crate) fn expect(&self) {
        self.coming.fetch_add(1, Ordering::AcqRel);
    }

    /// This is that child.
    pub(crate) fn hold(&self) {
        let free = |holder: &&AtomicU32| {
            holder.compare_exchange(0, own_id(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if self.holders.iter().find(free).is_some() {
            self.coming.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// This process has closed its last one.
    pub(crate) fn let_go(&self) {
        for holder in &self.holders {
            let _ = holder.compare_exchange(own_id(), 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        let held = self.holders.iter().any(|holder| holder.load(Ordering::Acquire) != 0);
        if !held && self.coming.load(Ordering::Acquire) == 0 {
            self.taken.store(0, Ordering::Release);
        }
    }

    /// Tells whether no other process holds descriptors.
    pub(crate) fn is_sole(&self) -> bool {
        let other = |holder: u32| holder != 0 && holder != own_id() && is_alive(holder);
        self.coming.load(Ordering::Acquire) == 0
            && !self.holders.iter().any(|holder| other(holder.load(Ordering::Acquire)))
    }

    pub(crate) fn is_mine(&self) -> bool {
        self.owner.load(Ordering::Acquire) == own_id()
    }

    pub(crate) fn make_mine(&self) {
        self.owner.store(own_id(), Ordering::Release);
    }

    /// Locks it for this thread.
    pub(crate) fn lock(&self) -> Held<'_> {
        hold(&self.lock)
    }

    /// Locks the taking off of the mark of the kernel's connection, with or without the other lock held.
    pub(crate) fn lock_mark(&self) -> Held<'_> {
        hold(&self.marking)
    }

    /// Counts of moves to other processes.
    pub(crate) fn turns(&self) -> &AtomicU32 {
        &self.turns
    }
}

fn hold(word: &AtomicU32) -> Held<'_> {
    let mut me = own_id();
    let mut looks = 0;
    loop {
        match word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Held(word),
            Err(holder) => wait_for(word, holder, &mut looks),
        }
        // Others may wait, too.
        me |= WAITED;
    }
}

fn wait_for(word: &AtomicU32, holder: u32, looks: &mut u32) {
    let waited = holder | WAITED;
    if holder != waited
        && word.compare_exchange(holder, waited, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return;
    }
    let limit = libc::timespec { tv_sec: 0, tv_nsec: LOOK_AFTER_NS };
    let place = word.as_ptr() as usize;
    let arguments = [place, libc::FUTEX_WAIT as usize, waited as usize, (&raw const limit) as usize, 0, 0];
    // SAFETY: the word lives for good; the time is read only.
    let result = unsafe { real::system_call(libc::SYS_futex, arguments) };
    if result != -(libc::ETIMEDOUT as isize) {
        return;
    }
    *looks += 1;
    if !is_alive(holder & !WAITED) || is_foreign(holder & !WAITED) && *looks >= LOOKS_MAX {
        let _ = word.compare_exchange(waited, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Returns whether the process is in another process namespace, so that its number says nothing here.
fn is_foreign(process: u32) -> bool {
    process >> ID_BITS != NAMESPACE.load(Ordering::Relaxed)
}

/// Returns whether the process lives, as far as can be known.
fn is_alive(process: u32) -> bool {
    let number = process & ((1 << ID_BITS) - 1);
    // SAFETY: signal 0 only asks.
    is_foreign(process) || unsafe { libc::kill(number as i32, 0) == 0 || crate::call::errno() != libc::ESRCH }
}

/// One of a slot's locks, held.
pub(crate) struct Held<'a>(&'a AtomicU32);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.swap(0, Ordering::Release) & WAITED == 0 {
            return;
        }
        let place = self.0.as_ptr() as usize;
        // SAFETY: the word lives for good.
        unsafe { real::system_call(libc::SYS_futex, [place, libc::FUTEX_WAKE as usize, 1, 0, 0, 0]) };
    }
}
