//! The part of an epoll instance that the kernel cannot have: its connections with twins. They are in a
//! fabric epoll instance, whose descriptor is a member of the kernel's. A wait looks at the fabric
//! first, and sleeps in the kernel.
//!
//! An instance is what the kernel has open, not a number. Each has one entry from when it is made, which `dup` gives to
//! further numbers ([`crate::table`]); as long as it has no member on the fabric it is *bare*, and its waits are the kernel's.
//! Numbers that come in ways which nobody sees are found out by asking the kernel: the fabric's descriptor is a member of
//! the instance behind a number, or it is not ([`EpollSet::is_behind`]). That is asked of a number when it is first used,
//! and of all bare ones when an instance gets its first member.
//!
//! The kernel tells of the fabric's descriptor with a *token* for user data. Whatever a number is taken for, no result of
//! the kernel's reaches a program before tokens are taken out of it. Each instance has its own: one of another process,
//! which has the same instance after a fork or by a message, is told apart, and left to that process.
//!
//! The fabric needs descriptors to wake a thread from the kernel. While there are none a wait sleeps for a moment at a
//! time, and looks.
pub(crate) mod carrying;
mod events;
pub(crate) mod instances;
pub(crate) mod registering;
pub(crate) mod standing;
pub(crate) mod tokens;
pub(crate) mod waiting;

use crate::call::lock;
use crate::carried::Record;
use crate::entry::Entry;
use crate::real;
use libc::{c_int, epoll_event};
use pd_client::core::{this_thread, Armed, Epoll};
use std::collections::HashMap;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The upper half of every token: no pointer, and no small number.
const TOKEN: u64 = 0xfdfa_b81c << 32;
/// Most times that a thread is told that there is something on the fabric now.
const POKES_MAX: u32 = 200;
/// Most instances remembered that were sent in messages and closed then: they may come back.
const SENT_MAX: usize = 16;

/// Instances without a number, which may be in a message.
pub(crate) static SENT: Mutex<Vec<Arc<Entry>>> = Mutex::new(Vec::new());

#[derive(Debug)]
pub(crate) struct EpollSet {
    fabric: Arc<Epoll>,
    token: u64,
    members: Mutex<HashMap<c_int, Arc<Entry>>>,
    /// Set once the instance has had members.
    active: AtomicBool,
    /// Set while the fabric's descriptor is in the kernel's instance.
    hosted: AtomicBool,
    /// The instance's own descriptor is waited for somewhere: it has to be right all the time.
    exposed: Mutex<Option<Armed>>,
    is_exposed: AtomicBool,
    waits: AtomicU32,
    /// News ([`crate::hearsay`]) at the last look.
    news: AtomicU32,
    /// The thread that has waited, if it is the only one.
    waiter: AtomicUsize,
    /// Threads that sleep in the kernel's instance as if there was nothing on the fabric.
    unaware: AtomicU32,
    /// Entries that were taken for other instances, and are this one. Threads may still sleep on them.
    renamed: Mutex<Vec<Weak<Entry>>>,
    is_renamed: AtomicBool,
    /// Set once the instance may be in a message.
    sent: AtomicBool,
    /// Of a forked child, or of another image: its members are still the parent's.
    inherited: AtomicBool,
    /// Registrations of the image before, with `inherited`.
    carried: Mutex<Vec<Record>>,
}

/// Several threads have waited.
const SEVERAL: usize = usize::MAX;

/// Nobody else's, in this process or another.
fn new_token() -> u64 {
    let mut bytes = [0u8; 4];
    // SAFETY: room for so many bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), libc::GRND_NONBLOCK) };
    if got != bytes.len() as isize {
        bytes = (std::process::id() ^ crate::fallback_cache::now_ns() as u32).to_ne_bytes();
    }
    TOKEN | u64::from(u32::from_ne_bytes(bytes))
}

fn is_token(data: u64) -> bool {
    data >> 32 == TOKEN >> 32
}

impl EpollSet {
    pub(crate) fn new() -> Self {
        Self {
            fabric: Epoll::new(),
            token: new_token(),
            members: Mutex::default(),
            active: AtomicBool::new(false),
            hosted: AtomicBool::new(false),
            exposed: Mutex::default(),
            is_exposed: AtomicBool::new(false),
            waits: AtomicU32::new(0),
            news: AtomicU32::new(0),
            waiter: AtomicUsize::new(0),
            unaware: AtomicU32::new(0),
            renamed: Mutex::default(),
            is_renamed: AtomicBool::new(false),
            sent: AtomicBool::new(false),
            inherited: AtomicBool::new(false),
            carried: Mutex::default(),
        }
    }

