//! The objects of one process: its attachment, its sockets, its memory. A forked child starts with
//! nothing: the parent's objects are unreachable from it.
use crate::arena::Arenas;
use crate::attachment::Attachment;
use crate::error::Result;
use crate::forks::{count_fork, forks};
use crate::kept::{self, Kept};
use crate::setting::{known_socket_path, remember_socket_path};
use crate::sids::Sids;
use crate::socket::Socket;
use crate::turn::lock;
use foldhash::HashMap;
use pd_abi::KernelReason;
use pd_shm::barrier;
use rustix::fs::{accessat, Access, AtFlags, CWD};
use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

/// How long a normal exit waits for what was sent.
const EXIT_WAIT_MAX: Duration = Duration::from_secs(5);

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
static HOOKED: AtomicBool = AtomicBool::new(false);
static FORKS_SEEN: AtomicBool = AtomicBool::new(false);

/// Everything that a process holds. Leaked: lives until the process ends.
#[derive(Debug, Default)]
pub(crate) struct Process {
    attachment: Mutex<Option<Arc<Attachment>>>,
    pub(crate) sids: Sids,
    pub(crate) arenas: Arenas,
    sockets: RwLock<HashMap<u64, Weak<Socket>>>,
    lingering: Mutex<VecDeque<Arc<Socket>>>,
    /// When the driver of an earlier attachment was followed by another.
    reattached: Mutex<Option<Instant>>,
    serial: AtomicU64,
}

/// A socket found by its serial.
struct Found {
    forks: u32,
    serial: u64,
    socket: Weak<Socket>,
}

thread_local! {
    /// The socket found last: threads that use different sockets do not meet in looking for them.
    static LAST: Kept<Option<Found>> = const { Kept::new(None, || LAST.with(Kept::release)) };
}

/// The process's state, made at first use.
#[inline]
pub(crate) fn process() -> &'static Process {
    let current = PROCESS.load(Ordering::Acquire);
    if current.is_null() {
        return start();
    }
    // SAFETY: not null, and what was stored is leaked, never freed.
    unsafe { &*current }
}

#[cold]
fn start() -> &'static Process {
    if !HOOKED.swap(true, Ordering::AcqRel) {
        see_forks();
        // SAFETY: a function without arguments that lives as long as the program.
        unsafe { libc::atexit(at_exit) };
        barrier::register_early();
    }
    let fresh = Box::into_raw(Box::<Process>::default());
    match PROCESS.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: leaked just now, never freed.
        Ok(_) => unsafe { &*fresh },
        Err(other) => {
            // SAFETY: `fresh` was never shared; `other` is leaked as above.
            unsafe {
                drop(Box::from_raw(fresh));
                &*other
            }
        }
    }
}

/// From now on forked children are told apart.
fn see_forks() {
    if !FORKS_SEEN.swap(true, Ordering::AcqRel) {
        // SAFETY: a function without arguments that lives as long as the program.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// Does what is to be done before the program has threads, or clears its environment: looks where the driver is, now and for
/// good, and registers for barriers. What is told of forks after this is told when the library knows of them.
pub fn prepare() {
    remember_socket_path();
    kept::prepare();
    see_forks();
    barrier::register_early();
}

/// Attaches to the driver, unless the process is attached.
///
/// # Errors
/// Why the process cannot be: `ENETDOWN` without a driver, `EACCES` if its socket is not for this user or its policy does not let the
/// process in.
pub fn attach() -> Result<()> {
    process().attachment().map(drop)
}

/// Tells whether the process is attached to a driver that lives. Makes no system call.
pub fn is_attached() -> bool {
    let has_begun = !PROCESS.load(Ordering::Acquire).is_null();
    has_begun && lock(&process().attachment).as_ref().is_some_and(|attachment| attachment.alive())
}

/// Tells whether the driver's socket is where this process can connect to it, as the file system has it.
pub fn is_driver_near() -> bool {
    let flags = AtFlags::EACCESS;
    accessat(CWD, known_socket_path(), Access::WRITE_OK, flags).is_ok()
}

/// Says to the driver why a connection of this process is the kernel's, if the process is attached. `inode` is that of
/// its socket, or 0 for any that no other reason is told of. Takes no call of the kernel's and no time of the driver's.
pub fn stays_on_kernel(reason: KernelReason, inode: u32) {
    let attachment = lock(&process().attachment).clone();
    if let Some(attachment) = attachment {
        attachment.stays_on_kernel(reason, inode);
    }
}

/// Does in a forked child what is to be done there. For forks of which the C library tells nobody.
pub extern "C" fn in_child() {
    crate::own::close_inherited();
    crate::kernel::close_inherited();
    crate::handlers::in_child();
    count_fork();
    PROCESS.store(ptr::null_mut(), Ordering::Release);
}

extern "C" fn at_exit() {
    let current = PROCESS.load(Ordering::Acquire);
    if current.is_null() {
        return;
    }
    // SAFETY: as in `process`.
    let process = unsafe { &*current };
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| process.wait_for_sends()));
}