    /// Returns the set of this instance for a forked child.
    pub(crate) fn in_child(&self) -> Self {
        Self { is_exposed: AtomicBool::new(self.is_exposed.load(Ordering::Relaxed)), ..Self::new() }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst)
    }

    /// Returns whether the kernel's instance with this number is the one that the fabric's descriptor is in.
    fn is_behind(&self, fd: c_int) -> bool {
        let Some(host) = self.host().filter(|_| self.hosted.load(Ordering::Acquire)) else { return false };
        let mut event = self.event();
        // SAFETY: a valid event.
        unsafe { real::epoll_ctl(fd, libc::EPOLL_CTL_MOD, host, &mut event) == 0 }
    }

    fn host(&self) -> Option<c_int> {
        self.fabric.host_fd().ok()
    }

    fn event(&self) -> epoll_event {
        epoll_event { events: libc::EPOLLIN as u32, u64: self.token }
    }

    /// The calling thread is about to wait.
    fn note_waiter(&self) {
        let (this, known) = (this_thread(), self.waiter.load(Ordering::Relaxed));
        if known != this && known != SEVERAL {
            let waiter = if known == 0 { this } else { SEVERAL };
            if self.waiter.compare_exchange(known, waiter, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                self.waiter.store(SEVERAL, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether nobody but the calling thread waits for the instance's members, as in a loop.
    fn is_of_this_thread(&self) -> bool {
        self.waiter.load(Ordering::Relaxed) == this_thread() && !self.is_exposed.load(Ordering::Acquire)
    }

    /// There is one more member.
    fn enroll(&self, fd: c_int, entry: &Arc<Entry>) {
        let first = {
            let mut members = lock(&self.members);
            let first = members.is_empty();
            members.insert(fd, entry.clone());
            first
        };
        if first {
            self.tell_unaware();
        }
    }

    /// Wakes threads that sleep as if there was nothing on the fabric. What wakes one another may take away before it is
    /// awake: hence more than once.
    fn tell_unaware(&self) {
        fence(Ordering::SeqCst);
        for _ in 0..POKES_MAX {
            if self.unaware() == 0 || !self.hosted.load(Ordering::Acquire) {
                return;
            }
            self.fabric.poke();
            pd_client::core::yield_now();
        }
    }

    /// Call at the end of a wait on members. A thread that still sleeps as if there was nothing on the fabric has not learned of them: this
    /// wait may have taken away what was to wake it, and nobody else may wait by now for what comes next.
    fn tell_left(&self) {
        let may_be = self.unaware.load(Ordering::SeqCst) > 0 || self.is_renamed.load(Ordering::Relaxed);
        if may_be && !self.is_empty() && self.unaware() > 0 {
            self.fabric.poke();
        }
    }

    fn unaware(&self) -> u32 {
        let of = |entry: &Weak<Entry>| entry.upgrade()?.epoll().map(|it| it.unaware.load(Ordering::SeqCst));
        self.unaware.load(Ordering::SeqCst) + lock(&self.renamed).iter().filter_map(of).sum::<u32>()
    }

    fn is_empty(&self) -> bool {
        lock(&self.members).is_empty()
    }

    /// Returns whether a wait is the kernel's alone.
    fn is_idle(&self) -> bool {
        self.is_empty() && !self.is_exposed.load(Ordering::Acquire)
    }

    /// Returns whether the kernel alone has members, and new ones of the fabric end sleeps there.
    fn is_the_kernels(&self) -> bool {
        self.hosted.load(Ordering::Acquire) && !self.inherited.load(Ordering::Relaxed) && self.is_idle()
    }

    /// A member's last descriptor is closed, or about to be. The number may be another's by now.
    fn forget(&self, fd: c_int, entry: &Arc<Entry>) {
        let mut members = lock(&self.members);
        if members.get(&fd).is_some_and(|member| Arc::ptr_eq(member, entry)) {
            members.remove(&fd);
        }
    }

    /// The instance's last number is closed.
    pub(crate) fn close(&self, entry: &Arc<Entry>) {
        if self.sent.load(Ordering::Relaxed) && self.hosted.load(Ordering::Relaxed) {
            let mut sent = lock(&SENT);
            sent.retain(|known| !Arc::ptr_eq(known, entry));
            if sent.len() >= SENT_MAX {
                sent.remove(0).epoll().iter().for_each(|set| set.end());
            }
            sent.push(entry.clone());
            return;
        }
        self.end();
    }

    fn end(&self) {
        lock(&self.members).clear();
        self.fabric.close();
    }

    /// Makes the instance's own descriptor tell of the fabric's events, for whoever waits for it.
    fn expose(&self) {
        self.is_exposed.store(true, Ordering::Release);
        let mut exposed = lock(&self.exposed);
        if exposed.is_none() {
            *exposed = self.arm_exposed();
        }
    }

    fn arm_exposed(&self) -> Option<Armed> {
        if !self.hosted.load(Ordering::Acquire) {
            return None;
        }
        self.fabric.arm_exactly().ok()
    }

    /// Handles a change of what is wanted of a member: the instance's own descriptor has to be right.
    fn expose_again(&self) {
        if self.is_exposed.load(Ordering::Acquire) {
            let mut exposed = lock(&self.exposed);
            exposed.take().into_iter().for_each(|armed| self.fabric.disarm(armed, true));
            *exposed = self.arm_exposed();
        }
    }
}