impl Process {
    /// The attachment; attaches if there is none or the driver of the last one has gone.
    pub(crate) fn attachment(&self) -> Result<Arc<Attachment>> {
        let mut slot = lock(&self.attachment);
        if let Some(attachment) = slot.as_ref().filter(|attachment| attachment.alive()) {
            return Ok(attachment.clone());
        }
        let attachment = Attachment::new()?;
        if slot.replace(attachment.clone()).is_some() {
            *lock(&self.reattached) = Some(Instant::now());
        }
        self.arenas.release_dead();
        Ok(attachment)
    }

    /// Tells whether the driver is another one since less than `time`, so that others may not yet be attached again.
    pub(crate) fn reattached_within(&self, time: Duration) -> bool {
        lock(&self.reattached).is_some_and(|at| at.elapsed() < time)
    }

    /// Looks whether the driver is still there.
    pub(crate) fn check_driver(&self) {
        let attachment = lock(&self.attachment).clone();
        if let Some(attachment) = attachment {
            attachment.check_alive();
        }
    }

    pub(crate) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn register(&self, serial: u64, socket: &Arc<Socket>) {
        self.sockets_mut(|sockets| sockets.insert(serial, Arc::downgrade(socket)));
    }

    /// Takes a closed socket out; one with sends in flight is looked after until they are done.
    pub(crate) fn retire(&self, serial: u64, socket: &Arc<Socket>) {
        self.sockets_mut(|sockets| sockets.remove(&serial));
        let mut lingering = lock(&self.lingering);
        if socket.sends_in_flight() {
            lingering.push_back(socket.clone());
        }
        for _ in 0..lingering.len().min(8) {
            let Some(socket) = lingering.pop_front() else { break };
            if socket.sends_in_flight() {
                lingering.push_back(socket);
            }
        }
    }

    /// Looks which sends of any socket are done, so that their memory can be used again.
    pub(crate) fn reap_all(&self) {
        for socket in self.open_sockets() {
            socket.sends_in_flight();
        }
        lock(&self.lingering).retain(|socket| socket.sends_in_flight());
    }

    /// The open socket with this serial.
    pub(crate) fn socket(&self, serial: u64) -> Option<Arc<Socket>> {
        let forks = forks();
        let look = |last: &Kept<Option<Found>>| {
            let mut last = last.borrow_mut();
            if last.as_ref().is_none_or(|found| (found.forks, found.serial) != (forks, serial)) {
                let socket = self.sockets(|sockets| sockets.get(&serial).cloned())?;
                *last = Some(Found { forks, serial, socket });
            }
            last.as_ref()?.socket.upgrade().filter(|socket| !socket.is_closed())
        };
        // A thread that ends has none of its own any more.
        LAST.try_with(look).unwrap_or_else(|_| self.sockets(|sockets| sockets.get(&serial)?.upgrade()))
    }

    fn open_sockets(&self) -> Vec<Arc<Socket>> {
        self.sockets(|sockets| sockets.values().filter_map(Weak::upgrade).collect())
    }

    fn sockets<R>(&self, look: impl FnOnce(&HashMap<u64, Weak<Socket>>) -> R) -> R {
        look(&self.sockets.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn sockets_mut<R>(&self, change: impl FnOnce(&mut HashMap<u64, Weak<Socket>>) -> R) -> R {
        change(&mut self.sockets.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn undelivered(&self) -> bool {
        lock(&self.lingering).retain(|socket| socket.sends_undelivered());
        !lock(&self.lingering).is_empty()
            || self.open_sockets().iter().any(|socket| socket.sends_undelivered())
    }

    fn wait_for_sends(&self) {
        let until = Instant::now() + EXIT_WAIT_MAX;
        let mut pause = Duration::from_micros(20);
        let mut slept = Duration::ZERO;
        while self.undelivered() && Instant::now() < until {
            std::thread::sleep(pause);
            slept += pause;
            pause = (pause * 2).min(Duration::from_millis(5));
            if slept >= Duration::from_millis(250) {
                slept = Duration::ZERO;
                self.check_driver();
            }
        }
    }
}
